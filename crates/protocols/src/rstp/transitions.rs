//! The machines that move a port between roles and states: port role transitions, port state transition and topology change
//! (IEEE 802.1D-2004 sections 17.29 to 17.31).

use super::port::{MIGRATE_TIME, Port, Role, Topology, Tree};

/// What a transition asks of the other ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// `setSyncTree`: to stop forwarding until their neighbours agree.
    Sync,
    /// `setReRootTree`: those that were root ports lately, to stop forwarding.
    ReRoot,
    /// `setTcPropTree`: to tell, and to forget what they have learnt.
    PropagateChange,
}

impl Port {
    /// One transition of the port role transitions machine; none where there is nothing to do.
    pub fn role_transition(&mut self, tree: &Tree) -> Option<Effect> {
        if !self.selected || self.updt_info {
            return None;
        }
        if self.role != self.selected_role {
            self.role = self.selected_role;
            match self.role {
                Role::Root => self.rr_while = tree.times.forward_delay,
                Role::Designated => {}
                // DISABLE_PORT, BLOCK_PORT
                Role::Disabled | Role::Alternate | Role::Backup => (self.learn, self.forward) = (false, false),
            }
            return Some(Effect::None);
        }
        match self.role {
            Role::Disabled => self.disabled(tree),
            Role::Root => self.root(tree),
            Role::Designated => self.designated_port(tree),
            Role::Alternate | Role::Backup => self.alternate(tree),
        }
    }

    /// Figure 17-20: disabled ports.
    fn disabled(&mut self, tree: &Tree) -> Option<Effect> {
        let max_age = tree.times.max_age;
        if self.learning || self.forwarding {
            return None;
        }
        if self.fd_while == max_age && !self.sync && !self.re_root && self.synced && self.rr_while == 0 {
            return None;
        }
        (self.fd_while, self.rr_while) = (max_age, 0);
        (self.synced, self.sync, self.re_root) = (true, false, false);
        Some(Effect::None)
    }

    /// Figure 17-21: the root port.
    fn root(&mut self, tree: &Tree) -> Option<Effect> {
        // reRooted: no other port was a root port lately.
        let re_rooted = tree.recent_roots == usize::from(self.counts_recent_root);
        let may_advance = self.fd_while == 0 || (re_rooted && self.rb_while == 0 && tree.rstp);
        if self.proposed && !self.agree {
            self.proposed = false;
            return Some(Effect::Sync);
        }
        if (tree.all_synced && !self.agree) || (self.proposed && self.agree) {
            (self.proposed, self.sync, self.agree, self.new_info) = (false, false, true, true);
        } else if !self.forward && !self.re_root {
            self.re_root = true;
            return Some(Effect::ReRoot);
        } else if self.rr_while != tree.times.forward_delay {
            self.rr_while = tree.times.forward_delay;
        } else if self.re_root && self.forward {
            self.re_root = false;
        } else if may_advance && !self.learn {
            (self.fd_while, self.learn) = (self.forward_delay(tree), true);
        } else if may_advance && self.learn && !self.forward {
            (self.fd_while, self.forward) = (0, true);
        } else {
            return None;
        }
        Some(Effect::None)
    }

    /// Figure 17-22: designated ports.
    fn designated_port(&mut self, tree: &Tree) -> Option<Effect> {
        let retired = self.rr_while == 0 || !self.re_root;
        let may_advance = (self.fd_while == 0 || self.agreed || self.oper_edge) && retired && !self.sync;
        let must_discard = (self.sync && !self.synced) || !retired || self.disputed;
        if !self.forward && !self.agreed && !self.proposing && !self.oper_edge {
            // EdgeDelay (section 17.20.4).
            self.edge_delay_while = if self.point_to_point() { MIGRATE_TIME } else { tree.times.max_age };
            (self.proposing, self.new_info) = (true, true);
        } else if (!self.synced && ((!self.learning && !self.forwarding) || self.agreed || self.oper_edge))
            || (self.sync && self.synced)
        {
            (self.rr_while, self.synced, self.sync) = (0, true, false);
        } else if self.rr_while == 0 && self.re_root {
            self.re_root = false;
        } else if must_discard && !self.oper_edge && (self.learn || self.forward) {
            (self.learn, self.forward, self.disputed) = (false, false, false);
            self.fd_while = self.forward_delay(tree);
        } else if may_advance && !self.learn {
            (self.learn, self.fd_while) = (true, self.forward_delay(tree));
        } else if may_advance && self.learn && !self.forward {
            (self.forward, self.fd_while, self.agreed) = (true, 0, self.send_rstp);
        } else {
            return None;
        }
        Some(Effect::None)
    }

    /// Figure 17-23: alternate and backup ports.
    fn alternate(&mut self, tree: &Tree) -> Option<Effect> {
        if self.learning || self.forwarding {
            return None;
        }
        let (delay, backup) = (self.forward_delay(tree), 2 * tree.times.hello_time);
        if self.proposed && !self.agree {
            self.proposed = false;
            return Some(Effect::Sync);
        }
        if (tree.all_synced && !self.agree) || (self.proposed && self.agree) {
            (self.proposed, self.agree, self.new_info) = (false, true, true);
        } else if self.role == Role::Backup && self.rb_while != backup {
            self.rb_while = backup;
        } else if self.fd_while != delay || self.sync || self.re_root || !self.synced || self.rr_while != 0 {
            (self.fd_while, self.rr_while) = (delay, 0);
            (self.synced, self.sync, self.re_root) = (true, false, false);
        } else {
            return None;
        }
        Some(Effect::None)
    }

    /// The port state transition machine (section 17.30). The datapath follows when the bridge's output is taken.
    pub fn state_transition(&mut self) -> bool {
        let before = (self.learning, self.forwarding);
        self.learning = self.learn;
        self.forwarding = self.forward && self.learn;
        before != (self.learning, self.forwarding)
    }

    /// One transition of the topology change machine (section 17.31).
    pub fn topology_change(&mut self, tree: &Tree) -> Option<Effect> {
        let active_role = matches!(self.role, Role::Root | Role::Designated);
        let told = self.rcvd_tc || self.rcvd_tcn || self.rcvd_tc_ack || self.tc_prop;
        match self.topology {
            Topology::Inactive if self.learn => {
                self.topology = Topology::Learning;
                self.forget_told();
            }
            // What the standard leaves to stay until the port learns: nothing looks at it before.
            Topology::Inactive if told => self.forget_told(),
            Topology::Inactive => return None,
            Topology::Learning if active_role && self.forward && !self.oper_edge => {
                // DETECTED
                self.topology = Topology::Active;
                self.new_tc_while(tree);
                self.new_info = true;
                return Some(Effect::PropagateChange);
            }
            Topology::Learning if told => self.forget_told(),
            Topology::Learning if !active_role && !self.learn && !self.learning => {
                // INACTIVE
                self.topology = Topology::Inactive;
                (self.flush, self.tc_while, self.tc_ack) = (true, 0, false);
            }
            Topology::Learning => return None,
            Topology::Active if !active_role || self.oper_edge => self.topology = Topology::Learning,
            Topology::Active if self.rcvd_tcn || self.rcvd_tc => {
                // NOTIFIED_TCN, NOTIFIED_TC
                if self.rcvd_tcn {
                    self.new_tc_while(tree);
                }
                (self.rcvd_tcn, self.rcvd_tc) = (false, false);
                self.tc_ack |= self.role == Role::Designated;
                return Some(Effect::PropagateChange);
            }
            Topology::Active if self.tc_prop => {
                // PROPAGATING
                self.new_tc_while(tree);
                (self.flush, self.tc_prop) = (true, false);
            }
            Topology::Active if self.rcvd_tc_ack => (self.tc_while, self.rcvd_tc_ack) = (0, false),
            Topology::Active => return None,
        }
        Some(Effect::None)
    }

    fn forget_told(&mut self) {
        (self.rcvd_tc, self.rcvd_tcn, self.rcvd_tc_ack, self.tc_prop) = (false, false, false, false);
    }

    /// `newTcWhile` (section 17.21.7).
    pub fn new_tc_while(&mut self, tree: &Tree) {
        if self.tc_while != 0 {
            return;
        }
        let times = &tree.times;
        self.tc_while = if self.send_rstp { times.hello_time + 1 } else { times.max_age + times.forward_delay };
        self.new_info |= self.send_rstp;
    }

    /// Whether the port keeps `allSynced` from holding (section 17.20.3).
    pub fn is_unsynced(&self) -> bool {
        let settled = self.selected && self.role == self.selected_role && !self.updt_info;
        !settled || (self.role != Role::Root && !self.synced)
    }
}
