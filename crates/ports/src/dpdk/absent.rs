//! In the place of DPDK where this program was compiled without it.

use super::{Init, Settings, State};

/// Says why nothing is started.
pub fn initialise(settings: &Settings) -> State {
    if settings.init != Init::Off {
        tracing::error!(target: "dpdk", "DPDK is asked for; {}", State::Absent.problem().unwrap_or_default());
    }
    State::Absent
}

/// That there is none.
pub fn state() -> State {
    State::Absent
}

/// The version of the library; `None`.
pub fn version() -> Option<String> {
    None
}
