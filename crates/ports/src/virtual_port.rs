//! State that ports without a kernel interface keep by themselves.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use packet::buffer::heap::HEADROOM;
use packet::{Batch, Memory, Packet};
use parking_lot::Mutex;

use crate::spec::PortSpec;
use crate::{Error, Link, Mac};

/// Smallest MTU, which every IPv4 link has.
pub const MIN_MTU: u32 = 68;

/// Largest MTU: the total length of an IPv4 packet.
pub const MAX_MTU: u32 = 65535;

/// Largest frame: the largest IP packet with an Ethernet header and two VLAN tags.
pub const MAX_FRAME: usize = 65535 + 14 + 8;

/// Name, address, MTU and link of a virtual port. Any thread may read and change it; workers read
/// `mtu` and `admin_up` once for each burst.
#[derive(Debug)]
pub struct VirtualPort {
    pub name: String,
    mac: Mutex<Mac>,
    mtu: AtomicU32,
    up: AtomicBool,
    admin_up: AtomicBool,
    resets: AtomicU64,
}

impl VirtualPort {
    /// The state that `spec` asks for: up, MTU 1500 where nothing else is asked.
    pub fn new(spec: &PortSpec, default_mac: Mac) -> VirtualPort {
        VirtualPort {
            name: spec.name.clone(),
            mac: Mutex::new(spec.mac.unwrap_or(default_mac)),
            mtu: AtomicU32::new(spec.mtu.unwrap_or(1500).clamp(MIN_MTU, MAX_MTU)),
            up: AtomicBool::new(true),
            admin_up: AtomicBool::new(true),
            resets: AtomicU64::new(0),
        }
    }

    pub fn mac(&self) -> Mac {
        *self.mac.lock()
    }

    pub fn set_mac(&self, mac: Mac) {
        *self.mac.lock() = mac;
    }

    pub fn mtu(&self) -> u32 {
        self.mtu.load(Relaxed)
    }

    /// Sets the MTU, which is at least 68 (RFC 791 section 3.2).
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            let problem = format!("{mtu} should be {MIN_MTU}..{MAX_MTU}");
            return Err(Error::Option { port: self.name.clone(), option: "mtu".into(), problem });
        }
        self.mtu.store(mtu, Relaxed);
        Ok(())
    }

    /// Whether frames pass.
    pub fn running(&self) -> bool {
        self.up.load(Relaxed) && self.admin_up.load(Relaxed)
    }

    pub fn link(&self) -> Link {
        Link { up: self.running(), admin_up: self.admin_up.load(Relaxed), resets: self.resets.load(Relaxed) }
    }

    pub fn set_admin_up(&self, up: bool) {
        self.change(&self.admin_up, up);
    }

    /// Plugs or pulls the cable.
    pub fn set_carrier(&self, up: bool) {
        self.change(&self.up, up);
    }

    fn change(&self, flag: &AtomicBool, to: bool) {
        let before = self.running();
        flag.store(to, Relaxed);
        if self.running() != before {
            self.resets.fetch_add(1, Relaxed);
        }
    }
}

/// A locally administered address that depends on the name alone, so that it is the same after a
/// restart (FNV-1a, 64 bits).
pub fn mac_from_name(name: &str) -> Mac {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

/// Whether `frame` has an Ethernet header and fits an MTU. VLAN tags don't count, as in the kernel.
#[inline]
pub fn fits(frame: &[u8], mtu: usize) -> bool {
    if frame.len() <= mtu + 14 {
        return frame.len() >= 14;
    }
    let tags = frame[12..].chunks_exact(4).take_while(|tag| matches!(tag[..2], [0x81, 0x00] | [0x88, 0xa8]));
    frame.len() <= mtu + 14 + 4 * tags.take(2).count()
}

/// Appends `count` copies of `frame`, made in `memory`, to `batch`, and returns how many there was
/// memory for. `batch` has room for them.
#[inline]
pub fn copies(memory: &'static Memory, frame: &[u8], count: usize, batch: &mut Batch) -> usize {
    for made in 0..count {
        let Some(copy) = copy(memory, frame) else { return made };
        batch.push(copy);
    }
    count
}

/// A packet in `memory` with a copy of `frame`, or `None` without a buffer.
#[inline]
pub fn copy(memory: &'static Memory, frame: &[u8]) -> Option<Packet> {
    let mut packet = (memory.allocate)(memory, HEADROOM, frame.len())?;
    packet.push_back(frame.len())?.copy_from_slice(frame);
    Some(packet)
}
