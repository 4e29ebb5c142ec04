//! Transmit steering by hash (`tx-steering=hash`): a worker sends to all transmit queues of a port instead of its own one,
//! and a connection's hash selects the queue. It is for guests and devices with more queues than there are workers, of which
//! the others would get nothing. The price is a lock for each burst, and reading the headers again.
//!
//! Packets of a connection that one worker sends stay in order: they go by the same queue.

use std::sync::Arc;

use packet::flow::{VlanLimit, extract};
use packet::{Batch, Key, Time};
use ports::TxQueue;

use crate::action::HashAlgorithm;
use crate::actions::flow_hash::flow_hash;
use crate::pipeline::port::SharedQueue;

/// All transmit queues of a port, as one worker sends by them.
pub struct Steered {
    queues: Arc<[SharedQueue]>,
    /// What of a burst is for each queue. Empty between bursts.
    parts: Box<[Batch]>,
    key: Key,
}

impl Steered {
    /// There is one queue at least.
    pub fn new(queues: Arc<[SharedQueue]>) -> Steered {
        let parts = queues.iter().map(|_| Batch::new()).collect();
        Steered { queues, parts, key: Key::new() }
    }

    fn queue_of(&mut self, frame: &[u8]) -> usize {
        self.key.reset();
        extract(frame, &mut self.key, VlanLimit::default());
        // The upper bits as a fraction of all values.
        let hash = u64::from(flow_hash(HashAlgorithm::L4, &self.key, 0));
        ((hash * self.queues.len() as u64) >> 32) as usize
    }
}

impl TxQueue for Steered {
    fn transmit(&mut self, batch: &mut Batch, now: Time) -> usize {
        if let [queue] = &*self.queues {
            return queue.lock().transmit(batch, now);
        }
        for packet in batch.drain(..) {
            let queue = self.queue_of(packet.data());
            self.parts[queue].push(packet);
        }
        let used = self.queues.iter().zip(&mut self.parts).filter(|(_, part)| !part.is_empty());
        used.map(|(queue, part)| queue.lock().transmit(part, now)).sum()
    }

    fn housekeep(&mut self, now: Time) {
        for queue in &*self.queues {
            // A worker that holds the lock is transmitting, which reaps as well.
            if let Some(mut queue) = queue.try_lock() {
                queue.housekeep(now);
            }
        }
    }

    fn needs_housekeeping(&self) -> bool {
        self.queues.iter().any(|queue| queue.lock().needs_housekeeping())
    }
}

#[cfg(test)]
mod tests {
    use packet::Packet;
    use packet::flow::compose;
    use packet::flow::text::NoNames;
    use parking_lot::Mutex;

    use super::*;

    /// Keeps what is sent, and takes half of each burst.
    struct Recorder(Arc<Mutex<Vec<Vec<u8>>>>);

    impl TxQueue for Recorder {
        fn transmit(&mut self, batch: &mut Batch, _: Time) -> usize {
            let taken = batch.len() / 2;
            self.0.lock().extend(batch.drain(..).map(|packet: Packet| packet.data().to_vec()));
            taken
        }
    }

    /// UDP packets from one port each, with a number at the end.
    fn frame(port: u16, number: u8) -> Packet {
        let text = format!(
            "eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),\
             ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,ttl=64),udp(src={port},dst=53)"
        );
        let mut bytes = compose(&crate::text::parse_key(&text, &NoNames).unwrap().0, &[]);
        bytes.push(number);
        Packet::from_slice(&bytes)
    }

    #[test]
    fn connections_are_spread_and_stay_in_order() {
        let sent: Vec<Arc<Mutex<Vec<Vec<u8>>>>> = (0..3).map(|_| Arc::default()).collect();
        let queue = |sent: &Arc<_>| Arc::new(Mutex::new(Box::new(Recorder(Arc::clone(sent))) as Box<dyn TxQueue>));
        let queues: Arc<[SharedQueue]> = sent.iter().map(queue).collect();
        // Two workers that send by the same queues.
        let mut workers = [Steered::new(queues.clone()), Steered::new(queues)];
        let mut taken = 0;
        for round in 0..6 {
            let mut batch = Batch::new();
            (0..30).for_each(|port| batch.push(frame(port, round)));
            taken += workers[usize::from(round % 2)].transmit(&mut batch, Time(1));
            assert!(batch.is_empty());
        }
        let sent: Vec<_> = sent.iter().map(|sent| sent.lock().clone()).collect();
        assert_eq!(sent.iter().map(Vec::len).sum::<usize>(), 180);
        assert!((80..=90).contains(&taken), "what the queues took: {taken}");
        for sent in &sent {
            assert!((30..=90).contains(&sent.len()), "each has a share: {}", sent.len());
        }
        for port in 0..30u16 {
            let of_port = |sent: &Vec<Vec<u8>>| {
                let ours = sent.iter().filter(|frame| frame[34..36] == port.to_be_bytes());
                ours.map(|frame| frame[frame.len() - 1]).collect::<Vec<_>>()
            };
            let mut used: Vec<_> = sent.iter().map(of_port).filter(|numbers| !numbers.is_empty()).collect();
            assert_eq!(used.pop(), Some((0..6).collect()), "one queue has them all, in order");
            assert!(used.is_empty());
        }
    }
}
