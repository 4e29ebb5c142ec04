//! Tunnel ports: adding, changing, showing.

use std::sync::Arc;

use openflow::{OfPort, PortReason};
use ports::Port;
use tunnel::config::{Config, FlowLabel, Problem};
use tunnel::header::Protocol;
use tunnel::matching::Address;

use super::Bridge;
use crate::error::Error;
use crate::model::forwarding::Forwarding;
use crate::model::port::{Device, PortSpec};
use crate::model::tunnels::{TunnelPort, carrier_name};
use crate::switch::Switch;

impl Bridge {
    /// Enters a tunnel port.
    pub(super) fn add_tunnel(&self, port: OfPort, tunnel: &TunnelPort, spec: PortSpec) -> Result<(), Error> {
        self.place_tunnel(port, tunnel, || self.enter(port, spec, None))
    }

    /// Replaces the tunnel of a port, whose device has been [closed](Bridge::close_device). The port keeps its number, its settings and what
    /// was learnt there.
    pub fn replace_tunnel(&self, port: OfPort, tunnel: &Arc<TunnelPort>) -> Result<(), Error> {
        let replace = || {
            self.with_port(port, |state| {
                (state.device, state.patch) = (Device::Tunnel(tunnel.clone()), tunnel.counters.clone());
            })
        };
        self.place_tunnel(port, tunnel, replace)?;
        self.switch.follow_link(self.id, port);
        self.switch.run_bonds();
        self.port_changed(port, PortReason::Modify);
        Ok(())
    }

    /// Changes the tunnel of a port, which is at no time without one. False where that cannot be: another port has such a tunnel, or its packets
    /// come out of another port of the datapath. Then the device is to be [closed](Bridge::close_device), and
    /// [replaced](Bridge::replace_tunnel).
    pub fn change_tunnel(&self, port: OfPort, tunnel: &Arc<TunnelPort>) -> bool {
        let _adding = self.switch.adding_tunnel.lock();
        let is_changed = {
            let mut forwarding = self.switch.forwarding.write();
            let Forwarding { bridges, tunnels, .. } = &mut *forwarding;
            let state = bridges.get_mut(&self.id).and_then(|bridge| bridge.ports.get_mut(&port));
            let Some(state) = state else { return false };
            let Device::Tunnel(old) = state.device.clone() else { return false };
            let carrier = |config| (carrier_name(config), received_protocol(config));
            if carrier(&old.config) != carrier(&tunnel.config) {
                return false;
            }
            let of = (self.id, port);
            tunnels.remove(&old.config);
            let is_changed = tunnels.add(tunnel.name(), &tunnel.config, of).is_ok();
            if is_changed {
                // A tunnel can do that.
                let _ = tunnel.set_admin_up(old.is_enabled());
                (state.device, state.patch) = (Device::Tunnel(tunnel.clone()), tunnel.counters.clone());
                forwarding.touch();
            } else {
                // It was there a moment ago.
                let _ = tunnels.add(old.name(), &old.config, of);
            }
            is_changed
        };
        if is_changed {
            self.switch.notify();
            self.switch.run_bonds();
            self.port_changed(port, PortReason::Modify);
        }
        is_changed
    }

    /// Has `enter` enter a tunnel, with its carrier in the datapath, which is added if it is the first one there.
    fn place_tunnel(
        &self,
        port: OfPort,
        tunnel: &TunnelPort,
        enter: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let switch = &self.switch;
        let _adding = switch.adding_tunnel.lock();
        let placed = self
            .add_to_carrier(port, tunnel)
            .and_then(|()| enter().inspect_err(|_| switch.forwarding.write().tunnels.remove(&tunnel.config)));
        // That of the tunnel before, or this one's, which is not there.
        self.remove_unused_carriers()?;
        placed
    }

    fn remove_unused_carriers(&self) -> Result<(), Error> {
        let unused = self.switch.forwarding.write().tunnels.take_unused();
        if let Some(datapath) = self.switch.datapath.get().filter(|_| !unused.is_empty()) {
            datapath.remove_ports(&unused)?;
        }
        Ok(())
    }

    /// Has a carrier receive the packets of a tunnel for a port.
    fn add_to_carrier(&self, port: OfPort, tunnel: &TunnelPort) -> Result<(), Error> {
        let switch = &self.switch;
        let config = &tunnel.config;
        let protocol = received_protocol(config).ok_or(Error::NoPayload)?;
        let present = switch.forwarding.read().tunnels.protocol_and_users(config);
        let (port_name, carrier_name) = (tunnel.name(), carrier_name(config));
        match present {
            Some((other, _)) if other == protocol => {}
            // That of the tunnel that this one replaces.
            Some((_, 0)) => self.remove_unused_carriers()?,
            Some((Protocol::Vxlan { .. }, _)) => {
                return Err(Error::TunnelConflict { port: port_name.into(), problem: Problem::MixedGroupPolicy });
            }
            Some(_) => return Err(Error::OtherPayload { port: port_name.into(), carrier: carrier_name }),
            None => {}
        }
        if switch.forwarding.read().tunnels.carrier_of(config).is_none() {
            let datapath = switch.datapath.get().ok_or(Error::NoDatapath)?;
            let carrier = ports::tunnel::TunnelPort::new(&carrier_name, config.kind.name());
            datapath.add_port_with(carrier, |dp_port| {
                switch.forwarding.write().tunnels.add_carrier(config, protocol, dp_port);
            })?;
        }
        Ok(switch.forwarding.write().tunnels.add(port_name, config, (self.id, port))?)
    }
}

/// What a carrier has to understand for a tunnel.
fn received_protocol(config: &Config) -> Option<Protocol> {
    Some(match tunnel::send::protocol(config)? {
        // Headers say whether they have the extension.
        Protocol::VxlanGpe => Protocol::Vxlan { group_policy: config.group_policy },
        Protocol::Srv6 { .. } => Protocol::Srv6 { flow_label: FlowLabel::Zero },
        protocol => protocol,
    })
}

/// A port of the datapath at which packets come out of tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarrierInfo {
    /// Name.
    pub name: String,
    /// Number in the datapath.
    pub dp_port: u32,
    /// How many tunnel ports it is for.
    pub users: usize,
}

impl Switch {
    /// Sets whether packets are put into tunnels here. Otherwise they are sent to the tunnel's port of the datapath, with the metadata of
    /// the tunnel, and end there.
    pub fn set_tunnel_push_pop(&self, enabled: bool) {
        self.set_feature(enabled, |forwarding| &mut forwarding.without_push_pop);
    }

    /// Whether packets are put into tunnels here.
    pub fn has_tunnel_push_pop(&self) -> bool {
        !self.forwarding.read().without_push_pop
    }

    /// Sets whether flows put MPLS labels before whole packets. Otherwise packets that get one are translated one by one.
    pub fn set_add_mpls(&self, enabled: bool) {
        self.set_feature(enabled, |forwarding| &mut forwarding.without_add_mpls);
    }

    /// Whether flows put MPLS labels before whole packets.
    pub fn has_add_mpls(&self) -> bool {
        !self.forwarding.read().without_add_mpls
    }

    /// Sets whether flows tell packets by their length. Otherwise packets of which it is asked are translated one by one.
    pub fn set_check_length(&self, enabled: bool) {
        self.set_feature(enabled, |forwarding| &mut forwarding.without_check_length);
    }

    /// Whether flows tell packets by their length.
    pub fn has_check_length(&self) -> bool {
        !self.forwarding.read().without_check_length
    }

    /// Turns a feature on or off, of which `without` says that it is off.
    fn set_feature(&self, enabled: bool, without: impl FnOnce(&mut Forwarding) -> &mut bool) {
        let mut forwarding = self.forwarding.write();
        if std::mem::replace(without(&mut forwarding), !enabled) == enabled {
            forwarding.touch();
            drop(forwarding);
            self.notify();
        }
    }

    /// The tunnel ports, a line each as `ofproto/list-tunnels` prints them.
    pub fn tunnels(&self) -> Vec<String> {
        let forwarding = self.forwarding.read();
        let line = |tunnel: &TunnelPort| {
            let carrier = forwarding.tunnels.carrier_of(&tunnel.config)?;
            Some(tunnel.config.list(tunnel.name(), carrier.0))
        };
        let mut lines: Vec<_> = tunnel_ports(&forwarding).filter_map(line).collect();
        lines.sort_unstable();
        lines
    }

    /// The ports of the datapath at which packets come out of tunnels.
    pub fn carriers(&self) -> Vec<CarrierInfo> {
        let forwarding = self.forwarding.read();
        let carriers = forwarding.tunnels.carriers().iter();
        carriers
            .map(|carrier| CarrierInfo { name: carrier.name.clone(), dp_port: carrier.dp_port.0, users: carrier.users })
            .collect()
    }

    /// Notes by which device each tunnel leaves, where its other end is one address.
    pub(crate) fn note_egress(&self) {
        let forwarding = self.forwarding.read();
        let routes = self.underlay.netstate.routes.read();
        for tunnel in tunnel_ports(&forwarding) {
            let Address::One(remote) = tunnel.config.remote else { continue };
            let route = routes.find(tunnel.config.egress_mark.unwrap_or(0), remote);
            let egress = route.map(|route| {
                let location = forwarding.by_name.get(&*route.device);
                let state = location.and_then(|(bridge, port)| forwarding.bridges.get(bridge)?.ports.get(port));
                (route.device.to_string(), state.is_none_or(|state| state.is_live()))
            });
            tunnel.set_egress(egress);
        }
    }
}

fn tunnel_ports(forwarding: &Forwarding) -> impl Iterator<Item = &TunnelPort> {
    let ports = forwarding.bridges.values().flat_map(|bridge| bridge.ports.values());
    ports.filter_map(|port| match &port.device {
        Device::Tunnel(tunnel) => Some(&**tunnel),
        _ => None,
    })
}
