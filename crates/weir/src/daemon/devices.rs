//! Devices of ports: opened, closed, and opened again in their ports' place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::PortNo;
use ofproto::{Device, TunnelPort};
use openflow::OfPort;
use ports::{Qos, registry};
use tunnel::config::{Config, Kind, text_of};

use super::address::{set_ipv4, stable_mac};
use super::apply::{LiveSwitch, StepResult, set_qos_of_new, short_number};
use super::missing::Seen;
use crate::config::desired::{self, BridgeSettings, Interface, LocalKind};
use crate::config::policing::Policing;
use crate::config::shaping;

/// How long the device of a port that is opened again may be in use elsewhere.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);

/// A port whose device has gone.
pub struct Lost {
    /// Bridge.
    pub bridge: String,
    /// Name.
    pub name: String,
    /// OpenFlow number, which it keeps.
    pub port: OfPort,
    /// Type.
    pub kind: String,
    /// Why it has no other device.
    pub error: String,
    /// Which interface has its name now.
    pub seen: Seen,
}

impl LiveSwitch {
    pub(super) fn open_local(&self, bridge: &str, settings: &BridgeSettings) -> Result<Arc<dyn ports::Port>, String> {
        let spec = self.local_spec(bridge, settings);
        let device = registry::open(&spec, &self.engine.env).map_err(|e| format!("LOCAL port: {e}"))?;
        if let Some(config) = &settings.local_ipv4 {
            set_ipv4(bridge, &*device, config, None);
        }
        Ok(device)
    }

    fn local_spec(&self, bridge: &str, settings: &BridgeSettings) -> registry::PortSpec {
        let mut spec = registry::PortSpec::new(bridge, settings.local_kind.name());
        spec.mac = Some(self.bridge_mac(bridge, settings));
        spec.options = settings.local_options.clone();
        spec
    }

    /// Has the LOCAL port take its options. A device that cannot do so as it is is closed, and opened again as one that has gone. Only
    /// dummy ports have any.
    pub(super) fn set_local_options(&self, bridge: &ofproto::Bridge, settings: &BridgeSettings) -> StepResult {
        let local = bridge.port(OfPort::LOCAL).and_then(|port| port.device).filter(|device| !device.is_gone());
        let Some(local) = local.filter(|_| settings.local_kind == LocalKind::DummyInternal) else { return Ok(()) };
        match registry::set_options(&*local, &self.local_spec(bridge.name(), settings)).map_err(|e| e.to_string())? {
            true => Ok(()),
            false => bridge.close_device(OfPort::LOCAL).map_err(|e| e.to_string()),
        }
    }

    pub(super) fn open(&self, name: &str, interface: &Interface) -> Result<Device, String> {
        if interface.kind == "patch" {
            let peer = interface.options.get("peer").cloned().ok_or("a patch port needs the option peer")?;
            // What it sends would come in again by it, and have addresses move.
            if peer == name {
                return Err("a patch port cannot be its own peer".into());
            }
            return Ok(Device::Patch { peer, mac: interface.mac.unwrap_or(stable_mac(name, "")) });
        }
        if ports::tunnel::KIND.names.contains(&interface.kind.as_str()) {
            return open_tunnel(name, interface).map(Device::Tunnel);
        }
        if let Some(user) = self.engine.separate.user_of(name) {
            return Err(format!(
                "{name} is a port of the datapath {user}: \"dpctl/del-if {user} {name}\" sets it free"
            ));
        }
        registry::open(&interface.port_spec(name), &self.engine.env).map(Device::Datapath).map_err(|e| e.to_string())
    }

    /// The ports whose devices have gone. `find` says which interface has a name now.
    pub fn lost(&self, find: impl Fn(&str) -> Seen) -> Vec<Lost> {
        let of_bridge = |bridge: &ofproto::Bridge| {
            let name = bridge.name().to_owned();
            let gone = bridge.ports().into_iter().filter(|info| info.device.as_ref().is_some_and(|d| d.is_gone()));
            gone.map(|info| Lost {
                bridge: name.clone(),
                port: info.port,
                kind: info.kind.to_owned(),
                error: ports::Error::NoInterface { port: info.name.clone() }.to_string(),
                seen: find(&info.name),
                name: info.name,
            })
            .collect::<Vec<_>>()
        };
        self.engine.switch.bridges().iter().flat_map(of_bridge).collect()
    }

    /// Opens a new device for a port whose device has gone, with the settings of `running`.
    pub fn reopen(&self, lost: &Lost, running: &desired::Bridge) -> StepResult {
        self.replace(lost, running, None)?;
        let (name, number) = (&lost.name, short_number(lost.port));
        tracing::info!("bridge {}: interface {name} is there again on port {number}", lost.bridge);
        Ok(())
    }

    /// Gives the interface called `name` another number in the datapath. Its device is opened anew.
    pub fn renumber(&self, name: &str, number: PortNo, running: &BTreeMap<String, desired::Bridge>) -> StepResult {
        let of_bridge = |bridge: &ofproto::Bridge| {
            let found = bridge.ports().into_iter().find(|info| info.name == name && info.device.is_some());
            found.map(|info| (bridge.name().to_owned(), info))
        };
        let found = self.engine.switch.bridges().iter().find_map(of_bridge);
        let (bridge, info) = found.filter(|(bridge, _)| bridge != name).ok_or("unknown port")?;
        if self.engine.datapath.port(number).is_some() {
            return Err("port number already in use".into());
        }
        let (port, kind) = (info.port, info.kind.to_owned());
        let moved = Lost { bridge, name: name.to_owned(), port, kind, error: String::new(), seen: None };
        let running = running.get(&moved.bridge).ok_or("unknown port")?;
        self.replace(&moved, running, Some(number))
    }

    fn replace(&self, lost: &Lost, running: &desired::Bridge, number: Option<PortNo>) -> StepResult {
        let bridge = self.bridge(&lost.bridge)?;
        let wanted = running.interface(&lost.name);
        let device = match wanted {
            Some(wanted) => match self.open(&lost.name, wanted)? {
                Device::Datapath(device) => device,
                Device::Tunnel(tunnel) if number.is_none() => {
                    return bridge.replace_tunnel(lost.port, &tunnel).map_err(|e| e.to_string());
                }
                Device::Tunnel(_) | Device::Patch { .. } => return Ok(()),
            },
            None => self.open_local(&lost.bridge, &running.settings)?,
        };
        bridge.replace_device(lost.port, device, number).map_err(|e| e.to_string())?;
        self.push_filter_down(&lost.name);
        let policing = wanted.map_or(&running.settings.local_policing, |wanted| &wanted.policing);
        let qos = wanted.and_then(|wanted| wanted.qos.as_ref());
        self.set_policing_of_new(&bridge, lost.port, policing, qos)?;
        set_qos_of_new(&bridge, lost.port, wanted);
        wanted.map_or(Ok(()), |wanted| self.set_queues_of_new(&bridge, lost.port, wanted))
    }

    /// Has the device of an interface take its options. One that cannot do so as it is, or for which that is not enough, is closed: a port
    /// whose device has gone is opened again.
    pub(super) fn set_options(&self, bridge: &str, name: &str, wanted: &Interface, enough: bool) -> StepResult {
        let bridge = self.bridge(bridge)?;
        let info = bridge.port_by_name(name).and_then(|port| bridge.port(port));
        let Some((port, device)) = info.and_then(|info| Some((info.port, info.device?))) else { return Ok(()) };
        let is_tunnel = ports::tunnel::KIND.names.contains(&&*wanted.kind);
        if is_tunnel && !device.is_gone() {
            if let Ok(Device::Tunnel(tunnel)) = self.open(name, wanted)
                && bridge.change_tunnel(port, &tunnel)
            {
                return Ok(());
            }
            // What is wrong is said when it is opened again.
            return bridge.close_device(port).map_err(|e| e.to_string());
        }
        let set = || registry::set_options(&*device, &wanted.port_spec(name)).map_err(|e| e.to_string());
        if device.is_gone() || enough && set()? {
            return Ok(());
        }
        bridge.close_device(port).map_err(|e| e.to_string())?;
        // Whoever looks at all ports may have it in hand for a moment.
        let closed = Arc::downgrade(&device);
        drop(device);
        let deadline = Instant::now() + CLOSES_WITHIN;
        while closed.strong_count() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Limits a port whose device is a new one.
    pub(super) fn set_policing_of_new(
        &self,
        bridge: &ofproto::Bridge,
        port: OfPort,
        policing: &Policing,
        qos: Option<&Qos>,
    ) -> StepResult {
        let Some(info) = bridge.port(port) else { return Ok(()) };
        let shaper = info.device.zip(qos).and_then(|(device, qos)| shaping::limits(&*device, qos));
        let number = info.dp_port.filter(|_| *policing != Policing::default() || shaper.is_some());
        number.map_or(Ok(()), |number| self.set_policing(number, policing, shaper))
    }

    /// Pins the receive queues of a new port to the cores that the configuration names, and has its transmit queues used as
    /// that says.
    pub(super) fn set_queues_of_new(
        &self,
        bridge: &ofproto::Bridge,
        port: OfPort,
        interface: &Interface,
    ) -> StepResult {
        if interface.rx_affinity.is_empty() && !interface.steers_by_hash {
            return Ok(());
        }
        let number = bridge.port(port).and_then(|info| info.dp_port);
        number.map_or(Ok(()), |number| self.set_queues(number, interface))
    }

    /// Has a device that may be a new one do what it can of the port's ingress filter.
    pub(super) fn push_filter_down(&self, name: &str) {
        self.engine.ingress.push_down(&self.engine.datapath, name);
    }
}

/// A tunnel port with the options of an interface. What they have that is not known is warned of.
fn open_tunnel(name: &str, interface: &Interface) -> Result<Arc<TunnelPort>, String> {
    let kind = Kind::from_name(&interface.kind).map_err(|problem| format!("{name}: {problem}"))?;
    let options = interface.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let (config, warnings) = Config::parse(kind, options).map_err(|problems| text_of(name, &problems))?;
    if !warnings.is_empty() {
        tracing::warn!("{}", text_of(name, &warnings));
    }
    Ok(TunnelPort::new(name, config, interface.mac.unwrap_or(stable_mac(name, ""))))
}
