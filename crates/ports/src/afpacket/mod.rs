//! AF_PACKET ports: any Ethernet interface of the kernel, by packet(7) sockets.
//!
//! Frames of a busy port are received through a memory-mapped ring (PACKET_RX_RING), those of others one by one
//! ([`reception`]). Each has the header of [`crate::vnet`] in front (PACKET_VNET_HDR), so that frames of
//! local stacks pass with their checksum unfinished and their 64 KiB uncut, in both directions.
//!
//! - The ring is TPACKET_V2. V3 hands over whole blocks, on a timer where there is little traffic,
//!   which costs latency; V2 wakes for each frame, and is as good at our frame rates.
//! - A slot holds a frame of the MTU. Longer frames (GSO) would need slots of 64 KiB, of which most
//!   would lie empty, and a copy more: with PACKET_COPY_THRESH the kernel queues such a frame beside
//!   the ring, and one recvmsg(2) copies it straight into its buffer. That is one system call for
//!   what are some 45 frames on the wire.
//! - A burst is sent by one sendmmsg(2). A transmit ring would not save a copy: the kernel copies its
//!   slots whenever the packet leaves the sender's hands, which on a veth is always (`skb_orphan_frags`,
//!   since Linux 4.20), and it can't hold GSO frames in slots of sensible size.
//! - Where the interface's queueing discipline has a class for each queue, a packet finds its class by the priority of
//!   the socket that it is sent through, and each queue has a socket ([`tx`]).
//! - Beyond the MTU the kernel lets one tag of 0x8100 pass (`packet_extra_vlan_len_allowed`), and no other:
//!   a frame of full length with a tag of 0x88a8, or with two, is refused and counted as an error. The MTU
//!   has to be raised by what the tags take, as on a physical network.
//! - Frames that the host sends through the interface are not received (PACKET_IGNORE_OUTGOING), so
//!   nothing that was sent comes back.
//! - The kernel's own stack also gets the frames that are received: as in OVS, an interface that is
//!   given to the switch should have no IP address (`ip addr flush dev NAME`).
//!
//! Sharing between threads: [`Netdev`] by everybody; a receive socket by its queue and, for its
//! statistics, by the management thread; a transmit socket by its queue alone. Sockets are closed in the
//! background ([`background`]).

mod background;
mod plain;
mod reception;
mod rx;
mod socket;
mod tx;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use packet::Memory;
use parking_lot::Mutex;

use reception::Reception;

use crate::kind::{Env, Kind};
use crate::link::qdisc::{self, Discipline};
use crate::link::{Driver, Facts, Interface};
use crate::options::{Form, OptionDef, Options};
use crate::spec::PortSpec;
use crate::stats::{PortCounters, TxCounters};
use crate::{Error, Features, Link, Mac, Offloads, Port, Qos, QosState, RxQueue, Stats, TxDrops, TxQueue};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["afpacket"],
    doc: "Any Ethernet interface of the kernel, with its offloads, by packet sockets.",
    options: OPTIONS.split_at(OPTIONS.len() - 1).0,
    open: |spec, options, env| Ok(AfPacket::open(spec, options, env)?),
};

/// Options of type `system`; this type has all but the last.
pub(crate) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "n_rxq",
        form: Form::Number(1, 64),
        doc: "Receive queues, by PACKET_FANOUT on the flow's hash; 1 by default.",
    },
    OptionDef {
        name: "n_rxq_desc",
        form: Form::Number(32, 65536),
        doc: "Slots of each receive ring. By default there are 1024, once the port proves busy.",
    },
    OptionDef {
        name: "qdisc-bypass",
        form: Form::Bool,
        doc: "Send past the interface's queueing discipline, false by default.",
    },
    OptionDef {
        name: "backend",
        form: Form::Word(&["auto", "afpacket", "afxdp"]),
        doc: "How type system drives the interface; auto by default.",
    },
];

/// Slots of a ring that nobody has chosen the size of.
const SLOTS: usize = 1024;

/// What the queues and the port share.
struct Netdev {
    name: String,
    ifindex: u32,
    /// The MTU, refreshed whenever the management thread asks for the state of the port.
    mtu: AtomicU32,
    /// Whether the interface's queueing discipline has a class for each queue.
    has_classes: AtomicBool,
}

struct AfPacket {
    shared: Arc<Netdev>,
    interface: Interface,
    counters: PortCounters,
    receptions: Vec<Arc<Reception>>,
    rx: Mutex<Vec<rx::Rx>>,
    qdisc_bypass: bool,
    offloads: Offloads,
    memory: &'static Memory,
    driver: Driver,
    /// The queueing discipline that was set up for it.
    discipline: Mutex<Discipline>,
}

impl AfPacket {
    fn open(spec: &PortSpec, options: &Options, env: &Env) -> Result<Arc<AfPacket>, Error> {
        let port = spec.name.as_str();
        let interface = Interface::open(port)?;
        let facts = interface.known();
        if facts.hardware != libc::ARPHRD_ETHER && !facts.loopback {
            return Err(Error::Unsupported { port: port.into(), what: "an interface that is not Ethernet" });
        }
        let mtu = spec.mtu.filter(|&mtu| mtu != facts.mtu);
        interface.set_as_asked(port, spec.mac.filter(|&mac| mac != facts.mac), mtu);
        let facts = interface.known();
        let shared = Arc::new(Netdev {
            name: port.into(),
            ifindex: interface.index(),
            mtu: AtomicU32::new(facts.mtu),
            has_classes: AtomicBool::new(false),
        });
        let queues = options.number("n_rxq").unwrap_or(1) as usize;
        let slots = options.number("n_rxq_desc");
        let counters = PortCounters::default();
        let (mut receptions, mut rx) = (Vec::new(), Vec::new());
        for index in 0..queues {
            let counters = counters.rx(index);
            let (reception, queue) = if queues == 1 && slots.is_none() {
                let (reception, socket) = Reception::open(&shared, SLOTS)?;
                (reception.clone(), rx::Rx::plain(reception, plain::Plain::new(socket), counters, env))
            } else {
                let (reception, ring) = Reception::with_ring(&shared, slots.map_or(SLOTS, |slots| slots as usize))?;
                (reception.clone(), rx::Rx::with_ring(reception, ring, counters, env))
            };
            receptions.push(reception);
            rx.push(queue);
        }
        if let Some((first, others)) = receptions.split_first().filter(|(_, others)| !others.is_empty()) {
            let group = first.fan_out(None)?;
            others.iter().try_for_each(|reception| reception.fan_out(Some(group)).map(drop))?;
        }
        Ok(Arc::new(AfPacket {
            qdisc_bypass: options.flag("qdisc-bypass", false),
            offloads: Offloads {
                csum: true,
                tso4: true,
                tso6: true,
                uso: kernel_knows_uso(),
                tunnels: false,
                datagrams: kernel_knows_uso(),
            },
            memory: env.memory,
            driver: interface.driver(),
            rx: Mutex::new(rx),
            discipline: Mutex::default(),
            shared,
            interface,
            counters,
            receptions,
        }))
    }

    /// What is known of the interface now.
    fn facts(&self) -> Arc<Facts> {
        let facts = self.interface.known();
        self.shared.mtu.store(facts.mtu, Relaxed);
        facts
    }
}

/// A transmit queue for another type of port on a kernel interface, which can't send super-frames itself.
pub(crate) fn super_frames(
    interface: &Interface,
    offloads: Offloads,
    memory: &'static Memory,
    counters: Arc<TxCounters>,
) -> Result<Box<dyn TxQueue>, Error> {
    let name = interface.name().to_string();
    let socket = socket::open_tx(&name, interface.index(), false)?;
    let shared = Netdev {
        name,
        ifindex: interface.index(),
        mtu: AtomicU32::new(u32::MAX >> 1),
        has_classes: AtomicBool::new(false),
    };
    Ok(Box::new(tx::Tx::new(socket, Arc::new(shared), offloads, memory, counters)))
}

/// Waits until the sockets are closed that were given up before. `false` where that takes longer than `patience`.
pub fn finish_closing(patience: Duration) -> bool {
    background::finish(patience)
}

/// Linux 6.2 taught `struct virtio_net_hdr` UDP segmentation (VIRTIO_NET_HDR_GSO_UDP_L4).
pub(crate) fn kernel_knows_uso() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0u32));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 2)
}

impl Port for AfPacket {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "afpacket"
    }

    fn mac(&self) -> Mac {
        self.facts().mac
    }

    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        self.interface.set_mac(mac)
    }

    fn mtu(&self) -> u32 {
        self.facts();
        self.shared.mtu.load(Relaxed)
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        self.interface.set_mtu(mtu)?;
        self.facts();
        Ok(())
    }

    fn link(&self) -> Link {
        self.interface.link()
    }

    fn poll_mii(&self) -> Option<bool> {
        self.interface.poll_mii()
    }

    fn forget_mii(&self) {
        self.interface.forget_mii();
    }

    fn is_gone(&self) -> bool {
        self.interface.is_gone()
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.interface.set_admin_up(up)
    }

    fn stats(&self) -> Stats {
        let drops: u64 = self.receptions.iter().map(|reception| reception.lost()).sum();
        let mut stats = self.counters.sum();
        stats.rx_dropped += drops;
        stats.rx_over_err += drops;
        stats
    }

    fn tx_drops(&self) -> TxDrops {
        self.counters.tx_drops()
    }

    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.counters.tx_queue_drops()
    }

    fn features(&self) -> Features {
        self.interface.features()
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn pays_by_frame(&self) -> bool {
        true
    }

    fn ifindex(&self) -> Option<u32> {
        (!self.is_gone()).then_some(self.shared.ifindex)
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        let ring = if self.receptions.iter().all(|reception| reception.has_ring()) { "TPACKET_V2" } else { "none" };
        self.driver.clone().status().chain([("rx-ring", ring.to_owned())]).collect()
    }

    fn queues(&self) -> Vec<u32> {
        self.discipline.lock().queues()
    }

    fn qos_types(&self) -> &'static [&'static str] {
        if self.qdisc_bypass { &[] } else { qdisc::TYPES }
    }

    fn set_qos(&self, qos: Option<&Qos>) -> Result<(), Error> {
        if self.qdisc_bypass && qos.is_some() {
            let problem = "with options:qdisc-bypass=true a QoS has no effect".into();
            return Err(Error::Unavailable { port: self.shared.name.clone(), problem });
        }
        let mut discipline = self.discipline.lock();
        let result = discipline.set(&self.interface, qos);
        self.shared.has_classes.store(discipline.has_classes(), Relaxed);
        result
    }

    fn qos(&self) -> Option<QosState> {
        self.discipline.lock().state(&self.interface)
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        self.rx.lock().drain(..).map(|rx| Box::new(rx) as Box<dyn RxQueue>).collect()
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        let socket = socket::open_tx(&self.shared.name, self.shared.ifindex, self.qdisc_bypass)?;
        let counters = self.counters.tx(index);
        Ok(Box::new(tx::Tx::new(socket, self.shared.clone(), self.offloads, self.memory, counters)))
    }
}
