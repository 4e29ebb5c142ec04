//! Snapshots: taking one over never panics, what was taken over comes out again, and its connections take packets.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ofproto::snapshot::fuzz(bytes));
