//! A simple switch that the real one is compared with. It does everything anew for every packet: tables are lists, and
//! actions rewrite bytes. It shares neither translation, classifier nor caches with the real one.
//!
//! | module | what it is |
//! |---|---|
//! | `choices` | Actions and groups that choose by a hash of headers, at random |
//! | `choose` | Choices by a hash: select groups, bundle, multipath |
//! | `ct` | Connection tracking |
//! | `conjunctions` | Conjunctive matches, and their properties |
//! | `connections` | Properties of rules with connection tracking |
//! | `encap` | Headers that change a packet's type, on its bytes |
//! | `frame` | Header changes on the bytes of a frame |
//! | `labels` | Properties of rules with MPLS labels, a stack of values and copies between fields |
//! | `learn` | Rules that packets make and end |
//! | `learning` | Properties of rules that learn others |
//! | `multicast` | Multicast snooping, by a list of who has asked for what; and its properties |
//! | `normal` | NORMAL and mirrors, by lists of tags |
//! | [`fuzz`] | Entry for fuzzing: a program that both switches run |
//! | `others` | Properties of actions that cut a copy, name queues and note |
//! | `packet_types` | Properties of packets that begin with another header than that of Ethernet |
//! | `properties` | Properties of the switch, by the reference |
//! | `tests` | Both switches side by side, and random tables, packets and changes |
//! | `whatif` | What is said of changes before they are made, beside what the reference does |

mod choices;
mod choose;
mod conjunctions;
#[cfg(test)]
mod connections;
mod ct;
mod encap;
mod frame;
pub mod fuzz;
#[cfg(test)]
mod labels;
mod learn;
#[cfg(test)]
mod learning;
#[cfg(test)]
mod masks;
pub mod multicast;
mod normal;
#[cfg(test)]
mod others;
#[cfg(test)]
mod packet_types;
#[cfg(test)]
mod properties;
pub(crate) mod tests;
#[cfg(test)]
mod whatif;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use ct::{Connections, Tracked};
use encap::Decapsulated;
use frame::Frame;
use learn::Learnt;
use openflow::group::GroupSpec;
use openflow::{Action, Cookie, GroupId, Instructions, Match, OfPort, Subfield, WriteMetadata};
use packet::{Field, Key, Time};
use protocols::spanning_tree::State;

use crate::model::mirror::{Mirror, MirrorOutput};
use crate::model::vlan::PortVlan;

/// A rule, with the packets that passed it.
pub struct RefRule {
    /// No other rule has had it.
    id: u64,
    pub table: u8,
    pub priority: u16,
    pub matching: Match,
    pub instructions: Instructions,
    pub cookie: Cookie,
    /// Seconds: idle and hard.
    timeouts: (u16, u16),
    /// What `fin_timeout` has lowered them to.
    caps: (u16, u16),
    used: Time,
    modified: Time,
    pub packets: u64,
    pub bytes: u64,
}

impl RefRule {
    pub fn new(table: u8, priority: u16, matching: Match, instructions: Instructions, now: Time) -> RefRule {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        RefRule {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            table,
            priority,
            matching,
            instructions,
            cookie: Cookie::default(),
            timeouts: (0, 0),
            caps: (0, 0),
            used: now,
            modified: now,
            packets: 0,
            bytes: 0,
        }
    }

    pub fn is(&self, table: u8, priority: u16, matching: &Match) -> bool {
        (self.table, self.priority, &self.matching) == (table, priority, matching)
    }
}

/// The switch.
#[derive(Default)]
pub struct Reference {
    pub rules: Vec<RefRule>,
    pub ports: BTreeMap<OfPort, PortVlan>,
    pub macs: HashMap<(u16, [u8; 6]), OfPort>,
    /// The addresses that packets have taught, and whether NORMAL has looked one of them up since.
    pub taught: HashSet<(u16, [u8; 6])>,
    pub asks_what_was_taught: bool,
    /// VLANs without learning.
    pub flood_vlans: BTreeSet<u16>,
    pub mirrors: Vec<Mirror>,
    pub groups: BTreeMap<GroupId, GroupSpec>,
    pub connections: Connections,
    pub meters: BTreeMap<u32, RefMeter>,
    /// States of ports that a spanning tree has something against.
    pub tree: BTreeMap<OfPort, State>,
    /// What was learnt of multicast, where the switch snoops.
    pub snooping: Option<multicast::RefSnooping>,
}

/// A bucket of tokens, one for each packet.
#[derive(Clone)]
pub struct RefMeter {
    /// Packets per second.
    pub rate: u64,
    pub burst: u64,
    /// In billionths of a packet.
    pub tokens: u64,
    pub filled: Time,
}

impl RefMeter {
    /// Whether a packet gets a token.
    fn conforms(&mut self, now: Time) -> bool {
        let flowed = self.rate * now.since(self.filled).as_nanos() as u64;
        self.tokens = (self.tokens + flowed).min(self.burst * 1_000_000_000);
        self.filled = now;
        let conforms = self.tokens >= 1_000_000_000;
        if conforms {
            self.tokens -= 1_000_000_000;
        }
        conforms
    }
}

/// A packet under way.
#[derive(Clone)]
struct PacketInFlight {
    frame: Frame,
    /// Registers and metadata; the rest of the key comes from the frame.
    pipeline: Key,
    in_port: OfPort,
    set: Vec<Action>,
    /// What was pushed by the action of that name.
    stack: Vec<u128>,
    tracked: Tracked,
    /// What the datapath has hashed; zero for nothing.
    dp_hash: u32,
    /// What is left of the lists that are being executed, the innermost last.
    rest: Vec<List>,
    exit: bool,
    /// A meter has dropped it. Tables that come later see it all the same.
    gone: bool,
    /// It has to come round again before it goes on.
    frozen: bool,
    /// It cannot be what the tables want it to be, and is not sent.
    failed: bool,
    /// Times that it has come round.
    depth: u32,
    len: u64,
    tcp_flags: u16,
    /// Where mirrors have sent copies.
    mirrored: Vec<MirrorOutput>,
}

/// Most times that a packet comes round.
const MAX_DEPTH: u32 = 8;

/// What is left of a list.
#[derive(Clone, Default)]
struct List {
    steps: VecDeque<Step>,
    /// The rule that it is of, until the packet comes round.
    rule: Option<u64>,
}

impl List {
    fn of(steps: impl IntoIterator<Item = Step>) -> List {
        List { steps: steps.into_iter().collect(), rule: None }
    }

    fn of_actions(actions: &[Action]) -> List {
        List::of(actions.iter().cloned().map(Step::Act))
    }
}

/// A step of a list.
#[derive(Clone)]
enum Step {
    Act(Action),
    Meter(u32),
    Clear,
    Write(Vec<Action>),
    Metadata(WriteMetadata),
    /// Look up this table.
    Table(u8),
}

/// What comes of a packet until it ends or comes round: nothing, if something fails.
#[derive(Default)]
struct Pass {
    sent: Sent,
    again: Vec<PacketInFlight>,
    learnt: Vec<Learnt>,
}

impl PacketInFlight {
    fn set_field(&mut self, field: Field, value: u128, mask: u128) {
        if !is_register(field) {
            return self.frame.set(field, value, mask);
        }
        let old = self.pipeline.get(field);
        self.pipeline.set(field, old & !mask | value & mask);
    }

    /// The packet as the tables see it.
    fn key(&self) -> Key {
        let (key, _) = self.frame.key();
        let mut full = self.pipeline.clone();
        for block in key.present().iter() {
            if !matches!(block, packet::flow::BlockId::Regs | packet::flow::BlockId::Pipeline) {
                *full.block_mut(block) = *key.block(block);
            }
        }
        full.common_mut().in_port = self.in_port.0.into();
        self.tracked.show(&mut full);
        full
    }

    fn read(&self, part: &Subfield) -> u128 {
        part.in_key().unwrap().get(&self.key())
    }

    /// Writes the low bits of `value`.
    fn write(&mut self, part: &Subfield, value: u128) {
        let field = part.in_key().unwrap().field;
        self.set_field(field, value << part.ofs, part.max() << part.ofs);
    }

    /// Has it come round after the pass, unless it has ended.
    fn queue(&mut self, pass: &mut Pass) {
        if !self.gone {
            pass.again.push(self.clone());
        }
    }

    /// Begins a pass.
    fn begin(&mut self) {
        self.len = self.frame.len() as u64;
        self.tcp_flags = self.frame.key().0.common().tcp_flags.get();
    }

    /// The rule whose actions are executed.
    fn rule(&self) -> Option<u64> {
        self.rest.last().and_then(|list| list.rule)
    }

    /// Is looked at anew.
    fn come_round(&mut self) {
        self.frame = self.frame.come_again();
        self.rest.iter_mut().for_each(|list| list.rule = None);
        if self.rest.iter().all(|list| list.steps.is_empty()) {
            // With nothing left to do, it begins anew, as in OVS.
            self.rest = vec![List::of([Step::Table(0)])];
        }
        self.depth += 1;
        self.begin();
        (self.frozen, self.exit) = (false, self.depth > MAX_DEPTH);
    }
}

fn is_register(field: Field) -> bool {
    matches!(field, Field::Reg0 | Field::Reg1 | Field::Metadata)
}

type Sent = Vec<(OfPort, Vec<u8>)>;

impl Reference {
    /// What is sent, in order, when `frame` comes in on `port`.
    pub fn receive(&mut self, in_port: OfPort, frame: &[u8]) -> Sent {
        let mut first = PacketInFlight {
            frame: Frame::new(frame),
            pipeline: Key::new(),
            in_port,
            set: Vec::new(),
            stack: Vec::new(),
            tracked: Tracked::default(),
            dp_hash: 0,
            rest: vec![List::of([Step::Table(0)])],
            exit: false,
            gone: false,
            frozen: false,
            failed: false,
            depth: 0,
            len: 0,
            tcp_flags: 0,
            mirrored: Vec::new(),
        };
        first.begin();
        let (mut sent, mut pass) = (Sent::new(), Pass::default());
        if self.is_mirror_port(in_port) {
            return sent;
        }
        let state = self.tree.get(&in_port);
        if state.is_some_and(|state| !state.learns()) {
            return sent;
        }
        let only_learns = state.is_some_and(|state| !state.forwards());
        let meters = only_learns.then(|| self.meters.clone());
        self.mirror_received(&mut first, &mut pass.sent);
        self.pipeline(&mut first, &mut pass);
        if let Some(meters) = meters {
            // No action is executed, also none that drops.
            self.meters = meters;
            self.add_learnt(pass.learnt);
            return sent;
        }
        // What comes round does so after everything else that the packet before it does.
        let mut waiting = VecDeque::new();
        loop {
            self.add_learnt(std::mem::take(&mut pass.learnt));
            if !first.failed {
                sent.append(&mut pass.sent);
                waiting.extend(pass.again.drain(..));
            }
            let Some(next) = waiting.pop_front() else { return sent };
            (first, pass) = (next, Pass::default());
            first.come_round();
            self.pipeline(&mut first, &mut pass);
        }
    }

    /// The rest of a packet's lists, and its action set.
    fn pipeline(&mut self, in_flight: &mut PacketInFlight, pass: &mut Pass) {
        self.lists(in_flight, pass);
        if !in_flight.frozen {
            let set = std::mem::take(&mut in_flight.set);
            in_flight.rest.push(List::of_actions(&ordered(&set)));
            self.lists(in_flight, pass);
        }
        if in_flight.frozen {
            in_flight.queue(pass);
        }
    }

    /// All that is left, unless the packet ends or freezes.
    fn lists(&mut self, in_flight: &mut PacketInFlight, pass: &mut Pass) {
        while !(in_flight.exit || in_flight.frozen || in_flight.failed) {
            let Some(list) = in_flight.rest.last_mut() else { return };
            let Some(step) = list.steps.front() else {
                in_flight.rest.pop();
                continue;
            };
            if let Step::Act(Action::Group(id)) = step
                && let Some(hash) = self.dp_hash_of(*id).filter(|_| in_flight.dp_hash == 0)
            {
                in_flight.dp_hash = self.dp_hash(in_flight, hash);
                in_flight.frozen = true;
                return;
            }
            let Some(step) = list.steps.pop_front() else { return };
            self.step(in_flight, step, pass);
        }
    }

    fn step(&mut self, in_flight: &mut PacketInFlight, step: Step, pass: &mut Pass) {
        match step {
            Step::Act(action) => {
                if !self.action(in_flight, &action, pass) {
                    // The list ends early.
                    in_flight.rest.pop();
                }
            }
            Step::Meter(id) => self.meter(in_flight, id),
            Step::Clear => in_flight.set.clear(),
            Step::Write(actions) => in_flight.set.extend(actions),
            Step::Metadata(write) => {
                let old = in_flight.pipeline.get(Field::Metadata) as u64;
                in_flight.pipeline.set(Field::Metadata, (old & !write.mask | write.value & write.mask).into());
            }
            Step::Table(table) => self.table(in_flight, table, in_flight.in_port, false),
        }
    }

    /// Each bucket has its own copy of the packet; the action set, the stack and what was mirrored are common.
    fn group(&mut self, in_flight: &mut PacketInFlight, id: GroupId, pass: &mut Pass) {
        for bucket in self.buckets(in_flight, id) {
            let mut copy = in_flight.clone();
            copy.rest = vec![List::of_actions(&ordered(&bucket.actions))];
            self.lists(&mut copy, pass);
            in_flight.mirrored.clone_from(&copy.mirrored);
            if copy.frozen {
                copy.set.clear();
                copy.queue(pass);
            } else {
                (in_flight.set, in_flight.stack) = (copy.set, copy.stack);
            }
        }
    }

    /// Looks up a table, by the original direction of the packet's connection where `with_ct` says so. What the rule says
    /// is done next.
    fn table(&mut self, in_flight: &mut PacketInFlight, table: u8, in_port: OfPort, with_ct: bool) {
        let mut full = in_flight.key();
        full.common_mut().in_port = in_port.0.into();
        if in_flight.frame.is_bare {
            // Such a packet has a packet type instead.
            full.common_mut().dl_type = 0.into();
        }
        if with_ct && !in_flight.tracked.show_original(&mut full) {
            return;
        }
        let Some(found) = self.find(table, full) else { return };
        let rule = &mut self.rules[found];
        rule.packets += 1;
        rule.bytes += in_flight.len;
        rule.used = self.connections.now;
        let Instructions { meter, apply, clear, write, metadata, goto } = rule.instructions.clone();
        let steps = meter.map(Step::Meter).into_iter().chain(apply.into_iter().map(Step::Act));
        let steps = steps.chain(clear.then_some(Step::Clear));
        let steps = steps.chain(Some(write).filter(|write| !write.is_empty()).map(Step::Write));
        let steps = steps.chain(metadata.map(Step::Metadata)).chain(goto.map(|table| Step::Table(table.0)));
        in_flight.rest.push(List { rule: Some(rule.id), ..List::of(steps) });
    }

    /// False where the list ends with it.
    fn action(&mut self, in_flight: &mut PacketInFlight, action: &Action, pass: &mut Pass) -> bool {
        match action {
            Action::Output { port, .. } => self.output(in_flight, *port, &mut pass.sent),
            Action::SetVlanVid { vid, push } => in_flight.frame.set_tci(0xfff, *vid, *push),
            Action::SetVlanPcp { pcp, push } => in_flight.frame.set_tci(0xe000, u16::from(*pcp) << 13, *push),
            Action::PushVlan(tpid) => in_flight.frame.push(*tpid, 0),
            Action::StripVlan => in_flight.frame.pop(),
            Action::RegMove { src, dst } => {
                let key = in_flight.key();
                if [src, dst].iter().all(|part| part.field.prereq().satisfied(&key)) {
                    let value = in_flight.read(src);
                    in_flight.write(dst, value);
                }
            }
            Action::StackPush(src) => {
                let value = in_flight.read(src);
                in_flight.stack.push(value);
            }
            Action::StackPop(dst) => {
                if let Some(value) = in_flight.stack.pop() {
                    in_flight.write(dst, value);
                }
            }
            Action::OutputReg { src, .. } => {
                let port = OfPort::from_u16(in_flight.read(src) as u16);
                self.output(in_flight, port, &mut pass.sent);
            }
            Action::OutputTrunc { port, max_len } if !port.is_reserved() && *port != in_flight.in_port => {
                // Mirrors are not asked: what they get of it is not said.
                let bytes = &in_flight.frame.bytes;
                let cut = bytes[..bytes.len().min(*max_len as usize)].to_vec();
                if self.may_leave_by(*port) && !in_flight.frame.is_bare && !in_flight.gone {
                    pass.sent.push((*port, cut));
                }
            }
            Action::Enqueue { port, .. } if *port != OfPort::IN_PORT => self.output(in_flight, *port, &mut pass.sent),
            // What is for the port that the packet came by, and what nobody can see who gets packets.
            Action::OutputTrunc { .. } | Action::Enqueue { .. } | Action::SetQueue(_) | Action::PopQueue => {}
            Action::Note(_) | Action::Sample(_) | Action::Controller(_) | Action::DebugSlow => {}
            Action::Bundle(bundle) => self.bundle(in_flight, bundle, pass),
            Action::Multipath(multipath) => self.multipath(in_flight, multipath),
            Action::PushMpls(ethertype) => in_flight.frame.push_label(*ethertype),
            Action::PopMpls(ethertype) => in_flight.frame.pop_label(*ethertype),
            Action::Encap(encap) => in_flight.failed = !in_flight.frame.encap(encap),
            Action::Decap(left) => {
                let outcome = in_flight.frame.decap(*left);
                in_flight.frozen = outcome == Decapsulated::Freezes;
                // No whole frame is behind it.
                in_flight.gone |= !in_flight.frame.is_bare && in_flight.frame.bytes.len() < 14;
                in_flight.failed = outcome == Decapsulated::Fails;
            }
            Action::DecNshTtl => return in_flight.frame.dec_nsh_ttl(),
            Action::DecMplsTtl => return in_flight.frame.dec_label_ttl(),
            Action::DecTtl | Action::DecTtlCntIds(_) => return in_flight.frame.dec_ttl(),
            Action::Resubmit { in_port, table, with_ct } => {
                let in_port = if *in_port == OfPort::IN_PORT { in_flight.in_port } else { *in_port };
                self.table(in_flight, table.0, in_port, *with_ct);
            }
            Action::Ct(ct) => self.ct(in_flight, ct, pass),
            Action::CtClear => self.ct_clear(in_flight),
            Action::Clone(inner) => {
                let mut copy = in_flight.clone();
                copy.rest = vec![List { rule: in_flight.rule(), ..List::of_actions(inner) }];
                self.pipeline(&mut copy, pass);
                (in_flight.mirrored, in_flight.failed) = (copy.mirrored, copy.failed);
                in_flight.exit = copy.exit && !copy.frozen;
            }
            Action::Group(id) => self.group(in_flight, *id, pass),
            Action::Meter(id) => self.meter(in_flight, *id),
            Action::DebugRecirc => in_flight.frozen = true,
            Action::Exit => in_flight.exit = true,
            Action::Learn(learn) => self.learn(in_flight, learn, pass),
            Action::FinTimeout { idle, hard } => self.fin_timeout(in_flight, *idle, *hard),
            other => match other.field_write() {
                Some((field, value, mask)) => in_flight.set_field(field, value, mask),
                None => panic!("the reference does not know {other:?}"),
            },
        }
        true
    }

    fn meter(&mut self, in_flight: &mut PacketInFlight, id: u32) {
        let now = self.connections.now;
        if let Some(meter) = self.meters.get_mut(&id).filter(|_| !in_flight.gone) {
            in_flight.gone = !meter.conforms(now);
        }
    }

    fn output(&mut self, in_flight: &mut PacketInFlight, port: OfPort, sent: &mut Sent) {
        let mut nowhere = Sent::new();
        let sent = if in_flight.gone { &mut nowhere } else { sent };
        match port {
            OfPort::IN_PORT => self.send(in_flight, in_flight.in_port, sent),
            OfPort::NORMAL => self.normal(in_flight, sent),
            OfPort::FLOOD | OfPort::ALL => {
                let others: Vec<OfPort> = self.ports.keys().copied().filter(|&p| p != in_flight.in_port).collect();
                others.into_iter().for_each(|port| self.send(in_flight, port, sent));
            }
            port if port == in_flight.in_port => {}
            port => self.send(in_flight, port, sent),
        }
    }

    fn may_leave_by(&self, port: OfPort) -> bool {
        self.ports.contains_key(&port) && self.tree.get(&port).is_none_or(|state| state.forwards())
    }

    fn send(&self, in_flight: &mut PacketInFlight, port: OfPort, sent: &mut Sent) {
        let protected = |port| self.ports.get(&port).is_some_and(|vlan| vlan.protected);
        let may_pass = !protected(port) || !protected(in_flight.in_port);
        if self.may_leave_by(port) && may_pass && !in_flight.frame.is_bare {
            sent.push((port, in_flight.frame.bytes.clone()));
            self.mirror_sent(in_flight, port, sent);
        }
    }
}

/// An action set as a list: of most kinds the last counts.
fn ordered(set: &[Action]) -> Vec<Action> {
    let last = |kind: &dyn Fn(&Action) -> bool| set.iter().rev().find(|a| kind(a)).cloned();
    let group = last(&|a| matches!(a, Action::Group(_)));
    let output = group.or_else(|| last(&|a| matches!(a, Action::Output { .. })));
    let Some(output) = output.or_else(|| last(&|a| matches!(a, Action::Ct(_)))) else { return Vec::new() };
    let mut list = Vec::new();
    list.extend(last(&|a| matches!(a, Action::StripVlan)));
    list.extend(last(&|a| matches!(a, Action::Decap(_))));
    list.extend(last(&|a| matches!(a, Action::Encap(_))));
    list.extend(last(&|a| matches!(a, Action::PushVlan(_))));
    list.extend(last(&|a| matches!(a, Action::DecTtl)));
    list.extend(last(&|a| matches!(a, Action::DecMplsTtl)));
    list.extend(last(&|a| matches!(a, Action::DecNshTtl)));
    let sets = |a: &&Action| matches!(a, Action::SetField { .. } | Action::SetVlanVid { .. } | Action::RegMove { .. });
    list.extend(set.iter().filter(sets).cloned());
    list.push(output);
    list
}
