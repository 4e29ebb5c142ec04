#![no_main]
libfuzzer_sys::fuzz_target!(|frame: &[u8]| {
    let p = packet::Packet::from_slice(frame);
    assert!(p.len() == frame.len());
});
