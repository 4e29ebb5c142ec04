//! Meters: limits of rates.

use std::time::Duration;

/// What a meter-mod does (`enum ofp13_meter_mod_command`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum MeterCommand {
    /// Add; a meter of the same number is an error.
    Add = 0,
    /// Change; no meter of that number is an error.
    Modify = 1,
    /// Delete.
    Delete = 2,
}

/// Numbers of meters, and the numbers that stand for others (`enum ofp13_meter`).
pub mod meter_id {
    /// Largest number of a meter.
    pub const MAX: u32 = 0xffff_0000;
    /// The meter of the connection to the slow path.
    pub const SLOWPATH: u32 = 0xffff_fffd;
    /// The meter of packets to the controller.
    pub const CONTROLLER: u32 = 0xffff_fffe;
    /// All meters.
    pub const ALL: u32 = 0xffff_ffff;
}

bitflags::bitflags! {
    /// Flags of a meter (`enum ofp13_meter_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MeterFlags: u16 {
        /// Rates are in kb/s.
        const KBPS = 1;
        /// Rates are in packets per second.
        const PKTPS = 1 << 1;
        /// Bursts are limited to the size given.
        const BURST = 1 << 2;
        /// Counts.
        const STATS = 1 << 3;
    }
}

/// What happens to packets above a band's rate (`enum ofp13_meter_band_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BandKind {
    /// They are dropped.
    Drop,
    /// Their drop precedence in the DSCP field is raised by so much.
    DscpRemark(u8),
}

/// A band of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Band {
    /// What happens.
    pub kind: BandKind,
    /// Rate, in the meter's unit.
    pub rate: u32,
    /// Size of bursts, in kb or packets.
    pub burst: u32,
}

/// A meter as it is configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeterConfig {
    /// Meter.
    pub meter: u32,
    /// Flags.
    pub flags: MeterFlags,
    /// Bands.
    pub bands: Vec<Band>,
}

/// A change to meters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterMod {
    /// What to do.
    pub command: MeterCommand,
    /// The meter.
    pub config: MeterConfig,
}

/// Counters of a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterStats {
    /// Meter.
    pub meter: u32,
    /// Flows that use it.
    pub flow_count: u32,
    /// Packets that came.
    pub packet_in_count: u64,
    /// Bytes that came.
    pub byte_in_count: u64,
    /// Age.
    pub duration: Duration,
    /// Packets and bytes above the rate of each band.
    pub bands: Vec<(u64, u64)>,
}
