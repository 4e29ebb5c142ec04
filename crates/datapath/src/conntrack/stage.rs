//! The ct action on one packet: its headers are read and tracked, and what the verdict asks for is done to the packet.
//!
//! The order of what follows a verdict is that of `docs/conntrack.md`: addresses and ports, then sequence numbers, then
//! what a helper changes in the data.

use ::conntrack::headers::{Headers, Upper};
use ::conntrack::helpers::{Helper, ftp};
use ::conntrack::nat::{Place, Translation};
use ::conntrack::table::Found as FoundConnection;
use ::conntrack::tracker::Tracker;
use ::conntrack::{CtState, Metadata, Request, Verdict};
use packet::flow::extract::Layers;
use packet::wire::ip_proto;
use packet::{BATCH_SIZE, Key, Packet};

use super::counters::Counter;
use super::ends::Ends;
use super::fused;
use super::metadata;
use super::trail::{Tracked, Trail};
use super::verify::to_verify;
use crate::actions::execute::{Executor, KeyView};
use crate::actions::program::{Course, Disposition, Program, Step};
use crate::classify::cache::fused::{FlowAt, PASSES};
use crate::classify::cache::headers::Found;
use crate::classify::table::arena::FastAction;
use crate::classify::{Caches, CompiledAction, Table, bits};
use crate::pipeline::batch::BatchMeta;
use crate::pipeline::recirculation::{Pass, RecircStage};
use crate::sync::rcu::Guard;

/// A run of packets whose program tracks them, or has packets classified again that were tracked before.
pub struct TrackedRun<'a> {
    /// The program.
    pub program: &'a Program,
    /// How it was found, for trails.
    pub ends: Ends<'a>,
    /// The flow, as it was before the program was read.
    pub flow: Option<FlowAt>,
    /// Index of the first packet in its batch.
    pub first: usize,
}

/// Has fetched what those packets of a batch need of their connections whose programs track them: for all
/// of them at once, since each would wait for two or three lines of memory.
#[inline(never)]
pub fn prefetch(tracker: &Tracker, flows: &Table, guard: Guard<'_>, packets: &[Packet], meta: &mut BatchMeta) {
    let mut hashes = [0; BATCH_SIZE];
    let mut those = 0u32;
    for at in bits(meta.starts()) {
        let Found { flow, action } = meta.found[at];
        if action != FastAction::PROGRAM {
            continue;
        }
        let CompiledAction::Program(program) = flows.arena.action(flow, guard) else { continue };
        let request = program.steps.iter().find_map(|step| match step {
            Step::Ct(request) => Some(request),
            _ => None,
        });
        let Some(request) = request.filter(|_| program.course().tracks()) else { continue };
        for i in at..meta.end_of_run(at, packets.len()) {
            meta.extract(i, &packets[i]);
            let tuple = Headers::tuple_of(packets[i].data(), &meta.keys[i], meta.layers[i], request.zone);
            if let Some(tuple) = tuple {
                hashes[i] = tracker.table.hash(&tuple);
                tracker.table.prefetch(hashes[i]);
                those |= 1 << i;
            }
        }
    }
    for i in bits(those) {
        tracker.table.prefetch_connection(hashes[i]);
    }
}

impl Executor {
    /// Runs a program that tracks the packets of a run, each by itself, and leaves a fused connection where
    /// it can. What it recirculates comes to the pass `next`.
    pub fn track_run(
        &mut self,
        run: &TrackedRun<'_>,
        packets: impl Iterator<Item = Packet>,
        caches: &mut Caches,
        meta: &mut BatchMeta,
        next: Pass,
    ) {
        for (packet, i) in packets.zip(run.first..) {
            meta.extract(i, &packet);
            self.track_packet(run, packet, i, caches, meta, next);
        }
    }

    fn track_packet(
        &mut self,
        run: &TrackedRun<'_>,
        mut packet: Packet,
        i: usize,
        caches: &mut Caches,
        meta: &mut BatchMeta,
        next: Pass,
    ) {
        let TrackedRun { program, ends, flow, .. } = run;
        if meta.keys[i].common().nw_frag != 0 {
            return self.run(program, packet, &mut KeyView::new(&mut meta.keys[i], meta.layers[i]), next);
        }
        let stage = meta.stage();
        let before = meta.trails().get(i).cloned();
        let begins = if self.conntrack.is_fusing() { ends.begins(meta, i) } else { None };
        let (line, hash) = (meta.headers.lines[i], meta.probes.hash_of(i));
        let mut view = KeyView::new(&mut meta.keys[i], meta.layers[i]);
        let is_tcp = view.key.common().nw_proto == ip_proto::TCP;
        let (ip, transport) = (view.layers.l3 as u8, view.layers.l4 as u8);
        let (course, is_again) = (program.course(), matches!(program.end, Disposition::Recirc(_)));
        let before_rest = if is_again { program.steps.len() } else { program.behind_tracking() };
        let (steps, rest) = program.steps.split_at(before_rest);
        // 1. Take the steps up to the last tracking.
        let mut goes_on = begins.is_some() || before.is_some() && course != Course::TracksFirst;
        let mut connections = before.as_ref().map(|trail| trail.tracked.clone());
        for step in steps {
            let Step::Ct(request) = step else {
                // Behind a tag that is removed there may be another one, in which packets of a line differ.
                goes_on &= match step {
                    Step::PopVlan => view.layers.vlans <= 1,
                    Step::PushVlan { .. } => view.layers.vlans == 0,
                    _ => true,
                };
                let Some(kept) = self.take_step(step, packet, &mut view, next) else { return };
                packet = kept;
                continue;
            };
            view.refresh(packet.data(), true, self.vlan_limit);
            let tracked = self.track(request, &mut packet, &mut view);
            let tracked = tracked.filter(|_| goes_on).and_then(|(found, translation)| {
                // `None` where it has changed the state of its connection.
                Some((self.conntrack.tracker.table.remember(&found)?, translation))
            });
            goes_on = match (tracked, &mut connections) {
                (None, _) => false,
                (Some((remembered, translation)), Some(connections)) => connections.add(remembered, translation),
                (Some((remembered, translation)), None) => {
                    connections = Some(Tracked::new(remembered, translation));
                    true
                }
            };
        }
        // 2. What is known of its way now.
        let mut trail = match (connections.filter(|_| goes_on), begins, before) {
            (Some(tracked), Some((first, serial)), _) => {
                let (mut flows, passes, in_steps, rewrite) = ([FlowAt::NONE; PASSES], 1, false, None);
                flows[0] = first;
                let (is_sampled, is_copied) = (course == Course::TracksSampled, course == Course::TracksCopied);
                Some(Trail {
                    line,
                    hash,
                    serial,
                    flows,
                    passes,
                    is_tcp,
                    ip,
                    transport,
                    in_steps,
                    is_sampled,
                    is_copied,
                    rewrite,
                    tracked,
                })
            }
            (Some(tracked), None, Some(before)) => {
                let before = Trail { tracked, ..before };
                flow.and_then(|flow| ends.goes_on(before, stage, flow))
            }
            _ => None,
        };
        if let Some(trail) = &mut trail {
            trail.in_steps |= course.is_in_steps() || course.is_of_first() && trail.passes > 1;
            if let Some(rewrite) = program.rewrite().filter(|_| is_again && !course.is_in_steps()) {
                trail.rewrites(rewrite);
            }
        }
        // 3. The rest of the program.
        if let Disposition::Recirc(id) = &program.end {
            if let Some(reason) = self.refuses(next) {
                return self.outputs.retire_one(packet, reason, view.in_port());
            }
            let stage = RecircStage { in_port: view.in_port(), recirc_id: *id };
            return self.recirculation.push_tracked(stage, next, packet, view.key, trail.as_ref());
        }
        if let Some(trail) = &trail {
            fused::fuse_behind(caches, program, trail);
        }
        self.run_rest(rest, &program.end, packet, &mut view, next);
    }

    /// Tracks a packet, whose key is extracted: writes the metadata of its connection into the key, and translates it.
    /// Returns the connection and the translation, if nothing else was done to the packet.
    #[inline(never)]
    pub fn track(
        &mut self,
        request: &Request,
        packet: &mut Packet,
        view: &mut KeyView<'_>,
    ) -> Option<(FoundConnection, Option<Translation>)> {
        let conntrack = &*self.conntrack;
        let headers = Headers::of(packet.data(), view.key, view.layers, request.zone, to_verify(packet.offload()));
        let headers = match headers {
            Ok(headers) => headers,
            Err(why) => {
                conntrack.counters.count(why.into());
                metadata::write(&conntrack.tracker.malformed(request.zone), view.key);
                return None;
            }
        };
        let before = metadata::of_key(view.key, &headers.tuple);
        let verdict = conntrack.tracker.track(&headers, &before, request, self.now);
        self.unestablished += u64::from(verdict.metadata.state.0 & (CtState::NEW | CtState::INV).0 != 0);
        if let Some(why) = verdict.invalid {
            conntrack.counters.count(why.into());
        }
        if let Some(why) = verdict.refused {
            conntrack.counters.count(why.into());
        }
        let follows = verdict.translation.is_some() || verdict.sequence.is_some() || verdict.helper.is_some();
        let mut metadata = verdict.metadata;
        if follows && let Some(place) = place(packet, view.key, view.layers) {
            view.outdate();
            metadata = self.follow_verdict(&verdict, &headers, request, packet, place);
        }
        metadata::write(&metadata, view.key);
        let is_plain = verdict.invalid.is_none() && verdict.sequence.is_none() && verdict.helper.is_none();
        let found = verdict.connection.filter(|_| is_plain && !matches!(headers.upper, Upper::Error(_)))?;
        Some((found, verdict.translation.map(|(translation, _)| translation)))
    }

    /// Does to the packet what a verdict asks for. Returns the packet's metadata.
    fn follow_verdict(
        &self,
        verdict: &Verdict,
        headers: &Headers,
        request: &Request,
        packet: &mut Packet,
        place: Place,
    ) -> Metadata {
        let conntrack = &*self.conntrack;
        match (&verdict.translation, &headers.upper) {
            (Some((outer, Some(inner))), Upper::Error(quoted)) => {
                outer.apply_to_error(packet.data_mut(), &place, quoted, inner);
            }
            (Some((translation, _)), _) => translation.apply(packet.data_mut(), &place),
            (None, _) => {}
        }
        if let Some(shift) = verdict.sequence {
            shift.apply(packet.data_mut(), &place);
        }
        let mut metadata = verdict.metadata;
        if let (Some(Helper::Ftp), Some(found), Upper::Tcp(segment)) =
            (verdict.helper, &verdict.connection, &headers.upper)
            && let Some(data) = data_of(packet.data(), &place)
        {
            match conntrack.tracker.ftp(found, segment, data, request.nat.is_some(), self.now) {
                Ok(None) => {}
                Ok(Some(edit)) => {
                    if !edit.apply(packet, &place) {
                        conntrack.counters.count(Counter::NoBuffer);
                    }
                }
                Err(ftp::Malformed) => {
                    conntrack.counters.count(Counter::Announcement);
                    metadata.state = CtState::INV | CtState::TRK;
                }
            }
        }
        metadata
    }
}

/// Where the headers of a packet are that the tracker has read.
fn place(packet: &Packet, key: &Key, layers: Layers) -> Option<Place> {
    let at = |offset: u16| (offset != Layers::NONE).then_some(usize::from(offset));
    let ip = at(layers.l3)?;
    let header = packet.data().get(ip..)?;
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*header.get(at)?, *header.get(at + 1)?])));
    // Behind the packet there may be padding of the frame; a super-frame's length may not fit into the field.
    let len = match header.first()? >> 4 {
        4 => word(2)?,
        _ => 40 + word(4)?,
    };
    let end = if packet.offload().is_gso() { packet.len() } else { (ip + len).min(packet.len()) };
    let partial = packet.offload().needs_csum();
    Some(Place { ip, transport: at(layers.l4), end, proto: key.common().nw_proto, partial })
}

/// The data of a TCP segment.
fn data_of<'a>(frame: &'a [u8], place: &Place) -> Option<&'a [u8]> {
    let transport = place.transport?;
    let header = usize::from(frame.get(transport + 12)? >> 4) * 4;
    frame.get(transport + header..place.end)
}
