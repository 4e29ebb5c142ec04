//! Programs: a flow's actions, compiled when the flow is installed.
//!
//! A program is a list of steps and an end. A step leaves the packet with the program; the end consumes it. So the
//! last output sends the packet itself, and only the outputs before it send copies. Actions behind the last output,
//! punt, recirculation or tracking are left out.

mod course;
mod form;

pub use course::Course;

use std::sync::Arc;

use packet::flow::extract::Layers;
use packet::wire::ethertype;
use packet::{Field, Key, Mask, Packet};
use smallvec::SmallVec;

use crate::action::{Action, Decapsulation, Encapsulation, HashAlgorithm, MAX_NESTING, PortNo, Punt, Rewrite};
use crate::actions::compact::CompactRewrite;
use crate::actions::compact_form::{Compact, CompactPush};
use crate::actions::encap::MADE_UP;
use crate::actions::rewrite::{Rewriter, pop_mpls, pop_vlan, push_mpls, push_vlan};
use crate::actions::sample::Sampling;
use crate::drop::DropReason;
use crate::meter::Meter;
use crate::pipeline::tx::Outputs;

/// What a program needs to know of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Needs {
    /// Nothing but the frame's first bytes.
    Nothing,
    /// Header offsets and protocols, which the packets of a run have in common.
    Headers,
    /// The packet's own key, to read or to change it.
    Key,
}

/// Compiled actions.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Program {
    /// The compact form, for programs that have one. It is all that is read of these: one cache line. For programs that
    /// track packets or have them classified again, that of all else that they do.
    compact: Compact,
    needs: Needs,
    course: Course,
    /// Whether it changes metadata, which lies in the packets' keys.
    writes_metadata: bool,
    /// Whether it puts the headers of a tunnel before packets.
    pushes_tunnel: bool,
    recirculations: u16,
    /// The steps, in order. Most programs have at most one, and then it is part of the program.
    pub steps: SmallVec<[Step; 1]>,
    /// The disposition of the packet.
    pub end: Disposition,
}

/// The port by which a packet leaves at the end of its program; `None` where it goes elsewhere.
pub type LeavesBy = Option<PortNo>;

/// An operation that leaves the packet with the program.
#[derive(Debug)]
pub enum Step {
    /// Make a copy with this disposition.
    Copy(Disposition),
    /// Rewrite header fields and metadata.
    Rewrite(Box<Rewriter>),
    /// Push a VLAN tag.
    PushVlan {
        /// TPID.
        tpid: u16,
        /// TCI without the CFI bit.
        tci: u16,
    },
    /// Remove the outermost VLAN tag.
    PopVlan,
    /// Push an MPLS label stack entry.
    PushMpls {
        /// Ethernet type of what results.
        ethertype: u16,
        /// The entry.
        lse: u32,
    },
    /// Remove the outermost MPLS label stack entry.
    PopMpls {
        /// Ethernet type of what is left.
        ethertype: u16,
    },
    /// Make the frame a packet without Ethernet.
    PopEthernet,
    /// Say that the packet has Ethernet.
    HasEthernet,
    /// Put a header before the whole packet.
    PushHeader(Box<PushedHeader>),
    /// Take away a network service header.
    PopNsh,
    /// Compute dp_hash.
    Hash {
        /// Of which headers.
        algorithm: HashAlgorithm,
        /// Seed.
        basis: u32,
    },
    /// Track the packet's connection.
    Ct(Arc<conntrack::Request>),
    /// Clear the metadata of connection tracking.
    CtClear,
    /// Put the headers of a tunnel before the packet.
    TunnelPush(Arc<Encapsulation>, LeavesBy),
    /// Drop the packet if it exceeds a rate, or raise its drop precedence.
    Meter(Arc<Meter>),
    /// Run a program on copies of some packets.
    Sample(Box<Sample>),
}

/// What [`Step::Sample`] takes, and does with it.
#[derive(Debug)]
pub struct Sample {
    /// Which part of the packets it takes.
    pub sampling: Sampling,
    /// For a copy of each packet that is taken.
    pub program: Program,
    /// Where the program begins with this step: the compact form of what comes after it, if that has one without copies.
    unsampled: Option<CompactRewrite>,
}

/// What [`Step::PushHeader`] puts before packets.
#[derive(Debug)]
pub struct PushedHeader {
    /// The header.
    pub bytes: Vec<u8>,
    /// Its Ethernet type.
    pub ethertype: u16,
}

/// The disposition of a packet: an operation that consumes it.
#[derive(Debug)]
pub enum Disposition {
    /// Send.
    Output {
        /// To this port.
        port: PortNo,
        /// At most these bytes.
        max_len: u32,
    },
    /// Classify again.
    Recirc(u32),
    /// Pass to the slow path.
    Punt(Arc<Punt>),
    /// Take the headers of a tunnel away, and classify again.
    TunnelPop(Decapsulation),
    /// Run another program.
    Run(Box<Program>),
    /// Run one of two other programs, by the length of the frame.
    RunByLength {
        /// Bytes.
        size: u16,
        /// For longer frames.
        longer: Box<Program>,
        /// For the others.
        others: Box<Program>,
    },
    /// Drop.
    Drop(DropReason),
}

const _: () = assert!(size_of::<Program>() == 128 && size_of::<Compact>() == 64);

impl Program {
    /// Compiles actions.
    pub fn compile(actions: &[Action]) -> Program {
        Program::compile_nested(actions, 0)
    }

    /// Compiles nested actions. Their depth is bounded, and so is the program's.
    fn compile_nested(actions: &[Action], depth: usize) -> Program {
        if depth > MAX_NESTING {
            return Program::compile_nested(&[Action::Drop(DropReason::RecursionTooDeep)], 0);
        }
        let nested = |actions: &[Action]| Box::new(Program::compile_nested(actions, depth + 1));
        let mut steps = SmallVec::new();
        let mut max_len = u32::MAX;
        for action in actions {
            let step = match action {
                Action::Output(port) => {
                    let max_len = std::mem::replace(&mut max_len, u32::MAX);
                    Step::Copy(Disposition::Output { port: *port, max_len })
                }
                Action::Bond { bond, bucket } => {
                    let max_len = std::mem::replace(&mut max_len, u32::MAX);
                    Step::Copy(Disposition::Output { port: bond.port(*bucket), max_len })
                }
                Action::Truncate { max_len: limit } => {
                    max_len = *limit;
                    continue;
                }
                Action::Set(rewrite) => Step::Rewrite(Box::new(Rewriter::new(rewrite))),
                Action::PushEthernet { src, dst } => {
                    let mut rewrite = Rewrite { key: Key::new(), mask: Mask::wildcard() };
                    (rewrite.key.common_mut().dl_src, rewrite.key.common_mut().dl_dst) = (*src, *dst);
                    rewrite.mask.set_exact(Field::DlSrc);
                    rewrite.mask.set_exact(Field::DlDst);
                    steps.push(Step::Rewrite(Box::new(Rewriter::new(&rewrite))));
                    Step::HasEthernet
                }
                Action::PopEthernet => Step::PopEthernet,
                Action::PushNsh(header) => {
                    Step::PushHeader(Box::new(PushedHeader { bytes: header.to_bytes(), ethertype: ethertype::NSH }))
                }
                Action::PopNsh => Step::PopNsh,
                Action::AddMpls { ethertype, lse } => {
                    let bytes = lse.to_be_bytes().to_vec();
                    Step::PushHeader(Box::new(PushedHeader { bytes, ethertype: *ethertype }))
                }
                Action::PushVlan { tpid, tci } => {
                    Step::PushVlan { tpid: *tpid, tci: *tci & !packet::flow::VLAN_PRESENT }
                }
                Action::PopVlan => Step::PopVlan,
                Action::PushMpls { ethertype, lse } => Step::PushMpls { ethertype: *ethertype, lse: *lse },
                Action::PopMpls { ethertype } => Step::PopMpls { ethertype: *ethertype },
                Action::Recirc(id) => Step::Copy(Disposition::Recirc(*id)),
                Action::Hash { algorithm, basis } => Step::Hash { algorithm: *algorithm, basis: *basis },
                Action::Ct(request) => Step::Ct(request.clone()),
                Action::CtClear => Step::CtClear,
                Action::Punt(punt) => Step::Copy(Disposition::Punt(punt.clone())),
                Action::TunnelPush(headers) if max_len != u32::MAX => {
                    Step::TunnelPush(Arc::new(headers.truncating(std::mem::replace(&mut max_len, u32::MAX))), None)
                }
                Action::TunnelPush(headers) => Step::TunnelPush(headers.clone(), None),
                Action::TunnelSet(_) => continue,
                Action::TunnelPop(pop) => Step::Copy(Disposition::TunnelPop(*pop)),
                Action::Clone(actions) => Step::Copy(Disposition::Run(nested(actions))),
                Action::CheckLength { size, longer, others } => {
                    Step::Copy(Disposition::RunByLength { size: *size, longer: nested(longer), others: nested(others) })
                }
                Action::Meter(meter) => Step::Meter(meter.clone()),
                Action::Sample { probability, actions } => {
                    let program = Program::compile_nested(actions, depth + 1);
                    Step::Sample(Box::new(Sample { sampling: Sampling::new(*probability), program, unsampled: None }))
                }
                Action::Drop(reason) => Step::Copy(Disposition::Drop(*reason)),
            };
            let ends = matches!(step, Step::Copy(Disposition::Drop(_)));
            let frames = matches!(&step, Step::TunnelPush(push, _) if push.headers.skipped() != 0);
            if frames && matches!(steps.last(), Some(Step::PopEthernet)) {
                // The headers of the tunnel take the place of that of Ethernet.
                steps.pop();
            }
            steps.push(step);
            if frames {
                steps.push(Step::HasEthernet);
            }
            if ends {
                break;
            }
        }
        let mut end = Disposition::Drop(DropReason::Rule);
        while let Some(step) = steps.pop() {
            match step {
                // What only collectors get copies of is dropped.
                Step::Copy(last) if depth == 0 && last.is_sample() => steps.push(Step::Copy(last)),
                Step::Copy(last) => end = last,
                // The connection outlives the packet, and so does what the meter has counted.
                Step::Ct(_) | Step::Meter(_) | Step::Sample(_) => steps.push(step),
                _ => continue,
            }
            break;
        }
        // The last copy is the packet itself.
        while let Disposition::Run(program) = end {
            steps.extend(program.steps);
            end = program.end;
        }
        if let Disposition::Output { port, .. } = end {
            steps.iter_mut().for_each(|step| {
                if let Step::TunnelPush(_, leaves_by) = step {
                    *leaves_by = Some(port);
                }
            });
        }
        leave_out_unread_types(&mut steps, &end);
        leave_out_unread_metadata(&mut steps, &end);
        let needs = needs(&steps, &end);
        let pushes_tunnel = steps.iter().any(|step| matches!(step, Step::TunnelPush(..)));
        let recirculations = steps.iter().map(Step::recirculations).fold(end.recirculations(), u16::saturating_add);
        let writes_metadata = end.writes_metadata() || steps.iter().any(Step::writes_metadata);
        steps.shrink_to_fit();
        let (course, compact) = Course::of(&steps, &end);
        if let [Step::Sample(sample), rest @ ..] = &mut steps[..] {
            sample.unsampled = form::compact_form_to(rest.iter(), &end).filter(|rewrite| rewrite.copies().is_empty());
        }
        Program { compact, needs, course, writes_metadata, pushes_tunnel, recirculations, steps, end }
    }

    /// What the program needs to know of a packet.
    #[inline(always)]
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Whether it gives a packet to a collector, and to nobody else.
    pub fn samples(&self) -> bool {
        self.end.is_sample() && self.is_plain_end()
    }

    /// Its compact form, if it has one.
    #[inline(always)]
    pub fn compact(&self) -> Option<&CompactRewrite> {
        if self.course.is_all() { self.compact.rewrite() } else { None }
    }

    /// Its compact form, if it puts the headers of a tunnel before packets and has one.
    #[inline(always)]
    pub fn compact_push(&self) -> Option<CompactPush<'_>> {
        if self.course.is_all() { self.compact.push() } else { None }
    }

    /// That of all but the tracking.
    #[inline(always)]
    pub fn tracked_push(&self) -> Option<CompactPush<'_>> {
        if self.course == Course::Tracks { self.compact.push() } else { None }
    }

    /// The compact form of all that it does but to take samples, to send copies before it tracks packets, to track them, to have them classified again and to send them, if that has one.
    #[inline(always)]
    pub fn rewrite(&self) -> Option<&CompactRewrite> {
        self.compact.rewrite().filter(|rewrite| rewrite.copies().is_empty())
    }

    /// The ports that it sends copies to before it tracks packets, if it does nothing else before.
    pub fn early_copies(&self) -> impl Iterator<Item = PortNo> {
        let is_copied = self.course == Course::TracksCopied;
        self.steps.iter().map_while(Step::copies_to).filter(move |_| is_copied)
    }

    /// Which packets it samples before it tracks them, if it samples any.
    pub fn sampling(&self) -> Option<Sampling> {
        match self.steps.first() {
            Some(Step::Sample(sample)) if self.course == Course::TracksSampled => Some(sample.sampling),
            _ => None,
        }
    }

    /// Which packets it samples first, and what it does with the others, if that has a compact form without copies.
    #[inline(always)]
    pub fn unsampled(&self) -> Option<(Sampling, &CompactRewrite)> {
        match self.steps.first() {
            Some(Step::Sample(sample)) => sample.unsampled.as_ref().map(|rewrite| (sample.sampling, rewrite)),
            _ => None,
        }
    }

    /// What it means for the way of a tracked packet.
    #[inline(always)]
    pub fn course(&self) -> Course {
        self.course
    }

    /// Whether it does nothing that depends on metadata, and packets come nowhere by it but to ports.
    #[inline(always)]
    pub fn is_plain_end(&self) -> bool {
        self.course == Course::Ends
    }

    /// Where the steps begin that come behind all tracking.
    pub fn behind_tracking(&self) -> usize {
        self.steps.iter().rposition(|step| matches!(step, Step::Ct(_))).map_or(0, |last| last + 1)
    }

    /// Whether it changes metadata, which the packets of a run have in common.
    #[inline(always)]
    pub fn writes_metadata(&self) -> bool {
        self.writes_metadata
    }

    /// Whether it puts the headers of a tunnel before packets.
    #[inline(always)]
    pub fn pushes_tunnel(&self) -> bool {
        self.pushes_tunnel
    }

    /// The tunnel whose headers it takes away, if it does nothing else.
    #[inline(always)]
    pub fn only_pops_tunnel(&self) -> Option<&Decapsulation> {
        match &self.end {
            Disposition::TunnelPop(pop) if self.steps.is_empty() => Some(pop),
            _ => None,
        }
    }

    /// Why it drops the packet, if it does nothing else.
    pub fn only_drops(&self) -> Option<DropReason> {
        match self.end {
            Disposition::Drop(reason) if self.steps.is_empty() => Some(reason),
            _ => None,
        }
    }

    /// How many copies of a packet it recirculates at most.
    #[inline(always)]
    pub fn recirculations(&self) -> u16 {
        self.recirculations
    }

    /// The output port, if the program only rewrites the packet, by what a run has in common, and sends it.
    #[inline(always)]
    pub fn rewrites_to(&self) -> Option<PortNo> {
        match self.end {
            Disposition::Output { port, max_len: u32::MAX } if self.needs != Needs::Key && !self.writes_metadata => {
                let more =
                    self.steps.iter().any(|step| matches!(step, Step::Copy(_) | Step::Meter(_) | Step::Sample(_)));
                (!more).then_some(port)
            }
            _ => None,
        }
    }

    /// By how many bytes a packet grows at most.
    pub fn growth(&self) -> u32 {
        self.steps.iter().map(Step::growth).sum()
    }

    /// Whether no packet has work left to do that has to be done before one of the steps, or has to be fragmented by it.
    #[inline(always)]
    pub fn takes(&self, packets: &[Packet], outputs: &Outputs) -> bool {
        let mut longer = 0;
        self.steps.iter().all(|step| {
            if let Step::TunnelPush(push, leaves_by) = step {
                let mtu = outputs.mtu(push.out_port);
                let longest = push.longest(mtu);
                let whole = || (outputs.takes_tunnels(*leaves_by), mtu);
                if !packets.iter().all(|packet| push.takes(packet, longer, longest, whole)) {
                    return false;
                }
            }
            longer += step.growth() as usize;
            true
        })
    }

    /// The output port, if the program only sends the packet.
    pub fn single_output(&self) -> Option<PortNo> {
        match self.end {
            Disposition::Output { port, max_len: u32::MAX } if self.steps.is_empty() => Some(port),
            _ => None,
        }
    }

    /// The reason, if the program only drops the packet.
    pub fn single_drop(&self) -> Option<DropReason> {
        match self.end {
            Disposition::Drop(reason) if self.steps.is_empty() => Some(reason),
            _ => None,
        }
    }
}

/// What a program with these steps needs to know of a packet. Behind the headers of a tunnel, those that the packets of a run have in common are no more
/// those of the frame.
fn needs(steps: &[Step], end: &Disposition) -> Needs {
    let all = steps.iter().map(Step::needs).chain([end.needs()]);
    let pushed = steps.iter().position(|step| matches!(step, Step::TunnelPush(..))).unwrap_or(steps.len());
    let seen = |(at, needs)| if at > pushed && needs != Needs::Nothing { Needs::Key } else { needs };
    all.enumerate().map(seen).fold(Needs::Nothing, Needs::max)
}

/// Leaves out the steps that note a packet's type where nothing reads it: most packets are only sent after they have got
/// their header of Ethernet.
fn leave_out_unread_types(steps: &mut SmallVec<[Step; 1]>, end: &Disposition) {
    if !end.reads_type() {
        leave_out_unread(steps, Step::reads_type, |step| matches!(step, Step::HasEthernet));
    }
}

/// Leaves out the steps that change what is known of a packet where nobody asks any more: the packet is only sent.
fn leave_out_unread_metadata(steps: &mut SmallVec<[Step; 1]>, end: &Disposition) {
    if end.is_plain() {
        let reads = |step: &Step| matches!(step, Step::Ct(_)) || step.reads_metadata();
        leave_out_unread(steps, reads, |step| matches!(step, Step::CtClear | Step::Hash { .. }));
    }
}

/// Leaves out what steps write behind the last one that reads it.
fn leave_out_unread(steps: &mut SmallVec<[Step; 1]>, reads: impl Fn(&Step) -> bool, writes: impl Fn(&Step) -> bool) {
    let mut read = steps.iter().rposition(reads).map_or(0, |last| last + 1);
    steps.retain(|step| {
        let is_read = read > 0;
        read = read.saturating_sub(1);
        is_read || !writes(step)
    });
}

impl Step {
    fn needs(&self) -> Needs {
        match self {
            Step::Copy(copy) => copy.needs(),
            // The packets of a run have their metadata in common.
            Step::Rewrite(rewriter) if rewriter.only_metadata() => Needs::Nothing,
            Step::Rewrite(rewriter) if rewriter.is_of_key() => Needs::Key,
            Step::Rewrite(rewriter) if rewriter.is_of_front() => Needs::Nothing,
            Step::Rewrite(_) => Needs::Headers,
            Step::Meter(meter) if meter.remarks() => Needs::Headers,
            Step::PushVlan { .. } | Step::PopVlan | Step::CtClear | Step::TunnelPush(..) | Step::Meter(_) => {
                Needs::Nothing
            }
            // The few packets that are taken are looked at for themselves.
            Step::Sample(_) => Needs::Nothing,
            Step::PushMpls { .. } | Step::PopMpls { .. } | Step::Hash { .. } | Step::Ct(_) => Needs::Key,
            Step::PopEthernet | Step::HasEthernet | Step::PushHeader(_) | Step::PopNsh => Needs::Key,
        }
    }

    fn writes_metadata(&self) -> bool {
        match self {
            Step::Copy(copy) => copy.writes_metadata(),
            Step::Rewrite(rewriter) => rewriter.is_of_key(),
            Step::Hash { .. } | Step::Ct(_) | Step::CtClear => true,
            // The packet type.
            Step::PopEthernet | Step::HasEthernet | Step::PushHeader(_) | Step::PopNsh | Step::PopMpls { .. } => true,
            Step::PushVlan { .. } | Step::PopVlan | Step::PushMpls { .. } | Step::TunnelPush(..) | Step::Meter(_) => {
                false
            }
            Step::Sample(_) => false,
        }
    }

    /// Whether it depends on the packet's type, or hands it on.
    fn reads_type(&self) -> bool {
        match self {
            Step::Copy(copy) => copy.reads_type(),
            Step::PushHeader(_) | Step::PopNsh | Step::PopMpls { .. } | Step::Sample(_) => true,
            _ => false,
        }
    }

    fn recirculations(&self) -> u16 {
        match self {
            Step::Copy(copy) => copy.recirculations(),
            Step::Sample(sample) => sample.program.recirculations,
            _ => 0,
        }
    }

    /// By how many bytes a packet grows at most.
    fn growth(&self) -> u32 {
        match self {
            Step::PushVlan { .. } => 4,
            Step::TunnelPush(headers, _) => headers.headers.len() as u32,
            Step::PushHeader(header) => (MADE_UP + header.bytes.len()) as u32,
            _ => 0,
        }
    }

    /// Executes a step that only rewrites the packet and needs no more of the key than the headers. `key` is not
    /// changed. Returns `false` if there is no buffer for a header to be pushed; then the packet must not go on.
    #[must_use]
    #[inline(always)]
    pub fn rewrite(&self, packet: &mut Packet, key: &mut Key, layers: &Layers) -> bool {
        match self {
            Step::PushVlan { tpid, tci } => return push_vlan(packet, *tpid, *tci),
            Step::PopVlan => pop_vlan(packet),
            Step::Rewrite(rewriter) => rewriter.apply(packet, key, layers),
            Step::PushMpls { ethertype, lse } => return push_mpls(packet, layers, *ethertype, *lse),
            Step::PopMpls { ethertype } => pop_mpls(packet, layers, *ethertype),
            Step::TunnelPush(headers, _) => return headers.push(packet),
            Step::Copy(_) | Step::Hash { .. } | Step::Ct(_) | Step::CtClear | Step::Meter(_) | Step::Sample(_) => {}
            Step::PopEthernet | Step::HasEthernet | Step::PushHeader(_) | Step::PopNsh => {}
        }
        true
    }
}

impl Disposition {
    /// Whether it gives a packet to a collector, and to nobody else.
    fn is_sample(&self) -> bool {
        match self {
            Disposition::Punt(punt) => punt.is_sample(),
            Disposition::Run(program) => program.end.is_sample(),
            _ => false,
        }
    }

    fn needs(&self) -> Needs {
        match self {
            Disposition::Output { .. } | Disposition::Recirc(_) | Disposition::TunnelPop(_) | Disposition::Drop(_) => {
                Needs::Nothing
            }
            Disposition::Run(program) => program.needs,
            // Packets of a run may go different ways here, and change the metadata that they have in common.
            Disposition::RunByLength { .. } if self.writes_metadata() => Needs::Key,
            Disposition::RunByLength { longer, others, .. } => longer.needs.max(others.needs),
            Disposition::Punt(_) => Needs::Key,
        }
    }

    fn writes_metadata(&self) -> bool {
        match self {
            Disposition::Run(program) => program.writes_metadata,
            Disposition::RunByLength { longer, others, .. } => longer.writes_metadata || others.writes_metadata,
            Disposition::Output { .. }
            | Disposition::Recirc(_)
            | Disposition::TunnelPop(_)
            | Disposition::Punt(_)
            | Disposition::Drop(_) => false,
        }
    }

    fn reads_type(&self) -> bool {
        !matches!(self, Disposition::Output { .. } | Disposition::TunnelPop(_) | Disposition::Drop(_))
    }

    pub(super) fn recirculations(&self) -> u16 {
        match self {
            Disposition::Recirc(_) | Disposition::TunnelPop(_) => 1,
            Disposition::Run(program) => program.recirculations,
            Disposition::RunByLength { longer, others, .. } => longer.recirculations.max(others.recirculations),
            Disposition::Output { .. } | Disposition::Punt(_) | Disposition::Drop(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::SflowPunt;

    fn output(port: u32) -> Action {
        Action::Output(PortNo(port))
    }

    /// A collector gets a copy: the packet itself is dropped, and counted so.
    #[test]
    fn what_only_a_collector_gets_is_dropped() {
        let sflow = SflowPunt { bridge: 1, vlan_tci: 0, output: 0, tunnel: None, mpls: Vec::new() };
        let sample = Action::Punt(Arc::new(Punt::Sflow(sflow)));
        for sample in [sample.clone(), Action::Clone(vec![sample])] {
            let alone = Program::compile(std::slice::from_ref(&sample));
            assert!(matches!(alone.end, Disposition::Drop(DropReason::Rule)), "{alone:?}");
            assert_eq!(alone.steps.len(), 1);
            let with_output = Program::compile(&[sample.clone(), output(2)]);
            assert!(matches!(with_output.end, Disposition::Output { .. }), "{with_output:?}");
            // What a sample itself is compiled to takes the copy that was made for it.
            assert!(matches!(Program::compile_nested(&[sample], 1).end, Disposition::Punt(_)));
        }
    }

    #[test]
    fn the_last_output_takes_the_packet() {
        let program = Program::compile(&[output(1), Action::PopVlan, output(2), Action::PopVlan]);
        assert!(matches!(program.steps[..], [Step::Copy(Disposition::Output { port: PortNo(1), .. }), Step::PopVlan]));
        assert!(matches!(program.end, Disposition::Output { port: PortNo(2), .. }));
        assert_eq!(program.single_output(), None);
        assert_eq!(Program::compile(&[output(7)]).single_output(), Some(PortNo(7)));
    }

    #[test]
    fn without_a_use_it_drops() {
        for actions in [vec![], vec![Action::PopVlan], vec![Action::Truncate { max_len: 10 }]] {
            let program = Program::compile(&actions);
            assert!(program.steps.is_empty());
            assert!(matches!(program.end, Disposition::Drop(DropReason::Rule)));
        }
        let program = Program::compile(&[Action::Drop(DropReason::Reflection), output(1)]);
        assert!(matches!(program.end, Disposition::Drop(DropReason::Reflection)));
    }

    #[test]
    fn truncation_is_for_one_output() {
        let program = Program::compile(&[Action::Truncate { max_len: 60 }, output(1), output(2)]);
        assert!(matches!(program.steps[..], [Step::Copy(Disposition::Output { port: PortNo(1), max_len: 60 })]));
        assert!(matches!(program.end, Disposition::Output { port: PortNo(2), max_len: u32::MAX }));
        assert_eq!(Program::compile(&[Action::Truncate { max_len: 60 }, output(1)]).single_output(), None);
    }

    /// Whatever a controller asks for: the work is linear, and the stack does not grow.
    #[test]
    fn long_programs_are_compiled() {
        let sample = Action::Sample { probability: 1, actions: vec![output(2)] };
        let ct = Action::Ct(Arc::default());
        let lists =
            [vec![sample.clone()], vec![sample, output(3)], vec![Action::CtClear], vec![output(3), Action::CtClear]];
        for list in lists {
            let many = list.iter().cycle().take(100_000).cloned();
            for last in [vec![output(1)], vec![ct.clone(), Action::Recirc(1)]] {
                let program = Program::compile(&many.clone().chain(last).collect::<Vec<_>>());
                assert!(program.course() != Course::Unknown, "{list:?}");
            }
        }
    }

    #[test]
    fn the_type_of_a_packet_is_noted_where_something_reads_it() {
        let push = Action::PushEthernet { src: [1; 6], dst: [2; 6] };
        let sent = Program::compile(&[push.clone(), output(1)]);
        assert!(matches!(sent.steps[..], [Step::Rewrite(_)]));
        assert!(sent.needs() == Needs::Nothing && sent.rewrites_to() == Some(PortNo(1)));
        let again = Program::compile(&[push.clone(), output(1), Action::Recirc(1)]);
        assert!(matches!(again.steps[..], [Step::Rewrite(_), Step::HasEthernet, Step::Copy(_)]));
        assert!(again.needs() == Needs::Key && again.writes_metadata());
        let header = Action::AddMpls { ethertype: 0x8847, lse: 0x140 };
        let labelled = Program::compile(&[push, header, output(1)]);
        assert!(matches!(labelled.steps[..], [Step::Rewrite(_), Step::HasEthernet, Step::PushHeader(_)]));
        assert_eq!(labelled.growth(), 18);
    }

    #[test]
    fn what_programs_need_to_know() {
        use crate::action::{Kept, PacketInPunt, Punt, Rewrite};
        use packet::Field;
        let set = |field| Action::Set(Arc::new(Rewrite::field(field, 1)));
        let push = Action::PushVlan { tpid: 0x8100, tci: 5 };
        let (continuation, max_len, kept) = (None, Some(9), Kept::default());
        let punt =
            PacketInPunt { context: 1, continuation, reason: 0, rule_cookie: 0, controller_id: 0, max_len, kept };
        let punt = Action::Punt(Arc::new(Punt::PacketIn(punt)));
        let nothing = [push.clone(), Action::PopVlan, set(Field::DlDst), set(Field::VlanTci), Action::Recirc(1)];
        let headers =
            [set(Field::NwDst), set(Field::Ipv6Dst), set(Field::UdpDst), set(Field::ArpTpa), set(Field::NdTarget)];
        let metadata = [set(Field::PktMark), set(Field::TunId)];
        let key = [Action::PushMpls { ethertype: 0x8847, lse: 0 }, Action::PopMpls { ethertype: 0x0800 }, punt.clone()];
        let of = |needs, list: &[Action]| list.iter().map(|a| (needs, a.clone())).collect::<Vec<_>>();
        let all = [
            of(Needs::Nothing, &nothing),
            of(Needs::Nothing, &metadata),
            of(Needs::Headers, &headers),
            of(Needs::Key, &key),
        ]
        .concat();
        for (needs, action) in all {
            let alone = Program::compile(&[action.clone(), output(1)]);
            assert_eq!(alone.needs(), needs, "{action:?}");
            let copies = matches!(action, Action::Recirc(_) | Action::Punt(_));
            let is_metadata = metadata.contains(&action);
            let writes = is_metadata || matches!(action, Action::Hash { .. } | Action::PopMpls { .. });
            assert_eq!(alone.writes_metadata(), writes, "{action:?}");
            let rewrites = (needs != Needs::Key && !copies && !is_metadata).then_some(PortNo(1));
            assert_eq!(alone.rewrites_to(), rewrites, "{action:?}");
            // Also in a nested program, and beside steps that need less.
            let list = vec![push.clone(), action.clone(), output(2)];
            let length = Action::CheckLength { size: 9, longer: list.clone(), others: vec![output(3)] };
            // Where packets of a run go different ways, each one needs its own metadata.
            let by_length = if is_metadata { Needs::Key } else { needs };
            for (within, needs) in [(Action::Clone(list), needs), (length, by_length)] {
                assert_eq!(Program::compile(&[within, output(1)]).needs(), needs, "{action:?}");
            }
        }
        // What nobody reads is left out.
        let hash = Action::Hash { algorithm: HashAlgorithm::L4, basis: 0 };
        for action in [hash, Action::CtClear] {
            let read = Program::compile(&[action.clone(), Action::Recirc(1)]);
            assert!(read.steps.len() == 1 && read.writes_metadata(), "{action:?}");
            assert_eq!(read.needs(), if action == Action::CtClear { Needs::Nothing } else { Needs::Key });
            let sent = Program::compile(&[output(2), action.clone(), push.clone(), action, output(1)]);
            assert!(sent.steps.len() == 2 && !sent.writes_metadata(), "{sent:?}");
        }
        // Behind the last use, nothing is done.
        assert_eq!(Program::compile(&[output(1), set(Field::NwDst)]).needs(), Needs::Nothing);
        let program = Program::compile(&[push.clone(), output(1), push, output(2)]);
        assert_eq!((program.rewrites_to(), program.growth()), (None, 8));
    }
}
