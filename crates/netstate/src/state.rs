//! What is known of the network below tunnels, for all who ask.

use parking_lot::{Mutex, RwLock};

use crate::neighbours::Neighbours;
use crate::routes::Routes;

/// Routes and neighbours, shared by translation, which asks, and the management, which tells.
#[derive(Debug)]
pub struct NetState {
    /// The routes.
    pub routes: RwLock<Routes>,
    /// The neighbours.
    pub neighbours: Mutex<Neighbours>,
    /// The lowest and the highest UDP source port of what is sent through tunnels.
    pub source_ports: Mutex<(u16, u16)>,
}

/// The source ports unless that is changed, as in Linux.
pub const SOURCE_PORTS: (u16, u16) = (32768, 61000);

/// How many neighbours are kept.
pub const MAX_NEIGHBOURS: usize = 65536;

impl Default for NetState {
    fn default() -> NetState {
        NetState {
            routes: RwLock::default(),
            neighbours: Mutex::new(Neighbours::new(MAX_NEIGHBOURS)),
            source_ports: Mutex::new(SOURCE_PORTS),
        }
    }
}
