//! What has changed since the datapath's flows were last brought up to date, and which flows it can be about.
//!
//! A flow is right for every packet that it matches. A changed rule is about none of them if some bit that the flow
//! matches differs from the rule's match, and its field came to the look-up as it came in. Then the flow stays right,
//! whatever the rule does and whatever its priority. So flows are sorted out by their masked keys, without a translation:
//!
//! - A translation notes which [parts](Parts) of the key differed from the packet's at a look-up. A part that did not
//!   differ in the bits that the flow matches does so for none of its packets: it came as it was, or was overwritten
//!   by a constant that these bits equal.
//! - What a flow matches that packets teach (`learn`) is compared with the changed rules' matches: it is about that rule, and no other.
//! - Registers, metadata and what else is the pipeline's own is never compared, nor are options of tunnels.
//! - The changed rules of a table are grouped by mask. For each mask of flows, a group is projected once: to the values
//!   that its rules have under the bits that the flows match, too. A flow is looked up there.
//!
//! The other way round, a few changed rules find the flows by an index that the datapath has ([`ChangeSet::find`]), without a
//! look at the others. It has nothing of translations. So only those parts are compared which came as they were for all
//! flows that depend on the table.

use std::sync::Arc;

use datapath::{Datapath, FlowId, FlowTag};
use hashbrown::{HashMap, HashSet};
use packet::flow::BlockId;
use packet::{Field, Key, Mask};

use crate::model::forwarding::{BridgeId, BridgeState, Forwarding};
use crate::model::number_changes::{Changed, NumberChanges};
use crate::slowpath::record::{FlowRecord, Learns, Parts};

/// Most projected values that are kept; beyond, they are made anew.
const MOST_VALUES: usize = 1 << 20;

/// What has changed. See the [module](self).
pub(crate) struct ChangeSet {
    /// The generation of the latest change.
    pub generation: u64,
    /// Settings have changed, or what else all flows may depend on.
    everything: bool,
    /// Ports have changed, of any bridge.
    any_port: bool,
    /// Routes or neighbours have changed.
    hops: bool,
    /// Bonds have changed.
    bonds: bool,
    bridges: Vec<BridgeChanges>,
}

struct BridgeChanges {
    bridge: BridgeId,
    groups: Changed<u32>,
    ports: Changed<u16>,
    tables: Vec<(u8, TableChanges)>,
}

enum TableChanges {
    /// Any rule may have changed.
    Unknown,
    Rules {
        groups: Vec<RuleGroup>,
        /// The same rules' matches, by their fingerprints.
        matches: HashSet<u64>,
        /// Which parts of the key are overwritten on the way to the table, for some flow.
        overwritten: Parts,
    },
}

/// Changed rules with one mask.
struct RuleGroup {
    mask: Mask,
    /// Their values, with datapath ports.
    values: Vec<Key>,
}

impl ChangeSet {
    /// What has changed since a generation and matters to flows, but for MAC tables (`mac_changes`).
    pub fn since(forwarding: &Forwarding, since: u64) -> ChangeSet {
        let everything = forwarding.all_changed > since;
        let any_port = forwarding.changed > since;
        let of_bridge = |state: &BridgeState| {
            let no_groups = NumberChanges::default();
            let groups = if state.groups_have_dependents() { &state.group_changes } else { &no_groups };
            let changed = state.tables.iter().zip(0u8..).filter(|(t, _)| t.changed > since && t.has_dependents());
            let of_table = |table: &crate::table::Table| match table.changes.since(since) {
                Some(patterns) => TableChanges::Rules {
                    matches: patterns.clone().map(|pattern| pattern.fingerprint()).collect(),
                    groups: group(state, patterns),
                    overwritten: Parts::from_bits(table.overwritten()),
                },
                None => TableChanges::Unknown,
            };
            BridgeChanges {
                bridge: state.id,
                groups: groups.since(since),
                ports: state.port_changes.since(since),
                tables: changed.map(|(table, number)| (number, of_table(table))).collect(),
            }
        };
        let bridges = if everything { Vec::new() } else { forwarding.bridges.values().map(of_bridge).collect() };
        let matters = |bridge: &BridgeChanges| {
            !bridge.groups.is_nothing() || !bridge.ports.is_nothing() || !bridge.tables.is_empty()
        };
        let bridges = bridges.into_iter().filter(matters).collect();
        let hops = forwarding.hops_changed > since;
        let bonds = forwarding.bonds_changed > since;
        ChangeSet { generation: forwarding.generation(), everything, any_port, hops, bonds, bridges }
    }

    /// Whether it is about no flow at all.
    pub fn is_empty(&self) -> bool {
        !self.everything && !self.any_port && !self.hops && !self.bonds && self.bridges.is_empty()
    }

    /// The flows that it can be about, if an index finds them sooner than a walk over all.
    ///
    /// Flows that are translated by the time of the call, with the changes, may be missed.
    pub fn find(&self, datapath: &Datapath) -> Option<Vec<(FlowId, FlowTag)>> {
        // Rules only are found by what they match.
        let has_others = |bridge: &BridgeChanges| !bridge.groups.is_nothing() || !bridge.ports.is_nothing();
        if self.everything || self.any_port || self.hops || self.bonds || self.bridges.iter().any(has_others) {
            return None;
        }
        let mut found = Vec::new();
        for (_, rules) in self.bridges.iter().flat_map(|bridge| &bridge.tables) {
            let TableChanges::Rules { groups, overwritten, .. } = rules else { return None };
            for RuleGroup { mask, values } in groups {
                let mut sorter = self.sorter();
                let wanted =
                    |tag: &FlowTag, mask: &_, read: &dyn Fn(&mut Key) -> bool| sorter.is_about(tag, mask, read);
                if !datapath.find_agreeing(&as_received(mask, *overwritten), values, wanted, &mut found) {
                    return None;
                }
            }
        }
        found.sort_unstable_by_key(|(flow, _)| flow.0);
        found.dedup_by_key(|(flow, _)| *flow);
        Some(found)
    }

    /// Whether a flow that packets teach can be among the changed ones.
    fn has_rule(&self, learns: &Learns) -> bool {
        let bridge = self.bridges.iter().find(|changed| changed.bridge == learns.bridge);
        let table = bridge.and_then(|bridge| bridge.tables.iter().find(|(table, _)| *table == learns.table));
        table.is_some_and(|(_, rules)| match rules {
            TableChanges::Unknown => true,
            TableChanges::Rules { matches, .. } => matches.contains(&learns.matching),
        })
    }

    /// Tells which flows it can be about.
    pub fn sorter(&self) -> Sorter<'_> {
        Sorter { changes: self, known: HashMap::new(), values: 0, flow: Box::default() }
    }
}

/// The part of a rule's mask that matches packets as they are received.
fn as_received(mask: &Mask, overwritten: Parts) -> Mask {
    let mut received = Mask::wildcard();
    for block in mask.blocks().iter().filter(is_of_packet) {
        let words = mask.0.block(block).words();
        let words: [u64; 8] = std::array::from_fn(|word| words[word] & !overwritten.word(block, word));
        if words != [0; 8] {
            *received.0.block_mut(block).words_mut() = words;
        }
    }
    received
}

/// Whether a block is no part of the pipeline's own, which flows do not match. Nor can options of tunnels be compared, which flows and
/// rules have in another form.
fn is_of_packet(block: &BlockId) -> bool {
    !matches!(block, BlockId::Pipeline | BlockId::Regs) && *block < BlockId::TunMeta0
}

/// Groups changed rules by mask.
fn group<'a>(state: &BridgeState, patterns: impl Iterator<Item = &'a crate::table::Pattern>) -> Vec<RuleGroup> {
    let mut by_mask: HashMap<Mask, Vec<Key>> = HashMap::new();
    for pattern in patterns {
        let (mut mask, mut values) = (pattern.mask(), pattern.key());
        if !mask.is_wild(Field::InPortOxm) {
            // Datapath flows match datapath ports. A port that is none can be where the packet came in to this bridge.
            let port = openflow::OfPort(values.common().in_port.get());
            let exact = mask.is_exact(Field::InPortOxm);
            let dp_port = state.ports.get(&port).and_then(|port| port.dp_port).filter(|_| exact);
            match dp_port {
                Some(dp_port) => values.common_mut().in_port = dp_port.0.into(),
                None => {
                    mask.0.common_mut().in_port = 0.into();
                    values.common_mut().in_port = 0.into();
                }
            }
        }
        by_mask.entry(mask).or_default().push(values);
    }
    by_mask.into_iter().map(|(mask, values)| RuleGroup { mask, values }).collect()
}

/// Tells which flows a change can be about. For one thread.
pub(crate) struct Sorter<'a> {
    changes: &'a ChangeSet,
    /// With the flows' mask, so that its address stays its own.
    known: HashMap<Projected, (Arc<Mask>, Vec<Projection>)>,
    /// How many values there are in `known`.
    values: usize,
    /// The masked key of the flow that is looked at.
    flow: Box<Key>,
}

/// What the changed rules of a table are projected to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Projected {
    mask: *const Mask,
    overwritten: Parts,
    bridge: usize,
    table: usize,
}

/// A group of changed rules as flows of one mask can tell them apart.
struct Projection {
    words: Vec<(BlockId, usize, u64)>,
    /// Hashes of the values. Rules whose hash is equal by chance are about more flows than they have to.
    values: HashSet<u64>,
}

impl Sorter<'_> {
    /// Whether what has changed can be about a flow. `read` writes the flow's masked key, unless it has been removed.
    pub fn is_about(&mut self, tag: &FlowTag, mask: &Arc<Mask>, read: &dyn Fn(&mut Key) -> bool) -> bool {
        let changes = self.changes;
        let Some(record) = tag.downcast_ref::<FlowRecord>() else { return false };
        if record.generation >= changes.generation {
            return false;
        }
        if changes.everything || changes.any_port && record.looks_for_ports {
            return true;
        }
        if changes.hops && record.has_stale_hop() || changes.bonds && record.has_stale_bond() {
            return true;
        }
        if record.learns.iter().any(|learns| changes.has_rule(learns)) {
            return true;
        }
        let mut has_key = false;
        for deps in &record.deps {
            let Some(number) = changes.bridges.iter().position(|changed| changed.bridge == deps.bridge) else {
                continue;
            };
            let changed = &changes.bridges[number];
            if deps.has_groups(&changed.groups) || deps.has_ports(&changed.ports) {
                return true;
            }
            for (index, (table, rules)) in changed.tables.iter().enumerate() {
                if !deps.has_table(*table) {
                    continue;
                }
                let TableChanges::Rules { groups, .. } = rules else { return true };
                if !has_key && !read(&mut self.flow) {
                    return false;
                }
                has_key = true;
                let which = Projected {
                    mask: Arc::as_ptr(mask),
                    overwritten: deps.overwritten_at(*table),
                    bridge: number,
                    table: index,
                };
                self.project(which, mask, groups);
                if self.known[&which].1.iter().any(|projection| projection.has(&self.flow)) {
                    return true;
                }
            }
        }
        false
    }

    /// Sees to it that the projections are known.
    fn project(&mut self, which: Projected, mask: &Arc<Mask>, groups: &[RuleGroup]) {
        if self.known.contains_key(&which) {
            return;
        }
        if self.values > MOST_VALUES {
            self.known.clear();
            self.values = 0;
        }
        let project = |group| Projection::new(group, mask, which.overwritten);
        let projections: Vec<_> = groups.iter().map(project).collect();
        self.values += projections.iter().map(|projection| 1 + projection.values.len()).sum::<usize>();
        self.known.insert(which, (mask.clone(), projections));
    }
}

impl Projection {
    fn new(group: &RuleGroup, flows: &Mask, overwritten: Parts) -> Projection {
        let words = group.mask.blocks().iter().filter(is_of_packet).flat_map(|block| {
            let (rules, flows) = (group.mask.0.block(block).words(), flows.0.block(block).words());
            let bits = move |word: usize| rules[word] & flows[word] & !overwritten.word(block, word);
            (0..8).map(move |word| (block, word, bits(word))).filter(|(_, _, bits)| *bits != 0)
        });
        let words: Vec<_> = words.collect();
        let values = group.values.iter().map(|values| hash(&words, values)).collect();
        Projection { words, values }
    }

    /// Whether a rule can be about the flow with this masked key.
    fn has(&self, flow: &Key) -> bool {
        self.values.contains(&hash(&self.words, flow))
    }
}

fn hash(words: &[(BlockId, usize, u64)], key: &Key) -> u64 {
    words.iter().fold(0, |hash: u64, &(block, word, bits)| {
        let product =
            u128::from(hash.rotate_left(23) ^ (key.block(block).words()[word] & bits)) * 0x9e37_79b9_7f4a_7c15;
        product as u64 ^ (product >> 64) as u64
    })
}
