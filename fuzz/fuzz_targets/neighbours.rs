//! Frames from which neighbours' addresses are learnt. What is learnt is the address of one neighbour.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netstate::resolution::told_by;

fuzz_target!(|frame: &[u8]| {
    if let Some((ip, mac)) = told_by(frame) {
        assert!(mac[0] & 1 == 0 && !ip.is_multicast());
    }
});
