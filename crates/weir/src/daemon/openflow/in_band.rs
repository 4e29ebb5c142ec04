//! In-band control: what a bridge needs to reach its controllers through itself.
//!
//! Each bridge has a task that finds out, once in a second and when its controllers change, where these are and by which
//! next hop they are reached, and tells the bridge, which makes hidden flows of it (`ofproto/src/model/hidden.rs`).

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use ofproto::{InBand, Remote};
use openflow::OfPort;

use super::Peers;
use crate::config::Target;

/// How often it is looked whether next hops and the bridge's own address are what they were.
const REFRESH: Duration = Duration::from_secs(1);

/// Most addresses of one controller.
const MAX_ADDRESSES: usize = 8;

/// What is known of where a controller is. Its connecting task writes, that of in-band control reads.
#[derive(Debug, Default)]
pub struct Whereabouts {
    /// It is to be reached whatever the bridge's flows say.
    in_band: Cell<bool>,
    addresses: RefCell<Vec<SocketAddrV4>>,
}

impl Whereabouts {
    /// Says whether a controller is reached in band. An address is known at once, a name when it has been looked up.
    pub fn configure(&self, target: &Target, in_band: bool) {
        self.in_band.set(in_band);
        if let Target::Tcp(host, port) | Target::Ssl(host, port) = target
            && let Ok(IpAddr::V4(address)) = host.parse::<IpAddr>()
        {
            self.addresses.replace(vec![SocketAddrV4::new(address, *port)]);
        }
    }

    /// Notes to which addresses it is about to be connected. Those of IPv6 are not reached in band, as in OVS.
    pub fn found(&self, addresses: &[SocketAddr]) {
        let v4 = addresses.iter().filter_map(|address| match address {
            SocketAddr::V4(address) => Some(*address),
            SocketAddr::V6(_) => None,
        });
        self.addresses.replace(v4.take(MAX_ADDRESSES).collect());
    }
}

/// Keeps a bridge informed.
pub async fn keep(peers: &Peers) {
    loop {
        refresh(peers);
        peers.timer.sleep(REFRESH).await;
    }
}

/// Says at once what a change of the configuration means.
pub fn refresh(peers: &Peers) {
    peers.bridge.set_in_band(find_out(peers));
}

fn find_out(peers: &Peers) -> InBand {
    let bridge = &peers.bridge;
    let (is_allowed, queue) = bridge.in_band_settings();
    // Without a LOCAL port, nothing of the host goes through the bridge.
    let Some(local) = bridge.port(OfPort::LOCAL).filter(|_| is_allowed) else { return InBand::default() };
    let mut addresses = Vec::new();
    for controller in peers.controllers.borrow().iter().filter(|state| state.whereabouts.in_band.get()) {
        addresses.extend(controller.whereabouts.addresses.borrow().iter().copied());
    }
    if addresses.is_empty() {
        return InBand::default();
    }
    addresses.sort_unstable();
    addresses.dedup();
    // In the order of their addresses, as made below.
    let known = bridge.in_band().remotes;
    let remote = |address: SocketAddrV4| {
        // A neighbour that has not spoken for a while is where it was.
        let place = known.binary_search_by_key(&address, |remote| remote.address);
        let before = place.ok().and_then(|place| known[place].next_hop);
        Remote { address, next_hop: bridge.next_hop((*address.ip()).into()).or(before) }
    };
    let remotes = addresses.into_iter().map(remote).collect();
    InBand { local: local.device.map(|device| device.mac()), remotes, queue }
}
