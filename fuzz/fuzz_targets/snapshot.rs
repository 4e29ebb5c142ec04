//! Snapshots: taking one over never panics, and what was taken over comes out again.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ofproto::snapshot::fuzz(bytes));
