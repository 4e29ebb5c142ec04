//! OpenFlow messages: decoding never panics, and what decodes survives encoding.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| openflow::codec::fuzz(bytes));
