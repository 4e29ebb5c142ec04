//! Tunnel ports, which are there and carry nothing yet: no route leads to their other end.
//!
//! A database that comes from Open vSwitch, or a controller, may name tunnels long before a packet is to
//! cross one. Such a port takes its number and its place in the OpenFlow tables; what is sent to it is
//! dropped and counted, as a switch does that knows no route to the remote address, and its status says so.
//! Encapsulation comes with routes and neighbours, and takes the place of this module.

use std::net::IpAddr;
use std::sync::Arc;

use packet::{Batch, Time};

use crate::kind::{Env, Kind};
use crate::options::{Form, OptionDef, Options};
use crate::spec::PortSpec;
use crate::stats::{PortCounters, TxCounters};
use crate::virtual_port::{VirtualPort, mac_from_name};
use crate::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxDrop, TxDrops, TxQueue};

const fn text(name: &'static str, doc: &'static str) -> OptionDef {
    OptionDef { name, form: Form::Text, doc }
}

/// Declaration of these kinds.
pub const KIND: Kind = Kind {
    names: &["gre", "ip6gre", "erspan", "ip6erspan", "vxlan", "geneve", "gtpu", "bareudp", "srv6"],
    doc: "Tunnel, which carries nothing yet: packets sent to it are dropped and counted.",
    options: &[
        text("remote_ip", "Address of the other end, or \"flow\"."),
        text("local_ip", "Address of this end, or \"flow\"."),
        text("key", "Key in both directions, or \"flow\"."),
        text("in_key", "Key of received packets, or \"flow\"."),
        text("out_key", "Key of sent packets, or \"flow\"."),
        OptionDef { name: "dst_port", form: Form::Number(1, 65535), doc: "UDP port of the other end." },
        text("tos", "Outer TOS, or \"inherit\"."),
        text("ttl", "Outer TTL, or \"inherit\"."),
        OptionDef { name: "df_default", form: Form::Bool, doc: "Set the outer don't-fragment bit; true by default." },
        OptionDef { name: "csum", form: Form::Bool, doc: "Compute outer checksums." },
        OptionDef { name: "seq", form: Form::Bool, doc: "Number the packets (GRE)." },
        text("egress_pkt_mark", "Mark of sent packets."),
        text("exts", "Extensions of the encapsulation."),
        text("packet_type", "legacy_l2, legacy_l3 or ptap."),
        text("pt_mode", "As packet_type."),
        text("erspan_ver", "Version of ERSPAN."),
        text("erspan_idx", "Index of ERSPAN version 1."),
        text("erspan_dir", "Direction of ERSPAN version 2."),
        text("erspan_hwid", "Hardware id of ERSPAN version 2."),
        text("srv6_segs", "Segments of SRv6."),
        text("srv6_flowlabel", "Outer flow label of SRv6."),
    ],
    open: |spec, options, env| Ok(Tunnel::open(spec, options, env)?),
};

/// A tunnel port.
#[derive(Debug)]
struct Tunnel {
    state: VirtualPort,
    kind: &'static str,
    remote: String,
    counters: PortCounters,
}

impl Tunnel {
    fn open(spec: &PortSpec, options: &Options, _: &Env) -> Result<Arc<Tunnel>, Error> {
        let kind = KIND.names.iter().find(|name| **name == spec.kind).copied().unwrap_or(KIND.names[0]);
        let remote = match options.text("remote_ip") {
            Some("flow") => "flow".to_owned(),
            Some(address) => match address.parse::<IpAddr>() {
                Ok(ip) if ip.is_multicast() => {
                    return Err(options.error("remote_ip", "a multicast address is not allowed"));
                }
                Ok(ip) => ip.to_string(),
                Err(_) => return Err(options.error("remote_ip", format!("{address:?} is no IP address, nor \"flow\""))),
            },
            None => return Err(options.error("remote_ip", format!("missing; {kind} needs an IP address or \"flow\""))),
        };
        let state = VirtualPort::new(spec, mac_from_name(&spec.name));
        Ok(Arc::new(Tunnel { state, kind, remote, counters: PortCounters::default() }))
    }
}

impl Port for Tunnel {
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
        vec![("tunnel", format!("carries nothing: no route to {} (tunnels are not built yet)", self.remote))]
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        Vec::new()
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(NoRoute(self.counters.tx(index))))
    }
}

/// Where packets end that no route leads on.
struct NoRoute(Arc<TxCounters>);

impl TxQueue for NoRoute {
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
    use crate::registry::open;

    fn tunnel(kind: &str, options: &[(&str, &str)]) -> Result<Arc<dyn Port>, Error> {
        open(&PortSpec::new("t0", kind).with(options), &Env::default())
    }

    #[test]
    fn what_is_sent_is_dropped_and_counted() {
        let port = tunnel("vxlan", &[("remote_ip", "192.0.2.1"), ("key", "flow")]).unwrap();
        assert_eq!((port.kind(), port.link().up), ("vxlan", true));
        assert!(port.status()[0].1.contains("no route to 192.0.2.1"), "{:?}", port.status());
        let mut batch: Batch = (0..3).map(|_| Packet::from_slice(&[0; 60])).collect();
        assert_eq!(port.tx_queue(0).unwrap().transmit(&mut batch, Time(1)), 0);
        assert!(batch.is_empty());
        assert_eq!((port.stats().tx_packets, port.stats().tx_dropped), (0, 3));
        assert!(port.take_rx_queues().is_empty());
    }

    #[test]
    fn options_are_checked() {
        for (remote, says) in
            [(None, "needs an IP address"), (Some("nowhere"), "no IP address"), (Some("224.0.0.1"), "multicast")]
        {
            let options: Vec<_> = remote.map(|r| ("remote_ip", r)).into_iter().collect();
            let error = tunnel("gre", &options).err().unwrap().to_string();
            assert!(error.contains(says), "{error}");
        }
        for remote in ["flow", "2001:db8::1"] {
            assert!(tunnel("geneve", &[("remote_ip", remote)]).is_ok());
        }
    }
}
