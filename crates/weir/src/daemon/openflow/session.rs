//! What a connection needs of an OpenFlow session, which does no I/O and reads no clock.

use std::sync::Arc;
use std::time::Duration;

use ofproto::Bridge;
use packet::Time;
use tokio::sync::Notify;

use super::connection::Kind;

/// An OpenFlow session.
pub trait Session {
    /// Takes bytes from the peer. An error ends the connection, after what there is to send was sent.
    fn receive(&mut self, bytes: &[u8], now: Time) -> Result<(), String>;

    /// Appends what is to be sent: answers, and events that came up.
    fn output(&mut self, bytes: &mut Vec<u8>);

    /// Does what is due, and returns when something is due next.
    fn run(&mut self, now: Time) -> Result<Option<Time>, String>;

    /// Whether the versions have been negotiated.
    fn is_up(&self) -> bool;

    /// Whether the peer is to get packets that miss in a table without a table-miss flow.
    fn wants_misses(&self) -> bool;
}

/// Refuses every peer, until the sessions are there.
struct Refused;

impl Session for Refused {
    fn receive(&mut self, _: &[u8], _: Time) -> Result<(), String> {
        Err("OpenFlow sessions are not available yet".into())
    }
    fn output(&mut self, _: &mut Vec<u8>) {}
    fn run(&mut self, _: Time) -> Result<Option<Time>, String> {
        Ok(None)
    }
    fn is_up(&self) -> bool {
        false
    }
    fn wants_misses(&self) -> bool {
        false
    }
}

/// Opens a session with a peer of a bridge. `wake` is told when there is something to send.
pub fn open(_: &Bridge, _: Kind, _: Duration, _: Arc<Notify>, _: Time) -> Box<dyn Session> {
    Box::new(Refused)
}
