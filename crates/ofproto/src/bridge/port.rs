//! Ports of a bridge: adding, removing, changing, showing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use datapath::PortNo;
use openflow::{
    OfError, OfPort, PortConfig, PortDesc, PortMod, PortReason, PortState as OfPortState, PortStats, PortStatus,
};
use ports::{Closed, Port};

use super::Bridge;
use crate::error::Error;
use crate::events::{Audience, SubscriptionId};
use crate::model::forwarding::{BridgeState, Forwarding, PatchCounters, PortState};
use crate::model::port::{Device, PortInfo, PortSpec};
use crate::model::spanning_tree::PortTree;
use crate::model::vlan::PortVlan;

impl Bridge {
    /// Adds a port.
    pub fn add_port(&self, spec: PortSpec) -> Result<OfPort, Error> {
        if let Some(requested) = spec.request
            && requested != OfPort::LOCAL
            && (requested.is_reserved() || requested.0 == 0)
        {
            return Err(Error::BadPortNumber { port: spec.name, requested });
        }
        // The name is taken first, so that two calls at once cannot both have it.
        let port = self.reserve(&spec)?;
        let (name, device) = (spec.name.clone(), spec.device.clone());
        let mut outcome = Ok(());
        match device {
            Device::Patch { .. } => outcome = self.enter(port, spec, None),
            Device::Tunnel(tunnel) => outcome = self.add_tunnel(port, &tunnel, spec),
            Device::Datapath(device) => {
                let datapath = self.switch.datapath.get().ok_or(Error::NoDatapath);
                // The new port may get the number of a removed one.
                if self.switch.ports_removed.swap(false, SeqCst) {
                    self.switch.revalidate();
                }
                // There may be upcalls as soon as a worker polls it.
                let announce = |dp_port| outcome = self.enter(port, spec, Some(dp_port));
                let added = datapath.and_then(|datapath| Ok(datapath.add_port_with(device, announce)?));
                outcome = added.and(outcome);
            }
        }
        if let Err(error) = outcome {
            let mut forwarding = self.switch.forwarding.write();
            forwarding.by_name.remove(&name);
            if let Some(bridge) = forwarding.bridges.get_mut(&self.id) {
                bridge.port_numbers.entered(port);
            }
            return Err(error);
        }
        self.tell_whether_mirror_port(port);
        self.tell_port(port, PortReason::Add, None);
        Ok(port)
    }

    /// Enters a port whose number has been reserved.
    pub(super) fn enter(&self, port: OfPort, spec: PortSpec, dp_port: Option<datapath::PortNo>) -> Result<(), Error> {
        let mut forwarding = self.switch.forwarding.write();
        if let Some(dp_port) = dp_port {
            forwarding.by_dp_port.insert(dp_port, (self.id, port));
        }
        let Some(bridge) = forwarding.bridges.get_mut(&self.id) else {
            return Err(Error::NoSuchBridge(self.name.to_string()));
        };
        let created = self.switch.clock.now();
        let PortSpec { name, device, vlan, config, logical, lacp, path_checks, lldp, spanning_tree, .. } = spec;
        let mcast_snooping = spec.mcast_snooping;
        let path_checks = super::path_checks::path_checks(&name, path_checks);
        super::spanning_tree::log_port_problems(bridge.config.spanning_tree.protocol, &name, &spanning_tree);
        let logical = if spec.unbundled { String::new() } else { logical.unwrap_or_else(|| name.clone()) };
        let patch = match &device {
            Device::Tunnel(tunnel) => tunnel.counters.clone(),
            _ => Arc::<PatchCounters>::default(),
        };
        let (queue_dscp, told) = (BTreeMap::new(), None);
        // Nothing is known of its partner yet.
        let lacp_down = bridge.lacp.contains_key(&logical);
        let state = PortState {
            port,
            name,
            logical,
            device,
            dp_port,
            config,
            vlan,
            lacp,
            lacp_down,
            path_checks,
            lldp,
            spanning_tree: PortTree { config: spanning_tree, state: None },
            mcast_snooping,
            queue_dscp,
            created,
            was_disabled: false,
            told,
            patch,
        };
        bridge.ports.insert(port, state);
        bridge.port_numbers.entered(port);
        bridge.tell_bonds();
        let guarded = bridge.guard_against_loops();
        bridge.configure_multicast();
        guarded.into_iter().chain([port]).for_each(|port| forwarding.touch_port(self.id, port));
        drop(forwarding);
        self.switch.follow_link(self.id, port);
        self.switch.run_bonds();
        Ok(())
    }

    /// Finds a number for a new port and takes its name.
    fn reserve(&self, spec: &PortSpec) -> Result<OfPort, Error> {
        let mut forwarding = self.switch.forwarding.write();
        if let Some((id, _)) = forwarding.by_name.get(&spec.name) {
            let bridge = forwarding.bridges.get(id).map_or_else(String::new, |bridge| bridge.config.name.clone());
            return Err(Error::PortExists { port: spec.name.clone(), bridge });
        }
        let port = if spec.name == *self.name {
            OfPort::LOCAL
        } else {
            let no_number = || Error::NoPortNumber(self.name.to_string());
            let now = self.switch.clock.now();
            let BridgeState { ports, port_numbers, .. } = forwarding.bridges.get_mut(&self.id).ok_or_else(no_number)?;
            let request = spec.request.filter(|&port| port != OfPort::LOCAL);
            port_numbers.reserve(request, |port| ports.contains_key(&port), now).ok_or_else(no_number)?
        };
        forwarding.by_name.insert(spec.name.clone(), (self.id, port));
        Ok(port)
    }

    /// Removes a port, and what was learnt there. When this returns, no packet uses it. Flows that send to it do so in
    /// vain until the next revalidation, which is due at once: one for all ports that are removed together, for it
    /// looks at all flows.
    pub fn remove_port(&self, port: OfPort) -> Result<(), Error> {
        self.remove_ports(&[port])
    }

    /// Removes ports, as [`remove_port`](Bridge::remove_port); the workers are waited for as often as for one. Where
    /// one of them does not exist, all stay.
    pub fn remove_ports(&self, going: &[OfPort]) -> Result<(), Error> {
        let mut forwarding = self.switch.forwarding.write();
        going.iter().for_each(|port| forwarding.touch_port(self.id, *port));
        let states: Vec<PortState> = {
            let ports = forwarding.bridges.get(&self.id).map(|bridge| &bridge.ports);
            if let Some(&stranger) = going.iter().find(|port| ports.is_none_or(|ports| !ports.contains_key(port))) {
                return Err(self.no_such_port(stranger));
            }
            let Some(bridge) = forwarding.bridges.get_mut(&self.id) else { return Ok(()) };
            // Every flow is looked at for a change of ports.
            let now = self.switch.clock.now();
            let ((), gone) = bridge.macs.change(|macs| macs.flush_ports(going, now));
            // The port's settings go, too: its number may be another's.
            drop(bridge.multicast.change(|snooping| {
                for port in going {
                    snooping.configure_port(port.0, Default::default());
                    snooping.forget_port(port.0, |_| true);
                }
            }));
            going.iter().for_each(|&port| bridge.port_numbers.free(port, now));
            let states: Vec<PortState> = going.iter().filter_map(|port| bridge.ports.remove(port)).collect();
            for state in &states {
                if let Some(bond) = bridge.bonds.get_mut(&state.logical) {
                    bond.remove_member(state.port, now);
                }
            }
            bridge.bonds.retain(|_, bond| bond.first().is_some());
            // What has moved to another port, as a virtual machine does, may have been learnt elsewhere on the way here.
            for (_, other) in forwarding.bridges.iter().filter(|(id, _)| **id != self.id) {
                drop(other.macs.change(|macs| gone.iter().for_each(|gone| macs.remove_learnt(gone.key, now))));
            }
            states
        };
        for state in &states {
            forwarding.by_name.remove(&state.name);
            if let Some(dp_port) = state.dp_port {
                forwarding.by_dp_port.remove(&dp_port);
            }
            if let Device::Tunnel(tunnel) = &state.device {
                forwarding.tunnels.remove(&tunnel.config);
            }
        }
        let carriers = forwarding.tunnels.take_unused();
        drop(forwarding);
        states.iter().for_each(|state| self.switch.follow_link(self.id, state.port));
        self.switch.run_bonds();
        let dp_ports: Vec<_> = states.iter().filter_map(|state| state.dp_port).chain(carriers).collect();
        if let Some(datapath) = self.switch.datapath.get().filter(|_| !dp_ports.is_empty()) {
            let flows = datapath.remove_ports(&dp_ports)?;
            self.switch.credit_last(flows);
            self.switch.drop_sites.forget_ports(&dp_ports);
        }
        // Those of the bridge itself stay: its own port is taken away where it gets other options, and comes again.
        let others = states.iter().filter(|state| state.port != OfPort::LOCAL);
        self.switch.forget_neighbours(others.map(|state| &*state.name));
        self.switch.ports_removed.store(true, SeqCst);
        self.switch.notify();
        states.iter().for_each(|state| self.switch.port_status(self.id, PortReason::Delete, state));
        Ok(())
    }

    /// Takes the device of a port from the datapath, which does not use it any more when this returns. The port is then like one whose
    /// device has gone: see [`replace_device`](Bridge::replace_device), and [`replace_tunnel`](Bridge::replace_tunnel) for what was a tunnel.
    pub fn close_device(&self, port: OfPort) -> Result<(), Error> {
        self.detach(port)?;
        let before = self.with_port(port, |state| {
            let device = state.device.port()?;
            state.was_disabled = !device.link().admin_up;
            Some(std::mem::replace(&mut state.device, Device::Datapath(Closed::after(&*device))))
        })?;
        if let Some(Device::Tunnel(tunnel)) = before {
            self.switch.forwarding.write().tunnels.remove(&tunnel.config);
        }
        // What speaks by the port has the device in hand until then.
        self.switch.follow_link(self.id, port);
        Ok(())
    }

    /// Takes what a port has in the datapath out of it. Flows that send to it do so in vain until the next revalidation.
    fn detach(&self, port: OfPort) -> Result<(), Error> {
        let datapath = self.switch.datapath.get().ok_or(Error::NoDatapath)?;
        let old = self.with_port(port, |state| state.dp_port.take())?;
        self.switch.follow_link(self.id, port);
        self.switch.run_bonds();
        if let Some(old) = old {
            self.switch.forwarding.write().by_dp_port.remove(&old);
            let flows = datapath.remove_port(old)?;
            self.switch.credit_last(flows);
            self.switch.drop_sites.forget_ports(&[old]);
        }
        Ok(())
    }

    /// Replaces the device of a port, which has gone. The port keeps its number, its settings
    /// and what was learnt there. In the datapath it gets the number `dp_number`, or else one that is free.
    pub fn replace_device(
        &self,
        port: OfPort,
        device: Arc<dyn ports::Port>,
        dp_number: Option<PortNo>,
    ) -> Result<(), Error> {
        let datapath = self.switch.datapath.get().ok_or(Error::NoDatapath)?;
        // The new one cannot be there beside the old: the two have one name.
        self.detach(port)?;
        if self.with_port(port, |state| std::mem::take(&mut state.was_disabled))?
            && let Err(error) = device.set_admin_up(false)
        {
            tracing::warn!("{error}");
        }
        let mut entered = Ok(());
        let new = datapath.add_port_as(device.clone(), dp_number, |dp_port| {
            self.switch.forwarding.write().by_dp_port.insert(dp_port, (self.id, port));
            entered = self.with_port(port, |state| {
                (state.device, state.dp_port) = (Device::Datapath(device.clone()), Some(dp_port));
            });
        })?;
        if entered.is_err() {
            // Removed meanwhile.
            self.switch.forwarding.write().by_dp_port.remove(&new);
            datapath.remove_port(new)?;
            return entered;
        }
        self.tell_whether_mirror_port(port);
        self.switch.follow_link(self.id, port);
        self.switch.run_bonds();
        self.port_changed(port, PortReason::Modify);
        Ok(())
    }

    /// Tells the datapath whether a port gets copies only, for somebody who wants to see packets as they came.
    pub(super) fn tell_whether_mirror_port(&self, port: OfPort) {
        let found = self.read(|bridge| {
            let state = bridge.ports.get(&port)?;
            Some((state.dp_port?, bridge.is_mirror_port(state)))
        });
        if let (Some((port, gets_copies)), Some(datapath)) = (found.flatten(), self.switch.datapath.get()) {
            // It may have gone meanwhile.
            let _ = datapath.keep_segments(port, gets_copies);
        }
    }

    pub(crate) fn with_port<T>(&self, port: OfPort, change: impl FnOnce(&mut PortState) -> T) -> Result<T, Error> {
        let changed = self.change_port(port, change);
        self.switch.notify();
        changed.ok_or_else(|| self.no_such_port(port))
    }

    /// Changes a port, if it is there. The caller [notifies](crate::Switch::notify) whoever has flows follow, when nothing else is to be changed.
    fn change_port<T>(&self, port: OfPort, change: impl FnOnce(&mut PortState) -> T) -> Option<T> {
        let mut forwarding = self.switch.forwarding.write();
        forwarding.touch_port(self.id, port);
        let result = change(forwarding.bridges.get_mut(&self.id)?.ports.get_mut(&port)?);
        // It may be of another kind now.
        forwarding.touch_port(self.id, port);
        Some(result)
    }

    /// Changes the VLAN configuration of a port. What was learnt there is forgotten: a frame for an address that was learnt in another
    /// VLAN would be sent to the port, whether or not it carries that VLAN now.
    pub fn set_port_vlan(&self, port: OfPort, vlan: PortVlan) -> Result<(), Error> {
        let has_changed = self.with_port(port, |state| std::mem::replace(&mut state.vlan, vlan.clone()) != vlan)?;
        if has_changed {
            let now = self.now();
            self.change_macs(|macs| macs.flush_learnt(port, now));
            self.forget_groups_of(&[port]);
        }
        Ok(())
    }

    /// Changes the other end of a patch port, and the Ethernet address that it shows.
    pub fn set_patch(&self, port: OfPort, peer: String, mac: ports::Mac) -> Result<(), Error> {
        self.with_port(port, |state| {
            if let Device::Patch { .. } = state.device {
                state.device = Device::Patch { peer, mac };
            }
        })?;
        self.switch.follow_link(self.id, port);
        Ok(())
    }

    /// Changes the DSCP that IP packets have which are sent to queues of a port.
    pub fn set_queue_dscp(&self, port: OfPort, dscp: BTreeMap<u32, u8>) -> Result<(), Error> {
        let have = {
            let forwarding = self.switch.forwarding.read();
            let state = forwarding.bridges.get(&self.id).and_then(|bridge| bridge.ports.get(&port));
            state.ok_or_else(|| self.no_such_port(port))?.queue_dscp == dscp
        };
        if have { Ok(()) } else { self.with_port(port, |state| state.queue_dscp = dscp) }
    }

    /// The port with this name.
    pub fn port_by_name(&self, name: &str) -> Option<OfPort> {
        let forwarding = self.switch.forwarding.read();
        forwarding.by_name.get(name).filter(|(bridge, _)| *bridge == self.id).map(|&(_, port)| port)
    }

    /// One port.
    pub fn port(&self, port: OfPort) -> Option<PortInfo> {
        self.ports_info(|bridge| bridge.ports.get(&port).into_iter().collect()).pop()
    }

    /// The addresses of ports by name, of those for which `which` says so; without LOCAL.
    pub fn device_macs(&self, which: impl Fn(ports::Mac) -> bool) -> HashMap<String, ports::Mac> {
        let macs = |bridge: &BridgeState| {
            let others = bridge.ports.values().filter(|state| state.port != OfPort::LOCAL);
            let macs = others.map(|state| (&state.name, state.device.mac())).filter(|&(_, mac)| which(mac));
            macs.map(|(name, mac)| (name.to_string(), mac)).collect()
        };
        self.read(macs).unwrap_or_default()
    }

    /// Every port, by number.
    pub fn ports(&self) -> Vec<PortInfo> {
        self.ports_info(|bridge| bridge.ports.values().collect())
    }

    /// How many ports there are.
    pub fn port_count(&self) -> usize {
        self.read(|bridge| bridge.ports.len()).unwrap_or_default()
    }

    fn ports_info(&self, which: impl Fn(&BridgeState) -> Vec<&PortState>) -> Vec<PortInfo> {
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return Vec::new() };
        which(bridge).into_iter().map(|state| info(state, &forwarding)).collect()
    }

    /// Whether a patch port leads anywhere: to one that leads here.
    pub fn has_peer(&self, port: OfPort) -> bool {
        let forwarding = self.switch.forwarding.read();
        let state = forwarding.bridges.get(&self.id).and_then(|bridge| bridge.ports.get(&port));
        state.is_some_and(|state| match &state.device {
            Device::Patch { peer, .. } => forwarding.peer(&state.name, peer).is_some(),
            _ => false,
        })
    }

    /// Descriptions of a port, or of all for ANY, by number; none of a port that is not there.
    pub fn port_descs(&self, port: OfPort) -> Vec<PortDesc> {
        self.each_port(port, |_, _, state| state.describe())
    }

    /// Counters of a port, or of all for ANY, by number; none of a port that is not there.
    pub fn port_stats(&self, port: OfPort) -> Vec<PortStats> {
        let now = self.switch.clock.now();
        self.each_port(port, |_, _, state| {
            let mut counters = counters(state);
            if let (Some(port), Some(datapath)) = (state.dp_port, self.switch.datapath.get()) {
                counters.count_unsent(datapath.drops_at(port).at_output());
            }
            PortStats {
                port: state.port,
                rx_packets: counters.rx_packets,
                tx_packets: counters.tx_packets,
                rx_bytes: counters.rx_bytes,
                tx_bytes: counters.tx_bytes,
                rx_dropped: counters.rx_dropped,
                tx_dropped: counters.tx_dropped,
                rx_errors: counters.rx_errors,
                tx_errors: counters.tx_errors,
                rx_frame_err: counters.rx_frame_err,
                rx_over_err: counters.rx_over_err,
                rx_crc_err: counters.rx_crc_err,
                collisions: counters.collisions,
                duration: Some(now.since(state.created)),
                custom: custom(state),
            }
        })
    }

    pub(super) fn each_port<T>(
        &self,
        port: OfPort,
        shown: impl Fn(&Forwarding, &BridgeState, &PortState) -> T,
    ) -> Vec<T> {
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return Vec::new() };
        let shown = |state| shown(&forwarding, bridge, state);
        match port {
            OfPort::ANY => bridge.ports.values().map(shown).collect(),
            port => bridge.ports.get(&port).map(shown).into_iter().collect(),
        }
    }

    /// Changes the OpenFlow configuration of a port.
    pub fn port_mod(&self, change: &PortMod) -> Result<(), OfError> {
        self.port_mod_but(change, None)
    }

    /// As [`port_mod`](Bridge::port_mod), of which one subscriber is not told, but is told of the state that the port has then.
    pub(crate) fn port_mod_but(&self, change: &PortMod, but: Option<SubscriptionId>) -> Result<(), OfError> {
        let descs = self.port_descs(change.port);
        let [desc] = &descs[..] else { return Err(OfError::OFPPMFC_BAD_PORT) };
        if desc.hw_addr != change.hw_addr {
            return Err(OfError::OFPPMFC_BAD_HW_ADDR);
        }
        let mask = change.mask & !PortConfig::PORT_DOWN;
        let changed = self.change_port(change.port, |state| {
            state.config = state.config & !mask | change.config & mask;
            (state.device.clone(), state.dp_port)
        });
        let Some((device, dp_port)) = changed else { return Err(OfError::OFPPMFC_BAD_PORT) };
        if let (true, Some(device)) = (change.mask.contains(PortConfig::PORT_DOWN), device.port()) {
            let up = !change.config.contains(PortConfig::PORT_DOWN);
            if let Err(error) = device.set_admin_up(up) {
                tracing::warn!("{error}");
                self.switch.notify();
                return Err(OfError::OFPPMFC_BAD_CONFIG);
            }
            if let (Some(port), Some(datapath)) = (dp_port, self.switch.datapath.get()) {
                // A port that was removed meanwhile has no state to refresh.
                let _ = datapath.refresh_port(port);
            }
        }
        self.tell_port(change.port, PortReason::Modify, but);
        Ok(())
    }

    /// Tells the subscribers that a port is new or has changed: its link state, for instance, which
    /// whoever watches the device notices.
    pub fn port_changed(&self, port: OfPort, reason: PortReason) {
        // Frames of path checks and LLDP have the device's address.
        self.switch.follow_link(self.id, port);
        self.tell_port(port, reason, None);
    }

    /// As [`port_changed`](Bridge::port_changed), where the link of the port's device has come or gone, and nothing else of it has changed.
    pub fn link_changed(&self, port: OfPort) {
        self.switch.follow_link(self.id, port);
        self.liveness_changed(port);
    }

    /// Tells the subscribers that a port has become live, or has ceased to be, and that nothing else of it has changed.
    pub(crate) fn liveness_changed(&self, port: OfPort) {
        self.switch.forwarding.write().touch_number(self.id, port);
        self.tell_state(port);
    }

    /// Tells the subscribers that a port has another state, which flows depend on that look at its number; these have been told.
    pub(crate) fn tell_state(&self, port: OfPort) {
        self.tell_subscribers(port, PortReason::Modify, None);
    }

    /// Whether a port is still what subscribers were told of it last; `None` where nothing was told yet.
    pub fn is_as_told(&self, port: OfPort) -> Option<bool> {
        let desc = self.port_descs(port).into_iter().next()?;
        let forwarding = self.switch.forwarding.read();
        let state = forwarding.bridges.get(&self.id)?.ports.get(&port)?;
        state.told.as_deref().map(|told| *told == desc)
    }

    fn tell_port(&self, port: OfPort, reason: PortReason, but: Option<SubscriptionId>) {
        // What the port can do now, bundles and groups may depend on.
        self.switch.forwarding.write().touch_port(self.id, port);
        self.tell_subscribers(port, reason, but);
    }

    fn tell_subscribers(&self, port: OfPort, reason: PortReason, but: Option<SubscriptionId>) {
        let desc = self.port_descs(port).into_iter().next();
        let statuses = {
            let mut forwarding = self.switch.forwarding.write();
            let state = forwarding.bridges.get_mut(&self.id).and_then(|bridge| bridge.ports.get_mut(&port));
            let told = state.zip(desc).map(|(state, desc)| {
                let before = state.told.replace(Box::new(desc.clone()));
                in_steps(reason, before.as_deref(), desc)
            });
            told.unwrap_or_default()
        };
        if !statuses.is_empty() {
            for subscriber in self.switch.subscribers_but(self.id, but) {
                statuses.iter().for_each(|step| subscriber.port_status(&step.status, step.audience));
            }
            // As in OVS, who has changed the configuration hears of the link, which it cannot know.
            if let Some(subscriber) = but.and_then(|but| self.switch.subscriber(but)) {
                let states = statuses.iter().filter(|step| !step.same_state);
                states.for_each(|step| subscriber.port_status(&step.status, step.audience));
            }
        }
        self.switch.notify();
    }
}

/// What is told of a port at a time.
struct Step {
    status: PortStatus,
    audience: Audience,
    /// Its state has not changed.
    same_state: bool,
}

/// What is told of a port. As in OVS, a port is not yet live when it is added, and its configuration is told before the
/// state that this leads to: controllers may wait for either. Of what has been told already nothing is said.
fn in_steps(reason: PortReason, before: Option<&PortDesc>, desc: PortDesc) -> Vec<Step> {
    let not_live = |state: OfPortState| state - OfPortState::LIVE;
    let mut steps = Vec::new();
    let mut last = before.cloned();
    let mut first = |same_state: bool, desc: PortDesc| {
        let audience = last.as_ref().map_or(Audience::All, |last| audience(last, &desc));
        last = Some(desc.clone());
        steps.push(Step { status: PortStatus { reason, desc }, audience, same_state });
    };
    match before {
        _ if reason == PortReason::Add => first(false, PortDesc { state: not_live(desc.state), ..desc.clone() }),
        Some(before) if before.config != desc.config && before.state != desc.state => {
            first(true, PortDesc { state: not_live(before.state), ..desc.clone() });
        }
        _ => {}
    }
    if last.as_ref() != Some(&desc) {
        let audience = last.as_ref().map_or(Audience::All, |last| audience(last, &desc));
        let same_state = last.as_ref().is_some_and(|last| last.state == desc.state);
        steps.push(Step { status: PortStatus { reason: PortReason::Modify, desc }, audience, same_state });
    }
    steps
}

/// Who can be told of a change.
fn audience(before: &PortDesc, after: &PortDesc) -> Audience {
    let not_live = |desc: &PortDesc| PortDesc { state: desc.state - OfPortState::LIVE, ..desc.clone() };
    let only_v1_0 = PortConfig::NO_STP | PortConfig::NO_RECV_STP | PortConfig::NO_FLOOD;
    let later = |desc: &PortDesc| PortDesc { config: desc.config - only_v1_0, ..desc.clone() };
    if not_live(before) == not_live(after) {
        Audience::ButV1_0
    } else if later(before) == later(after) {
        Audience::OnlyV1_0
    } else {
        Audience::All
    }
}

fn info(state: &PortState, forwarding: &Forwarding) -> PortInfo {
    let (kind, peer, dp_port) = match &state.device {
        Device::Patch { peer, .. } => ("patch", Some(peer.clone()), state.dp_port),
        Device::Datapath(device) => (device.kind(), None, state.dp_port),
        Device::Tunnel(tunnel) => (tunnel.kind(), None, forwarding.tunnels.carrier_of(&tunnel.config)),
    };
    let options = match &state.device {
        Device::Tunnel(tunnel) => tunnel.config.options(),
        Device::Datapath(device) => device.shown_options(),
        Device::Patch { .. } => Vec::new(),
    };
    PortInfo {
        options,
        port: state.port,
        name: state.name.clone(),
        dp_port,
        kind,
        peer,
        vlan: state.vlan.clone(),
        config: state.config,
        created: state.created,
        device: state.device.port(),
    }
}

fn custom(state: &PortState) -> Vec<(String, u64)> {
    match &state.device {
        Device::Datapath(device) => device.custom_stats().into_iter().map(|(name, n)| (name.into(), n)).collect(),
        Device::Patch { .. } | Device::Tunnel(_) => Vec::new(),
    }
}

fn counters(state: &PortState) -> ports::Stats {
    match &state.device {
        Device::Datapath(device) => device.stats(),
        Device::Tunnel(tunnel) => tunnel.stats(),
        Device::Patch { .. } => state.patch.stats(),
    }
}
