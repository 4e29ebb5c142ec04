//! Meters of a bridge.

use std::sync::Arc;

use datapath::meter::{MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
use openflow::MeterConfig;
use openflow::meter::{BandKind, MeterFlags};
use packet::Time;

/// A meter as controllers have configured it.
#[derive(Clone, Debug)]
pub struct Meter {
    /// Configuration.
    pub config: MeterConfig,
    /// When it was added.
    pub created: Time,
    /// What packets meet.
    pub limit: Arc<datapath::Meter>,
}

impl Meter {
    /// A meter, unless the datapath has no number left for it.
    pub fn new(config: MeterConfig, created: Time, numbers: &Arc<MeterNumbers>, now: Time) -> Option<Meter> {
        let (unit, bands) = limits(&config);
        let limit = numbers.add(unit, &bands, now)?;
        Some(Meter { config, created, limit })
    }

    /// Changes the configuration. `Some(true)`: flows have to be translated again. `None`: the datapath has no number left.
    pub fn configure(&mut self, config: MeterConfig, numbers: &Arc<MeterNumbers>, now: Time) -> Option<bool> {
        let (unit, bands) = limits(&config);
        let replaced = !self.limit.configure(unit, &bands, now);
        if replaced {
            self.limit = numbers.add(unit, &bands, now)?;
        }
        self.config = config;
        Some(replaced)
    }
}

/// The unit and the bands of a configuration. Without a unit, it is kb/s, as in OVS.
fn limits(config: &MeterConfig) -> (MeterUnit, Vec<MeterBand>) {
    let by_packets = config.flags.contains(MeterFlags::PKTPS);
    let band = |band: &openflow::meter::Band| MeterBand {
        rate: band.rate,
        burst: band.burst,
        kind: match band.kind {
            BandKind::Drop => MeterBandKind::Drop,
            BandKind::DscpRemark(levels) => MeterBandKind::Remark(levels),
        },
    };
    let unit = if by_packets { MeterUnit::Packets } else { MeterUnit::Kilobits };
    (unit, config.bands.iter().map(band).collect())
}
