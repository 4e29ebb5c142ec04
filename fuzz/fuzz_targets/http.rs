//! The headers by which the HTTP server decides whom it answers.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weir::http::access::fuzz(bytes);
});
