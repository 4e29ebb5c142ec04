//! Stage 4, act: executes a program on a packet.

use std::sync::Arc;

use packet::flow::Blocks;
use packet::flow::extract::{Layers, VlanLimit, extract};
use packet::flow::hash::Hasher;
use packet::{Batch, Key, Offload, Packet, Time};
use ports::Offloads;
use ports::offload::{OffloadError, complete};

use crate::action::PortNo;
use crate::actions::encap;
use crate::actions::flow_hash::{connection_hash, flow_hash};
use crate::actions::program::{Disposition, Needs, Program, Sample, Step};
use crate::actions::sample::Sampler;
use crate::conntrack::{Conntrack, metadata};
use crate::drop::DropReason;
use crate::pipeline::join_policy::JoinPolicy;
use crate::pipeline::metadata::{CARRIED_BLOCKS, Tunnelled};
use crate::pipeline::recirculation::{Pass, RecircStage, Recirculation};
use crate::pipeline::tx::Outputs;
use crate::slowpath::queue::MissQueue;
use crate::sync::counters::WorkerCounters;
use crate::verify::worker::VerifySampler;

/// Which parts of a key are valid for a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyValidity {
    /// The whole key.
    All,
    /// The protocols, and the header offsets. Other values are outdated, or are those of another packet of the run.
    Headers,
    /// Nothing: there are headers that are not in the key.
    Nothing,
}

/// A packet's key while a program is executed on the packet.
pub struct KeyView<'a> {
    /// The key. Its metadata is always valid.
    pub key: &'a mut Key,
    /// The header offsets.
    pub layers: Layers,
    validity: KeyValidity,
}

impl<'a> KeyView<'a> {
    /// The view right after an extraction.
    pub fn new(key: &'a mut Key, layers: Layers) -> KeyView<'a> {
        KeyView { key, layers, validity: KeyValidity::All }
    }

    /// The view of any packet of a run, for a program that needs no more than the headers, which these packets have
    /// in common.
    pub fn of_run(key: &'a mut Key, layers: Layers) -> KeyView<'a> {
        KeyView { key, layers, validity: KeyValidity::Headers }
    }

    /// The same view for one packet, whose headers may move without effect on the view of the next one.
    #[inline(always)]
    pub fn for_next(&mut self) -> KeyView<'_> {
        KeyView { key: self.key, layers: self.layers, validity: self.validity }
    }

    /// Updates the view after a step.
    #[inline(always)]
    pub fn follow(&mut self, step: &Step) {
        let validity = match step {
            // Tracking says itself what it has changed.
            Step::Copy(_) | Step::Hash { .. } | Step::Ct(_) | Step::CtClear | Step::Sample(_) => return,
            Step::Meter(meter) if !meter.remarks() => return,
            Step::Rewrite(rewriter) if rewriter.only_metadata() => return,
            // An extraction stops behind the last tag that it parses. After a pop, the headers behind that tag can be
            // seen.
            Step::PopVlan if self.layers.l3 == Layers::NONE => KeyValidity::Nothing,
            Step::Rewrite(_) | Step::PushVlan { .. } | Step::PopVlan | Step::Meter(_) => KeyValidity::Headers,
            Step::PushMpls { ethertype, .. } => {
                self.key.common_mut().dl_type.set(*ethertype);
                KeyValidity::Headers
            }
            Step::HasEthernet => return,
            Step::PopEthernet => KeyValidity::Headers,
            Step::PopMpls { .. } | Step::TunnelPush(..) => KeyValidity::Nothing,
            Step::PushHeader(_) | Step::PopNsh => KeyValidity::Nothing,
        };
        follow(step, &mut self.layers);
        if self.validity != KeyValidity::Nothing {
            self.validity = validity;
        }
    }

    /// Extracts the key again, unless the parts that are needed are valid.
    pub fn refresh(&mut self, frame: &[u8], values: bool, vlan_limit: VlanLimit) {
        if self.validity == KeyValidity::Nothing || values && self.validity == KeyValidity::Headers {
            // Blocks that come from the frame are removed.
            self.key.keep(CARRIED_BLOCKS.into_iter().fold(Blocks::COMMON, Blocks::with));
            self.layers = extract(frame, self.key, vlan_limit);
            self.validity = KeyValidity::All;
        }
    }

    /// Notes that tags were pushed or removed, and the frame has become so much longer.
    pub fn shift(&mut self, by: i16) {
        shift(&mut self.layers, by);
        self.outdate();
    }

    /// Notes that addresses, ports or lengths in the frame have changed.
    pub fn outdate(&mut self) {
        if self.validity == KeyValidity::All {
            self.validity = KeyValidity::Headers;
        }
    }

    /// The input port.
    pub fn in_port(&self) -> PortNo {
        crate::upcall::in_port(self.key)
    }
}

/// Updates the header offsets after a step. Tags move everything behind them, even if there are more of them than an
/// extraction parses.
#[inline(always)]
pub fn follow(step: &Step, layers: &mut Layers) {
    let by = match step {
        Step::PushVlan { .. } => 4,
        // Without a tag, none was removed.
        Step::PopVlan if layers.vlans == 0 => return,
        Step::PopVlan => -4,
        Step::TunnelPush(..) => return *layers = Layers::EMPTY,
        Step::PushMpls { .. } => {
            let l2_5 = 14 + 4 * u16::from(layers.vlans);
            return *layers = Layers { l2_5, l3: Layers::NONE, l4: Layers::NONE, vlans: layers.vlans };
        }
        _ => return,
    };
    shift(layers, by);
}

/// Moves the headers behind the tags.
#[inline(always)]
fn shift(layers: &mut Layers, by: i16) {
    layers.vlans = layers.vlans.saturating_add_signed((by / 4) as i8);
    for at in [&mut layers.l2_5, &mut layers.l3, &mut layers.l4] {
        if *at != Layers::NONE {
            *at = at.wrapping_add_signed(by);
        }
    }
}

/// Executes the programs of a worker, and has the queues to which packets go from there.
pub struct Executor {
    /// Queues to output ports.
    pub outputs: Outputs,
    /// Packets that are classified again.
    pub recirculation: Recirculation,
    /// Packets on their way to the slow path.
    pub misses: MissQueue,
    /// The worker's counters.
    pub counters: Arc<WorkerCounters>,
    /// Time of this turn.
    pub now: Time,
    /// Most recirculations of a packet.
    pub max_depth: u8,
    /// VLAN tags that are parsed.
    pub vlan_limit: VlanLimit,
    /// Scratch keys for clones, as many as were needed at a time.
    #[allow(clippy::vec_box, reason = "a key of 768 bytes is moved by its box")]
    pub scratch: Vec<Box<Key>>,
    /// What the headers of the last packet said that has left a tunnel.
    pub tunnelled: Box<Tunnelled>,
    /// The port at which the last such packet came in.
    pub tunnelled_from: PortNo,
    /// For the hash action.
    pub hasher: Hasher,
    /// For the sample action.
    pub sampler: Sampler,
    /// For the verification of the caches.
    pub verify: VerifySampler,
    /// Connection tracking, which all workers share.
    pub conntrack: Arc<Conntrack>,
    /// How often packets were tracked that belong to no established connection.
    pub unestablished: u64,
    /// Cycles that were spent on runs of packets of which some do not.
    pub unestablished_cycles: u64,
    /// When to join segments that leave a tunnel.
    pub join_policy: JoinPolicy,
    /// How many datagrams have become whole by fragments whose programs are being run, one within the other.
    pub reassemblies: u8,
}

/// What has become of a packet in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Stepped {
    /// It goes on.
    Done,
    /// There is no buffer for the result, and it has to be dropped.
    NoBuffer,
    /// It is a fragment that is to be tracked. Its key is extracted; nothing else was done.
    Fragment,
    /// It has work left to do that has to be done before. Nothing was done.
    Unfinished,
    /// The headers of the tunnel were not put before it.
    NotPushed,
    /// It exceeds the rate of a meter.
    Exceeds,
    /// It does not have the header that was to be taken away.
    Malformed,
}

impl Stepped {
    #[inline(always)]
    fn done(has_buffer: bool) -> Stepped {
        if has_buffer { Stepped::Done } else { Stepped::NoBuffer }
    }

    fn found(has_header: bool) -> Stepped {
        if has_header { Stepped::Done } else { Stepped::Malformed }
    }

    /// Why the packet has to be dropped, if it has to be.
    fn drop_reason(self) -> Option<DropReason> {
        match self {
            Stepped::NoBuffer => Some(DropReason::NoBuffer),
            Stepped::NotPushed => Some(DropReason::TunnelPush),
            Stepped::Exceeds => Some(DropReason::Meter),
            Stepped::Malformed => Some(DropReason::Malformed),
            Stepped::Done | Stepped::Fragment | Stepped::Unfinished => None,
        }
    }
}

impl Executor {
    /// Runs a program on a packet. Recirculated packets enter the pass `next`: see [`Pass::of`].
    pub fn run(&mut self, program: &Program, packet: Packet, view: &mut KeyView<'_>, next: Pass) {
        self.run_rest(&program.steps, &program.end, packet, view, next);
    }

    /// Runs the last steps of a program, and its end, on a packet.
    pub fn run_rest(
        &mut self,
        steps: &[Step],
        end: &Disposition,
        mut packet: Packet,
        view: &mut KeyView<'_>,
        next: Pass,
    ) {
        let mut rest = steps;
        while let Some((step, later)) = rest.split_first() {
            let stepped = self.step(step, &mut packet, view, next);
            if let Some(reason) = stepped.drop_reason() {
                return self.outputs.retire_one(packet, reason, view.in_port());
            }
            match stepped {
                Stepped::Unfinished => return self.run_finished(rest, end, packet, view, next),
                Stepped::Fragment => match self.track_fragment(rest, end, packet, view, next) {
                    Some(alone) => packet = alone,
                    None => return,
                },
                _ => view.follow(step),
            }
            rest = later;
        }
        self.finish(end, packet, view, next);
    }

    /// Takes a step that may come before tracking: see [`Course`](crate::actions::program::Course). Returns the packet, unless it was dropped.
    pub fn take_step(&mut self, step: &Step, mut packet: Packet, view: &mut KeyView<'_>, next: Pass) -> Option<Packet> {
        let stepped = self.step(step, &mut packet, view, next);
        if let Some(reason) = stepped.drop_reason() {
            self.outputs.retire_one(packet, reason, view.in_port());
            return None;
        }
        debug_assert!(stepped == Stepped::Done, "others do not come before tracking");
        view.follow(step);
        Some(packet)
    }

    /// Executes a step. Afterwards the view has to [`follow`](KeyView::follow) it.
    pub fn step(&mut self, step: &Step, packet: &mut Packet, view: &mut KeyView<'_>, next: Pass) -> Stepped {
        match step {
            Step::Copy(Disposition::Recirc(_)) if let Some(reason) = self.refuses(next) => {
                // Counted as if the copy had been made and dropped.
                self.counters.copied.add(1);
                self.outputs.show_dropped(packet, reason, view.in_port());
                self.outputs.count_drops(1, reason, view.in_port());
            }
            Step::Copy(Disposition::Output { port, max_len: u32::MAX })
                if self.outputs.are_down(&[*port], std::slice::from_ref(packet)) =>
            {
                self.outputs.count_copies_for_down(1, *port);
            }
            // Without a buffer for the copy, only its disposition is skipped: the packet goes on.
            Step::Copy(what) => {
                if let Some(copy) = self.copy(packet, view.in_port()) {
                    self.dispose_of_copy(what, copy, view, next);
                }
            }
            Step::PopMpls { ethertype } if encap::is_bare_mpls(view.key) => {
                return Stepped::found(encap::pop_bare_mpls(packet, view.key, *ethertype));
            }
            Step::PopEthernet => encap::pop_ethernet(packet, view.key),
            Step::HasEthernet => view.key.common_mut().packet_type.set(0),
            Step::PopNsh => return Stepped::found(encap::pop_nsh(packet, view.key)),
            // No device knows of what it would have to look at behind the header.
            Step::PushHeader(_) if *packet.offload() != Offload::NONE => return Stepped::Unfinished,
            Step::PushHeader(header) => {
                return Stepped::done(encap::push_header(packet, view.key, &header.bytes, header.ethertype));
            }
            Step::Rewrite(_) | Step::PushMpls { .. } | Step::PopMpls { .. } => {
                view.refresh(packet.data(), false, self.vlan_limit);
                return Stepped::done(step.rewrite(packet, view.key, &view.layers));
            }
            Step::TunnelPush(headers, leaves_by) => {
                let mtu = self.outputs.mtu(headers.out_port);
                let whole = || (self.outputs.takes_tunnels(*leaves_by), mtu);
                if !headers.takes(packet, 0, headers.longest(mtu), whole) {
                    return Stepped::Unfinished;
                }
                return if headers.push(packet) { Stepped::Done } else { Stepped::NotPushed };
            }
            Step::PushVlan { .. } | Step::PopVlan => {
                return Stepped::done(step.rewrite(packet, view.key, &view.layers));
            }
            Step::Ct(request) => {
                view.refresh(packet.data(), true, self.vlan_limit);
                if view.key.common().nw_frag != 0 {
                    return Stepped::Fragment;
                }
                let _ = self.track(request, packet, view);
            }
            Step::CtClear => metadata::clear(view.key),
            Step::Meter(meter) => return self.meter(meter, packet, view),
            Step::Sample(sample) => {
                if self.sampler.next(sample.sampling, 1).is_some() {
                    self.run_sample(&sample.program, packet, view, next);
                }
            }
            Step::Hash { algorithm, basis } if view.validity == KeyValidity::All => {
                let hash = flow_hash(*algorithm, view.key, *basis);
                view.key.common_mut().dp_hash.set(hash);
            }
            Step::Hash { algorithm, basis } => {
                let hash = self.with_key_copy(view, |executor, view| {
                    view.refresh(packet.data(), true, executor.vlan_limit);
                    flow_hash(*algorithm, view.key, *basis)
                });
                view.key.common_mut().dp_hash.set(hash);
            }
        }
        Stepped::Done
    }

    /// Executes the disposition of a copy.
    #[inline(always)]
    fn dispose_of_copy(&mut self, what: &Disposition, copy: Packet, view: &mut KeyView<'_>, next: Pass) {
        match what {
            Disposition::Run(program) => self.run_clone(program, copy, view, next),
            Disposition::RunByLength { size, longer, others } => {
                let choose = |packet: &Packet| if packet.len() > (*size).into() { longer } else { others };
                if copy.offload().is_gso() && copy.len() > (*size).into() {
                    self.run_segments(copy, choose, view, next);
                } else {
                    self.run_clone(choose(&copy), copy, view, next);
                }
            }
            end @ Disposition::Punt(_) => {
                self.with_key_copy(view, |executor, view| executor.finish(end, copy, view, next))
            }
            end => self.finish(end, copy, view, next),
        }
    }

    /// Why no packet may be recirculated to this pass, if so.
    pub fn refuses(&self, next: Pass) -> Option<DropReason> {
        next.refusal(self.max_depth, self.recirculation.waiting())
    }

    /// Makes a copy, and counts it. Without a buffer, it counts as made and dropped, once each.
    #[inline(always)]
    pub fn copy(&self, packet: &Packet, in_port: PortNo) -> Option<Packet> {
        self.counters.copied.add(1);
        let copy = packet.duplicate();
        if copy.is_none() {
            self.outputs.show_dropped(packet, DropReason::NoBuffer, in_port);
            self.outputs.count_drops(1, DropReason::NoBuffer, in_port);
        }
        copy
    }

    /// Counts that a frame was cut into `parts` segments, and the rest of it if it could not be cut to its end: that
    /// is one more packet, which is dropped.
    pub(super) fn count_segments(&self, parts: u64, result: Result<(), OffloadError>, in_port: PortNo) {
        self.counters.copied.add((parts + u64::from(result.is_err())).saturating_sub(1));
        if let Err(error) = result {
            let out_of_buffers = error == OffloadError::NoBuffer;
            let reason = if out_of_buffers { DropReason::NoBuffer } else { DropReason::Malformed };
            self.outputs.count_drops(1, reason, in_port);
        }
    }

    /// Executes the disposition of the packet itself.
    pub fn finish(&mut self, end: &Disposition, packet: Packet, view: &mut KeyView<'_>, next: Pass) {
        match end {
            Disposition::Output { port, max_len } => {
                if packet.len() > *max_len as usize {
                    return self.output_truncated(*port, packet, *max_len as usize, view.in_port());
                }
                self.outputs.push(*port, packet, view.in_port(), self.now);
            }
            Disposition::Recirc(id) => {
                if let Some(reason) = self.refuses(next) {
                    return self.outputs.retire_one(packet, reason, view.in_port());
                }
                let stage = RecircStage { in_port: view.in_port(), recirc_id: *id };
                self.recirculation.push(stage, next, packet, view.key);
            }
            Disposition::Punt(punt) => {
                view.refresh(packet.data(), true, self.vlan_limit);
                let one = self.misses.has_one_channel();
                let connection = if one { 0 } else { connection_hash(&self.hasher, view.key) };
                self.misses.punt(packet, view.key, punt.clone(), connection, &self.outputs);
            }
            Disposition::TunnelPop(pop) => self.pop_tunnel(pop, packet, view.in_port(), next),
            Disposition::Run(program) => self.run(program, packet, view, next),
            Disposition::RunByLength { size, longer, others } => {
                let choose = |packet: &Packet| if packet.len() > (*size).into() { longer } else { others };
                if packet.offload().is_gso() && packet.len() > (*size).into() {
                    return self.run_segments(packet, choose, view, next);
                }
                self.run(choose(&packet), packet, view, next);
            }
            Disposition::Drop(reason) => self.outputs.retire_one(packet, *reason, view.in_port()),
        }
    }

    /// Sends the first bytes of a frame. Its offloads are completed before it is truncated, so the bytes are the same
    /// as without offloads.
    #[cold]
    fn output_truncated(&mut self, port: PortNo, packet: Packet, max_len: usize, in_port: PortNo) {
        let Executor { outputs, now, .. } = self;
        let (memory, mut parts) = (packet.memory(), 0);
        let result = complete(packet, Offloads::default(), memory, &mut |mut part| {
            parts += 1;
            part.truncate(max_len);
            *part.offload_mut() = Offload::NONE;
            outputs.push(port, part, in_port, *now);
        });
        self.count_segments(parts, result, in_port);
    }

    /// Segments a super-frame, and runs for each segment the program for its length.
    #[cold]
    fn run_segments<'a>(
        &mut self,
        packet: Packet,
        choose: impl Fn(&Packet) -> &'a Box<Program>,
        view: &mut KeyView<'_>,
        next: Pass,
    ) {
        let (memory, mut parts) = (packet.memory(), 0);
        let result = complete(packet, Offloads::default(), memory, &mut |part| {
            parts += 1;
            self.run_clone(choose(&part), part, view, next);
        });
        self.count_segments(parts, result, view.in_port());
    }

    /// Does what is left to do for a packet before it gets other headers, and goes on with the steps, the first of which puts
    /// these before each packet that it has become.
    #[cold]
    fn run_finished(&mut self, steps: &[Step], end: &Disposition, packet: Packet, view: &mut KeyView<'_>, next: Pass) {
        let Some((Step::TunnelPush(headers, _), later)) = steps.split_first() else {
            return self.run_completed(steps, end, packet, view, next);
        };
        let (memory, mtu, mut parts) = (packet.memory(), self.outputs.mtu(headers.out_port), 0);
        let result = headers.push_completed(packet, memory, mtu, &mut |part, pushed| {
            parts += 1;
            if !pushed {
                return self.outputs.retire_one(part, DropReason::TunnelPush, view.in_port());
            }
            self.with_key_copy(view, |executor, view| {
                view.follow(&steps[0]);
                executor.run_rest(later, end, part, view, next);
            });
        });
        self.count_segments(parts, result, view.in_port());
    }

    /// Completes all offloads of a packet, and goes on with the steps for each packet that it has become.
    #[cold]
    fn run_completed(&mut self, steps: &[Step], end: &Disposition, packet: Packet, view: &mut KeyView<'_>, next: Pass) {
        let (memory, mut parts) = (packet.memory(), 0);
        let result = complete(packet, Offloads::default(), memory, &mut |mut part| {
            parts += 1;
            // What was found out about the frame is not about the packet with its new header.
            *part.offload_mut() = Offload::NONE;
            self.with_key_copy(view, |executor, view| executor.run_rest(steps, end, part, view, next));
        });
        self.count_segments(parts, result, view.in_port());
    }

    /// Takes samples of the packets of a run.
    #[inline]
    pub(super) fn sample_all(&mut self, sample: &Sample, packets: &Batch, view: &mut KeyView<'_>, next: Pass) {
        let mut rest = &packets[..];
        while let Some(before) = self.sampler.next(sample.sampling, rest.len()) {
            self.run_sample(&sample.program, &rest[before], view, next);
            rest = &rest[before + 1..];
        }
    }

    /// Runs the program for a packet that is taken as a sample, on a copy with a key of its own. For a collector no copy is
    /// made that would find no room.
    #[cold]
    fn run_sample(&mut self, program: &Program, packet: &Packet, view: &mut KeyView<'_>, next: Pass) {
        let in_port = view.in_port();
        let has_room = !program.samples() || self.misses.has_room_for_sample(in_port, packet);
        self.counters.copied.add(1);
        let Some(copy) = has_room.then(|| packet.duplicate()).flatten() else {
            self.outputs.show_dropped(packet, DropReason::SampleLost, in_port);
            return self.outputs.count_drops(1, DropReason::SampleLost, in_port);
        };
        self.with_key_copy(view, |executor, view| {
            // The packets of a run have less in common than the program may need.
            view.validity = KeyValidity::Nothing;
            view.refresh(copy.data(), true, executor.vlan_limit);
            executor.run(program, copy, view, next);
        });
    }

    /// Runs a clone. Its changes to the key must not be visible to the steps behind it.
    fn run_clone(&mut self, program: &Program, packet: Packet, view: &mut KeyView<'_>, next: Pass) {
        if program.needs() != Needs::Key && !program.writes_metadata() {
            // It does not change the key.
            return self.run(program, packet, &mut view.for_next(), next);
        }
        self.with_key_copy(view, |executor, view| executor.run(program, packet, view, next));
    }

    /// Calls `what` with a copy of the view. An extraction for the copy must not become valid for the steps behind
    /// it: by then the packet may have more tags than an extraction parses, with headers behind them that are to be
    /// rewritten.
    fn with_key_copy<T>(&mut self, view: &KeyView<'_>, what: impl FnOnce(&mut Executor, &mut KeyView<'_>) -> T) -> T {
        let (layers, validity) = (view.layers, view.validity);
        let mut key = self.scratch.pop().unwrap_or_default();
        Key::clone_from(&mut key, view.key);
        let result = what(self, &mut KeyView { key: &mut key, layers, validity });
        self.scratch.push(key);
        result
    }
}
