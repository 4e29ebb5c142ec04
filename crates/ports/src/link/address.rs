//! IPv4 addresses of an interface, and the way to everywhere through it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeader, AddressMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Interface;
use crate::Error;

/// What a host speaks IPv4 with by an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Config {
    /// Its address there.
    pub address: Ipv4Addr,
    /// How many bits of it are those of the network.
    pub prefix_len: u8,
    /// The router that leads everywhere else, where the host has none.
    pub gateway: Option<Ipv4Addr>,
}

impl Interface {
    /// Gives the interface an address, in the place of `old` if that is another one, and the default route by its router unless there is one.
    pub fn set_ipv4(&self, config: &Ipv4Config, old: Option<&Ipv4Config>) -> Result<(), Error> {
        let index = self.index();
        let of = |config: &Ipv4Config| (config.address, config.prefix_len);
        if let Some(old) = old.filter(|old| of(old) != of(config)) {
            // Somebody else may have taken it away.
            let _ = self.ask(RouteNetlinkMessage::DelAddress(address(index, old)), 0);
        }
        let add = RouteNetlinkMessage::NewAddress(address(index, config));
        let added = self.there().and_then(|()| self.ask(add, NLM_F_CREATE | NLM_F_REPLACE));
        added.map_err(|e| self.error(&format!("set the address {}/{}", config.address, config.prefix_len), e))?;
        let Some(gateway) = config.gateway else { return Ok(()) };
        match self.ask(RouteNetlinkMessage::NewRoute(default_route(index, gateway)), NLM_F_CREATE | NLM_F_EXCL) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.error(&format!("add the default route by {gateway}"), error))
            }
            _ => Ok(()),
        }
    }

    fn ask(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.table.requests().requests().ask(request, flags | NLM_F_ACK).map(drop)
    }
}

fn address(index: u32, config: &Ipv4Config) -> AddressMessage {
    let mut message = AddressMessage::default();
    let (family, prefix_len) = (AddressFamily::Inet, config.prefix_len);
    message.header = AddressHeader { family, prefix_len, index, ..AddressHeader::default() };
    let host = u32::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
    let address = IpAddr::V4(config.address);
    message.attributes = vec![AddressAttribute::Address(address), AddressAttribute::Local(address)];
    if prefix_len < 31 {
        message.attributes.push(AddressAttribute::Broadcast((u32::from(config.address) | host).into()));
    }
    message
}

fn default_route(index: u32, gateway: Ipv4Addr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: AddressFamily::Inet,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Boot,
        scope: RouteScope::Universe,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Gateway(IpAddr::V4(gateway).into()), RouteAttribute::Oif(index)];
    message
}
