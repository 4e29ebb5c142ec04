//! A maintenance point (IEEE 802.1ag clause 19), with what OVS makes of it.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use packet::wire;
use weir_time::Time;

use super::ccm::{Ccm, MAID};
use super::settings::{Settings, Vlan};
use crate::ethernet::Mac;
use crate::random::Random;
use crate::registry::Session;

/// How many other points one knows.
pub const MAX_REMOTES: usize = 256;
/// After how many fault intervals the health is computed.
const HEALTH_PERIODS: u32 = 6;
/// Messages of another point in that time: 3.5 in each fault interval.
const HEALTHY_MESSAGES: u32 = HEALTH_PERIODS * 7 / 2;
/// Within how many intervals a message has to come for data to count in demand mode.
const DEMAND_RX_PERIODS: u32 = 100;

bitflags::bitflags! {
    /// What is wrong. The names are those of column `cfm_fault_status`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Faults: u8 {
        /// Nobody was heard.
        const RECV = 0x01;
        /// Somebody hears nobody.
        const RDI = 0x02;
        /// A message was of another maintenance association.
        const MAID = 0x04;
        /// A message had this point's own identifier.
        const LOOPBACK = 0x08;
        /// More than [`MAX_REMOTES`] points were heard.
        const OVERFLOW = 0x10;
        /// An operator says so.
        const OVERRIDE = 0x20;
    }
}

impl Display for Faults {
    /// Names with spaces between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(" "))
    }
}

impl Faults {
    /// Column `cfm_fault_status`.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.iter_names().map(|(name, _)| name.to_ascii_lowercase())
    }
}

/// What a [`MaintenancePoint::run`] asks of its caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// A frame to send by the interface.
    pub frame: Option<Vec<u8>>,
    /// Whether something that the columns `cfm_*` show has changed since the last run.
    pub status_changed: bool,
}

/// Why a frame changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// No continuity check message.
    #[error("{0}")]
    Malformed(#[from] wire::Error),
}

/// What a message showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Faults, which count at the end of the fault interval.
    pub faults: Faults,
    /// The sender has another interval. No fault, as in OVS, but worth a line of the log.
    pub other_interval: bool,
    /// Messages are missing between the sender's last one and this.
    pub out_of_sequence: bool,
}

/// Another maintenance point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Remote {
    /// Whether it was heard since the faults were checked.
    pub heard: bool,
    pub opup: bool,
    sequence: u32,
    /// Messages without a fault since the health was computed.
    healthy: u32,
}

/// A maintenance point.
#[derive(Debug)]
pub struct MaintenancePoint {
    pub(super) settings: Settings,
    pub(super) name: String,
    mac: Mac,
    /// Whether faults were checked once: before, to hear nobody is no reason for RDI.
    booted: bool,
    faults: Faults,
    /// What messages have shown since the faults were checked.
    received_faults: Faults,
    pub(super) remote_opup: bool,
    pub(super) fault_override: Option<bool>,
    sequence: u32,
    pub(super) tx_at: Time,
    pub(super) check_at: Time,
    pub(super) remotes: BTreeMap<u64, Remote>,
    /// Identifiers of those that were heard when the faults were checked.
    reported: Vec<u64>,
    pub(super) health: Option<u8>,
    health_periods: u32,
    flap_count: u64,
    /// Packets of the interface when the faults were checked.
    rx_packets: u64,
    /// Until when data count in demand mode.
    demand_until: Time,
    status_changed: bool,
    random: Random,
}

impl MaintenancePoint {
    /// A maintenance point on an interface, with a seed for random VLANs. Its first message is due.
    pub fn new(now: Time, name: &str, mac: Mac, settings: Settings, rx_packets: u64, seed: u64) -> MaintenancePoint {
        let check_at = now + settings.fault_interval();
        MaintenancePoint {
            settings,
            name: name.into(),
            mac,
            booted: false,
            faults: Faults::empty(),
            received_faults: Faults::empty(),
            remote_opup: true,
            fault_override: None,
            sequence: 0,
            tx_at: now,
            check_at,
            remotes: BTreeMap::new(),
            reported: Vec::new(),
            health: None,
            health_periods: 0,
            flap_count: 0,
            rx_packets,
            demand_until: Time::default(),
            status_changed: true,
            random: Random::new(seed),
        }
    }

    /// Changes the settings. With another interval, a message is due and the fault interval begins anew.
    pub fn configure(&mut self, now: Time, rx_packets: u64, settings: Settings) {
        let before = std::mem::replace(&mut self.settings, settings);
        if self.settings.in_demand_mode() && !before.in_demand_mode() {
            self.rx_packets = rx_packets;
        }
        if self.settings.interval() != before.interval() {
            self.tx_at = now;
            self.check_at = now + self.settings.fault_interval();
        }
        self.status_changed |= self.settings.extended != before.extended;
    }

    /// The interface has another device now, which has received this many packets.
    pub fn set_device(&mut self, mac: Mac, rx_packets: u64) {
        self.mac = mac;
        self.rx_packets = rx_packets;
    }

    /// What is configured.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes a frame that is the point's.
    pub fn receive(&mut self, now: Time, frame: &[u8]) -> Result<Received, ReceiveError> {
        let ccm = Ccm::new_checked(frame)?;
        if ccm.maid != MAID {
            self.received_faults |= Faults::MAID;
            return Ok(Received { faults: Faults::MAID, other_interval: false, out_of_sequence: false });
        }
        let extended = self.settings.extended;
        let (mpid, opup) = if extended { (ccm.extended_mpid, !ccm.opdown) } else { (ccm.mpid.into(), true) };
        let (code, millis) = self.settings.interval();
        let other_interval = ccm.interval != code || extended && code == 0 && u32::from(ccm.interval_ms) != millis;
        let mut faults = if ccm.rdi { Faults::RDI } else { Faults::empty() };
        if mpid == self.settings.mpid {
            faults |= Faults::LOOPBACK;
        }
        let is_full = self.remotes.len() >= MAX_REMOTES && !self.remotes.contains_key(&mpid);
        let mut out_of_sequence = false;
        if is_full {
            faults |= Faults::OVERFLOW;
        } else {
            let remote = self.remotes.entry(mpid).or_default();
            out_of_sequence = remote.sequence != 0 && ccm.sequence != remote.sequence.wrapping_add(1);
            let healthy = remote.healthy.saturating_add(faults.is_empty().into());
            *remote = Remote { heard: true, opup, sequence: ccm.sequence, healthy };
            if faults.is_empty() {
                self.demand_until = now + Duration::from_millis(millis.into()) * DEMAND_RX_PERIODS;
            }
        }
        self.received_faults |= faults;
        Ok(Received { faults, other_interval, out_of_sequence })
    }

    /// Does what the time asks for. `rx_packets` is how many packets the interface has received in its life.
    pub fn run(&mut self, now: Time, rx_packets: u64) -> Outcome {
        if now >= self.check_at {
            self.check_faults(now, rx_packets);
            self.check_at = now + self.settings.fault_interval();
        }
        let frame = (now >= self.tx_at).then(|| self.transmit(now));
        Outcome { frame, status_changed: std::mem::take(&mut self.status_changed) }
    }

    /// What is done at the end of a fault interval.
    fn check_faults(&mut self, now: Time, rx_packets: u64) {
        let before = (self.faults, self.health, self.remote_opup);
        self.update_health();
        let has_data = rx_packets > std::mem::replace(&mut self.rx_packets, rx_packets);
        let data_count =
            self.settings.in_demand_mode() && self.remotes.len() == 1 && has_data && now < self.demand_until;

        let reported_before = std::mem::take(&mut self.reported);
        self.reported.extend(self.remotes.iter().filter(|(_, remote)| remote.heard).map(|(mpid, _)| *mpid));
        let heard = self.remotes.values().filter(|remote| remote.heard);
        if let Some(all_up) = heard.map(|remote| remote.opup).reduce(|all_up, up| all_up && up) {
            self.remote_opup = all_up;
        }
        self.remotes.retain(|_, remote| std::mem::take(&mut remote.heard) || data_count);

        self.faults = std::mem::take(&mut self.received_faults);
        self.faults.set(Faults::RECV, self.remotes.is_empty());
        let (was_faulty, is_faulty) = (!before.0.is_empty(), !self.faults.is_empty());
        self.flap_count += u64::from(was_faulty != is_faulty);
        let after = (self.faults, self.health, self.remote_opup);
        self.status_changed |= before != after || reported_before != self.reported;
        self.booted = true;
    }

    /// Health is known of exactly one other point: the part of its messages that came, and had no fault.
    fn update_health(&mut self) {
        if self.health_periods == HEALTH_PERIODS {
            self.health_periods = 0;
            let mut remotes = self.remotes.values_mut();
            self.health = match (remotes.next(), remotes.next()) {
                (None, _) => Some(0),
                (Some(_), Some(_)) => None,
                (Some(only), None) => {
                    let healthy = std::mem::take(&mut only.healthy).min(HEALTHY_MESSAGES);
                    Some((healthy * 100 / HEALTHY_MESSAGES) as u8)
                }
            };
        }
        self.health_periods += 1;
    }

    fn transmit(&mut self, now: Time) -> Vec<u8> {
        let settings = &self.settings;
        let (code, millis) = settings.interval();
        self.sequence = self.sequence.wrapping_add(1);
        self.tx_at = now + Duration::from_millis(millis.into());
        let extended = settings.extended;
        let ccm = Ccm {
            rdi: self.booted && self.remotes.is_empty(),
            interval: code,
            sequence: self.sequence,
            // Nobody reads the short identifier in extended mode: one that 802.1ag allows stands for the long one.
            mpid: if extended { (settings.mpid % 8191 + 1) as u16 } else { settings.mpid as u16 },
            maid: MAID,
            interval_ms: if code == 0 { millis as u16 } else { 0 },
            extended_mpid: if extended { settings.mpid } else { 0 },
            opdown: extended && !settings.opup,
        };
        let vid = match settings.vlan {
            Vlan::None => 0,
            Vlan::Id(vid) => vid,
            Vlan::Random => 1 + self.random.below(4094) as u16,
        };
        ccm.emit(self.settings.group(), self.mac, u16::from(settings.pcp) << 13 | vid)
    }

    /// `cfm/set-fault`: says whether there is a fault, or (`None`) leaves it to the protocol.
    pub fn set_fault(&mut self, fault: Option<bool>) {
        self.fault_override = fault;
        self.status_changed = true;
    }

    /// What is wrong; empty for nothing.
    pub fn faults(&self) -> Faults {
        match self.fault_override {
            None => self.faults,
            Some(true) => Faults::OVERRIDE,
            Some(false) => Faults::empty(),
        }
    }

    /// How often the point's fault has come or gone.
    pub fn flap_count(&self) -> u64 {
        self.flap_count
    }

    /// How much of what the only other point sends is received, in percent; 0 without one, and `None` with several.
    pub fn health(&self) -> Option<u8> {
        self.health
    }

    /// The points that were heard when the faults were checked, by number.
    pub fn remote_mpids(&self) -> &[u64] {
        &self.reported
    }

    /// Whether all others say that they are operationally up; `None` without extended mode.
    pub fn remote_opstate(&self) -> Option<bool> {
        self.settings.extended.then_some(self.remote_opup)
    }
}

impl Session for MaintenancePoint {
    fn next_wakeup(&self) -> Option<Time> {
        let status = if self.status_changed { Time::default() } else { self.tx_at };
        Some(self.tx_at.min(self.check_at).min(status))
    }
}
