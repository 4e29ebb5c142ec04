//! Tunnel ports.
//!
//! All tunnels of one protocol, of one UDP port where it has one, share a port of the datapath, at which packets come out of them: their
//! *carrier* (`vxlan_sys_4789`). Which OpenFlow port has received such a packet, its tunnel's key and addresses say.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use datapath::PortNo;
use datapath::text::tunnel::kinds;
use openflow::OfPort;
use packet::Key;
use packet::flow::tun_flags;
use packet::wire::ip_proto::{GRE, UDP};
use parking_lot::Mutex;
use ports::{Error as PortError, Features, Link, Mac, Port, RxQueue, Stats, TxDrops, TxQueue};
use tunnel::config::{Config, Kind};
use tunnel::header::Protocol;
use tunnel::matching::{Ports, Received, SameConfig};

use super::shared::{BridgeId, PatchCounters};

/// A tunnel port, as OpenFlow and the database know it.
#[derive(Debug)]
pub struct TunnelPort {
    name: String,
    /// Its options.
    pub config: Config,
    mac: Mutex<Mac>,
    enabled: AtomicBool,
    /// Number of the next packet, where packets are numbered.
    pub(crate) sequence: Arc<AtomicU32>,
    /// What has gone through it.
    pub(crate) counters: Arc<PatchCounters>,
    /// The port by which packets leave, and whether it has a carrier.
    egress: Mutex<Option<(String, bool)>>,
}

impl TunnelPort {
    /// A port of this name with these options.
    pub fn new(name: &str, config: Config, mac: Mac) -> Arc<TunnelPort> {
        Arc::new(TunnelPort {
            name: name.into(),
            config,
            mac: Mutex::new(mac),
            enabled: AtomicBool::new(true),
            sequence: Arc::default(),
            counters: Arc::default(),
            egress: Mutex::default(),
        })
    }

    /// Whether the administrator has not disabled it.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    /// Whether its packets are numbered.
    pub(crate) fn is_numbered(&self) -> bool {
        self.config.sequence || self.config.kind.is_erspan()
    }

    /// Notes the port by which packets leave, and whether it has a carrier.
    pub fn set_egress(&self, egress: Option<(String, bool)>) {
        *self.egress.lock() = egress;
    }
}

impl Port for TunnelPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        self.config.kind.name()
    }

    fn mac(&self) -> Mac {
        *self.mac.lock()
    }

    fn set_mac(&self, mac: Mac) -> Result<(), PortError> {
        *self.mac.lock() = mac;
        Ok(())
    }

    /// The largest: the size of what is tunnelled is limited where it leaves.
    fn mtu(&self) -> u32 {
        65535
    }

    fn link(&self) -> Link {
        Link { up: true, admin_up: self.is_enabled(), resets: 0 }
    }

    fn is_tunnel(&self) -> bool {
        true
    }

    fn set_admin_up(&self, up: bool) -> Result<(), PortError> {
        self.enabled.store(up, Relaxed);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.counters.stats()
    }

    fn tx_drops(&self) -> TxDrops {
        TxDrops::default()
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        let Some((name, carrier)) = self.egress.lock().clone() else { return Vec::new() };
        let carrier = if carrier { "up" } else { "down" };
        vec![("tunnel_egress_iface", name), ("tunnel_egress_iface_carrier", carrier.into())]
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        Vec::new()
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    /// Never used: packets are sent by ports of the underlay.
    fn tx_queue(&self, _: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Err(PortError::NoInterface { port: self.name.clone() })
    }
}

/// A port of the datapath at which packets come out of tunnels.
#[derive(Debug, Clone)]
pub(crate) struct Carrier {
    /// Its name in the datapath.
    pub name: String,
    /// Its number there.
    pub dp_port: PortNo,
    kind: Kind,
    /// UDP port; zero where there is none.
    udp_port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// How many tunnel ports it is for.
    pub users: usize,
}

impl Carrier {
    /// Whether its packets can have options.
    pub fn has_options(&self) -> bool {
        self.protocol == Protocol::Geneve
    }
}

/// The name in the datapath of what carries tunnels with these options.
pub(crate) fn carrier_name(config: &Config) -> String {
    let port = config.dst_port;
    match config.kind {
        Kind::Geneve => format!("genev_sys_{port}"),
        Kind::Vxlan | Kind::Gtpu | Kind::Lisp | Kind::Bareudp => format!("{}_sys_{port}", config.kind.name()),
        kind => format!("{}_sys", kind.name()),
    }
}

/// The number of a tunnel's type in the text of datapath actions. Types that go over IPv4 and IPv6 have two.
pub(crate) fn kind_number(kind: Kind, is_v6: bool) -> u32 {
    match kind {
        Kind::Vxlan => kinds::VXLAN,
        Kind::Geneve => kinds::GENEVE,
        Kind::Erspan | Kind::Ip6erspan if is_v6 => kinds::IP6ERSPAN,
        Kind::Erspan | Kind::Ip6erspan => kinds::ERSPAN,
        Kind::Gre | Kind::Ip6gre if is_v6 => kinds::IP6GRE,
        Kind::Gre | Kind::Ip6gre => kinds::GRE,
        Kind::Gtpu => kinds::GTPU,
        Kind::Lisp => kinds::LISP,
        Kind::Bareudp => kinds::BAREUDP,
        Kind::Srv6 => kinds::SRV6,
    }
}

/// Which port a packet has come in at.
pub(crate) enum Located<'a> {
    /// The datapath port says it.
    Plain,
    /// It came through this tunnel port.
    Tunnel(&'a (BridgeId, OfPort)),
    /// It came through a tunnel of which no port is.
    Nowhere,
}

/// All tunnel ports.
#[derive(Default)]
pub(crate) struct Tunnels {
    /// Which port a packet has come through.
    pub matching: Ports<(BridgeId, OfPort)>,
    carriers: Vec<Carrier>,
}

impl Tunnels {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.carriers.is_empty()
    }

    /// The carrier with this number in the datapath.
    pub fn carrier(&self, dp_port: PortNo) -> Option<&Carrier> {
        self.carriers.iter().find(|carrier| carrier.dp_port == dp_port)
    }

    /// The number in the datapath of the carrier for tunnels with these options.
    pub fn carrier_of(&self, config: &Config) -> Option<PortNo> {
        let name = carrier_name(config);
        self.carriers.iter().find(|carrier| carrier.name == name).map(|carrier| carrier.dp_port)
    }

    /// All carriers.
    pub fn carriers(&self) -> &[Carrier] {
        &self.carriers
    }

    /// Adds a carrier without users.
    pub fn add_carrier(&mut self, config: &Config, protocol: Protocol, dp_port: PortNo) {
        let udp_port = if protocol.ip_proto() == UDP { config.dst_port } else { 0 };
        let name = carrier_name(config);
        self.carriers.push(Carrier { name, dp_port, kind: config.kind, udp_port, protocol, users: 0 });
    }

    /// Adds a port, whose carrier is there.
    pub fn add(&mut self, name: &str, config: &Config, port: (BridgeId, OfPort)) -> Result<(), SameConfig> {
        let wanted = carrier_name(config);
        let Some(carrier) = self.carriers.iter_mut().find(|carrier| carrier.name == wanted) else { return Ok(()) };
        self.matching.add(name, config.matching(carrier.dp_port.0), port)?;
        carrier.users += 1;
        Ok(())
    }

    /// Removes a port.
    pub fn remove(&mut self, config: &Config) {
        let wanted = carrier_name(config);
        let Some(carrier) = self.carriers.iter_mut().find(|carrier| carrier.name == wanted) else { return };
        carrier.users -= 1;
        self.matching.remove(&config.matching(carrier.dp_port.0));
    }

    /// Which port a packet with the key of a datapath has come in at.
    pub fn locate(&self, key: &Key) -> Located<'_> {
        let dp_port = key.common().in_port.get();
        if self.carrier(PortNo(dp_port)).is_none() {
            return Located::Plain;
        }
        let tunnel = key.tunnel();
        let (src, dst) = match (tunnel.tun_src.get(), tunnel.tun_dst.get()) {
            (0, 0) => (IpAddr::from(tunnel.tun_ipv6_src), IpAddr::from(tunnel.tun_ipv6_dst)),
            (src, dst) => (IpAddr::V4(src.into()), IpAddr::V4(dst.into())),
        };
        let is_ethernet = tunnel.tun_flags.get() & tun_flags::BARE == 0;
        let received = Received { datapath_port: dp_port, key: tunnel.tun_id.get(), src, dst, is_ethernet };
        self.matching.find(&received).map_or(Located::Nowhere, Located::Tunnel)
    }

    /// Takes out the carriers that no port uses any more. Returns their numbers.
    pub fn take_unused(&mut self) -> Vec<PortNo> {
        self.carriers.extract_if(.., |carrier| carrier.users == 0).map(|carrier| carrier.dp_port).collect()
    }

    /// The protocol of the carrier for tunnels with these options, if it is there, and how many ports it is for.
    pub fn protocol_and_users(&self, config: &Config) -> Option<(Protocol, usize)> {
        let name = carrier_name(config);
        self.carriers.iter().find(|carrier| carrier.name == name).map(|carrier| (carrier.protocol, carrier.users))
    }

    /// The carrier of packets of this IP protocol, to this UDP port, over IPv6 or not.
    pub fn listener(&self, ip_proto: u8, udp_port: u16, is_v6: bool) -> Option<&Carrier> {
        if ip_proto == UDP {
            let of_port = |carrier: &&Carrier| carrier.udp_port == udp_port && carrier.protocol.ip_proto() == UDP;
            return self.carriers.iter().find(of_port);
        }
        if ip_proto != GRE {
            return self.carriers.iter().find(|carrier| carrier.protocol.flow_protos().contains(&ip_proto));
        }
        let of_kind = |kinds: [Kind; 2]| kinds.iter().find_map(|kind| self.carriers.iter().find(|c| c.kind == *kind));
        let order = |v4: Kind, v6: Kind| if is_v6 { [v6, v4] } else { [v4, v6] };
        of_kind(order(Kind::Gre, Kind::Ip6gre)).or_else(|| of_kind(order(Kind::Erspan, Kind::Ip6erspan)))
    }

    /// The carrier of frames of ERSPAN.
    pub fn erspan(&self, is_v6: bool) -> Option<&Carrier> {
        let kinds = if is_v6 { [Kind::Ip6erspan, Kind::Erspan] } else { [Kind::Erspan, Kind::Ip6erspan] };
        kinds.iter().find_map(|kind| self.carriers.iter().find(|carrier| carrier.kind == *kind))
    }

    /// Whether any carrier is of this IP protocol.
    pub fn listens_to(&self, ip_proto: u8) -> bool {
        self.carriers.iter().any(|carrier| carrier.protocol.flow_protos().contains(&ip_proto))
    }
}
