//! Peers that speak bytes, and Debian's ovs-ofctl where it is installed.

mod asynchronous;
mod direct;
mod memory;
mod monitors;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datapath::{Config, Datapath};
use openflow::bundle::{BundleControlKind, BundleFlags};
use openflow::codec::{decode, encode, frame_len};
use openflow::packet_msg::PacketIn;
use openflow::stats::FlowStatsRequest;
use openflow::switch::{RoleReason, RoleStatus};
use openflow::{
    Action, AsyncChange, BundleAdd, BundleControl, Cookie, CookieFilter, CtFlush, CtTuple, FlowMod, FlowModCommand,
    GroupId, Instructions, Match, MultipartReply, MultipartRequest, OfPort, PacketInReason, PacketOut, SwitchConfig,
    TableId,
};
use packet::Clock;

use super::mailbox::MAX_OTHERS;
use super::packet_ins::PACKET_IN_QUEUE;
use super::*;
use crate::events::{PacketInEvent, Subscriber};
use crate::model::port::{Device, PortSpec};
use crate::{BridgeConfig, Switch, SwitchSettings};

struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

fn bridge() -> Bridge {
    let clock = Arc::new(TestClock(AtomicU64::new(1)));
    let switch = Switch::new(SwitchSettings::default(), clock.clone());
    switch.attach(Datapath::new(Config { exact_entries: 256, ..Config::default() }, clock));
    switch.add_bridge(BridgeConfig::new("br0", 0x1234)).unwrap()
}

fn add_port(bridge: &Bridge, name: &str) -> OfPort {
    let device = Device::Patch { peer: "nowhere".into(), mac: [2, 0, 0, 0, 0, 1] };
    let spec = PortSpec::of(name, device);
    bridge.add_port(spec).unwrap()
}

fn settings(kind: ConnectionKind) -> Settings {
    Settings {
        kind,
        versions: Versions::ALL,
        probe_interval: Some(Duration::from_secs(5)),
        packet_in_limit: None,
        packet_in_queue: PACKET_IN_QUEUE,
        async_messages: true,
        desc: SwitchDesc { manufacturer: "Weir".into(), ..SwitchDesc::default() },
    }
}

const START: Time = Time(1_000_000_000);

fn at(seconds: u64) -> Time {
    Time(START.0 + seconds * 1_000_000_000)
}

/// A session whose peer has said hello with this version.
fn session(bridge: &Bridge, kind: ConnectionKind, version: Version) -> Session {
    session_with(bridge, kind, version, Arc::new(Roles::default()))
}

fn session_with(bridge: &Bridge, kind: ConnectionKind, version: Version, roles: Arc<Roles>) -> Session {
    let mut s = Session::new(bridge.clone(), settings(kind), roles, START);
    s.receive(&[version.wire(), 0, 0, 8, 0, 0, 0, 9], START);
    assert_eq!(s.version(), Some(version));
    s.sent(usize::MAX);
    s
}

/// Everything that the session has to say.
fn heard(s: &mut Session) -> Vec<Message> {
    let mut rest = s.output().to_vec();
    s.sent(usize::MAX);
    let mut all = Vec::new();
    while let Some(len) = frame_len(&rest).unwrap() {
        let tail = rest.split_off(len);
        all.push(decode(&rest, DecodeOptions::default()).unwrap());
        rest = tail;
    }
    assert!(rest.is_empty());
    all
}

fn tell(s: &mut Session, body: Body) -> Vec<Message> {
    let version = s.version().unwrap();
    s.receive(&encode(&Message::new(version, 77, body), DecodeOptions::default()).unwrap(), START);
    s.poll(START);
    heard(s)
}

/// The one answer to a message.
fn ask(s: &mut Session, body: Body) -> Body {
    let mut all = tell(s, body);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].xid, 77);
    all.remove(0).body
}

fn error(body: &Body) -> OfError {
    match body {
        Body::Error(ErrorMsg { error: ErrorCode::Known(e), .. }) => *e,
        other => panic!("{other:?} is no error"),
    }
}

fn add_flow(n: u16) -> FlowMod {
    let mut m = Match::any();
    m.set_in_port(OfPort(n.into()));
    let mut flow = FlowMod::new(FlowModCommand::Add, m, Instructions::apply(vec![Action::output(OfPort(2))]));
    flow.table = Some(TableId(0));
    flow.new_cookie = Some(Cookie(n.into()));
    flow
}

fn all_flows() -> MultipartRequest {
    MultipartRequest::Flow(FlowStatsRequest {
        matching: Match::any(),
        table: TableId::ALL,
        out_port: OfPort::ANY,
        out_group: GroupId::ANY,
        cookie: CookieFilter::default(),
    })
}

#[test]
fn hellos_agree_on_the_latest_common_version() {
    let bridge = bridge();
    let two = Settings { versions: Versions::of(&[Version::V1_0, Version::V1_3]), ..settings(ConnectionKind::Service) };
    let mut s = Session::new(bridge.clone(), two, Arc::default(), START);
    // Versions 1.0 and 1.3, which needs a bitmap.
    assert_eq!(s.output(), [4, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0b1_0010]);
    // A peer of the future, in two pieces.
    s.receive(&[9, 0, 0, 8], START);
    assert_eq!(s.version(), None);
    s.receive(&[0, 0, 0, 1], START);
    assert_eq!(s.version(), Some(Version::V1_3));
}

#[test]
fn no_common_version_is_refused_with_a_text() {
    let only = Settings { versions: Versions::of(&[Version::V1_3]), ..settings(ConnectionKind::Service) };
    let mut s = Session::new(bridge(), only, Arc::default(), START);
    s.sent(usize::MAX);
    s.receive(&[1, 0, 0, 8, 0, 0, 0, 1, 1, 2, 0, 8, 0, 0, 0, 2], START);
    assert!(matches!(s.closed(), Some(Closed::Version { .. })));
    assert!(!s.wants_input());
    let all = heard(&mut s);
    let [Message { version: Version::V1_0, body, .. }] = &all[..] else { panic!("{all:?}") };
    assert_eq!(error(body), OfError::OFPHFC_INCOMPATIBLE);
    let Body::Error(e) = body else { unreachable!() };
    assert!(String::from_utf8_lossy(&e.data).contains("0x04"));
}

#[test]
fn what_is_no_openflow_ends_the_connection() {
    let mut s = Session::new(bridge(), settings(ConnectionKind::Service), Arc::default(), START);
    s.receive(b"GET / HTTP/1.1\r\n\r\n", START);
    s.receive(&[0; 100_000], START);
    assert!(s.closed().is_some());
    let mut s = session(&bridge(), ConnectionKind::Service, Version::V1_0);
    s.receive(&[1, 2, 0, 3, 0, 0, 0, 0], START);
    assert!(matches!(s.closed(), Some(Closed::Frame(_))));
}

#[test]
fn requests_are_answered_in_every_version() {
    let bridge = bridge();
    let port = add_port(&bridge, "p1");
    for version in Version::ALL {
        let s = &mut session(&bridge, ConnectionKind::Service, version);
        assert_eq!(ask(s, Body::EchoRequest(vec![1, 2, 3])), Body::EchoReply(vec![1, 2, 3]));
        let Body::FeaturesReply(f) = ask(s, Body::FeaturesRequest) else { panic!() };
        assert_eq!((f.datapath_id, f.n_tables), (0x1234, 254));
        assert_eq!(f.ports.len(), usize::from(version < Version::V1_3));
        assert_eq!(ask(s, Body::BarrierRequest), Body::BarrierReply);
        for (request, n) in [(MultipartRequest::Table, 254), (MultipartRequest::PortDesc(OfPort::ANY), 1)] {
            let Body::MultipartReply { reply, .. } = ask(s, Body::MultipartRequest { more: false, request }) else {
                panic!()
            };
            match reply {
                MultipartReply::Table(t) => assert_eq!(t.len(), n),
                MultipartReply::PortDesc(p) => assert_eq!((p.len(), p[0].port), (n, port)),
                other => panic!("{other:?}"),
            }
        }
        // Of a port that is not there, there is nothing to tell, as in OVS.
        let absent = Body::MultipartRequest { more: false, request: MultipartRequest::Port(OfPort(99)) };
        let Body::MultipartReply { reply: MultipartReply::Port(stats), .. } = ask(s, absent) else { panic!() };
        assert_eq!(stats, []);
    }
}

#[test]
fn every_table_tells_its_features() {
    let s = &mut session(&bridge(), ConnectionKind::Service, Version::V1_3);
    let request = MultipartRequest::TableFeatures(Vec::new());
    let mut tables = Vec::new();
    let mut all = tell(s, Body::MultipartRequest { more: false, request });
    while s.has_work() {
        s.poll(START);
        all.extend(heard(s));
    }
    for (i, m) in all.iter().enumerate() {
        let Body::MultipartReply { more, reply: MultipartReply::TableFeatures(t) } = &m.body else { panic!() };
        assert_eq!(*more, i + 1 < all.len());
        tables.extend(t.iter().map(|t| t.table.0));
    }
    // A message has room for more, but to make all of it at once holds others up.
    assert!(all.len() > 30);
    assert_eq!(tables, (0..254).collect::<Vec<_>>());
}

/// A clock that goes on whenever it is looked at.
struct TickingClock(AtomicU64);

impl Clock for TickingClock {
    fn now(&self) -> Time {
        Time(self.0.fetch_add(100_000, Ordering::Relaxed))
    }
}

#[test]
fn messages_that_take_long_held_others_up_as_often_as_short_ones() {
    let switch = Switch::new(SwitchSettings::default(), Arc::new(TickingClock(AtomicU64::new(1))));
    let bridge = switch.add_bridge(BridgeConfig::new("br0", 0x1234)).unwrap();
    let s = &mut session(&bridge, ConnectionKind::Service, Version::V1_3);
    let ask =
        encode(&Message::new(Version::V1_3, 77, Body::EchoRequest(Vec::new())), DecodeOptions::default()).unwrap();
    // Each look at the clock stands for a tenth of a millisecond.
    s.receive(&ask.repeat(MESSAGES), START);
    let mut turns = vec![heard(s).len()];
    while s.has_work() {
        s.poll(START);
        turns.push(heard(s).len());
    }
    assert!(turns.iter().all(|answers| (1..12).contains(answers)), "{turns:?}");
    assert_eq!(turns.iter().sum::<usize>(), MESSAGES);
}

#[test]
fn flows_come_and_go() {
    let bridge = bridge();
    for version in [Version::V1_0, Version::V1_3] {
        bridge.flush_flows();
        let s = &mut session(&bridge, ConnectionKind::Service, version);
        for n in 1..=3 {
            assert_eq!(tell(s, Body::FlowMod(Box::new(add_flow(n)))), []);
        }
        let Body::MultipartReply { reply: MultipartReply::Flow(flows), .. } =
            ask(s, Body::MultipartRequest { more: false, request: all_flows() })
        else {
            panic!()
        };
        // With the NORMAL flow of a standalone bridge.
        assert_eq!(flows.len(), 4);
        let mut with_buffer = add_flow(9);
        with_buffer.buffer_id = Some(5);
        let refused = tell(s, Body::FlowMod(Box::new(with_buffer)));
        assert_eq!(error(&refused[0].body), OfError::OFPBRC_BUFFER_UNKNOWN);
    }
}

#[test]
fn a_fault_is_answered_with_its_error_and_the_connection_goes_on() {
    let s = &mut session(&bridge(), ConnectionKind::Service, Version::V1_3);
    let mut wrong = vec![4, 99, 0, 100, 0, 0, 0, 5];
    wrong.resize(100, 7);
    s.receive(&wrong, START);
    let all = heard(s);
    assert_eq!(error(&all[0].body), OfError::OFPBRC_BAD_TYPE);
    let Body::Error(e) = &all[0].body else { unreachable!() };
    assert_eq!((all[0].xid, &e.data[..]), (5, &wrong[..]));
    // A message of another version.
    s.receive(&[1, 5, 0, 8, 0, 0, 0, 6], START);
    assert_eq!(error(&heard(s)[0].body), OfError::OFPBRC_BAD_VERSION);
    // One that only switches send.
    assert_eq!(error(&ask(s, Body::BarrierReply)), OfError::OFPBRC_BAD_TYPE);
    // Whatever is wrong with it: a role that there is not.
    let mut role = vec![4, 25, 0, 24, 0, 0, 0, 7];
    role.resize(24, 9);
    s.receive(&role, START);
    assert_eq!(error(&heard(s)[0].body), OfError::OFPBRC_BAD_TYPE);
    assert_eq!(ask(s, Body::BarrierRequest), Body::BarrierReply);
}

#[test]
fn an_idle_peer_is_probed_and_then_given_up() {
    let mut s = session(&bridge(), ConnectionKind::Controller, Version::V1_0);
    s.poll(at(4));
    assert_eq!(heard(&mut s), []);
    assert_eq!(s.next_timeout(), Some(at(5)));
    s.poll(at(5));
    s.poll(at(6));
    let probes = heard(&mut s);
    assert!(matches!(&probes[..], [Message { body: Body::EchoRequest(_), .. }]), "{probes:?}");
    // An answer saves it.
    s.receive(&[1, 3, 0, 8, 0, 0, 0, 2], at(7));
    s.poll(at(11));
    assert_eq!(s.closed(), None);
    assert_eq!(s.next_timeout(), Some(at(12)));
    s.poll(at(12));
    s.poll(at(17));
    assert_eq!(s.closed(), Some(Closed::Inactive));
}

#[test]
fn a_byte_now_and_then_is_no_sign_of_life() {
    let mut s = session(&bridge(), ConnectionKind::Controller, Version::V1_0);
    // An echo request of 100 bytes.
    s.receive(&[1, 2, 0, 100, 0, 0, 0, 1], at(1));
    for second in 2..10 {
        s.receive(&[0], at(second));
        s.poll(at(second));
        assert_eq!((s.closed(), s.messages()), (None, 1));
    }
    s.poll(at(10));
    assert_eq!(s.closed(), Some(Closed::Inactive));
}

fn packet_in(reason: PacketInReason) -> PacketInEvent {
    let mut metadata = Match::any();
    metadata.set_in_port(OfPort(3));
    let packet_in = PacketIn {
        format: PacketInFormat::Standard,
        buffer_id: None,
        total_len: 60,
        reason,
        table: TableId(0),
        cookie: Some(Cookie(7)),
        metadata,
        data: vec![0xaa; 60],
        userdata: Vec::new(),
        continuation: Vec::new(),
    };
    PacketInEvent { packet_in, max_len: None, controller_id: 0, explicit_miss: false, implicit_miss: false }
}

#[test]
fn a_service_connection_is_quiet_until_it_asks() {
    let bridge = bridge();
    let s = &mut session(&bridge, ConnectionKind::Service, Version::V1_0);
    add_port(&bridge, "p1");
    s.mailbox.packet_in(&packet_in(PacketInReason::Action));
    s.poll(START);
    assert_eq!(heard(s), []);
    let config =
        SwitchConfig { frag: Default::default(), invalid_ttl_to_controller: Some(false), miss_send_len: 65534 };
    assert_eq!(tell(s, Body::SetConfig(config)), []);
    assert_eq!(ask(s, Body::GetConfigRequest), Body::GetConfigReply(config));
    s.mailbox.packet_in(&packet_in(PacketInReason::Action));
    add_port(&bridge, "p2");
    s.poll(START);
    let all = heard(s);
    assert!(matches!(all[0].body, Body::PacketIn(_)) && matches!(all[1].body, Body::PortStatus(_)), "{all:?}");
    // In the format that it chooses.
    assert_eq!(tell(s, Body::SetPacketInFormat(PacketInFormat::Nxt2)), []);
    s.mailbox.packet_in(&packet_in(PacketInReason::Action));
    s.poll(START);
    let Body::PacketIn(p) = &heard(s)[0].body else { panic!() };
    assert_eq!((p.format, p.cookie, p.in_port()), (PacketInFormat::Nxt2, Some(Cookie(7)), OfPort(3)));
}

#[test]
fn controllers_get_what_their_version_and_settings_say() {
    let bridge = bridge();
    let mut new = session(&bridge, ConnectionKind::Controller, Version::V1_3);
    let mut old = session(&bridge, ConnectionKind::Controller, Version::V1_0);
    assert!(old.wants_misses() && !new.wants_misses());
    let mut got = |event: &PacketInEvent| {
        [&mut new, &mut old].map(|s| {
            s.mailbox.packet_in(event);
            s.poll(START);
            heard(s).len()
        })
    };
    assert_eq!(got(&packet_in(PacketInReason::Action)), [1, 1]);
    assert_eq!(got(&packet_in(PacketInReason::InvalidTtl)), [0, 0]);
    let miss = PacketInEvent { implicit_miss: true, ..packet_in(PacketInReason::NoMatch) };
    assert_eq!(got(&miss), [0, 1]);
    let explicit = PacketInEvent { explicit_miss: true, ..packet_in(PacketInReason::NoMatch) };
    let reasons = [&mut new, &mut old].map(|s| {
        s.mailbox.packet_in(&explicit);
        s.poll(START);
        heard(s).into_iter().find_map(|body| if let Body::PacketIn(p) = body.body { Some(p.reason) } else { None })
    });
    assert_eq!(reasons, [Some(PacketInReason::NoMatch), Some(PacketInReason::Action)]);
    let mut got = |event: &PacketInEvent| {
        [&mut new, &mut old].map(|s| {
            s.mailbox.packet_in(event);
            s.poll(START);
            heard(s).len()
        })
    };
    let for_another = PacketInEvent { controller_id: 5, ..packet_in(PacketInReason::Action) };
    assert_eq!(got(&for_another), [0, 0]);
    tell(&mut new, Body::SetControllerId(5));
    tell(&mut old, Body::SetAsync(AsyncChange::to(&AsyncConfig::default())));
    let mut got = |event: &PacketInEvent| {
        [&mut new, &mut old].map(|s| {
            s.mailbox.packet_in(event);
            s.poll(START);
            heard(s).len()
        })
    };
    assert_eq!(got(&for_another), [1, 0]);
}

#[test]
fn a_new_primary_makes_the_old_one_secondary() {
    let (bridge, roles) = (bridge(), Arc::new(Roles::default()));
    let mut a = session_with(&bridge, ConnectionKind::Controller, Version::V1_3, roles.clone());
    let mut b = session_with(&bridge, ConnectionKind::Controller, Version::V1_3, roles.clone());
    let request = |role, id| Body::RoleRequest(RoleMsg { role, generation_id: Some(id) });
    let reply = |role, id| Body::RoleReply(RoleMsg { role, generation_id: Some(id) });
    assert_eq!(ask(&mut a, request(Role::Primary, 5)), reply(Role::Primary, 5));
    assert_eq!(ask(&mut b, request(Role::Primary, 6)), reply(Role::Primary, 6));
    assert_eq!(a.role(), Role::Secondary);
    a.poll(START);
    let told = RoleStatus { role: Role::Secondary, reason: RoleReason::PrimaryRequest, generation_id: Some(6) };
    assert!(matches!(&heard(&mut a)[..], [Message { body: Body::RoleStatus(status), .. }] if *status == told));
    assert_eq!(ask(&mut a, request(Role::NoChange, 0)), reply(Role::Secondary, 6));
    assert_eq!(error(&ask(&mut a, request(Role::Primary, 5))), OfError::OFPRRFC_STALE);
    // A secondary reads, but does not write, and hears of ports only.
    let refused = tell(&mut a, Body::FlowMod(Box::new(add_flow(1))));
    assert_eq!(error(&refused[0].body), OfError::OFPBRC_IS_SECONDARY);
    assert_eq!(ask(&mut a, Body::BarrierRequest), Body::BarrierReply);
    add_port(&bridge, "p1");
    a.mailbox.packet_in(&packet_in(PacketInReason::Action));
    a.poll(START);
    let all = heard(&mut a);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all.iter().all(|message| matches!(message.body, Body::PortStatus(_))), "{all:?}");
    // When the primary leaves, the others stay what they are.
    drop(b);
    assert_eq!(a.role(), Role::Secondary);
}

#[test]
fn packet_ins_are_limited_for_each_kind_and_nothing_else_is() {
    let bridge = bridge();
    let limited = Settings {
        packet_in_limit: Some(PacketInLimit { rate: 10, burst: 2 }),
        ..settings(ConnectionKind::Controller)
    };
    let s = &mut Session::new(bridge.clone(), Settings { probe_interval: None, ..limited }, Arc::default(), START);
    s.receive(&[Version::V1_3.wire(), 0, 0, 8, 0, 0, 0, 9], START);
    s.sent(usize::MAX);
    assert_eq!(s.next_timeout(), None);
    for _ in 0..100 {
        s.mailbox.packet_in(&packet_in(PacketInReason::Action));
        s.mailbox.packet_in(&packet_in(PacketInReason::NoMatch));
    }
    add_port(&bridge, "p1");
    let kinds = |s: &mut Session, now| {
        s.poll(now);
        let kind = |m: Message| match m.body {
            Body::PacketIn(packet_in) => (packet_in.reason == PacketInReason::Action) as u32,
            Body::PortStatus(_) => 2,
            other => panic!("{other:?}"),
        };
        heard(s).into_iter().map(kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(s, START), [1, 0, 1, 0, 2, 2]);
    assert_eq!(s.dropped().packet_ins, 2 * (100 - 4));
    // Those that wait come when it is time, and not before, also not for a barrier.
    let due = s.next_timeout().unwrap();
    assert_eq!(due, START + Duration::from_millis(100));
    assert_eq!(ask(s, Body::BarrierRequest), Body::BarrierReply);
    assert_eq!(kinds(s, due), [1, 0]);
    assert_eq!(kinds(s, at(100)), [1, 0]);
    assert_eq!(s.next_timeout(), None);
}

/// A controller whose answers are not read yet would only have more to answer.
#[test]
fn packet_ins_that_are_held_wait_and_nothing_else_does() {
    let bridge = bridge();
    let s = &mut session(&bridge, ConnectionKind::Controller, Version::V1_3);
    s.hold_packet_ins(true);
    s.mailbox.packet_in(&packet_in(PacketInReason::Action));
    add_port(&bridge, "p1");
    s.poll(START);
    let told = heard(s);
    assert!(!told.is_empty() && told.iter().all(|m| matches!(m.body, Body::PortStatus(_))), "{told:?}");
    // It does not ask to be polled for what it may not send.
    assert!(s.next_timeout().is_none_or(|due| due > START));
    s.hold_packet_ins(false);
    s.poll(START);
    let told = heard(s);
    assert!(matches!(told[..], [Message { body: Body::PacketIn(_), .. }]), "{told:?}");
}

#[test]
fn flow_removed_comes_before_the_barrier_reply() {
    let bridge = bridge();
    let s = &mut session(&bridge, ConnectionKind::Controller, Version::V1_3);
    let mut flow = add_flow(1);
    flow.flags = openflow::FlowModFlags::SEND_FLOW_REM;
    assert_eq!(tell(s, Body::FlowMod(Box::new(flow))), []);
    let mut delete = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
    delete.table = None;
    let mut bytes = Vec::new();
    for body in [Body::FlowMod(Box::new(delete)), Body::BarrierRequest] {
        bytes.extend(encode(&Message::new(Version::V1_3, 1, body), s.options).unwrap());
    }
    s.receive(&bytes, START);
    let all = heard(s);
    assert!(matches!(all[0].body, Body::FlowRemoved(_)), "{all:?}");
    assert_eq!(all.last().unwrap().body, Body::BarrierReply);
}

/// Serves a bridge on a Unix socket and runs ovs-ofctl against it.
mod ovs_ofctl {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use super::*;

    fn serve(mut stream: UnixStream, bridge: &Bridge) {
        let mut s = Session::new(bridge.clone(), settings(ConnectionKind::Service), Arc::default(), START);
        let mut buffer = [0; 4096];
        loop {
            let n = stream.write(s.output()).unwrap_or(0);
            s.sent(n);
            s.poll(START);
            if !s.output().is_empty() {
                continue;
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(n) => s.receive(&buffer[..n], START),
            }
        }
    }

    #[test]
    fn is_served() {
        if Command::new("ovs-ofctl").arg("--version").output().is_err() {
            return;
        }
        let path = std::env::temp_dir().join(format!("weir-connection-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let bridge = bridge();
        add_port(&bridge, "p1");
        std::thread::spawn({
            let bridge = bridge.clone();
            move || {
                for stream in listener.incoming().flatten() {
                    let bridge = bridge.clone();
                    std::thread::spawn(move || serve(stream, &bridge));
                }
            }
        });
        let socket = format!("unix:{}", path.display());
        let run = |version: &str, args: &[&str]| {
            let mut command = Command::new("ovs-ofctl");
            command.args(["-O", version, "-t", "5", args[0], &socket]).args(&args[1..]);
            let out = command.output().unwrap();
            assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
            String::from_utf8(out.stdout).unwrap()
        };
        for version in ["OpenFlow10", "OpenFlow13"] {
            let shown = run(version, &["show"]);
            assert!(shown.contains("dpid:0000000000001234") && shown.contains("(p1)"), "{shown}");
            run(version, &["del-flows"]);
            run(version, &["add-flow", "table=3,priority=7,tcp,nw_src=10.0.0.0/8,tp_dst=80,actions=output:1"]);
            run(version, &["add-flow", "cookie=0x5,reg0=1/3,actions=set_field:5->reg1,NORMAL"]);
            let flows = run(version, &["dump-flows"]);
            assert!(flows.contains("cookie=0x5") && flows.contains("reg0=0x1/0x3"), "{flows}");
            run(version, &["mod-flows", "reg0=1/3,actions=set_field:6->reg1,NORMAL"]);
            let flows = run(version, &["dump-flows"]);
            assert!(
                flows.contains("table=3") && flows.contains("priority=7,tcp,nw_src=10.0.0.0/8,tp_dst=80"),
                "{flows}"
            );
            // OpenFlow 1.0 has no set-field: ovs-ofctl sends a load.
            let set = if version == "OpenFlow10" { "load:0x6->NXM_NX_REG1[]" } else { "set_field:0x6->reg1" };
            assert!(flows.contains(&format!("actions={set},NORMAL")), "{flows}");
            assert!(run(version, &["dump-aggregate"]).contains("flow_count=2"));
            assert!(run(version, &["dump-aggregate", "table=3"]).contains("flow_count=1"));
            run(version, &["del-flows", "table=3,priority=7,tcp,nw_src=10.0.0.0/8,tp_dst=80", "--strict"]);
            assert!(run(version, &["dump-aggregate"]).contains("flow_count=1"));
            assert!(run(version, &["dump-ports"]).contains("port"));
            assert!(run(version, &["dump-ports-desc"]).contains("p1"));
            run(version, &["dump-tables"]);
            run(version, &["dump-desc"]);
            run(version, &["queue-stats"]);
            run(version, &["get-frags"]);
            run(version, &["probe"]);
        }
        run("OpenFlow13", &["dump-table-features"]);
        run("OpenFlow13", &["dump-group-features"]);
        run("OpenFlow13", &["meter-features"]);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_barrier_waits_for_the_changes_of_its_own_connection() {
    let bridge = bridge();
    // As a datapath flow that depends on table 0 does.
    let counters = bridge.switch.forwarding.read().bridges.values().next().unwrap().tables[0].counters.clone();
    let add = |table: u8| {
        let mut change = FlowMod::new(FlowModCommand::Add, Match::any(), Instructions::apply(vec![]));
        change.table = Some(TableId(table));
        Body::FlowMod(Box::new(change))
    };
    let woken = Arc::new(AtomicU64::new(0));
    let connect = || {
        let (s, woken) = (session(&bridge, ConnectionKind::Service, Version::V1_3), woken.clone());
        s.set_waker(Arc::new(move || {
            woken.fetch_add(1, Ordering::Relaxed);
        }));
        s
    };
    let (mut a, mut b) = (connect(), connect());
    bridge.switch.set_revalidator(true);
    assert_eq!(tell(&mut a, add(0)), []);
    assert_eq!(tell(&mut a, Body::BarrierRequest), []);
    assert!(!a.wants_input() && !a.has_work());
    assert_eq!(tell(&mut a, Body::EchoRequest(vec![1])), [], "nothing is answered before the barrier");
    assert_eq!(tell(&mut b, add(1)), []);
    assert_eq!(ask(&mut b, Body::BarrierRequest), Body::BarrierReply, "no flow depends on table 1");
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    bridge.switch.run(at(1));
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    a.poll(START);
    let answers: Vec<_> = heard(&mut a).into_iter().map(|message| message.body).collect();
    assert_eq!(answers, [Body::BarrierReply, Body::EchoReply(vec![1])]);
    assert_eq!(ask(&mut a, Body::BarrierRequest), Body::BarrierReply);
    drop(counters);
}

#[test]
fn packets_that_no_worker_takes_are_waited_for() {
    let bed = crate::reference::tests::Bed::new(2);
    let mut s = session(&bed.bridge, ConnectionKind::Service, Version::V1_3);
    let out = PacketOut {
        buffer_id: None,
        in_port: OfPort::CONTROLLER,
        metadata: Match::any(),
        actions: vec![Action::output(OfPort(1))],
        data: vec![0; 60_000],
    };
    let message = encode(&Message::new(Version::V1_3, 1, Body::PacketOut(out)), s.options).unwrap();
    // What the peer sends at once is looked at later.
    let sent = 1000;
    s.receive(&message.repeat(sent), START);
    assert!(!s.wants_input() && s.input.len() > message.len() * sent / 2);
    let mut polls = 0;
    while !s.input.is_empty() {
        assert!(s.has_work() || s.next_timeout().unwrap() <= START, "it looks again soon");
        bed.poll();
        s.poll(START);
        polls += 1;
    }
    bed.poll();
    assert!(s.wants_input() && (3..20).contains(&polls), "{polls}");
    assert_eq!(bed.datapath.stats().workers[0].injected, sent as u64);
}

#[test]
fn what_a_peer_sends_at_once_is_handled_in_steps() {
    let bridge = bridge();
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_3);
    let before = bridge.rules().len();
    let flow_mod = |n| encode(&Message::new(Version::V1_3, n, Body::FlowMod(Box::new(add_flow(n as u16)))), s.options);
    let sent: Vec<u8> = (0..1000).flat_map(|n| flow_mod(n).unwrap()).collect();
    s.receive(&sent[..sent.len() - 1], START);
    assert!(s.has_work(), "all of it at once");
    let mut done = before;
    while s.has_work() {
        assert!(!s.wants_input(), "no more is read before");
        let now = bridge.rules().len();
        assert!(now > done && now - done <= MESSAGES, "{done}, then {now}");
        done = now;
        s.poll(START);
    }
    assert!(s.wants_input(), "the last one has not come whole");
    assert_eq!(bridge.rules().len(), before + 999);
    s.receive(&sent[sent.len() - 1..], START);
    assert!(!s.has_work() && s.wants_input());
}

/// Makes connections of UDP, of which every other one is in zone 1.
fn connect(bridge: &Bridge, number: u16) {
    use conntrack::table::slot::{Contents, Protocol};
    use conntrack::{Tuple, protocol::simple::Seen, timeout::Timeout};
    for port in 1..=number {
        let orig = Tuple::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (port, 53), port % 2).unwrap();
        let new = Contents::new(orig, Protocol::Simple(Seen::First));
        let table = &bridge.datapath().unwrap();
        table.conntrack().tracker.table.insert(&new, Timeout::UdpFirst, START).unwrap();
    }
}

#[test]
fn connections_end_in_steps_between_which_others_are_served() {
    let bridge = bridge();
    let left = || bridge.datapath().unwrap().conntrack().tracker.table.limits.connections();
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_3);
    connect(&bridge, 40_000);
    let end_zone = encode(&Message::new(Version::V1_3, 5, Body::CtFlushZone(1)), s.options).unwrap();
    let barrier = encode(&Message::new(Version::V1_3, 6, Body::BarrierRequest), s.options).unwrap();
    s.receive(&[end_zone, barrier].concat(), START);
    let mut polls = 0;
    while s.has_work() {
        assert!(left() > 20_000 && s.output().is_empty(), "it is not done, and the barrier waits");
        s.poll(START);
        polls += 1;
    }
    assert!(polls > 2, "{polls}");
    assert_eq!(left(), 20_000);
    assert_eq!(heard(&mut s).into_iter().map(|message| message.body).collect::<Vec<_>>(), [Body::BarrierReply]);
    // One that is named whole ends at once.
    let [src, dst] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|address| Some(address.into()));
    let orig = CtTuple { src, dst, src_port: 2, dst_port: 53, ..CtTuple::default() };
    let one = CtFlush { ip_proto: 17, orig, ..CtFlush::default() };
    for _ in 0..2 {
        assert_eq!(tell(&mut s, Body::CtFlush(Box::new(one))), []);
        assert_eq!(left(), 19_999);
    }
    assert_eq!(tell(&mut s, Body::CtFlush(Box::default())), []);
    while s.has_work() {
        s.poll(START);
    }
    assert_eq!(left(), 0);
}

#[test]
fn a_delete_goes_on_in_pieces_after_the_peer_has_gone() {
    let bridge = bridge();
    let mut s = session(&bridge, ConnectionKind::Controller, Version::V1_3);
    const FLOWS: u128 = 20_000;
    for n in 0..FLOWS {
        let mut matching = Match::any();
        matching.set(packet::Field::Reg0, n);
        bridge.flow_mod(&FlowMod::new(FlowModCommand::Add, matching, Instructions::default())).unwrap();
    }
    let everything = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
    // A turn removes a part.
    s.receive(
        &encode(&Message::new(Version::V1_3, 1, Body::FlowMod(everything.into())), DecodeOptions::default()).unwrap(),
        START,
    );
    let left = || bridge.table_stats().iter().map(|table| u64::from(table.active_count)).sum::<u64>();
    let mut last = left();
    let mut turns = 0;
    while s.change_more() {
        assert!(last - left() <= 1024, "{last} flows, then {}", left());
        last = left();
        turns += 1;
    }
    assert!(turns > 10, "{turns} turns");
    assert_eq!(left(), 0);
    drop(s);
}
