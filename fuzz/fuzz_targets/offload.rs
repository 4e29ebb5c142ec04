//! Frames with checksums and segments left to do, as taps and packet sockets describe them.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ports::offload::fuzz::run(bytes));
