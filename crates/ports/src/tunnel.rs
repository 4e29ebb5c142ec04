//! Where packets come out of tunnels: a port of the datapath for each protocol and UDP port, which all tunnels of that kind
//! share (`vxlan_sys_4789`). No device belongs to it: workers take packets out of their tunnels, and classify them again as received
//! here; and they put headers before packets, and send the result by a port of the underlay.

use std::sync::Arc;

use packet::{Batch, Time};

use crate::kind::Kind;
use crate::options::{Form, OptionDef};
use crate::spec::PortSpec;
use crate::stats::{PortCounters, TxCounters};
use crate::virtual_port::{VirtualPort, mac_from_name};
use crate::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxDrop, TxDrops, TxQueue};

const fn text(name: &'static str, doc: &'static str) -> OptionDef {
    OptionDef { name, form: Form::Text, doc }
}

/// Declaration of these kinds. What their options mean is the business of the crate `tunnel`.
pub const KIND: Kind = Kind {
    names: &["gre", "ip6gre", "erspan", "ip6erspan", "vxlan", "geneve", "gtpu", "lisp", "bareudp", "srv6"],
    doc: "Tunnel to another host, over the routes and neighbours of the kernel and of bridges.",
    options: &[
        text("remote_ip", "Address of the other end, or \"flow\"."),
        text("local_ip", "Address of this end, or \"flow\"."),
        text("key", "Key in both directions, or \"flow\"."),
        text("in_key", "Key of received packets, or \"flow\"."),
        text("out_key", "Key of sent packets, or \"flow\"."),
        text("dst_port", "UDP port of the other end."),
        text("tos", "Outer TOS, or \"inherit\"."),
        text("ttl", "Outer TTL, or \"inherit\"."),
        text("df_default", "Set the outer don't-fragment bit; true by default."),
        text("csum", "Compute outer checksums."),
        text("seq", "Number the packets (GRE)."),
        text("egress_pkt_mark", "Mark of sent packets."),
        text("exts", "Extensions of VXLAN: \"gbp\", \"gpe\"."),
        text("packet_type", "legacy_l2, legacy_l3 or ptap."),
        text("pt_mode", "As packet_type."),
        text("erspan_ver", "Version of ERSPAN."),
        text("erspan_idx", "Index of ERSPAN version 1."),
        text("erspan_dir", "Direction of ERSPAN version 2."),
        text("erspan_hwid", "Hardware id of ERSPAN version 2."),
        text("payload_type", "Ethernet type that bareudp carries."),
        text("srv6_segs", "Segments of SRv6."),
        text("srv6_flowlabel", "Outer flow label of SRv6."),
    ],
    open: |spec, _, _| {
        let kind = KIND.names.iter().find(|name| **name == spec.kind).copied().unwrap_or(KIND.names[0]);
        Ok(TunnelPort::new(&spec.name, kind))
    },
};

/// A port that packets come out of tunnels at.
#[derive(Debug)]
pub struct TunnelPort {
    state: VirtualPort,
    kind: &'static str,
    counters: PortCounters,
}

impl TunnelPort {
    /// A port of this name and kind.
    pub fn new(name: &str, kind: &'static str) -> Arc<TunnelPort> {
        let state = VirtualPort::new(&PortSpec::new(name, kind), mac_from_name(name));
        Arc::new(TunnelPort { state, kind, counters: PortCounters::default() })
    }
}

impl Port for TunnelPort {
    fn name(&self) -> &str {
        &self.state.name
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn mac(&self) -> Mac {
        self.state.mac()
    }

    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        self.state.set_mac(mac);
        Ok(())
    }

    /// The largest: the size of what is tunnelled is limited where it leaves.
    fn mtu(&self) -> u32 {
        crate::virtual_port::MAX_MTU
    }

    fn link(&self) -> Link {
        self.state.link()
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.state.set_admin_up(up);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.counters.sum()
    }

    fn tx_drops(&self) -> TxDrops {
        self.counters.tx_drops()
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        Vec::new()
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Nowhere(self.counters.tx(index))))
    }
}

/// What is sent to the port itself, as only a flow of an operator does, has no headers.
struct Nowhere(Arc<TxCounters>);

impl TxQueue for Nowhere {
    fn transmit(&mut self, batch: &mut Batch, _now: Time) -> usize {
        self.0.dropped(TxDrop::NotConnected, batch.len());
        batch.clear();
        0
    }
}

#[cfg(test)]
mod tests {
    use packet::Packet;

    use super::*;

    #[test]
    fn what_is_sent_to_the_port_itself_is_dropped_and_counted() {
        let port = TunnelPort::new("vxlan_sys_4789", "vxlan");
        assert_eq!((port.kind(), port.link().up, port.is_tunnel()), ("vxlan", true, true));
        let mut batch: Batch = (0..3).map(|_| Packet::from_slice(&[0; 60])).collect();
        assert_eq!(port.tx_queue(0).unwrap().transmit(&mut batch, Time(1)), 0);
        assert!(batch.is_empty());
        assert_eq!((port.stats().tx_packets, port.stats().tx_dropped), (0, 3));
        assert!(port.take_rx_queues().is_empty());
    }
}
