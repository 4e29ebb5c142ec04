//! Ways in steps: the short way of packets to which more happens than that they are tracked, rewritten and sent, such as samples, copies and meters
//! before they are tracked, or more connections and translations than two and one.
//!
//! Nothing is looked up here either. What each flow of the way does is read from its program, and done in order.

use ::conntrack::table::remembered::{Deadlines, Moment};
use packet::flow::extract::{Layers, SimpleMark, VlanLimit};

use packet::wire::{ethertype, ip_proto};
use packet::{Key, Packet, Time};

use super::ends::Ends;
use super::verify;
use crate::actions::execute::{Executor, KeyView};
use crate::actions::program::{Program, Step};
use crate::classify::CompiledAction;
use crate::classify::cache::fused::{FlowAt, Fused, FusedTable, PASSES, SteppedWay, TRACKED, Translations};
use crate::classify::plan::set_mark;
use crate::drop::DropReason;
use crate::pipeline::batch::BatchMeta;
use crate::pipeline::recirculation::Pass;

/// What the packets of a batch need that go their way in steps. Most of them come to the same flows.
pub struct Steps<'a> {
    flows: [FlowAt; PASSES],
    /// What these do.
    actions: [CompiledAction<'a>; PASSES],
    now: Deadlines,
}

impl<'a> Steps<'a> {
    /// For packets that come now.
    pub fn new(now: Time) -> Steps<'a> {
        let actions = [CompiledAction::Drop(DropReason::Rule); PASSES];
        Steps { flows: [FlowAt::NONE; PASSES], actions, now: Deadlines::new(Moment::of(now)) }
    }

    /// Reads what the flows of a way do. False where one of them is no more what it was.
    #[inline(always)]
    fn read(&mut self, ends: &Ends<'a>, way: &SteppedWay) -> bool {
        self.flows == way.flows || self.read_anew(ends, way)
    }

    #[inline(never)]
    fn read_anew(&mut self, ends: &Ends<'a>, way: &SteppedWay) -> bool {
        self.flows = [FlowAt::NONE; PASSES];
        // What they do is read before the epochs: while those are the same, so is this.
        for (action, flow) in self.actions.iter_mut().zip(way.flows()) {
            let Some(live) = ends.table.arena.live(flow.flow, ends.guard) else { return false };
            *action = live.action();
        }
        if way.holds(ends) {
            self.flows = way.flows;
        }
        self.flows == way.flows
    }
}

impl SteppedWay {
    /// Its flows.
    #[inline(always)]
    pub fn flows(&self) -> &[FlowAt] {
        &self.flows[..usize::from(self.passes).min(PASSES)]
    }

    /// Whether these are what they were.
    pub fn holds(&self, ends: &Ends<'_>) -> bool {
        self.flows().iter().all(|flow| ends.counters.of(flow.flow).epoch() == flow.epoch)
    }
}

/// Whether a packet passes for each connection of its way. Nothing is noted.
pub fn passes(
    table: &::conntrack::table::Table,
    (connection, way): (&Fused, &SteppedWay),
    packet: &Packet,
    liberal: bool,
    now: &mut Deadlines,
) -> bool {
    let connections = &way.connections[..usize::from(way.tracked).min(TRACKED)];
    let mut places = connections.iter().map(|connection| (connection, table.prefetch_slot(connection)));
    if !connection.kind.is_tcp() {
        return verify::is_right_udp(packet, connection.ip.into())
            && places.all(|(connection, place)| {
                place.is_some_and(|place| table.pass_simple_at::<false>(place, connection, now))
            });
    }
    let Some(segment) = verify::tcp_segment(packet, connection.ip.into()) else { return false };
    places.all(|(connection, place)| {
        place.is_some_and(|place| table.pass_tcp_at::<false>(place, connection, &segment, liberal, now))
    })
}

/// What it takes to track a packet once more.
struct Tracking<'a> {
    connection: &'a Fused,
    way: &'a SteppedWay,
    translations: Option<&'a Translations>,
    /// How often that was done.
    done: usize,
    now: &'a mut Deadlines,
}

impl Executor {
    /// Has packet `i` of a batch go its way in steps, which [`passes`]. Gives it back where a flow is no more what it was: nothing was
    /// done to it then.
    #[inline(never)]
    pub fn go_in_steps<'a>(
        &mut self,
        steps: &mut Steps<'a>,
        (ends, fused): (&Ends<'a>, &FusedTable),
        number: u32,
        mut packet: Packet,
        (i, meta): (usize, &mut BatchMeta),
    ) -> Result<(), Packet> {
        let Some(way) = fused.way(number) else { return Err(packet) };
        if !steps.read(ends, way) {
            return Err(packet);
        }
        let connection = fused.get(number);
        let (in_port, next, flags) = (meta.in_port(), meta.pass(), meta.headers.flags[i]);
        let mut view = view_of(meta, i, &packet, connection);
        let mut tracking =
            Tracking { connection, way, translations: fused.translations(number), done: 0, now: &mut steps.now };
        for (n, (flow, action)) in way.flows().iter().zip(steps.actions).enumerate() {
            let is_last = n + 1 == way.flows().len();
            if n > 0 {
                ends.counters.add(flow.flow, 1, packet.len() as u32, flags, self.now);
            }
            self.outputs.at_flow = flow.flow;
            let program = match action {
                CompiledAction::Program(program) => program,
                CompiledAction::Output(port) => {
                    self.outputs.push(port, packet, in_port, self.now);
                    return Ok(());
                }
                CompiledAction::Drop(reason) => {
                    self.outputs.retire_one(packet, reason, in_port);
                    return Ok(());
                }
            };
            if is_last && let Some(push) = program.compact_push().or_else(|| program.tracked_push()) {
                self.track_all(program, &mut packet, &mut view, &mut tracking);
                if push.takes(&packet) {
                    self.with_scratch_key(|key, vlan_limit| {
                        push.apply(std::slice::from_mut(&mut packet), key, vlan_limit);
                    });
                    self.outputs.push(push.push.port(), packet, in_port, self.now);
                } else {
                    self.run_untracked(program, packet, &mut view, next.of(program));
                }
                return Ok(());
            }
            if let Some(rewrite) = program.rewrite().filter(|_| !program.course().is_of_first()) {
                self.track_all(program, &mut packet, &mut view, &mut tracking);
                let before = packet.len();
                if rewrite.growth() > 0 && !packet.make_headroom(rewrite.growth() as usize) {
                    self.outputs.retire_one(packet, DropReason::NoBuffer, in_port);
                    return Ok(());
                }
                self.with_scratch_key(|key, vlan_limit| rewrite.apply(&mut packet, key, vlan_limit));
                if is_last {
                    self.outputs.push(rewrite.port(), packet, in_port, self.now);
                    return Ok(());
                }
                view.shift((packet.len() as isize - before as isize) as i16);
                continue;
            }
            let before_rest = if is_last { program.behind_tracking() } else { program.steps.len() };
            let (steps, rest) = program.steps.split_at(before_rest);
            for step in steps {
                match step {
                    Step::Ct(_) => self.track_once(&mut packet, &mut view, &mut tracking),
                    step if step.is_of_metadata() => {}
                    step => match self.take_step(step, packet, &mut view, next.of(program)) {
                        Some(kept) => packet = kept,
                        None => return Ok(()),
                    },
                }
            }
            if is_last {
                self.run_rest(rest, &program.end, packet, &mut view, next.of(program));
                return Ok(());
            }
        }
        debug_assert!(false, "the last flow of a way sends or drops packets");
        self.outputs.retire_one(packet, DropReason::Rule, in_port);
        Ok(())
    }

    /// Notes all that a program tracks of a packet.
    fn track_all(&self, program: &Program, packet: &mut Packet, view: &mut KeyView<'_>, tracking: &mut Tracking<'_>) {
        let tracks = program.steps.iter().filter(|step| matches!(step, Step::Ct(_)));
        tracks.for_each(|_| self.track_once(packet, view, tracking));
    }

    /// Notes that a packet was tracked, and translates it.
    fn track_once(&self, packet: &mut Packet, view: &mut KeyView<'_>, tracking: &mut Tracking<'_>) {
        let Tracking { connection, way, translations, done, now } = tracking;
        let at = std::mem::replace(done, (*done + 1).min(TRACKED - 1));
        let (remembered, is_tcp) = (&way.connections[at], connection.kind.is_tcp());
        let table = &self.conntrack.tracker.table;
        let (ip, transport) = (usize::from(view.layers.l3), usize::from(view.layers.l4));
        if !way.connections[..at].contains(remembered)
            && let Some(place) = table.prefetch_slot(remembered)
        {
            // It was asked before. What another thread has changed in the meantime, it has changed behind this packet.
            if !is_tcp {
                table.pass_simple_at::<true>(place, remembered, now);
            } else if let Some(segment) = verify::verified_segment(packet, ip, transport) {
                table.pass_tcp_at::<true>(place, remembered, &segment, self.conntrack.tracker.is_liberal(), now);
            }
        }
        let number = usize::from(way.translated[at]).checked_sub(1);
        if let Some(translation) = number.and_then(|number| translations.and_then(|all| all.get(number))) {
            let place = verify::place(packet, ip, transport, is_tcp);
            translation.apply(packet.data_mut(), &place);
            view.outdate();
        }
    }

    /// Runs a program on a packet that was tracked already, and in which nothing was rewritten yet.
    #[cold]
    fn run_untracked(&mut self, program: &Program, mut packet: Packet, view: &mut KeyView<'_>, next: Pass) {
        let (steps, rest) = program.steps.split_at(program.behind_tracking());
        for step in steps.iter().filter(|step| !step.is_of_metadata()) {
            match self.take_step(step, packet, view, next) {
                Some(kept) => packet = kept,
                None => return,
            }
        }
        self.run_rest(rest, &program.end, packet, view, next);
    }

    /// Calls `what` with a key that nobody needs.
    fn with_scratch_key(&mut self, what: impl FnOnce(&mut Key, VlanLimit)) {
        let mut key = self.scratch.pop().unwrap_or_default();
        what(&mut key, self.vlan_limit);
        self.scratch.push(key);
    }
}

/// The view of a packet of a connection that is looked up by its line.
fn view_of<'a>(meta: &'a mut BatchMeta, i: usize, packet: &Packet, connection: &Fused) -> KeyView<'a> {
    if meta.is_extracted(i) {
        return KeyView::new(&mut meta.keys[i], meta.layers[i]);
    }
    let key = meta.start_key(i);
    let is_ipv4 = packet.data().get(usize::from(connection.ip)).is_some_and(|byte| byte >> 4 == 4);
    let dl_type = if is_ipv4 { ethertype::IPV4 } else { ethertype::IPV6 };
    set_mark(key, SimpleMark { dl_type, vlan_tci: 0, nw_frag: 0 });
    key.common_mut().nw_proto = if connection.kind.is_tcp() { ip_proto::TCP } else { ip_proto::UDP };
    let (l3, l4) = (connection.ip.into(), connection.transport.into());
    let layers = Layers { l2_5: Layers::NONE, l3, l4, vlans: connection.ip.saturating_sub(14) / 4 };
    KeyView::of_run(key, layers)
}
