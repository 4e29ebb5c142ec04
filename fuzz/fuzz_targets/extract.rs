//! Frames: the fast extractor against the reference.
#![no_main]
libfuzzer_sys::fuzz_target!(|frame: &[u8]| packet::flow::reference::check(frame));
