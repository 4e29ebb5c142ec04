//! OpenFlow messages: decoding never panics, what decodes survives encoding, and the text for logs is bounded.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    openflow::codec::fuzz(bytes);
    openflow::text::message::fuzz(bytes);
});
