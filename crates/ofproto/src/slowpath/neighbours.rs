//! Neighbours below tunnels: packets that wait until the address of one is known, and frames that tell such addresses.
//!
//! A translation that meets a neighbour whose address is not known sends the packet up ([`Punt::Unresolved`]) with the pipeline that is
//! to go on. The packet waits here, and the neighbour is asked for through the bridge of the underlay. What tells addresses
//! ([`Punt::Neighbour`]), the kernel and operators make the address known; then the packet's pipeline goes on.
//!
//! [`Punt::Unresolved`]: datapath::Punt::Unresolved
//! [`Punt::Neighbour`]: datapath::Punt::Neighbour

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use datapath::Action as DpAction;
use netstate::neighbours::{Mac, Told};
use netstate::resolution;
use netstate::waiting::Pushed;
use openflow::{Action, OfPort};
use packet::{Key, Packet, Time};

use crate::model::forwarding::BridgeId;
use crate::model::underlay::Question;
use crate::slowpath::neighbour_waits::Waits;
use crate::switch::Switch;
use crate::xlate::{Input, LookUp};

/// After so many hops, the next ones are looked at without a rest.
const FEW_HOPS: usize = 512;

impl Switch {
    /// Says that routes or neighbours have changed. Flows that depend on what comes out otherwise are translated again, and packets that
    /// wait for neighbours go on: by the thread that calls [`run`](Switch::run), if there is one.
    pub fn netstate_changed(&self) {
        self.underlay.set_changed();
        if self.has_revalidator() {
            self.notify();
        } else {
            self.follow_underlay(self.clock.now());
        }
    }

    /// Packets that were given up because a neighbour below a tunnel did not answer, or too many waited.
    pub fn neighbour_drops(&self) -> u64 {
        self.neighbour_waits.dropped.load(Relaxed)
    }

    /// Does what a change of routes or neighbours asks for, and asks again for neighbours that have not answered.
    pub(crate) fn follow_underlay(&self, now: Time) {
        let is_due = self.underlay.next_refresh(now) == Some(now);
        let began = self.clock.now();
        if let Some(refreshed) = is_due.then(|| self.underlay.refresh(now)).flatten() {
            // Few take no time that others would miss, however long the thread had to wait for a processor.
            if refreshed.looked_at > FEW_HOPS {
                let ended = self.clock.now();
                self.underlay.rest(ended, ended.since(began));
            }
            if refreshed.some_are_stale {
                self.forwarding.write().touch_hops();
            }
            self.let_known_go_on(now);
        }
        let mut waiting = self.neighbour_waits.waiting.lock();
        if waiting.is_empty() {
            return;
        }
        let due = waiting.due(now);
        let ask: Vec<_> =
            due.ask.iter().filter_map(|(name, ip)| Some(waiting.first(name, *ip)?.question.clone())).collect();
        drop(waiting);
        self.neighbour_waits.dropped.fetch_add(due.given_up.len() as u64, Relaxed);
        ask.iter().for_each(|question| self.ask(question));
    }

    /// A packet cannot go on before an address is known.
    pub(crate) fn unresolved(&self, packet: &Packet, key: &Key, question: u32, continuation: u32, now: Time) {
        let (question, pipeline) = (self.interners.questions.get(question), self.interners.frozen.get(continuation));
        // The flow that sent it up was removed.
        let (Some(question), Some(pipeline)) = (question, pipeline) else {
            self.neighbour_waits.dropped.fetch_add(1, Relaxed);
            return;
        };
        let waits = Waits {
            packet: Packet::from_slice(packet.data()),
            key: Box::new(key.clone()),
            continuation: (continuation, pipeline),
            question: question.clone(),
        };
        let mut waiting = self.neighbour_waits.waiting.lock();
        // With the lock held: whoever makes it known looks here afterwards.
        if self.knows(&question, now) {
            drop(waiting);
            return self.go_on(waits);
        }
        match waiting.push(&question.name, question.neighbour, waits, now) {
            Pushed::Waits => {}
            Pushed::NoRoom(_) => {
                self.neighbour_waits.dropped.fetch_add(1, Relaxed);
            }
            Pushed::Ask => {
                drop(waiting);
                self.ask(&question);
            }
        }
    }

    /// A frame may tell the address of a neighbour.
    pub(crate) fn listen(&self, packet: &Packet, bridge: BridgeId, now: Time) {
        let Some((ip, mac)) = resolution::told_by(packet.data()) else { return };
        let name = self.forwarding.read().bridges.get(&bridge).map(|bridge| bridge.config.name.clone());
        let Some(name) = name else { return };
        let mut neighbours = self.underlay.netstate.neighbours.lock();
        let before = neighbours.generation();
        neighbours.set(&name, ip, mac, Told::Heard, now);
        let is_new = neighbours.generation() != before;
        drop(neighbours);
        if is_new {
            self.netstate_changed();
        }
    }

    /// Packets of tunnels have come from neighbours. Where one was heard of before, it has this address from now on, as in OVS.
    pub(crate) fn see_neighbours(&self, seen: &[(BridgeId, IpAddr, Mac)], now: Time) {
        if seen.is_empty() {
            return;
        }
        let forwarding = self.forwarding.read();
        let mut neighbours = self.underlay.netstate.neighbours.lock();
        let before = neighbours.generation();
        for (bridge, ip, mac) in seen {
            if let Some(bridge) = forwarding.bridges.get(bridge) {
                neighbours.see(&bridge.config.name, *ip, *mac, now);
            }
        }
        let changed = neighbours.generation() != before;
        drop((neighbours, forwarding));
        if changed {
            self.netstate_changed();
        }
    }

    fn knows(&self, question: &Question, now: Time) -> bool {
        let Question { name, device, neighbour, .. } = question;
        self.underlay.neighbour(Some(name), device, *neighbour, now).is_some()
    }

    /// Lets the packets go on that wait for neighbours which are known now.
    fn let_known_go_on(&self, now: Time) {
        let mut waiting = self.neighbour_waits.waiting.lock();
        let known = waiting.heads().filter(|waits| self.knows(&waits.question, now));
        let known: Vec<_> = known.map(|waits| waits.question.clone()).collect();
        let packets: Vec<_> =
            known.iter().flat_map(|question| waiting.take(&question.name, question.neighbour)).collect();
        drop(waiting);
        packets.into_iter().for_each(|waits| self.go_on(waits));
    }

    fn go_on(&self, waits: Waits) {
        let Waits { packet, key, continuation: (id, _pipeline), .. } = waits;
        if let Some(datapath) = self.datapath.get() {
            datapath.execute(packet, &key, &[DpAction::Recirc(id)]);
        }
    }

    /// Sends a question, as a packet that the bridge has received from the device that asks.
    fn ask(&self, question: &Question) {
        let Some(frame) = resolution::question(question.mac, question.source, question.neighbour) else { return };
        let packet = Packet::from_slice(&frame);
        let mut key = Key::new();
        packet::flow::extract(packet.data(), &mut key, self.settings().vlan_limit);
        key.common_mut().in_port = question.port.0.into();
        let actions = [Action::Output { port: OfPort::TABLE, max_len: 0 }];
        let (bridge, now) = (question.bridge, self.clock.now());
        self.execute(
            packet,
            &Input {
                key: &key,
                bridge,
                frozen: None,
                packet_out: Some(&actions),
                learning: None,
                now,
                bytes: None,
                look_up: LookUp::Classifier,
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use packet::Clock;

    use crate::reference::tests::Bed;

    #[test]
    fn routes_that_change_are_followed_when_it_is_time() {
        let bed = Bed::new(1);
        let (took, now) = (Duration::from_secs(2), bed.clock.now());
        bed.switch.underlay.rest(now, took);
        bed.switch.netstate_changed();
        bed.switch.run(now);
        assert_eq!(bed.switch.underlay.next_refresh(now), Some(now + took));
        bed.clock.advance(took);
        bed.switch.run(now + took);
        assert_eq!(bed.switch.underlay.next_refresh(now + took), None);
    }
}
