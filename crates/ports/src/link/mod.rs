//! Facts about kernel network interfaces, and changes to them.
//!
//! [`Interface`] is a handle: it finds an interface by name once and from then on means that interface
//! by its index, in the network namespace of the thread that opened it, whatever thread asks later.
//! A rename doesn't disturb it, and an interface of the same name that is made after this one was
//! deleted is not mistaken for it: [`Interface::is_gone`] says so, for good, and the port has to be opened anew.
//!
//! State and addresses come by rtnetlink(7), from the [`LinkTable`] of the namespace, which asks the kernel once
//! for all interfaces and is told of changes from then on; counters by a request of their own; speed, driver and
//! channels by the ethtool ioctl.

mod address;
mod ethtool;
mod netlink;
pub mod qdisc;
mod table;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::{Error, Features, Link, Mac, Stats};

pub use address::Ipv4Config;
pub use ethtool::{Channels, Driver};
use table::TrackedLink;
pub use table::{LinkId, LinkTable};

/// A network interface of the kernel.
pub struct Interface {
    name: String,
    table: Arc<LinkTable>,
    entry: Arc<TrackedLink>,
    /// The carrier as last seen, and how often it has changed.
    was_up: AtomicBool,
    resets: AtomicU64,
    /// What the driver has answered last, where it is asked ([`Interface::poll_mii`]).
    mii: AtomicU8,
}

/// Values of `Interface::mii`.
const NOT_ASKED: u8 = 0;
const NO_LINK: u8 = 1;
const HAS_LINK: u8 = 2;

/// What has passed between this process and the kernel by rtnetlink(7), in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetlinkCounters {
    /// Requests.
    pub sent: u64,
    /// Answers and events.
    pub received: u64,
    /// Times that events were lost because too many waited, and all was asked for anew.
    pub overflows: u64,
}

/// Those counters, since the process started.
pub fn netlink_counters() -> NetlinkCounters {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    NetlinkCounters {
        sent: read(&::netlink::SENT),
        received: read(&::netlink::RECEIVED),
        overflows: read(&::netlink::OVERFLOWS),
    }
}

/// What the kernel says of an interface at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Present name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// Hardware type, `ARPHRD_*`: 1 for Ethernet.
    pub hardware: u16,
    /// Ethernet address; zero where it has none.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
    /// Largest MTU in bytes; zero where the kernel names no limit.
    pub max_mtu: u32,
    /// IFF_UP: the administrator has enabled it.
    pub admin_up: bool,
    /// IFF_RUNNING and IFF_LOWER_UP: it is up and has a carrier.
    pub carrier: bool,
    /// IFF_LOOPBACK.
    pub loopback: bool,
    /// Kind of a virtual interface: "veth", "dummy", "tun", ...; empty for hardware.
    pub kind: String,
    /// Receive queues it was made with, of which [`Channels`] says how many are in use.
    pub rx_queues: u32,
    /// Transmit queues it was made with.
    pub tx_queues: u32,
    /// The attached XDP program.
    pub xdp: XdpAttachment,
    /// The kernel's counters.
    pub stats: Stats,
}

/// The XDP program that is attached to an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpAttachment {
    /// `XDP_ATTACHED_*`: 0 none, 1 native, 2 generic, 3 hardware, 4 several.
    pub mode: u8,
    /// Id of the program; zero without one.
    pub program: u32,
    /// Id of the natively attached program, where there are several.
    pub native_program: u32,
    /// Id of the generically attached program, where there are several.
    pub generic_program: u32,
}

/// Drivers of paravirtual NICs: they are hardware to the kernel, but carry unfinished frames.
const PARAVIRTUAL: [&str; 3] = ["virtio_net", "xen_netfront", "hv_netvsc"];

impl Interface {
    /// Finds an interface by its name in this thread's network namespace.
    pub fn open(name: &str) -> Result<Interface, Error> {
        let no_interface = || Error::NoInterface { port: name.into() };
        // IFNAMSIZ counts the terminating zero.
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(|b| b == 0 || b == b'/') {
            return Err(no_interface());
        }
        let system = |what: &str| {
            let (port, what) = (name.to_string(), what.to_string());
            move |source| Error::System { port, what, source, hint: None }
        };
        let table = LinkTable::current().map_err(system("follow the interfaces by netlink"))?;
        let entry = match table.find_or_ask(name) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Err(no_interface()),
            Err(e) => return Err(system("ask for the interface")(e)),
        };
        let was_up = AtomicBool::new(entry.facts().carrier);
        Ok(Interface {
            name: name.into(),
            table,
            entry,
            was_up,
            resets: AtomicU64::new(0),
            mii: AtomicU8::new(NOT_ASKED),
        })
    }

    /// The name that it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Interface index.
    pub fn index(&self) -> u32 {
        self.entry.index
    }

    /// What is known of it now, without its counters. Of an interface that has gone, what was known last.
    pub fn known(&self) -> Arc<Facts> {
        self.table.catch_up(false);
        self.entry.facts()
    }

    /// All facts, counters too, as the kernel has them now. `ENODEV` once the interface has been deleted.
    pub fn facts(&self) -> io::Result<Facts> {
        self.there()?;
        self.table.requests().get(self.entry.index)
    }

    /// Whether the interface has been deleted or moved to another network namespace: it does not come back
    /// under this handle.
    pub fn is_gone(&self) -> bool {
        self.table.catch_up(false);
        self.entry.is_gone()
    }

    /// Link and administrative state, as it is now; down once the interface has gone. Changes are counted
    /// from query to query.
    pub fn link(&self) -> Link {
        let (facts, there) = (self.known(), !self.entry.is_gone());
        let has_link = match self.mii.load(Ordering::Relaxed) {
            NOT_ASKED => facts.carrier,
            mii => mii == HAS_LINK,
        };
        let (up, admin_up) = (has_link && there, facts.admin_up && there);
        if self.was_up.swap(up, Ordering::Relaxed) != up {
            self.resets.fetch_add(1, Ordering::Relaxed);
        }
        Link { up, admin_up, resets: self.resets.load(Ordering::Relaxed) }
    }

    /// Asks the driver whether there is a link, and goes by that. `None`, and the kernel's word counts, where it cannot be asked.
    pub fn poll_mii(&self) -> Option<bool> {
        let answer = self.present_name().and_then(|name| self.table.ethtool.link(&name)).ok();
        let mii = answer.map_or(NOT_ASKED, |has_link| if has_link { HAS_LINK } else { NO_LINK });
        self.mii.store(mii, Ordering::Relaxed);
        answer
    }

    /// The kernel's word counts again.
    pub fn forget_mii(&self) {
        self.mii.store(NOT_ASKED, Ordering::Relaxed);
    }

    /// Enables or disables the interface.
    pub fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        let what = if up { "set the interface up" } else { "set the interface down" };
        self.change(what, |netlink, index| netlink.set_up(index, up))
    }

    /// Changes the MTU, in bytes.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        self.change(&format!("set the MTU to {mtu}"), |netlink, index| netlink.set_mtu(index, mtu))
    }

    /// Changes the Ethernet address.
    pub fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        self.change("change the Ethernet address", |netlink, index| netlink.set_mac(index, mac))
    }

    /// Gives the interface the address and the MTU that its port is to have. As in OVS, a port is there whether its device takes them or not.
    pub fn set_as_asked(&self, port: &str, mac: Option<Mac>, mtu: Option<u32>) {
        let mac = mac.map_or(Ok(()), |mac| self.set_mac(mac));
        let mtu = mtu.map_or(Ok(()), |mtu| self.set_mtu(mtu));
        for refused in [mac, mtu].into_iter().filter_map(Result::err) {
            tracing::warn!(target: "netdev", "{port}: {refused}");
        }
    }

    fn change(
        &self,
        what: &str,
        request: impl FnOnce(&mut netlink::Netlink, u32) -> io::Result<()>,
    ) -> Result<(), Error> {
        let changed = self.there().and_then(|()| request(&mut self.table.requests(), self.entry.index));
        // Whoever asks next is to see it.
        self.table.catch_up(true);
        changed.map_err(|e| self.error(what, e))
    }

    /// An interface that has come since this one went may have its index.
    fn there(&self) -> io::Result<()> {
        match self.is_gone() {
            true => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            false => Ok(()),
        }
    }

    /// Speed and duplex; all zero where the driver doesn't know.
    pub fn features(&self) -> Features {
        if self.is_gone() {
            return Features::default();
        }
        self.entry.features(|name| self.table.ethtool.features(name).unwrap_or_default())
    }

    /// What its driver says of itself.
    pub fn driver(&self) -> Driver {
        let ask = || self.present_name().and_then(|name| self.table.ethtool.driver(&name)).unwrap_or_default();
        self.entry.driver.get_or_init(ask).clone()
    }

    /// Whether what comes out of it may come from a kernel's stack as that hands it to its device, with
    /// checksums left to that: from a virtual interface or a paravirtual NIC rather than from a wire.
    pub fn leads_to_stack(&self) -> bool {
        let facts = self.known();
        let paravirtual = || PARAVIRTUAL.contains(&&*self.driver().name);
        !facts.kind.is_empty() || facts.loopback || paravirtual()
    }

    /// How many queues are in use. Falls back to how many there are, for drivers that can't tell.
    pub fn channels(&self) -> Channels {
        let facts = self.known();
        self.table
            .ethtool
            .channels(&facts.name)
            .unwrap_or(Channels { rx: facts.rx_queues.max(1), tx: facts.tx_queues.max(1) })
    }

    /// Attaches an XDP program, or with `program` `None` detaches one. `flags` are `XDP_FLAGS_*`;
    /// `expected` is a descriptor of the program that has to be attached now for this to succeed.
    pub fn set_xdp(&self, program: Option<i32>, flags: u32, expected: Option<i32>) -> io::Result<()> {
        self.there()?;
        self.table.requests().set_xdp(self.entry.index, program.unwrap_or(-1), flags, expected)
    }

    /// The ethtool ioctl goes by name: ask for the present one.
    fn present_name(&self) -> io::Result<String> {
        self.there()?;
        Ok(self.entry.facts().name.clone())
    }

    fn error(&self, what: &str, source: io::Error) -> Error {
        let hint = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Some("this needs CAP_NET_ADMIN; run as root"),
            Some(libc::ENODEV) => Some("the interface has been deleted"),
            Some(libc::ENOENT) => Some("the kernel may lack this queueing discipline"),
            Some(libc::EBUSY) => Some("the driver wants the interface to be down for this"),
            _ => None,
        };
        Error::System { port: self.name.clone(), what: what.into(), source, hint }
    }
}

/// TrackedLink point for fuzzing: what the kernel answers, as any bytes behind the number of the request.
pub fn fuzz(bytes: &[u8]) {
    netlink::fuzz(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_facts() {
        let lo = Interface::open("lo").unwrap();
        let facts = lo.facts().unwrap();
        assert_eq!((facts.name.as_str(), facts.index, facts.loopback), ("lo", lo.index(), true));
        assert_eq!(facts.hardware, libc::ARPHRD_LOOPBACK);
        assert!(facts.mtu >= 1280, "{facts:?}");
        assert_eq!(facts.xdp, XdpAttachment::default());
        assert_eq!(facts.stats.rx_packets, facts.stats.tx_packets);
        assert_eq!(lo.link().up, facts.carrier);
        assert!(lo.channels().rx >= 1);
    }

    #[test]
    fn missing_interface_is_named() {
        for name in ["weir-none0", "", "a/b", "name-that-is-far-too-long"] {
            let error = Interface::open(name).err().unwrap();
            assert!(matches!(&error, Error::NoInterface { port } if port == name), "{error}");
        }
    }
}
