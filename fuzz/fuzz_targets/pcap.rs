//! Capture files, read, replayed and recorded.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ports::pcap::fuzz::run(bytes));
