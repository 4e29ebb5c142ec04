use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;

use ofproto::BondSettings;

use super::*;
use crate::config::FailMode;
use crate::config::policing::IngressPolicing;

/// A switch that checks that steps come in an order that a real one can follow.
struct Model {
    bridges: BTreeMap<String, ModelBridge>,
    devices: BTreeSet<String>,
    fail: fn(&ReconfigureStep) -> bool,
}

#[derive(Default)]
struct ModelBridge {
    local: bool,
    /// The interfaces of each.
    ports: BTreeMap<String, BTreeSet<String>>,
    controllers: BTreeMap<Target, ControllerKind>,
    flows: BTreeSet<FlowText>,
}

impl ModelBridge {
    /// As ofproto: the first primary controller and the end of the last one clear the flow tables.
    fn change_controllers(&mut self, change: impl FnOnce(&mut BTreeMap<Target, ControllerKind>) -> bool) -> bool {
        let has_primary = |all: &BTreeMap<_, _>| all.values().any(|kind| *kind == ControllerKind::Primary);
        let had = has_primary(&self.controllers);
        let done = change(&mut self.controllers);
        if had != has_primary(&self.controllers) {
            self.flows.clear();
        }
        done
    }
}

impl Model {
    fn new(state: &Desired) -> Model {
        let bridges = state.bridges.iter().map(|(name, b)| {
            let ports = b.ports.iter().map(|(name, port)| (name.clone(), port.interfaces.keys().cloned().collect()));
            let (ports, controllers) =
                (ports.collect(), b.controllers.iter().map(|(target, c)| (target.clone(), c.kind)).collect());
            (name.clone(), ModelBridge { local: b.settings.local, ports, controllers, flows: b.flows.clone() })
        });
        let locals = state.bridges.iter().filter(|(_, b)| b.settings.local).map(|(name, _)| name.clone());
        let interfaces = state.bridges.values().flat_map(|b| b.ports.values()).flat_map(|port| port.interfaces.keys());
        let devices = interfaces.cloned().chain(locals).collect();
        Model { bridges: bridges.collect(), devices, fail: |_| false }
    }
}

impl Apply for Model {
    fn apply(&mut self, step: &ReconfigureStep) -> Result<(), String> {
        if (self.fail)(step) {
            return Err("told to fail".into());
        }
        let no = |what: &str| Err(format!("{step:?}: {what}"));
        let model_bridge = match step {
            ReconfigureStep::SetWorkers(_)
            | ReconfigureStep::SetDatapath(_)
            | ReconfigureStep::SetConntrack(_)
            | ReconfigureStep::SetTls(_)
            | ReconfigureStep::SetHttp(_)
            | ReconfigureStep::StartDpdk(_) => {
                return Ok(());
            }
            ReconfigureStep::AddBridge { bridge, .. } => {
                match self.bridges.insert(bridge.clone(), ModelBridge::default()) {
                    None => return Ok(()),
                    Some(_) => return no("exists"),
                }
            }
            ReconfigureStep::RemoveBridge { bridge } => match self.bridges.remove(bridge) {
                Some(b) if !b.local && b.ports.is_empty() && b.controllers.is_empty() => return Ok(()),
                _ => return no("not there, or not empty"),
            },
            ReconfigureStep::SetBridge { bridge, .. }
            | ReconfigureStep::AddLocal { bridge, .. }
            | ReconfigureStep::SetLocalFilter { bridge, .. }
            | ReconfigureStep::SetLocalPolicing { bridge, .. }
            | ReconfigureStep::RemoveLocal { bridge }
            | ReconfigureStep::AddPort { bridge, .. }
            | ReconfigureStep::RemovePort { bridge, .. }
            | ReconfigureStep::SetVlans { bridge, .. }
            | ReconfigureStep::SetBond { bridge, .. }
            | ReconfigureStep::SetInterface { bridge, .. }
            | ReconfigureStep::ReopenInterface { bridge, .. }
            | ReconfigureStep::AddFlow { bridge, .. }
            | ReconfigureStep::RemoveFlow { bridge, .. }
            | ReconfigureStep::AddController { bridge, .. }
            | ReconfigureStep::RemoveController { bridge, .. } => self.bridges.get_mut(bridge),
        };
        let Some(b) = model_bridge else { return no("no bridge") };
        let done = match step {
            ReconfigureStep::AddLocal { bridge, .. } => {
                !std::mem::replace(&mut b.local, true) && self.devices.insert(bridge.clone())
            }
            ReconfigureStep::SetLocalFilter { .. } | ReconfigureStep::SetLocalPolicing { .. } => b.local,
            ReconfigureStep::RemoveLocal { bridge } => std::mem::take(&mut b.local) && self.devices.remove(bridge),
            ReconfigureStep::AddPort { port, wanted, .. } => {
                let have = b.ports.entry(port.clone()).or_default();
                let mut interfaces = wanted.interfaces.keys();
                interfaces.len() == 1
                    && interfaces.all(|name| self.devices.insert(name.clone()) && have.insert(name.clone()))
            }
            ReconfigureStep::RemovePort { port, interfaces, .. } => {
                let Some(have) = b.ports.get_mut(port) else { return no("no such port") };
                let removed = interfaces.iter().all(|name| have.remove(name) && self.devices.remove(name));
                if have.is_empty() {
                    b.ports.remove(port);
                }
                removed && !interfaces.is_empty()
            }
            ReconfigureStep::SetVlans { port, interfaces, .. } | ReconfigureStep::SetBond { port, interfaces, .. } => {
                b.ports.get(port).is_some_and(|have| have.iter().eq(interfaces))
            }
            ReconfigureStep::SetInterface { port, interface, .. }
            | ReconfigureStep::ReopenInterface { port, interface, .. } => {
                b.ports.get(port).is_some_and(|have| have.contains(interface))
            }
            ReconfigureStep::AddFlow { flow, .. } => {
                b.flows.retain(|f| f.selector() != flow.selector());
                b.flows.insert(flow.clone())
            }
            ReconfigureStep::RemoveFlow { flow, .. } => b.flows.remove(flow),
            ReconfigureStep::AddController { target, controller, .. } => b.change_controllers(|all| {
                // One that is there already gets new settings.
                all.insert(target.clone(), controller.kind);
                true
            }),
            ReconfigureStep::RemoveController { target, .. } => {
                b.change_controllers(|all| all.remove(target).is_some())
            }
            _ => true,
        };
        if done { Ok(()) } else { no("not possible now") }
    }
}

prop_compose! {
    fn interface()(
        kind in prop::sample::select(&["dummy", "tap"][..]),
        options in btree_map("[ab]", "[01]", 0..2),
        ofport_request in prop::option::of(1u16..3),
        mtu_request in prop::option::of(1500u32..1502),
        mac in prop::option::of((1u8..3).prop_map(|n| [2, 0, 0, 0, 0, n])),
    ) -> Interface {
        Interface { kind: kind.into(), options, ofport_request, mtu_request, mac, ..Interface::default() }
    }
}

prop_compose! {
    /// A port with an interface of its name, or with two.
    fn port(name: &'static str)(
        tag in prop::option::of(1u16..3), interface in interface(), second in prop::option::of(interface()),
        all_members_active: bool, lacp in prop::option::of("active|off"), mii in prop::option::of(1u64..3),
    ) -> (String, Port) {
        let mut port = Port::single(name, interface, Vlans { tag, ..Vlans::default() });
        port.lacp.mode = lacp;
        port.mii_interval = mii.filter(|_| second.is_some()).map(Duration::from_millis);
        port.bond = second.is_some().then(|| BondSettings { all_members_active, ..BondSettings::default() });
        port.interfaces.extend(second.map(|second| (format!("{name}2"), second)));
        (name.into(), port)
    }
}

prop_compose! {
    fn bridge()(
        local in any::<bool>(),
        filter in prop::option::of("[ab]"),
        rate in 0u32..3,
        secure in any::<bool>(),
        ports in (prop::option::of(port("p")), prop::option::of(port("q"))),
        controllers in btree_map((1u16..4).prop_map(|n| Target::PassiveTcp(n, None)), controller(), 0..3),
        flows in btree_map("in_port=[12]", "[12]", 0..3),
    ) -> Bridge {
        let fail_mode = if secure { FailMode::Secure } else { FailMode::Standalone };
        let ports = [ports.0, ports.1].into_iter().flatten().collect();
        let flows = flows.into_iter().map(|(of, to)| FlowText(format!("{of},actions=output:{to}"))).collect();
        let local_ingress_filter = filter.filter(|_| local);
        let ingress = IngressPolicing { rate: if local { rate } else { 0 }, ..IngressPolicing::default() };
        let local_policing = Policing { ingress, egress: None };
        let settings =
            BridgeSettings { local, local_ingress_filter, local_policing, fail_mode, ..BridgeSettings::default() };
        Bridge { settings, ports, controllers, flows }
    }
}

fn controller() -> impl Strategy<Value = Controller> {
    let kind = prop_oneof![Just(ControllerKind::Primary), Just(ControllerKind::Service)];
    (1u64..3, kind).prop_map(|(n, kind)| Controller {
        kind,
        max_backoff: Duration::from_secs(n),
        ..Controller::default()
    })
}

prop_compose! {
    fn state()(
        cores in btree_set(0u32..2, 0..2),
        flow_limit in 1u32..3,
        mut bridges in btree_map("br[01]", bridge(), 0..3),
    ) -> Desired {
        // A device has one owner, as the sources make sure of.
        let mut owned = BTreeSet::new();
        for bridge in bridges.values_mut() {
            bridge.ports.retain(|name, _| owned.insert(name.clone()));
        }
        Desired {
            workers: Workers { cores, ..Workers::default() },
            datapath: Datapath { flow_limit, ..Datapath::default() },
            bridges,
            ..Desired::default()
        }
    }
}

/// A port with an interface of its name.
fn single(name: &str) -> (String, Port) {
    (name.to_owned(), Port::single(name, Interface::default(), Vlans::default()))
}

fn ports(state: &Desired) -> impl Iterator<Item = (&String, &String, &Port)> {
    state.bridges.iter().flat_map(|(b, bridge)| bridge.ports.iter().map(move |(p, port)| (b, p, port)))
}

/// Every step that names this port.
fn touches(step: &ReconfigureStep, in_bridge: &str, name: &str) -> bool {
    match step {
        ReconfigureStep::AddPort { bridge, port, .. }
        | ReconfigureStep::RemovePort { bridge, port, .. }
        | ReconfigureStep::SetVlans { bridge, port, .. }
        | ReconfigureStep::SetBond { bridge, port, .. }
        | ReconfigureStep::ReopenInterface { bridge, port, .. }
        | ReconfigureStep::SetInterface { bridge, port, .. } => bridge == in_bridge && port == name,
        ReconfigureStep::RemoveBridge { bridge } | ReconfigureStep::AddBridge { bridge, .. } => bridge == in_bridge,
        _ => false,
    }
}

proptest! {
    #[test]
    fn the_plan_leads_to_what_is_wanted(a in state(), b in state()) {
        let mut running = a.clone();
        let mut model = Model::new(&a);
        let failures = apply(&mut model, &mut running, plan(&a, &b, &Numbers::new()));
        prop_assert_eq!(failures, vec![]);
        for (name, bridge) in &b.bridges {
            prop_assert_eq!(&model.bridges[name].flows, &bridge.flows, "what is really in the tables");
            prop_assert_eq!(model.bridges[name].local, bridge.settings.local);
        }
        prop_assert_eq!(&running, &b);
        prop_assert_eq!(plan(&running, &b, &Numbers::new()), vec![]);
    }

    #[test]
    fn what_did_not_change_has_no_step(a in state(), b in state()) {
        let steps = plan(&a, &b, &Numbers::new());
        for (bridge, name, port) in ports(&a) {
            if b.bridges.get(bridge).and_then(|b| b.ports.get(name)) == Some(port) {
                prop_assert!(!steps.iter().any(|s| touches(s, bridge, name)), "{bridge}/{name}: {steps:?}");
            }
        }
    }

    #[test]
    fn a_failed_port_is_tried_again_and_nothing_else(a in state(), b in state()) {
        let mut model = Model::new(&a);
        model.fail = |step| matches!(step, ReconfigureStep::AddPort { port, .. } if port == "p");
        let mut running = a.clone();
        let failures = apply(&mut model, &mut running, plan(&a, &b, &Numbers::new()));
        let again = plan(&running, &b, &Numbers::new());
        prop_assert_eq!(failures.iter().map(|f| f.step.clone()).collect::<Vec<_>>(), again.clone());
        model.fail = |_| false;
        prop_assert_eq!(apply(&mut model, &mut running, again), vec![]);
        prop_assert_eq!(running, b);
    }
}

#[test]
fn changed_actions_replace_the_flow_without_a_gap() {
    let with = |actions: &str| {
        let flows = BTreeSet::from([FlowText(format!("ip,actions={actions}"))]);
        let bridges = BTreeMap::from([("br0".to_string(), Bridge { flows, ..Bridge::default() })]);
        Desired { bridges, ..Desired::default() }
    };
    let steps = plan(&with("drop"), &with("NORMAL"), &Numbers::new());
    assert!(matches!(&steps[..], [ReconfigureStep::AddFlow { .. }]), "{steps:?}");
}

/// A controller that connected before the last port was there asked for the ports, and missed what it was told of while it had no
/// answer yet.
#[test]
fn a_controller_finds_the_ports_that_were_configured_with_it() {
    let target = Target::PassiveTcp(1, None);
    let bridge = Bridge {
        ports: BTreeMap::from(["p", "q"].map(single)),
        controllers: BTreeMap::from([(target, Controller::default())]),
        flows: BTreeSet::from([FlowText("actions=NORMAL".to_owned())]),
        ..Bridge::default()
    };
    let desired = Desired { bridges: BTreeMap::from([("br0".to_string(), bridge)]), ..Desired::default() };
    let steps = plan(&Desired::default(), &desired, &Numbers::new());
    let last = |is: fn(&ReconfigureStep) -> bool| steps.iter().rposition(is);
    let ports = last(|step| matches!(step, ReconfigureStep::AddPort { .. } | ReconfigureStep::AddLocal { .. }));
    let controllers = last(|step| matches!(step, ReconfigureStep::AddController { .. }));
    let flows = last(|step| matches!(step, ReconfigureStep::AddFlow { .. }));
    assert!(ports.is_some() && ports < controllers && controllers < flows, "{steps:?}");
}

#[test]
fn parts_of_a_bridge_that_failed_are_tried_again_with_it() {
    let bridge = Bridge { ports: BTreeMap::from([single("p")]), ..Bridge::default() };
    let desired = Desired { bridges: BTreeMap::from([("br0".to_string(), bridge)]), ..Desired::default() };
    let mut model =
        Model { fail: |step| matches!(step, ReconfigureStep::AddBridge { .. }), ..Model::new(&Desired::default()) };
    let mut running = Desired::default();
    let failures = apply(&mut model, &mut running, plan(&Desired::default(), &desired, &Numbers::new()));
    assert_eq!(failures.len(), 3, "the bridge, its LOCAL port and its port: {failures:?}");
    assert_eq!(running, Desired::default());
}

/// A switch that knows how often ports that go were waited for.
#[derive(Default)]
struct Waits {
    waits: usize,
    /// Of each request that takes ports away, how many it takes.
    taken: Vec<usize>,
    leaving: usize,
}

impl Apply for Waits {
    fn apply(&mut self, step: &ReconfigureStep) -> Result<(), String> {
        match step {
            ReconfigureStep::RemovePort { .. } | ReconfigureStep::RemoveLocal { .. } => self.leaving += 1,
            ReconfigureStep::AddPort { .. } | ReconfigureStep::AddLocal { .. } => {
                assert_eq!(self.leaving, 0, "it may get a number in use")
            }
            _ => {}
        }
        Ok(())
    }

    fn take_away(&mut self, steps: &[ReconfigureStep]) -> Vec<Result<(), String>> {
        self.taken.push(steps.len());
        steps.iter().map(|step| self.apply(step)).collect()
    }

    fn settle(&mut self) {
        (self.waits, self.leaving) = (self.waits + 1, 0);
    }
}

#[test]
fn ports_that_go_together_are_waited_for_one_by_one() {
    let bridge = |ports: std::ops::Range<u32>| {
        let ports = ports.map(|n| single(&format!("p{n}"))).collect();
        Bridge { settings: BridgeSettings { local: true, ..BridgeSettings::default() }, ports, ..Bridge::default() }
    };
    let state = |bridges: Vec<(&str, Bridge)>| {
        let bridges = bridges.into_iter().map(|(name, bridge)| (name.to_owned(), bridge)).collect();
        Desired { bridges, ..Desired::default() }
    };
    let wanted = [state(vec![("a", bridge(0..100))]), state(vec![("b", bridge(50..150))]), state(vec![])];
    let (mut running, mut waits) = (Desired::default(), Waits::default());
    for (wanted, expected) in wanted.iter().zip([0, 1, 2]) {
        let steps = plan(&running, wanted, &Numbers::new());
        assert!(apply(&mut waits, &mut running, steps).is_empty());
        assert_eq!((waits.waits, waits.leaving), (expected, 0));
        assert_eq!(&running, wanted);
    }
    assert_eq!(waits.taken, [101, 101], "the ports of a bridge, and LOCAL, by one request");
}

#[test]
fn a_port_that_is_opened_anew_keeps_its_number() {
    let state = |kind: &str| {
        let interface = Interface { kind: kind.into(), ..Interface::default() };
        let ports = [("p".to_owned(), Port::single("p", interface, Vlans::default()))].into();
        let bridges = [("br0".to_owned(), Bridge { ports, ..Bridge::default() })].into();
        Desired { bridges, ..Desired::default() }
    };
    let numbers = Numbers::from([("br0".to_owned(), [("p".to_owned(), 7)].into())]);
    let had = |from: &Desired, to: &Desired| {
        plan(from, to, &numbers).into_iter().find_map(|step| match step {
            ReconfigureStep::AddPort { had, .. } => Some(had),
            _ => None,
        })
    };
    assert_eq!(had(&state("tap"), &state("dummy")), Some([("p".to_owned(), 7)].into()));
    assert_eq!(
        had(&Desired::default(), &state("tap")),
        Some(BTreeMap::new()),
        "another port of that name is a new one"
    );
}

/// Two controllers, of which the other one becomes the primary: at no time is the bridge without, which would cost it its flows.
#[test]
fn controllers_take_each_others_place() {
    use ControllerKind::{Primary, Service};
    let with = |kinds: [ControllerKind; 2]| {
        let controller = |(port, kind)| (Target::PassiveTcp(port, None), Controller { kind, ..Controller::default() });
        let controllers = [1, 2].into_iter().zip(kinds).map(controller).collect();
        let flows = BTreeSet::from([FlowText("actions=drop".to_owned())]);
        let bridge = Bridge { controllers, flows, ..Bridge::default() };
        Desired { bridges: BTreeMap::from([("br0".to_owned(), bridge)]), ..Desired::default() }
    };
    let kinds = [[Primary, Service], [Service, Primary], [Service, Service], [Primary, Primary]];
    for (old, new) in kinds.into_iter().flat_map(|old| kinds.map(|new| (with(old), with(new)))) {
        let (mut model, mut running) = (Model::new(&old), old.clone());
        let failures = apply(&mut model, &mut running, plan(&old, &new, &Numbers::new()));
        assert_eq!((failures, &running), (Vec::new(), &new));
        assert_eq!(model.bridges["br0"].flows, new.bridges["br0"].flows, "{old:?} {new:?}");
    }
}

/// Other options are no reason to take a port away: what was learnt there, and what controllers know of it, would go with it.
#[test]
fn a_port_with_other_options_stays() {
    let state = |kind: &str, size: &str, mtu_request| {
        let options = [("size".to_owned(), size.to_owned())].into();
        let interface = Interface { kind: kind.into(), options, mtu_request, ..Interface::default() };
        let ports = [("p".to_owned(), Port::single("p", interface, Vlans::default()))].into();
        let bridges = [("br0".to_owned(), Bridge { ports, ..Bridge::default() })].into();
        Desired { bridges, ..Desired::default() }
    };
    let names = |from: &Desired, to: &Desired| {
        let steps = plan(from, to, &Numbers::new());
        let name = |step: &ReconfigureStep| format!("{step:?}").split(' ').next().unwrap_or_default().to_owned();
        steps.iter().map(name).collect::<Vec<_>>()
    };
    let small = state("null", "60", None);
    assert_eq!(names(&small, &state("null", "61", None)), ["ReopenInterface"]);
    assert_eq!(names(&small, &state("null", "61", Some(2000))), ["ReopenInterface", "SetInterface"]);
    assert_eq!(names(&state("null", "60", Some(2000)), &state("null", "61", None)), ["ReopenInterface"]);
    assert_eq!(names(&small, &state("null", "60", Some(2000))), ["SetInterface"]);
    assert_eq!(names(&state("null", "60", Some(2000)), &small), ["ReopenInterface"], "the device's own MTU is wanted");
    assert_eq!(names(&small, &state("dummy", "61", None)), ["RemovePort", "AddPort"]);
    assert_eq!(names(&state("patch", "60", None), &state("patch", "61", None)), ["SetInterface"]);
    assert_eq!(names(&state("vxlan", "60", None), &state("vxlan", "61", None)), ["ReopenInterface"]);
}

/// A bond loses a member and gets another one: the member that stays is not touched.
#[test]
fn members_that_stay_are_left_alone() {
    let state = |members: &[&str], mode| {
        let mut port = single("bond0").1;
        port.interfaces = members.iter().map(|name| ((*name).to_owned(), Interface::default())).collect();
        port.bond = (members.len() > 1).then(|| BondSettings { mode, ..BondSettings::default() });
        let bridge = Bridge { ports: [("bond0".to_owned(), port)].into(), ..Bridge::default() };
        Desired { bridges: [("br0".to_owned(), bridge)].into(), ..Desired::default() }
    };
    let kinds = |from: &Desired, to: &Desired| {
        let steps = plan(from, to, &Numbers::new());
        let kind = |step: &ReconfigureStep| match step {
            ReconfigureStep::RemovePort { interfaces, .. } => format!("remove {}", interfaces.join(",")),
            ReconfigureStep::AddPort { wanted, .. } => format!("add {}", wanted.interfaces.keys().next().unwrap()),
            ReconfigureStep::SetBond { interfaces, wanted, .. } => {
                format!("bond {} {}", wanted.bond.is_some(), interfaces.join(","))
            }
            other => format!("{other:?}"),
        };
        steps.iter().map(kind).collect::<Vec<_>>()
    };
    let (ab, slb) = (ofproto::BondMode::ActiveBackup, ofproto::BondMode::BalanceSlb);
    assert_eq!(kinds(&state(&["a", "b"], ab), &state(&["b", "c"], ab)), ["remove a", "add c"]);
    assert_eq!(kinds(&state(&["a", "b"], ab), &state(&["a", "b"], slb)), ["bond true a,b"]);
    // A single interface becomes a bond before the second link comes, and is one until that has gone.
    assert_eq!(kinds(&state(&["a"], ab), &state(&["a", "b"], ab)), ["bond true a", "add b"]);
    assert_eq!(kinds(&state(&["a", "b"], ab), &state(&["a"], ab)), ["remove b", "bond false a"]);
}
