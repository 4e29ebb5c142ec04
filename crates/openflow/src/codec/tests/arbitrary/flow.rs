//! Flow-mods, flow-removeds and packets.

use proptest::prelude::*;
use proptest::sample::select;

use super::action::{actions, instructions};
use super::matching::{match_of, matching};
use super::*;

pub fn flow_mod() -> impl Strategy<Value = Message> {
    use FlowModCommand::*;
    with_dialect(|v, d| {
        let head =
            (select(vec![Add, Modify, ModifyStrict, Delete, DeleteStrict]), 0u8..200, any::<u64>(), any::<[u16; 3]>());
        let tail = (0u16..32, port(), prop::option::of(0u32..1000), any::<[u64; 2]>());
        (head, tail, match_of(v, d), instructions(v)).prop_map(move |(head, tail, matching, instructions)| {
            let (command, table, cookie, [idle, hard, priority]) = head;
            let (flags, port, buffer_id, [filter, mask]) = tail;
            let v10 = v == Version::V1_0;
            let (add, delete) = (command == Add, matches!(command, Delete | DeleteStrict));
            let filtered = !add && (!v10 || d == Dialect::Nicira);
            let known = match v {
                Version::V1_0 | Version::V1_1 => 3,
                Version::V1_2 => 7,
                _ => 0x1f,
            };
            let mut flags = FlowModFlags::from_bits_truncate(flags & known);
            if v < Version::V1_2 {
                flags.set(FlowModFlags::RESET_COUNTS, add);
            }
            // In OpenFlow 1.1 a modify without a filter adds what it does not find.
            let adds = v == Version::V1_1 && matches!(command, Modify | ModifyStrict) && mask == 0;
            Body::FlowMod(Box::new(FlowMod {
                keep_cookie: adds,
                command,
                table: Some(TableId(table)),
                new_cookie: (add || adds || v10 && !delete).then_some(Cookie(cookie & !1)),
                cookie: if filtered { CookieFilter { value: filter & mask, mask } } else { CookieFilter::default() },
                idle_timeout: idle,
                hard_timeout: hard,
                priority,
                importance: if v >= Version::V1_4 { hard } else { 0 },
                flags,
                out_port: if delete { port } else { OfPort::ANY },
                out_group: if delete && !v10 { GroupId(7) } else { GroupId::ANY },
                buffer_id,
                matching,
                instructions,
                lenient: v10,
            }))
        })
    })
    .prop_map(message)
}

pub fn packet() -> impl Strategy<Value = Message> {
    prop_oneof![packet_in(), packet_out()]
}

fn packet_out() -> impl Strategy<Value = Message> {
    with_dialect(|v, _| {
        (prop::option::of(any::<u16>()), port(), actions(v), data()).prop_map(
            move |(buffer, in_port, actions, data)| {
                let buffer_id = buffer.map(u32::from);
                let data = if buffer_id.is_some() { Vec::new() } else { data };
                let mut metadata = Match::any();
                if let (Version::V1_5, Some(id)) = (v, buffer_id) {
                    metadata.set(::packet::Field::Metadata, id.into());
                }
                Body::PacketOut(PacketOut { buffer_id, in_port, metadata, actions, data })
            },
        )
    })
    .prop_map(|(v, _, body)| Message::new(v, 1, body))
}

fn packet_in() -> impl Strategy<Value = Message> {
    use PacketInFormat::*;
    let reason = select(vec![PacketInReason::NoMatch, PacketInReason::Action, PacketInReason::InvalidTtl]);
    let rest = (any::<u8>(), any::<u32>(), matching(), data(), prop::collection::vec(any::<u8>(), 1..9), port());
    let rest = (rest, any::<bool>());
    (version(), select(vec![Standard, Nxt, Nxt2]), reason, rest).prop_map(|(v, format, reason, rest)| {
        let ((table, cookie, mut metadata, data, userdata, port), comes_back) = rest;
        let plain = v == Version::V1_0 && format == Standard;
        if v < Version::V1_2 && format == Standard {
            metadata = Match::any();
        }
        let no_cookie = v < Version::V1_3 && format == Standard;
        metadata.set_in_port(port);
        let two = |bytes: Vec<u8>| if format == Nxt2 { bytes } else { Vec::new() };
        let say = if comes_back && format == Nxt2 { Body::Resume } else { Body::PacketIn };
        Message::new(
            v,
            0,
            say(Box::new(PacketIn {
                format,
                buffer_id: Some(cookie).filter(|c| c % 2 == 1 && *c != u32::MAX),
                total_len: data.len() as u32 + u32::from(table),
                reason,
                table: TableId(if plain { 0 } else { table }),
                cookie: (!no_cookie).then_some(Cookie(cookie.into())),
                metadata,
                data,
                userdata: two(userdata.clone()),
                continuation: two(userdata),
            })),
        )
    })
}

pub fn removed(v: Version) -> Said {
    use FlowRemovedReason::*;
    let v10 = v == Version::V1_0;
    dialect(v)
        .prop_flat_map(move |d| {
            let mut reasons = vec![IdleTimeout, HardTimeout, Delete];
            reasons.extend((v >= Version::V1_1).then_some(GroupDelete));
            reasons.extend((v >= Version::V1_4).then_some([MeterDelete, Eviction]).into_iter().flatten());
            let rest = (select(reasons), any::<[u16; 3]>(), any::<[u64; 3]>(), 0u8..255);
            (Just(d), match_of(v, d), rest, duration())
        })
        .prop_map(move |(d, matching, (reason, [priority, idle, hard], [cookie, packets, bytes], table), duration)| {
            let body = Body::FlowRemoved(Box::new(FlowRemoved {
                matching,
                priority,
                cookie: Cookie(cookie),
                reason,
                table: (!v10 || d == Dialect::Nicira).then_some(TableId(table)),
                duration,
                idle_timeout: idle,
                hard_timeout: if v < Version::V1_2 { 0 } else { hard },
                packet_count: packets,
                byte_count: bytes,
            }));
            (d, body)
        })
        .boxed()
}
