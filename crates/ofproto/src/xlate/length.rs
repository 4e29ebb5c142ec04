//! `check_pkt_larger`: the actions after it depend on the packet's length, which no flow matches.

use datapath::Action as DpAction;
use openflow::{Action, Subfield};

use super::commit::Pending;
use super::steps::PipelineStep;
use super::{Ctx, limits};

impl Ctx<'_, '_> {
    /// Translates the rest of a list twice, for long packets and for others; the datapath chooses. Each time the
    /// pipeline is brought to its end, so that the action set has been executed afterwards. Where the answer follows
    /// from earlier ones, once is enough: otherwise a list that asks again and again would double with each question.
    pub(super) fn check_length<'e>(
        &mut self,
        size: u16,
        dst: &Subfield,
        rest: impl Iterator<Item = PipelineStep<'e>> + Clone,
    ) {
        if rest.clone().next().is_none() {
            return;
        }
        self.commit();
        let set = std::mem::take(&mut self.action_set);
        if !self.charge(2 * (self.stack.len() + limits::size(&set))) {
            return;
        }
        let (flow, stack) = (Box::new(self.flow.clone()), self.stack.clone());
        let (was_mpls, conntracked) = (self.was_mpls, self.conntracked);
        let is_longer = match self.forwarding.without_check_length {
            true => {
                // Without a packet, as in a trace, it is taken for a short one.
                self.slow = true;
                Some(self.bytes.is_some_and(|bytes| bytes > size.into()))
            }
            false => self.length.is_longer(size),
        };
        self.exit = match is_longer {
            Some(longer) => self.branch(longer, dst, set, rest),
            None => self.both_branches(size, dst, set, rest),
        };
        (self.flow, self.stack) = (*flow, stack);
        (self.was_mpls, self.conntracked, self.pending) = (was_mpls, conntracked, Pending::Nothing);
        self.action_set = Vec::new();
    }

    /// Returns whether the branch for shorter packets ended the pipeline.
    fn both_branches<'e>(
        &mut self,
        size: u16,
        dst: &Subfield,
        set: Vec<Action>,
        rest: impl Iterator<Item = PipelineStep<'e>> + Clone,
    ) -> bool {
        if !self.may_branch() {
            return false;
        }
        let (flow, base) = (Box::new(self.flow.clone()), Box::new(self.base.clone()));
        let (stack, mirrored, length) = (self.stack.clone(), self.mirrored, self.length);
        let (was_mpls, conntracked) = (self.was_mpls, self.conntracked);
        let (outer, unsent) = (std::mem::take(&mut self.out), self.unsent.take());
        self.usage.branches += 1;
        self.usage.set_aside += outer.len();

        self.length = length.with(size, true);
        self.branch(true, dst, set.clone(), rest.clone());
        let longer = self.end_of_branch(Vec::new());
        let all_mirrored = std::mem::replace(&mut self.mirrored, mirrored);
        self.usage.set_aside += longer.len();

        (self.flow, self.base, self.stack) = (*flow, (*base).clone(), stack);
        (self.was_mpls, self.conntracked, self.pending) = (was_mpls, conntracked, Pending::Nothing);
        self.length = length.with(size, false);
        let exit = self.branch(false, dst, set, rest);
        let others = self.end_of_branch(outer);
        self.unsent = unsent;
        self.mirrored |= all_mirrored;
        // What the branches hold stays where it is; the outer list is what grows again.
        self.usage.set_aside += others.len();
        self.usage.set_aside -= self.out.len();
        self.usage.branches -= 1;

        (self.base, self.length) = (*base, length);
        self.out.push(DpAction::CheckLength { size, longer, others });
        exit
    }

    /// Takes the actions of a branch, with the reason of a packet that is not sent, and continues with the list `next`.
    fn end_of_branch(&mut self, next: Vec<DpAction>) -> Vec<DpAction> {
        let mut actions = std::mem::replace(&mut self.out, next);
        if let Some((reason, _)) = self.unsent.take()
            && super::goes_nowhere(&actions, reason)
        {
            actions.push(DpAction::Drop(reason));
        }
        actions
    }

    /// Translates the rest of a list for packets that are longer, or for the others. Returns whether they ended the
    /// pipeline.
    fn branch<'e>(
        &mut self,
        longer: bool,
        dst: &Subfield,
        set: Vec<Action>,
        rest: impl Iterator<Item = PipelineStep<'e>> + Clone,
    ) -> bool {
        (self.action_set, self.exit) = (set, false);
        self.write_part(dst, &u128::from(longer).into());
        self.steps(rest);
        let exit = self.exit && !self.freezing;
        self.end_pipeline();
        exit
    }
}
