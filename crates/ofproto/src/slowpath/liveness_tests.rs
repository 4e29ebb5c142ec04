//! That a peer who makes a port live and not live, over and over, has no flows translated again but those that depend on that.

use datapath::Config;
use openflow::group::{Bucket, GroupSpec, GroupType, Selection};
use openflow::text::parse_flow_mod;
use openflow::{Action, FlowModCommand, GroupId, OfPort, PortState};
use packet::Clock;
use packet::flow::text::NoNames;
use packet::wire::build;
use ports::registry;
use protocols::lacp::{Aggregator, MemberId, MemberSettings, Settings};
use tunnel::config::Kind;

use crate::model::bond::{BondMode, BondSettings, LacpConfig};
use crate::model::path_check::PathCheckConfig;
use crate::model::port::{Device, PortSpec};
use crate::model::tunnels::TunnelPort;
use crate::reference::tests::Bed;

/// A switch in which what comes in by port 2 is sent to port 3, by three flows.
fn bed(ports: u32) -> Bed {
    let bed = Bed::new(ports);
    add_rule(&bed, "in_port=2,actions=move:NXM_OF_ETH_SRC[]->NXM_NX_XXREG0[0..47],output:3");
    for source in 0..3 {
        assert_eq!(bed.receive(OfPort(2), &frame(source)).len(), 1);
    }
    bed
}

fn frame(source: u8) -> Vec<u8> {
    build::ethernet([2; 6], [4, 0, 0, 0, 0, source], &[], 0x1234, &[0; 46])
}

fn add_rule(bed: &Bed, text: &str) {
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, text, &NoNames).unwrap()).unwrap();
}

/// Has what comes in by port 3 sent to port 2 while `watched` is live: one flow.
fn watch(bed: &Bed, watched: OfPort) {
    let (actions, watch_group) = (vec![Action::output(OfPort(2))], GroupId::ANY);
    let bucket = Bucket { id: 1, weight: 0, watch_port: watched, watch_group, actions };
    let selection = Selection::default();
    bed.put_group(1, &GroupSpec { kind: GroupType::FastFailover, buckets: vec![bucket], selection });
    add_rule(bed, "in_port=3,actions=group:1");
    bed.receive(OfPort(3), &frame(9));
    bed.bridge.barrier();
}

fn is_live(bed: &Bed, port: OfPort) -> bool {
    bed.bridge.port_descs(port)[0].state.contains(PortState::LIVE)
}

/// How many flows a change has had translated again.
fn translated(bed: &Bed, change: impl FnOnce()) -> u64 {
    bed.bridge.barrier();
    let before = bed.switch.revalidation_stats().translated;
    change();
    bed.bridge.barrier();
    bed.switch.revalidation_stats().translated - before
}

/// The other end of the link of port 1, where LACP is spoken.
struct Partner(Aggregator);

impl Partner {
    fn new(bed: &Bed) -> Partner {
        let options = [("lacp-system-id".to_owned(), "02:00:00:00:00:77".to_owned())].into();
        let config = LacpConfig { mode: "active".into(), options, interfaces: 1 };
        let settings: Settings = super::lacp_sessions::lacp_settings("partner", &config, [2; 6]).0.unwrap();
        let member = MemberSettings::from_row("partner", [2, 0, 0, 0, 0, 0x77], 1, &Default::default()).0;
        let mut partner = Aggregator::new(settings);
        partner.set_member(bed.clock.now(), MemberId(1), member, true);
        Partner(partner)
    }

    /// Both ends say what they have to say.
    fn talk(&mut self, bed: &Bed) {
        for _ in 0..6 {
            bed.clock.advance(std::time::Duration::from_secs(1));
            run(bed);
            let now = bed.clock.now();
            for (port, frame) in bed.sent() {
                if port == OfPort(1) {
                    let _ = self.0.receive(now, MemberId(1), &frame);
                }
            }
            for (_, frame) in self.0.run(now).frames {
                bed.switch.receive_lacp(bed.bridge.id(), OfPort(1), &frame);
            }
        }
        run(bed);
    }

    /// The partner is silent for longer than it may be.
    fn fall_silent(&self, bed: &Bed) {
        for _ in 0..2 {
            bed.clock.advance(std::time::Duration::from_secs(91));
            run(bed);
        }
        bed.sent();
    }
}

/// What the thread of the bonds does.
fn run(bed: &Bed) {
    bed.switch.run_due_bonds();
    bed.switch.tell_lacp_changes();
    bed.poll();
}

#[test]
fn a_partner_of_a_port_that_comes_and_goes() {
    let bed = bed(3);
    let config = LacpConfig { mode: "active".into(), options: Default::default(), interfaces: 1 };
    bed.bridge.set_lacp("p1", Some(config));
    watch(&bed, OfPort(1));
    let mut partner = Partner::new(&bed);
    let configured = || bed.switch.forwarding.read().configured;
    let before = configured();
    assert_eq!(translated(&bed, || partner.talk(&bed)), 1, "the flow that looks at the port");
    assert!(is_live(&bed, OfPort(1)));
    assert_eq!(bed.receive(OfPort(3), &frame(9)).len(), 1);
    assert_eq!(translated(&bed, || partner.fall_silent(&bed)), 1);
    assert!(!is_live(&bed, OfPort(1)));
    assert_eq!(bed.receive(OfPort(3), &frame(9)), []);
    assert_eq!(configured(), before, "sessions need not be brought in step with all ports");
}

#[test]
fn a_partner_of_a_bond_that_comes_and_goes() {
    let mut bed = Bed::with(0, Config::default());
    let settings = BondSettings { mode: BondMode::BalanceTcp, ..BondSettings::default() };
    bed.bridge.set_bond("bond0", settings, [0; 6]).unwrap();
    let config = LacpConfig { mode: "active".into(), options: Default::default(), interfaces: 2 };
    bed.bridge.set_lacp("bond0", Some(config));
    for name in ["p1", "p2", "p3", "p4"] {
        let port = registry::open(&registry::PortSpec::new(name, "dummy"), &bed.env).unwrap();
        port.set_admin_up(true).unwrap();
        bed.devices.push(bed.env.dummies.find(name).unwrap());
        let logical = ["p1", "p2"].contains(&name).then(|| "bond0".to_owned());
        bed.bridge.add_port(PortSpec { logical, ..PortSpec::new(port) }).unwrap();
    }
    add_rule(&bed, "in_port=3,actions=move:NXM_OF_ETH_SRC[]->NXM_NX_XXREG0[0..47],output:4");
    add_rule(&bed, "in_port=4,actions=NORMAL");
    (0..3).for_each(|source| assert_eq!(bed.receive(OfPort(3), &frame(source)).len(), 1));
    // To port 3 and the bond, which has no partner yet.
    let flood = build::ethernet([0xff; 6], [4, 0, 0, 0, 0, 9], &[], 0x1234, &[0; 46]);
    assert_eq!(bed.receive(OfPort(4), &flood).len(), 1);
    let mut partner = Partner::new(&bed);
    assert_eq!(translated(&bed, || partner.talk(&bed)), 1, "the flow that sends to the bond");
    assert_eq!(bed.receive(OfPort(4), &flood).len(), 2);
    assert_eq!(translated(&bed, || partner.fall_silent(&bed)), 1);
    assert_eq!(bed.receive(OfPort(4), &flood).len(), 1);
}

#[test]
fn a_path_behind_a_tunnel_that_goes_up_and_down() {
    let bed = bed(3);
    let options = tunnel::config::Config::parse(Kind::Vxlan, [("remote_ip", "192.0.2.2")]).unwrap().0;
    let bfd = [("enable".to_owned(), "true".to_owned())].into();
    let path_checks = PathCheckConfig { bfd, ..PathCheckConfig::default() };
    let device = Device::Tunnel(TunnelPort::new("vx", options, [2, 0, 0, 0, 5, 5]));
    let vx = bed.bridge.add_port(PortSpec { path_checks, ..PortSpec::of("vx", device) }).unwrap();
    watch(&bed, vx);
    for up in [true, false] {
        let flows = translated(&bed, || assert!(bed.switch.set_bfd_forwarding(Some("vx"), Some(up))));
        assert_eq!((flows, is_live(&bed, vx)), (1, up));
        assert_eq!(bed.receive(OfPort(3), &frame(9)).len(), usize::from(up));
    }
}
