//! Datapath flows as text.
#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| datapath::text::fuzz(text));
