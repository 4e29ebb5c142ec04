//! The learn action: a packet makes a flow.

use std::collections::HashSet;

use openflow::action::{Learn, LearnDst, LearnSrc};
use openflow::{
    Action, AnyField, Bits, FlowMod, FlowModCommand, Instructions, Match, OfPort, Subfield, TableId, TunValue,
};

use super::{Ctx, limits};
use crate::model::forwarding::{BridgeId, BridgeState};
use crate::model::tlv;
use crate::slowpath::record::Parts;
use crate::table::Rule;

/// A flow that a packet has learnt and that is to be put into its table.
pub(crate) struct LearntFlow {
    pub bridge: BridgeId,
    /// A strict modification, which adds the flow where there is none.
    pub change: FlowMod,
    /// Most flows of its table and cookie, for it to be added; zero for no limit.
    limit: u32,
    /// It was not there during the translation.
    new: bool,
}

impl LearntFlow {
    /// Whether it may be put into its table: it is there already, or the limit has room for it beside `more` others.
    pub fn is_within_limit(&self, bridge: &BridgeState, more: u32) -> bool {
        self.limit == 0
            || self.existing(bridge).is_none_or(|(count, known)| known.is_some() || count + more < self.limit)
    }

    /// How many flows its table has of its cookie, and the flow with its match and priority, if there is one.
    fn existing<'b>(&self, bridge: &'b BridgeState) -> Option<(u32, Option<&'b Rule>)> {
        let table = bridge.tables.get(usize::from(self.change.table?.0))?;
        let matching = tlv::placed(&self.change.matching, &bridge.tlv).ok()?;
        let pattern = table.rules.pattern(&matching.key, &matching.mask);
        let known = table.rules.find(&pattern, self.change.priority).map(|rule| &**rule);
        Some((table.count_of(self.change.new_cookie.unwrap_or_default()), known))
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
                    (AnyField::Key(field), Some(part)) => {
                        let (old, mask) = matching.get(field);
                        matching.set_masked(field, old | part.place(value.low()), mask | part.mask());
                    }
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

    /// Notes a flow that is to be learnt, unless the limit forbids it. False where it does.
    fn learn_flow(&mut self, mut flow: LearntFlow) -> bool {
        let table = flow.change.table.unwrap_or(TableId(0));
        // The flows that are counted need not be about this packet.
        self.record.depends_on_table(self.bridge.id, table.0, Parts::ALL);
        self.record.holds.push(self.bridge.tables[usize::from(table.0)].counters.clone());
        let known = flow.existing(self.bridge).and_then(|(_, known)| known);
        flow.new = known.is_none();
        if flow.new && flow.limit > 0 {
            // Flows that this very packet learns count, too; one that it learns twice counts once.
            let before = || self.learnt.iter().filter(|other| other.shares_limit(&flow));
            let again = before().any(|other| other.identity() == flow.identity());
            let new: HashSet<_> = before().filter(|other| other.new).map(LearntFlow::identity).collect();
            if !again && !flow.is_within_limit(self.bridge, new.len() as u32) {
                self.detail(|| "learn limit reached".into());
                return false;
            }
        }
        if self.real {
            self.learnt.push(flow);
        } else {
            // The next packet has to miss, to learn it.
            self.record.volatile |= known.is_none_or(|rule| {
                **rule.instructions != flow.change.instructions || Some(rule.cookie) != flow.change.new_cookie
            });
        }
        true
    }
}

/// `load` takes 64 bits: a wider part of a field needs several, from the lowest bits up.
fn loads(dst: Subfield, value: &Bits) -> impl Iterator<Item = Action> {
    (0..dst.n_bits).step_by(64).map(move |at| {
        let part = Subfield { field: dst.field, ofs: dst.ofs + at, n_bits: (dst.n_bits - at).min(64) };
        Action::load(part, value.part(at, part.n_bits).low() as u64)
    })
}
