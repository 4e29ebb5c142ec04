//! What ovs-ofctl sends is understood, and written back.

use super::super::*;
use crate::flow_mod::FlowModCommand;
use crate::types::{CookieFilter, OfPort, TableId};
use crate::{Action, MultipartRequest};

fn vectors(text: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    text.lines().filter(|l| !l.starts_with('#')).map(|line| {
        let (what, hex) = line.rsplit_once(' ').unwrap_or(("", line));
        let bytes = (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex"));
        (what, bytes.collect())
    })
}

/// Nothing tells from the message alone that its command has a table in its high byte.
fn options(bytes: &[u8]) -> DecodeOptions {
    let command_at = if bytes[1] == kind::EXPERIMENTER { 24 } else { 56 };
    let flow_mod = bytes[1] == kind::FLOW_MOD || bytes[1] == kind::EXPERIMENTER && bytes.get(15) == Some(&13);
    let flow_mod_table_id = bytes[0] == 1 && flow_mod && bytes[command_at] != 0;
    DecodeOptions { flow_mod_table_id }
}

#[test]
fn flow_mods_of_ovs_ofctl_are_written_back() {
    let (mut n, mut wrong) = (0, Vec::new());
    for (what, bytes) in vectors(include_str!("../../../testdata/flow_mods.txt")) {
        let message = decode(&bytes, options(&bytes)).unwrap_or_else(|e| panic!("{what}: {e}"));
        wrong.extend(difference(what, &message, &bytes));
        n += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n > 110, "{n} vectors");
}

/// Every field, action and setting of a flow, by OpenFlow 1.0 with Nicira's matches, 1.3 and 1.5 (tests/golden.py).
#[test]
fn golden_flow_mods_are_written_back_and_shown_as_ovs_ofctl_shows_them() {
    let (mut n, mut wrong) = (0, Vec::new());
    for line in include_str!("../../../testdata/golden.txt").lines().filter(|line| !line.starts_with('#')) {
        let (text, hex) = line.split_once('\t').expect("a text and a message");
        let (_, bytes) = vectors(hex).next().expect("a message");
        n += 1;
        match decode(&bytes, options(&bytes)) {
            Ok(message) => wrong.extend(difference(text, &message, &bytes)),
            Err(e) => wrong.push(format!("{text}: {e}")),
        }
        let mut shown = String::new();
        crate::text::format_message(&mut shown, &bytes);
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        // What ovs-ofctl leaves out or shows without its mask, and what it names by the version.
        let mut otherwise = ["tun_gbp_flags", "tun_erspan", "gtpu_", "nsh_c", "tun_metadata", "strip_vlan"].into_iter();
        if shown != text && !otherwise.any(|word| shown.contains(word)) {
            wrong.push(format!("{shown}\n  is not {text}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {n}\n{}", wrong.len(), wrong.join("\n"));
    assert!(n > 800, "{n} messages");
}

#[test]
fn requests_of_ovs_ofctl_are_written_back() {
    for (what, bytes) in vectors(include_str!("../../../testdata/requests.txt")) {
        let message = match decode(&bytes, options(&bytes)) {
            // Group statistics on OpenFlow 1.0 are not spoken.
            Err(e) if what == "OpenFlow10 dump-group-features" => {
                assert_eq!(e.error, OFPBRC_BAD_SUBTYPE);
                continue;
            }
            other => other.unwrap_or_else(|e| panic!("{what}: {e}")),
        };
        assert_eq!(difference(what, &message, &bytes), None);
    }
}

/// Written back, a message is the same but for the order of its match's fields, which is free.
fn difference(what: &str, message: &Message, bytes: &[u8]) -> Option<String> {
    let again = encode(message, options(bytes)).unwrap();
    let sorted = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.sort_unstable();
        bytes
    };
    let same = decode(&again, options(bytes)).as_ref() == Ok(message) && sorted(&again) == sorted(bytes);
    (!same).then(|| format!("{what}:\n  {}, not\n  {}", hex(&again), hex(bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn find(text: &'static str, what: &str) -> Vec<Message> {
    let decoded = |(_, b): (&str, Vec<u8>)| decode(&b, options(&b)).expect("decodes");
    vectors(text).filter(|(w, _)| *w == what).map(decoded).collect()
}

#[test]
fn the_fields_are_those_that_were_asked_for() {
    let flows = include_str!("../../../testdata/flow_mods.txt");
    for version in ["OpenFlow10", "OpenFlow13"] {
        let what = format!("{version} table=3,tcp,nw_src=10.0.0.0/8,tp_dst=80,actions=drop");
        let [m] = &find(flows, &what)[..] else { panic!("{what}") };
        let Body::FlowMod(f) = &m.body else { panic!() };
        assert_eq!(f.command, FlowModCommand::Add);
        assert_eq!(f.table, Some(TableId(3)));
        assert!(f.instructions.is_empty());
        let get = |field| f.matching.get(field);
        assert_eq!(get(::packet::Field::DlType), (0x0800, 0xffff));
        assert_eq!(get(::packet::Field::NwProto), (6, 0xff));
        assert_eq!(get(::packet::Field::NwSrc), (0x0a00_0000, 0xff00_0000));
        assert_eq!(get(::packet::Field::TcpDst), (80, 0xffff));
        assert!(f.matching.mask.is_wild(::packet::Field::InPortOxm));
    }
    let what = "OpenFlow13 in_port=LOCAL,actions=NORMAL";
    let Body::FlowMod(f) = &find(flows, what)[0].body else { panic!() };
    assert_eq!(f.matching.in_port(), Some(OfPort::LOCAL));
    assert_eq!(f.instructions.apply, [Action::Output { port: OfPort::NORMAL, max_len: 0 }]);
}

#[test]
fn a_flow_request_has_its_filters() {
    let requests = include_str!("../../../testdata/requests.txt");
    for version in ["OpenFlow10", "OpenFlow13"] {
        let all = find(requests, &format!("{version} dump-flows-cookie"));
        let request = all.iter().find_map(|m| match &m.body {
            Body::MultipartRequest { request: MultipartRequest::Flow(q), .. } => Some(q),
            _ => None,
        });
        let request = request.expect("a flow request");
        assert_eq!(request.cookie, CookieFilter { value: 5, mask: u64::MAX });
        assert_eq!(request.out_port, OfPort(3));
        assert_eq!(request.table, TableId::ALL);
        assert!(request.matching.is_any());
    }
}

#[test]
fn a_load_with_a_mask_has_its_entry_right_after_the_subtype() {
    let load = Action::SetField { field: ::packet::Field::NshC1, value: 0x12, mask: 0xff };
    let out = crate::PacketOut {
        buffer_id: None,
        in_port: OfPort(1),
        metadata: crate::Match::any(),
        actions: vec![load],
        data: Vec::new(),
    };
    let bytes = encode(&Message::new(Version::V1_3, 1, Body::PacketOut(out)), DecodeOptions::default()).unwrap();
    assert_eq!(hex(&bytes[24..]), "ffff0020000023200021ffff0d0c005ad65000000012000000ff000000000000");
}

#[test]
fn ending_connections() {
    use crate::ct::{CtFlush, CtTuple};
    let bytes = |hex: &str| -> Vec<u8> {
        let hex: Vec<_> = hex.split_whitespace().collect();
        hex.iter().map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect()
    };
    // The messages of OVS's tests, with the zone behind the tuples, where ovs-ofctl writes it.
    let head = |len: u8, kind: u8| format!("01 04 00 {len:02x} 00 00 00 03 00 00 23 20 00 00 00 {kind:02x}");
    let tuple = "00 00 00 14 00 00 00 00 00 00 00 00 00 00 ff ff 0a 0a 00 01 00 00 00 00 \
                 00 01 00 14 00 00 00 00 00 00 00 00 00 00 ff ff 0a 0a 00 02 00 00 00 00 \
                 00 02 00 08 00 50 00 00 00 03 00 08 1f 90 00 00";
    let orig = CtTuple {
        src: Some([10, 10, 0, 1].into()),
        dst: Some([10, 10, 0, 2].into()),
        src_port: 80,
        dst_port: 8080,
        ..CtTuple::default()
    };
    let tcp = CtFlush { ip_proto: 6, ..CtFlush::default() };
    let icmp = CtTuple { icmp: (10, 1, 2), ..CtTuple::default() };
    let cases = [
        (format!("{} 00 00 00 00 00 00 00 0d", head(24, 29)), Body::CtFlushZone(13)),
        (format!("{} 06 00 00 00 00 00 00 00", head(24, 32)), Body::CtFlush(Box::new(tcp))),
        (
            format!(
                "{} 06 00 00 00 00 00 00 00 00 00 00 48 00 00 00 00 {tuple} 00 02 00 06 00 0d 00 00",
                head(104, 32)
            ),
            Body::CtFlush(Box::new(CtFlush { zone: Some(13), orig, ..tcp })),
        ),
        (
            format!("{} 06 00 00 00 00 00 00 00 00 01 00 48 00 00 00 00 {tuple}", head(96, 32)),
            Body::CtFlush(Box::new(CtFlush { reply: orig, ..tcp })),
        ),
        (
            format!(
                "{} 01 00 00 00 00 00 00 00 \
                 00 00 00 20 00 00 00 00 00 04 00 06 00 0a 00 00 00 05 00 05 01 00 00 00 00 06 00 05 02 00 00 00 \
                 00 01 00 20 00 00 00 00 00 04 00 06 00 00 00 00 00 05 00 05 00 00 00 00 00 06 00 05 00 00 00 00",
                head(88, 32)
            ),
            Body::CtFlush(Box::new(CtFlush { ip_proto: 1, orig: icmp, ..CtFlush::default() })),
        ),
    ];
    for (hex, body) in cases {
        let message = decode(&bytes(&hex), DecodeOptions::default()).unwrap_or_else(|e| panic!("{hex}: {e}"));
        assert_eq!(message.body, body);
        let again = encode(&message, DecodeOptions::default()).unwrap();
        // ovs-ofctl pads numbers of 16 bits by its own measure.
        let same = |bytes: &[u8]| decode(bytes, DecodeOptions::default()).unwrap().body == body;
        assert!(same(&again) && again.len() == bytes(&hex).len(), "{again:02x?}");
    }
    let wrong = |hex: String| decode(&bytes(&hex), DecodeOptions::default()).unwrap_err().error;
    let mixed = tuple.replacen("00 00 00 00 00 00 00 00 00 00 ff ff", "00 0a 00 00 00 00 00 00 00 00 ff ff", 1);
    let tuples = |tuple: &str| format!("{} 06 00 00 00 00 00 00 00 00 00 00 48 00 00 00 00 {tuple}", head(96, 32));
    assert_eq!(wrong(tuples(&mixed)), OFPBPC_BAD_VALUE);
    assert_eq!(wrong(tuples(tuple).replace("20 06 00", "20 06 01")), NXBRC_MUST_BE_ZERO);
    assert_eq!(wrong(tuples(tuple).replace("00 48 00", "00 49 00")), OFPBPC_BAD_LEN);
    assert_eq!(wrong(tuples(tuple).replace("00 14 00", "00 13 00")), OFPBPC_BAD_LEN);
    assert_eq!(wrong(format!("{} 00 00 00 00 00 01 00 0d", head(24, 29))), NXBRC_MUST_BE_ZERO);
}
