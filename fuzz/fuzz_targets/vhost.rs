//! Frames as guests describe them, on the way to another guest.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ports::vhost::fuzz::run(bytes));
