//! Courses: what is known of a program, when it is compiled, about the way of packets that are tracked.
//!
//! Packets of an established connection's direction, with the same headers, go through the same programs. What such a program does to them
//! may depend on nothing else: that is what a course says.

use super::form::{compact_form, compact_push};
use super::{Disposition, Step};
use crate::action::PortNo;
use crate::actions::compact_form::Compact;

/// What a program means for the way of a tracked packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Course {
    /// It may do other things with each packet.
    Unknown,
    /// It only sends packets, or drops them, whatever it does to them before, and tells collectors of them.
    Ends,
    /// It tracks them, and all else that it does has a compact form.
    Tracks,
    /// It sends some packets to a port or a collector, too, and does the same with all of them then.
    TracksSampled,
    /// It sends copies of them to ports, and does the same with all of them then.
    TracksCopied,
    /// It tracks them, and does other things before or behind that.
    TracksInSteps,
    /// The same; and somebody gets copies with their metadata, which is known of what a port receives.
    TracksFirst,
    /// It has them classified again, after what has a compact form.
    PassesOn,
    /// The same, after other things.
    PassesOnInSteps,
}

impl Course {
    /// That of a program with these steps and this end; and the compact form of all of it but the tracking.
    pub fn of(steps: &[Step], end: &Disposition) -> (Course, Compact) {
        let copies = steps.iter().take_while(|step| step.copies_to().is_some()).count();
        let (early, course) = match steps {
            [Step::Sample(sample), ..] if sample.program.is_plain_end() => (1, Course::TracksSampled),
            _ => (copies, Course::TracksCopied),
        };
        if early > 0
            && let (Course::Tracks, form) = Course::without_early(&steps[early..], end)
        {
            return (course, form);
        }
        Course::without_early(steps, end)
    }

    /// The same, whatever comes before the tracking.
    fn without_early(steps: &[Step], end: &Disposition) -> (Course, Compact) {
        let tracks = steps.iter().any(|step| matches!(step, Step::Ct(_)));
        let form = compact(steps, end, tracks);
        let is_again = matches!(end, Disposition::Recirc(_));
        let is_compact = match &form {
            // What flows behind it count is the frame's length.
            Compact::Rewrite(rewrite) => !(is_again && rewrite.changes_tags()),
            Compact::Push(_) | Compact::RewriteAndPush(_) => true,
            Compact::None => is_again && steps.iter().all(Step::is_of_metadata),
        };
        let course = match (tracks, is_again) {
            (false, false) if end.is_plain() && steps.iter().all(Step::is_plain) => Course::Ends,
            (false, false) => Course::Unknown,
            (true, _) if is_compact => Course::Tracks,
            (false, true) if is_compact => Course::PassesOn,
            _ => in_steps(steps, end, tracks),
        };
        let is_known = tracks || is_again;
        let form = if course == Course::Unknown && is_known { Compact::None } else { form };
        (course, form)
    }

    /// Whether the compact form, if there is one, is all that the program does.
    #[inline(always)]
    pub fn is_all(self) -> bool {
        matches!(self, Course::Unknown | Course::Ends)
    }

    /// Whether it tracks packets, and they can be followed.
    #[inline(always)]
    pub fn tracks(self) -> bool {
        match self {
            Course::Tracks | Course::TracksSampled | Course::TracksCopied => true,
            Course::TracksInSteps | Course::TracksFirst => true,
            Course::Unknown | Course::Ends | Course::PassesOn | Course::PassesOnInSteps => false,
        }
    }

    /// Whether packets can be followed that were tracked before.
    #[inline(always)]
    pub fn passes_on(self) -> bool {
        matches!(self, Course::PassesOn | Course::PassesOnInSteps)
    }

    /// Whether something is done with packets before they are tracked, which need not take steps where a port has received them.
    pub fn is_of_first(self) -> bool {
        matches!(self, Course::TracksSampled | Course::TracksCopied)
    }

    /// Whether it does what takes its steps.
    pub fn is_in_steps(self) -> bool {
        matches!(self, Course::TracksInSteps | Course::TracksFirst | Course::PassesOnInSteps)
    }
}

/// The compact form of all steps but those of tracking.
fn compact(steps: &[Step], end: &Disposition, tracks: bool) -> Compact {
    if let Disposition::Recirc(_) = end {
        let rewrites = steps.iter().any(|step| !step.is_of_metadata());
        let others = steps.iter().filter(|step| !step.is_of_metadata());
        let form = if rewrites { compact_form(others, PortNo(0)) } else { None };
        return form.filter(|form| form.copies().is_empty()).map_or(Compact::None, Compact::Rewrite);
    }
    let Disposition::Output { port, max_len: u32::MAX } = end else { return Compact::None };
    // Without tracking, what is done with the metadata has nobody to read it; it was left out.
    let others = steps.iter().filter(|step| !(tracks && step.is_of_metadata()));
    let rewrite = compact_form(others.clone(), *port).filter(|form| !tracks || form.copies().is_empty());
    rewrite.map(Compact::Rewrite).or_else(|| compact_push(others, *port)).unwrap_or(Compact::None)
}

/// The course of a program whose steps have to be taken one by one.
fn in_steps(steps: &[Step], end: &Disposition, tracks: bool) -> Course {
    let is_metadata_read = || {
        let mut is_written = false;
        steps.iter().any(|step| {
            is_written |= step.is_of_metadata();
            is_written && step.reads_metadata()
        })
    };
    let before = match end {
        Disposition::Recirc(_) => steps.len(),
        end if end.is_plain() => steps.iter().rposition(|step| matches!(step, Step::Ct(_))).map_or(0, |last| last + 1),
        _ => return Course::Unknown,
    };
    let (before, behind) = steps.split_at(before);
    let is_known =
        before.iter().all(Step::can_be_followed) && behind.iter().all(|step| step.is_plain() || step.is_of_metadata());
    let reads = steps.iter().any(Step::reads_metadata);
    match (tracks, reads) {
        _ if !is_known => Course::Unknown,
        (true, false) => Course::TracksInSteps,
        (false, false) => Course::PassesOnInSteps,
        (true, true) if !is_metadata_read() => Course::TracksFirst,
        (_, true) => Course::Unknown,
    }
}

impl Step {
    /// Whether it changes only what is known of a packet, and does the same with each packet of a connection's direction.
    pub fn is_of_metadata(&self) -> bool {
        matches!(self, Step::Ct(_) | Step::CtClear | Step::Hash { .. })
    }

    /// The port that it sends a whole copy to, if it does nothing else.
    #[inline(always)]
    pub fn copies_to(&self) -> Option<PortNo> {
        match self {
            Step::Copy(Disposition::Output { port, max_len: u32::MAX }) => Some(*port),
            _ => None,
        }
    }

    /// Whether it hands the metadata of a packet on to somebody.
    pub(super) fn reads_metadata(&self) -> bool {
        match self {
            Step::Sample(sample) => !sample.program.is_plain_end(),
            Step::Copy(disposition) => !disposition.is_plain(),
            _ => false,
        }
    }

    /// Whether a later flow finds packets of one line alike behind it, if it finds them alike before: with other headers, but with the same.
    fn can_be_followed(&self) -> bool {
        match self {
            Step::Copy(disposition) => disposition.recirculations() == 0,
            Step::Meter(meter) => !meter.remarks(),
            Step::Rewrite(_) | Step::PushVlan { .. } | Step::PopVlan | Step::Sample(_) => true,
            Step::Ct(_) | Step::CtClear | Step::Hash { .. } => true,
            Step::PushMpls { .. } | Step::PopMpls { .. } | Step::PopEthernet | Step::HasEthernet => false,
            Step::PushHeader(_) | Step::PopNsh | Step::TunnelPush(..) => false,
        }
    }

    /// See [`Course::Ends`].
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Step::Copy(disposition) => disposition.is_plain(),
            Step::Hash { .. } | Step::Ct(_) | Step::CtClear => false,
            Step::Sample(sample) => sample.program.is_plain_end(),
            Step::Rewrite(_)
            | Step::PushVlan { .. }
            | Step::PopVlan
            | Step::PushMpls { .. }
            | Step::PopMpls { .. }
            | Step::PopEthernet
            | Step::HasEthernet
            | Step::PushHeader(_)
            | Step::PopNsh
            | Step::TunnelPush(..)
            | Step::Meter(_) => true,
        }
    }
}

impl Disposition {
    /// See [`Course::Ends`].
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Disposition::Output { .. } | Disposition::Drop(_) => true,
            Disposition::Run(program) => program.is_plain_end(),
            // What collectors are told does not depend on what a packet was tracked for.
            Disposition::Punt(punt) => punt.is_sample(),
            Disposition::Recirc(_) | Disposition::TunnelPop(_) => false,
            Disposition::RunByLength { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::action::{Action, HashAlgorithm, Punt, Rewrite, SflowPunt};
    use crate::actions::program::Program;
    use crate::meter::{MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
    use packet::{Field, Time};

    fn set(field: Field) -> Action {
        Action::Set(Arc::new(Rewrite::field(field, 1)))
    }

    fn ct() -> Action {
        Action::Ct(Arc::default())
    }

    fn sample(actions: Vec<Action>) -> Action {
        Action::Sample { probability: 1000, actions }
    }

    fn report() -> Action {
        let sflow = SflowPunt { bridge: 1, vlan_tci: 0, output: 0, tunnel: None, mpls: Vec::new() };
        Action::Punt(Arc::new(Punt::Sflow(sflow)))
    }

    fn meter(kind: MeterBandKind) -> Action {
        let band = MeterBand { rate: 1, burst: 1, kind };
        Action::Meter(Arc::<MeterNumbers>::default().add(MeterUnit::Packets, &[band], Time(0)).unwrap())
    }

    #[test]
    fn courses_of_programs() {
        use Course::{
            Ends, PassesOn, PassesOnInSteps, Tracks, TracksCopied, TracksFirst, TracksInSteps, TracksSampled, Unknown,
        };
        let (output, recirc) = (Action::Output(PortNo(1)), Action::Recirc(1));
        let copy = || Action::Output(PortNo(2));
        let (route, hash) = (set(Field::DlDst), Action::Hash { algorithm: HashAlgorithm::L4, basis: 0 });
        let tag = || Action::PushVlan { tpid: 0x8100, tci: 1 };
        let drop_meter = || meter(MeterBandKind::Drop);
        let cases = [
            (vec![output.clone()], Ends),
            (vec![Action::CtClear, copy(), tag(), output.clone()], Ends),
            (vec![sample(vec![report()]), output.clone()], Ends),
            (vec![sample(vec![copy()]), output.clone()], Ends),
            (vec![ct(), recirc.clone()], Tracks),
            (vec![route.clone(), ct(), Action::CtClear, route.clone(), output.clone()], Tracks),
            (vec![Action::CtClear, route.clone(), set(Field::NwTtl), ct(), recirc.clone()], Tracks),
            (vec![tag(), ct(), output.clone()], Tracks),
            (vec![tag(), ct(), recirc.clone()], TracksInSteps),
            (vec![set(Field::NwDst), ct(), recirc.clone()], TracksInSteps),
            (vec![sample(vec![report()]), route.clone(), ct(), recirc.clone()], TracksSampled),
            (vec![copy(), copy(), route.clone(), ct(), recirc.clone()], TracksCopied),
            (vec![Action::Truncate { max_len: 60 }, copy(), ct(), recirc.clone()], TracksInSteps),
            (vec![copy(), sample(vec![report()]), ct(), recirc.clone()], TracksInSteps),
            (vec![sample(vec![copy()]), ct(), recirc.clone()], TracksSampled),
            (vec![copy(), ct(), drop_meter(), recirc.clone()], TracksInSteps),
            (vec![ct(), Action::Drop(crate::DropReason::Rule)], TracksInSteps),
            // Whoever gets the copy gets its metadata.
            (vec![sample(vec![copy(), recirc.clone()]), ct(), recirc.clone()], TracksFirst),
            (vec![ct(), sample(vec![copy(), recirc.clone()]), recirc.clone()], Unknown),
            (vec![meter(MeterBandKind::Remark(1)), ct(), recirc.clone()], Unknown),
            (vec![recirc.clone(), ct(), output.clone()], Unknown),
            (vec![ct(), copy(), recirc.clone(), output.clone()], Unknown),
            (vec![hash.clone(), recirc.clone()], PassesOn),
            (vec![route, hash, recirc.clone()], PassesOn),
            (vec![copy(), recirc.clone()], PassesOnInSteps),
            (vec![Action::PopEthernet, recirc], Unknown),
        ];
        for (actions, course) in cases {
            assert_eq!(Program::compile(&actions).course(), course, "{actions:?}");
        }
    }
}
