//! `coverage/...`: counters of events, and their recent rates.
//!
//! Names are those of OVS where an event is the same. What the datapath drops has one for each reason, and what it does not
//! track.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::time::Duration;

use datapath::DropReason;
use datapath::conntrack::counters::Counter;
use ofproto::model::mac::MacStats;
use protocols::mcast;

use super::Context;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;
use crate::unixctl::server::{RECEIVED, REPLIED};

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "coverage/show" "" (0, 0) now!(show), "Counters of events, with their rates.";
    "coverage/read-counter" "COUNTER" (1, 1) now!(read_counter), "One counter.";
};

/// How often counters are looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// Looks in a minute.
const MINUTE: usize = 12;
/// Minutes in an hour.
const HOUR: usize = 60;

/// What the counters were.
#[derive(Default)]
pub struct History(RefCell<Past>);

#[derive(Default)]
struct Past {
    /// The last minute, a value for each counter; the latest last.
    recent: VecDeque<Vec<u64>>,
    /// The last hour, once in a minute.
    minutes: VecDeque<Vec<u64>>,
    looks: usize,
}

impl Past {
    fn look(&mut self, values: Vec<u64>) {
        if self.looks.is_multiple_of(MINUTE) {
            push(&mut self.minutes, values.clone(), HOUR + 1);
        }
        push(&mut self.recent, values, MINUTE + 1);
        self.looks += 1;
    }

    /// Events for each second of the last interval, minute and hour, averaged over the whole of each.
    fn rates(&self, counter: usize, now: u64) -> [f64; 3] {
        let rise = |values: &VecDeque<Vec<u64>>, back: usize| {
            let past = values.len().checked_sub(back).and_then(|at| values.get(at)).or(values.front());
            now.saturating_sub(past.map_or(0, |values| values[counter])) as f64
        };
        let minute = INTERVAL.as_secs_f64() * MINUTE as f64;
        [
            rise(&self.recent, 1) / INTERVAL.as_secs_f64(),
            rise(&self.recent, MINUTE) / minute,
            rise(&self.minutes, HOUR) / (minute * HOUR as f64),
        ]
    }
}

fn push(values: &mut VecDeque<Vec<u64>>, latest: Vec<u64>, most: usize) {
    values.push_back(latest);
    if values.len() > most {
        values.pop_front();
    }
}

/// Samples the counters for as long as the daemon runs, on the management thread.
pub fn watch(context: &Rc<Context>) {
    let context = Rc::downgrade(context);
    tokio::task::spawn_local(async move {
        while let Some(context) = Weak::upgrade(&context) {
            let values = read(&context).into_iter().map(|(_, value)| value).collect();
            context.coverage.0.borrow_mut().look(values);
            drop(context);
            tokio::time::sleep(INTERVAL).await;
        }
    });
}

/// What counters are read of.
struct Sources<'a> {
    context: &'a Context,
    stats: datapath::Stats,
    netlink: ports::link::NetlinkCounters,
    conntrack: ::conntrack::table::Counts,
    macs: Vec<MacStats>,
    groups: Vec<mcast::Stats>,
}

impl<'a> Sources<'a> {
    fn of(context: &'a Context) -> Sources<'a> {
        Sources {
            context,
            stats: context.engine.datapath.stats(),
            netlink: ports::link::netlink_counters(),
            conntrack: context.engine.datapath.conntrack().tracker.table.counts(),
            macs: context.engine.switch.bridges().iter().map(|bridge| bridge.mac_stats()).collect(),
            groups: context.engine.switch.bridges().iter().map(|bridge| bridge.multicast_stats()).collect(),
        }
    }

    /// A sum over the workers. What workers have counted that have ended since is not forgotten.
    fn workers(&self, of: impl Fn(&datapath::WorkerStats) -> u64) -> u64 {
        self.stats.workers.iter().chain([&self.stats.ended]).map(of).sum()
    }

    /// A sum over the bridges that snoop on multicast.
    fn groups(&self, of: impl Fn(&mcast::Stats) -> u64) -> u64 {
        self.groups.iter().map(of).sum()
    }

    /// A sum over the bridges' tables of addresses.
    fn macs(&self, of: impl Fn(&MacStats) -> u64) -> u64 {
        self.macs.iter().map(of).sum()
    }
}

/// A counter that is neither a reason to drop nor one of connection tracking: its name, what it means, and its value.
type Event = (&'static str, &'static str, fn(&Sources<'_>) -> u64);

/// The counters, with OVS's names where it has them.
const EVENTS: &[Event] = &[
    ("datapath_received", "Packets that workers took from ports.", |s| s.workers(|w| w.received)),
    ("datapath_recirculated", "Passes after the first one through the datapath's flows.", |s| {
        s.workers(|w| w.recirculated)
    }),
    ("datapath_sent", "Packets that ports took.", |s| s.workers(|w| w.sent)),
    ("datapath_upcall", "Packets that no datapath flow matched.", |s| s.workers(|w| w.misses + w.lost)),
    ("netlink_overflow", "Times that the kernel lost notices about interfaces; all are then read anew.", |s| {
        s.netlink.overflows
    }),
    ("netlink_received", "Messages about interfaces from the kernel.", |s| s.netlink.received),
    ("netlink_sent", "Messages about interfaces to the kernel.", |s| s.netlink.sent),
    ("rev_reconfigure", "Times that a configuration was applied.", |s| s.context.configurator.changes()),
    ("export_queue_overflow", "Samples that found no room on their way to the exporter.", |s| {
        s.context.engine.switch.exporter().lost()
    }),
    ("unixctl_received", "Commands that the control socket received.", |_| RECEIVED.load(Ordering::Relaxed)),
    ("unixctl_replied", "Commands that it answered.", |_| REPLIED.load(Ordering::Relaxed)),
    ("mcast_snooping_learned", "Multicast groups and routers that bridges learnt.", |s| s.groups(|g| g.learned)),
    ("mcast_snooping_expired", "Members of multicast groups, and routers, that were not heard for too long.", |s| {
        s.groups(|g| g.expired)
    }),
    ("mcast_snooping_evicted", "Members of multicast groups that made room for others.", |s| s.groups(|g| g.evicted)),
    ("mcast_snooping_bad", "Messages of IGMP and MLD that are wrong, and were not learnt from.", |s| {
        s.groups(|g| g.errors)
    }),
    ("mac_learning_learned", "Addresses that bridges learnt.", |s| s.macs(|m| m.learned)),
    ("mac_learning_expired", "Learnt addresses that were not seen for too long.", |s| s.macs(|m| m.expired)),
    ("mac_learning_evicted", "Learnt addresses that made room for others.", |s| s.macs(|m| m.evicted)),
    ("mac_learning_moved", "Learnt addresses that came to be behind another port.", |s| s.macs(|m| m.moved)),
    ("mac_learning_static_none_move", "Packets from static addresses that came in at other ports than theirs.", |s| {
        s.context.engine.switch.bridges().iter().map(|bridge| bridge.static_macs_elsewhere()).sum()
    }),
    (
        "drop_action_tunnel_neigh_cache_miss",
        "Packets for a tunnel whose next hop did not tell its address, or for which too many waited.",
        |s| s.context.engine.switch.neighbour_drops(),
    ),
    ("ofproto_slow_path_overflow", "Packets that are translated one by one, and of which too many waited.", |s| {
        s.context.engine.switch.slow_drops()
    }),
    ("ofproto_controller_overflow", "OpenFlow peers that were disconnected because too much waited for them.", |s| {
        s.context.engine.switch.overflown_connections()
    }),
    (
        "mac_learning_revalidated",
        "Datapath flows that were looked at because an address was learnt, moved or forgotten.",
        |s| s.context.engine.switch.mac_revalidations(),
    ),
    ("verify_checked", "Packets that were compared with the tables (other_config:verify-sampling).", |s| {
        s.context.engine.switch.verify_counts().checked()
    }),
    (
        "verify_disagreement",
        "Packets that the datapath forwarded otherwise than the tables say; the flow is removed.",
        |s| s.context.engine.switch.verify_counts().disagreements,
    ),
    ("verify_lost", "Packets that were chosen to be compared, and of which too many waited.", |s| {
        s.context.engine.switch.verify_counts().lost
    }),
    ("conntrack_made", "Connections that tracking began.", |s| s.conntrack.made),
    ("conntrack_ended", "Connections that ended or were removed.", |s| s.conntrack.removed),
    ("conntrack_early_drop", "Unanswered connections that made room for new ones.", |s| s.conntrack.dropped_early),
];

/// All counters, always in the same order.
fn read(context: &Context) -> Vec<(&'static str, u64)> {
    let sources = Sources::of(context);
    let mut counters: Vec<_> = EVENTS.iter().map(|(name, _, of)| (*name, of(&sources))).collect();
    let conntrack = context.engine.datapath.conntrack();
    counters.extend(Counter::ALL.iter().map(|&counter| (counter.name(), conntrack.counters.get(counter))));
    for &reason in DropReason::ALL {
        let dropped = |reason| sources.workers(|w| w.drops.get(reason));
        // OVS has one counter for whatever is wrong with the headers of a tunnel.
        let others: &[DropReason] = match reason {
            DropReason::TunnelHeader => {
                &[DropReason::TunnelChecksum, DropReason::TunnelFragment, DropReason::TunnelOption]
            }
            _ => &[],
        };
        let others: u64 = others.iter().map(|&reason| dropped(reason)).sum();
        counters.push((drop_counter(reason), dropped(reason) + others));
    }
    counters
}

/// The counter of a reason to drop.
fn drop_counter(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Rule => "drop_action_of_pipeline",
        DropReason::UpcallQueueFull => "datapath_drop_upcall_queue_full",
        DropReason::SampleLost => "datapath_drop_sample_error",
        DropReason::UpcallError => "datapath_drop_upcall_error",
        DropReason::RecursionTooDeep => "datapath_drop_recirc_error",
        DropReason::NoSuchPort => "datapath_drop_invalid_port",
        DropReason::PortDown => "datapath_drop_port_down",
        DropReason::TooBig => "datapath_drop_too_big",
        DropReason::EgressPolicer => "datapath_drop_egress_policer",
        DropReason::QueueFull => "datapath_drop_queue_full",
        DropReason::TunnelPort => "datapath_drop_invalid_tnl_port",
        DropReason::TunnelRoute => "drop_action_tunnel_routing_failed",
        DropReason::TunnelBuild => "drop_action_tunnel_header_build_failed",
        DropReason::TunnelHeader => "datapath_drop_tunnel_pop_error",
        DropReason::TunnelChecksum => "datapath_drop_tunnel_checksum",
        DropReason::TunnelFragment => "datapath_drop_tunnel_fragment",
        DropReason::TunnelOption => "datapath_drop_tunnel_option",
        DropReason::Congestion => "drop_action_congestion",
        DropReason::TunnelPush => "datapath_drop_tunnel_push_error",
        DropReason::Meter => "datapath_drop_meter",
        DropReason::Malformed => "datapath_drop_malformed",
        DropReason::FragmentOverlap => "datapath_drop_fragment_overlap",
        DropReason::FragmentExpired => "datapath_drop_fragment_expired",
        DropReason::FragmentPurged => "ipf_stuck_frag_list_purged",
        DropReason::NoBuffer => "datapath_drop_no_buffer",
        DropReason::TtlExceeded => "datapath_drop_ttl_exceeded",
        DropReason::InPortDown => "datapath_drop_in_port_down",
        DropReason::IngressFilter => "datapath_drop_ingress_filter",
        DropReason::IngressPolicer => "datapath_drop_ingress_policer",
        DropReason::PipelineDepth => "drop_action_recursion_too_deep",
        DropReason::TooManyResubmits => "drop_action_too_many_resubmit",
        DropReason::StackTooDeep => "drop_action_stack_too_deep",
        DropReason::TooManyLabels => "drop_action_too_many_mpls_labels",
        DropReason::UnsupportedPacketType => "drop_action_unsupported_packet_type",
        DropReason::TooMuchWork => "drop_action_too_much_work",
        DropReason::RecirculationStorm => "datapath_drop_recirculation_storm",
        DropReason::VlanNotAllowed => "datapath_drop_vlan_not_allowed",
        DropReason::Reflection => "datapath_drop_reflection",
        DropReason::ProtectedPort => "datapath_drop_protected_port",
        DropReason::BondAdmission => "datapath_drop_bond_admission",
        DropReason::ReservedAddress => "datapath_drop_reserved_address",
        DropReason::SpanningTree => "drop_action_forwarding_disabled",
        DropReason::NoMulticastReceiver => "datapath_drop_no_multicast_receiver",
        DropReason::MirrorPort => "datapath_drop_mirror_port",
        DropReason::Fragment => "datapath_drop_fragment",
    }
}

fn show(context: &Context, _: &[String]) -> Outcome {
    Ok(table(&read(context), &context.coverage.0.borrow()))
}

/// Counters that have counted, in OVS's columns.
fn table(counters: &[(&str, u64)], past: &Past) -> String {
    let mut lines = Vec::new();
    let mut hash = 0u32;
    for (i, &(name, total)) in counters.iter().enumerate().filter(|(_, (_, total))| *total > 0) {
        let [interval, minute, hour] = past.rates(i, total);
        // Tells apart which events have happened, and how often by orders of two.
        hash = (hash ^ (i as u32) << 8 ^ total.ilog2()).wrapping_mul(0x9e37_79b1).rotate_left(13);
        lines.push(format!("{name:<24} {interval:>5.1}/sec {minute:>9.3}/sec {hour:>13.4}/sec   total: {total}\n"));
    }
    lines.sort();
    let mut text =
        format!("Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash={hash:08x}:\n");
    text.extend(lines.iter().map(String::as_str));
    let _ = writeln!(text, "{} events never hit", counters.len() - lines.len());
    text
}

fn read_counter(context: &Context, args: &[String]) -> Outcome {
    let found = read(context).into_iter().find(|(name, _)| *name == args[0]);
    found.map(|(_, value)| value.to_string()).ok_or_else(|| "No such counter".into())
}

#[cfg(test)]
mod tests {
    use ports::drop::TxDrop;

    use super::*;

    #[test]
    fn rates_over_what_has_passed() {
        let mut past = Past::default();
        // Ten events in each interval, for two hours.
        for look in 0..1440 {
            past.look(vec![look * 10]);
        }
        let [interval, minute, hour] = past.rates(0, 1439 * 10 + 10);
        assert_eq!((interval, minute), (2.0, 2.0));
        assert!((hour - 2.0).abs() < 0.04, "{hour}");
        assert!(past.recent.len() <= MINUTE + 1 && past.minutes.len() <= HOUR + 1);
    }

    #[test]
    fn columns_are_those_of_ovs() {
        let text = table(&[("util_xalloc", 10744), ("never", 0)], &Past { looks: 1, ..Past::default() });
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("Event coverage, avg rate over last: 5 seconds, last minute, last hour,  hash="));
        assert_eq!(lines[1], "util_xalloc              2148.8/sec   179.067/sec        2.9844/sec   total: 10744");
        assert_eq!(lines[2], "1 events never hit");
    }

    #[test]
    fn the_guide_explains_each_counter() {
        let guide = include_str!("../../../../../docs/guide/counters.md");
        let explained = |begin: &str| guide.lines().any(|line| line.starts_with(begin) && line.len() > begin.len());
        let lines = EVENTS.iter().map(|(name, meaning, _)| format!("| `{name}` | {meaning} |"));
        let lines = lines.chain(Counter::ALL.iter().map(|c| format!("| `{}` | {} |", c.name(), c.describe())));
        for line in lines {
            assert!(guide.lines().any(|explained| explained == line), "docs/guide/counters.md lacks: {line}");
        }
        let drops = DropReason::ALL.iter().map(|&r| format!("| `{}` | `{}` | ", r.name(), drop_counter(r)));
        for begin in drops.chain(TxDrop::ALL.iter().map(|reason| format!("| `{}` | ", reason.name()))) {
            assert!(explained(&begin), "docs/guide/counters.md lacks what to do about: {begin}");
        }
    }

    #[test]
    fn each_reason_has_its_counter() {
        let drops = DropReason::ALL.iter().map(|&reason| drop_counter(reason));
        let names: std::collections::BTreeSet<_> = drops.chain(Counter::ALL.iter().map(|c| c.name())).collect();
        assert_eq!(names.len(), DropReason::ALL.len() + Counter::ALL.len());
    }
}
