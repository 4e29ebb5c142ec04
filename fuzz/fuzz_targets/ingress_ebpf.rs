//! XDP programs as ingress filters: object files, and programs that no compiler has made.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ingress::fuzz::run_ebpf(bytes));
