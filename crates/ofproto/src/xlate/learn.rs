//! The learn action: a packet makes a flow.

use openflow::action::{Learn, LearnDst, LearnSrc};
use openflow::{Action, FlowMod, FlowModCommand, Instructions, Match, OfPort, Subfield};

use super::Ctx;

impl Ctx<'_, '_> {
    /// Collects the flow that is to be learnt. Only a real packet learns, so a cached
    /// flow goes when the next packet would learn something.
    pub(super) fn learn(&mut self, learn: &Learn) {
        let mut matching = Match::any();
        let mut actions = Vec::new();
        if learn.fin_idle_timeout | learn.fin_hard_timeout != 0 {
            actions.push(Action::FinTimeout { idle: learn.fin_idle_timeout, hard: learn.fin_hard_timeout });
        }
        for spec in &learn.specs {
            let value = match &spec.src {
                LearnSrc::Field(src) => {
                    src.add_to(&mut self.wc);
                    src.get(&self.flow)
                }
                LearnSrc::Immediate(value) => *value,
            };
            match &spec.dst {
                LearnDst::Match(dst) => {
                    let (old, mask) = matching.get(dst.field);
                    matching.set_masked(dst.field, old | (value & dst.max()) << dst.ofs, mask | dst.mask());
                }
                LearnDst::Load(dst) => actions.extend(loads(*dst, value)),
                LearnDst::Output => actions.push(Action::output(OfPort::from_u16(value as u16))),
            }
        }
        let table = &self.bridge.tables[usize::from(learn.table.0).min(crate::forwarding::TABLES - 1)];
        self.record.depends_on_table(self.bridge.id, learn.table.0);
        if !self.real {
            let pattern = table.rules.pattern(&matching.key, &matching.mask);
            let known = table.rules.find(&pattern, learn.priority);
            self.record.volatile |= known.is_none_or(|rule| rule.instructions.apply != actions);
            return;
        }
        let mut change = FlowMod::new(FlowModCommand::ModifyStrict, matching, Instructions::apply(actions));
        change.table = Some(learn.table);
        change.new_cookie = Some(learn.cookie);
        (change.idle_timeout, change.hard_timeout) = (learn.idle_timeout, learn.hard_timeout);
        (change.priority, change.flags) = (learn.priority, learn.flags);
        self.learned.push((self.bridge.id, change));
    }
}

/// `load` takes 64 bits: a wider part of a field needs several, from the lowest bits up.
fn loads(dst: Subfield, value: u128) -> impl Iterator<Item = Action> {
    (0..dst.n_bits).step_by(64).map(move |at| {
        let part = Subfield { field: dst.field, ofs: dst.ofs + at, n_bits: (dst.n_bits - at).min(64) };
        Action::RegLoad { dst: part, value: (value >> at & part.max()) as u64 }
    })
}
