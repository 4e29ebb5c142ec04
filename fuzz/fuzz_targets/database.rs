//! What a database wants, to the desired state.
#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| weir::source::ovsdb::fuzz::run(text));
