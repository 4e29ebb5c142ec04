//! Meters of a bridge.

use openflow::MeterConfig;
use packet::Time;

/// A meter as controllers have configured it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Configuration.
    pub config: MeterConfig,
    /// When it was added.
    pub created: Time,
}
