//! Frames for a session of BFD: what is read can be written again, and the session sends no more than it may.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet::Time;
use protocols::bfd::control::{Control, Frame};
use protocols::bfd::show::Show;
use protocols::bfd::{Session, Settings, source_port};
use protocols::registry::Session as _;

fuzz_target!(|data: &[u8]| {
    let Some((first, mut rest)) = data.split_first() else { return };
    let flag = |bit: u8| (first & bit != 0).to_string();
    let options = [
        ("enable", "true".to_string()),
        ("mult", (first >> 4).to_string()),
        ("cpath_down", flag(1)),
        ("forwarding_if_rx", flag(2)),
        ("decay_min_rx", if first & 4 != 0 { "2000" } else { "0" }.into()),
    ];
    let options = options.map(|(key, value)| (key.to_string(), value)).into();
    let (Some(settings), _) = Settings::from_column(&options) else { return };
    let mut session = Session::new("p0", [2; 6], settings.clone(), 1, source_port(0), (*first).into());
    let (mut now, mut sent) = (Time(0), 0);
    while let [pause, len, frames @ ..] = rest {
        let (frame, next) = frames.split_at(usize::from(*len).min(frames.len()));
        rest = next;
        now = Time(now.0 + u64::from(*pause) * 5_000_000);
        if let Ok(control) = Frame::new_checked(frame).and_then(|frame| Control::new_checked(frame.payload)) {
            assert_eq!(Control::new_checked(&control.emit()), Ok(control));
        }
        let _ = session.receive(now, frame);
        session.account_rx(now);
        if frame.is_empty() {
            let mut settings = settings.clone();
            settings.mult = (*pause).max(1);
            settings.min_rx *= u32::from(pause >> 4).max(1);
            session.configure(now, now.0, settings);
        }
        for _ in 0..2 {
            sent += u64::from(session.run(now, now.0 >> 20).frame.is_some());
        }
        assert!(session.next_wakeup().is_none_or(|wakeup| wakeup > now));
        assert!(sent <= now.0 / 1_000_000 + 1);
    }
    assert!(Show(&session, now).to_string().starts_with("  Forwarding: "));
});
