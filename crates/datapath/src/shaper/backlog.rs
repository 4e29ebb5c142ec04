//! The packets of one worker that wait for a port, by queue.
//!
//! Their number is limited, since their buffers are those that ports receive into. A queue holds [`QUEUE`] units, all queues of a port
//! with a worker [`PORT`], and all ports of the process [`PROCESS`]; a unit is a packet of up to 2 KiB, and a longer one counts as several. The
//! first [`FREE`] packets of a queue find room in any case, so that nobody else's backlog keeps a queue from being served. All memory
//! is allocated with the backlog.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use packet::{Batch, Offload, Packet, Time};

use super::{Refused, ShapedQueue, Shaper};
use crate::bucket::FULL_FRAME;

/// Most units of a queue.
const QUEUE: usize = 1000;
/// Most units of all queues.
const PORT: usize = 2048;
/// Most units of all ports.
const PROCESS: usize = 8192;
/// Packets of a queue that the other limits do not keep out.
const FREE: usize = 4;
/// How long queues of which none may send are left alone, for each of them: a worker has other work.
const PAUSE: Duration = Duration::from_nanos(200);
/// With so many queues, those to which packets come meanwhile are not left alone.
const FEW: usize = 64;
/// No place.
const NONE: u32 = u32::MAX;

/// Units of all ports.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A place for a packet.
#[derive(Debug)]
struct Place {
    packet: Option<Packet>,
    next: u32,
}

/// The packets of a queue: a list of places.
#[derive(Debug)]
struct List {
    first: u32,
    last: u32,
    packets: usize,
    units: usize,
    /// Bytes that it may still send in this round.
    deficit: i64,
    /// Where its priority is.
    group: usize,
}

/// The packets that wait.
#[derive(Debug)]
pub struct Backlog {
    places: Box<[Place]>,
    free: u32,
    lists: Box<[List]>,
    /// Queues that have packets, by priority, in the order of the round.
    groups: Box<[VecDeque<u32>]>,
    packets: usize,
    units: usize,
    /// The units of all backlogs, and how many of them are of this one.
    others: &'static AtomicUsize,
    told: usize,
    /// Not before this time are the queues gone through again.
    paused_until: Time,
}

fn units(packet: &Packet) -> usize {
    1 + packet.len() / 2048
}

/// Bytes that a packet has when it is sent: a super-frame will have its headers once for each segment.
pub(super) fn on_wire(packet: &Packet) -> u64 {
    let (offload, len) = (packet.offload(), packet.len());
    if !offload.is_gso() || offload.gso_size == 0 {
        return len as u64;
    }
    let l4 = usize::from(offload.csum_start);
    let of_l4 = match offload.gso_type & !Offload::GSO_ECN {
        Offload::GSO_TCPV4 | Offload::GSO_TCPV6 => {
            packet.data().get(l4 + 12).map_or(20, |byte| usize::from(byte >> 4) * 4)
        }
        _ => 8,
    };
    let headers = (l4 + of_l4).min(len);
    let segments = (len - headers).div_ceil(offload.gso_size.into()).max(1);
    (len + (segments - 1) * headers) as u64
}

impl Backlog {
    /// An empty one for the queues of a shaper.
    pub fn new(shaper: &Shaper) -> Backlog {
        Backlog::beside(shaper, &WAITING)
    }

    /// An empty one; `others` has the units of all that it shares the limit of the process with.
    pub(super) fn beside(shaper: &Shaper, others: &'static AtomicUsize) -> Backlog {
        let queues = shaper.queues.len();
        let count = PORT + FREE * queues;
        let place = |at: usize| Place { packet: None, next: if at + 1 < count { at as u32 + 1 } else { NONE } };
        let group = |queue: &ShapedQueue| shaper.priorities.binary_search(&queue.rates.priority).unwrap_or(0);
        let list = |group| List { first: NONE, last: NONE, packets: 0, units: 0, deficit: 0, group };
        let lists: Box<[List]> = shaper.queues.iter().map(|queue| list(group(queue))).collect();
        let members = |group| lists.iter().filter(|list| list.group == group).count();
        Backlog {
            places: (0..count).map(place).collect(),
            free: 0,
            groups: (0..shaper.priorities.len()).map(|group| VecDeque::with_capacity(members(group))).collect(),
            lists,
            packets: 0,
            units: 0,
            others,
            told: 0,
            paused_until: Time(0),
        }
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Adds packets to their queues. Those that find no room are left in the batch.
    pub fn add(&mut self, shaper: &Shaper, batch: &mut Batch) {
        let elsewhere = self.others.load(Relaxed).saturating_sub(self.told);
        let mut refused = Batch::new();
        for packet in batch.drain(..) {
            let queue = shaper.queue_for(packet.queue());
            match self.place_for(queue, units(&packet), elsewhere) {
                Some(place) => self.append(queue, place, packet),
                None => {
                    shaper.queues[queue].counters.dropped.fetch_add(1, Relaxed);
                    refused.push(packet);
                }
            }
        }
        *batch = refused;
    }

    /// A free place for a packet of a queue, if it may have one.
    fn place_for(&self, queue: usize, units: usize, elsewhere: usize) -> Option<u32> {
        let list = &self.lists[queue];
        let has_room =
            list.units + units <= QUEUE && self.units + units <= PORT && elsewhere + self.units + units <= PROCESS;
        ((list.packets < FREE || has_room) && self.free != NONE).then_some(self.free)
    }

    fn append(&mut self, queue: usize, place: u32, packet: Packet) {
        let (list, units) = (&mut self.lists[queue], units(&packet));
        self.free =
            std::mem::replace(&mut self.places[place as usize], Place { packet: Some(packet), next: NONE }).next;
        if list.packets == 0 {
            list.first = place;
            self.groups[list.group].push_back(queue as u32);
            if self.groups.iter().map(VecDeque::len).sum::<usize>() <= FEW {
                self.paused_until = Time(0);
            }
        } else {
            self.places[list.last as usize].next = place;
        }
        list.last = place;
        (list.packets, list.units) = (list.packets + 1, list.units + units);
        (self.packets, self.units) = (self.packets + 1, self.units + units);
    }

    /// Takes the first packet of a queue.
    fn take(&mut self, queue: usize) -> Option<Packet> {
        let list = &mut self.lists[queue];
        let at = list.first;
        let place = self.places.get_mut(at as usize)?;
        let packet = place.packet.take()?;
        list.first = std::mem::replace(&mut place.next, self.free);
        self.free = at;
        let units = units(&packet);
        (list.packets, list.units) = (list.packets - 1, list.units - units);
        (self.packets, self.units) = (self.packets - 1, self.units - units);
        Some(packet)
    }

    /// Bytes of the first packet of a queue.
    fn first_len(&self, queue: usize) -> Option<u64> {
        let place = self.places.get(self.lists[queue].first as usize)?;
        place.packet.as_ref().map(on_wire)
    }

    /// Sends the first packet of a queue.
    fn send(&mut self, shaper: &Shaper, queue: usize, out: &mut Batch) {
        let Some(packet) = self.take(queue) else { return };
        let counters = &shaper.queues[queue].counters;
        counters.packets.fetch_add(1, Relaxed);
        counters.bytes.fetch_add(on_wire(&packet), Relaxed);
        out.push(packet);
    }

    /// Moves packets that may leave now to `out`, as far as there is room in it. Where it is not full then, the others are for later.
    pub fn release(&mut self, shaper: &Shaper, now: Time, out: &mut Batch) {
        if self.packets > 0 && now >= self.paused_until {
            self.release_guaranteed(shaper, now, out);
            if !out.is_full() {
                self.release_surplus(shaper, now, out);
            }
            if !out.is_full() {
                self.paused_until = now + PAUSE * self.waiting_queues() as u32;
            }
        }
        self.tell();
    }

    /// How many queues have packets.
    fn waiting_queues(&self) -> usize {
        self.groups.iter().map(VecDeque::len).sum()
    }

    /// Whatever the others do.
    fn release_guaranteed(&mut self, shaper: &Shaper, now: Time, out: &mut Batch) {
        for group in 0..self.groups.len() {
            for _ in 0..self.groups[group].len() {
                let Some(queue) = self.groups[group].pop_front() else { break };
                let rates = &shaper.queues[queue as usize];
                while !out.is_full()
                    && let Some(bytes) = self.first_len(queue as usize)
                    && rates.try_take_guaranteed(&shaper.port, bytes, now)
                {
                    self.send(shaper, queue as usize, out);
                }
                self.return_to_round(group, queue);
                if out.is_full() {
                    return;
                }
            }
        }
    }

    /// What the guarantees leave over.
    fn release_surplus(&mut self, shaper: &Shaper, now: Time, out: &mut Batch) {
        for group in 0..self.groups.len() {
            // Queues that have sent nothing, one after the other. A queue in debt gets one round's bytes, so that the work for the others does not
            // depend on how deep it is in debt.
            let mut idle = 0;
            while idle < self.groups[group].len() {
                let Some(queue) = self.groups[group].pop_front() else { break };
                let at = queue as usize;
                let rates = &shaper.queues[at];
                if self.lists[at].deficit <= 0 {
                    self.lists[at].deficit += (rates.frames * FULL_FRAME) as i64;
                }
                idle += 1;
                while self.lists[at].deficit > 0
                    && !out.is_full()
                    && let Some(bytes) = self.first_len(at)
                {
                    match rates.try_take(&shaper.port, bytes, now) {
                        Ok(()) => {}
                        Err(Refused::ByQueue) => break,
                        Err(Refused::ByPort) => {
                            self.groups[group].push_front(queue);
                            return;
                        }
                    }
                    idle = 0;
                    self.lists[at].deficit -= bytes as i64;
                    self.send(shaper, at, out);
                }
                if out.is_full() && self.lists[at].packets > 0 {
                    // Its turn is not over.
                    self.groups[group].push_front(queue);
                } else {
                    self.return_to_round(group, queue);
                }
                if out.is_full() {
                    return;
                }
            }
        }
    }

    /// Puts a queue at the end of the round, if it has packets.
    fn return_to_round(&mut self, group: usize, queue: u32) {
        let list = &mut self.lists[queue as usize];
        if list.packets > 0 {
            self.groups[group].push_back(queue);
        } else {
            list.deficit = 0;
        }
    }

    /// Takes packets out, whatever the rates say, in the order of their queues, as far as there is room for them.
    pub fn drain(&mut self, out: &mut Batch) {
        for group in 0..self.groups.len() {
            while !out.is_full()
                && let Some(&queue) = self.groups[group].front()
            {
                match self.take(queue as usize) {
                    Some(packet) => out.push(packet),
                    None => drop(self.groups[group].pop_front()),
                }
            }
        }
        self.tell();
    }

    /// Tells the others how much is here.
    fn tell(&mut self) {
        if self.units > self.told {
            self.others.fetch_add(self.units - self.told, Relaxed);
        } else if self.units < self.told {
            self.others.fetch_sub(self.told - self.units, Relaxed);
        }
        self.told = self.units;
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.others.fetch_sub(self.told, Relaxed);
    }
}
