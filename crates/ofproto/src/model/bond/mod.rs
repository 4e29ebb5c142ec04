//! Bonds: logical ports of several members (ovs-vswitchd.conf.db(5), "Bonding Configuration").
//!
//! | module | what it is |
//! |---|---|
//! | `buckets` | Which member has which of the buckets that packets are spread over, and rebalancing by load |
//! | [`hash`] | The hash of `balance-slb` |
//! | [`show`] | The texts of `bond/show` and `bond/list` |
//! | `status` | Which members are enabled, and which one is active |
//!
//! # Contract
//!
//! A [`Bond`] has no clock, no thread and no device. Its owner, who has it alone, tells it of settings, members, their carriers and
//! what LACP says, and calls [`Bond::run`] after that, and when [`Bond::next_wakeup`] has come. `run` says what it asks for: flows to be
//! translated again, and packets that tell neighbours where addresses are now.
//!
//! What a translation asks a bond, under the lock that all translations share:
//!
//! - [`Bond::admits`]: whether a packet that came in by a member belongs to the bridge. The answer depends on which members are enabled
//!   and which one is active; a flow that depends on it has the bond's [`BondVersion`] in its record.
//! - [`Bond::leaves`] and [`Bond::action`]: by which member a packet leaves. All flows that send to the bond depend on how that is said. Where all members are devices of the datapath, the answer is a bucket of a table
//!   that workers read ([`datapath::bond`]). A member that is lost changes the table and no flow. Bonds of patch or tunnel ports have no such table:
//!   there the translation chooses a member, and depends on the choice; by connection it does so in a pass of its own, for packets that come round
//!   with their hash.

mod buckets;
pub mod hash;
pub mod show;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use datapath::{BondOutput, Bucket, PortNo};
use openflow::OfPort;
use packet::Time;
use ports::Mac;
use serde::Serialize;

pub(crate) use buckets::BucketCounters;
use buckets::Buckets;
pub use status::BondMember;
pub(crate) use status::MemberInfo;

/// How packets are spread over the members (`bond_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BondMode {
    /// One member has all traffic.
    #[default]
    ActiveBackup,
    /// By source address and VLAN.
    BalanceSlb,
    /// By the addresses and ports of connections; the other end has to be a bond, too, and to speak LACP.
    BalanceTcp,
}

impl BondMode {
    /// Every mode with its name.
    pub const NAMES: [(&'static str, BondMode); 3] = [
        ("active-backup", BondMode::ActiveBackup),
        ("balance-slb", BondMode::BalanceSlb),
        ("balance-tcp", BondMode::BalanceTcp),
    ];

    /// Its name in the column `bond_mode`.
    pub fn name(self) -> &'static str {
        BondMode::NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// What of a bond is configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BondSettings {
    /// How packets are spread (`bond_mode`).
    pub mode: BondMode,
    /// The member that is active whenever it can be, in `active-backup` (`bond-primary`).
    pub primary: Option<String>,
    /// How long a member's carrier has to be there before it is enabled (`bond_updelay`).
    pub updelay: Duration,
    /// How long it has to be gone before the member is disabled (`bond_downdelay`).
    pub downdelay: Duration,
    /// What hashes begin with (`bond-hash-basis`).
    pub hash_basis: u32,
    /// How often load is moved between members; zero: never (`bond-rebalance-interval`).
    pub rebalance_interval: Duration,
    /// Members that are not active take multicast, too, in `balance-slb` (`all-members-active`).
    pub all_members_active: bool,
    /// Whether the configuration asks for what Weir always does: that the datapath chooses the member (`lb-output-action`).
    pub lb_output: bool,
    /// Without a partner that speaks LACP, the bond is one of `active-backup` (`lacp-fallback-ab`).
    pub lacp_fallback_ab: bool,
}

impl Default for BondSettings {
    fn default() -> BondSettings {
        BondSettings {
            mode: BondMode::ActiveBackup,
            primary: None,
            updelay: Duration::ZERO,
            downdelay: Duration::ZERO,
            hash_basis: 0,
            rebalance_interval: Duration::from_secs(10),
            all_members_active: false,
            lb_output: false,
            lacp_fallback_ab: false,
        }
    }
}

/// How LACP is spoken by the interfaces of a port, as the database has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LacpConfig {
    /// Column `lacp`: `active` or `passive`.
    pub mode: String,
    /// The options of the port that begin with `lacp-`.
    pub options: BTreeMap<String, String>,
    /// How many interfaces the port is to have.
    pub interfaces: usize,
}

/// What LACP says of a bond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LacpStatus {
    /// Not spoken.
    #[default]
    Off,
    /// Spoken, but there is no partner.
    Configured,
    /// There is a partner.
    Negotiated,
}

impl LacpStatus {
    /// As `bond/show` has it.
    pub fn name(self) -> &'static str {
        match self {
            LacpStatus::Off => "off",
            LacpStatus::Configured => "configured",
            LacpStatus::Negotiated => "negotiated",
        }
    }
}

/// The generation of the last change of a bond that flows depend on. Flows that do have it in their records.
#[derive(Debug, Default)]
pub(crate) struct BondVersion(AtomicU64);

impl BondVersion {
    /// The generation.
    pub fn changed(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Takes note of a change.
    pub fn set(&self, generation: u64) {
        self.0.store(generation, Relaxed);
    }
}

/// Whether a packet that came in by a member is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is.
    Accept,
    /// It is dropped: it is a copy, or reflected.
    Drop,
    /// It is dropped if its source address was learnt at another port: then it was sent by the bond, and is reflected. But
    /// an announcement of an address that has moved is taken.
    DropIfMoved,
}

/// By which member a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// By none: there is none, or LACP has to find a partner first.
    Nowhere,
    /// By the active one.
    Active,
    /// By that of the bucket of its source address.
    BySource,
    /// By that of the bucket of its connection.
    ByConnection,
}

/// A bond.
pub(crate) struct Bond {
    /// Name of the port.
    pub name: String,
    settings: BondSettings,
    lacp: LacpStatus,
    members: BTreeMap<OfPort, BondMember>,
    /// How many of them are no ports of the datapath.
    without_dp_port: usize,
    active: Option<OfPort>,
    /// The address of the member that was active last, which is preferred.
    active_mac: Mac,
    buckets: Buckets,
    /// The table in the datapath.
    output: Option<Arc<BondOutput>>,
    /// What has gone by its buckets without that table.
    pub counters: Arc<BucketCounters>,
    /// What flows depend on that ask by which members packets come or leave.
    pub version: Arc<BondVersion>,
    /// What all flows depend on that send to it: how that is done.
    pub way: Arc<BondVersion>,
    next_rebalance: Time,
    /// When there was no such bond before.
    began: Time,
    /// What has changed since the last [`Bond::run`].
    pending: BondChanges,
}

/// What has changed, and asks for something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BondChanges {
    /// Flows that depend on the bond have to be translated again.
    pub members: bool,
    /// Flows that only send to it have to be, too: it is done in another way now.
    pub way: bool,
    /// Neighbours should learn where addresses are now.
    pub tell_neighbours: bool,
}

impl Bond {
    /// A bond without members, and its table in the datapath, if there is one. `active_mac` is the address of the member that was active
    /// before the daemon started.
    pub fn new(
        name: &str,
        settings: BondSettings,
        output: Option<Arc<BondOutput>>,
        active_mac: Mac,
        now: Time,
    ) -> Bond {
        let mut bond = Bond {
            name: name.to_owned(),
            next_rebalance: now + settings.rebalance_interval,
            began: now,
            settings,
            lacp: LacpStatus::Off,
            members: BTreeMap::new(),
            without_dp_port: 0,
            active: None,
            active_mac,
            buckets: Buckets::default(),
            output,
            counters: Arc::default(),
            version: Arc::default(),
            way: Arc::default(),
            pending: BondChanges::default(),
        };
        // An earlier bond may have had the table.
        bond.buckets.start_from(bond.output.as_ref().map(|output| output.traffic()));
        bond.fill_table();
        bond
    }

    /// Settings in force.
    pub fn settings(&self) -> &BondSettings {
        &self.settings
    }

    /// Changes the settings.
    pub fn configure(&mut self, settings: BondSettings, now: Time) {
        if self.settings == settings {
            return;
        }
        if self.settings.rebalance_interval != settings.rebalance_interval {
            self.next_rebalance = now + settings.rebalance_interval;
        }
        self.settings = settings;
        self.pending.way = true;
        self.choose_active(now);
        self.fill_table();
    }

    /// What LACP says of the bond.
    pub fn lacp(&self) -> LacpStatus {
        self.lacp
    }

    /// Says what LACP says.
    pub fn set_lacp(&mut self, lacp: LacpStatus) {
        if std::mem::replace(&mut self.lacp, lacp) != lacp {
            if lacp == LacpStatus::Off {
                self.members.values_mut().for_each(|member| member.may_enable = true);
            }
            (self.pending.way, self.pending.members) = (true, true);
            self.fill_table();
        }
    }

    /// The members by number.
    pub fn members(&self) -> impl Iterator<Item = (OfPort, &BondMember)> {
        self.members.iter().map(|(port, member)| (*port, member))
    }

    /// The member that a port is.
    pub fn member(&self, port: OfPort) -> Option<&BondMember> {
        self.members.get(&port)
    }

    /// The member that stands for the bond where one of its ports has to: in the table of addresses, for instance.
    pub fn first(&self) -> Option<OfPort> {
        self.members.keys().next().copied()
    }

    /// The active member.
    pub fn active(&self) -> Option<OfPort> {
        self.active
    }

    /// The address of the member that was active last; zero for none.
    pub fn active_mac(&self) -> Mac {
        self.active_mac
    }

    /// The mode in force; `None` while nothing is sent.
    fn effective_mode(&self) -> Option<BondMode> {
        match (self.lacp, self.settings.mode) {
            (LacpStatus::Configured, _) => self.settings.lacp_fallback_ab.then_some(BondMode::ActiveBackup),
            (LacpStatus::Off, BondMode::BalanceTcp) => None,
            (_, mode) => Some(mode),
        }
    }

    /// Whether load is moved between members.
    pub fn is_balanced(&self) -> bool {
        let falls_back = self.settings.lacp_fallback_ab && self.lacp == LacpStatus::Configured;
        !self.settings.rebalance_interval.is_zero() && self.settings.mode != BondMode::ActiveBackup && !falls_back
    }

    /// By which member a packet leaves.
    pub fn leaves(&self) -> Leaves {
        match self.effective_mode() {
            None => Leaves::Nowhere,
            Some(BondMode::ActiveBackup) => Leaves::Active,
            Some(BondMode::BalanceSlb) => Leaves::BySource,
            Some(BondMode::BalanceTcp) => Leaves::ByConnection,
        }
    }

    /// The bucket of packets with this source in this VLAN.
    pub fn bucket_of_source(&self, mac: Mac, vlan: u16) -> u8 {
        hash::source(mac, vlan, self.settings.hash_basis) as u8
    }

    /// The table of the datapath, if it has the members of all buckets.
    pub fn table(&self) -> Option<&Arc<BondOutput>> {
        let all = !self.members.is_empty() && self.without_dp_port == 0;
        self.output.as_ref().filter(|_| all)
    }

    /// The number of the table that the datapath has for it; -1 for none.
    pub fn table_id(&self) -> i64 {
        self.output.as_ref().map_or(-1, |output| output.id().into())
    }

    /// The action that sends by a bucket of that table: see [`Bond::leaves`].
    pub fn action(&self, bucket: Bucket) -> Option<datapath::Action> {
        Some(datapath::Action::Bond { bond: self.table()?.clone(), bucket })
    }

    /// The member that packets of a bucket leave by, as it is now.
    pub fn member_of(&self, bucket: u8) -> Option<OfPort> {
        match self.effective_mode()? {
            BondMode::ActiveBackup => self.active,
            BondMode::BalanceSlb | BondMode::BalanceTcp => self.buckets.member(bucket),
        }
    }

    /// Whether a packet to this address is taken that came in by a member.
    pub fn admits(&self, port: OfPort, to_many: bool) -> Admission {
        let Some(member) = self.members.get(&port) else { return Admission::Drop };
        let falls_back = self.settings.lacp_fallback_ab;
        match self.lacp {
            // The other end knows of the bond, and sends each packet once.
            LacpStatus::Negotiated if member.enabled || member.may_enable => return Admission::Accept,
            LacpStatus::Negotiated => return Admission::Drop,
            LacpStatus::Configured if !falls_back => return Admission::Drop,
            LacpStatus::Off if self.settings.mode == BondMode::BalanceTcp => return Admission::Drop,
            LacpStatus::Configured | LacpStatus::Off => {}
        }
        let is_active = self.active == Some(port);
        if to_many && !is_active && !self.settings.all_members_active {
            // The other end has flooded it: the active member has a copy.
            return Admission::Drop;
        }
        match self.settings.mode {
            BondMode::BalanceSlb => Admission::DropIfMoved,
            BondMode::ActiveBackup | BondMode::BalanceTcp if is_active => Admission::Accept,
            BondMode::ActiveBackup | BondMode::BalanceTcp => Admission::Drop,
        }
    }

    /// The port of the datapath of a member that is enabled.
    fn dp_port(&self, port: OfPort) -> Option<PortNo> {
        self.members.get(&port).filter(|member| member.enabled)?.dp_port
    }

    /// Brings the table of the datapath up to date: from then on, workers send by it.
    fn fill_table(&self) {
        let Some(output) = &self.output else { return };
        output.set_basis(self.settings.hash_basis);
        for bucket in 0..=u8::MAX {
            let port = self.member_of(bucket).and_then(|port| self.dp_port(port));
            if output.member(bucket) != port {
                output.set_member(bucket, port);
            }
        }
    }
}
