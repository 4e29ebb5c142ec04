//! The IP address of a LOCAL port, which the table Controller has (ovs-vswitchd.conf.db(5), "Additional In-Band Configuration").

use std::net::Ipv4Addr;

use ovsdb::Row;
use ports::link::Ipv4Config;

/// What the host is to speak IPv4 with to reach a controller; `None` where it says nothing of that.
pub fn ipv4(controller: &Row) -> Option<Result<Ipv4Config, String>> {
    let columns = ["local_ip", "local_netmask", "local_gateway"].map(|column| (column, controller.string(column)));
    let parse = |(column, text): (&str, Option<&str>)| -> Result<Option<Ipv4Addr>, String> {
        let parsed = text.map(|text| text.parse().map_err(|_| format!("{column} {text:?} is not an address of IPv4")));
        parsed.transpose()
    };
    let [address, netmask, gateway] = columns.map(parse);
    let config = |address: Ipv4Addr| {
        let prefix_len = match netmask?.filter(|mask| !mask.is_unspecified()) {
            Some(mask) if u32::from(mask).count_zeros() == u32::from(mask).trailing_zeros() => {
                u32::from(mask).leading_ones() as u8
            }
            Some(mask) => return Err(format!("local_netmask {mask} is not the mask of a network")),
            None => class_of(address).ok_or_else(|| format!("local_ip {address} is not the address of a host"))?,
        };
        let gateway = gateway?.filter(|gateway| !gateway.is_unspecified());
        Ok(Ipv4Config { address, prefix_len, gateway })
    };
    address.transpose().map(|address| address.and_then(config))
}

/// The length of the prefix of a network without a mask of its own: that of its class (RFC 791 section 2.3).
fn class_of(address: Ipv4Addr) -> Option<u8> {
    match address.octets()[0] {
        1..128 => Some(8),
        128..192 => Some(16),
        192..224 => Some(24),
        _ => None,
    }
}
