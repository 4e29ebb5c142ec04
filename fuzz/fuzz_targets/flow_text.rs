//! OpenFlow flows as text.
#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| openflow::text::fuzz(text));
