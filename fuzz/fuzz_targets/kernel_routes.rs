//! What the kernel says of devices, routes and neighbours: for each message its type, its flags, its length, and its body.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netstate::kernel::fuzz(bytes));
