//! A port: its variables (IEEE 802.1D-2004 section 17.19), and those state machines that concern it alone.
//!
//! Names are those of the standard. Timers count seconds down; the bridge decrements all of them each second.

use packet::wire::Error;

use super::agreements::Agreements;
use super::settings::{Link, PointToPoint, PortSettings};
use crate::stp::bpdu::{Bpdu, Config, RapidFlags, WireRole, WireTimes};
use crate::stp::identifier::{BridgeId, PortId, Priority};
use crate::stp::output::Counters;

/// MigrateTime (Table 17-1).
pub(super) const MIGRATE_TIME: u16 = 3;

/// Role of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its link is down.
    Disabled,
    /// It leads to the root.
    Root,
    /// It leads from the root to others.
    Designated,
    /// It would lead to the root if the root port failed.
    Alternate,
    /// Another port of this bridge leads to the same network.
    Backup,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its link is down.
    Disabled,
    /// It neither forwards nor learns.
    Discarding,
    /// It learns addresses, but does not forward.
    Learning,
    /// It learns and forwards.
    Forwarding,
}

/// Where the information of a port is from (`infoIs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Info {
    Disabled,
    Aged,
    Mine,
    Received,
}

/// State of the topology change machine, without those states that it leaves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    Inactive,
    Learning,
    Active,
}

/// Times that go along with a priority vector, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub message_age: u16,
    pub max_age: u16,
    pub hello_time: u16,
    pub forward_delay: u16,
}

impl Times {
    /// From a BPDU, to the nearest second. Values outside of Table 17-1 are taken as the nearest ones inside: a forward delay
    /// of zero would have ports forward before others know.
    fn from_wire(wire: WireTimes) -> Times {
        let seconds = |time: u16| ((u32::from(time) + 128) >> 8) as u16;
        Times {
            message_age: seconds(wire.message_age),
            max_age: seconds(wire.max_age).clamp(6, 40),
            hello_time: seconds(wire.hello_time).clamp(1, 10),
            forward_delay: seconds(wire.forward_delay).clamp(4, 30),
        }
    }

    fn to_wire(self) -> WireTimes {
        WireTimes::from_seconds(self.message_age, self.max_age, self.hello_time, self.forward_delay)
    }
}

/// What a port sees of its bridge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// Whether RSTP is spoken at all (`rstpVersion`).
    pub rstp: bool,
    /// `TxHoldCount`.
    pub hold_count: u8,
    /// `BridgeIdentifier`.
    pub id: BridgeId,
    /// `rootPriority`: root and cost to it; the sender is whom the root port heard it from.
    pub root: Priority,
    /// Number of the root port (`rootPortId`); none where this bridge is the root.
    pub root_port: Option<u16>,
    /// `rootTimes`, with this bridge's hello time: those that designated ports announce.
    pub times: Times,
    /// `allSynced`.
    pub all_synced: bool,
    /// How many ports have been root ports lately (`rrWhile` runs).
    pub recent_roots: usize,
}

/// A port.
#[derive(Debug)]
pub(super) struct Port {
    pub settings: PortSettings,
    pub link: Link,
    pub number: u16,
    pub counters: Counters,
    /// Whole seconds since it was added.
    pub uptime: u64,
    /// What was reported last.
    pub reported: State,
    /// It waits to be stepped, or to be looked at for transmission.
    pub queued: bool,
    pub touched: bool,
    /// Whether the bridge's sums count it as not synced, and as a recent root.
    pub counts_unsynced: bool,
    pub counts_recent_root: bool,

    pub enabled: bool,
    pub role: Role,
    pub selected_role: Role,
    pub selected: bool,
    pub reselect: bool,
    pub updt_info: bool,
    pub info_is: Info,
    pub port_priority: Priority,
    pub port_times: Times,

    pub learn: bool,
    pub forward: bool,
    pub learning: bool,
    pub forwarding: bool,

    pub sync: bool,
    pub synced: bool,
    pub re_root: bool,
    pub agree: bool,
    pub agreed: bool,
    pub proposed: bool,
    pub proposing: bool,
    pub disputed: bool,
    pub agreements: Agreements,

    pub topology: Topology,
    pub tc_ack: bool,
    pub tc_prop: bool,
    pub rcvd_tc: bool,
    pub rcvd_tcn: bool,
    pub rcvd_tc_ack: bool,
    pub flush: bool,

    pub mcheck: bool,
    pub sensing: bool,
    pub rcvd_rstp: bool,
    pub rcvd_stp: bool,
    pub send_rstp: bool,
    pub oper_edge: bool,
    pub new_info: bool,

    pub hello_when: u16,
    pub tc_while: u16,
    pub fd_while: u16,
    pub rcvd_info_while: u16,
    pub rr_while: u16,
    pub rb_while: u16,
    pub mdelay_while: u16,
    pub edge_delay_while: u16,
    pub tx_count: u8,
}

impl Port {
    /// A port whose link is down, in the initial states of all machines.
    pub fn new(settings: PortSettings, number: u16, tree: &Tree) -> Port {
        Port {
            link: Link::default(),
            number,
            counters: Counters::default(),
            uptime: 0,
            reported: State::Disabled,
            queued: false,
            touched: false,
            counts_unsynced: false,
            counts_recent_root: false,
            enabled: false,
            role: Role::Disabled,
            selected_role: Role::Disabled,
            selected: false,
            reselect: true,
            updt_info: false,
            info_is: Info::Disabled,
            port_priority: Priority::default(),
            port_times: tree.times,
            learn: false,
            forward: false,
            learning: false,
            forwarding: false,
            sync: true,
            synced: false,
            re_root: true,
            agree: false,
            agreed: false,
            proposed: false,
            proposing: false,
            disputed: false,
            agreements: Agreements::default(),
            topology: Topology::Inactive,
            tc_ack: false,
            tc_prop: false,
            rcvd_tc: false,
            rcvd_tcn: false,
            rcvd_tc_ack: false,
            flush: false,
            mcheck: settings.mcheck,
            sensing: false,
            rcvd_rstp: false,
            rcvd_stp: false,
            send_rstp: tree.rstp,
            oper_edge: settings.admin_edge,
            new_info: true,
            hello_when: 0,
            tc_while: 0,
            fd_while: tree.times.max_age,
            rcvd_info_while: 0,
            rr_while: tree.times.forward_delay,
            rb_while: 0,
            mdelay_while: MIGRATE_TIME,
            edge_delay_while: MIGRATE_TIME,
            tx_count: 0,
            settings,
        }
    }

    /// `portId`.
    pub fn id(&self) -> PortId {
        PortId(u16::from(self.settings.priority) << 8 | self.number)
    }

    /// `PortPathCost`.
    pub fn path_cost(&self) -> u32 {
        self.settings.path_cost.unwrap_or_else(|| self.link.path_cost())
    }

    /// `operPointToPointMAC`.
    pub fn point_to_point(&self) -> bool {
        match self.settings.point_to_point {
            PointToPoint::ForceTrue => true,
            PointToPoint::ForceFalse => false,
            PointToPoint::Auto => self.link.full_duplex,
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        match (self.enabled, self.forwarding, self.learning) {
            (false, ..) => State::Disabled,
            (_, true, _) => State::Forwarding,
            (_, _, true) => State::Learning,
            _ => State::Discarding,
        }
    }

    /// `designatedPriority`.
    pub fn designated_priority(&self, tree: &Tree) -> Priority {
        Priority { root: tree.root.root, cost: tree.root.cost, bridge: tree.id, port: self.id() }
    }

    /// `forwardDelay` (section 17.20.5): a neighbour that speaks RSTP answers within a hello time or not at all.
    pub fn forward_delay(&self, tree: &Tree) -> u16 {
        if self.send_rstp { tree.times.hello_time } else { tree.times.forward_delay }
    }

    /// The port timers machine (section 17.22): a second has passed.
    pub fn tick(&mut self) {
        for timer in [
            &mut self.hello_when,
            &mut self.tc_while,
            &mut self.fd_while,
            &mut self.rcvd_info_while,
            &mut self.rr_while,
            &mut self.rb_while,
            &mut self.mdelay_while,
            &mut self.edge_delay_while,
        ] {
            *timer = timer.saturating_sub(1);
        }
        self.agreements.tick();
        self.tx_count = self.tx_count.saturating_sub(1);
        self.uptime += 1;
    }

    /// The port protocol migration machine (section 17.24): which protocol to speak. Whether something has changed.
    pub fn migrate(&mut self, tree: &Tree) -> bool {
        let check = !self.enabled || self.mcheck || (tree.rstp && !self.send_rstp && self.rcvd_rstp);
        if self.sensing && check || !self.enabled && self.mdelay_while != MIGRATE_TIME {
            // CHECKING_RSTP
            (self.mcheck, self.sensing, self.send_rstp) = (false, false, tree.rstp);
            self.mdelay_while = MIGRATE_TIME;
        } else if self.sensing && self.send_rstp && self.rcvd_stp {
            // SELECTING_STP
            (self.sensing, self.send_rstp) = (false, false);
            // What the port agreed with was not this neighbour, which does not know agreements.
            self.agreed = false;
            self.mdelay_while = MIGRATE_TIME;
        } else if !self.sensing && self.enabled && (self.mdelay_while == 0 || (self.mcheck && !self.send_rstp)) {
            // SENSING
            (self.sensing, self.rcvd_rstp, self.rcvd_stp) = (true, false, false);
        } else {
            return false;
        }
        true
    }

    /// The bridge detection machine (section 17.25): whether no bridge is behind the port.
    pub fn detect_edge(&mut self) -> bool {
        let edge = if self.enabled {
            self.oper_edge
                || (self.edge_delay_while == 0 && self.settings.auto_edge && self.send_rstp && self.proposing)
        } else {
            self.settings.admin_edge
        };
        std::mem::replace(&mut self.oper_edge, edge) != edge
    }

    /// The port information machine (section 17.27), but for what [`Port::receive`] does.
    pub fn information(&mut self, tree: &Tree) -> bool {
        if !self.enabled && self.info_is != Info::Disabled {
            // DISABLED; with it, the machines for transmission (17.26) and reception (17.23) begin anew.
            (self.proposing, self.proposed, self.agree, self.agreed) = (false, false, false, false);
            (self.rcvd_rstp, self.rcvd_stp) = (false, false);
            (self.new_info, self.tx_count) = (true, 0);
            self.edge_delay_while = MIGRATE_TIME;
            self.rcvd_info_while = 0;
            self.agreements = Agreements::default();
            self.info_is = Info::Disabled;
            self.select_anew();
        } else if self.enabled && self.info_is == Info::Disabled {
            self.info_is = Info::Aged;
            self.select_anew();
        } else if self.selected && self.updt_info {
            // UPDATE
            let designated = self.designated_priority(tree);
            let better_or_same = self.info_is == Info::Mine && designated <= self.port_priority;
            (self.proposing, self.proposed) = (false, false);
            self.agreed &= better_or_same;
            self.synced &= self.agreed;
            if self.info_is != Info::Mine || designated != self.port_priority {
                self.agreements.information_changes(!better_or_same);
            }
            self.port_priority = designated;
            self.port_times = tree.times;
            self.updt_info = false;
            self.info_is = Info::Mine;
            self.new_info = true;
        } else if self.info_is == Info::Received && self.rcvd_info_while == 0 && !self.updt_info {
            self.info_is = Info::Aged;
            self.select_anew();
        } else {
            return false;
        }
        true
    }

    /// Roles of the bridge have to be selected anew.
    fn select_anew(&mut self) {
        (self.reselect, self.selected) = (true, false);
    }

    /// Takes a frame: port receive (section 17.23), and the state RECEIVE of port information. A constant amount of work; what
    /// it changes for the rest of the bridge is done when the bridge runs.
    pub fn receive(&mut self, frame: &[u8], tree: &Tree) -> Result<(), Error> {
        let bpdu = Bpdu::new_checked(frame)?;
        let malformed = |what| Err(Error::Malformed { layer: "BPDU", what });
        // Section 9.3.4. The age of an RST BPDU is no reason to refuse it: it tells that its sender forwards.
        match bpdu {
            Bpdu::Config(config) if config.times.message_age >= config.times.max_age => {
                return malformed("older than the greatest age");
            }
            Bpdu::Config(config) | Bpdu::Rapid(config, _)
                if (config.priority.bridge, config.priority.port) == (tree.id, self.id()) =>
            {
                return malformed("its sender is the port itself");
            }
            _ => {}
        }
        match bpdu {
            Bpdu::Rapid(..) => self.rcvd_rstp = true,
            _ => self.rcvd_stp = true,
        }
        self.oper_edge = false;
        self.edge_delay_while = MIGRATE_TIME;
        match bpdu {
            Bpdu::Notification => self.rcvd_tcn = true,
            Bpdu::Config(config) => self.designated(&config, None),
            Bpdu::Rapid(config, flags) => match flags.role {
                WireRole::Designated => self.designated(&config, Some(&flags)),
                WireRole::Root | WireRole::AlternateOrBackup if config.priority >= self.port_priority => {
                    // NOT_DESIGNATED
                    self.record_agreement(&config, &flags, tree);
                    self.set_tc_flags(&config);
                }
                _ => {}
            },
        }
        Ok(())
    }

    /// `recordAgreement` (section 17.21.9), of answers to the present information only (see [`Agreements`]). A bridge that has
    /// taken that has the same root: who has another one answers earlier information.
    fn record_agreement(&mut self, config: &Config, flags: &RapidFlags, tree: &Tree) {
        let agrees = tree.rstp && self.point_to_point() && flags.agreement;
        if agrees && (!self.agreements.count() || config.priority.root != self.port_priority.root) {
            return;
        }
        self.agreed = agrees;
        self.proposing &= !agrees;
    }

    /// Information from a port that says that it is the designated one.
    fn designated(&mut self, config: &Config, flags: Option<&RapidFlags>) {
        let (priority, times) = (config.priority, Times::from_wire(config.times));
        let proposal = flags.is_some_and(|flags| flags.proposal);
        if priority.supersedes(&self.port_priority) || (priority == self.port_priority && times != self.port_times) {
            // SUPERIOR_DESIGNATED
            (self.agreed, self.proposing) = (false, false);
            self.proposed |= proposal;
            self.set_tc_flags(config);
            self.agree &= self.info_is == Info::Received && priority <= self.port_priority;
            self.port_priority = priority;
            self.port_times = times;
            self.updt_rcvd_info_while();
            self.info_is = Info::Received;
            self.select_anew();
        } else if priority == self.port_priority && self.info_is == Info::Received {
            // REPEATED_DESIGNATED
            self.proposed |= proposal;
            self.set_tc_flags(config);
            self.updt_rcvd_info_while();
        } else if flags.is_some_and(|flags| flags.learning) {
            // INFERIOR_DESIGNATED: the other end forwards, since it does not hear this one.
            (self.disputed, self.agreed) = (true, false);
        }
    }

    fn set_tc_flags(&mut self, config: &Config) {
        self.rcvd_tc |= config.topology_change;
        self.rcvd_tc_ack |= config.acknowledgement;
    }

    /// `updtRcvdInfoWhile` (section 17.21.23).
    fn updt_rcvd_info_while(&mut self) {
        let times = &self.port_times;
        let fresh = times.message_age < times.max_age;
        self.rcvd_info_while = if fresh { 3 * times.hello_time } else { 0 };
    }

    /// The port transmit machine (section 17.26): what to send now.
    pub fn transmit(&mut self, tree: &Tree) -> Option<Bpdu> {
        if !self.enabled || !self.selected || self.updt_info {
            return None;
        }
        if self.hello_when == 0 {
            self.new_info |= self.role == Role::Designated || (self.role == Role::Root && self.tc_while != 0);
            self.hello_when = tree.times.hello_time;
        }
        if !self.new_info || self.tx_count >= tree.hold_count {
            return None;
        }
        let bpdu = match (self.send_rstp, self.role) {
            (true, _) => Bpdu::Rapid(self.config(tree, false), self.flags()),
            (false, Role::Designated) => Bpdu::Config(self.config(tree, self.tc_ack)),
            (false, Role::Root) => Bpdu::Notification,
            _ => return None,
        };
        if !matches!(bpdu, Bpdu::Notification) {
            self.tc_ack = false;
        }
        if self.role == Role::Designated {
            self.agreements.information_is_sent();
        }
        self.new_info = false;
        self.tx_count += 1;
        self.hello_when = tree.times.hello_time;
        self.counters.sent += 1;
        Some(bpdu)
    }

    fn config(&self, tree: &Tree, acknowledgement: bool) -> Config {
        Config {
            priority: self.designated_priority(tree),
            times: tree.times.to_wire(),
            topology_change: self.tc_while != 0,
            acknowledgement,
        }
    }

    fn flags(&self) -> RapidFlags {
        RapidFlags {
            role: match self.role {
                Role::Root => WireRole::Root,
                Role::Designated => WireRole::Designated,
                Role::Alternate | Role::Backup => WireRole::AlternateOrBackup,
                Role::Disabled => WireRole::Unknown,
            },
            proposal: self.proposing,
            agreement: self.agree,
            learning: self.learning,
            forwarding: self.forwarding,
        }
    }
}
