//! A switch that does everything anew for every packet: tables are lists, actions rewrite bytes. It is
//! what the real one is compared with, and shares neither translation, classifier nor caches with it.

mod frame;
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};

use frame::Frame;
use openflow::{Action, Instructions, Match, OfPort};
use packet::{Field, Key};

use crate::vlan::{PortVlan, VlanMode};

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
}

type Sent = Vec<(OfPort, Vec<u8>)>;

impl Reference {
    /// What is sent, in order, when `frame` comes in on `port`.
    pub fn receive(&mut self, in_port: OfPort, frame: &[u8]) -> Sent {
        let mut walk = Walk {
            frame: Frame(frame.to_vec()),
            pipeline: Key::new(),
            in_port,
            table: 0,
            set: Vec::new(),
            exit: false,
            len: frame.len() as u64,
        };
        let mut sent = Vec::new();
        self.table(&mut walk, 0, in_port, &mut sent);
        self.action_set(&mut walk, &mut sent);
        sent
    }

    fn action_set(&mut self, walk: &mut Walk, sent: &mut Sent) {
        let set = std::mem::take(&mut walk.set);
        let last = |kind: &dyn Fn(&Action) -> bool| set.iter().rev().find(|a| kind(a)).cloned();
        let Some(output) = last(&|a| matches!(a, Action::Output { .. })) else { return };
        let mut list = Vec::new();
        list.extend(last(&|a| matches!(a, Action::StripVlan)));
        list.extend(last(&|a| matches!(a, Action::PushVlan(_))));
        list.extend(last(&|a| matches!(a, Action::DecTtl)));
        let sets = |a: &&Action| matches!(a, Action::SetField { .. } | Action::SetVlanVid { .. });
        list.extend(set.iter().filter(sets).cloned());
        list.push(output);
        self.actions(walk, &list, sent);
    }

    fn table(&mut self, walk: &mut Walk, table: u8, in_port: OfPort, sent: &mut Sent) {
        let mut key = walk.pipeline.clone();
        packet::flow::extract(&walk.frame.0, &mut key);
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
                    let mut key = Key::new();
                    packet::flow::extract(&walk.frame.0, &mut key);
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
                }
                Action::Exit => walk.exit = true,
                other => panic!("the reference does not know {other:?}"),
            }
        }
        !walk.exit
    }

    fn output(&mut self, walk: &mut Walk, port: OfPort, sent: &mut Sent) {
        match port {
            OfPort::IN_PORT => self.send(walk.in_port, &walk.frame, sent),
            OfPort::NORMAL => self.normal(walk, sent),
            OfPort::FLOOD | OfPort::ALL => {
                let others: Vec<OfPort> = self.ports.keys().copied().filter(|&p| p != walk.in_port).collect();
                others.into_iter().for_each(|port| self.send(port, &walk.frame, sent));
            }
            port if port == walk.in_port => {}
            port => self.send(port, &walk.frame, sent),
        }
    }

    fn send(&self, port: OfPort, frame: &Frame, sent: &mut Sent) {
        if self.ports.contains_key(&port) {
            sent.push((port, frame.0.clone()));
        }
    }

    fn normal(&mut self, walk: &Walk, sent: &mut Sent) {
        let Some(vlan) = self.ports.get(&walk.in_port) else { return };
        let bytes = &walk.frame.0;
        let (dst, src): ([u8; 6], [u8; 6]) = (bytes[..6].try_into().unwrap(), bytes[6..12].try_into().unwrap());
        let vid = walk.frame.tci().map_or(0, |tci| tci & 0xfff);
        let carries = |vlan: &PortVlan, vid| vlan.trunks.as_ref().is_none_or(|set| set.has(vid));
        let inside = match vlan.mode {
            VlanMode::Access if vid != 0 => return,
            VlanMode::Access => vlan.tag,
            VlanMode::Trunk if !carries(vlan, vid) => return,
            VlanMode::Trunk => vid,
            _ if vid == 0 => vlan.tag,
            _ if !carries(vlan, vid) => return,
            _ => vid,
        };
        if dst[..5] == [1, 0x80, 0xc2, 0, 0] && dst[5] < 16 {
            return;
        }
        if src[0] & 1 == 0 {
            self.macs.insert((inside, src), walk.in_port);
        }
        let access = vlan.mode == VlanMode::Access;
        let targets: Vec<OfPort> = match self.macs.get(&(inside, dst)) {
            Some(&port) if port == walk.in_port => return,
            Some(&port) => vec![port],
            None => {
                let reached = |vlan: &PortVlan| match vlan.mode {
                    VlanMode::Access => vlan.tag == inside,
                    VlanMode::Trunk => carries(vlan, inside),
                    _ => vlan.tag == inside || carries(vlan, inside),
                };
                let others = self.ports.iter().filter(|(port, vlan)| **port != walk.in_port && reached(vlan));
                others.map(|(port, _)| *port).collect()
            }
        };
        for port in targets {
            let Some(to) = self.ports.get(&port) else { continue };
            let mut frame = walk.frame.clone();
            let pcp = frame.tci().map_or(0, |tci| tci & 0xe000);
            let tpid = if frame.tags() > 0 { u16::from_be_bytes([frame.0[12], frame.0[13]]) } else { 0x8100 };
            // The tag of the VLAN inside the bridge comes last; an access port has only that one.
            frame.pop();
            while access && frame.tags() > 0 {
                frame.pop();
            }
            let untagged = match to.mode {
                VlanMode::Access => {
                    while frame.tags() > 0 {
                        frame.pop();
                    }
                    true
                }
                VlanMode::NativeUntagged => inside == to.tag,
                _ => false,
            };
            if !untagged && inside | pcp != 0 {
                frame.push(tpid, inside | pcp);
            }
            // Ports do not send empty tags.
            while frame.tci() == Some(0) {
                frame.pop();
            }
            self.send(port, &frame, sent);
        }
    }
}
