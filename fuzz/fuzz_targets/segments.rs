//! Bursts of finished segments of TCP, some of which were changed on their way.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ports::merge::fuzz::run(bytes));
