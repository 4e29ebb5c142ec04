//! What a bridge tells its controllers, unasked.

use std::sync::Arc;

use openflow::{FlowRemoved, PacketIn, PortStatus, TableStatus};

/// Wakes whoever drives a connection. Called from the bridge's threads; must not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Whom a change of a port is told: those whose version has words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Every version.
    All,
    /// All but OpenFlow 1.0, which does not tell whether a port is live.
    ButV1_0,
    /// OpenFlow 1.0 alone, which tells of floods and of the spanning tree.
    OnlyV1_0,
}

/// Takes the events of a bridge.
///
/// Its methods are called from handler threads and from whoever changes the bridge, several at once, and never with a
/// lock of the switch held. They must return soon and must not block: put the event into a bounded queue, and count
/// what does not fit.
pub trait Subscriber: Send + Sync {
    /// A packet for the controller.
    fn packet_in(&self, event: &PacketInEvent);

    /// A flow with SEND_FLOW_REM was removed.
    fn flow_removed(&self, removed: &FlowRemoved);

    /// A port was added, removed or changed.
    fn port_status(&self, status: &PortStatus, audience: Audience);

    /// A table has become full, or no longer is.
    fn table_status(&self, status: &TableStatus) {
        let _ = status;
    }

    /// Another connection's message has changed the switch.
    fn request_forward(&self, request: &ForwardedRequest) {
        let _ = request;
    }
}

/// A message that has changed groups or meters. It is kept as it came: a message can take many times its length in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedRequest {
    /// What it changes (`enum ofp14_requestforward_reason`): zero for groups, one for meters.
    pub reason: u32,
    /// The whole message.
    pub bytes: Arc<[u8]>,
}

/// A packet for the controllers with one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketInEvent {
    /// The packet: `data` is the whole frame, `format` and `buffer_id` are left to the connection.
    pub packet_in: PacketIn,
    /// Bytes of frame that the action asks for; `None` for what the connection's miss_send_len says.
    pub max_len: Option<u16>,
    /// Only controllers with this id get it (NXT_SET_CONTROLLER_ID).
    pub controller_id: u16,
    /// A table-miss flow says so, which OpenFlow before 1.3 knows nothing of.
    pub explicit_miss: bool,
    /// The table has no table-miss flow: only connections of OpenFlow 1.0 to 1.2 want to see it.
    pub implicit_miss: bool,
}

/// Names a subscription, to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);
