//! Spanning trees of bridges, as they are configured, and what translation reads of them.
//!
//! The state machines themselves are elsewhere (`slowpath::spanning_trees`), so that their frames wait for no change of tables.

use std::collections::BTreeMap;

use openflow::PortState as OfPortState;
use protocols::spanning_tree::{Protocol, State};
use protocols::{rstp, stp};

/// What a bridge has against loops, as table `Bridge` says it (ovs-vswitchd.conf.db(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanningTreeConfig {
    /// The protocol that it speaks (`stp_enable`, `rstp_enable`).
    pub protocol: Protocol,
    /// The pairs of `other_config` that begin with `stp-` or `rstp-`.
    pub options: BTreeMap<String, String>,
}

/// What is configured for a port's part in it, as table `Port` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanningTreePort {
    /// The pairs of `other_config` that begin with `stp-` or `rstp-`.
    pub options: BTreeMap<String, String>,
    /// The port is one of this machine's own (type `internal`): it takes no part.
    pub is_internal: bool,
}

/// A port's part in the spanning tree of its bridge.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortTree {
    pub config: SpanningTreePort,
    /// `None` where it takes no part, and is always forwarded from and to.
    pub state: Option<State>,
}

impl PortTree {
    /// Whether frames are forwarded from the port and to it.
    pub fn forwards(&self) -> bool {
        self.state.is_none_or(State::forwards)
    }

    /// The bits that OpenFlow 1.0 has for the state.
    pub fn openflow_bits(&self) -> OfPortState {
        use OfPortState as Bits;
        match self.state {
            Some(State::Stp(stp::State::Learning) | State::Rstp(rstp::State::Learning)) => Bits::STP_LEARN,
            Some(State::Stp(stp::State::Forwarding) | State::Rstp(rstp::State::Forwarding)) => Bits::STP_FORWARD,
            Some(State::Stp(stp::State::Blocking)) => Bits::STP_LEARN | Bits::STP_FORWARD,
            // As in OVS, listening is what a discarding port does.
            _ => Bits::empty(),
        }
    }
}
