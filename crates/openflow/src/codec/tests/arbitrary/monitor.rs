//! Flow monitors.

use proptest::prelude::*;
use proptest::sample::select;

use super::action::instructions;
use super::matching::match_of;
use super::*;
use crate::monitor::*;

/// Before OpenFlow 1.3, monitors have an nx_match.
fn monitored_match(v: Version) -> BoxedStrategy<Match> {
    if v < Version::V1_3 { match_of(Version::V1_0, Dialect::Nicira) } else { match_of(v, Dialect::Standard) }
}

fn dialect_of(v: Version) -> Dialect {
    if v < Version::V1_3 { Dialect::Nicira } else { Dialect::Standard }
}

fn request(v: Version) -> impl Strategy<Value = FlowMonitorRequest> {
    use FlowMonitorCommand::*;
    let commands = if v >= Version::V1_4 { vec![Add, Modify, Delete] } else { vec![Add] };
    let parts = (select(commands), any::<u32>(), any::<u16>(), port(), any::<u32>(), any::<u8>(), monitored_match(v));
    parts.prop_map(move |(command, id, flags, out_port, group, table, matching)| {
        if command == Delete {
            return FlowMonitorRequest::removal(id);
        }
        let known = if v >= Version::V1_4 { u16::MAX } else { !FlowMonitorFlags::ONLY_OWN.bits() };
        let flags = FlowMonitorFlags::from_bits_truncate(flags & known) | FlowMonitorFlags::ADD;
        let out_group = if v >= Version::V1_4 { GroupId(group) } else { GroupId::ANY };
        FlowMonitorRequest { id, command, flags, out_port, out_group, table: TableId(table), matching }
    })
}

fn flow(v: Version) -> impl Strategy<Value = FlowUpdate> {
    use FlowRemovedReason::*;
    let reasons = [IdleTimeout, HardTimeout, Delete, GroupDelete, MeterDelete, Eviction];
    let mut events = vec![FlowEvent::Added, FlowEvent::Modified];
    events.extend(reasons.map(FlowEvent::Removed));
    if v >= Version::V1_4 {
        events.push(FlowEvent::Initial);
    }
    let instructions = instructions(v).prop_map(move |mut instructions| {
        if v < Version::V1_3 {
            // They are sent as actions.
            (instructions.write, instructions.clear) = (Vec::new(), false);
            (instructions.goto, instructions.metadata) = (None, None);
        }
        instructions
    });
    let numbers = (any::<u8>(), any::<[u16; 3]>(), any::<u64>());
    (select(events), numbers, monitored_match(v), instructions).prop_map(
        |(event, (table, [priority, idle_timeout, hard_timeout], cookie), matching, instructions)| {
            let (table, cookie) = (TableId(table), Cookie(cookie));
            FlowUpdate::Flow(Box::new(MonitoredFlow {
                event,
                table,
                priority,
                idle_timeout,
                hard_timeout,
                cookie,
                matching,
                instructions,
            }))
        },
    )
}

fn update(v: Version) -> BoxedStrategy<FlowUpdate> {
    let told = prop_oneof![3 => flow(v), 1 => any::<u32>().prop_map(|xid| FlowUpdate::Abbreviated { xid })];
    if v < Version::V1_4 {
        return told.boxed();
    }
    prop_oneof![4 => told, 1 => select(vec![FlowUpdate::Paused, FlowUpdate::Resumed])].boxed()
}

/// Requests, updates, and the extensions' other messages.
pub fn monitor() -> impl Strategy<Value = Message> {
    let of_version = |v| {
        let request = prop::collection::vec(request(v), 0..3).prop_map(MultipartRequest::FlowMonitor);
        let reply = prop::collection::vec(update(v), 0..4).prop_map(MultipartReply::FlowMonitor);
        let bodies = prop_oneof![
            request.prop_map(|request| Body::MultipartRequest { more: false, request }),
            reply.prop_map(|reply| Body::MultipartReply { more: false, reply }),
        ]
        .prop_map(move |body| (dialect_of(v), body));
        let others = prop_oneof![
            any::<u32>().prop_map(Body::FlowMonitorCancel),
            Just(Body::FlowMonitorPaused),
            Just(Body::FlowMonitorResumed)
        ];
        if v >= Version::V1_4 {
            return bodies.boxed();
        }
        prop_oneof![4 => bodies, 1 => others.prop_map(|body| (Dialect::Standard, body))].boxed()
    };
    version().prop_flat_map(move |v| (Just(v), of_version(v))).prop_map(|(v, (d, body))| message((v, d, body)))
}
