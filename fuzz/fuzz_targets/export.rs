//! Sampled packets: what is sent of them to collectors is as long as it says, and never too long.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| export::fuzz::run(data));
