//! Where the desired state comes from: a file ([`toml`]) or a database ([`ovsdb`]), behind [`ConfigSource`].
//!
//! The daemon asks its source for one state after the other, brings each into force, and tells the source what
//! runs then. What a source does with that is its own business: a database has columns for it, a file has not.
//!
//! - [`ovsdb`]: the Open_vSwitch database
//! - [`toml`]: a TOML file

use std::sync::Arc;

use datapath::Datapath;
use ofproto::Switch;
use openflow::Role;
use packet::Time;

use crate::config::Target;
use crate::config::origins::Loaded;
use crate::reconfigure::unapplied::FailedPort;

pub mod ovsdb;
pub mod toml;

/// A source of desired states. Its methods are called on the management thread, one at a time: none of them blocks.
/// Dropping it ends it.
pub trait ConfigSource {
    /// How reports name it: the path of the file, the address of the database.
    fn location(&self) -> &str;

    /// Whether states come by themselves, from a peer. Such a source may have to be waited for, so the control
    /// socket is there before the first state, and SIGHUP asks for no other one. Any other source has its first
    /// state at once: the control socket appears when that is in force.
    fn pushes(&self) -> bool;

    /// Waits for the first state.
    fn first(&mut self) -> impl Future<Output = Loaded>;

    /// Waits until there is something to do. Whoever drops the future before it is done loses nothing.
    fn next(&mut self) -> impl Future<Output = SourceEvent>;

    /// Reads the state again, because somebody asks for it. An error says in words why that is not possible.
    fn reread(&mut self) -> impl Future<Output = Result<Loaded, String>>;

    /// Takes note of what runs. Called when the first state is in force, and whenever what [`next`] and [`reread`]
    /// brought has been done.
    ///
    /// [`next`]: ConfigSource::next
    /// [`reread`]: ConfigSource::reread
    fn applied(&mut self, running: &Running<'_>) -> impl Future<Output = ()>;
}

/// What a source brings.
#[derive(Debug)]
pub enum SourceEvent {
    /// A state, which may be the same as before: then, what failed is tried again.
    Wanted(Box<Loaded>),
    /// The source has nothing to say any more, until it brings another state: no bridge is left.
    Withdrawn,
    /// Nothing, but that the source wants to know what runs.
    Nothing,
}

/// What runs, as a source is told.
pub struct Running<'a> {
    /// Bridges and their ports.
    pub switch: &'a Arc<Switch>,
    /// What forwards their packets.
    pub datapath: &'a Datapath,
    /// The ports that could not be opened or changed.
    pub failed: &'a [FailedPort],
    /// The controllers of a bridge.
    pub controllers: &'a dyn Fn(&str) -> Vec<(Target, ControllerStatus)>,
}

/// What is known of a controller.
#[derive(Clone, Debug, Default)]
pub struct ControllerStatus {
    /// Connections that speak OpenFlow now.
    pub connections: usize,
    /// The role that the last one has.
    pub role: Option<Role>,
    /// What went wrong last.
    pub error: Option<String>,
    /// When a connection came about last.
    pub connected: Option<Time>,
    /// When a connection ended last.
    pub disconnected: Option<Time>,
}
