//! What connections are told unasked, beside packets.

use openflow::group::{GroupCommand, GroupSpec, bucket_id};
use openflow::meter::{MeterCommand, MeterFlags};
use openflow::table::Vacancy;
use openflow::{
    GroupMod, MeterConfig, MeterMod, PortConfig, PortFeatures, PortMod, PortReason, PortState, TableMod, TableReason,
};

use super::*;
use crate::table::TableSettings;

fn group_mod(id: u32) -> GroupMod {
    GroupMod {
        command: GroupCommand::Add,
        group: GroupId(id),
        command_bucket: bucket_id::ALL,
        spec: GroupSpec { kind: openflow::GroupType::All, buckets: Vec::new(), selection: Default::default() },
    }
}

/// What the session says unasked.
fn told(s: &mut Session) -> Vec<Body> {
    s.poll(START);
    heard(s).into_iter().map(|message| message.body).collect()
}

#[test]
fn changes_of_groups_and_meters_are_forwarded_to_those_who_ask() {
    let bridge = bridge();
    let mut sender = session(&bridge, ConnectionKind::Controller, Version::V1_4);
    let mut old = session(&bridge, ConnectionKind::Service, Version::V1_0);
    let mut new = session(&bridge, ConnectionKind::Service, Version::V1_5);
    let mut other = session(&bridge, ConnectionKind::Controller, Version::V1_4);
    let wanted = AsyncChange { requestforward: [Some(3), None], ..AsyncChange::default() };
    assert_eq!(tell(&mut sender, Body::SetAsync(wanted)), []);
    assert_eq!(tell(&mut old, Body::SetAsync2(wanted)), []);
    assert_eq!(tell(&mut new, Body::SetAsync(wanted)), []);
    assert_eq!(tell(&mut sender, Body::GroupMod(Box::new(group_mod(1)))), []);
    assert_eq!(tell(&mut sender, Body::GroupMod(Box::new(group_mod(1)))).len(), 1, "what is refused is not forwarded");
    let config = MeterConfig { meter: 7, flags: MeterFlags::KBPS, bands: Vec::new() };
    let meter_mod = MeterMod { command: MeterCommand::Add, config };
    assert_eq!(tell(&mut sender, Body::MeterMod(meter_mod.clone())), []);
    let group = Body::RequestForward(RequestForward::Group(Box::new(group_mod(1))));
    let meter = Body::RequestForward(RequestForward::Meter(meter_mod));
    assert_eq!(told(&mut new), [group.clone(), meter]);
    assert_eq!(told(&mut old), [group], "OpenFlow 1.0 has no meters");
    assert_eq!((told(&mut sender), told(&mut other)), (vec![], vec![]));
}

#[test]
fn forwarded_requests_take_bounded_memory() {
    let bridge = bridge();
    let s = &mut session(&bridge, ConnectionKind::Controller, Version::V1_4);
    let wanted = AsyncChange { requestforward: [Some(3), None], ..AsyncChange::default() };
    assert_eq!(tell(s, Body::SetAsync(wanted)), []);
    let before = bridge.event_memory().used();
    let request = ForwardedRequest { reason: 0, bytes: vec![0; 60_000].into() };
    (0..1000).for_each(|_| s.mailbox.request_forward(&request));
    let room = super::super::mailbox::MAX_FORWARDED / 60_000;
    assert_eq!(s.dropped().others, 1000 - room as u64);
    let held = bridge.event_memory().used() - before;
    assert!((room * 60_000..room * 61_000).contains(&held), "{held}");
    s.poll(START);
    assert_eq!(bridge.event_memory().used(), before);
}

#[test]
fn a_table_that_fills_is_told_of_once_and_again_when_it_has_room() {
    let bridge = bridge();
    let settings = TableSettings { max_flows: Some(10), ..TableSettings::default() };
    bridge.set_config(BridgeConfig { tables: [(TableId(1), settings)].into(), ..bridge.config() });
    let s = &mut session(&bridge, ConnectionKind::Controller, Version::V1_4);
    let mut old = session(&bridge, ConnectionKind::Controller, Version::V1_3);
    let wanted = AsyncChange { table_status: [Some(0x18), None], ..AsyncChange::default() };
    assert_eq!(tell(s, Body::SetAsync(wanted)), []);
    assert_eq!(tell(&mut old, Body::SetAsync2(wanted)), []);
    let watch = |vacancy| TableMod {
        vacancy: Some(vacancy),
        vacancy_at: Some(Vacancy { down: 20, up: 80, now: 0 }),
        eviction: Some(false),
        ..TableMod::new(TableId(1))
    };
    assert_eq!(tell(s, Body::TableMod(watch(true))), []);
    let change = |s: &mut Session, n, command| {
        let bodies = tell(s, Body::FlowMod(Box::new(FlowMod { command, table: Some(TableId(1)), ..add_flow(n) })));
        let said = |message: Message| match message.body {
            Body::TableStatus(status) => (n, status.reason, status.desc.vacancy.map(|vacancy| vacancy.now)),
            other => panic!("{other:?}"),
        };
        bodies.into_iter().map(said).collect::<Vec<_>>()
    };
    let fill = |s: &mut Session| (1..=10).flat_map(|n| change(s, n, FlowModCommand::Add)).collect::<Vec<_>>();
    let empty = |s: &mut Session| (1..=10).flat_map(|n| change(s, n, FlowModCommand::Delete)).collect::<Vec<_>>();
    assert_eq!(fill(s), [(9, TableReason::VacancyDown, Some(10))]);
    assert_eq!(empty(s), [(9, TableReason::VacancyUp, Some(90))]);
    // From less than the upper threshold on, what comes first is that there is more.
    assert_eq!(tell(s, Body::TableMod(watch(false))), []);
    assert_eq!(fill(s), []);
    assert_eq!(tell(s, Body::TableMod(watch(true))), []);
    assert_eq!(empty(s), [(9, TableReason::VacancyUp, Some(90))]);
    assert!(told(&mut old).is_empty(), "OpenFlow 1.3 has no such message");
}

#[test]
fn a_port_comes_up_in_steps_of_which_old_versions_see_what_they_know() {
    let bridge = bridge();
    let mut sessions = [Version::V1_0, Version::V1_4, Version::V1_5]
        .map(|version| session(&bridge, ConnectionKind::Controller, version));
    let said = |s: &mut Session| {
        let status = |body| match body {
            Body::PortStatus(status) => (status.reason, status.desc.config, status.desc.state),
            other => panic!("{other:?}"),
        };
        told(s).into_iter().map(status).collect::<Vec<_>>()
    };
    let port = add_port(&bridge, "p1");
    let added = (PortReason::Add, PortConfig::empty(), PortState::empty());
    let live = (PortReason::Modify, PortConfig::empty(), PortState::LIVE);
    assert_eq!(sessions.each_mut().map(said), [vec![added], vec![added, live], vec![added, live]]);
    bridge.port_changed(port, PortReason::Modify);
    assert_eq!(sessions.each_mut().map(said), [vec![], vec![], vec![]], "it is as they know it");
    // Who changes it knows, before OpenFlow 1.5.
    let hw_addr = bridge.port_descs(port)[0].hw_addr;
    let change = |config| {
        Body::PortMod(PortMod { port, hw_addr, config, mask: PortConfig::NO_FWD, advertise: PortFeatures::empty() })
    };
    let changed = |config| (PortReason::Modify, config, PortState::LIVE);
    assert_eq!(tell(&mut sessions[1], change(PortConfig::NO_FWD)), []);
    assert_eq!(said(&mut sessions[2]), [changed(PortConfig::NO_FWD)]);
    let bodies = tell(&mut sessions[2], change(PortConfig::empty()));
    assert!(matches!(&bodies[..], [Message { body: Body::PortStatus(_), .. }]), "{bodies:?}");
    assert_eq!(said(&mut sessions[1]), [changed(PortConfig::empty())]);
}

#[test]
fn an_idle_bundle_is_discarded_and_its_owner_told() {
    let s = &mut session(&bridge(), ConnectionKind::Service, Version::V1_4);
    let control = |kind| Body::BundleControl(BundleControl { bundle: 1, kind, flags: BundleFlags::ATOMIC });
    let send = |s: &mut Session, body, now| {
        s.receive(&encode(&Message::new(Version::V1_4, 77, body), DecodeOptions::default()).unwrap(), now);
        heard(s)
    };
    assert_eq!(send(s, control(BundleControlKind::OpenRequest), at(0)).len(), 1);
    assert_eq!(send(s, control(BundleControlKind::CloseRequest), at(3)).len(), 1);
    assert_eq!(send(s, Body::EchoReply(Vec::new()), at(12)).len(), 0);
    assert_eq!(s.next_timeout(), Some(at(13)), "ten seconds after its last use, before the next probe");
    s.poll(at(12));
    assert_eq!(heard(s), []);
    s.poll(at(13));
    let all = heard(s);
    assert_eq!((all.len(), error(&all[0].body), all[0].xid), (1, OfError::OFPBFC_TIMEOUT, 77));
    let Body::Error(ErrorMsg { data, .. }) = &all[0].body else { unreachable!() };
    assert_eq!(decode(data, DecodeOptions::default()).unwrap().body, control(BundleControlKind::OpenRequest));
    let late = send(s, control(BundleControlKind::CommitRequest), at(13));
    assert_eq!(error(&late[0].body), OfError::OFPBFC_BAD_ID);
}

#[test]
fn an_error_about_a_wrong_version_is_in_that_version() {
    let s = &mut session(&bridge(), ConnectionKind::Service, Version::V1_0);
    s.receive(&[2, 5, 0, 8, 0, 0, 0, 9, 99, 5, 0, 8, 0, 0, 0, 9], START);
    let all: Vec<_> = heard(s).into_iter().map(|message| (message.version, error(&message.body))).collect();
    assert_eq!(all, [(Version::V1_1, OfError::OFPBRC_BAD_VERSION), (Version::V1_0, OfError::OFPBRC_BAD_VERSION)]);
}

#[test]
fn reasons_of_later_versions_go_with_an_actions() {
    for version in [Version::V1_3, Version::V1_4] {
        let s = &mut session(&bridge(), ConnectionKind::Controller, version);
        let wanted =
            AsyncChange { packet_in: [Some(1 << PacketInReason::Action as u32), None], ..AsyncChange::default() };
        let set = if version == Version::V1_3 { Body::SetAsync2(wanted) } else { Body::SetAsync(wanted) };
        assert_eq!(tell(s, set), []);
        s.mailbox.packet_in(&packet_in(PacketInReason::PacketOut));
        s.mailbox.packet_in(&packet_in(PacketInReason::NoMatch));
        assert_eq!(told(s).len(), usize::from(version == Version::V1_3));
        let Body::GetAsyncReply(config) = ask(s, Body::GetAsyncRequest) else { panic!() };
        assert_eq!(config.packet_in[0], 1 << PacketInReason::Action as u32, "{version}");
    }
}

/// What waited when a controller says that it wants no more packets comes before the answer, and none behind it.
#[test]
fn nothing_of_before_comes_behind_a_change_of_what_is_wanted() {
    let bridge = bridge();
    let nothing = AsyncChange { packet_in: [Some(0), Some(0)], ..AsyncChange::default() };
    let secondary = Body::RoleRequest(RoleMsg { role: Role::Secondary, generation_id: Some(1) });
    for change in [secondary, Body::SetAsync(nothing), Body::SetControllerId(7)] {
        let s = &mut session(&bridge, ConnectionKind::Controller, Version::V1_3);
        s.hold_packet_ins(true);
        s.mailbox.packet_in(&packet_in(PacketInReason::Action));
        s.mailbox.packet_in(&packet_in(PacketInReason::NoMatch));
        let told = tell(s, change.clone());
        let are_packets: Vec<_> = told.iter().map(|m| matches!(m.body, Body::PacketIn(_))).collect();
        assert!(are_packets.starts_with(&[true, true]) && !are_packets[2..].contains(&true), "{change:?}: {told:?}");
        s.mailbox.packet_in(&packet_in(PacketInReason::Action));
        s.hold_packet_ins(false);
        let told = tell(s, Body::EchoRequest(Vec::new()));
        assert!(matches!(told[..], [Message { body: Body::EchoReply(_), .. }]), "{change:?}: {told:?}");
    }
}

/// Versions hear of what they have words for.
#[test]
fn a_change_that_a_version_cannot_tell_is_not_told() {
    let bridge = bridge();
    let port = add_port(&bridge, "p1");
    let sessions = [Version::V1_0, Version::V1_1, Version::V1_3, Version::V1_4, Version::V1_5];
    let mut sessions = sessions.map(|version| session(&bridge, ConnectionKind::Controller, version));
    let hw_addr = bridge.port_descs(port)[0].hw_addr;
    for (bit, only_v1_0) in [
        (PortConfig::NO_FLOOD, true),
        (PortConfig::NO_STP, true),
        (PortConfig::NO_RECV_STP, true),
        (PortConfig::NO_PACKET_IN, false),
        (PortConfig::NO_FWD, false),
    ] {
        let change = PortMod { port, hw_addr, config: bit, mask: bit, advertise: PortFeatures::default() };
        bridge.port_mod(&change).unwrap();
        for s in &mut sessions {
            s.poll(START);
            let told = heard(s);
            let wants = usize::from(!only_v1_0 || s.version() == Some(Version::V1_0));
            assert_eq!(told.len(), wants, "{bit:?} {:?}: {told:?}", s.version());
        }
    }
}
