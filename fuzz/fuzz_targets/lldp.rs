//! Frames for an agent of LLDP: what is read can be written again, and the agent remembers and sends no more than it may.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::Time;
use protocols::lldp::agent::MAX_NEIGHBOURS;
use protocols::lldp::show::{Show, ShowIsid, Statistics, Status};
use protocols::lldp::{Agent, AutoAttach, Lldpdu};
use protocols::registry::Session;

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else { return };
    let mappings = (0..u32::from(*first)).map(|isid| (isid, isid as u16)).collect();
    let auto_attach = AutoAttach { system_name: "x".repeat(300), system_description: String::new(), mappings };
    let mut agent = Agent::new(Time(0), "p0", [2; 6], auto_attach.into());
    let (mut now, mut sent) = (Time(0), 0);
    while let [pause, high, low, frames @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let (frame, next) = frames.split_at(len.min(frames.len()));
        rest = next;
        now = Time(now.0 + u64::from(*pause) * 500_000_000);
        if let Ok(pdu) = Lldpdu::new_checked(frame) {
            let unrecognized = pdu.unrecognized;
            assert_eq!(Lldpdu::new_checked(&pdu.emit([2; 6])), Ok(Lldpdu { unrecognized: 0, ..pdu }));
            assert!(unrecognized as usize <= frame.len());
        }
        let _ = agent.receive(now, frame);
        if let Some(own) = agent.run(now) {
            sent += 1;
            assert!(Lldpdu::new_checked(&own).is_ok() && own.len() <= 1514);
        }
        assert!(agent.next_wakeup().is_some_and(|wakeup| wakeup > now));
        assert!(sent <= now.0 / 5_000_000_000 + 1 && agent.neighbours().len() <= MAX_NEIGHBOURS);
    }
    let shown = [Show(&agent, now).to_string(), Status(&agent).to_string(), Statistics(&agent).to_string()].concat();
    assert!(shown.starts_with("---- p0 ----\n") && !shown.contains('\x1b'));
    assert!(ShowIsid(&agent).to_string().lines().count() >= 3);
});
