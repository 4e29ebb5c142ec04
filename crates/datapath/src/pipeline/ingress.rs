//! Optional stages between reception and classification, before anything is parsed.
//!
//! A receive queue has none of them unless somebody has put them there: [`Rx::ingress`](crate::worker::rx_queue::Rx) is
//! `None`, which is looked at once for a batch. The compiled loop has a test and a branch for that, and no call.

use packet::{Batch, Packet, Time};

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::pipeline::tx::Outputs;

/// Sees packets where they pass.
pub trait Tap: Send {
    /// These have come in, or are about to leave. They stay as they are.
    fn see(&mut self, packets: &[Packet], now: Time);
}

/// Decides which packets go on to classification.
pub trait Filter: Send {
    /// Those that do not, as a set: bit `i` is of `packets[i]`.
    fn refused(&mut self, packets: &[Packet], now: Time) -> u32;
}

/// The optional stages of a receive queue, in the order in which packets come to them.
#[derive(Default)]
pub struct Ingress {
    /// Sees all that is received.
    pub tap: Option<Box<dyn Tap>>,
    /// Refuses packets: [`DropReason::IngressFilter`].
    pub filter: Option<Box<dyn Filter>>,
}

impl Ingress {
    /// Has the stages see a batch that came in on a port, and retires what they refuse.
    #[inline(never)]
    pub(crate) fn apply(&mut self, packets: &mut Batch, outputs: &Outputs, in_port: PortNo, now: Time) {
        if let Some(tap) = &mut self.tap {
            tap.see(packets, now);
        }
        let Some(filter) = &mut self.filter else { return };
        let refused = filter.refused(packets, now);
        if refused == 0 {
            return;
        }
        let (mut i, before) = (0, packets.len());
        packets.retain(|_| {
            i += 1;
            refused >> (i - 1) & 1 == 0
        });
        outputs.count_drops((before - packets.len()) as u64, DropReason::IngressFilter, in_port);
    }
}
