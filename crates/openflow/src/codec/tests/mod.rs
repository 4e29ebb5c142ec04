//! Round trips of everything that can be said, messages of another implementation, and faults.

mod arbitrary;
mod faults;
mod vectors;

use proptest::prelude::*;

use super::{Body, DecodeOptions, Encoded, FrameError, Message, Version, decode, encode, encode_all, frame_len, fuzz};

fn round_trip(message: &Message) {
    let options = DecodeOptions { flow_mod_table_id: message.version == Version::V1_0 };
    let bytes = encode(message, options).expect("fits");
    let back = decode(&bytes, options).unwrap_or_else(|e| panic!("{e}: {message:#?} became {bytes:02x?}"));
    if &back == message {
        return;
    }
    // Messages are long: what matters is where the difference begins.
    let (was, is) = (format!("{message:?}"), format!("{back:?}"));
    let same = was.bytes().zip(is.bytes()).take_while(|(a, b)| a == b).count();
    let near = |text: &str| text.chars().skip(same.saturating_sub(150)).take(300).collect::<String>();
    panic!("{:?}: ...{}...\nbecame ...{}...", message.version, near(&was), near(&is));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn flow_mods_survive(m in arbitrary::flow_mod()) {
        round_trip(&m);
    }

    #[test]
    fn packets_survive(m in arbitrary::packet()) {
        round_trip(&m);
    }

    #[test]
    fn small_messages_survive(m in arbitrary::small()) {
        round_trip(&m);
    }

    #[test]
    fn requests_survive(m in arbitrary::request()) {
        round_trip(&m);
    }

    #[test]
    fn replies_survive(m in arbitrary::reply()) {
        round_trip(&m);
    }

    #[test]
    fn configuration_survives(m in arbitrary::group()) {
        round_trip(&m);
    }

    #[test]
    fn flow_monitors_survive(m in arbitrary::monitor()) {
        round_trip(&m);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 8..300), v in 1u8..7, kind in 0u8..36) {
        // A header that lets the body be looked at.
        let len = bytes.len() as u16;
        bytes[0] = v;
        bytes[1] = kind;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        fuzz(&bytes);
    }

    #[test]
    fn damaged_messages_do_not_panic(m in arbitrary::any_message(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = encode(&m, DecodeOptions::default()).expect("fits");
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fuzz(&bytes);
    }
}

#[test]
fn a_long_reply_is_cut_with_more_flags() {
    let port = |n| crate::port::PortDesc {
        port: crate::OfPort(n),
        hw_addr: Default::default(),
        name: format!("p{n}"),
        config: Default::default(),
        state: Default::default(),
        current: Default::default(),
        advertised: Default::default(),
        supported: Default::default(),
        peer: Default::default(),
        current_speed: 0,
        max_speed: 0,
    };
    let ports: Vec<_> = (1..3000).map(port).collect();
    let reply = crate::MultipartReply::PortDesc(ports.clone());
    let message = Message::new(Version::V1_3, 7, Body::MultipartReply { more: false, reply });
    assert!(encode(&message, DecodeOptions::default()).is_err());
    let Encoded { messages: parts, left_out } = encode_all(&message, DecodeOptions::default()).unwrap();
    assert_eq!((parts.len(), left_out), (3, 0));
    let mut all = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let m = decode(part, DecodeOptions::default()).unwrap();
        assert_eq!(m.xid, 7);
        let Body::MultipartReply { more, reply: crate::MultipartReply::PortDesc(mut ports) } = m.body else { panic!() };
        assert_eq!(more, i < 2);
        all.append(&mut ports);
    }
    assert_eq!(all, ports);
}

#[test]
fn an_empty_reply_is_one_message() {
    let reply = crate::MultipartReply::Flow(Vec::new());
    let message = Message::new(Version::V1_0, 1, Body::MultipartReply { more: false, reply });
    let encoded = encode_all(&message, DecodeOptions::default()).unwrap();
    assert_eq!(encoded.messages, [vec![1, 17, 0, 12, 0, 0, 0, 1, 0, 1, 0, 0]]);
}

/// A later version can add a flow for which an earlier one has no room. The others are sent, and it is counted.
#[test]
fn an_entry_without_room_is_counted() {
    let flow = |actions| crate::FlowStats {
        matching: crate::Match::any(),
        cookie: crate::Cookie(0),
        table: crate::TableId(0),
        priority: 1,
        idle_timeout: 0,
        hard_timeout: 0,
        duration: std::time::Duration::ZERO,
        idle_age: None,
        hard_age: None,
        packet_count: 0,
        byte_count: 0,
        flags: crate::FlowModFlags::empty(),
        importance: 0,
        instructions: crate::Instructions::apply(vec![crate::Action::DecTtl; actions]),
    };
    let reply = crate::MultipartReply::Flow(vec![flow(1), flow(5000), flow(2)]);
    let message = Message::new(Version::V1_0, 7, Body::MultipartReply { more: false, reply });
    let Encoded { messages, left_out } = encode_all(&message, DecodeOptions::default()).unwrap();
    assert_eq!((messages.len(), left_out), (1, 1));
    let decoded = decode(&messages[0], DecodeOptions::default()).unwrap();
    let Body::MultipartReply { reply: crate::MultipartReply::Flow(flows), .. } = decoded.body else { panic!() };
    assert_eq!(flows.len(), 2);
}

#[test]
fn messages_are_cut_out_of_a_stream() {
    assert_eq!(frame_len(&[1, 0, 0]), Ok(None));
    assert_eq!(frame_len(&[1, 0, 0, 8]), Ok(Some(8)));
    assert_eq!(frame_len(&[1, 0, 0xff, 0xff, 0]), Ok(Some(65535)));
    assert_eq!(frame_len(&[1, 0, 0, 7, 0]), Err(FrameError(7)));
}

/// A flow that matches IPv4, this protocol and TCI and has these actions, as a version writes it.
fn written(version: Version, proto: u8, tci: u16, actions: Vec<crate::Action>) -> Vec<u8> {
    use ::packet::Field;
    let mut matching = crate::Match::any();
    matching.set(Field::DlType, 0x0800);
    matching.set(Field::NwProto, proto.into());
    matching.set_masked(Field::VlanTci, tci.into(), 0x1000);
    let instructions = crate::Instructions::apply(actions);
    let change = crate::FlowMod::new(crate::FlowModCommand::Add, matching, instructions);
    encode(&Message::new(version, 1, Body::FlowMod(Box::new(change))), DecodeOptions::default()).unwrap()
}

/// The actions of such a flow when it is read again.
fn rewritten(version: Version, proto: u8, tci: u16, actions: Vec<crate::Action>) -> Vec<crate::Action> {
    match decode(&written(version, proto, tci, actions), DecodeOptions::default()).unwrap().body {
        Body::FlowMod(change) => change.instructions.apply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_match_says_whose_port_is_set() {
    use crate::Action;
    use ::packet::Field;
    let set = || vec![Action::SetL4SrcPort(7)];
    assert_eq!(rewritten(Version::V1_3, 17, 0, set()), [Action::set_field(Field::UdpSrc, 7)]);
    assert_eq!(rewritten(Version::V1_2, 6, 0, set()), [Action::set_field(Field::TcpSrc, 7)]);
    // No field of 1.2 says it where the packet may have no such port; the action of 1.1 does.
    assert!(written(Version::V1_2, 1, 0, set()).ends_with(&[0, 9, 0, 8, 0, 7, 0, 0]));
    assert_eq!(rewritten(Version::V1_1, 17, 0, set()), set());
}

#[test]
fn a_tag_is_pushed_where_none_is_matched() {
    use crate::Action;
    use ::packet::Field;
    let set = || vec![Action::SetVlanVid { vid: 5, push: true }, Action::SetVlanPcp { pcp: 1, push: true }];
    let vid = Action::set_field(Field::VlanVid, 0x1005);
    let pcp = Action::set_field(Field::VlanPcp, 1);
    assert_eq!(rewritten(Version::V1_3, 6, 0, set()), [Action::PushVlan(0x8100), vid.clone(), pcp.clone()]);
    assert_eq!(rewritten(Version::V1_3, 6, 0x1000, set()), [vid, pcp]);
    assert_eq!(rewritten(Version::V1_0, 6, 0, set()), set());
}

#[test]
fn a_field_is_set_in_the_way_of_each_version() {
    use crate::{Action, Subfield};
    use ::packet::Field;
    let load = |field, ofs, n_bits, value| Action::RegLoad { dst: Subfield::new(field, ofs, n_bits).unwrap(), value };
    let label = || vec![Action::set_field(Field::MplsLabel, 10)];
    assert_eq!(rewritten(Version::V1_0, 6, 0, label()), [load(Field::MplsLabel, 0, 20, 10)]);
    assert_eq!(rewritten(Version::V1_2, 6, 0, label()), label());
    let parts = || vec![Action::SetField { field: Field::Reg3, value: 0x5001, mask: 0xf00f }];
    assert_eq!(rewritten(Version::V1_3, 6, 0, parts()), [load(Field::Reg3, 0, 4, 1), load(Field::Reg3, 12, 4, 5)]);
    assert_eq!(rewritten(Version::V1_5, 6, 0, parts()), parts());
    assert_eq!(rewritten(Version::V1_1, 6, 0, vec![Action::set_field(Field::NwEcn, 2)]), [Action::SetIpEcn(2)]);
}
