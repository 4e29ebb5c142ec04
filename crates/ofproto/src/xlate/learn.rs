//! The learn action: a packet makes a flow.

use std::collections::HashSet;

use openflow::action::{Learn, LearnDst, LearnSrc};
use openflow::matching::KeyPart;
use openflow::{
    Action, AnyField, Bits, FlowMod, FlowModCommand, Instructions, Match, OfPort, Subfield, TableId, TunValue,
};

use packet::Field;
use packet::flow::field::Maskable;

use super::{Ctx, limits};
use crate::model::forwarding::{BridgeId, BridgeState};
use crate::model::tlv;
use crate::slowpath::record::{Learns, Parts};
use crate::table::Rule;

/// A flow that a packet has learnt and that is to be put into its table.
pub(crate) struct LearntFlow {
    pub bridge: BridgeId,
    /// A strict modification, which adds the flow where there is none.
    pub change: FlowMod,
    /// Most flows of its table and cookie, for it to be added; zero for no limit but the table's.
    limit: u32,
    /// It was not there during the translation.
    new: bool,
}

impl LearntFlow {
    /// Whether it may be put into its table: it is there already, or there is room for it.
    pub fn is_within_limit(&self, bridge: &BridgeState) -> bool {
        self.existing(bridge).is_none_or(|existing| existing.admits(self.limit, 0))
    }

    /// What its table has. `None` where it cannot be in the table.
    fn existing<'b>(&self, bridge: &'b BridgeState) -> Option<Existing<'b>> {
        let table = bridge.tables.get(usize::from(self.change.table?.0))?;
        let matching = tlv::placed(&self.change.matching, &bridge.tlv).ok()?;
        let pattern = table.rules.pattern(&matching.key, &matching.mask);
        Some(Existing {
            known: table.rules.find(&pattern, self.change.priority).map(|rule| &**rule),
            matching: pattern.fingerprint(),
            of_cookie: table.count_of(self.change.new_cookie.unwrap_or_default()),
            takes_more: table.takes_learnt(),
        })
    }

    /// Whether both ask for flows of one table and cookie.
    fn shares_limit(&self, other: &LearntFlow) -> bool {
        (self.bridge, self.change.table, self.change.new_cookie)
            == (other.bridge, other.change.table, other.change.new_cookie)
    }

    /// What is different for different flows of a table.
    fn identity(&self) -> (u16, &Match) {
        (self.change.priority, &self.change.matching)
    }
}

/// What a table has of a flow that is to be learnt.
struct Existing<'b> {
    /// The flow with its match and priority, if there is one.
    known: Option<&'b Rule>,
    /// The fingerprint of its match.
    matching: u64,
    /// How many flows there are of its cookie.
    of_cookie: u32,
    /// The table takes more flows that are learnt.
    takes_more: bool,
}

impl Existing<'_> {
    /// Whether the table may have the flow, with `more` others that it does not have yet; zero is no limit for those of its cookie.
    fn admits(&self, limit: u32, more: u32) -> bool {
        self.known.is_some() || self.takes_more && (limit == 0 || self.of_cookie + more < limit)
    }
}

impl Ctx<'_, '_> {
    /// Collects the flow that is to be learnt. Only a real packet learns, so a datapath flow is removed when its next
    /// packet would learn something.
    ///
    /// `result_dst` says whether the limit allows the flow, by the tables as this translation sees them. Where two
    /// packets at once reach the limit with one flow left, both get a yes, and one flow is learnt.
    pub(super) fn learn(&mut self, learn: &Learn) {
        // With a limit, it is compared with what the packet has learnt before.
        let compared = if learn.limit > 0 { self.learnt.len() } else { 0 };
        if !self.charge(limits::LEARN + compared) {
            return;
        }
        let mut matching = Match::any();
        let mut actions = Vec::new();
        if learn.fin_idle_timeout | learn.fin_hard_timeout != 0 {
            actions.push(Action::FinTimeout { idle: learn.fin_idle_timeout, hard: learn.fin_hard_timeout });
        }
        for spec in &learn.specs {
            let value = match &spec.src {
                LearnSrc::Field(src) => self.read(src),
                LearnSrc::Immediate(value) => Bits::from(*value),
            };
            match &spec.dst {
                LearnDst::Match(dst) => match (dst.field, dst.in_key()) {
                    (AnyField::Tun(field), _) => {
                        matching.add_tun(TunValue::part(field.index, dst.ofs, dst.n_bits, &value));
                    }
                    (AnyField::Key(_), Some(part)) => add_part(&mut matching, part, value.low()),
                    (AnyField::Key(_), None) => {}
                },
                LearnDst::Load(dst) => actions.extend(loads(*dst, &value)),
                LearnDst::Output => actions.push(Action::output(OfPort::from_u16(value.low() as u16))),
            }
        }
        let mut change = FlowMod::new(FlowModCommand::ModifyStrict, matching, Instructions::apply(actions));
        change.table = Some(learn.table);
        change.new_cookie = Some(learn.cookie);
        (change.idle_timeout, change.hard_timeout) = (learn.idle_timeout, learn.hard_timeout);
        (change.priority, change.flags) = (learn.priority, learn.flags);
        let flow = LearntFlow { bridge: self.bridge.id, change, limit: learn.limit, new: false };
        let admitted = self.learn_flow(flow);
        if let Some(dst) = &learn.result_dst {
            self.write_part(dst, &u128::from(admitted).into());
            self.written(dst);
        }
    }

    /// Whether a flow that is new may be learnt. Those that this very packet learns count, too; one that it learns twice counts once.
    fn has_room(&self, flow: &LearntFlow, existing: &Existing) -> bool {
        if flow.limit == 0 {
            return existing.admits(0, 0);
        }
        let before = || self.learnt.iter().filter(|other| other.shares_limit(flow));
        let again = before().any(|other| other.identity() == flow.identity());
        let new: HashSet<_> = before().filter(|other| other.new).map(LearntFlow::identity).collect();
        again || existing.admits(flow.limit, new.len() as u32)
    }

    /// Notes a flow that is to be learnt, unless a limit forbids it. False where one does.
    fn learn_flow(&mut self, mut flow: LearntFlow) -> bool {
        let number = flow.change.table.unwrap_or(TableId(0));
        let table = &self.bridge.tables[usize::from(number.0)];
        self.record.holds.push(table.counters.clone());
        let existing = flow.existing(self.bridge);
        let known = existing.as_ref().and_then(|existing| existing.known);
        flow.new = known.is_none();
        if existing.as_ref().is_some_and(|existing| flow.new && !self.has_room(&flow, existing)) {
            self.detail(|| "learn limit reached".into());
            if self.real && !table.takes_learnt() {
                let bridge = &self.bridge.config.name;
                tracing::warn!("{bridge}: table {} has {} flows and learns no more", number.0, table.rules.len());
            }
            // Any flow that goes may make room.
            self.record.depends_on_table(self.bridge.id, number.0, Parts::ALL);
            return false;
        }
        let change = &flow.change;
        let same =
            known.filter(|rule| **rule.instructions == change.instructions && Some(rule.cookie) == change.new_cookie);
        let Some(Existing { matching, .. }) = existing else {
            self.record.depends_on_table(self.bridge.id, number.0, Parts::ALL);
            self.learnt.extend(Some(flow).filter(|_| self.real));
            return true;
        };
        let (bridge, renews) = (self.bridge.id, same.map(|rule| rule.stats.clone()));
        self.record.learns.push(Learns { bridge, table: number.0, matching, renews });
        if !self.real {
            // The next packet has to miss, to learn it.
            self.record.volatile |= same.is_none();
        } else if let Some(rule) = same.filter(|_| self.learnt.is_empty()) {
            rule.stats.note_taught(self.now);
        } else {
            // What the packet has learnt before may change it, too.
            self.learnt.push(flow);
        }
        true
    }
}

/// Adds to a match what the bits of a field are to be, in place of what they were to be. As in OVS, a part of a field that can only be matched
/// as a whole is left out.
fn add_part(matching: &mut Match, part: KeyPart, value: u128) {
    let info = part.field.info();
    let (old, mask) = matching.get(part.field);
    let (value, mask) = (old & !part.mask() | part.place(value), mask | part.mask());
    match part.field {
        _ if info.maskable == Maskable::No && mask != info.max() => {}
        // Ports have 32 bits in a match.
        Field::InPort => matching.set_in_port(OfPort::from_u16(value as u16)),
        field => matching.set_masked(field, value, mask),
    }
}

/// `load` takes 64 bits: a wider part of a field needs several, from the lowest bits up.
fn loads(dst: Subfield, value: &Bits) -> impl Iterator<Item = Action> {
    (0..dst.n_bits).step_by(64).map(move |at| {
        let part = Subfield { field: dst.field, ofs: dst.ofs + at, n_bits: (dst.n_bits - at).min(64) };
        Action::load(part, value.part(at, part.n_bits).low() as u64)
    })
}
