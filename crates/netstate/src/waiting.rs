//! Packets that wait until the MAC address of their next hop is known.
//!
//! The first one makes the next hop be asked for; that is repeated every second. Who does not answer three times has none, and the packets
//! are given up. So many packets wait for one next hop, and so many in all; for others there is no room, and they are given back.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use weir_time::Time;

/// Time between two questions for a next hop, as in Linux.
pub const RETRY: Duration = Duration::from_secs(1);
/// How often a next hop is asked for.
pub const QUESTIONS: u8 = 3;

/// A next hop: the bridge, and the address.
pub type NextHop = (Box<str>, IpAddr);

/// What has become of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed<T> {
    /// It waits, and the next hop is to be asked for now.
    Ask,
    /// It waits.
    Waits,
    /// There is no room for it.
    NoRoom(T),
}

#[derive(Debug)]
struct Queue<T> {
    packets: VecDeque<T>,
    asked: Time,
    questions: u8,
}

/// All packets that wait.
#[derive(Debug)]
pub struct Waiting<T> {
    queues: HashMap<NextHop, Queue<T>>,
    len: usize,
    limit: usize,
    limit_of_one: usize,
}

/// What is to be done after some time.
#[derive(Debug)]
pub struct Due<T> {
    /// Next hops to be asked for again.
    pub ask: Vec<NextHop>,
    /// Packets that are given up.
    pub given_up: Vec<T>,
}

impl<T> Waiting<T> {
    /// None yet. At most `limit` packets, and `limit_of_one` for each next hop.
    pub fn new(limit: usize, limit_of_one: usize) -> Waiting<T> {
        Waiting { queues: HashMap::new(), len: 0, limit, limit_of_one }
    }

    /// How many packets wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A packet has to wait.
    pub fn push(&mut self, bridge: &str, ip: IpAddr, packet: T, now: Time) -> Pushed<T> {
        if self.len >= self.limit || self.limit_of_one == 0 {
            return Pushed::NoRoom(packet);
        }
        let key = (Box::from(bridge), ip);
        let Some(queue) = self.queues.get_mut(&key) else {
            self.len += 1;
            self.queues.insert(key, Queue { packets: [packet].into(), asked: now, questions: 1 });
            return Pushed::Ask;
        };
        if queue.packets.len() >= self.limit_of_one {
            return Pushed::NoRoom(packet);
        }
        queue.packets.push_back(packet);
        self.len += 1;
        Pushed::Waits
    }

    /// The first packet that waits for each next hop.
    pub fn heads(&self) -> impl Iterator<Item = &T> {
        self.queues.values().filter_map(|queue| queue.packets.front())
    }

    /// The first packet that waits for a next hop.
    pub fn first(&self, bridge: &str, ip: IpAddr) -> Option<&T> {
        self.queues.get(&(Box::from(bridge), ip))?.packets.front()
    }

    /// The packets of a next hop whose address is known now, in the order in which they came.
    pub fn take(&mut self, bridge: &str, ip: IpAddr) -> impl Iterator<Item = T> + use<T> {
        let packets = self.queues.remove(&(Box::from(bridge), ip)).map(|queue| queue.packets).unwrap_or_default();
        self.len -= packets.len();
        packets.into_iter()
    }

    /// What is to be done now. To be called every tenth of a second or so.
    pub fn due(&mut self, now: Time) -> Due<T> {
        let mut due = Due { ask: Vec::new(), given_up: Vec::new() };
        self.queues.retain(|next_hop, queue| {
            if now < queue.asked + RETRY {
                return true;
            }
            if queue.questions == QUESTIONS {
                due.given_up.extend(queue.packets.drain(..));
                return false;
            }
            (queue.asked, queue.questions) = (now, queue.questions + 1);
            due.ask.push(next_hop.clone());
            true
        });
        self.len -= due.given_up.len();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(tenths: u64) -> Time {
        Time(tenths * 100_000_000)
    }

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn packets_wait_until_their_next_hop_answers() {
        let mut waiting = Waiting::new(10, 3);
        let pushed = [1, 2, 3, 4].map(|packet| waiting.push("br0", A, packet, at(0)));
        assert_eq!(pushed, [Pushed::Ask, Pushed::Waits, Pushed::Waits, Pushed::NoRoom(4)]);
        assert_eq!(waiting.push("br0", B, 5, at(5)), Pushed::Ask);
        assert_eq!(waiting.push("br1", A, 6, at(5)), Pushed::Ask, "another bridge");
        assert_eq!(waiting.take("br0", A).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((waiting.take("br0", A).count(), waiting.len()), (0, 2));
        assert_eq!(waiting.push("br0", A, 7, at(6)), Pushed::Ask, "it is asked for again");
    }

    #[test]
    fn who_does_not_answer_three_times_has_no_packets() {
        let mut waiting = Waiting::new(10, 3);
        waiting.push("br0", A, 1, at(0));
        let mut questions = 1;
        for tenths in 0..30 {
            let due = waiting.due(at(tenths));
            questions += due.ask.len();
            assert!(due.given_up.is_empty(), "after {tenths} tenths");
        }
        assert_eq!((questions, waiting.due(at(30)).given_up, waiting.is_empty()), (3, vec![1], true));
    }

    proptest! {
        /// None is lost, and there are never more than there may be.
        #[test]
        fn every_packet_comes_out_once(steps in prop::collection::vec((0u8..4, 0u8..3, 0u64..12), 0..200)) {
            let mut waiting = Waiting::new(7, 3);
            let (mut now, mut out, mut pushed) = (0, Vec::new(), 0);
            for (what, hop, pass) in steps {
                now += pass;
                let ip = IpAddr::from([192, 0, 2, hop]);
                match what {
                    0 => out.extend(waiting.take("br0", ip)),
                    1 => out.extend(waiting.due(at(now)).given_up),
                    _ => {
                        if let Pushed::NoRoom(packet) = waiting.push("br0", ip, pushed, at(now)) {
                            prop_assert!(waiting.len() >= 3);
                            out.push(packet);
                        }
                        pushed += 1;
                    }
                }
                prop_assert!(waiting.len() <= 7 && waiting.len() + out.len() == pushed);
            }
            out.sort_unstable();
            out.dedup();
            prop_assert_eq!(waiting.len() + out.len(), pushed);
        }
    }
}
