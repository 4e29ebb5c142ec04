//! The addresses of bridges and of ports that have none of their own.
//!
//! A bridge has the lowest address of its network cards, as in OVS: a host that puts its card into a bridge, and its IP addresses on the
//! bridge's LOCAL port, is known to its network as before. Addresses that are administered locally are no card's; a bridge that has no
//! others makes one from its name, which stays the same.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;

use ofproto::MirrorOutput;
use ports::Mac;
use ports::link::Ipv4Config;

use crate::config::desired::{BridgeSettings, Port};

/// Addresses of stations that are no station's: those of protocols (EDP, ESRP).
const RESERVED: [Mac; 3] = [[0, 0xe0, 0x2b, 0, 0, 0], [0, 0xe0, 0x2b, 0, 0, 4], [0, 0xe0, 0x2b, 0, 0, 6]];

/// Whether an address may be that of a network card: of one station, and administered globally.
pub fn is_of_card(mac: Mac) -> bool {
    mac[0] & 3 == 0 && mac != [0; 6] && !RESERVED.contains(&mac)
}

/// The lowest address of the ports of a bridge. `devices`: those of its interfaces, as far as they are of network cards. What mirrors send to
/// has no say. A port says by its `mac` which address it has; else a bond has that of the interface whose name comes first, as Linux's
/// bonds do.
pub fn lowest(
    settings: &BridgeSettings,
    ports: &BTreeMap<String, Port>,
    devices: &HashMap<String, Mac>,
) -> Option<Mac> {
    let outputs: HashSet<&str> = settings
        .mirrors
        .iter()
        .filter_map(|mirror| match &mirror.output {
            MirrorOutput::Port(name) => Some(&**name),
            MirrorOutput::Vlan(_) => None,
        })
        .collect();
    let of_port = |port: &Port| match port.mac {
        Some(mac) => Some(mac).filter(|mac| is_of_card(*mac)),
        None => devices.get(port.members().next()?).copied(),
    };
    ports.iter().filter(|(name, _)| !outputs.contains(&***name)).filter_map(|(_, port)| of_port(port)).min()
}

/// The datapath id that an address stands for (OpenFlow 1.0 section 5.3.1).
pub fn datapath_id(mac: Mac) -> u64 {
    mac.iter().fold(0, |id, &octet| id << 8 | u64::from(octet))
}

/// A locally administered address that is the same at every start, on this machine and in this network namespace, for
/// this name. `origin` tells it from those that other switches make there of the same name: machines that were copied have one id, and
/// switches that share a network namespace may have one segment.
pub fn stable_mac(name: &str, origin: &str) -> Mac {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let namespace = other_namespace().map(|inode| inode.to_string()).unwrap_or_default();
    // FNV-1a: the address has to stay the same in every version of Weir.
    let hash = machine
        .bytes()
        .chain(name.bytes())
        .chain(namespace.bytes())
        .chain(origin.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let [_, _, mut mac @ ..] = (hash ^ hash >> 48).to_be_bytes();
    mac[0] = mac[0] & 0xfc | 0x02;
    mac
}

/// The network namespace, where it is another than that of the machine's first process. Switches in two namespaces may
/// meet on one segment, with bridges of one name.
fn other_namespace() -> Option<u64> {
    let inode = |process: &str| std::fs::metadata(format!("/proc/{process}/ns/net")).ok().map(|found| found.ino());
    let own = inode("self")?;
    (own != inode("1")?).then_some(own)
}

/// Has the host speak IPv4 by a LOCAL port, which is set up for that.
pub fn set_ipv4(bridge: &str, local: &dyn ports::Port, config: &Ipv4Config, old: Option<&Ipv4Config>) {
    let Ipv4Config { address, prefix_len, gateway } = config;
    match local.set_admin_up(true).and_then(|()| local.set_ipv4(config, old)) {
        Ok(()) => {
            let by = gateway.map(|gateway| format!(", gateway {gateway}")).unwrap_or_default();
            tracing::info!(target: "bridge", "bridge {bridge}: configured IP address {address}/{prefix_len}{by}");
        }
        Err(error) => tracing::warn!(target: "bridge", "bridge {bridge}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use ofproto::{Mirror, PortSelection};

    use super::*;
    use crate::config::desired::{Interface, Vlans};

    #[test]
    fn made_up_addresses_are_local_stable_and_different() {
        let (a, b) = (stable_mac("br0", ""), stable_mac("br1", ""));
        assert_eq!(a[0] & 3, 2, "locally administered, unicast");
        assert_eq!(a, stable_mac("br0", ""));
        assert_ne!(a, b);
        let (c, d) = (stable_mac("br0", "one database"), stable_mac("br0", "another"));
        assert!(a != c && c != d, "switches of one machine");
    }

    #[test]
    fn an_address_is_a_datapath_id() {
        assert_eq!(datapath_id([2, 0, 0, 0, 0, 9]), 0x0000_0200_0000_0009);
    }

    #[test]
    fn the_lowest_address_of_a_card_is_the_bridges() {
        let card = |n: u8| [0, 0x1b, 0x21, 0, 0, n];
        let port = |interfaces: &[&str], mac| {
            let interfaces = interfaces.iter().map(|name| (String::from(*name), Interface::default())).collect();
            Port { interfaces, mac, vlans: Vlans::default(), ..Port::default() }
        };
        let mut ports = BTreeMap::from([
            ("eth0".to_owned(), port(&["eth0"], None)),
            ("bond".to_owned(), port(&["eth2", "eth1"], None)),
            ("tap".to_owned(), port(&["tap"], None)),
        ]);
        let devices: HashMap<String, Mac> =
            [("eth0", card(5)), ("eth1", card(7)), ("eth2", card(3))].map(|(name, mac)| (name.to_owned(), mac)).into();
        let mut settings = BridgeSettings::default();
        assert_eq!(lowest(&settings, &ports, &devices), Some(card(5)), "a bond has the address of its first interface");
        ports.insert("other".to_owned(), port(&["tap1"], Some(card(4))));
        assert_eq!(lowest(&settings, &ports, &devices), Some(card(4)), "a port can say which it has");
        ports.insert("other".to_owned(), port(&["eth0"], Some(stable_mac("x", ""))));
        assert_eq!(lowest(&settings, &ports, &devices), Some(card(5)), "no card has such an address");
        settings.mirrors.push(Mirror {
            name: "m".to_owned(),
            sources: PortSelection::All,
            destinations: PortSelection::All,
            vlans: None,
            output: MirrorOutput::Port("eth0".to_owned()),
            max_len: None,
        });
        assert_eq!(lowest(&settings, &ports, &devices), Some(card(7)), "copies go to eth0 and nothing else");
        ports.remove("bond");
        assert_eq!(lowest(&settings, &ports, &devices), None);
        for no_card in [[1, 0, 0x5e, 0, 0, 1], [2, 0, 0, 0, 0, 1], [0; 6], [0xff; 6], [0, 0xe0, 0x2b, 0, 0, 4]] {
            assert!(!is_of_card(no_card));
        }
    }
}
