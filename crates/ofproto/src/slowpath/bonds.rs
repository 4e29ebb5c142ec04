//! Keeps bonds in step with the carriers of their members, and tells neighbours of failovers.
//!
//! [`Switch::run_bonds`] looks at all ports and does what is due of all bonds. It is called by whoever has seen a carrier change or has
//! changed a port, before anybody is told of that. [`Switch::run_due_bonds`] does what is due and looks at ports only where one has come or gone; a thread that
//! waits for delays and for LACP calls it. Workers send by the members that are left when it returns; what flows of members that
//! have become active or inactive do is in force after the next revalidation.
//!
//! After a failover the switches at the other end still send by the member that was lost. So for each address that the bridge knows
//! to be elsewhere than at the bond, a frame from that address is sent by the bond. These *announcements* wait here, and go out a
//! few at a time ([`Switch::send_announcements`]), for there may be a million addresses.

use std::time::Duration;

use datapath::{Action as DpAction, PortNo};
use openflow::{Action, OfPort};
use packet::flow::tun_flags;
use packet::wire::{build, ethertype};
use packet::{Key, Packet, Time};

use crate::model::bond::{Bond, BondMode, LacpStatus};
use crate::model::forwarding::{BridgeId, BridgeState};
use crate::model::mac::MacKey;
use crate::slowpath::announcements::{Announcer, Due};
use crate::switch::Switch;
use crate::xlate::Input;

/// Most announcements that are sent at once.
const AT_ONCE: usize = 256;
/// Operation of RARP, "request reverse" (RFC 903): nobody answers the frame, but bridges learn from it.
const REQUEST_REVERSE: u16 = 3;

impl Switch {
    /// Does what is due of bonds, because something has happened to their members.
    pub fn run_bonds(&self) {
        // They depend on ports and carriers, too.
        self.notify_spanning_trees();
        let next = self.run_bonds_after(true);
        if next.is_some() || !self.lacp.lock().changed.is_empty() || !self.announcements.lock().is_empty() {
            // The thread that waits for delays may have to wait for less.
            self.notify_bonds();
        }
    }

    /// Has the thread that waits look at bonds now.
    pub(crate) fn notify_bonds(&self) {
        *self.bonds_due.lock() = true;
        self.bonds_due_changed.notify_all();
    }

    /// Blocks until [`run_bonds`](Switch::run_bonds) has left something to do later, or for at most `timeout`.
    pub fn wait_for_bonds(&self, timeout: Duration) {
        let mut due = self.bonds_due.lock();
        if !*due {
            self.bonds_due_changed.wait_for(&mut due, timeout);
        }
        *due = false;
    }

    /// Does what is due of bonds. Returns when it is to be done again, unless something happens before; `None`: not before.
    pub fn run_due_bonds(&self) -> Option<Time> {
        self.run_bonds_after(false)
    }

    /// Does what is due; `ports_changed`: what bonds and sessions know of ports may be out of date.
    fn run_bonds_after(&self, ports_changed: bool) -> Option<Time> {
        let has_some =
            self.forwarding.read().bridges.values().any(|bridge| !bridge.bonds.is_empty() || !bridge.lacp.is_empty());
        if !has_some && self.lacp.lock().is_empty() {
            return None;
        }
        let now = self.clock.now();
        let (mut stale, mut announced, mut next) = (Vec::new(), Vec::new(), None);
        let mut forwarding = self.forwarding.write();
        let mut lacp = self.lacp.lock();
        // What is live, partners decide over and over if they like; who else finds that says that ports have changed.
        if ports_changed || lacp.in_step != forwarding.configured {
            lacp.in_step = forwarding.configured;
            forwarding.bridges.values_mut().for_each(BridgeState::tell_bonds);
            lacp.follow(&mut forwarding.bridges, now);
        }
        let frames = lacp.run(&mut forwarding.bridges, now);
        next = next.into_iter().chain(lacp.next_wakeup()).min();
        drop(lacp);
        for (id, bridge) in &mut forwarding.bridges {
            for bond in bridge.bonds.values_mut() {
                let changes = bond.run(now);
                if changes.way {
                    stale.push(bond.way.clone());
                }
                if changes.members {
                    stale.push(bond.version.clone());
                }
                if changes.tell_neighbours && tells_neighbours(bond) {
                    announced.push((*id, bond.name.as_str().into()));
                }
                next = next.into_iter().chain(bond.next_wakeup()).min();
            }
        }
        if !stale.is_empty() {
            forwarding.touch_bonds(&stale);
        }
        drop(forwarding);
        for (bridge, port, frame) in frames {
            self.send_by(bridge, port, &frame);
        }
        for of in announced {
            self.announce(of);
        }
        if !stale.is_empty() {
            self.notify();
        }
        next
    }

    /// Has each address that is elsewhere than at a bond announced.
    fn announce(&self, of: Announcer) {
        let begins = self.announcements.lock().fail_over(&of);
        if begins {
            self.begin_announcements(of);
        }
    }

    /// Queues an announcement of each address that is elsewhere than at a bond.
    fn begin_announcements(&self, of: Announcer) {
        let forwarding = self.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&of.0) else { return };
        let Some(bond) = bridge.bonds.get(&*of.1) else { return };
        let own = bond.first();
        let macs = bridge.macs.read();
        let elsewhere = macs.iter().filter(|entry| own != Some(bridge.logical(entry.port)));
        let announced: Vec<_> = elsewhere.map(|entry| entry.key).collect();
        drop(macs);
        self.announcements.lock().begin(of, announced);
    }

    /// Sends some of the announcements that wait. Returns whether there are more.
    pub fn send_announcements(&self) -> bool {
        let due = self.announcements.lock().take(AT_ONCE);
        match due {
            Some(Due::Announce((bridge, bond), keys)) => {
                for key in keys {
                    let member = {
                        let forwarding = self.forwarding.read();
                        let bond = forwarding.bridges.get(&bridge).and_then(|bridge| bridge.bonds.get(&*bond));
                        bond.filter(|bond| tells_neighbours(bond))
                            .and_then(|bond| bond.member_of(bond.bucket_of_source(key.mac, key.vlan)))
                    };
                    if let Some(member) = member {
                        self.send_by(bridge, member, &announcement(key));
                    }
                }
            }
            Some(Due::Begin(of)) => self.begin_announcements(of),
            None => {}
        }
        !self.announcements.lock().is_empty()
    }

    /// Sends a frame by a port, whatever the tables say.
    pub(crate) fn send_by(&self, bridge: BridgeId, port: OfPort, frame: &[u8]) {
        let dp_port = {
            let forwarding = self.forwarding.read();
            forwarding.bridges.get(&bridge).and_then(|bridge| bridge.ports.get(&port)).and_then(|state| state.dp_port)
        };
        self.send_frame((bridge, port), dp_port, frame, false);
    }

    /// As [`send_by`](Switch::send_by), for who knows the port's number in the datapath: `None` for a tunnel or a patch port. Of a tunnel
    /// whose header has an OAM bit, that bit may be set.
    pub(crate) fn send_frame(
        &self,
        (bridge, port): (BridgeId, OfPort),
        dp_port: Option<PortNo>,
        frame: &[u8],
        oam: bool,
    ) {
        let packet = Packet::from_slice(frame);
        let mut key = Key::new();
        packet::flow::extract(packet.data(), &mut key, self.settings().vlan_limit);
        match (dp_port, self.datapath.get()) {
            (Some(dp_port), Some(datapath)) => datapath.execute(packet, &key, &[DpAction::Output(dp_port)]),
            _ => {
                // By a patch port, it is received at the other end; before a tunnel, it gets its headers.
                if oam {
                    key.tunnel_mut().tun_flags = tun_flags::OAM.into();
                }
                key.common_mut().in_port = OfPort::ANY.0.into();
                let actions = [Action::Output { port, max_len: 0 }];
                self.execute(packet, &Input { packet_out: Some(&actions), ..self.input(&key, bridge, None) });
            }
        }
    }
}

/// Whether neighbours are to be told: not where the other end is a bond that speaks LACP, which has seen what has happened.
fn tells_neighbours(bond: &Bond) -> bool {
    let settings = bond.settings();
    let is_tcp = settings.mode == BondMode::BalanceTcp;
    let by_lacp = match bond.lacp() {
        LacpStatus::Off => !is_tcp,
        LacpStatus::Configured => settings.lacp_fallback_ab,
        LacpStatus::Negotiated => false,
    };
    by_lacp && bond.active().is_some()
}

/// The frame by which an address is announced.
fn announcement(key: MacKey) -> Vec<u8> {
    let any = std::net::Ipv4Addr::UNSPECIFIED;
    let message = build::arp(REQUEST_REVERSE, key.mac, any, key.mac, any);
    let tags: &[(u16, u16)] = if key.vlan == 0 { &[] } else { &[(ethertype::VLAN, key.vlan)] };
    build::ethernet([0xff; 6], key.mac, tags, ethertype::RARP, &message)
}
