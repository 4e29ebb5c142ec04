//! Changes to the log, and patterns of its lines.
#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| weir::vlog::fuzz(text));
