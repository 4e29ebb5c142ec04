//! A simple switch that the real one is compared with. It does everything anew for every packet: tables are lists, and
//! actions rewrite bytes. It shares neither translation, classifier nor caches with the real one.
//!
//! | module | what it is |
//! |---|---|
//! | `ct` | Connection tracking |
//! | `connections` | Properties of rules with connection tracking |
//! | `frame` | Header changes on the bytes of a frame |
//! | `labels` | Properties of rules with MPLS labels, a stack of values and copies between fields |
//! | `normal` | NORMAL and mirrors, by lists of tags |
//! | [`fuzz`] | Entry for fuzzing: a program that both switches run |
//! | `properties` | Properties of the switch, by the reference |
//! | `tests` | Both switches side by side, and random tables, packets and changes |

#[cfg(test)]
mod connections;
mod ct;
mod frame;
pub mod fuzz;
#[cfg(test)]
mod labels;
mod normal;
#[cfg(test)]
mod properties;
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};

use ct::{Connections, Tracked};
use frame::Frame;
use openflow::group::{Bucket, GroupSpec, GroupType};
use openflow::{Action, GroupId, Instructions, Match, OfPort, Subfield};
use packet::{Field, Key, Time};

use crate::model::mirror::{Mirror, MirrorOutput};
use crate::model::vlan::PortVlan;

/// A rule, with the packets that passed it.
pub struct RefRule {
    pub table: u8,
    pub priority: u16,
    pub matching: Match,
    pub instructions: Instructions,
    pub packets: u64,
    pub bytes: u64,
}

/// The switch.
#[derive(Default)]
pub struct Reference {
    pub rules: Vec<RefRule>,
    pub ports: BTreeMap<OfPort, PortVlan>,
    pub macs: HashMap<(u16, [u8; 6]), OfPort>,
    pub mirrors: Vec<Mirror>,
    pub groups: BTreeMap<GroupId, GroupSpec>,
    pub connections: Connections,
    pub meters: BTreeMap<u32, RefMeter>,
}

/// A bucket of tokens, one for each packet.
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
    table: u8,
    set: Vec<Action>,
    /// What was pushed by the action of that name.
    stack: Vec<u128>,
    tracked: Tracked,
    exit: bool,
    /// A meter has dropped it. Tables that come later see it all the same.
    gone: bool,
    len: u64,
    /// Where mirrors have sent copies.
    mirrored: Vec<MirrorOutput>,
}

impl PacketInFlight {
    fn set_field(&mut self, field: Field, value: u128, mask: u128) {
        if !is_register(field) {
            return self.frame.set(field, value, mask);
        }
        let old = self.pipeline.get(field);
        self.pipeline.set(field, old & !mask | value & mask);
    }

    fn read(&self, part: &Subfield) -> u128 {
        let part = part.in_key().unwrap();
        match is_register(part.field) {
            true => part.get(&self.pipeline),
            false => part.get(&self.frame.key().0),
        }
    }

    /// Writes the low bits of `value`.
    fn write(&mut self, part: &Subfield, value: u128) {
        let field = part.in_key().unwrap().field;
        self.set_field(field, value << part.ofs, part.max() << part.ofs);
    }
}

fn is_register(field: Field) -> bool {
    matches!(field, Field::Reg0 | Field::Reg1 | Field::Metadata)
}

type Sent = Vec<(OfPort, Vec<u8>)>;

impl Reference {
    /// What is sent, in order, when `frame` comes in on `port`.
    pub fn receive(&mut self, in_port: OfPort, frame: &[u8]) -> Sent {
        let mut in_flight = PacketInFlight {
            frame: Frame::new(frame),
            pipeline: Key::new(),
            in_port,
            table: 0,
            set: Vec::new(),
            stack: Vec::new(),
            tracked: Tracked::default(),
            exit: false,
            gone: false,
            len: frame.len() as u64,
            mirrored: Vec::new(),
        };
        let mut sent = Vec::new();
        if self.is_mirror_port(in_port) {
            return sent;
        }
        self.mirror_received(&mut in_flight, &mut sent);
        self.table(&mut in_flight, 0, in_port, false, &mut sent);
        self.action_set(&mut in_flight, &mut sent);
        self.come_back(&mut sent);
        sent
    }

    fn action_set(&mut self, in_flight: &mut PacketInFlight, sent: &mut Sent) {
        let set = std::mem::take(&mut in_flight.set);
        let list = ordered(&set);
        self.actions(in_flight, &list, sent);
    }

    /// Each bucket has its own copy of the packet; the action set and what was mirrored are common.
    fn group(&mut self, in_flight: &mut PacketInFlight, id: GroupId, sent: &mut Sent) {
        let Some(group) = self.groups.get(&id) else { return };
        let live = |bucket: &&Bucket| bucket.watch_port == OfPort::ANY || self.ports.contains_key(&bucket.watch_port);
        let buckets: Vec<Bucket> = match group.kind {
            GroupType::FastFailover => group.buckets.iter().find(live).into_iter().cloned().collect(),
            _ => group.buckets.clone(),
        };
        for bucket in buckets {
            let mut copy = in_flight.clone();
            self.actions(&mut copy, &ordered(&bucket.actions), sent);
            (in_flight.mirrored, in_flight.set) = (copy.mirrored, copy.set);
        }
    }

    /// Looks up a table, by the original direction of the packet's connection where `with_ct` says so.
    fn table(&mut self, in_flight: &mut PacketInFlight, table: u8, in_port: OfPort, with_ct: bool, sent: &mut Sent) {
        let (key, _) = in_flight.frame.key();
        let mut full = in_flight.pipeline.clone();
        for block in key.present().iter() {
            if !matches!(block, packet::flow::BlockId::Regs | packet::flow::BlockId::Pipeline) {
                *full.block_mut(block) = *key.block(block);
            }
        }
        full.common_mut().in_port = in_port.0.into();
        in_flight.tracked.show(&mut full);
        if with_ct && !in_flight.tracked.show_original(&mut full) {
            return;
        }
        let found = self.rules.iter_mut().filter(|rule| rule.table == table && rule.matching.matches(&full));
        let Some(rule) = found.max_by_key(|rule| rule.priority) else { return };
        rule.packets += 1;
        rule.bytes += in_flight.len;
        let instructions = rule.instructions.clone();
        if let Some(meter) = instructions.meter {
            self.meter(in_flight, meter);
        }
        let outer = std::mem::replace(&mut in_flight.table, table);
        if self.actions(in_flight, &instructions.apply, sent) && !in_flight.exit {
            if instructions.clear {
                in_flight.set.clear();
            }
            in_flight.set.extend(instructions.write);
            if let Some(write) = instructions.metadata {
                let old = in_flight.pipeline.get(Field::Metadata) as u64;
                in_flight.pipeline.set(Field::Metadata, (old & !write.mask | write.value & write.mask).into());
            }
            if let Some(goto) = instructions.goto {
                let in_port = in_flight.in_port;
                self.table(in_flight, goto.0, in_port, false, sent);
            }
        }
        in_flight.table = outer;
    }

    /// False where the list ended early.
    fn actions(&mut self, in_flight: &mut PacketInFlight, actions: &[Action], sent: &mut Sent) -> bool {
        for action in actions {
            if in_flight.exit {
                return false;
            }
            match action {
                Action::Output { port, .. } => self.output(in_flight, *port, sent),
                Action::SetField { field, value, mask } => in_flight.set_field(*field, *value, *mask),
                Action::SetVlanVid { vid, push } => in_flight.frame.set_tci(0xfff, *vid, *push),
                Action::SetVlanPcp { pcp, push } => in_flight.frame.set_tci(0xe000, u16::from(*pcp) << 13, *push),
                Action::PushVlan(tpid) => in_flight.frame.push(*tpid, 0),
                Action::StripVlan => in_flight.frame.pop(),
                Action::RegMove { src, dst } => {
                    let value = in_flight.read(src);
                    in_flight.write(dst, value);
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
                    let port = OfPort(in_flight.read(src) as u32);
                    self.output(in_flight, port, sent);
                }
                Action::PushMpls(ethertype) => in_flight.frame.push_label(*ethertype),
                Action::PopMpls(ethertype) => in_flight.frame.pop_label(*ethertype),
                Action::DecMplsTtl => {
                    if !in_flight.frame.dec_label_ttl() {
                        return false;
                    }
                }
                Action::DecTtl | Action::DecTtlCntIds(_) => {
                    if !in_flight.frame.dec_ttl() {
                        return false;
                    }
                }
                Action::Resubmit { in_port, table, with_ct } => {
                    let in_port = if *in_port == OfPort::IN_PORT { in_flight.in_port } else { *in_port };
                    self.table(in_flight, table.0, in_port, *with_ct, sent);
                }
                Action::Ct(ct) => self.ct(in_flight, ct),
                Action::CtClear => self.ct_clear(in_flight),
                Action::Clone(inner) => {
                    let mut copy = in_flight.clone();
                    self.actions(&mut copy, inner, sent);
                    if !copy.exit {
                        self.action_set(&mut copy, sent);
                    }
                    in_flight.mirrored = copy.mirrored;
                }
                Action::Group(id) => self.group(in_flight, *id, sent),
                Action::Meter(id) => self.meter(in_flight, *id),
                Action::DebugRecirc if in_flight.gone => in_flight.exit = true,
                Action::DebugRecirc => {
                    in_flight.frame = in_flight.frame.come_again();
                    in_flight.len = in_flight.frame.bytes.len() as u64;
                }
                Action::Exit => in_flight.exit = true,
                other => panic!("the reference does not know {other:?}"),
            }
        }
        !in_flight.exit
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

    fn send(&self, in_flight: &mut PacketInFlight, port: OfPort, sent: &mut Sent) {
        if self.ports.contains_key(&port) {
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
    list.extend(last(&|a| matches!(a, Action::PushVlan(_))));
    list.extend(last(&|a| matches!(a, Action::DecTtl)));
    let sets = |a: &&Action| matches!(a, Action::SetField { .. } | Action::SetVlanVid { .. });
    list.extend(set.iter().filter(sets).cloned());
    list.push(output);
    list
}
