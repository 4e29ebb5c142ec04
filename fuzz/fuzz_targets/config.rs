//! The TOML configuration.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir::source::toml::fuzz(bytes));
