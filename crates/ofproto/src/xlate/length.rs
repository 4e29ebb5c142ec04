//! `check_pkt_larger`: what comes after it depends on the packet's length, which no flow matches.

use datapath::Action as DpAction;
use openflow::Subfield;

use super::Ctx;
use super::steps::StepRef;

impl Ctx<'_, '_> {
    /// Translates the rest of a list twice, for long packets and for others; the datapath chooses. Each time the
    /// pipeline is brought to its end, so that the action set has been executed afterwards.
    pub(super) fn check_length<'e>(
        &mut self,
        size: u16,
        dst: &Subfield,
        rest: impl Iterator<Item = StepRef<'e>> + Clone,
    ) {
        if rest.clone().next().is_none() {
            return;
        }
        self.commit();
        let (flow, base, stack, set) =
            (self.flow.clone(), self.base.clone(), self.stack.clone(), std::mem::take(&mut self.action_set));
        let (was_mpls, mirrored) = (self.was_mpls, self.mirrored);
        let mut exits = [false; 2];
        let mut all_mirrored = mirrored;
        let mut branches = [true, false].map(|longer| {
            let outer = std::mem::take(&mut self.out);
            (self.action_set, self.mirrored, self.exit) = (set.clone(), mirrored, false);
            self.write(dst.field, u128::from(longer) << dst.ofs, dst.mask());
            self.steps(rest.clone());
            exits[usize::from(longer)] = self.exit && !self.freezing;
            self.end_pipeline();
            all_mirrored |= self.mirrored;
            (self.flow, self.base, self.stack, self.was_mpls) = (flow.clone(), base.clone(), stack.clone(), was_mpls);
            std::mem::replace(&mut self.out, outer)
        });
        let [longer, others] = [std::mem::take(&mut branches[0]), std::mem::take(&mut branches[1])];
        self.out.push(DpAction::CheckLength { size, longer, others });
        self.action_set = Vec::new();
        self.mirrored = all_mirrored;
        self.exit = exits[1];
    }
}
