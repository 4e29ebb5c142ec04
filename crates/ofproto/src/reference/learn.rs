//! Rules that packets make and end: `learn`, timeouts, `fin_timeout`.

use openflow::action::{Learn, LearnDst, LearnSrc};
use openflow::{Action, Cookie, Instructions, Match, OfPort, Subfield};
use packet::flow::field::Maskable;
use packet::{Field, Time};

use super::{PacketInFlight, Pass, RefRule, Reference};

/// A rule that a packet wants to be there.
pub(super) struct Learnt {
    table: u8,
    priority: u16,
    matching: Match,
    actions: Vec<Action>,
    cookie: Cookie,
    timeouts: (u16, u16),
    limit: u32,
}

impl Learnt {
    fn is(&self, rule: &RefRule) -> bool {
        rule.is(self.table, self.priority, &self.matching)
    }

    fn is_as(&self, other: &Learnt) -> bool {
        (other.table, other.priority, &other.matching) == (self.table, self.priority, &self.matching)
    }
}

impl Reference {
    /// The rule is learnt when all of the pass is done, but the limit is compared at once.
    pub(super) fn learn(&self, in_flight: &mut PacketInFlight, learn: &Learn, pass: &mut Pass) {
        let (mut matching, mut actions) = (Match::any(), Vec::new());
        if (learn.fin_idle_timeout, learn.fin_hard_timeout) != (0, 0) {
            actions.push(Action::FinTimeout { idle: learn.fin_idle_timeout, hard: learn.fin_hard_timeout });
        }
        for spec in &learn.specs {
            let value = match &spec.src {
                LearnSrc::Field(src) => in_flight.read(src),
                LearnSrc::Immediate(value) => *value,
            };
            match &spec.dst {
                LearnDst::Match(dst) => {
                    let dst = dst.in_key().unwrap();
                    let (old, mask) = matching.get(dst.field);
                    let (value, mask) = (old & !dst.mask() | value << dst.ofs, mask | dst.mask());
                    let info = dst.field.info();
                    if dst.field == Field::InPort && mask == 0xffff {
                        matching.set_in_port(OfPort::from_u16(value as u16));
                    } else if info.maskable == Maskable::Bitwise || mask == info.max() {
                        matching.set_masked(dst.field, value, mask);
                    }
                }
                LearnDst::Load(dst) => actions.extend((0..dst.n_bits).step_by(64).map(|at| {
                    let n_bits = (dst.n_bits - at).min(64);
                    let dst = Subfield { ofs: dst.ofs + at, n_bits, ..*dst };
                    let value = value >> at & (u128::MAX >> (128 - n_bits));
                    Action::RegLoad { dst, value: value as u64 }
                })),
                LearnDst::Output => actions.push(Action::output(OfPort::from_u16(value as u16))),
            }
        }
        let learnt = Learnt {
            table: learn.table.0,
            priority: learn.priority,
            matching,
            actions,
            cookie: learn.cookie,
            timeouts: (learn.idle_timeout, learn.hard_timeout),
            limit: learn.limit,
        };
        let admitted = self.admits(&learnt, &pass.learnt);
        if let Some(dst) = &learn.result_dst {
            in_flight.write(dst, admitted.into());
        }
        pass.learnt.extend(Some(learnt).filter(|_| admitted));
    }

    /// Whether the limit has room for a rule, beside those that the same pass has learnt before.
    fn admits(&self, learnt: &Learnt, before: &[Learnt]) -> bool {
        let here = |table, cookie| (table, cookie) == (learnt.table, learnt.cookie);
        let is_there = |learnt: &Learnt| self.rules.iter().any(|rule| learnt.is(rule));
        let mut new: Vec<&Learnt> = Vec::new();
        for other in before.iter().filter(|other| here(other.table, other.cookie) && !is_there(other)) {
            if !new.iter().any(|known| known.is_as(other)) {
                new.push(other);
            }
        }
        let count = self.rules.iter().filter(|rule| here(rule.table, rule.cookie)).count() + new.len();
        let again = new.iter().any(|other| other.is_as(learnt));
        learnt.limit == 0 || is_there(learnt) || again || count < learnt.limit as usize
    }

    /// Adds the rules, or gives them their actions and cookie.
    pub(super) fn add_learnt(&mut self, all: Vec<Learnt>) {
        for learnt in all {
            if !self.admits(&learnt, &[]) {
                continue;
            }
            let now = self.connections.now;
            let instructions = Instructions::apply(learnt.actions.clone());
            match self.rules.iter_mut().find(|rule| learnt.is(rule)) {
                Some(rule) => (rule.instructions, rule.cookie, rule.modified) = (instructions, learnt.cookie, now),
                None => {
                    let mut rule = RefRule::new(learnt.table, learnt.priority, learnt.matching, instructions, now);
                    (rule.cookie, rule.timeouts) = (learnt.cookie, learnt.timeouts);
                    self.rules.push(rule);
                }
            }
        }
    }

    /// The last packet of a connection lowers the timeouts of the rule that has the action.
    pub(super) fn fin_timeout(&mut self, in_flight: &PacketInFlight, idle: u16, hard: u16) {
        const FIN_OR_RST: u16 = 5;
        if in_flight.tcp_flags & FIN_OR_RST == 0 {
            return;
        }
        let Some(rule) = self.rules.iter_mut().find(|rule| Some(rule.id) == in_flight.rule()) else { return };
        rule.caps = (lower(rule.caps.0, idle), lower(rule.caps.1, hard));
    }

    /// Removes the rules whose time is over.
    pub fn expire(&mut self, now: Time) {
        self.retain(|rule| {
            let idle = lower(rule.timeouts.0, rule.caps.0);
            let hard = lower(rule.timeouts.1, rule.caps.1);
            let over = |since, secs: u16| secs != 0 && now.since(since).as_secs() >= secs.into();
            !over(rule.used, idle) && !over(rule.modified, hard)
        });
    }

    /// Keeps some rules only. Those that others had learnt with `delete_learned` go with the last one that learns such.
    pub fn retain(&mut self, keep: impl FnMut(&RefRule) -> bool) {
        let before = self.learning();
        self.rules.retain(keep);
        self.forget_orphans(before);
    }

    /// Removes what rules that were there `before` have learnt, where none does so any more.
    pub fn forget_orphans(&mut self, mut before: Vec<(u8, Cookie)>) {
        loop {
            let now = self.learning();
            before.retain(|learnt| !now.contains(learnt));
            if before.is_empty() {
                return;
            }
            self.rules.retain(|rule| !before.contains(&(rule.table, rule.cookie)));
            before = now;
        }
    }

    /// The tables and cookies of what rules learn with `delete_learned`.
    pub fn learning(&self) -> Vec<(u8, Cookie)> {
        let mut found = Vec::new();
        for rule in &self.rules {
            collect(&rule.instructions.apply, &mut found);
        }
        found
    }
}

fn collect(actions: &[Action], found: &mut Vec<(u8, Cookie)>) {
    for action in actions {
        match action {
            Action::Learn(learn) if learn.delete_learned => found.push((learn.table.0, learn.cookie)),
            Action::Clone(inner) => collect(inner, found),
            _ => {}
        }
    }
}

/// The lower of two timeouts, of which zero is none.
fn lower(a: u16, b: u16) -> u16 {
    [a, b].into_iter().filter(|&secs| secs != 0).min().unwrap_or(0)
}
