//! Answers of the kernel about interfaces.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ports::link::fuzz(bytes));
