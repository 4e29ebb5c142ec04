#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ovsdb::fuzz::run(data));
