//! Ingress stages: optional stages between reception and classification, before anything is parsed. There is one: a filter.
//!
//! A receive queue has none by default. `Rx::ingress` is `None` then, which is checked
//! once for each batch: the compiled loop has a comparison and a branch for it, and no call.

use std::sync::Arc;

use packet::{Batch, Packet, Time};
use ports::Port;

use crate::action::PortNo;
use crate::classify::bits;
use crate::drop::DropReason;
use crate::pipeline::batch::all;
use crate::pipeline::tx::Outputs;

/// Decides which packets go on to classification.
pub trait Filter: Send {
    /// The packets that do not go on, as a set: bit `i` stands for `packets[i]`.
    fn refused(&mut self, packets: &[Packet], now: Time) -> u32;
}

/// The optional stages of a receive queue.
#[derive(Default)]
pub struct Ingress {
    /// Refuses packets: [`DropReason::IngressFilter`].
    pub filter: Option<Box<dyn Filter>>,
}

/// Makes the optional stages of receive queues that come into being: of which port, and the queue's number. `None`: none.
/// Called with the ports locked, so it must not manage ports.
pub type IngressSource = Arc<dyn Fn(&dyn Port, usize) -> Option<Box<Ingress>> + Send + Sync>;

impl Ingress {
    /// Passes a received batch through the stages, and retires the packets that the filter refuses.
    #[inline(never)]
    pub(crate) fn apply(&mut self, packets: &mut Batch, outputs: &Outputs, in_port: PortNo, now: Time) {
        let Some(filter) = &mut self.filter else { return };
        let refused = filter.refused(packets, now);
        if refused == 0 {
            return;
        }
        if refused == all(packets.len()) {
            return outputs.retire_batch(packets, DropReason::IngressFilter, in_port);
        }
        // Those that go on move to the front, in their order, and the others are freed together.
        let mut kept = 0;
        for i in bits(!refused & all(packets.len())) {
            packets.swap(kept, i);
            kept += 1;
        }
        outputs.retire_batch(&mut packets.drain(kept..).collect(), DropReason::IngressFilter, in_port);
    }
}
