//! Frames for the members of a bond: what is read can be written again, and the bond sends no more than it may.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::Time;
use protocols::lacp::pdu::SlowPdu;
use protocols::lacp::show::{Show, ShowStats};
use protocols::lacp::{Aggregator, MemberId, MemberSettings, Settings};
use protocols::registry::Session;

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else { return };
    let [active, fast, fallback_ab] = [1, 2, 4].map(|bit| first & bit != 0);
    let name = "bond".into();
    let mut bond =
        Aggregator::new(Settings { name, system_id: [2; 6], system_priority: 65534, active, fast, fallback_ab, aggregates: fallback_ab });
    for n in 0..3 {
        let name = format!("p{n}");
        let settings = MemberSettings { name, mac: [2; 6], port_id: n, port_priority: 1, key: u16::from(first >> 3) };
        bond.set_member(Time(0), MemberId(n.into()), settings, true);
    }
    let (mut now, mut sent) = (Time(0), 0);
    while let [id, pause, len, frames @ ..] = rest {
        let (frame, next) = frames.split_at(usize::from(*len).min(frames.len()));
        rest = next;
        now = Time(now.0 + u64::from(*pause) * 40_000_000);
        if let Ok(SlowPdu::Lacp(pdu)) = SlowPdu::new_checked(frame) {
            assert_eq!(SlowPdu::new_checked(&pdu.emit([2; 6])), Ok(SlowPdu::Lacp(pdu)));
        }
        let id = MemberId((id & 3).into());
        if frame.is_empty() {
            bond.set_carrier(now, id, pause & 1 != 0);
        }
        let _ = bond.receive(now, id, frame);
        sent += bond.run(now).frames.len() as u64;
        assert!(bond.next_wakeup().is_none_or(|wakeup| wakeup > now));
        assert!(sent <= 3 * 3 * (now.0 / 1_000_000_000 + 1));
    }
    assert!(Show(&bond).to_string().starts_with("---- bond ----\n"));
    assert!(ShowStats(&bond).to_string().contains("member: p2:"));
});
