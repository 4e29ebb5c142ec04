//! The readers' ends of the rings of all workers.

use super::ring::{Consumer, Header};

/// How many records of one worker are read before those of the next.
const TURN: usize = 32;

/// After how many records a call ends in any case, so that its caller can look around.
const MOST_READ: usize = 1 << 14;

/// The ends of the rings that one reader reads.
#[derive(Default)]
pub struct Rings {
    consumers: Vec<Consumer>,
    /// Records that found no room in rings that are gone.
    lost: u64,
    /// The bytes of the record that is being read.
    data: Vec<u8>,
}

impl Rings {
    /// Adds a worker's ring.
    pub fn add(&mut self, consumer: Consumer) {
        self.consumers.push(consumer);
    }

    /// Calls `each` with the header and the bytes of what workers have written, as long as it says to go on. Workers take turns. Rings whose
    /// worker has gone are dropped when they are empty. Returns how many records there were.
    pub fn read(&mut self, mut each: impl FnMut(Header, &[u8]) -> bool) -> usize {
        let Rings { consumers, lost, data } = self;
        let mut count = 0;
        // The worker that had its turn first has it last the next time.
        if !consumers.is_empty() {
            consumers.rotate_left(1);
        }
        'read: loop {
            let before = count;
            for consumer in consumers.iter_mut() {
                for _ in 0..TURN {
                    let Some(header) = consumer.pop(data) else { break };
                    count += 1;
                    if !each(header, data) {
                        break 'read;
                    }
                }
            }
            if count == before || count >= MOST_READ {
                break;
            }
        }
        consumers.retain(|consumer| {
            let finished = consumer.is_finished();
            *lost += if finished { consumer.lost() } else { 0 };
            !finished
        });
        count
    }

    /// How many records have found no room since the start.
    pub fn lost(&self) -> u64 {
        self.lost + self.consumers.iter().map(Consumer::lost).sum::<u64>()
    }

    /// Whether there are no rings.
    #[cfg(all(test, not(loom)))]
    pub fn is_empty(&self) -> bool {
        self.consumers.is_empty()
    }
}
