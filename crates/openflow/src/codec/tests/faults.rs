//! Every fault has its error.

use ::packet::Field;

use super::super::*;
use crate::OfPort;

/// A message of OpenFlow 1.0 (version 1) or 1.3 (version 4).
fn message(version: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut m = vec![version, kind, 0, 0, 0x12, 0x34, 0x56, 0x78];
    m.extend_from_slice(body);
    let len = m.len() as u16;
    m.set_u16(2, len);
    m
}

fn error(version: u8, kind: u8, body: &[u8]) -> OfError {
    let bytes = message(version, kind, body);
    let e = decode(&bytes, DecodeOptions::default()).expect_err("a fault");
    assert_eq!((e.version, e.xid), (version, 0x1234_5678));
    e.error
}

/// A flow-mod of OpenFlow 1.3 with these match entries and instructions.
fn flow_mod(oxms: &[u8], instructions: &[u8]) -> Result<Message, OfError> {
    let mut body = vec![0; 48 - 8];
    body[22..24].copy_from_slice(&[0x80, 0]);
    body.extend_from_slice(&[0, 1, 0, 4 + oxms.len() as u8]);
    body.extend_from_slice(oxms);
    body.resize(40 + (4 + oxms.len()).next_multiple_of(8), 0);
    body.extend_from_slice(instructions);
    decode(&message(4, 14, &body), DecodeOptions::default()).map_err(|e| e.error)
}

fn matched(oxms: &[u8]) -> OfError {
    flow_mod(oxms, &[]).expect_err("a fault")
}

/// A flow with an Apply-Actions of these actions.
fn applied(actions: &[u8]) -> Result<Message, OfError> {
    let mut i = vec![0, 4, 0, 8 + actions.len() as u8, 0, 0, 0, 0];
    i.extend_from_slice(actions);
    flow_mod(&[], &i)
}

fn acted(actions: &[u8]) -> OfError {
    applied(actions).expect_err("a fault")
}

/// OVN decrements TTLs so.
#[test]
fn a_dec_ttl_that_names_no_controller_is_none() {
    let dec_ttl = |n| [0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, 21, 0, n, 0, 0, 0, 0];
    let Body::FlowMod(f) = applied(&dec_ttl(0)).expect("a flow").body else { panic!("no flow") };
    assert_eq!(f.instructions.apply, [crate::Action::DecTtlCntIds(vec![])]);
    assert_eq!(acted(&dec_ttl(1)), OFPBAC_BAD_LEN);
}

/// Antrea names fields of `learn` by headers that have a mask, and so lengths for two values.
#[test]
fn headers_with_a_mask_name_fields_where_there_were_always_four_bytes_for_them() {
    let learn = |header: [u8; 4]| {
        let mut action = [&[0xff, 0xff, 0, 48, 0, 0, 0x23, 0x20, 0, 16], &[0; 22][..]].concat();
        action.extend_from_slice(&[0x20, 16, 8, 0]);
        action.extend_from_slice(&header);
        action.resize(48, 0);
        applied(&action)
    };
    // NXM_OF_ETH_TYPE without a mask and with one, and with lengths that it does not have.
    assert_eq!(learn([0, 0, 3 << 1 | 1, 4]), learn([0, 0, 3 << 1, 2]));
    assert!(learn([0, 0, 3 << 1, 2]).is_ok());
    assert_eq!(learn([0, 0, 3 << 1 | 1, 2]), Err(OFPBAC_BAD_SET_LEN));
    assert_eq!(learn([0, 0, 3 << 1 | 1, 5]), Err(OFPBAC_BAD_SET_LEN));
    // Not in actions that OVS has made since: push of NXM_NX_REG0.
    let push = |header: [u8; 4]| {
        let head = [0xff, 0xff, 0, 24, 0, 0, 0x23, 0x20, 0, 27, 0, 0];
        applied(&[&head[..], &header, &[0, 32, 0, 0, 0, 0, 0, 0]].concat())
    };
    assert!(push([0, 1, 0, 4]).is_ok());
    assert_eq!(push([0, 1, 1, 8]), Err(OFPBMC_BAD_MASK));
}

/// Neutron's flows against spoofed neighbour advertisements have no code.
#[test]
fn neighbour_discovery_needs_no_code_but_no_other_than_zero() {
    let nd = |code: &[u8]| {
        let kind = [0x80, 0, 5 << 1, 2, 0x86, 0xdd, 0x80, 0, 10 << 1, 1, 58, 0x80, 0, 29 << 1, 1, 136];
        flow_mod(&[&kind[..], code, &[0x80, 0, 31 << 1, 16], &[9; 16]].concat(), &[])
    };
    let Body::FlowMod(flow) = nd(&[]).expect("a flow").body else { panic!("no flow") };
    assert_eq!(flow.matching.exact(Field::NdTarget), Some(u128::from_be_bytes([9; 16])));
    assert!(nd(&[0x80, 0, 30 << 1, 1, 0]).is_ok());
    assert_eq!(nd(&[0x80, 0, 30 << 1, 1, 1]), Err(OFPBMC_BAD_PREREQ));
}

#[test]
fn headers() {
    assert_eq!(error(1, 99, &[]), OFPBRC_BAD_TYPE);
    assert_eq!(error(7, 5, &[]), OFPBRC_BAD_VERSION);
    assert_eq!(error(4, 5, &[0]), OFPBRC_BAD_LEN);
    assert_eq!(error(1, 4, &[0, 0, 0, 1, 0, 0, 0, 1]), OFPBRC_BAD_VENDOR);
    assert_eq!(error(1, 4, &[0, 0, 0x23, 0x20, 0, 0, 0, 99]), OFPBRC_BAD_SUBTYPE);
    assert_eq!(error(4, 18, &[0, 99, 0, 0, 0, 0, 0, 0]), OFPBRC_BAD_STAT);
    assert_eq!(error(1, 16, &[0, 99, 0, 0]), OFPBRC_BAD_STAT);
    let short = decode(&[1, 0], DecodeOptions::default()).unwrap_err();
    assert_eq!(short.error, OFPBRC_BAD_LEN);
    let cut = decode(&[4, 5, 0, 16, 0, 0, 0, 0], DecodeOptions::default()).unwrap_err();
    assert_eq!(cut.error, OFPBRC_BAD_LEN);
}

#[test]
fn actions_that_set_field_has_taken_the_place_of() {
    let set_dl_src = [0, 3, 0, 16, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let Body::FlowMod(f) = applied(&set_dl_src).expect("a flow").body else { panic!("no flow") };
    assert_eq!(f.instructions.apply, [crate::Action::SetEthSrc(crate::EthAddr([2, 0, 0, 0, 0, 1]))]);
    assert_eq!(acted(&[0, 11, 0, 8, 0, 0, 0, 0]), OFPBAC_BAD_TYPE, "copy-ttl-out is another one");
}

#[test]
fn a_meter_instruction_came_with_openflow_1_3() {
    let mut body = vec![0; 40 + 88];
    body[42..44].copy_from_slice(&[0, 88]);
    body.extend([0, 6, 0, 8, 0, 0, 0, 1]);
    assert_eq!(error(2, 14, &body), OFPBIC_UNKNOWN_INST);
}

#[test]
fn matches() {
    // tcp_dst without ip_proto; ip_proto without eth_type.
    assert_eq!(matched(&[0x80, 0, 14 << 1, 2, 0, 80]), OFPBMC_BAD_PREREQ);
    assert_eq!(matched(&[0x80, 0, 10 << 1, 1, 6]), OFPBMC_BAD_PREREQ);
    // A packet type that is IPv4 does for an EtherType; that of Ethernet does not.
    let nw_dst = [0x80, 0, 12 << 1, 4, 10, 0, 0, 1];
    let typed = |namespace| [&[0x80, 0, 44 << 1, 4, 0, namespace, 8, 0], &nw_dst[..]].concat();
    assert!(flow_mod(&typed(1), &[]).is_ok());
    assert_eq!(matched(&typed(0)), OFPBMC_BAD_PREREQ);
    // in_port twice.
    assert_eq!(matched(&[0x80, 0, 0, 4, 0, 0, 0, 1, 0x80, 0, 0, 4, 0, 0, 0, 1]), OFPBMC_DUP_FIELD);
    // An unknown field and class.
    assert_eq!(matched(&[0x80, 0, 99 << 1, 1, 6]), OFPBMC_BAD_FIELD);
    assert_eq!(matched(&[0x12, 0x34, 0, 1, 6]), OFPBMC_BAD_FIELD);
    // A wrong length; one beyond the end.
    assert_eq!(matched(&[0x80, 0, 0, 3, 0, 0, 1]), OFPBMC_BAD_LEN);
    assert_eq!(matched(&[0x80, 0, 0, 4, 0, 0]), OFPBMC_BAD_LEN);
    assert_eq!(matched(&[0x80, 0, 0]), OFPBMC_BAD_LEN);
    // A value with bits outside its mask; a mask on a field that has none.
    assert_eq!(
        matched(&[0x80, 0, 2 << 1 | 1, 16, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1]),
        OFPBMC_BAD_WILDCARDS
    );
    assert_eq!(matched(&[0x80, 0, 5 << 1 | 1, 4, 8, 0, 0xff, 0]), OFPBMC_BAD_MASK);
    // A VLAN id of 14 bits; a port between the ports and the reserved ones.
    assert_eq!(matched(&[0x80, 0, 6 << 1, 2, 0x20, 0]), OFPBMC_BAD_VALUE);
    assert_eq!(matched(&[0x80, 0, 0, 4, 0, 1, 0, 0]), OFPBMC_BAD_VALUE);
    // vlan_pcp of packets without a tag.
    assert_eq!(matched(&[0x80, 0, 6 << 1, 2, 0, 0, 0x80, 0, 7 << 1, 1, 3]), OFPBMC_BAD_PREREQ);
    // ECN bits in NXM_OF_IP_TOS.
    assert_eq!(matched(&[0x80, 0, 5 << 1, 2, 8, 0, 0, 0, 5 << 1, 1, 0x21]), OFPBMC_BAD_VALUE);
}

/// `tun_erspan_hwid=0xf/0x1`, as ovs-ofctl 3.1 sends it: value 1, and 0xf as the mask.
#[test]
fn of_some_fields_of_tunnels_the_value_is_the_mask() {
    use crate::codec::oxm::{DecodedField, FieldUse, HAS_VALUE_AS_MASK, pull_header, pull_payload, put_entry};
    for field in HAS_VALUE_AS_MASK.into_iter().chain([Field::TunErspanIdx]) {
        let mut bytes = Vec::new();
        let max = field.info().max();
        let (value, mask) = (1, if max == 1 { 1 } else { max - 4 });
        put_entry(&mut bytes, Version::V1_3, field, value, mask);
        let mut r = Reader::new(&bytes, OFPBMC_BAD_LEN);
        let header = pull_header(&mut r).unwrap();
        let DecodedField { mask: decoded, .. } = pull_payload(&mut r, header, field, FieldUse::Match).unwrap();
        let expected = if field == Field::TunErspanIdx { mask } else { 1 };
        assert_eq!(decoded, expected, "{field:?}");
    }
}

#[test]
fn a_match_of_the_wrong_type() {
    let mut body = vec![0; 40];
    body.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0]);
    assert_eq!(error(4, 14, &body), OFPBMC_BAD_TYPE);
}

#[test]
fn instructions() {
    let inst = |bytes: &[u8]| flow_mod(&[], bytes).expect_err("a fault");
    assert_eq!(inst(&[0, 99, 0, 8, 0, 0, 0, 0]), OFPBIC_UNKNOWN_INST);
    assert_eq!(inst(&[0xff, 0xff, 0, 8, 0, 0, 0, 1]), OFPBIC_BAD_EXPERIMENTER);
    assert_eq!(inst(&[0, 1, 0, 8, 9, 0, 0, 0, 0, 1, 0, 8, 9, 0, 0, 0]), OFPBIC_DUP_INST);
    assert_eq!(inst(&[0, 1, 0, 16, 9, 0, 0, 0]), OFPBIC_BAD_LEN);
    assert_eq!(inst(&[0, 1, 0, 2, 9, 0, 0, 0]), OFPBIC_BAD_LEN);
    // To no table; to the flow's own.
    assert_eq!(inst(&[0, 1, 0, 8, 0xff, 0, 0, 0]), OFPBIC_BAD_TABLE_ID);
    assert_eq!(inst(&[0, 1, 0, 8, 0, 0, 0, 0]), OFPBIC_BAD_TABLE_ID);
    // A learn in Write-Actions is not in OpenFlow's order of the action set.
    let exit = [0, 3, 0, 24, 0, 0, 0, 0, 0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, 17, 0, 0, 0, 0, 0, 0];
    assert_eq!(inst(&exit), OFPBAC_BAD_TYPE);
}

#[test]
fn actions() {
    assert_eq!(acted(&[0, 99, 0, 8, 0, 0, 0, 0]), OFPBAC_BAD_TYPE);
    assert_eq!(acted(&[0, 18, 0, 4, 0, 0, 0, 0]), OFPBAC_BAD_LEN);
    assert_eq!(acted(&[0, 18, 0, 12, 0, 0, 0, 0]), OFPBAC_BAD_LEN);
    assert_eq!(acted(&[0, 18, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_LEN);
    assert_eq!(acted(&[0xff, 0xff, 0, 8, 0, 0, 0, 1]), OFPBAC_BAD_LEN);
    assert_eq!(acted(&[0xff, 0xff, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_VENDOR);
    assert_eq!(acted(&[0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 1, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_VENDOR_TYPE);
    // Output to ANY, and to a number that no port can have.
    assert_eq!(acted(&[0, 0, 0, 16, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_OUT_PORT);
    assert_eq!(acted(&[0, 0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_OUT_PORT);
    // push_vlan of IPv4; group ALL.
    assert_eq!(acted(&[0, 17, 0, 8, 8, 0, 0, 0]), OFPBAC_BAD_ARGUMENT);
    assert_eq!(acted(&[0, 22, 0, 8, 0xff, 0xff, 0xff, 0xfc]), OFPBAC_BAD_OUT_GROUP);
    // set_field: unknown, read-only (eth_type), masked, not padded with zeros, vlan_vid without its bit.
    assert_eq!(acted(&[0, 25, 0, 16, 0x80, 0, 99 << 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_SET_TYPE);
    assert_eq!(acted(&[0, 25, 0, 16, 0x80, 0, 5 << 1, 2, 8, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_SET_ARGUMENT);
    assert_eq!(
        acted(&[0, 25, 0, 24, 0x80, 0, 11 << 1 | 1, 8, 1, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        OFPBAC_BAD_SET_MASK
    );
    assert_eq!(acted(&[0, 25, 0, 16, 0x80, 0, 11 << 1, 4, 1, 0, 0, 0, 0, 0, 0, 9]), OFPBAC_BAD_SET_ARGUMENT);
    assert_eq!(acted(&[0, 25, 0, 16, 0x80, 0, 6 << 1, 2, 0, 5, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_SET_ARGUMENT);
    assert_eq!(acted(&[0, 25, 0, 16, 0x80, 0, 11 << 1, 3, 1, 0, 0, 0, 0, 0, 0, 0]), OFPBAC_BAD_SET_LEN);
}

#[test]
fn nested_actions_end_at_a_depth() {
    let mut action = Vec::new();
    for _ in 0..200 {
        let mut outer = vec![0xff, 0xff, 0, 0, 0, 0, 0x23, 0x20, 0, 42, 0, 0, 0, 0, 0, 0];
        outer.append(&mut action);
        let len = outer.len() as u16;
        outer.set_u16(2, len);
        action = outer;
    }
    let mut out = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    out.u16(action.len() as u16);
    out.put(&action);
    assert_eq!(error(1, 13, &out), OFPBAC_TOO_MANY);
}

#[test]
fn flow_mods() {
    let mut body = vec![0; 64];
    body[48] = 9;
    assert_eq!(error(1, 14, &body), OFPFMFC_BAD_COMMAND);
    body[48] = 0;
    body[49] = 9;
    assert_eq!(error(1, 14, &body), OFPFMFC_BAD_COMMAND);
    let mut body = vec![0; 48];
    body[41] = 1;
    body[43] = 4;
    body[36] = 0x80;
    assert_eq!(error(4, 14, &body), OFPFMFC_BAD_FLAGS);
    body[36] = 0;
    body[16] = 0xff;
    assert_eq!(error(4, 14, &body), OFPFMFC_BAD_TABLE_ID);
}

#[test]
fn others() {
    assert_eq!(error(4, 9, &[0, 0x80, 0, 0]), OFPSCFC_BAD_FLAGS);
    let mut role = vec![0; 16];
    role[3] = 9;
    assert_eq!(error(4, 24, &role), OFPRRFC_BAD_ROLE);
    // A packet-out from port NORMAL; with actions beyond the end.
    assert_eq!(error(1, 13, &[255, 255, 255, 255, 0xff, 0xfa, 0, 0]), OFPBRC_BAD_PORT);
    assert_eq!(error(1, 13, &[255, 255, 255, 255, 0, 1, 0, 8]), OFPBRC_BAD_LEN);
    // Statistics of an experimenter whose subtypes nobody knows.
    assert_eq!(error(1, 16, &[0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0]), OFPBRC_BAD_VENDOR);
    assert_eq!(error(4, 4, &[0xff, 0xff, 0, 0]), OFPBRC_BAD_VENDOR);
    // A table of less than its fixed part, and one that is behind the end.
    for len in [0, 72] {
        let mut tables = [[0, 12, 0, 0, 0, 0, 0, 0], [0, len, 0, 0, 0, 0, 0, 0]].concat();
        tables.resize(8 + 64, 0);
        assert_eq!((error(4, 18, &tables), error(5, 18, &tables)), (OFPBPC_BAD_LEN, OFPBPC_BAD_LEN));
    }
}

/// Whatever the number of a meter, it is gone when it is deleted; one that is to be there has a possible number.
#[test]
fn meters_of_no_such_number() {
    for meter in [[0; 4], [0xff, 0xff, 1, 0xff]] {
        let change = |command: u8| message(4, 29, &[&[0, command, 0, 1], &meter[..]].concat());
        assert!(decode(&change(2), DecodeOptions::default()).is_ok());
        let refused = decode(&change(0), DecodeOptions::default()).unwrap_err();
        assert_eq!(refused.error, OFPMMFC_INVALID_METER);
    }
}

/// The length comes first: whatever is in it.
#[test]
fn messages_of_no_such_length() {
    let mut tried = 0;
    for (version, kind, lens) in [
        (1, 7, &[4, 0x100][..]),
        (1, 9, &[3, 5]),
        (1, 13, &[7]),
        (1, 14, &[63]),
        (1, 15, &[23, 25]),
        (1, 16, &[3]),
        (1, 18, &[1]),
        (1, 20, &[3, 5]),
        (2, 15, &[7]),
        (2, 17, &[7, 9]),
        (2, 22, &[7, 9]),
        (3, 24, &[8, 15, 17, 24]),
        (3, 25, &[8, 24]),
        (4, 16, &[8, 31, 33]),
        (4, 18, &[7]),
        (4, 22, &[4]),
        (4, 26, &[1]),
        (4, 28, &[23, 25]),
        (4, 29, &[7]),
        (5, 16, &[23]),
        (5, 33, &[7]),
        (6, 13, &[8]),
        (6, 14, &[39]),
        (6, 15, &[8, 15]),
    ] {
        for &len in lens {
            assert_eq!(error(version, kind, &vec![0xff; len]), OFPBRC_BAD_LEN, "{version} {kind} {len}");
            tried += 1;
        }
    }
    assert!(tried > 30);
}

/// No flag was defined for requests before OpenFlow 1.3.
#[test]
fn old_requests_are_whole() {
    let more = |version: u8, kind: u8, body: &[u8]| {
        let message = decode(&message(version, kind, body), DecodeOptions::default()).unwrap();
        matches!(message.body, Body::MultipartRequest { more: true, .. })
    };
    assert!(
        !more(1, 16, &[0, 3, 0, 1])
            && !more(2, 18, &[0, 3, 0, 1, 0, 0, 0, 0])
            && !more(3, 18, &[0, 3, 0, 1, 0, 0, 0, 0])
    );
    assert!(more(4, 18, &[0, 3, 0, 1, 0, 0, 0, 0]));
}

#[test]
fn an_error_quotes_the_message() {
    let bytes = message(4, 99, &[7; 100]);
    let reply = decode(&bytes, DecodeOptions::default()).unwrap_err().reply(Version::V1_3, &bytes);
    assert_eq!(reply.xid, 0x1234_5678);
    let wire = encode(&reply, DecodeOptions::default()).unwrap();
    assert_eq!(wire[8..12], [0, 1, 0, 1]);
    assert_eq!(wire[12..], bytes);
    // As much of it as has room.
    let bytes = message(4, 99, &[7; 0xffff - 8]);
    let reply = decode(&bytes, DecodeOptions::default()).unwrap_err().reply(Version::V1_3, &bytes);
    assert!(encode(&reply, DecodeOptions::default()).is_ok());
}

#[test]
fn errors_keep_their_numbers() {
    for version in [Version::V1_0, Version::V1_3] {
        for &e in OfError::ALL {
            let Some(number) = e.number(version) else { continue };
            let m = error_message(version, 1, e, &[]);
            let back = decode(&encode(&m, DecodeOptions::default()).unwrap(), DecodeOptions::default()).unwrap();
            let Body::Error(ErrorMsg { error: ErrorCode::Known(got), .. }) = back.body else { panic!("{e}") };
            // Where two share a number the first is it.
            let same = |n: crate::error::ErrorNumber| (n.vendor, n.kind, n.code);
            assert_eq!(got.number(version).map(same), Some(same(number)), "{e} came back as {got}");
        }
    }
    let m = error_message(Version::V1_0, 1, NXBRC_NXM_INVALID, &[]);
    let wire = encode(&m, DecodeOptions::default()).unwrap();
    // nicira-ext.h: NXET_VENDOR, NXVC_VENDOR_ERROR, the vendor, then its type and code.
    assert_eq!(wire[8..], [0xb0, 0xc2, 0, 0, 0, 0, 0x23, 0x20, 0, 1, 1, 0]);
}

#[test]
fn a_hello_of_the_future_is_understood() {
    let hello = |bytes: &[u8]| match decode(bytes, DecodeOptions::default()).unwrap().body {
        Body::Hello(h) => h.versions,
        other => panic!("{other:?}"),
    };
    assert_eq!(hello(&[9, 0, 0, 8, 0, 0, 0, 1]).negotiate(SUPPORTED), Some(Version::V1_5));
    assert_eq!(hello(&[1, 0, 0, 8, 0, 0, 0, 1]).negotiate(SUPPORTED), Some(Version::V1_0));
    let bitmap = [4, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 1 << 4];
    assert_eq!(hello(&bitmap), Versions::of(&[Version::V1_3]));
    // An element with a wrong length ends the elements.
    assert_eq!(hello(&[4, 0, 0, 12, 0, 0, 0, 1, 0, 1, 0, 99]).negotiate(SUPPORTED), Some(Version::V1_3));
}

#[test]
fn ports_of_sixteen_bits() {
    assert_eq!(OfPort::from_u16(0xfffe), OfPort::LOCAL);
    assert_eq!(OfPort::LOCAL.to_u16(), Some(0xfffe));
    assert_eq!(OfPort(0x1_0000).to_u16(), None);
    assert_eq!(OfPort::from_u16(0xfeff), OfPort(0xfeff));
}

#[test]
fn inputs_that_fuzzing_found() {
    let inputs: [&[u8]; 2] = [
        // An error of experimenter zero, which is nobody.
        b"\x06\x01\x00\x12\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00\x0a=",
        // A hello with a version bitmap that ends within a word, and without the version of its header.
        b"\x01\x00\x00\x12\x00\x00\x00\x00\x00\x01\x00\x0a\x00\xff\xff\x07\x0a\x00",
    ];
    for input in inputs {
        super::super::fuzz(input);
    }
}

/// A request of a monitor with these bytes behind its number; an update with these.
fn monitored(version: u8, is_reply: bool, body: &[u8]) -> OfError {
    let mut bytes = match version {
        1 => vec![0xff, 0xff, 0, 0, 0, 0, 0x23, 0x20, 0, 0, 0, 2, 0, 0, 0, 0],
        4 => vec![0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x4f, 0x4e, 0x46, 0, 0, 0, 0x07, 0x4e],
        _ => vec![0, 16, 0, 0, 0, 0, 0, 0],
    };
    if !is_reply {
        bytes.extend_from_slice(&[0, 0, 0, 9]);
    }
    bytes.extend_from_slice(body);
    let request = if version == 1 { 16 } else { 18 };
    error(version, request + u8::from(is_reply), &bytes)
}

#[test]
fn flow_monitors() {
    let any = [0, 1, 0, 4, 0, 0, 0, 0];
    // Nothing to be told of; flags that there are not in this version, or at all.
    assert_eq!(monitored(1, false, &[0, 1, 0xff, 0xff, 0, 0, 0xff, 0, 0, 0, 0, 0]), OFPMOFC_BAD_FLAGS);
    assert_eq!(monitored(1, false, &[0, 0x42, 0xff, 0xff, 0, 0, 0xff, 0, 0, 0, 0, 0]), OFPMOFC_BAD_FLAGS);
    assert_eq!(monitored(4, false, &[[0, 0x42, 0, 0, 255, 255, 255, 255], any].concat()), OFPMOFC_BAD_FLAGS);
    assert_eq!(
        monitored(5, false, &[[255, 255, 255, 255, 255, 255, 255, 255], [0, 0x82, 0xff, 0, 0, 0, 0, 0]].concat()),
        OFPMOFC_BAD_FLAGS
    );
    // Padding; a command; a length; a port.
    assert_eq!(monitored(1, false, &[0, 2, 0xff, 0xff, 0, 0, 0xff, 0, 0, 0, 0, 1]), NXBRC_MUST_BE_ZERO);
    assert_eq!(monitored(4, false, &[0, 2, 0, 0, 255, 255, 255, 255, 0xff, 0, 1, 0]), NXBRC_MUST_BE_ZERO);
    assert_eq!(monitored(5, false, &[255, 255, 255, 255, 255, 255, 255, 255, 0, 2, 0xff, 3]), OFPMOFC_BAD_COMMAND);
    assert_eq!(monitored(5, false, &[0; 4]), OFPBRC_BAD_LEN);
    assert_eq!(
        monitored(5, false, &[[0, 1, 0, 0, 255, 255, 255, 255], [0, 2, 0xff, 0, 0, 0, 0, 0]].concat()),
        OFPBRC_BAD_PORT
    );
    // Events, and their lengths.
    assert_eq!(monitored(1, true, &[0, 8, 0, 4, 0, 0, 0, 0]), NXBRC_FM_BAD_EVENT);
    assert_eq!(monitored(5, true, &[0, 8, 0, 7, 0, 0, 0, 0]), NXBRC_FM_BAD_EVENT);
    assert_eq!(monitored(5, true, &[0, 16, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), OFPBRC_BAD_LEN);
    assert_eq!(monitored(5, true, &[0, 4, 0, 4]), OFPBRC_BAD_LEN);
    // In each version its own.
    assert_eq!(error(4, 18, &[0, 16, 0, 0, 0, 0, 0, 0]), OFPBRC_BAD_STAT);
    assert_eq!(error(4, 18, &[0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x23, 0x20, 0, 0, 0, 2]), OFPBRC_BAD_SUBTYPE);
    assert_eq!(error(3, 18, &[0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x4f, 0x4e, 0x46, 0, 0, 0, 7, 0x4e]), OFPBRC_BAD_SUBTYPE);
}

#[test]
fn statistics_of_ipfix_have_nothing_behind_their_head() {
    for subtype in [3, 4] {
        let request = [0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x23, 0x20, 0, 0, 0, subtype];
        assert_eq!(error(4, 18, &[&request[..], &[0]].concat()), OFPBRC_BAD_LEN);
    }
}

#[test]
fn forwarded_requests_do_not_nest() {
    let inside = |version: u8, inner: &[u8]| error(version, 32, inner);
    // A hello; itself; a group-mod of another version, and one that is longer than there are bytes.
    assert_eq!(inside(5, &[5, 0, 0, 8, 0, 0, 0, 0]), OFPBRC_BAD_TYPE);
    assert_eq!(inside(5, &[5, 32, 0, 16, 0, 0, 0, 0, 5, 32, 0, 8, 0, 0, 0, 0]), OFPBRC_BAD_TYPE);
    assert_eq!(inside(5, &[4, 15, 0, 8, 0, 0, 0, 0]), OFPBRC_BAD_VERSION);
    assert_eq!(inside(5, &[5, 15, 0, 16, 0, 0, 0, 0]), OFPBRC_BAD_LEN);
    assert_eq!(inside(5, &[5, 15, 0, 8, 0, 0, 0, 0]), OFPBRC_BAD_LEN);
    // Nicira's, which has the experimenter's ids before and in it.
    let nicira = |subtype: u8, inner: &[u8]| [&[0, 0, 0x23, 0x20, 0, 0, 0, subtype], inner].concat();
    let within = [&[1, 4, 0, 16, 0, 0, 0, 0][..], &nicira(132, &[])].concat();
    assert_eq!(error(1, 4, &nicira(132, &within)), OFPBRC_BAD_SUBTYPE);
}
