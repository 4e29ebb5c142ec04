//! Texts of `bfd/show` (ovs-vswitchd(8)), in the format of OVS 3.1, and column `bfd_status`.

use std::fmt::{self, Display, Write};

use weir_time::Time;

use super::session::Session;

/// `bfd/show` of a session at a point in time, without the line with its name that precedes each of several.
#[derive(Debug)]
pub struct Show<'a>(pub &'a Session, pub Time);

impl Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Show(session, now) = *self;
        writeln!(f, "  Forwarding: {}", session.forwarding(now))?;
        writeln!(f, "  Detect Multiplier: {}", session.settings.mult)?;
        writeln!(f, "  Concatenated Path Down: {}", session.settings.cpath_down)?;
        writeln!(f, "  TX Interval: Approx {}ms", session.tx_interval().as_millis())?;
        writeln!(f, "  RX Interval: Approx {}ms", session.rx_interval().as_millis())?;
        writeln!(f, "  Detect Time: now {:+}ms", millis_from(now, session.detect_time))?;
        writeln!(f, "  Next TX Time: now {:+}ms", millis_from(now, session.next_tx))?;
        writeln!(f, "  Last TX Time: now {:+}ms", millis_from(now, session.last_tx.unwrap_or_default()))?;
        f.write_char('\n')?;

        writeln!(f, "  Local Flags: {}", session.flags)?;
        writeln!(f, "  Local Session State: {}", session.state)?;
        writeln!(f, "  Local Diagnostic: {}", session.diagnostic)?;
        writeln!(f, "  Local Discriminator: {:#x}", session.discriminator)?;
        writeln!(f, "  Local Minimum TX Interval: {}ms", session.desired_min_tx().as_millis())?;
        writeln!(f, "  Local Minimum RX Interval: {}ms", session.min_rx.as_millis())?;
        f.write_char('\n')?;

        let remote = &session.remote;
        writeln!(f, "  Remote Flags: {}", remote.flags)?;
        writeln!(f, "  Remote Session State: {}", remote.state)?;
        writeln!(f, "  Remote Diagnostic: {}", remote.diagnostic)?;
        writeln!(f, "  Remote Discriminator: {:#x}", remote.discriminator)?;
        writeln!(f, "  Remote Minimum TX Interval: {}ms", remote.min_tx.as_millis())?;
        writeln!(f, "  Remote Minimum RX Interval: {}ms", remote.min_rx.as_millis())?;
        writeln!(f, "  Remote Detect Multiplier: {}", remote.mult)
    }
}

/// The pairs of column `bfd_status`, in the order of their keys.
pub fn status(session: &Session, now: Time) -> [(&'static str, String); 6] {
    [
        ("diagnostic", session.diagnostic.to_string()),
        ("flap_count", session.flap_count().to_string()),
        ("forwarding", session.forwarding(now).to_string()),
        ("remote_diagnostic", session.remote.diagnostic.to_string()),
        ("remote_state", session.remote.state.to_string()),
        ("state", session.state.to_string()),
    ]
}

/// What `bfd/set-forwarding` is told in its last argument; `None` where it is none of the words that it takes.
pub fn parse_forwarding(word: &str) -> Option<Option<bool>> {
    match word.to_ascii_lowercase().as_str() {
        "true" => Some(Some(true)),
        "false" => Some(Some(false)),
        "normal" => Some(None),
        _ => None,
    }
}

/// Whole milliseconds from `now` to `then`.
fn millis_from(now: Time, then: Time) -> i128 {
    i128::from(then.millis()) - i128::from(now.millis())
}
