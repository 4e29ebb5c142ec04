//! Connection tracking: `ct`, `ct_clear` and `resubmit(ct)` (ovs-actions(7)).
//!
//! The datapath tracks a packet when it executes the action; a translation knows nothing of the outcome. So what comes
//! after `ct` in its list sees an untracked packet, and only the pipeline that goes on in `table`, with the
//! recirculated packet, sees the metadata.
//!
//! What the datapath does to its packet by `ct` cannot be undone: it may be translated, and it has metadata from then on.
//! What executes actions on a copy of the packet therefore has to make that copy in the datapath, where such an action
//! is among them ([`Ctx::on_copy`]).

use std::sync::Arc;

use conntrack::Request;
use conntrack::helpers::Helper;
use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use datapath::Action as DpAction;
use openflow::action::{Ct, CtZone, Nat as NatAction, NatAddrs, NatKind};
use openflow::{Action, Bits, Subfield};
use packet::flow::{BlockId, Blocks};
use packet::{Field, Key};

use super::trace::Event;
use super::{Ctx, is_ip, limits, meter};

/// The bits of ct_state that say that a packet has been tracked.
const TRACKED: u32 = conntrack::CtState::TRK.0 as u32;

/// What the actions inside of `ct` come to.
#[derive(Default)]
struct Exec {
    mark: u32,
    label: u128,
    nat: Option<Translate>,
}

impl Ctx<'_, '_> {
    /// The number of the timeout policy that a new connection of a zone gets.
    fn policy_of(&self, zone: u16) -> u16 {
        self.forwarding.ct_policies.get(&zone).copied().unwrap_or(0)
    }

    /// The ct action.
    pub(super) fn ct(&mut self, ct: &Ct) {
        let zone = match &ct.zone {
            CtZone::Immediate(zone) => *zone,
            CtZone::Field(src) => self.read(src).low() as u16,
        };
        self.commit();
        let exec = self.exec(&ct.actions);
        let (mark, label) = (self.flow.get(Field::CtMark) as u32, self.flow.get(Field::CtLabel));
        let request = Request {
            zone,
            commit: ct.commit,
            force: ct.force,
            nat: exec.nat,
            mark: (exec.mark != 0).then_some((mark & exec.mark, exec.mark)),
            label: (exec.label != 0).then_some((label & exec.label, exec.label)),
            helper: self.helper(ct.alg),
            policy: if ct.commit || ct.force { self.policy_of(zone) } else { 0 },
        };
        self.out.push(DpAction::Ct(Arc::new(request)));
        self.undoable = false;
        if !self.charge(limits::REWRITE) {
            return;
        }
        if let Some(table) = ct.table {
            self.conntracked = true;
            let recirc_id = self.fork(table.0);
            if let Some(sink) = &mut self.sink {
                let nat = ct.actions.iter().rev().find_map(|action| match action {
                    Action::Nat(nat) => Some(&**nat),
                    _ => None,
                });
                sink.event(Event::Fork { recirc_id, key: &self.flow, zone, nat });
            }
            self.detail(|| {
                format!(
                    "A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table {table}."
                )
            });
        }
        self.clear_conntrack();
        self.detail(|| "Sets the packet to an untracked state, and clears all the conntrack fields.".into());
    }

    /// The ct_clear action.
    pub(super) fn ct_clear(&mut self) {
        if self.conntracked {
            self.clear_conntrack();
            self.out.push(DpAction::CtClear);
            self.undoable = false;
        }
    }

    /// Makes the packet an untracked one, as far as the pipeline can see.
    pub(super) fn clear_conntrack(&mut self) {
        self.conntracked = false;
        clear(&mut self.flow);
    }

    /// Executes the actions inside of `ct`. They write mark and label of the packet under translation, which the connection
    /// gets.
    fn exec(&mut self, actions: &[Action]) -> Exec {
        let mut exec = Exec::default();
        for action in actions {
            self.event(|| Event::Action(action));
            match action {
                Action::Nat(nat) => exec.nat = Some(translate(nat)),
                Action::RegMove { src, dst } => {
                    if [src, dst].iter().all(|part| part.field.prereq().satisfied(&self.flow)) {
                        let value = self.read(src);
                        exec.write_part(&mut self.flow, dst, &value);
                        self.written(dst);
                    }
                }
                Action::StackPop(dst) => match self.stack.pop() {
                    Some((value, _)) => exec.write_part(&mut self.flow, dst, &value),
                    None => self.event(|| Event::Error("stack underflow")),
                },
                action => {
                    if let Some((field, value, mask)) = action.field_write() {
                        exec.write(&mut self.flow, field, value, mask);
                    }
                }
            }
        }
        exec
    }

    fn helper(&mut self, alg: u16) -> Option<Helper> {
        match alg {
            0 => None,
            21 => Some(Helper::Ftp),
            69 => Some(Helper::Tftp),
            alg => {
                self.report(&format!("cannot serialize ct_helper {alg}"));
                None
            }
        }
    }

    /// Looks up the present table with the original direction of the packet's connection in place of its own addresses,
    /// protocol and ports (`resubmit(ct)`). What is looked at is matched where it comes from.
    pub(super) fn with_original_tuple<T>(&mut self, look_up: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.conntracked {
            // A flow that did not look at it before has nothing there to tell by.
            self.wc.set_exact(Field::CtNwProto);
        }
        if self.flow.ct().ct_nw_proto == 0 || !is_ip(&self.flow) {
            self.report("resubmit(ct) with non-tracked or non-IP packet!");
            return None;
        }
        let is_v4 = self.flow.common().dl_type.get() == 0x0800;
        swap_tuples(&mut self.flow, is_v4);
        swap_tuples(&mut self.wc.0, is_v4);
        let found = look_up(self);
        swap_tuples(&mut self.flow, is_v4);
        swap_tuples(&mut self.wc.0, is_v4);
        Some(found)
    }

    /// Executes something on a copy of the packet, whose headers the caller restores. The copy is made in the datapath where
    /// something was done to it that cannot be undone.
    pub(super) fn on_copy(&mut self, execute: impl FnOnce(&mut Self)) {
        let (from, base, conntracked) = (self.out.len(), Box::new(self.base.clone()), self.conntracked);
        let (undoable, copies) = (std::mem::replace(&mut self.undoable, true), std::mem::take(&mut self.usage.copies));
        let pending = self.pending.clone();
        execute(self);
        if !self.undoable {
            let inner = self.out.split_off(from);
            let is_copy = |action: &DpAction| matches!(action, DpAction::Clone(_));
            // A copy at the end that is the only one does not nest any deeper.
            let only_last =
                inner.last().is_some_and(is_copy) && inner.iter().filter(|action| is_copy(action)).count() == 1;
            self.usage.copies += u32::from(!only_last);
            self.check_copies();
            let inner = without_last_copy(inner);
            self.usage.set_aside += inner.len();
            self.out.push(DpAction::Clone(inner));
            self.base = *base;
        }
        self.usage.copies = self.usage.copies.max(copies);
        (self.undoable, self.conntracked, self.pending) = (undoable, conntracked, pending);
    }
}

impl Exec {
    fn write_part(&mut self, flow: &mut Key, part: &Subfield, value: &Bits) {
        if let Some(part) = part.in_key() {
            self.write(flow, part.field, part.place(value.low()), part.mask());
        }
    }

    fn write(&mut self, flow: &mut Key, field: Field, value: u128, mask: u128) {
        match field {
            Field::CtMark => self.mark |= mask as u32,
            Field::CtLabel => self.label |= mask,
            // Nothing else can be written inside of ct.
            _ => return,
        }
        flow.set(field, flow.get(field) & !mask | value & mask);
    }
}

/// Whether a packet has been tracked before its translation begins.
pub(super) fn is_tracked(key: &Key) -> bool {
    key.ct().ct_state.get() & TRACKED != 0
}

/// Removes all fields of connection tracking.
fn clear(key: &mut Key) {
    key.keep(Blocks(key.present().0 & !(1 << BlockId::Ct as u16)));
}

/// Whether one of the actions does something to the datapath's packet that cannot be undone, without a look into tables and
/// groups that they lead to.
pub(super) fn tracks(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Ct(_)))
}

/// A list that ends with a copy has no need for it: nothing comes after.
pub(super) fn without_last_copy(mut actions: Vec<DpAction>) -> Vec<DpAction> {
    if let Some(DpAction::Clone(inner)) = actions.last()
        && !meter::is_metered_punt(inner)
        && let Some(DpAction::Clone(inner)) = actions.pop()
    {
        actions.extend(inner);
    }
    actions
}

fn translate(nat: &NatAction) -> Translate {
    let side = match nat.kind {
        None => return Translate::AsBefore,
        Some(NatKind::Src) => Side::Src,
        Some(NatKind::Dst) => Side::Dst,
    };
    let addresses = match nat.addrs {
        NatAddrs::None => None,
        NatAddrs::V4(min, max) => Some((min.into(), max.unwrap_or(min).max(min).into())),
        NatAddrs::V6(min, max) => Some((min.into(), max.unwrap_or(min).max(min).into())),
    };
    let ports = nat.ports.filter(|_| addresses.is_some()).map(|(min, max)| (min, max.max(min)));
    let choice = match (nat.hash, nat.random) {
        (true, _) => Choice::Hash,
        (false, true) => Choice::Random,
        (false, false) => Choice::Unsaid,
    };
    Translate::New(Nat { side, addresses, ports, choice, persistent: nat.persistent })
}

/// Exchanges a packet's addresses, protocol and ports with those of the original direction of its connection.
fn swap_tuples(key: &mut Key, is_v4: bool) {
    let fields: [(Field, Field); 2] = match is_v4 {
        true => [(Field::NwSrc, Field::CtNwSrc), (Field::NwDst, Field::CtNwDst)],
        false => [(Field::Ipv6Src, Field::CtIpv6Src), (Field::Ipv6Dst, Field::CtIpv6Dst)],
    };
    let others = [(Field::NwProto, Field::CtNwProto), (Field::TcpSrc, Field::CtTpSrc), (Field::TcpDst, Field::CtTpDst)];
    for (own, original) in fields.into_iter().chain(others) {
        let (a, b) = (key.get(own), key.get(original));
        if a != b {
            key.set(own, b);
            key.set(original, a);
        }
    }
}
