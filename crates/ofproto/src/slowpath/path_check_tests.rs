//! BFD and CFM in a switch, whose peers are sessions of their own beside it.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use openflow::group::{Bucket, GroupSpec, GroupType};
use openflow::text::parse_flow_mod;
use openflow::{Action, FlowModCommand, GroupId, OfPort};
use packet::flow::text::NoNames;
use packet::wire::build;
use packet::{Clock as _, Time};
use ports::registry;
use protocols::bfd::{self, State};
use protocols::cfm::{self, MaintenancePoint};
use protocols::options::Options;

use crate::model::bond::{BondMode, BondSettings};
use crate::model::path_check::PathCheckConfig;
use crate::model::port::PortSpec;
use crate::reference::tests::Bed;

const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0xee];
const BFD: &[(&str, &str)] = &[("enable", "true"), ("min_rx", "100"), ("min_tx", "100")];
const STEP: Duration = Duration::from_millis(20);

fn options(pairs: &[(&str, &str)]) -> Options {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn with_bfd(more: &[(&str, &str)]) -> PathCheckConfig {
    PathCheckConfig { bfd: options(&[BFD, more].concat()), ..PathCheckConfig::default() }
}

/// A switch whose port 1 has a peer beyond it.
struct Watched {
    bed: Bed,
    peer: bfd::Session,
    /// What came out of the ports and was no frame for the peer.
    data: Vec<(OfPort, Vec<u8>)>,
    /// Control packets that came out of port 1.
    heard: usize,
}

impl Watched {
    fn new(bed: Bed) -> Watched {
        let settings = bfd::Settings::from_column(&options(BFD)).0.unwrap();
        Watched { bed, peer: bfd::Session::new("peer", PEER, settings, 77, 50_000, 5), data: Vec::new(), heard: 0 }
    }

    fn now(&self) -> Time {
        self.bed.clock.now()
    }

    /// Does what the daemon's threads do, and hands the peer what is for it.
    fn turn(&mut self) {
        self.bed.switch.run_due_path_checks(Duration::ZERO);
        self.bed.switch.apply_path_checks();
        self.bed.poll();
        let now = self.now();
        for (port, frame) in self.bed.sent() {
            if port == OfPort(1) && self.peer.receive(now, &frame).is_ok() {
                self.heard += 1;
            } else {
                self.data.push((port, frame));
            }
        }
    }

    /// Lets time pass, in which the peer speaks or is silent.
    fn pass(&mut self, millis: u64, speaks: bool) {
        for _ in 0..millis / STEP.as_millis() as u64 {
            self.bed.clock.advance(STEP);
            self.turn();
            let now = self.now();
            if let Some(frame) = self.peer.run(now, 0).frame.filter(|_| speaks) {
                self.data.extend(self.bed.receive(OfPort(1), &frame));
            }
        }
        self.turn();
    }

    fn is_live(&self, port: u32) -> bool {
        self.bed.bridge.port_descs(OfPort(port))[0].state.contains(openflow::PortState::LIVE)
    }

    /// By which ports a frame is sent that comes in by a port.
    fn ways(&self, port: u32, frame: &[u8]) -> Vec<u32> {
        self.bed.switch.run(self.now());
        // Not what sessions have sent.
        self.bed.poll();
        self.bed.sent();
        self.bed.receive(OfPort(port), frame).iter().map(|(port, _)| port.0).collect()
    }
}

fn data() -> Vec<u8> {
    build::ethernet([2, 0, 0, 0, 0, 0x20], [2, 0, 0, 0, 0, 0x10], &[], 0x88b5, &[0; 46])
}

fn datagram(ip_dst: [u8; 4], port: u16) -> Vec<u8> {
    let header =
        build::Ipv4 { src: [10, 0, 0, 9].into(), dst: ip_dst.into(), proto: 17, ttl: 255, ..Default::default() };
    build::ethernet([2, 0, 0, 0, 0, 0x20], PEER, &[], 0x0800, &header.packet(build::udp(50_000, port, &[0; 24])))
}

fn fast_failover() -> Bed {
    let bed = Bed::new(3);
    let bucket = |port: u32| Bucket {
        id: port,
        weight: 0,
        watch_port: OfPort(port),
        watch_group: GroupId::ANY,
        actions: vec![Action::output(OfPort(port))],
    };
    let buckets = vec![bucket(1), bucket(2)];
    let spec = GroupSpec { kind: GroupType::FastFailover, buckets, selection: Default::default() };
    bed.put_group(1, &spec);
    let flow = parse_flow_mod(FlowModCommand::Add, "in_port=3,actions=group:1", &NoNames).unwrap();
    bed.bridge.flow_mod(&flow).unwrap();
    bed
}

/// One that is opened again needs what the old one has: a socket, a queue of the kernel's.
#[test]
fn a_device_that_is_closed_is_in_nobodys_hands() {
    let bed = Bed::new(1);
    bed.bridge.set_path_checks(OfPort(1), PathCheckConfig { cfm_mpid: Some(3), ..with_bfd(&[]) });
    bed.bridge.set_lldp(OfPort(1), true);
    bed.switch.run_due_path_checks(Duration::ZERO);
    let device = std::sync::Arc::downgrade(&bed.bridge.port(OfPort(1)).unwrap().device.unwrap());
    bed.bridge.close_device(OfPort(1)).unwrap();
    bed.switch.revalidate();
    bed.poll();
    assert_eq!(device.strong_count(), 1, "the test bed has it");
}

#[test]
fn a_fast_failover_group_follows_a_session() {
    let mut watched = Watched::new(fast_failover());
    assert_eq!(watched.ways(3, &data()), [1]);
    watched.bed.bridge.set_path_checks(OfPort(1), with_bfd(&[]));
    // Not before the peer was heard.
    assert_eq!((watched.is_live(1), watched.ways(3, &data())), (false, vec![2]));
    watched.pass(4_000, true);
    assert_eq!((watched.peer.state(), watched.is_live(1)), (State::Up, true));
    assert_eq!(watched.ways(3, &data()), [1]);
    // What the peer sends goes to the session, not through the tables.
    assert_eq!(watched.data, []);
    // The peer falls silent: three intervals of 100 ms.
    watched.pass(400, false);
    assert_eq!((watched.is_live(1), watched.ways(3, &data())), (false, vec![2]));
    let status: BTreeMap<_, _> = watched.bed.bridge.bfd_status(OfPort(1)).unwrap().into_iter().collect();
    assert_eq!((status["state"].as_str(), status["flap_count"].as_str()), ("down", "2"));
    assert_eq!(status["diagnostic"], "Control Detection Time Expired");
    // Without BFD, the port is live again.
    watched.bed.bridge.set_path_checks(OfPort(1), PathCheckConfig::default());
    assert_eq!((watched.is_live(1), watched.bed.bridge.bfd_status(OfPort(1))), (true, None));
    assert_eq!(watched.ways(3, &data()), [1]);
}

#[test]
fn an_operator_overrides_a_session() {
    let mut watched = Watched::new(fast_failover());
    watched.bed.bridge.set_path_checks(OfPort(1), with_bfd(&[]));
    let switch = watched.bed.switch.clone();
    assert!(switch.set_bfd_forwarding(Some("p1"), Some(true)) && !switch.set_bfd_forwarding(Some("p2"), Some(true)));
    assert_eq!((watched.is_live(1), watched.ways(3, &data())), (true, vec![1]));
    switch.set_bfd_forwarding(None, None);
    assert_eq!(watched.ways(3, &data()), [2]);
    watched.pass(40, false);
    assert!(switch.show_bfd(Some("p1")).unwrap().starts_with("  Forwarding: false\n"));
    assert!(switch.show_bfd(None).unwrap().starts_with("---- p1 ----\n") && switch.show_bfd(Some("p2")).is_none());
}

#[test]
fn a_member_of_a_bond_follows_its_session() {
    let mut bed = Bed::with(0, datapath::Config::default());
    bed.bridge.set_bond("bond0", BondSettings { mode: BondMode::ActiveBackup, ..Default::default() }, [0; 6]).unwrap();
    for name in ["p1", "p2", "p3"] {
        let port = registry::open(&registry::PortSpec::new(name, "dummy"), &bed.env).unwrap();
        port.set_admin_up(true).unwrap();
        bed.devices.push(bed.env.dummies.find(name).unwrap());
        let logical = (name != "p3").then(|| "bond0".to_owned());
        let path_checks = if name == "p1" { with_bfd(&[]) } else { PathCheckConfig::default() };
        bed.bridge.add_port(PortSpec { logical, path_checks, ..PortSpec::new(port) }).unwrap();
    }
    let flow = parse_flow_mod(FlowModCommand::Add, "actions=NORMAL", &NoNames).unwrap();
    bed.bridge.flow_mod(&flow).unwrap();
    let mut watched = Watched::new(bed);
    watched.turn();
    let enabled = |watched: &Watched| {
        let text = watched.bed.bridge.show_bonds(None).unwrap();
        ["p1", "p2"].map(|name| text.contains(&format!("member {name}: enabled")))
    };
    assert_eq!((enabled(&watched), watched.ways(3, &data())), ([false, true], vec![2]));
    watched.pass(4_000, true);
    assert_eq!(enabled(&watched), [true, true]);
    watched.bed.bridge.set_active_member("bond0", "p1").unwrap();
    watched.bed.poll();
    watched.bed.sent();
    assert_eq!(watched.ways(3, &data()), [1]);
    watched.pass(400, false);
    assert_eq!((enabled(&watched), watched.ways(3, &data())), ([false, true], vec![2]));
}

#[test]
fn datagrams_of_others_go_through_the_tables() {
    let mut watched = Watched::new(Bed::new(3));
    let flow = parse_flow_mod(FlowModCommand::Add, "in_port=1,actions=output:3", &NoNames).unwrap();
    watched.bed.bridge.flow_mod(&flow).unwrap();
    watched.bed.bridge.set_path_checks(OfPort(1), with_bfd(&[("bfd_src_ip", "10.0.0.1")]));
    watched.turn();
    assert_eq!(watched.ways(1, &datagram([10, 0, 0, 1], 3784)), [0; 0]);
    assert_eq!(watched.ways(1, &datagram([10, 0, 0, 2], 3784)), [3]);
    assert_eq!(watched.ways(1, &datagram([10, 0, 0, 1], 3785)), [3]);
    // The same with flows that others have made.
    assert_eq!(watched.ways(1, &datagram([10, 0, 0, 1], 3784)), [0; 0]);
    assert_eq!(watched.ways(1, &datagram([10, 0, 0, 1], 53)), [3]);
    let flows = watched.bed.datapath.flow_count();
    // A flood of ports makes no flood of flows: one for each bit that can differ first.
    for port in (1..60_000).step_by(97) {
        watched.ways(1, &datagram([10, 0, 0, 1], port));
    }
    assert!(watched.bed.datapath.flow_count() <= flows + 16);
}

#[test]
fn a_maintenance_point_decides_where_bfd_does_not() {
    let mut watched = Watched::new(fast_failover());
    let cfm = options(&[("cfm_interval", "100"), ("cfm_extended", "true")]);
    let config = PathCheckConfig { cfm_mpid: Some(1), cfm: cfm.clone(), ..PathCheckConfig::default() };
    watched.bed.bridge.set_path_checks(OfPort(1), config.clone());
    let settings = cfm::Settings::from_row(Some(2), &cfm, false).0.unwrap();
    let mut peer = MaintenancePoint::new(watched.now(), "peer", PEER, settings, 0, 3);
    let pass = |watched: &mut Watched, peer: &mut MaintenancePoint, millis: u64, speaks: bool| {
        for _ in 0..millis / 20 {
            watched.bed.clock.advance(STEP);
            watched.turn();
            let now = watched.now();
            for (_, frame) in std::mem::take(&mut watched.data) {
                peer.receive(now, &frame).unwrap();
            }
            if let Some(frame) = peer.run(now, 0).frame.filter(|_| speaks) {
                watched.bed.receive(OfPort(1), &frame);
            }
        }
        watched.turn();
        watched.data.clear();
    };
    pass(&mut watched, &mut peer, 2_000, true);
    let columns = watched.bed.bridge.cfm_columns(OfPort(1)).unwrap();
    assert_eq!((columns.fault, columns.remote_mpids, peer.remote_mpids()), (false, vec![2], &[1][..]));
    assert_eq!(watched.ways(3, &data()), [1]);
    pass(&mut watched, &mut peer, 800, false);
    assert_eq!(watched.bed.bridge.cfm_columns(OfPort(1)).unwrap().fault_status, ["recv"]);
    assert_eq!(watched.ways(3, &data()), [2]);
    // Either of the two will do.
    watched.bed.bridge.set_path_checks(OfPort(1), PathCheckConfig { bfd: options(BFD), ..config });
    watched.pass(4_000, true);
    assert!(watched.bed.bridge.cfm_columns(OfPort(1)).unwrap().fault);
    assert_eq!(watched.ways(3, &data()), [1]);
}

#[test]
fn sessions_run_while_the_tables_are_changed() {
    let mut watched = Watched::new(fast_failover());
    watched.bed.bridge.set_path_checks(OfPort(1), with_bfd(&[]));
    watched.pass(4_000, true);
    let before = watched.heard;
    // A change of tables that takes its time.
    let switch = watched.bed.switch.clone();
    let change = switch.forwarding.write();
    watched.bed.clock.advance(Duration::from_millis(100));
    let (done, is_done) = mpsc::channel();
    let other = switch.clone();
    std::thread::spawn(move || {
        other.run_due_path_checks(Duration::ZERO);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("the session waits for the tables");
    drop(change);
    watched.turn();
    assert!(watched.heard > before);
}

#[test]
fn what_goes_leaves_nothing_behind() {
    let watched = Watched::new(fast_failover());
    for _ in 0..3 {
        watched.bed.bridge.set_path_checks(OfPort(1), with_bfd(&[]));
        let config = PathCheckConfig { cfm_mpid: Some(9), ..with_bfd(&[("min_rx", "300")]) };
        watched.bed.bridge.set_path_checks(OfPort(1), config);
        watched.bed.bridge.set_path_checks(OfPort(1), PathCheckConfig { cfm_mpid: Some(9), ..Default::default() });
        assert!(watched.bed.switch.show_bfd(Some("p1")).is_none());
        assert!(watched.bed.switch.show_cfm(Some("p1")).is_some());
    }
    watched.bed.bridge.set_path_checks(OfPort(1), with_bfd(&[]));
    watched.bed.bridge.remove_port(OfPort(1)).unwrap();
    watched.bed.switch.apply_path_checks();
    assert_eq!(watched.bed.switch.path_sessions.lock().counts(), [0; 4]);
    assert_eq!(watched.bed.switch.show_bfd(None).as_deref(), Some(""));
}

#[test]
fn hostile_frames_change_nothing_and_are_refused() {
    let mut watched = Watched::new(fast_failover());
    let checks = PathCheckConfig { cfm_mpid: Some(1), ..with_bfd(&[]) };
    watched.bed.bridge.set_path_checks(OfPort(1), checks);
    watched.pass(4_000, true);
    for length in 0..60usize {
        let ip = build::Ipv4 { src: [9; 4].into(), dst: [8; 4].into(), proto: 17, ttl: 255, ..Default::default() };
        let frame = ip.packet(build::udp(1, 3784, &vec![0xff; length]));
        watched.bed.receive(OfPort(1), &build::ethernet(PEER, PEER, &[], 0x0800, &frame));
        watched.bed.receive(OfPort(1), &build::ethernet(cfm::ccm::GROUP, PEER, &[], 0x8902, &vec![0xff; length]));
    }
    watched.pass(200, true);
    assert_eq!((watched.peer.state(), watched.is_live(1)), (State::Up, true));
}
