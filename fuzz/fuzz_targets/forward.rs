//! Frames through the whole switch, with flows, changes and bursts, against the reference interpreter.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ofproto::fuzz::run(bytes));
