//! A vhost-user port.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use packet::Memory;
use parking_lot::Mutex;

use super::driver::Registration;
use super::guest::Guest;
use super::rx::Rx;
use super::tx::Tx;
use super::{settings, socket};
use crate::dpdk::mempool;
use crate::kind::Env;
use crate::options::Options;
use crate::spec::PortSpec;
use crate::virtual_port::{VirtualPort, mac_from_name};
use crate::{Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxDrops, TxQueue};

/// How often a burst that makes progress is tried again, where nothing is said.
const TX_RETRIES: u8 = 8;

/// A port and its registration, which ends before the guest's state does.
struct Vhost {
    registration: Option<Registration>,
    guest: Arc<Guest>,
    /// For segments that are cut.
    memory: &'static Memory,
    /// For frames in several segments.
    large: &'static Memory,
    /// Receive queues that were given out.
    made: Mutex<u16>,
}

/// Opens a port. DPDK runs.
pub fn open(spec: &PortSpec, options: &Options, env: &Env, client: bool) -> Result<Arc<dyn Port>, Error> {
    let unavailable = |problem: String| Error::Unavailable { port: spec.name.clone(), problem };
    let path = match client {
        true => options.path("vhost-server-path").ok_or_else(|| {
            options.error("vhost-server-path", "missing; give the path of the socket that the virtual machine makes")
        })?,
        false => server_path(&spec.name).map_err(unavailable)?,
    };
    let of_path = |problem: String| match client {
        true => options.error("vhost-server-path", problem),
        false => unavailable(problem),
    };
    socket::check(&path).map_err(of_path)?;
    match client {
        true => {
            if let Some(problem) = socket::unreachable(&path) {
                tracing::warn!(target: "netdev_dpdk", "{}: {problem}", spec.name);
            }
        }
        false => socket::make_way(&path).map_err(of_path)?,
    }
    let state = VirtualPort::new(spec, mac_from_name(&spec.name));
    // librte_vhost decides on a node when the guest comes; where frames go first is not worth a move.
    let pool = mempool::get(pool_mtu(state.mtu()), -1).map_err(unavailable)?;
    let retries = options.number("tx-retries-max").map_or(TX_RETRIES, |n| n.min(u8::MAX.into()) as u8);
    let guest = Arc::new(Guest::new(state, path, client, retries, pool));
    let registration = Some(Registration::new(&guest).map_err(of_path)?);
    let (mode, at) = (if client { "client" } else { "server" }, guest.socket.display());
    tracing::info!(target: "netdev_dpdk", "vHost User device '{}' created in '{mode}' mode, using socket '{at}'", spec.name);
    Ok(Arc::new(Vhost { registration, guest, memory: env.memory, large: env.large, made: Mutex::new(0) }))
}

/// Where Weir makes the socket of a port.
fn server_path(name: &str) -> Result<PathBuf, String> {
    match name.contains('/') {
        true => Err(format!("{name:?} is no name for a socket; it should be without /")),
        false => Ok(settings().sock_dir.join(name)),
    }
}

/// Larger frames are put behind an mbuf, not in it.
fn pool_mtu(mtu: u32) -> u32 {
    mtu.min(9000)
}

impl Drop for Vhost {
    fn drop(&mut self) {
        self.registration = None;
    }
}

impl Port for Vhost {
    fn name(&self) -> &str {
        &self.guest.state.name
    }

    fn kind(&self) -> &'static str {
        if self.guest.client { "dpdkvhostuserclient" } else { "dpdkvhostuser" }
    }

    fn mac(&self) -> Mac {
        self.guest.state.mac()
    }

    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        self.guest.state.set_mac(mac);
        Ok(())
    }

    fn mtu(&self) -> u32 {
        self.guest.state.mtu()
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        let before = self.mtu();
        self.guest.state.set_mtu(mtu)?;
        if pool_mtu(mtu) != pool_mtu(before) {
            let problem = |problem| Error::Unavailable { port: self.name().into(), problem };
            self.guest.set_pool(mempool::get(pool_mtu(mtu), -1).map_err(problem)?);
        }
        Ok(())
    }

    fn link(&self) -> Link {
        self.guest.state.link()
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.guest.state.set_admin_up(up);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.guest.counts.port.sum()
    }

    fn tx_drops(&self) -> TxDrops {
        self.guest.counts.port.tx_drops()
    }

    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.guest.counts.port.tx_queue_drops()
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn offloads(&self) -> Offloads {
        self.guest.offloads()
    }

    fn pays_by_frame(&self) -> bool {
        true
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        let guest = &self.guest;
        let mut facts = vec![("mode", if guest.client { "client" } else { "server" }.into())];
        let connected = guest.ask(ask_status);
        facts.push(("status", if connected.is_some() { "connected" } else { "disconnected" }.into()));
        if let Some(of_guest) = connected {
            facts.push(("socket", guest.socket.display().to_string()));
            facts.extend(of_guest);
        }
        facts
    }

    fn custom_stats(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.guest.counts;
        let pairs = self.guest.pairs();
        let all = self.guest.ask(|vid| counts.all(Some((vid, pairs)))).unwrap_or_else(|| counts.all(None));
        all.into_iter().map(|(name, n)| (intern(&name), n)).collect()
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        let mut made = self.made.lock();
        let wanted = self.guest.pairs();
        let queues = *made..wanted;
        *made = wanted;
        queues.map(|queue| Box::new(Rx::new(&self.guest, queue.into(), self.large)) as Box<dyn RxQueue>).collect()
    }

    fn rx_enabled(&self, queue: usize) -> bool {
        self.guest.receives(queue)
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    /// A guest has as many as it likes, and our queues are mapped to them: so there are enough for most.
    fn steered_tx_queues(&self) -> usize {
        16
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Tx::new(&self.guest, index, self.memory)))
    }
}

/// What librte_vhost knows about a guest, under OVS's names.
fn ask_status(vid: i32) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let mut fact = |name: &'static str, value: String| facts.push((name, value));
    let (mut features, mut mtu) = (0, 0);
    // SAFETY: the guest is there while it is asked.
    unsafe {
        if dpdk_sys::rte_vhost_get_negotiated_features(vid, &mut features) == 0 {
            fact("features", format!("{features:#018x}"));
        }
        if dpdk_sys::rte_vhost_get_mtu(vid, &mut mtu) == 0 {
            fact("mtu", mtu.to_string());
        }
        let node = dpdk_sys::rte_vhost_get_numa_node(vid);
        if node >= 0 {
            fact("numa", node.to_string());
        }
        let rings = dpdk_sys::rte_vhost_get_vring_num(vid);
        if rings > 0 {
            fact("num_of_vrings", rings.to_string());
        }
        for ring in 0..rings {
            fact(intern(&format!("vring_{ring}_size")), dpdk_sys::weir_vhost_vring_size(vid, ring).to_string());
        }
    }
    facts
}

/// The same text, for ever. Of names, of which there are only so many: a few for each ring.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock();
    match names.get(name) {
        Some(known) => known,
        None => {
            let name: &'static str = name.to_owned().leak();
            names.insert(name);
            name
        }
    }
}
