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
    /// The lowest and the highest UDP port from which tunnels send.
    pub source_ports: Mutex<(u16, u16)>,
}

/// How many neighbours are kept.
pub const MAX_NEIGHBOURS: usize = 65536;

impl Default for NetState {
    fn default() -> NetState {
        NetState {
            routes: RwLock::default(),
            neighbours: Mutex::new(Neighbours::new(MAX_NEIGHBOURS)),
            source_ports: Mutex::new((32768, 61000)),
        }
    }
}
