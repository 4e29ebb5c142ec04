//! What is known about a datapath flow: whom to credit with its packets, and what it depends on.
//!
//! The record is the tag of the datapath flow. It never changes: a revalidation that keeps the flow may replace the
//! record.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapath::FlowStats;
use export::netflow::{Credit, FlowKey, NetFlow};
use openflow::{GroupId, OfPort};
use packet::flow::{BLOCKS, BlockId};
use packet::wire::tcp::flags;
use packet::{Key, Time};
use smallvec::SmallVec;

use crate::model::bond::{BondVersion, BucketCounters};
use crate::model::forwarding::{BridgeId, BridgeState, Forwarding, PatchCounters};
use crate::model::group::GroupCounters;
use crate::model::mirror::MirrorCounters;
use crate::model::number_changes::{Changed, LookedAt};
use crate::model::underlay::Hop;
use crate::slowpath::drop_sites::DropSite;
use crate::slowpath::mac_dependents::MacDependencies;
use crate::table::{Caps, RuleStats, TableCounters};

/// The record of a flow, or of a translation.
#[derive(Default)]
pub(crate) struct FlowRecord {
    /// The generation at which the translation began.
    pub generation: u64,
    /// The latest generation at which it was known that nothing it depends on had changed since, MAC tables apart
    /// ([`Forwarding::affecting`]): so for each flow that has the record.
    pub valid_at: AtomicU64,
    /// The rules that the packets pass, one entry for each time.
    pub rules: SmallVec<[Arc<RuleStats>; 2]>,
    /// The tables looked up, and whether a rule was found. Also tells that it depends on them.
    pub tables: SmallVec<[(Arc<TableCounters>, bool); 1]>,
    /// The patch ports crossed: sending end, receiving end.
    pub patches: Vec<(Arc<PatchCounters>, Arc<PatchCounters>)>,
    /// The tunnel ports that the packets pass, and how.
    pub tunnels: Vec<(Arc<PatchCounters>, Through)>,
    /// Which of those credited get the bytes of a tunnel's headers with each packet.
    pub below: Vec<Below>,
    /// How the ends of tunnels are reached.
    pub hops: Vec<Arc<Hop>>,
    /// The bonds that the outcome depends on.
    pub bonds: Vec<Arc<BondVersion>>,
    /// The buckets of bonds that the packets pass, where the datapath has no table of the bond.
    pub buckets: Vec<(Arc<BucketCounters>, u8)>,
    /// Groups and buckets that the packets pass.
    pub groups: Vec<Arc<GroupCounters>>,
    /// The rules whose timeouts a connection's end lowers, with the idle and hard timeout (`fin_timeout`).
    pub fin_timeouts: Vec<(Arc<Caps>, u16, u16)>,
    /// The mirrors that got copies.
    pub mirrors: Vec<Arc<MirrorCounters>>,
    /// Where the packets are dropped, if the tables say so.
    pub drop_site: Option<Arc<DropSite>>,
    /// The addresses that NORMAL looked up and learnt from.
    pub macs: MacDependencies,
    /// What else the translation looked at, for each bridge.
    pub deps: SmallVec<[Deps; 1]>,
    /// The flows that the packets teach, and which are there.
    pub learns: Vec<Learns>,
    /// A port was looked for by its name, and is not there.
    pub looks_for_ports: bool,
    /// The next packet has to be translated again: it would change a MAC table or a flow table.
    pub volatile: bool,
    /// Which of NetFlow's flows the packets belong to.
    pub netflow: Option<Box<NetflowCredit>>,
    /// Keeps recirculation states and punts alive, and tells what it depends on
    /// ([`BridgeState::groups_have_dependents`]).
    pub holds: Vec<Arc<dyn Any + Send + Sync>>,
}

/// Which of NetFlow's flows packets belong to.
pub(crate) struct NetflowCredit {
    /// The flows of the bridge.
    pub flows: Arc<NetFlow>,
    /// Which one.
    pub key: FlowKey,
    /// Where its packets go.
    pub output: u16,
}

impl NetflowCredit {
    fn is_same(&self, other: &NetflowCredit) -> bool {
        Arc::ptr_eq(&self.flows, &other.flows) && (self.key, self.output) == (other.key, other.output)
    }
}

/// A flow that packets teach: where it is, and what it matches.
pub(crate) struct Learns {
    pub bridge: BridgeId,
    pub table: u8,
    /// Tells the match from nearly all others ([`Pattern::fingerprint`](crate::table::Pattern::fingerprint)).
    pub matching: u64,
    /// The flow, where it is there as it is taught: each packet renews it.
    pub renews: Option<Arc<RuleStats>>,
}

impl Learns {
    fn is_same(&self, other: &Learns) -> bool {
        (self.bridge, self.table, self.matching) == (other.bridge, other.table, other.matching)
            && self.renews.as_ref().map(Arc::as_ptr) == other.renews.as_ref().map(Arc::as_ptr)
    }
}

/// How packets pass a tunnel port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Through {
    /// They enter the tunnel.
    Sent,
    /// They have left it.
    Received,
}

/// What the packets pass in the network below a tunnel, where they are longer by its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Below {
    /// Bytes of the headers.
    headers: u16,
    /// How many of each there were before, and afterwards.
    from: Passed,
    to: Passed,
}

/// How many rules, patch ports, tunnels and groups packets have passed, and mirrors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passed([u32; 5]);

/// What a translation looked at in one bridge.
pub(crate) struct Deps {
    pub bridge: BridgeId,
    tables: [u64; 4],
    /// Which parts of the key differed from the packet's when a table was looked up, where any did.
    overwritten: Vec<(u8, Parts)>,
    /// By the numbers of OpenFlow 1.0, which all ports have.
    ports: LookedAt<u16, 7>,
    groups: LookedAt<u32, 3>,
}

/// A set of parts of a key, of four bytes each: fine enough that a decremented TTL does not hide the address beside it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Parts([u64; 3]);

impl Parts {
    /// Every part.
    pub const ALL: Parts = Parts([u64::MAX; 3]);

    /// The parts in which two keys differ. The pipeline's own fields are left out.
    pub fn of_difference(a: &Key, b: &Key) -> Parts {
        let mut parts = Parts::default();
        for block in packet::flow::Blocks(a.present().0 | b.present().0).iter() {
            if matches!(block, BlockId::Pipeline | BlockId::Regs) {
                continue;
            }
            for (word, (a, b)) in a.block(block).words().iter().zip(b.block(block).words()).enumerate() {
                let bytes = (a ^ b).to_ne_bytes();
                for half in 0..2 {
                    if bytes[4 * half..4 * half + 4] != [0; 4] {
                        parts.insert(block, 8 * word + 4 * half);
                    }
                }
            }
        }
        parts
    }

    /// Adds the part with this byte of a block.
    pub fn insert(&mut self, block: BlockId, byte: usize) {
        let part = block as usize * 16 + byte / 4;
        self.0[part / 64] |= 1 << (part % 64);
    }

    /// The set as bits, for a table to keep ([`Table::note_overwritten`](crate::table::Table::note_overwritten)).
    pub fn bits(self) -> [u64; 3] {
        self.0
    }

    /// The set with these bits.
    pub fn from_bits(bits: [u64; 3]) -> Parts {
        Parts(bits)
    }

    fn has(self, part: usize) -> bool {
        self.0[part / 64] >> (part % 64) & 1 != 0
    }

    /// The set's bits of a word of a block.
    pub fn word(self, block: BlockId, word: usize) -> u64 {
        let mut bytes = [0; 8];
        for half in 0..2 {
            if self.has(block as usize * 16 + 2 * word + half) {
                bytes[4 * half..4 * half + 4].fill(0xff);
            }
        }
        u64::from_ne_bytes(bytes)
    }

    fn add(&mut self, other: Parts) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }
}

const _: () = assert!(BLOCKS * 16 <= 3 * 64);

impl Deps {
    /// Whether a table was looked up.
    pub fn has_table(&self, table: u8) -> bool {
        self.tables[usize::from(table) / 64] >> (table % 64) & 1 != 0
    }

    /// Whether some of these groups were looked at.
    pub fn has_groups(&self, groups: &Changed<u32>) -> bool {
        self.groups.has_any_of(groups)
    }

    /// The ports that were looked at, unless all were.
    pub fn ports(&self) -> &[u16] {
        self.ports.some()
    }

    /// Whether some of these ports were looked at.
    pub fn has_ports(&self, ports: &Changed<u16>) -> bool {
        self.ports.has_any_of(ports)
    }

    /// Which parts of the key differed from the packet's at any look-up of a table.
    pub fn overwritten_at(&self, table: u8) -> Parts {
        self.overwritten.iter().find(|(of, _)| *of == table).map_or(Parts::default(), |(_, parts)| *parts)
    }
}

impl FlowRecord {
    /// Notes that a table was looked up, by a key that differed from the packet's in these parts.
    pub fn depends_on_table(&mut self, bridge: BridgeId, table: u8, overwritten: Parts) {
        let deps = self.deps(bridge);
        deps.tables[usize::from(table) / 64] |= 1 << (table % 64);
        if overwritten != Parts::default() {
            match deps.overwritten.iter_mut().find(|(of, _)| *of == table) {
                Some((_, parts)) => parts.add(overwritten),
                None => deps.overwritten.push((table, overwritten)),
            }
        }
    }

    /// Tells the tables which parts of the key were overwritten before they were looked up. What a flow that is learnt matches has
    /// nothing to do with the key.
    pub fn tell_overwritten(&self, forwarding: &Forwarding) {
        for learns in &self.learns {
            if let Some(bridge) = forwarding.bridges.get(&learns.bridge) {
                bridge.tables[usize::from(learns.table)].note_overwritten(Parts::ALL.bits());
            }
        }
        for deps in self.deps.iter().filter(|deps| !deps.overwritten.is_empty()) {
            let Some(bridge) = forwarding.bridges.get(&deps.bridge) else { continue };
            for (table, parts) in &deps.overwritten {
                bridge.tables[usize::from(*table)].note_overwritten(parts.bits());
            }
        }
    }

    /// What the packets have passed so far.
    pub fn passed(&self) -> Passed {
        let lists = [self.rules.len(), self.patches.len(), self.tunnels.len(), self.groups.len(), self.mirrors.len()];
        Passed(lists.map(|len| len as u32))
    }

    /// Notes that the packets have had headers before them since `from`.
    pub fn pass_below(&mut self, headers: u16, from: Passed) {
        let to = self.passed();
        if from != to {
            self.below.push(Below { headers, from, to });
        }
    }

    /// Notes that a group was looked at, whether it is there or not.
    pub fn depends_on_group(&mut self, bridge: &BridgeState, group: GroupId) {
        let deps = self.deps(bridge.id);
        let had_some = deps.groups.has_some();
        deps.groups.add(group.0);
        if !had_some {
            self.holds.push(bridge.group_dependents.clone());
        }
    }

    /// Notes that a port was looked at, whether it is there or not.
    pub fn depends_on_port(&mut self, bridge: BridgeId, port: OfPort) {
        // Other numbers are no ports, and never will be.
        if let Some(port) = port.to_u16() {
            self.deps(bridge).ports.add(port);
        }
    }

    /// Notes that all ports of a bridge were looked at.
    pub fn depends_on_all_ports(&mut self, bridge: BridgeId) {
        self.deps(bridge).ports.add_all();
    }

    /// Notes that the outcome depends on a bond.
    pub fn depends_on_bond(&mut self, version: &Arc<BondVersion>) {
        if !self.bonds.iter().any(|known| Arc::ptr_eq(known, version)) {
            self.bonds.push(version.clone());
        }
    }

    fn deps(&mut self, bridge: BridgeId) -> &mut Deps {
        let index = self.deps.iter().position(|deps| deps.bridge == bridge).unwrap_or_else(|| {
            let tables = [0; 4];
            let (ports, groups) = (LookedAt::default(), LookedAt::default());
            self.deps.push(Deps { bridge, tables, overwritten: Vec::new(), ports, groups });
            self.deps.len() - 1
        });
        &mut self.deps[index]
    }

    /// Whether it has nothing but rules and tables.
    pub fn is_plain(&self) -> bool {
        let tunnels = self.tunnels.len() + self.hops.len() + self.bonds.len();
        let others = [
            self.patches.len(),
            tunnels,
            self.groups.len(),
            self.fin_timeouts.len(),
            self.mirrors.len(),
            self.learns.len(),
            self.holds.len(),
        ];
        others == [0; 7] && self.macs.is_empty() && !self.volatile && self.netflow.is_none()
    }

    /// Whether it is about the addresses of one packet, so that other flows hardly ever have an equivalent one.
    pub fn is_for_one_flow(&self) -> bool {
        !self.macs.is_empty() || self.netflow.is_some() || !self.learns.is_empty()
    }

    /// Whether both credit the same and depend on the same, whenever they were made.
    pub fn is_equivalent(&self, other: &FlowRecord) -> bool {
        let same_rules = same(&self.rules, &other.rules, Arc::ptr_eq);
        let same_tables = same(&self.tables, &other.tables, |a, b| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1);
        let patch = |a: &(Arc<PatchCounters>, _), b: &(Arc<PatchCounters>, _)| Arc::ptr_eq(&a.0, &b.0);
        let deps = |a: &Deps, b: &Deps| {
            (a.bridge, a.tables, a.ports, a.groups) == (b.bridge, b.tables, b.ports, b.groups)
                && a.overwritten == b.overwritten
        };
        same_rules
            && same_tables
            && same(&self.patches, &other.patches, patch)
            && same(&self.tunnels, &other.tunnels, |a, b| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1)
            && self.below == other.below
            && same(&self.hops, &other.hops, Arc::ptr_eq)
            && same(&self.bonds, &other.bonds, Arc::ptr_eq)
            && same(&self.buckets, &other.buckets, |a, b| Arc::ptr_eq(&a.0, &b.0) && a.1 == b.1)
            && same(&self.groups, &other.groups, Arc::ptr_eq)
            && same(&self.fin_timeouts, &other.fin_timeouts, |a, b| Arc::ptr_eq(&a.0, &b.0) && (a.1, a.2) == (b.1, b.2))
            && same(&self.mirrors, &other.mirrors, Arc::ptr_eq)
            && self.drop_site.as_ref().map(Arc::as_ptr) == other.drop_site.as_ref().map(Arc::as_ptr)
            && self.macs.is_equivalent(&other.macs)
            && same(&self.deps, &other.deps, deps)
            && same(&self.learns, &other.learns, Learns::is_same)
            && match (&self.netflow, &other.netflow) {
                (None, None) => true,
                (Some(a), Some(b)) => a.is_same(b),
                _ => false,
            }
            && (self.volatile, self.looks_for_ports) == (other.volatile, other.looks_for_ports)
            && same(&self.holds, &other.holds, |a, b| std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)))
    }

    /// The record in as little memory as it needs.
    pub fn compact(mut self) -> FlowRecord {
        self.rules.shrink_to_fit();
        self.tables.shrink_to_fit();
        self.deps.shrink_to_fit();
        self.macs.shrink_to_fit();
        self.bonds.shrink_to_fit();
        self.buckets.shrink_to_fit();
        self.learns.shrink_to_fit();
        self
    }

    /// Whether something that the translation depended on has changed since, other than where addresses are
    /// ([`MacDependencies::is_stale`]).
    pub fn is_stale(&self, forwarding: &Forwarding) -> bool {
        let generation = self.generation;
        forwarding.all_changed > generation
            || self.looks_for_ports && forwarding.changed > generation
            || self.has_stale_hop()
            || self.has_stale_bond()
            || self.learns.iter().any(|learns| {
                let bridge = forwarding.bridges.get(&learns.bridge);
                bridge.is_none_or(|bridge| bridge.tables[usize::from(learns.table)].changed > generation)
            })
            || self.deps.iter().any(|deps| {
                let Some(bridge) = forwarding.bridges.get(&deps.bridge) else { return true };
                let tables = deps.tables.iter().enumerate().flat_map(|(i, &bits)| {
                    (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| i * 64 + bit)
                });
                if tables.into_iter().any(|table| bridge.tables[table].changed > generation) {
                    return true;
                }
                deps.ports.has_changed(&bridge.port_changes, generation)
                    || deps.groups.has_changed(&bridge.group_changes, generation)
            })
    }

    /// Whether the end of some tunnel is reached otherwise now.
    pub fn has_stale_hop(&self) -> bool {
        self.hops.iter().any(|hop| hop.is_stale())
    }

    /// Whether a bond has changed since.
    pub fn has_stale_bond(&self) -> bool {
        self.bonds.iter().any(|bond| bond.changed() > self.generation)
    }

    /// Credits packets; `tcp_flags` are those of all of them.
    pub fn credit(&self, packets: u64, bytes: u64, used: Time, tcp_flags: u16) {
        if tcp_flags & (flags::FIN | flags::RST) != 0 {
            self.fin_timeouts.iter().for_each(|(caps, idle, hard)| caps.lower(*idle, *hard));
        }
        for (table, matched) in &self.tables {
            table.add(*matched, packets);
        }
        if let Some(site) = &self.drop_site {
            site.add(packets, bytes);
        }
        self.learns.iter().filter_map(|learns| learns.renews.as_ref()).for_each(|rule| rule.note_taught(used));
        self.hops.iter().for_each(|hop| hop.note_use(used));
        if let Some(netflow) = &self.netflow {
            netflow.flows.credit(&netflow.key, &Credit { output: netflow.output, packets, bytes, used, tcp_flags });
        }
        self.buckets.iter().for_each(|(counters, bucket)| counters.add(*bucket, packets, bytes));
        self.credit_passed(Passed([0; 5]), self.passed(), packets, bytes, used);
        for Below { headers, from, to } in &self.below {
            self.credit_passed(*from, *to, 0, packets * u64::from(*headers), used);
        }
    }

    /// Credits what comes after `from` up to `to`.
    fn credit_passed(&self, Passed(from): Passed, Passed(to): Passed, packets: u64, bytes: u64, used: Time) {
        fn part<T>(all: &[T], from: u32, to: u32) -> &[T] {
            all.get(from as usize..to as usize).unwrap_or_default()
        }
        let count = |of_packets: &AtomicU64, of_bytes: &AtomicU64| {
            of_packets.fetch_add(packets, Relaxed);
            of_bytes.fetch_add(bytes, Relaxed);
        };
        for rule in part(&self.rules, from[0], to[0]) {
            rule.add(packets, bytes, used);
        }
        for (tx, rx) in part(&self.patches, from[1], to[1]) {
            count(&tx.tx_packets, &tx.tx_bytes);
            count(&rx.rx_packets, &rx.rx_bytes);
        }
        for (counters, through) in part(&self.tunnels, from[2], to[2]) {
            match through {
                Through::Sent => count(&counters.tx_packets, &counters.tx_bytes),
                Through::Received => count(&counters.rx_packets, &counters.rx_bytes),
            }
        }
        for group in part(&self.groups, from[3], to[3]) {
            group.add(packets, bytes);
        }
        for mirror in part(&self.mirrors, from[4], to[4]) {
            mirror.add(packets, bytes);
        }
    }

    /// Tells NetFlow that a datapath flow has ended. Other datapath flows with its packets begin another flow there.
    pub fn end_netflow(&self) {
        if let Some(netflow) = &self.netflow {
            netflow.flows.end(&netflow.key);
        }
    }

    /// Credits a part of a flow's counters. The flow may have gone meanwhile, or it still `exists`.
    pub fn credit_stats(&self, forwarding: &Forwarding, stats: &FlowStats, exists: bool) {
        if stats.packets > 0 {
            self.credit(stats.packets, stats.bytes, stats.used, stats.tcp_flags);
            self.macs.note_use(forwarding, stats.used, exists);
        }
    }
}

fn same<T>(a: &[T], b: &[T], equal: impl Fn(&T, &T) -> bool) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
}
