//! A switch that does everything anew for every packet: tables are lists, actions rewrite bytes. It is
//! what the real one is compared with, and shares neither translation, classifier nor caches with it.

mod frame;
pub mod fuzz;
mod normal;
#[cfg(test)]
mod properties;
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};

use frame::Frame;
use openflow::group::{Bucket, GroupSpec, GroupType};
use openflow::{Action, GroupId, Instructions, Match, OfPort};
use packet::{Field, Key};

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
}

/// A packet under way.
#[derive(Clone)]
struct Walk {
    frame: Frame,
    /// Registers and metadata; the rest of the key comes from the frame.
    pipeline: Key,
    in_port: OfPort,
    table: u8,
    set: Vec<Action>,
    exit: bool,
    len: u64,
    /// Where mirrors have sent copies.
    mirrored: Vec<MirrorOutput>,
}

type Sent = Vec<(OfPort, Vec<u8>)>;

impl Reference {
    /// What is sent, in order, when `frame` comes in on `port`.
    pub fn receive(&mut self, in_port: OfPort, frame: &[u8]) -> Sent {
        let mut walk = Walk {
            frame: Frame::new(frame),
            pipeline: Key::new(),
            in_port,
            table: 0,
            set: Vec::new(),
            exit: false,
            len: frame.len() as u64,
            mirrored: Vec::new(),
        };
        let mut sent = Vec::new();
        if self.is_mirror_port(in_port) {
            return sent;
        }
        self.mirror_received(&mut walk, &mut sent);
        self.table(&mut walk, 0, in_port, &mut sent);
        self.action_set(&mut walk, &mut sent);
        sent
    }

    fn action_set(&mut self, walk: &mut Walk, sent: &mut Sent) {
        let set = std::mem::take(&mut walk.set);
        let list = ordered(&set);
        self.actions(walk, &list, sent);
    }

    /// Each bucket has its own copy of the packet; the action set and what was mirrored are common.
    fn group(&mut self, walk: &mut Walk, id: GroupId, sent: &mut Sent) {
        let Some(group) = self.groups.get(&id) else { return };
        let live = |bucket: &&Bucket| bucket.watch_port == OfPort::ANY || self.ports.contains_key(&bucket.watch_port);
        let buckets: Vec<Bucket> = match group.kind {
            GroupType::FastFailover => group.buckets.iter().find(live).into_iter().cloned().collect(),
            _ => group.buckets.clone(),
        };
        for bucket in buckets {
            let mut copy = walk.clone();
            self.actions(&mut copy, &ordered(&bucket.actions), sent);
            (walk.mirrored, walk.set) = (copy.mirrored, copy.set);
        }
    }

    fn table(&mut self, walk: &mut Walk, table: u8, in_port: OfPort, sent: &mut Sent) {
        let (key, _) = walk.frame.key();
        let mut full = walk.pipeline.clone();
        for block in key.present().iter() {
            if !matches!(block, packet::flow::BlockId::Regs | packet::flow::BlockId::Pipeline) {
                *full.block_mut(block) = *key.block(block);
            }
        }
        full.common_mut().in_port = in_port.0.into();
        let found = self.rules.iter_mut().filter(|rule| rule.table == table && rule.matching.matches(&full));
        let Some(rule) = found.max_by_key(|rule| rule.priority) else { return };
        rule.packets += 1;
        rule.bytes += walk.len;
        let instructions = rule.instructions.clone();
        let outer = std::mem::replace(&mut walk.table, table);
        if self.actions(walk, &instructions.apply, sent) && !walk.exit {
            if instructions.clear {
                walk.set.clear();
            }
            walk.set.extend(instructions.write);
            if let Some(write) = instructions.metadata {
                let old = walk.pipeline.get(Field::Metadata) as u64;
                walk.pipeline.set(Field::Metadata, (old & !write.mask | write.value & write.mask).into());
            }
            if let Some(goto) = instructions.goto {
                let in_port = walk.in_port;
                self.table(walk, goto.0, in_port, sent);
            }
        }
        walk.table = outer;
    }

    /// False where the list ended early.
    fn actions(&mut self, walk: &mut Walk, actions: &[Action], sent: &mut Sent) -> bool {
        for action in actions {
            if walk.exit {
                return false;
            }
            match action {
                Action::Output { port, .. } => self.output(walk, *port, sent),
                Action::SetField { field, value, mask } => match field {
                    Field::Reg0 | Field::Reg1 | Field::Metadata => {
                        let old = walk.pipeline.get(*field);
                        walk.pipeline.set(*field, old & !mask | value & mask);
                    }
                    _ => walk.frame.set(*field, *value, *mask),
                },
                Action::SetVlanVid { vid, push } => walk.frame.set_tci(0xfff, *vid, *push),
                Action::SetVlanPcp { pcp, push } => walk.frame.set_tci(0xe000, u16::from(*pcp) << 13, *push),
                Action::PushVlan(tpid) => walk.frame.push(*tpid, 0),
                Action::StripVlan => walk.frame.pop(),
                Action::RegMove { src, dst } => {
                    let (key, _) = walk.frame.key();
                    let value = src.get(&key);
                    dst.set(&mut walk.pipeline, value);
                }
                Action::DecTtl => {
                    if !walk.frame.dec_ttl() {
                        return false;
                    }
                }
                Action::Resubmit { in_port, table, .. } => {
                    let in_port = if *in_port == OfPort::IN_PORT { walk.in_port } else { *in_port };
                    self.table(walk, table.0, in_port, sent);
                }
                Action::Clone(inner) => {
                    let mut copy = walk.clone();
                    self.actions(&mut copy, inner, sent);
                    if !copy.exit {
                        self.action_set(&mut copy, sent);
                    }
                    walk.mirrored = copy.mirrored;
                }
                Action::Group(id) => self.group(walk, *id, sent),
                Action::DebugRecirc => {
                    walk.frame = walk.frame.come_again();
                    walk.len = walk.frame.bytes.len() as u64;
                }
                Action::Exit => walk.exit = true,
                other => panic!("the reference does not know {other:?}"),
            }
        }
        !walk.exit
    }

    fn output(&mut self, walk: &mut Walk, port: OfPort, sent: &mut Sent) {
        match port {
            OfPort::IN_PORT => self.send(walk, walk.in_port, sent),
            OfPort::NORMAL => self.normal(walk, sent),
            OfPort::FLOOD | OfPort::ALL => {
                let others: Vec<OfPort> = self.ports.keys().copied().filter(|&p| p != walk.in_port).collect();
                others.into_iter().for_each(|port| self.send(walk, port, sent));
            }
            port if port == walk.in_port => {}
            port => self.send(walk, port, sent),
        }
    }

    fn send(&self, walk: &mut Walk, port: OfPort, sent: &mut Sent) {
        if self.ports.contains_key(&port) {
            sent.push((port, walk.frame.bytes.clone()));
            self.mirror_sent(walk, port, sent);
        }
    }
}

/// An action set as a list: of most kinds the last counts.
fn ordered(set: &[Action]) -> Vec<Action> {
    let last = |kind: &dyn Fn(&Action) -> bool| set.iter().rev().find(|a| kind(a)).cloned();
    let group = last(&|a| matches!(a, Action::Group(_)));
    let Some(output) = group.or_else(|| last(&|a| matches!(a, Action::Output { .. }))) else { return Vec::new() };
    let mut list = Vec::new();
    list.extend(last(&|a| matches!(a, Action::StripVlan)));
    list.extend(last(&|a| matches!(a, Action::PushVlan(_))));
    list.extend(last(&|a| matches!(a, Action::DecTtl)));
    let sets = |a: &&Action| matches!(a, Action::SetField { .. } | Action::SetVlanVid { .. });
    list.extend(set.iter().filter(sets).cloned());
    list.push(output);
    list
}
