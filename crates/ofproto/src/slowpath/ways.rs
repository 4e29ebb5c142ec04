//! Translations that are used again for packets that go the same way through the tables.
//!
//! A translation that copies parts of the packet to registers is of no use to another packet by its mask: that matches
//! what was copied. But where nothing has looked at these registers, it says by which bits it was
//! [decided](crate::xlate::Translation::decided_by). The outcome for any packet that agrees in these is the same, mask and
//! record included, as long as nothing has changed. The latest ones are kept here.

use std::sync::Arc;

use datapath::Action;
use packet::{Key, Mask};
use parking_lot::Mutex;

use crate::model::forwarding::Forwarding;
use crate::slowpath::record::FlowRecord;

/// Sets: an input port and a protocol select one.
const SETS: usize = 64;
/// Ways in each.
const IN_SET: usize = 4;

/// What a translation has come to.
#[derive(Clone)]
pub(crate) struct Outcome {
    pub record: Arc<FlowRecord>,
    pub mask: Arc<Mask>,
    pub actions: Arc<[Action]>,
}

/// A translation that can be used again.
struct Way {
    /// The generation of the tables.
    generation: u64,
    decided_by: Box<Mask>,
    /// The values of these bits, in a packet's key as the datapath has it.
    values: Box<Key>,
    outcome: Outcome,
}

/// The latest ways.
pub(crate) struct Ways(Box<[Mutex<Set>]>);

#[derive(Default)]
struct Set {
    ways: [Option<Way>; IN_SET],
    /// The one that is replaced next.
    next: usize,
}

impl Default for Ways {
    fn default() -> Ways {
        Ways((0..SETS).map(|_| Mutex::default()).collect())
    }
}

impl Ways {
    /// The outcome for a packet with this key, if it is known.
    pub fn find(&self, forwarding: &Forwarding, key: &Key) -> Option<Outcome> {
        let generation = forwarding.generation();
        let set = self.set_of(key).lock();
        let fits = |way: &&Way| way.generation == generation && key.matches(&way.values, &way.decided_by);
        set.ways.iter().flatten().find(fits).map(|way| way.outcome.clone())
    }

    /// Adds the outcome of the translation of this key.
    pub fn add(&self, forwarding: &Forwarding, key: &Key, decided_by: Box<Mask>, outcome: &Outcome) {
        let values = Box::new(key.masked(&decided_by));
        let way = Way { generation: forwarding.generation(), decided_by, values, outcome: outcome.clone() };
        let mut set = self.set_of(key).lock();
        let next = set.next;
        set.next = (next + 1) % IN_SET;
        set.ways[next] = Some(way);
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.0.iter().for_each(|set| *set.lock() = Set::default());
    }

    fn set_of(&self, key: &Key) -> &Mutex<Set> {
        let common = key.common();
        let protocol = u64::from(common.dl_type.get()) << 8 | u64::from(common.nw_proto);
        let hash = (u64::from(common.in_port.get()) << 24 ^ protocol).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(hash >> 32) as usize % SETS]
    }
}

#[cfg(test)]
mod tests {
    use datapath::{Miss, Upcall, Verdict};
    use openflow::text::parse_flow_mod;
    use openflow::{FlowModCommand, OfPort};
    use packet::flow::extract::VlanLimit;
    use packet::flow::text::NoNames;
    use packet::wire::build;
    use packet::{Clock, Packet};
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::reference::tests::Bed;

    /// Adds a rule. Returns whether it is one: fields have prerequisites.
    fn add(bed: &Bed, rule: &str) -> bool {
        let change = parse_flow_mod(FlowModCommand::Add, rule, &NoNames);
        change.is_ok_and(|change| bed.bridge.flow_mod(&change).is_ok())
    }

    /// A miss that comes in at port 1.
    fn miss(bed: &Bed, frame: &[u8]) -> Miss {
        let mut key = Box::new(Key::new());
        let layers = packet::flow::extract(frame, &mut key, VlanLimit::default());
        let forwarding = bed.switch.forwarding.read();
        let (port, _) = forwarding.by_dp_port.iter().find(|(_, (_, port))| *port == OfPort(1)).unwrap();
        key.common_mut().in_port = port.0.into();
        Miss { packet: Packet::from_slice(frame), key, layers, hash: 0, counted: false, verdict: Verdict::Pending }
    }

    fn frame(tcp: bool, [source, destination, address, tos]: [u8; 4]) -> Vec<u8> {
        let l4 = match tcp {
            true => build::tcp(source.into(), destination.into(), 0x10, b""),
            false => build::udp(source.into(), destination.into(), b""),
        };
        let proto = if tcp { 6 } else { 17 };
        let ip = build::Ipv4 { src: [10, 0, 0, address].into(), proto, tos: tos << 2, ..build::Ipv4::default() };
        build::ethernet([2; 6], [4, 0, 0, 0, 0, address], &[], 0x0800, &ip.packet(l4))
    }

    /// Asks about a packet, and compares the answer with a fresh translation. Returns whether it is of a known way.
    fn check(bed: &Bed, frame: &[u8]) -> bool {
        let mut misses = [miss(bed, frame)];
        let known = {
            let forwarding = bed.switch.forwarding.read();
            bed.switch.records.ways.find(&forwarding, &misses[0].key).is_some()
        };
        bed.switch.misses(&mut misses, bed.clock.now());
        let [Miss { verdict, key, .. }] = misses;
        let Verdict::Install { mask, actions, tag } = verdict else { panic!("a flow is asked for") };
        let forwarding = bed.switch.forwarding.read();
        let fresh = bed.switch.translate_dp(&forwarding, &key, None, bed.clock.now()).unwrap();
        assert_eq!(*mask, fresh.mask);
        assert_eq!(actions[..], fresh.actions[..]);
        assert!(tag.downcast_ref::<FlowRecord>().unwrap().is_equivalent(&fresh.record));
        known
    }

    #[test]
    fn packets_that_differ_in_what_is_only_copied_go_one_way_until_something_changes() {
        let bed = Bed::new(4);
        assert!(add(&bed, "udp,actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],resubmit(,1)"));
        assert!(add(&bed, "table=1,actions=output:2"));
        let udp = |port| frame(false, [port, 1, 1, 0]);
        assert_eq!([1, 2, 3].map(|port| check(&bed, &udp(port))), [false, true, true]);
        assert!(add(&bed, "table=1,priority=40000,reg0=2,actions=output:3"));
        assert_eq!([1, 2, 3].map(|port| check(&bed, &udp(port))), [false; 3], "the copy is looked at");
    }

    #[test]
    fn a_copy_that_names_a_zone_or_comes_back_decides() {
        for action in [
            "ct(commit,zone=NXM_NX_REG0[0..15])",
            "ct(commit,exec(move:NXM_NX_REG0[0..15]->NXM_NX_CT_MARK[0..15]))",
            "ct(table=1)",
        ] {
            let bed = Bed::new(4);
            assert!(add(&bed, &format!("udp,actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15],{action},output:2")));
            let udp = |port| frame(false, [port, 1, 1, 0]);
            assert_eq!([1, 2, 3, 1].map(|port| check(&bed, &udp(port))), [false; 4], "{action}");
        }
    }

    /// What a rule does, in parts. What is looked at, rewritten, or sent to controllers, is a copy in some of them.
    const PARTS: [&str; 19] = [
        "move:NXM_OF_UDP_SRC[]->NXM_NX_REG0[0..15]",
        "move:NXM_OF_UDP_DST[]->NXM_NX_REG1[16..31]",
        "move:NXM_OF_TCP_DST[]->NXM_NX_REG0[0..15]",
        "move:NXM_OF_IP_SRC[]->NXM_NX_REG2[]",
        "move:NXM_OF_IP_TOS[2..7]->NXM_NX_REG1[0..5]",
        "move:NXM_OF_ETH_SRC[0..15]->OXM_OF_METADATA[0..15]",
        "move:NXM_NX_REG0[0..15]->NXM_NX_REG1[0..15]",
        "move:NXM_NX_REG0[0..7]->NXM_OF_ETH_DST[0..7]",
        "set_field:3->reg0",
        "set_field:1->nw_tos",
        "set_field:9->tp_dst",
        "dec_ttl",
        "output:2",
        "output:3",
        "resubmit(,1)",
        "resubmit(,2)",
        "ct(zone=NXM_NX_REG0[0..15])",
        "ct(commit,exec(move:NXM_NX_REG1[0..15]->NXM_NX_CT_MARK[0..15]))",
        "ct(table=2)",
    ];

    const MATCHES: [&str; 12] = [
        "udp",
        "udp,tp_dst=2",
        "udp,reg1=3",
        "tcp",
        "ip",
        "udp,tp_src=1",
        "reg0=1",
        "reg1=0x10000/0x10000",
        "metadata=1",
        "udp,reg0=2,tp_dst=1",
        "ip,nw_src=10.0.0.0/30",
        "ip,reg2=0x0a000001",
    ];

    fn rule() -> impl Strategy<Value = String> {
        let parts = prop::collection::vec(select(&PARTS[..]), 1..5);
        (0..3u8, 1..4u16, select(&MATCHES[..]), parts).prop_map(|(table, priority, matching, parts)| {
            // Later tables only: no loops.
            let later = |part: &&str| (table < 1 || *part != "resubmit(,1)") && (table < 2 || *part != "resubmit(,2)");
            let parts: Vec<_> = parts.into_iter().filter(later).collect();
            let actions = if parts.is_empty() { "drop".into() } else { parts.join(",") };
            format!("table={table},priority={priority},{matching},actions={actions}")
        })
    }

    proptest! {
        /// Every answer is that of a fresh translation, whatever is copied, looked at and changed.
        #[test]
        fn answers_are_those_of_fresh_translations(
            rules in prop::collection::vec(rule(), 1..12),
            steps in prop::collection::vec((any::<bool>(), [0..4u8, 0..4u8, 0..4u8, 0..3u8], prop::option::weighted(0.05, rule())), 1..60),
        ) {
            let bed = Bed::new(4);
            for rule in &rules {
                add(&bed, rule);
            }
            for (tcp, values, change) in steps {
                if let Some(rule) = change {
                    add(&bed, &rule);
                }
                check(&bed, &frame(tcp, values));
            }
        }
    }
}
