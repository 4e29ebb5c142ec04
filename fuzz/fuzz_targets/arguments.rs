//! Arguments of the control socket's commands and of the command line, and options of ports.
#![no_main]
libfuzzer_sys::fuzz_target!(|text: &str| weir::daemon::commands::arguments::fuzz(text));
