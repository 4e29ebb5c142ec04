//! The messages of OpenFlow connections in the log, where that is asked for (`vlog/set vconn:dbg`), as in Open vSwitch.
//!
//! The text of a message is bounded, and so is how many are logged: 600 at once and 600 per minute, of all connections
//! together, unless the module's messages are not limited (`vlog/disable-rate-limit`). The text is only made of what is
//! logged.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ofproto::connection::{Tracer, Traffic};
use openflow::text::format_message;
use parking_lot::Mutex;

use crate::vlog::{self, Module};

/// The module of Open vSwitch that logs messages.
const TARGET: &str = "vconn";

/// How many messages may be logged at once, and in how long as many more.
const BURST: u32 = 600;
const REFILL: Duration = Duration::from_secs(60);

/// What all connections have together.
static BUDGET: LazyLock<Mutex<Budget>> = LazyLock::new(|| Mutex::new(Budget::new(Instant::now())));

/// Whether messages are logged.
pub fn is_on() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// Logs what happens on the connection with this name.
pub fn tracer(name: &str) -> Tracer {
    let name = name.to_owned();
    Arc::new(move |traffic| {
        if is_on() {
            log(&name, traffic);
        }
    })
}

fn log(name: &str, traffic: Traffic<'_>) {
    let (what, message) = match traffic {
        Traffic::Sent(message) => ("sent (Success)", message),
        Traffic::Received(message) => ("received", message),
        Traffic::Negotiated { version, allowed, peer } => {
            let version = version.wire();
            let (allowed, peer) = (described(allowed), described(peer));
            return tracing::debug!(
                target: TARGET,
                "{name}: negotiated OpenFlow version {version:#04x} (we support {allowed}, peer supports {peer})"
            );
        }
    };
    if vlog::is_limited(Module::of_target(TARGET)) {
        let Some(dropped) = BUDGET.lock().take(Instant::now()) else { return };
        if dropped > 0 {
            tracing::debug!(target: TARGET, "Dropped {dropped} log messages due to excessive rate");
        }
    }
    let mut text = String::new();
    format_message(&mut text, message);
    let (first, lines) = text.split_once('\n').unwrap_or((&text, ""));
    tracing::debug!(target: TARGET, lines, "{name}: {what}: {first}");
}

/// All versions up to one are named by that.
fn described(versions: openflow::Versions) -> String {
    match versions.iter().last() {
        Some(last) if versions == openflow::Versions::up_to(last.wire()) && last.wire() > 1 => {
            format!("version {:#04x} and earlier", last.wire())
        }
        Some(last) if versions == openflow::Versions::of(&[last]) => format!("version {:#04x}", last.wire()),
        _ => format!("versions {versions}"),
    }
}

/// How many messages may still be logged.
struct Budget {
    left: u32,
    /// Since when it fills up.
    at: Instant,
    dropped: u64,
}

impl Budget {
    fn new(now: Instant) -> Budget {
        Budget { left: BURST, at: now, dropped: 0 }
    }

    /// Takes one message out of the budget: how many have been dropped before it, or `None` to drop it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let each = REFILL / BURST;
        let more = now.saturating_duration_since(self.at).as_nanos() / each.as_nanos();
        match u32::try_from(more) {
            Ok(more) if more < BURST - self.left => {
                self.left += more;
                self.at += each * more;
            }
            _ => (self.left, self.at) = (BURST, now),
        }
        if self.left == 0 {
            self.dropped += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use openflow::{Version, Versions};

    use super::*;

    #[test]
    fn a_minute_has_room_for_600_messages_after_a_burst_of_as_many() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let mut passed = |at| (0..2000).filter(|_| budget.take(at).is_some()).count();
        assert_eq!(passed(start), 600);
        assert_eq!(passed(start + Duration::from_millis(250)), 2, "one for each tenth of a second");
        assert_eq!(passed(start + Duration::from_millis(300)), 1, "and none is lost between");
        assert_eq!(passed(start + Duration::from_secs(3600)), 600);
        assert_eq!(budget.take(start + Duration::from_secs(7200)), Some(1400), "what was dropped is told");
    }

    #[test]
    fn versions_are_described_as_open_vswitch_does() {
        assert_eq!(described(Versions::ALL), "version 0x06 and earlier");
        assert_eq!(described(Versions::up_to(1)), "version 0x01");
        assert_eq!(described(Versions::of(&[Version::V1_4])), "version 0x05");
        assert_eq!(described(Versions::of(&[Version::V1_0, Version::V1_3])), "versions 0x01, 0x04");
    }
}
