//! Packets that come back from connection tracking, or to a bond: which they are, and as what they come back.
//!
//! A trace does not track: the state that the packet comes back with is what the user says (`--ct-next`), or `new`. Where the
//! connection is to be translated, the packet has the first address and port of the range.

use std::collections::VecDeque;

use openflow::action::{Nat, NatAddrs, NatKind};
use packet::flow::text::{flags, number};
use packet::{Field, Key, put};

/// Bits of ct_state.
const NEW: u32 = conntrack::CtState::NEW.0 as u32;
const EST: u32 = conntrack::CtState::EST.0 as u32;
const RPL: u32 = conntrack::CtState::RPL.0 as u32;
const INV: u32 = conntrack::CtState::INV.0 as u32;
const TRK: u32 = conntrack::CtState::TRK.0 as u32;

/// A packet that is recirculated.
pub(crate) struct Fork {
    /// The packet, with its recirculation id.
    key: Key,
    reason: Reason,
}

enum Reason {
    /// By ct, and how its connection is to be translated.
    Tracked(Option<Nat>),
    /// For this bond, with its hash.
    Hashed(String),
}

/// Reads the argument of `--ct-next`: flags of ct_state, separated by commas or spaces.
pub fn parse_ct_state(text: &str) -> Result<u32, String> {
    let mut state = 0;
    for name in text.split([',', ' ']).filter(|name| !name.is_empty()) {
        let bit = flags::CT_STATE.names.iter().position(|known| *known == name);
        state |= 1 << bit.ok_or_else(|| format!("{name}: unknown connection tracking state flag"))?;
    }
    check(state)?;
    Ok(state)
}

/// Whether there is such a state.
pub(crate) fn is_ct_state(state: u32) -> bool {
    check(state).is_ok()
}

/// Whether there is such a state (ovs-fields(7)).
fn check(state: u32) -> Result<(), String> {
    let wrong = [
        (state != 0 && state & TRK == 0, "If \"trk\" is unset, no other flags are set"),
        (state & INV != 0 && state & !(TRK | INV) != 0, "when \"inv\" is set, only \"trk\" may also be set"),
        (state & NEW != 0 && state & EST != 0, "\"new\" and \"est\" are mutually exclusive"),
        (state & NEW != 0 && state & RPL != 0, "\"new\" and \"rpy\" are mutually exclusive"),
    ];
    let text: String = wrong.into_iter().filter(|(is_wrong, _)| *is_wrong).fold(String::new(), |mut text, (_, why)| {
        put!(text, "{}: invalid connection state: {why}\n", text_of(state));
        text
    });
    if text.is_empty() { Ok(()) } else { Err(text) }
}

fn text_of(state: u32) -> String {
    let mut text = String::new();
    flags::CT_STATE.format(&mut text, state.into());
    text
}

impl Fork {
    /// What a translation tells of a packet that is recirculated ([`Event::Fork`](crate::xlate::trace::Event::Fork)).
    pub fn new(recirc_id: u32, key: &Key, zone: u16, nat: Option<&Nat>) -> Fork {
        let mut key = key.clone();
        key.common_mut().recirc_id = recirc_id.into();
        key.set(Field::CtZone, zone.into());
        Fork { key, reason: Reason::Tracked(nat.cloned()) }
    }

    /// The same of one that is recirculated with its hash ([`Event::Hashed`](crate::xlate::trace::Event::Hashed)).
    pub fn hashed(recirc_id: u32, key: &Key, hash: u32, bond: &str) -> Fork {
        let mut key = key.clone();
        let common = key.common_mut();
        (common.recirc_id, common.dp_hash) = (recirc_id.into(), hash.into());
        Fork { key, reason: Reason::Hashed(bond.to_owned()) }
    }

    /// The packet as it comes back, and what a trace says about it. Takes the next of the states.
    pub fn resume(self, states: &mut VecDeque<u32>) -> (Key, String) {
        let Fork { mut key, reason } = self;
        let mut about = format!("recirc({:#x}) - resume ", key.common().recirc_id.get());
        let nat = match reason {
            Reason::Tracked(nat) => nat,
            Reason::Hashed(bond) => {
                put!(about, "bond {bond} with dp_hash={:#x}\n", key.common().dp_hash.get());
                return (key, about);
            }
        };
        about += "conntrack with ";
        let state = states.pop_front();
        match state {
            None => about += "default ct_state=trk|new (use --ct-next to customize)\n",
            Some(state) => put!(about, "ct_state={}\n", text_of(state)),
        }
        key.set(Field::CtState, state.unwrap_or(TRK | NEW).into());
        if let Some(nat) = nat {
            about += "Replacing src/dst IP/ports to simulate NAT:\n Initial flow: ";
            endpoints(&mut about, &key, &nat);
            translate(&mut key, &nat);
            about += " Modified flow: ";
            endpoints(&mut about, &key, &nat);
        }
        (key, about)
    }
}

/// Gives the packet the first address and port of a range.
fn translate(key: &mut Key, nat: &Nat) {
    let Some(kind) = nat.kind else { return };
    let (v4, v6, port) = match kind {
        NatKind::Src => (Field::NwSrc, Field::Ipv6Src, Field::TcpSrc),
        NatKind::Dst => (Field::NwDst, Field::Ipv6Dst, Field::TcpDst),
    };
    match nat.addrs {
        NatAddrs::None => return,
        NatAddrs::V4(first, _) => key.set(v4, u32::from(first).into()),
        NatAddrs::V6(first, _) => key.set(v6, first.into()),
    }
    if let Some((first, _)) = nat.ports {
        key.set(port, first.into());
    }
}

/// The addresses and ports of a packet, where the translation names addresses.
fn endpoints(out: &mut String, key: &Key, nat: &Nat) {
    let [src, dst] = [Field::TcpSrc, Field::TcpDst].map(|field| key.get(field));
    match nat.addrs {
        NatAddrs::None => {}
        NatAddrs::V4(..) => {
            let [from, to] = [Field::NwSrc, Field::NwDst].map(|field| std::net::Ipv4Addr::from(key.get(field) as u32));
            put!(out, "nw_src={from},tp_src={src},nw_dst={to},tp_dst={dst}");
        }
        NatAddrs::V6(..) => {
            for (name, address, port) in [
                ("ipv6_src=[", Field::Ipv6Src, format!("],tp_src={src},")),
                ("ipv6_dst=[", Field::Ipv6Dst, format!("],tp_dst={dst}")),
            ] {
                out.push_str(name);
                number::ipv6(out, key.get(address));
                out.push_str(&port);
            }
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_the_command_line() {
        assert_eq!(parse_ct_state("trk,est"), Ok(TRK | EST));
        assert_eq!(parse_ct_state("trk inv"), Ok(TRK | INV));
        assert_eq!(parse_ct_state(""), Ok(0));
        assert_eq!(parse_ct_state("trk,nope"), Err("nope: unknown connection tracking state flag".into()));
        for (text, why) in [
            ("new", "new: invalid connection state: If \"trk\" is unset, no other flags are set\n"),
            (
                "trk,new,inv",
                "new|inv|trk: invalid connection state: when \"inv\" is set, only \"trk\" may also be set\n",
            ),
            ("trk,new,est", "new|est|trk: invalid connection state: \"new\" and \"est\" are mutually exclusive\n"),
            ("trk,new,rpl", "new|rpl|trk: invalid connection state: \"new\" and \"rpy\" are mutually exclusive\n"),
        ] {
            assert_eq!(parse_ct_state(text), Err(why.into()));
        }
    }
}
