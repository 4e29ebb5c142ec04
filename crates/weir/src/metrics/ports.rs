//! Ports.

use ofproto::PortProtocols;
use ports::drop::TxDrops;
use ports::{Link, Stats};

use super::{Metric, Samples, metrics};

/// A port of a bridge.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its bridge.
    pub bridge: String,
    /// Its name.
    pub name: String,
    /// Type, "patch" included.
    pub kind: &'static str,
    /// OpenFlow number.
    pub ofport: u32,
    /// What its device says; a patch port has none.
    pub device: Option<Device>,
    /// What protocols say.
    pub protocols: PortProtocols,
}

/// What a device says.
#[derive(Clone, Debug)]
pub struct Device {
    /// Carrier, and what the administrator wants.
    pub link: Link,
    /// MTU in bytes.
    pub mtu: u32,
    /// Counters.
    pub stats: Stats,
    /// Why packets were not sent.
    pub tx_drops: TxDrops,
}

impl Port {
    /// Adds a sample of a device's counter, where it keeps that.
    fn add(&self, out: &mut Samples<'_>, of: fn(&Stats) -> u64) {
        if let Some(n) = self.device.as_ref().map(|device| of(&device.stats)).filter(|&n| n != Stats::UNKNOWN) {
            out.add(&[&self.bridge, &self.name], n);
        }
    }

    /// Adds a sample of what a protocol says, where the port takes part in it.
    fn add_protocol(&self, out: &mut Samples<'_>, of: fn(&PortProtocols) -> Option<bool>) {
        of(&self.protocols).iter().for_each(|&says| out.add(&[&self.bridge, &self.name], u32::from(says)));
    }

    /// Adds a sample of a device's state.
    fn add_state(&self, out: &mut Samples<'_>, of: fn(&Device) -> u32) {
        self.device.iter().for_each(|device| out.add(&[&self.bridge, &self.name], of(device)));
    }
}

/// What is said of each. A device's counters start when it is opened.
pub static METRICS: &[Metric<Port>] = metrics! {
    "weir_port_info" Gauge ["bridge", "port", "type", "ofport"]
        |p, out| out.add(&[&p.bridge, &p.name, p.kind, &p.ofport.to_string()], 1u64),
        "Always 1; the labels say of which type a port is, and its OpenFlow number.";
    "weir_port_up" Gauge ["bridge", "port"] |p, out| p.add_state(out, |d| u32::from(d.link.up)),
        "Whether the port has a carrier.";
    "weir_port_admin_up" Gauge ["bridge", "port"] |p, out| p.add_state(out, |d| u32::from(d.link.admin_up)),
        "Whether the administrator has enabled the port.";
    "weir_port_mtu_bytes" Gauge ["bridge", "port"] |p, out| p.add_state(out, |d| d.mtu),
        "The largest packet, without the Ethernet header.";
    "weir_port_bond_enabled" Gauge ["bridge", "port"] |p, out| p.add_protocol(out, |of| of.bond_enabled),
        "Whether a member of a bond carries traffic.";
    "weir_port_spanning_tree_forwarding" Gauge ["bridge", "port"] |p, out| p.add_protocol(out, |of| of.tree_forwards),
        "Whether the spanning tree lets the port forward; 0 is right for a port that would close a loop.";
    "weir_port_bfd_up" Gauge ["bridge", "port"] |p, out| p.add_protocol(out, |of| of.bfd_up), "Whether the session of BFD is up.";
    "weir_port_cfm_fault" Gauge ["bridge", "port"] |p, out| p.add_protocol(out, |of| of.cfm_fault), "Whether CFM has found a fault.";
    "weir_port_receive_packets_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.rx_packets), "Frames received.";
    "weir_port_receive_bytes_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.rx_bytes), "Bytes of these.";
    "weir_port_receive_dropped_packets_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.rx_dropped),
        "Frames that the device, its driver or its queue dropped before Weir could take them.";
    "weir_port_receive_errors_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.rx_errors),
        "Frames that are wrong, and calls of the system that failed.";
    "weir_port_receive_frame_errors_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.rx_frame_err),
        "Of these, frames that are malformed or cut short.";
    "weir_port_receive_overruns_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.rx_over_err),
        "Of the dropped ones, frames that the ring had no room for.";
    "weir_port_receive_crc_errors_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.rx_crc_err),
        "Frames with a wrong checksum, where the device tells.";
    "weir_port_transmit_packets_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.tx_packets), "Frames sent.";
    "weir_port_transmit_bytes_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.tx_bytes), "Bytes of these.";
    "weir_port_transmit_dropped_packets_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.tx_dropped),
        "Packets that were not sent for lack of room, a link or a peer.";
    "weir_port_transmit_errors_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.tx_errors),
        "Packets that were not sent because something is wrong with them or with the system.";
    "weir_port_transmit_drops_total" Counter ["bridge", "port", "reason"] transmit_drops,
        "Packets that were not sent, by the reason (docs/drops.md); reasons that have occurred.";
    "weir_port_collisions_total" Counter ["bridge", "port"] |p, out| p.add(out, |s| s.collisions), "Collisions, where the device tells.";
};

fn transmit_drops(p: &Port, out: &mut Samples<'_>) {
    let drops = p.device.iter().flat_map(|device| device.tx_drops.iter());
    drops.for_each(|(reason, n)| out.add(&[&p.bridge, &p.name, reason.name()], n));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_does_not_count_is_left_out() {
        let stats = Stats { rx_packets: 7, rx_crc_err: Stats::UNKNOWN, ..Stats::default() };
        let link = Link { up: true, ..Link::default() };
        let device = Some(Device { link, mtu: 1500, stats, tx_drops: TxDrops::default() });
        let protocols = PortProtocols { bfd_up: Some(false), ..PortProtocols::default() };
        let port = Port { bridge: "br0".into(), name: "p".into(), kind: "tap", ofport: 1, device, protocols };
        let patch = Port { name: "patch".into(), device: None, protocols: PortProtocols::default(), ..port.clone() };
        let mut text = String::new();
        for metric in METRICS {
            let mut samples = Samples::new(&mut text, metric.name, metric.labels);
            [&port, &patch].iter().for_each(|port| (metric.samples)(port, &mut samples));
        }
        assert!(text.contains("weir_port_receive_packets_total{bridge=\"br0\",port=\"p\"} 7\n"), "{text}");
        assert!(text.contains("weir_port_up{bridge=\"br0\",port=\"p\"} 1\n"), "{text}");
        assert!(text.contains("weir_port_bfd_up{bridge=\"br0\",port=\"p\"} 0\n"), "{text}");
        assert!(!text.contains("crc_errors") && !text.contains("cfm_fault"), "{text}");
        let of_patch: Vec<_> = text.lines().filter(|line| line.contains("\"patch\"")).collect();
        assert_eq!(of_patch, ["weir_port_info{bridge=\"br0\",port=\"patch\",type=\"tap\",ofport=\"1\"} 1"]);
    }
}
