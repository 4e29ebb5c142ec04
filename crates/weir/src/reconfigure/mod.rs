//! From what runs to the desired state.
//!
//! - `numbers`: which interfaces get another OpenFlow port number
//! - [`unapplied`]: what is not in force after the steps were taken
//!
//! [`plan`] compares two states and lists the steps between them; it touches nothing. [`apply`] is the
//! only place where steps are taken. A part that did not change has no step, so that a reload never
//! disturbs it. A step that fails does not stop the others; what failed is left out of the running
//! state, so that the next plan tries it again.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::config::conntrack::Conntrack;
use crate::config::desired::{
    Bridge, BridgeSettings, Controller, ControllerKind, Datapath, Desired, FlowText, Interface, Port, Vlans,
};
use crate::config::http::Http;
use crate::config::policing::Policing;
use crate::config::{Target, Workers};

mod numbers;
pub mod unapplied;

pub use numbers::Numbers;
use numbers::Owners;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReconfigureStep {
    /// Changes the threads that forward.
    SetWorkers(Workers),
    /// Changes the flow caches.
    SetDatapath(Datapath),
    /// Changes limits and timeouts of tracked connections.
    SetConntrack(Conntrack),
    /// Changes how OpenFlow connections to come speak TLS.
    SetTls(tls::Settings),
    /// Changes where the HTTP server listens, and whom it answers.
    SetHttp(Http),
    /// Starts DPDK.
    StartDpdk(ports::dpdk::Settings),
    /// Adds a bridge without ports (LOCAL neither), controllers and flows.
    AddBridge { bridge: String, settings: BridgeSettings },
    /// Changes a bridge itself.
    SetBridge { bridge: String, settings: BridgeSettings },
    /// Removes a bridge, whose ports, controllers and flows have been removed.
    RemoveBridge { bridge: String },
    /// Adds the LOCAL port to a bridge.
    AddLocal { bridge: String, settings: BridgeSettings },
    /// Changes the ingress filter of a bridge's LOCAL port.
    SetLocalFilter { bridge: String, filter: Option<String> },
    /// Changes what a bridge's LOCAL port may receive and be sent.
    SetLocalPolicing { bridge: String, policing: Policing },
    /// Takes the LOCAL port from a bridge.
    RemoveLocal { bridge: String },
    /// Opens the device of one interface of a port, the only one in `wanted`, and adds it to a bridge: as a member of a bond, where
    /// the port is one. `had` is the number that it had before, which it keeps where nothing else is wanted.
    AddPort { bridge: String, port: String, wanted: Port, had: BTreeMap<String, u16> },
    /// Changes the VLANs of a port.
    SetVlans { bridge: String, port: String, interfaces: Vec<String>, vlans: Vlans },
    /// Changes MTU or Ethernet address of an interface.
    SetInterface { bridge: String, port: String, interface: String, wanted: Interface },
    /// Has the device of an interface take other options: as it is, where it can and that is `enough`, or by being closed, and opened again
    /// after all steps. The port keeps its number and what was learnt there. Other settings are not touched.
    ReopenInterface { bridge: String, port: String, interface: String, wanted: Interface, enough: bool },
    /// Changes how the interfaces of a port share traffic, how LACP is spoken by them, and their part in the spanning tree.
    SetBond { bridge: String, port: String, interfaces: Vec<String>, wanted: Port },
    /// Takes interfaces of a port from a bridge and closes their devices. Without any, there is no port.
    RemovePort { bridge: String, port: String, interfaces: Vec<String> },
    /// Adds a flow, or replaces the actions of the one with the same match.
    AddFlow { bridge: String, flow: FlowText },
    /// Removes a flow.
    RemoveFlow { bridge: String, flow: FlowText },
    /// Connects to a controller, or listens for one; changes how where it is known.
    AddController { bridge: String, target: Target, controller: Controller },
    /// Closes a controller's connections.
    RemoveController { bridge: String, target: Target },
}

/// What steps are taken on: the switch, or a model of it in tests.
pub trait Apply {
    /// Takes one step. An error says what failed, in words.
    fn apply(&mut self, step: &ReconfigureStep) -> Result<(), String>;

    /// Takes steps that each take a port of one bridge away, and says of each what [`apply`](Apply::apply) would.
    fn take_away(&mut self, steps: &[ReconfigureStep]) -> Vec<Result<(), String>> {
        steps.iter().map(|step| self.apply(step)).collect()
    }

    /// The ports of a bridge are there, as `state` says, and its controllers are about to come.
    fn before_controllers(&mut self, _bridge: &str, _state: &Bridge) {}

    /// Returns when nothing uses the ports any more that were taken away since the last call.
    fn settle(&mut self) {}

    /// The OpenFlow port numbers that ports have.
    fn numbers(&self) -> Numbers {
        Numbers::new()
    }
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step.
    pub step: ReconfigureStep,
    /// Why.
    pub error: String,
}

/// The steps from `running`, whose ports have these numbers, to `desired`.
///
/// What goes is taken away before what comes is added, so that a device can move from one bridge to
/// another. Controllers come after the ports: one that connects at once asks for the ports once, and may miss what comes while it
/// does. Flows come after the ports that they name, and after controllers: a bridge loses all its flows when the first primary
/// controller is configured and when the last one goes, so new ones come before old ones go.
pub fn plan(running: &Desired, desired: &Desired, numbers: &Numbers) -> Vec<ReconfigureStep> {
    let mut steps = Vec::new();
    for (name, old) in &running.bridges {
        plan_removals(name, old, desired.bridges.get(name), numbers, &mut steps);
    }
    if running.workers != desired.workers {
        steps.push(ReconfigureStep::SetWorkers(desired.workers.clone()));
    }
    if running.datapath != desired.datapath {
        steps.push(ReconfigureStep::SetDatapath(desired.datapath.clone()));
    }
    if running.conntrack != desired.conntrack {
        steps.push(ReconfigureStep::SetConntrack(desired.conntrack.clone()));
    }
    if running.tls != desired.tls {
        steps.push(ReconfigureStep::SetTls(desired.tls.clone()));
    }
    if running.http != desired.http {
        steps.push(ReconfigureStep::SetHttp(desired.http.clone()));
    }
    if running.dpdk != desired.dpdk {
        steps.push(ReconfigureStep::StartDpdk(desired.dpdk.clone()));
    }
    for (name, new) in &desired.bridges {
        plan_additions(name, running.bridges.get(name), new, numbers, &mut steps);
    }
    steps
}

fn plan_removals(name: &str, old: &Bridge, new: Option<&Bridge>, numbers: &Numbers, steps: &mut Vec<ReconfigureStep>) {
    let bridge = || name.to_owned();
    if let Some(new) = new {
        for flow in old.flows.iter().filter(|f| !new.flows.iter().any(|g| g.selector() == f.selector())) {
            steps.push(ReconfigureStep::RemoveFlow { bridge: bridge(), flow: flow.clone() });
        }
    }
    let owners = new.map(|new| Owners::of(name, new, numbers));
    for (port, have) in &old.ports {
        let wanted = owners.as_ref().zip(new.and_then(|new| new.ports.get(port)));
        let stays = |name: &str| wanted.as_ref().is_some_and(|(owners, want)| stays(name, have, want, owners));
        let interfaces: Vec<String> = have.interfaces.keys().filter(|name| !stays(name)).cloned().collect();
        for (name, want) in wanted.iter().flat_map(|(_, want)| &want.interfaces).filter(|(name, _)| stays(name)) {
            if let Some(have) = have.interfaces.get(name).filter(|have| needs_reopening(have, want)) {
                let (port, interface, wanted) = (port.clone(), name.clone(), want.clone());
                let enough = !needs_new_device(have, want);
                steps.push(ReconfigureStep::ReopenInterface { bridge: bridge(), port, interface, wanted, enough });
            }
        }
        if !interfaces.is_empty() {
            steps.push(ReconfigureStep::RemovePort { bridge: bridge(), port: port.clone(), interfaces });
        }
    }
    if old.settings.local && new.is_none_or(|new| !keeps_local(&old.settings, &new.settings)) {
        steps.push(ReconfigureStep::RemoveLocal { bridge: bridge() });
    }
    if new.is_none() {
        for target in old.controllers.keys() {
            steps.push(ReconfigureStep::RemoveController { bridge: bridge(), target: target.clone() });
        }
        steps.push(ReconfigureStep::RemoveBridge { bridge: bridge() });
    }
}

/// Whether the LOCAL port can stay. It takes other options as it is, or else has its device opened again.
fn keeps_local(old: &BridgeSettings, new: &BridgeSettings) -> bool {
    old.local && new.local && old.local_kind == new.local_kind
}

fn plan_additions(name: &str, old: Option<&Bridge>, new: &Bridge, numbers: &Numbers, steps: &mut Vec<ReconfigureStep>) {
    let bridge = || name.to_owned();
    match old {
        None => steps.push(ReconfigureStep::AddBridge { bridge: bridge(), settings: new.settings.clone() }),
        Some(old) if without_local(&old.settings) != without_local(&new.settings) => {
            steps.push(ReconfigureStep::SetBridge { bridge: bridge(), settings: new.settings.clone() });
        }
        Some(_) => {}
    }
    if new.settings.local && old.is_none_or(|old| !keeps_local(&old.settings, &new.settings)) {
        steps.push(ReconfigureStep::AddLocal { bridge: bridge(), settings: new.settings.clone() });
    } else if let Some(old) = old.filter(|_| new.settings.local) {
        if old.settings.local_ingress_filter != new.settings.local_ingress_filter {
            let filter = new.settings.local_ingress_filter.clone();
            steps.push(ReconfigureStep::SetLocalFilter { bridge: bridge(), filter });
        }
        if old.settings.local_policing != new.settings.local_policing {
            let policing = new.settings.local_policing.clone();
            steps.push(ReconfigureStep::SetLocalPolicing { bridge: bridge(), policing });
        }
    }
    let (nothing, no_port) = (Bridge::default(), Port::default());
    let old = old.unwrap_or(&nothing);
    let owners = Owners::of(name, new, numbers);
    // Ports without a claim to a number take what the others leave, those that have had one first. Devices come before
    // tunnels, so that their numbers in the datapath do not depend on the tunnels beside them.
    let mut ports: Vec<_> = new.ports.iter().collect();
    ports.sort_by_key(|(_, want)| {
        let claim = |(name, interface): (&String, &Interface)| match owners.grants(name, interface) {
            true => 2,
            false => u8::from(interface.last_ofport.0.is_some()),
        };
        let is_tunnel =
            want.interfaces.values().any(|interface| tunnel::config::Kind::from_name(&interface.kind).is_ok());
        (Reverse(want.interfaces.iter().map(claim).max()), is_tunnel)
    });
    for (port, want) in ports {
        let have = old.ports.get(port).unwrap_or(&no_port);
        let is_kept = |name: &&String| stays(name, have, want, &owners);
        let kept: Vec<String> = have.interfaces.keys().filter(is_kept).cloned().collect();
        for name in &kept {
            let wanted = &want.interfaces[name];
            if have.interfaces.get(name).is_some_and(|have| reopened(have, wanted) != *wanted) {
                let (bridge, port, interface) = (bridge(), port.clone(), name.clone());
                steps.push(ReconfigureStep::SetInterface { bridge, port, interface, wanted: wanted.clone() });
            }
        }
        if !kept.is_empty() {
            let (port, interfaces) = (port.clone(), kept.clone());
            if have.vlans != want.vlans {
                let (port, interfaces, vlans) = (port.clone(), interfaces.clone(), want.vlans.clone());
                steps.push(ReconfigureStep::SetVlans { bridge: bridge(), port, interfaces, vlans });
            }
            // Before new members come: two links that are no bond yet would be a loop.
            if have.logical() != want.logical() {
                steps.push(ReconfigureStep::SetBond { bridge: bridge(), port, interfaces, wanted: want.clone() });
            }
        }
        for name in want.interfaces.keys().filter(|name| !kept.contains(name)) {
            let before = have.interfaces.contains_key(name).then(|| numbers.get(&bridge())?.get(name)).flatten();
            let had = before.map(|number| (name.clone(), *number)).into_iter().collect();
            let (port, wanted) = (port.clone(), want.with_only(name));
            steps.push(ReconfigureStep::AddPort { bridge: bridge(), port, wanted, had });
        }
    }
    plan_controllers(name, old, new, steps);
    let flushed = old.has_primary() != new.has_primary();
    for flow in new.flows.iter().filter(|f| flushed || !old.flows.contains(f)) {
        steps.push(ReconfigureStep::AddFlow { bridge: bridge(), flow: flow.clone() });
    }
}

fn plan_controllers(name: &str, old: &Bridge, new: &Bridge, steps: &mut Vec<ReconfigureStep>) {
    // Primary ones first: where one takes the place of another, the bridge is never without.
    let mut controllers: Vec<_> = new.controllers.iter().collect();
    controllers.sort_by_key(|(_, controller)| controller.kind != ControllerKind::Primary);
    for (target, controller) in controllers {
        if old.controllers.get(target) != Some(controller) {
            let (target, controller) = (target.clone(), controller.clone());
            steps.push(ReconfigureStep::AddController { bridge: name.to_owned(), target, controller });
        }
    }
    for target in old.controllers.keys().filter(|t| !new.controllers.contains_key(t)) {
        steps.push(ReconfigureStep::RemoveController { bridge: name.to_owned(), target: target.clone() });
    }
}

/// The settings but for the LOCAL port, which has steps of its own.
fn without_local(settings: &BridgeSettings) -> BridgeSettings {
    let local_policing = Policing::default();
    BridgeSettings { local: false, local_ingress_filter: None, local_policing, ..settings.clone() }
}

/// Whether an interface of a port stays, if need be with its device opened again. Otherwise it is taken away, and added again if it is wanted.
fn stays(name: &str, have: &Port, want: &Port, owners: &Owners) -> bool {
    let both = have.interfaces.get(name).zip(want.interfaces.get(name));
    let is_same = |have: &Interface, want: &Interface| (&have.kind, have.fake) == (&want.kind, want.fake);
    both.is_some_and(|(have, want)| is_same(have, want) && !owners.renumbers(name, have, want))
}

/// Whether the device of an interface that stays has to take other options, or to make place for another one. A patch port gets another
/// peer in place.
fn needs_reopening(have: &Interface, want: &Interface) -> bool {
    have.options != want.options && want.kind != "patch" || needs_new_device(have, want)
}

/// Whether no device that is open can be as it is wanted: an MTU or an Ethernet address is changed in
/// place, unless the wish for it was withdrawn, when only opening the device brings its own back. Devices
/// of DPDK have to be stopped for another MTU.
fn needs_new_device(have: &Interface, want: &Interface) -> bool {
    have.mtu_request.is_some() && want.mtu_request.is_none()
        || have.mac.is_some() && want.mac.is_none()
        || have.mtu_request != want.mtu_request && ports::dpdk::KIND.names.contains(&&*want.kind)
}

/// An interface whose device has been reopened if it had to be. The rest is as it was.
fn reopened(have: &Interface, want: &Interface) -> Interface {
    let mut after = have.clone();
    if needs_reopening(have, want) {
        after.options.clone_from(&want.options);
    }
    if needs_new_device(have, want) {
        (after.mtu_request, after.mac) = (want.mtu_request, want.mac);
    }
    after
}

/// Takes the steps, and notes in `running` those that succeeded. Returns those that failed.
pub fn apply(target: &mut impl Apply, running: &mut Desired, steps: Vec<ReconfigureStep>) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut taken_away = false;
    let together =
        |a: &ReconfigureStep, b: &ReconfigureStep| takes_away(a).is_some_and(|bridge| takes_away(b) == Some(bridge));
    for steps in steps.chunk_by(together) {
        // Ports that go do so together, and are waited for before others come, which may get their numbers.
        let takes_away = takes_away(&steps[0]).is_some();
        let closes = takes_away || matches!(steps[0], ReconfigureStep::ReopenInterface { .. });
        if std::mem::replace(&mut taken_away, closes) && !closes {
            target.settle();
        }
        if let ReconfigureStep::AddController { bridge, .. } = &steps[0]
            && let Some(state) = running.bridges.get(bridge)
        {
            target.before_controllers(bridge, state);
        }
        let outcomes = if takes_away { target.take_away(steps) } else { vec![target.apply(&steps[0])] };
        for (step, outcome) in steps.iter().zip(outcomes) {
            match outcome {
                Ok(()) => note(running, step),
                Err(error) => {
                    note_failure(running, step);
                    failures.push(Failure { step: step.clone(), error });
                }
            }
        }
    }
    if taken_away {
        target.settle();
    }
    failures
}

/// The bridge that a step takes a port from.
fn takes_away(step: &ReconfigureStep) -> Option<&str> {
    match step {
        ReconfigureStep::RemovePort { bridge, .. } | ReconfigureStep::RemoveLocal { bridge } => Some(bridge),
        _ => None,
    }
}

/// Notes a step that was taken.
fn note(running: &mut Desired, step: &ReconfigureStep) {
    let bridges = &mut running.bridges;
    match step.clone() {
        ReconfigureStep::SetWorkers(workers) => running.workers = workers,
        ReconfigureStep::SetDatapath(datapath) => running.datapath = datapath,
        ReconfigureStep::SetConntrack(conntrack) => running.conntrack = conntrack,
        ReconfigureStep::SetTls(settings) => running.tls = settings,
        ReconfigureStep::SetHttp(settings) => running.http = settings,
        ReconfigureStep::StartDpdk(settings) => running.dpdk = settings,
        ReconfigureStep::AddBridge { bridge, settings } => {
            bridges.insert(bridge, Bridge { settings: without_local(&settings), ..Bridge::default() });
        }
        ReconfigureStep::RemoveBridge { bridge } => {
            bridges.remove(&bridge);
        }
        ReconfigureStep::SetBridge { bridge, settings } => in_bridge(bridges, &bridge, |b| {
            let local_ingress_filter = b.settings.local_ingress_filter.take();
            let (local, local_policing) = (b.settings.local, std::mem::take(&mut b.settings.local_policing));
            b.settings = BridgeSettings { local, local_ingress_filter, local_policing, ..settings };
        }),
        ReconfigureStep::AddLocal { bridge, settings } => in_bridge(bridges, &bridge, |b| {
            (b.settings.local, b.settings.local_ingress_filter) = (true, settings.local_ingress_filter);
            b.settings.local_policing = settings.local_policing;
        }),
        ReconfigureStep::SetLocalFilter { bridge, filter } => {
            in_bridge(bridges, &bridge, |b| b.settings.local_ingress_filter = filter)
        }
        ReconfigureStep::SetLocalPolicing { bridge, policing } => {
            in_bridge(bridges, &bridge, |b| b.settings.local_policing = policing)
        }
        ReconfigureStep::RemoveLocal { bridge } => in_bridge(bridges, &bridge, |b| {
            (b.settings.local, b.settings.local_ingress_filter) = (false, None);
            b.settings.local_policing = Policing::default();
        }),
        ReconfigureStep::AddPort { bridge, port, wanted, .. } => in_bridge(bridges, &bridge, |b| {
            let have = b.ports.entry(port).or_default();
            let interfaces = std::mem::take(&mut have.interfaces);
            *have = wanted;
            have.interfaces.extend(interfaces);
        }),
        ReconfigureStep::SetBond { bridge, port, wanted, .. } => in_bridge(bridges, &bridge, |b| {
            if let Some(port) = b.ports.get_mut(&port) {
                let (vlans, interfaces) = (std::mem::take(&mut port.vlans), std::mem::take(&mut port.interfaces));
                *port = Port { vlans, interfaces, ..wanted };
            }
        }),
        ReconfigureStep::SetVlans { bridge, port, vlans, .. } => in_bridge(bridges, &bridge, |b| {
            if let Some(port) = b.ports.get_mut(&port) {
                port.vlans = vlans;
            }
        }),
        ReconfigureStep::ReopenInterface { bridge, port, interface, wanted, .. } => in_bridge(bridges, &bridge, |b| {
            let have = b.ports.get_mut(&port).and_then(|port| port.interfaces.get_mut(&interface));
            have.into_iter().for_each(|have| *have = reopened(have, &wanted));
        }),
        ReconfigureStep::SetInterface { bridge, port, interface, wanted } => in_bridge(bridges, &bridge, |b| {
            if let Some(port) = b.ports.get_mut(&port) {
                port.interfaces.insert(interface, wanted);
            }
        }),
        ReconfigureStep::RemovePort { bridge, port, interfaces } => in_bridge(bridges, &bridge, |b| {
            if let Some(of) = b.ports.get_mut(&port) {
                of.interfaces.retain(|name, _| !interfaces.contains(name));
                if of.interfaces.is_empty() {
                    b.ports.remove(&port);
                }
            }
        }),
        ReconfigureStep::AddFlow { bridge, flow } => in_bridge(bridges, &bridge, |b| {
            b.flows.retain(|f| f.selector() != flow.selector());
            b.flows.insert(flow);
        }),
        ReconfigureStep::RemoveFlow { bridge, flow } => in_bridge(bridges, &bridge, |b| {
            b.flows.remove(&flow);
        }),
        ReconfigureStep::AddController { bridge, target, controller } => in_bridge(bridges, &bridge, |b| {
            note_controllers(b, |all| all.extend([(target, controller)]));
        }),
        ReconfigureStep::RemoveController { bridge, target } => in_bridge(bridges, &bridge, |b| {
            note_controllers(b, |all| all.retain(|other, _| *other != target));
        }),
    }
}

/// Notes a change of a bridge's controllers: with the first primary one and with the end of the last one go its flows.
fn note_controllers(bridge: &mut Bridge, change: impl FnOnce(&mut BTreeMap<Target, Controller>)) {
    let had = bridge.has_primary();
    change(&mut bridge.controllers);
    if had != bridge.has_primary() {
        bridge.flows.clear();
    }
}

/// Notes a step that failed. What could not be removed was gone already or is beyond repair: trying
/// again would not help. What could not be added or changed stays out or as it was, to be tried again.
fn note_failure(running: &mut Desired, step: &ReconfigureStep) {
    match step {
        ReconfigureStep::RemoveBridge { .. }
        | ReconfigureStep::RemoveLocal { .. }
        | ReconfigureStep::RemovePort { .. }
        | ReconfigureStep::RemoveFlow { .. }
        | ReconfigureStep::RemoveController { .. } => note(running, step),
        _ => {}
    }
}

type Bridges = std::collections::BTreeMap<String, Bridge>;

/// A bridge that could not be added has no parts to note.
fn in_bridge(bridges: &mut Bridges, name: &str, change: impl FnOnce(&mut Bridge)) {
    if let Some(bridge) = bridges.get_mut(name) {
        change(bridge);
    }
}

#[cfg(test)]
mod tests;
