//! Frames for a maintenance point: what is read can be written again, and the point remembers and sends no more than
//! it may.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::Time;
use protocols::cfm::show::{Columns, Show};
use protocols::cfm::{Ccm, MaintenancePoint, Settings};
use protocols::registry::Session;

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else { return };
    let flag = |bit: u8| (first & bit != 0).to_string();
    let options = [
        ("cfm_extended", flag(1)),
        ("cfm_demand", flag(2)),
        ("cfm_interval", if first & 4 != 0 { "100" } else { "130" }.into()),
    ];
    let options = options.map(|(key, value)| (key.to_string(), value)).into();
    let (Some(settings), _) = Settings::from_row(Some((first >> 3).into()), &options, false) else { return };
    let mut point = MaintenancePoint::new(Time(0), "p0", [2; 6], settings, 0, 1);
    let (mut now, mut sent) = (Time(0), 0);
    while let [pause, len, frames @ ..] = rest {
        let (frame, next) = frames.split_at(usize::from(*len).min(frames.len()));
        rest = next;
        now = Time(now.0 + u64::from(*pause) * 5_000_000);
        if let Ok(ccm) = Ccm::new_checked(frame) {
            assert_eq!(Ccm::new_checked(&ccm.emit([1; 6], [2; 6], u16::from(*pause))), Ok(ccm));
        }
        let _ = point.receive(now, frame);
        sent += u64::from(point.run(now, now.0 >> 20).frame.is_some());
        assert!(point.next_wakeup().is_some_and(|wakeup| wakeup > now));
        assert!(sent <= now.0 / 100_000_000 + 1 && point.remote_mpids().len() <= 256);
    }
    assert!(Show(&point, now).to_string().starts_with("---- p0 ----\n"));
    assert!(Columns::of(&point).fault_status.len() < 6);
});
