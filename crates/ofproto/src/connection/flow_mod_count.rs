//! How many flow-mods a connection has sent, for a log: soon after the first, then once a minute while more come, and when
//! the connection ends.

use std::fmt::Write;
use std::time::Duration;

use openflow::flow_mod::FlowModCommand;
use packet::Time;

/// How long flow-mods are counted before they are reported.
const PERIOD: Duration = Duration::from_secs(10);

/// The least time between two reports, less that.
const PAUSE: Duration = Duration::from_secs(60);

/// The flow-mods that have not been reported.
#[derive(Debug, Default)]
pub(super) struct FlowModCount {
    adds: u64,
    deletes: u64,
    modifications: u64,
    /// When the first and the last of them came, and when they are to be reported.
    span: Option<Span>,
    /// No report is made before.
    not_before: Option<Time>,
}

#[derive(Debug)]
struct Span {
    first: Time,
    last: Time,
    due: Time,
}

impl FlowModCount {
    /// Counts one that has been obeyed.
    pub fn add(&mut self, command: FlowModCommand, now: Time) {
        match command {
            FlowModCommand::Add => self.adds += 1,
            FlowModCommand::Modify | FlowModCommand::ModifyStrict => self.modifications += 1,
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => self.deletes += 1,
        }
        let due = || (now + PERIOD).max(self.not_before.unwrap_or(now));
        let span = self.span.get_or_insert_with(|| Span { first: now, last: now, due: due() });
        span.last = now;
        self.not_before = Some(span.due + PAUSE);
    }

    /// When [`report`](FlowModCount::report) is to be called.
    pub fn due(&self) -> Option<Time> {
        self.span.as_ref().map(|span| span.due)
    }

    /// What came since the last report; `None` for nothing. In the words of Open vSwitch.
    pub fn report(&mut self, now: Time) -> Option<String> {
        let Span { first, last, .. } = self.span.take()?;
        let (adds, deletes, modifications) = (self.adds, self.deletes, self.modifications);
        (self.adds, self.deletes, self.modifications) = (0, 0, 0);
        let (ago, lasted) = (now.since(first).as_secs(), last.since(first).as_secs());
        let mut text = format!("{} flow_mods ", adds + deletes + modifications);
        let _ = match lasted {
            _ if lasted == ago => write!(text, "in the last {ago} s"),
            0 => write!(text, "{ago} s ago"),
            _ => write!(text, "in the {lasted} s starting {ago} s ago"),
        };
        let kinds = [(adds, "adds"), (deletes, "deletes"), (modifications, "modifications")];
        let kinds: Vec<_> = kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
        let _ = write!(text, " ({})", kinds.join(", "));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000_000);

    fn at(seconds: u64) -> Time {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn reports_say_what_came_and_when() {
        let mut count = FlowModCount::default();
        assert_eq!((count.due(), count.report(START)), (None, None));
        count.add(FlowModCommand::Delete, START);
        assert_eq!(count.report(START).as_deref(), Some("1 flow_mods in the last 0 s (1 deletes)"));
        count.add(FlowModCommand::Add, START);
        count.add(FlowModCommand::ModifyStrict, START);
        assert_eq!(count.report(at(9)).as_deref(), Some("2 flow_mods 9 s ago (1 adds, 1 modifications)"));
        count.add(FlowModCommand::Add, at(10));
        count.add(FlowModCommand::Add, at(13));
        assert_eq!(count.report(at(20)).as_deref(), Some("2 flow_mods in the 3 s starting 10 s ago (2 adds)"));
        assert_eq!(count.report(at(20)), None);
    }

    #[test]
    fn the_first_report_is_soon_and_later_ones_a_minute_apart() {
        let mut count = FlowModCount::default();
        count.add(FlowModCommand::Add, START);
        assert_eq!(count.due(), Some(at(10)));
        count.report(at(10));
        count.add(FlowModCommand::Add, at(11));
        assert_eq!(count.due(), Some(at(70)));
        count.report(at(70));
        count.add(FlowModCommand::Add, at(200));
        assert_eq!(count.due(), Some(at(210)));
    }
}
