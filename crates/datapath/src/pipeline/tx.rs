//! Stage 7, output: packets are gathered for each output port, and transmitted as one burst.
//!
//! A burst is transmitted when it is full, at the end of the batch, or, with a flush interval, before its first
//! packet has waited for longer than that. The clock is read once in a turn. So a packet is transmitted now if it
//! would be due before the end of another turn as long as the last one. No packet waits for ever:
//!
//! - a worker stays awake for packets that are due soon, and transmits everything before it sleeps or ends;
//! - packets that wait for a port are transmitted before the port or its queue is removed, and before the interval
//!   changes;
//! - while the clock is stopped (`time/stop`), it cannot say when a packet is due, and no packet waits.
//!
//! Where a port has a shaper, what would be transmitted goes to the queues of the port's backlog, and leaves from there as the shaper lets it, in this
//! turn or in a later one. A worker stays awake as long as a backlog has packets.

use std::sync::Arc;
use std::time::Duration;

use packet::{Batch, Packet, Split, Time};
use ports::TakesTunnels;

use crate::action::PortNo;
use crate::bond::{Bonds, Members, Selected};
use crate::classify::{FlowRef, Table};
use crate::drop::DropReason;
use crate::perf::{Metric, PerfMetrics};
use crate::pipeline::joining::Joining;
use crate::pipeline::port::{DpPort, Queue, SharedQueue};
use crate::policer::{EgressPolicer, take};
use crate::shaper::backlog::Backlog;
use crate::sync::counters::WorkerCounters;
use crate::tap::{Ports, Taps, WorkerTap};

/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// The longest flush interval for which a worker without other work stays awake. With a longer one it transmits and
/// sleeps.
const LONGEST_WAIT_AWAKE: Duration = Duration::from_millis(1);

/// The output ports of one worker.
pub struct Outputs {
    /// By port number.
    ports: Vec<Option<Box<OutputPort>>>,
    /// Ports for which packets wait.
    waiting: Vec<PortNo>,
    /// Ports whose queues need housekeeping. Those of sockets do not, and there may be a thousand of them.
    housekept: Vec<PortNo>,
    /// Ports with a backlog.
    shaped: Vec<PortNo>,
    /// The flush interval: how long a packet may wait. Zero: until the end of the batch.
    interval: Duration,
    /// How long the last turn took. Zero: the clock is stopped.
    turn: Duration,
    worker: usize,
    counters: Arc<WorkerCounters>,
    /// For performance metrics, if they are on.
    pub perf: Option<Arc<PerfMetrics>>,
    /// What the numbers are that are no port's.
    bonds: Arc<Bonds>,
    /// Who looks at packets: nobody, nearly always.
    taps: Option<Box<Taps>>,
    /// For taps: the flow whose actions are being executed. Not kept up to date without one, nor where packets of several flows are sent
    /// together.
    pub at_flow: FlowRef,
    /// For taps: the time of this turn.
    now: Time,
    /// Whether anything was sent since the last [`housekeep`](Outputs::housekeep).
    pub sent_lately: bool,
    /// The number of a port that took super-frames when that was asked last.
    taker: usize,
}

struct OutputPort {
    outlet: Outlet,
    batch: Batch,
    /// When the first packet of `batch` was added.
    since: Time,
}

impl OutputPort {
    /// Adds a packet to the batch. Returns whether it is full then.
    #[inline(always)]
    fn gather(&mut self, packet: Packet, waiting: &mut Vec<PortNo>, now: Time) -> bool {
        if self.batch.is_empty() {
            self.since = now;
            waiting.push(self.outlet.port.no);
        }
        self.batch.push(packet);
        self.batch.is_full()
    }

    /// Whether the port is up and takes frames of this length.
    fn takes(&self, longest: u32) -> bool {
        self.outlet.port.is_up() && longest as usize <= self.outlet.port.max_frame()
    }
}

/// How packets get to a port.
struct Outlet {
    port: Arc<DpPort>,
    /// Limits what is sent.
    policer: Option<Arc<EgressPolicer>>,
    /// What waits for its rate, where the port has a shaper.
    backlog: Option<Box<Backlog>>,
    transmitter: Transmitter,
}

/// What passes packets to the port.
struct Transmitter {
    queue: Queue,
    /// Joins segments, where the port takes super-frames.
    joining: Joining,
}

/// A backlog for packets that are held back by a shaper; `None` where there is none.
fn backlog(policer: &Option<Arc<EgressPolicer>>) -> Option<Box<Backlog>> {
    policer.as_deref().and_then(EgressPolicer::shaper).map(|shaper| Box::new(Backlog::new(shaper)))
}

impl Outputs {
    /// No ports yet.
    pub fn new(worker: usize, interval: Duration, counters: Arc<WorkerCounters>, bonds: Arc<Bonds>) -> Outputs {
        let turn = Duration::ZERO;
        Outputs {
            ports: Vec::new(),
            waiting: Vec::new(),
            housekept: Vec::new(),
            shaped: Vec::new(),
            interval,
            turn,
            worker,
            counters,
            perf: None,
            bonds,
            taps: None,
            at_flow: FlowRef::NONE,
            now: Time(0),
            sent_lately: false,
            taker: 0,
        }
    }

    /// Changes the flush interval. Waiting packets are transmitted.
    pub fn set_interval(&mut self, interval: Duration, now: Time) {
        self.flush(now);
        self.interval = interval;
    }

    /// Records the time, and how much of it has passed since the begin of the last turn.
    #[inline(always)]
    pub fn begin_turn(&mut self, now: Time, after: Duration) {
        (self.now, self.turn) = (now, after);
    }

    /// Whether the clock is stopped.
    pub fn clock_is_stopped(&self) -> bool {
        self.turn.is_zero()
    }

    /// Whether packets wait that are due so soon that the worker stays awake.
    pub fn is_due_soon(&self) -> bool {
        !self.waiting.is_empty() && self.interval <= LONGEST_WAIT_AWAKE || self.has_backlog()
    }

    /// Whether packets wait for the rate of a port.
    pub fn has_backlog(&self) -> bool {
        let of_port = |port: &PortNo| self.ports.get(port.0 as usize)?.as_ref()?.outlet.backlog.as_ref();
        self.shaped.iter().filter_map(of_port).any(|backlog| !backlog.is_empty())
    }

    /// Adds a port. Nothing can be sent to where packets come out of tunnels: for whoever sends, it is not there.
    pub fn add(&mut self, port: Arc<DpPort>, queue: Queue) {
        if port.port.is_tunnel() {
            return;
        }
        let at = port.no.0 as usize;
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        self.waiting.reserve(self.ports.len());
        if queue.needs_housekeeping() {
            self.housekept.push(port.no);
        }
        let policer = port.policers().egress;
        let backlog = backlog(&policer);
        if backlog.is_some() {
            self.shaped.push(port.no);
        }
        self.ports[at] = Some(Box::new(OutputPort {
            outlet: Outlet { port, policer, backlog, transmitter: Transmitter { queue, joining: Joining::default() } },
            batch: Batch::new(),
            since: Time(0),
        }));
    }

    /// Changes what limits that which is sent to a port. What waits for its rate then waits for another one, or is transmitted.
    pub fn set_policer(&mut self, port: PortNo, policer: Option<Arc<EgressPolicer>>, now: Time) {
        let Some(Some(output)) = self.ports.get_mut(port.0 as usize) else { return };
        if output.outlet.policer.as_ref().map(Arc::as_ptr) == policer.as_ref().map(Arc::as_ptr) {
            return;
        }
        let before = std::mem::replace(&mut output.outlet.backlog, backlog(&policer));
        output.outlet.policer = policer;
        self.shaped.retain(|&p| p != port);
        if output.outlet.backlog.is_some() {
            self.shaped.push(port);
        }
        if let Some(mut before) = before {
            let mut batch = Batch::new();
            while {
                before.drain(&mut batch);
                !batch.is_empty()
            } {
                send_limited(
                    (&self.taps, &self.perf),
                    &mut output.outlet,
                    &mut batch,
                    now,
                    &self.counters,
                    self.worker,
                );
            }
        }
    }

    /// Transmits what waits for a port, and removes the port. What waits for its rate is dropped. Returns its queue.
    pub fn remove(&mut self, port: PortNo, now: Time) -> Option<Queue> {
        self.flush_port(port, now);
        self.waiting.retain(|&p| p != port);
        self.housekept.retain(|&p| p != port);
        self.shaped.retain(|&p| p != port);
        let mut output = self.ports.get_mut(port.0 as usize)?.take()?;
        drop_backlog(&self.taps, &mut output.outlet, now, &self.counters, self.worker);
        Some(output.outlet.transmitter.queue)
    }

    /// Makes the queue to a port a shared one, and returns it for another worker.
    pub fn share(&mut self, port: PortNo) -> Option<SharedQueue> {
        let mut other_half = None;
        self.change_queue(port, |queue| {
            let (queue, other) = queue.share();
            other_half = Some(other);
            queue
        });
        other_half
    }

    /// Replaces the queue to a port.
    pub fn replace(&mut self, port: PortNo, queue: Queue, now: Time) {
        self.flush_port(port, now);
        self.change_queue(port, |_| queue);
    }

    /// Removes the locks of queues that no other worker shares any more.
    pub fn reclaim(&mut self) {
        for port in 0..self.ports.len() {
            self.change_queue(PortNo(port as u32), Queue::reclaim);
        }
    }

    fn change_queue(&mut self, port: PortNo, change: impl FnOnce(Queue) -> Queue) {
        let Some(entry) = self.ports.get_mut(port.0 as usize) else { return };
        if let Some(output) = entry.take() {
            let OutputPort { outlet: Outlet { port, policer, backlog, transmitter }, batch, since } = *output;
            let transmitter = Transmitter { queue: change(transmitter.queue), ..transmitter };
            let outlet = Outlet { port, policer, backlog, transmitter };
            *entry = Some(Box::new(OutputPort { outlet, batch, since }));
        }
    }

    /// Transmits everything and returns all queues, as the worker ends. What waits for a rate does so no longer.
    pub fn dismantle(&mut self, now: Time) -> Vec<(PortNo, Queue)> {
        self.flush(now);
        self.housekept.clear();
        for port in std::mem::take(&mut self.shaped) {
            self.set_policer(port, None, now);
        }
        self.ports.drain(..).flatten().map(|output| (output.outlet.port.no, output.outlet.transmitter.queue)).collect()
    }

    /// The port with this number.
    #[inline(always)]
    pub fn port(&self, port: PortNo) -> Option<&Arc<DpPort>> {
        Some(&self.ports.get(port.0 as usize)?.as_ref()?.outlet.port)
    }

    /// The MTU of a port. Where there is no such port, nothing is too long for it.
    #[inline(always)]
    pub fn mtu(&self, port: PortNo) -> usize {
        self.port(port).map_or(usize::MAX, |port| port.mtu())
    }

    /// How a port takes super-frames in tunnels.
    pub fn takes_tunnels(&self, port: Option<PortNo>) -> TakesTunnels {
        port.and_then(|port| self.port(port)).map_or(TakesTunnels::default(), |port| port.takes_tunnels())
    }

    /// Whether some port takes super-frames. Looks at all of them only where the one that was found last takes none any more.
    #[cold]
    pub fn has_taker_of_super_frames(&mut self) -> bool {
        let takes = |output: &Option<Box<OutputPort>>| {
            output.as_ref().is_some_and(|output| output.outlet.port.gains_by_super_frames())
        };
        if !self.ports.get(self.taker).is_some_and(takes) {
            let Some(taker) = self.ports.iter().position(takes) else { return false };
            self.taker = taker;
        }
        true
    }

    /// The worker's counters.
    #[inline(always)]
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// The worker's number.
    #[inline(always)]
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Queues a packet for a port.
    #[inline(always)]
    pub fn push(&mut self, port: PortNo, packet: Packet, in_port: PortNo, now: Time) {
        let Some(Some(output)) = self.ports.get_mut(port.0 as usize) else {
            return self.push_to_bond(port, packet, in_port, now);
        };
        if packet.len() > output.outlet.port.max_frame() && is_too_big(&packet, output.outlet.port.max_frame()) {
            return self.retire_one(packet, DropReason::TooBig, port);
        }
        if !output.outlet.port.is_up() {
            return self.retire_one(packet, DropReason::PortDown, port);
        }
        if output.gather(packet, &mut self.waiting, now) {
            send((&self.taps, &self.perf), &mut output.outlet, &mut output.batch, now, &self.counters, self.worker);
            self.sent_lately = true;
            self.waiting.retain(|&p| p != port);
        }
    }

    /// Queues a packet for the member of a bond that it goes by, if the number is a bond's.
    #[inline(never)]
    fn push_to_bond(&mut self, number: PortNo, packet: Packet, in_port: PortNo, now: Time) {
        self.push_to_member(number, packet, in_port, now);
    }

    /// Queues packets for the members of a bond, if the number is a bond's, and for a port otherwise.
    #[inline(never)]
    fn push_all_to_bond(&mut self, to: PortNo, packets: impl Iterator<Item = Packet>, in_port: PortNo, now: Time) {
        if self.port(to).is_some() {
            packets.for_each(|packet| self.push(to, packet, in_port, now));
        } else {
            packets.for_each(|packet| self.push_to_member(to, packet, in_port, now));
        }
    }

    #[inline(always)]
    fn push_to_member(&mut self, number: PortNo, packet: Packet, in_port: PortNo, now: Time) {
        self.push_selected(self.bonds.select(number, packet.data(), self.worker), packet, in_port, now);
    }

    #[inline(always)]
    fn push_selected(&mut self, selected: Selected, packet: Packet, in_port: PortNo, now: Time) {
        match selected {
            // A port that is removed may still be in a bucket.
            Selected::Member(port) if self.port(port).is_some() => self.push(port, packet, in_port, now),
            Selected::NoMember => self.retire_one(packet, DropReason::PortDown, in_port),
            Selected::Member(_) | Selected::NoBond => self.retire_one(packet, DropReason::NoSuchPort, in_port),
        }
    }

    /// Queues several packets for a port, as [`push`](Outputs::push) for each of them.
    #[inline(always)]
    pub fn push_all(&mut self, port: PortNo, packets: impl Iterator<Item = Packet>, in_port: PortNo, now: Time) {
        let up = self.port(port).is_some_and(|port| port.is_up());
        let Some(Some(output)) = self.ports.get_mut(port.0 as usize).filter(|_| up) else {
            return self.push_all_to_bond(port, packets, in_port, now);
        };
        let max_frame = output.outlet.port.max_frame();
        let waited = !output.batch.is_empty();
        if !waited {
            output.since = now;
        }
        let mut too_big = 0;
        for packet in packets {
            if packet.len() > max_frame && is_too_big(&packet, max_frame) {
                show_dropped(&self.taps, &packet, DropReason::TooBig, port, self.at_flow, now);
                too_big += 1;
                continue;
            }
            output.batch.push(packet);
            if output.batch.is_full() {
                send((&self.taps, &self.perf), &mut output.outlet, &mut output.batch, now, &self.counters, self.worker);
                output.since = now;
                self.sent_lately = true;
            }
        }
        match (waited, output.batch.is_empty()) {
            (false, false) => self.waiting.push(port),
            (true, true) => self.waiting.retain(|&p| p != port),
            _ => {}
        }
        if too_big > 0 {
            self.count_drops(too_big, DropReason::TooBig, port);
        }
    }

    /// Queues a whole batch for a port, as [`push`](Outputs::push) for each packet. Its longest frame has `longest`
    /// bytes. The batch is empty afterwards. Where no packet waits for the port, and none of the batch has to, the batch is
    /// transmitted as it is.
    #[inline(always)]
    pub fn push_batch(&mut self, port: PortNo, batch: &mut Batch, longest: u32, in_port: PortNo, now: Time) {
        if let Some(Some(output)) = self.ports.get_mut(port.0 as usize)
            && output.takes(longest)
            && output.batch.is_empty()
            && (self.interval.is_zero() || batch.is_full())
            && output.outlet.policer.is_none()
        {
            show_sent(&self.taps, batch, port, now);
            output.outlet.transmit(batch, &self.counters, &self.perf, now);
            self.sent_lately = true;
            return;
        }
        self.push_waiting(port, batch, longest, in_port, now);
    }

    /// Queues a whole batch that is not transmitted as it is.
    #[inline(never)]
    fn push_waiting(&mut self, port: PortNo, batch: &mut Batch, longest: u32, in_port: PortNo, now: Time) {
        if self.port(port).is_some() {
            return self.push_all(port, batch.drain(..), in_port, now);
        }
        self.push_batch_to_bond(port, batch, longest, in_port, now);
        // Those that are not as most are, but counted.
        for packet in batch.drain(..) {
            let choice = self.bonds.choice(port, self.worker);
            let selected = choice.map_or(Selected::NoBond, |choice| choice.member_of(packet.data()));
            self.push_selected(selected, packet, in_port, now);
        }
    }

    /// Queues packets of a batch for the members of a bond, if the number is a bond's. Those are left whose members cannot have
    /// them. The packets of one member are moved together.
    fn push_batch_to_bond(&mut self, number: PortNo, batch: &mut Batch, longest: u32, in_port: PortNo, now: Time) {
        let Some(choice) = self.bonds.choice(number, self.worker) else { return };
        let mut members = Members::none();
        choice.find_members(batch, &mut members);
        let mut split = Split::new(batch);
        let all = split.left();
        let mut unasked = all;
        while unasked != 0 {
            let member = members.of(unasked.trailing_zeros());
            let mut going = members.going_to(member) & unasked;
            unasked &= !going;
            let output = self.ports.get_mut(member.0 as usize).and_then(Option::as_deref_mut);
            let Some(output) = output.filter(|output| output.takes(longest)) else { continue };
            if going == all {
                drop(split);
                return self.push_batch(member, batch, longest, in_port, now);
            }
            while going != 0 {
                if output.batch.is_empty() {
                    output.since = now;
                    self.waiting.push(member);
                }
                going = split.move_to(going, &mut output.batch);
                if output.batch.is_full() {
                    send(
                        (&self.taps, &self.perf),
                        &mut output.outlet,
                        &mut output.batch,
                        now,
                        &self.counters,
                        self.worker,
                    );
                    self.sent_lately = true;
                    self.waiting.retain(|&p| p != member);
                }
            }
        }
    }

    /// At the end of a batch: transmits what may not wait longer.
    #[inline]
    pub fn end_of_batch(&mut self, now: Time) {
        if !self.shaped.is_empty() {
            self.release_backlogs(now);
        }
        if self.waiting.is_empty() {
            return;
        }
        if self.interval.is_zero() || self.clock_is_stopped() { self.flush(now) } else { self.flush_due(now) }
    }

    /// Transmits what has waited for its rate and may leave now.
    #[cold]
    fn release_backlogs(&mut self, now: Time) {
        for &port in &self.shaped {
            if let Some(Some(output)) = self.ports.get_mut(port.0 as usize) {
                release_backlog((&self.taps, &self.perf), &mut output.outlet, now, &self.counters, self.worker);
                self.sent_lately = true;
            }
        }
    }

    /// Transmits everything but what waits for its rate.
    pub fn flush(&mut self, now: Time) {
        while let Some(port) = self.waiting.pop() {
            self.flush_port(port, now);
        }
    }

    #[cold]
    fn flush_due(&mut self, now: Time) {
        let mut i = 0;
        while i < self.waiting.len() {
            let port = self.waiting[i];
            let since = self.ports[port.0 as usize].as_ref().map_or(Time(0), |s| s.since);
            if now.since(since) + self.turn >= self.interval {
                self.waiting.swap_remove(i);
                self.flush_port(port, now);
            } else {
                i += 1;
            }
        }
    }

    fn flush_port(&mut self, port: PortNo, now: Time) {
        if let Some(Some(output)) = self.ports.get_mut(port.0 as usize)
            && !output.batch.is_empty()
        {
            send((&self.taps, &self.perf), &mut output.outlet, &mut output.batch, now, &self.counters, self.worker);
            self.sent_lately = true;
        }
    }

    /// Has the transmit queues reap completed buffers.
    pub fn housekeep(&mut self, now: Time) {
        self.sent_lately = false;
        for port in &self.housekept {
            if let Some(Some(output)) = self.ports.get_mut(port.0 as usize) {
                output.outlet.transmitter.queue.housekeep(now);
            }
        }
    }
}

/// Who looks at packets.
impl Outputs {
    /// Whether there is a tap.
    #[inline(always)]
    pub fn is_tapped(&self) -> bool {
        self.taps.is_some()
    }

    /// The taps, with the time.
    #[inline(always)]
    pub fn taps(&self) -> Option<(&Taps, Time)> {
        self.taps.as_deref().map(|taps| (taps, self.now))
    }

    /// Adds a tap; `table` has the flows.
    pub fn add_tap(&mut self, tap: WorkerTap, table: &Arc<Table>, now: Time) {
        self.now = now;
        self.taps.get_or_insert_with(|| Box::new(Taps::new(table.clone()))).add(tap);
    }

    /// Changes the ports that the tap of this number is about.
    pub fn set_tap_ports(&mut self, number: u64, ports: &Ports) {
        self.taps.iter_mut().for_each(|taps| taps.set_ports(number, ports));
    }

    /// Removes the tap of this number.
    pub fn remove_tap(&mut self, number: u64) {
        self.taps.take_if(|taps| !taps.remove(number));
    }

    /// Shows taps a packet that is dropped, or of which a copy that was not made counts as dropped.
    #[inline]
    pub fn show_dropped(&self, packet: &Packet, reason: DropReason, port: PortNo) {
        show_dropped(&self.taps, packet, reason, port, self.at_flow, self.now);
    }
}

#[inline]
fn show_dropped(taps: &Option<Box<Taps>>, packet: &Packet, reason: DropReason, port: PortNo, flow: FlowRef, now: Time) {
    if let Some(taps) = taps {
        taps.show_dropped(std::slice::from_ref(packet), reason, port, flow, now);
    }
}

#[inline(always)]
fn show_sent(taps: &Option<Box<Taps>>, batch: &Batch, port: PortNo, now: Time) {
    if let Some(taps) = taps {
        taps.show_sent(batch, port, now);
    }
}

/// Who looks at packets, and who measures.
type Observers<'a> = (&'a Option<Box<Taps>>, &'a Option<Arc<PerfMetrics>>);

/// Transmits what waits for a port, as far as what limits it lets it.
#[inline]
fn send(
    observers: Observers,
    outlet: &mut Outlet,
    batch: &mut Batch,
    now: Time,
    counters: &WorkerCounters,
    worker: usize,
) {
    if outlet.policer.is_some() {
        return send_limited(observers, outlet, batch, now, counters, worker);
    }
    show_sent(observers.0, batch, outlet.port.no, now);
    outlet.transmit(batch, counters, observers.1, now);
}

/// Transmits a batch to a port that may have a limit, as far as that lets it. The batch is empty afterwards.
#[cold]
fn send_limited(
    observers: Observers,
    outlet: &mut Outlet,
    batch: &mut Batch,
    now: Time,
    counters: &WorkerCounters,
    worker: usize,
) {
    let shaper = outlet.policer.as_deref().and_then(EgressPolicer::shaper);
    if let Some((shaper, backlog)) = shaper.zip(outlet.backlog.as_deref_mut()) {
        backlog.add(shaper, batch);
        refuse(observers.0, outlet, batch, DropReason::QueueFull, now, counters, worker);
        return release_backlog(observers, outlet, now, counters, worker);
    }
    if let Some(policer) = &outlet.policer {
        let refused = policer.refused(batch, now);
        if refused != 0 {
            let mut refused = take(batch, refused);
            refuse(observers.0, outlet, &mut refused, DropReason::EgressPolicer, now, counters, worker);
        }
    }
    if !batch.is_empty() {
        show_sent(observers.0, batch, outlet.port.no, now);
        outlet.transmit(batch, counters, observers.1, now);
    }
}

/// Transmits what may leave a backlog now.
fn release_backlog(observers: Observers, outlet: &mut Outlet, now: Time, counters: &WorkerCounters, worker: usize) {
    let Outlet { policer, backlog: Some(backlog), port, transmitter } = outlet else { return };
    let Some(shaper) = policer.as_deref().and_then(EgressPolicer::shaper).filter(|_| !backlog.is_empty()) else {
        return;
    };
    if !port.is_up() {
        return drop_backlog(observers.0, outlet, now, counters, worker);
    }
    let (mut batch, mut are_more) = (Batch::new(), true);
    while are_more {
        backlog.release(shaper, now, &mut batch);
        are_more = batch.is_full();
        if !batch.is_empty() {
            show_sent(observers.0, &batch, port.no, now);
            transmitter.transmit(port, &mut batch, counters, observers.1, now);
        }
    }
}

/// Drops what waits for the rate of a port that it cannot be sent to any more.
#[cold]
fn drop_backlog(taps: &Option<Box<Taps>>, outlet: &mut Outlet, now: Time, counters: &WorkerCounters, worker: usize) {
    let mut batch = Batch::new();
    while let Some(backlog) = &mut outlet.backlog {
        backlog.drain(&mut batch);
        if batch.is_empty() {
            return;
        }
        refuse(taps, outlet, &mut batch, DropReason::PortDown, now, counters, worker);
    }
}

/// Drops packets at a port. By now it is not known any more which flow sent them.
fn refuse(
    taps: &Option<Box<Taps>>,
    outlet: &Outlet,
    batch: &mut Batch,
    reason: DropReason,
    now: Time,
    counters: &WorkerCounters,
    worker: usize,
) {
    if batch.is_empty() {
        return;
    }
    if let Some(taps) = taps {
        taps.show_dropped(batch, reason, outlet.port.no, FlowRef::NONE, now);
    }
    counters.drops.add(reason, batch.len() as u64);
    outlet.port.drops[worker].add(reason, batch.len() as u64);
    packet::buffer::release(batch);
}

impl Outlet {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch, counters: &WorkerCounters, perf: &Option<Arc<PerfMetrics>>, now: Time) {
        self.transmitter.transmit(&self.port, batch, counters, perf, now);
    }
}

impl Transmitter {
    #[inline]
    fn transmit(
        &mut self,
        port: &DpPort,
        batch: &mut Batch,
        counters: &WorkerCounters,
        perf: &Option<Arc<PerfMetrics>>,
        now: Time,
    ) {
        if port.gains_by_super_frames() {
            self.joining.join(batch, counters);
        }
        let count = batch.len();
        if let Some(perf) = perf {
            perf.add(Metric::TransmitBatch, count as u64);
        }
        let packets = self.queue.transmit(batch, now).min(count);
        debug_assert!(batch.is_empty(), "transmit leaves nothing (contract of TxQueue)");
        batch.clear();
        counters.batches_sent.add(1);
        counters.sent.add(packets as u64);
        if packets < count {
            counters.refused.add((count - packets) as u64);
        }
    }
}

/// Of a frame longer than `max_frame`: whether it is too big. It is not if the excess is VLAN tags only, or if it
/// will be segmented.
#[cold]
fn is_too_big(packet: &Packet, max_frame: usize) -> bool {
    let tag_at = |at: usize| matches!(packet.data().get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8]));
    let tags = if !tag_at(12) { 0 } else { 1 + usize::from(tag_at(16)) };
    !packet.offload().is_gso() && packet.len() > max_frame + tags * TAG
}
