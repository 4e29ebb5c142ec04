//! Frames for the bridges of both spanning tree protocols, on three ports, with time passing between them. What is read can be
//! written again, and there is always something that the bridge says of itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::Time;
use protocols::stp::bpdu::Bpdu;
use protocols::{rstp, stp};

/// Bytes of an input for each step: a port, milliseconds, and a frame.
const STEP: usize = 3 + 60;

fuzz_target!(|data: &[u8]| {
    let mut rapid = rstp::Bridge::new(rstp::Settings::new([2; 6]), Time(0));
    let mut plain = stp::Bridge::new(stp::Settings::new([2; 6]), Time(0));
    for name in ["p1", "p2", "p3"] {
        let number = rapid.add_port(rstp::PortSettings::new(name, [3; 6])).expect("numbers are free");
        rapid.set_link(number, rstp::Link::up(1000));
        let number = plain.add_port(Time(0), stp::PortSettings::new(name, [3; 6])).expect("numbers are free");
        plain.set_link(number, true, 1000);
    }
    let mut now = Time(0);
    let (mut rapid_output, mut plain_output) = (rstp::Output::default(), stp::Output::default());
    for step in data.chunks(STEP) {
        rapid.run(now, &mut rapid_output);
        plain.run(now, &mut plain_output);
        let [port, high, low, frame @ ..] = step else { break };
        let number = u16::from(port % 4);
        match port >> 2 {
            0 => rapid.set_link(number, rstp::Link::default()) && plain.set_link(number, false, 0),
            1 => rapid.set_link(number, rstp::Link::up(10)) && plain.set_link(number, true, 10),
            _ => true,
        };
        now = now + std::time::Duration::from_millis(u64::from(u16::from_be_bytes([*high, *low])));
        if let Ok(bpdu) = Bpdu::new_checked(frame) {
            assert_eq!(Bpdu::new_checked(&bpdu.emit([4; 6])), Ok(bpdu));
        }
        rapid.receive(number, frame);
        plain.receive(now, number, frame);
    }
    // At most one frame of a port for each run, but for acknowledgements and notifications.
    assert!(rapid_output.frames.len() <= 3 * (data.len() / STEP + 1));
    assert!(rapid.show("br0").len() + plain.show("br0").len() > 0);
});
