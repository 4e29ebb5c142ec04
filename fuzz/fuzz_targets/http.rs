//! The headers by which the HTTP server decides whom it answers, and what stands behind the ? of a request.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weir::http::access::fuzz(bytes);
    weir::http::query::fuzz(bytes);
});
