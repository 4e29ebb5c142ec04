//! Ingress stages: optional stages between reception and classification, before anything is parsed: a filter, and a policer
//! behind it.
//!
//! A receive queue has none by default. `Rx::ingress` is `None` then, which is checked
//! once for each batch: the compiled loop has a comparison and a branch for it, and no call.

use std::sync::Arc;

use packet::{Batch, Packet, Time};
use ports::Port;

use crate::action::PortNo;
use crate::drop::DropReason;
use crate::pipeline::batch::all;
use crate::pipeline::tx::Outputs;
use crate::policer::{Policer, take};

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
    /// Limits what the port receives: [`DropReason::IngressPolicer`]. It belongs to the port
    /// ([`set_policers`](crate::Datapath::set_policers)): who makes the stages of a queue leaves it out.
    pub policer: Option<Arc<Policer>>,
}

/// Makes the optional stages of receive queues that come into being: of which port, and the queue's number. `None`: none.
/// Called with the ports locked, so it must not manage ports.
pub type IngressSource = Arc<dyn Fn(&dyn Port, usize) -> Option<Box<Ingress>> + Send + Sync>;

/// The stages with this policer; `None` where there is no stage then.
pub(crate) fn with_policer(stages: Option<Box<Ingress>>, policer: Option<Arc<Policer>>) -> Option<Box<Ingress>> {
    if stages.is_none() && policer.is_none() {
        return None;
    }
    let mut stages = stages.unwrap_or_default();
    stages.policer = policer;
    Some(stages).filter(|stages| stages.filter.is_some() || stages.policer.is_some())
}

impl Ingress {
    /// Passes a received batch through the stages, and retires the packets that they refuse.
    #[inline(never)]
    pub(crate) fn apply(&mut self, packets: &mut Batch, outputs: &Outputs, in_port: PortNo, now: Time) {
        if let Some(filter) = &mut self.filter {
            let refused = filter.refused(packets, now);
            retire(packets, refused, outputs, DropReason::IngressFilter, in_port);
        }
        if let Some(policer) = &self.policer {
            let refused = policer.refused(packets, now);
            retire(packets, refused, outputs, DropReason::IngressPolicer, in_port);
        }
    }
}

/// Retires those packets of a batch.
fn retire(packets: &mut Batch, refused: u32, outputs: &Outputs, reason: DropReason, port: PortNo) {
    if refused == 0 {
        return;
    }
    if refused == all(packets.len()) {
        return outputs.retire_batch(packets, reason, port);
    }
    outputs.retire_batch(&mut take(packets, refused), reason, port);
}
