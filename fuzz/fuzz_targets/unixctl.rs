//! Requests on the control socket.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir::unixctl::jsonrpc::fuzz(bytes));
