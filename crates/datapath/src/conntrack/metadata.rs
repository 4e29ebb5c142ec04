//! The tracker's metadata, and the block of the flow key that holds them.

use std::net::IpAddr;

use ::conntrack::tuple::Side;
use ::conntrack::{CtState, Metadata, Tuple};
use packet::Key;
use packet::flow::block::Ct;
use packet::flow::{BlockId, Blocks};

/// The metadata of a packet that an earlier ct action has tracked; those of an untracked packet are the default. `own` is
/// the packet's tuple: the key has no identifier of ICMP.
pub fn of_key(key: &Key, own: &Tuple) -> Metadata {
    if !key.present().has(BlockId::Ct) {
        return Metadata::default();
    }
    let ct = key.ct();
    let ports = match own.icmp_type() {
        Some(kind) => (own.port(Side::Src), kind.into()),
        None => (ct.ct_tp_src.get(), ct.ct_tp_dst.get()),
    };
    let address = |bytes: &[u8; 16]| match bytes {
        [a, b, c, d, ..] if !own.is_v6() => IpAddr::from([*a, *b, *c, *d]),
        bytes => IpAddr::from(*bytes),
    };
    let tracked = ct.ct_nw_proto == own.proto();
    let orig = || Tuple::new(address(&ct.ct_src), address(&ct.ct_dst), ct.ct_nw_proto, ports, ct.ct_zone.get());
    Metadata {
        state: CtState(ct.ct_state.get() as u8),
        zone: ct.ct_zone.get(),
        mark: ct.ct_mark.get(),
        label: u128::from_be_bytes(ct.ct_label),
        orig: if tracked { orig() } else { None },
    }
}

/// Writes a packet's metadata into its key.
pub fn write(metadata: &Metadata, key: &mut Key) {
    let ct: &mut Ct = key.ct_mut();
    ct.ct_state = u32::from(metadata.state.0).into();
    ct.ct_zone = metadata.zone.into();
    ct.ct_mark = metadata.mark.into();
    ct.ct_label = metadata.label.to_be_bytes();
    (ct.ct_src, ct.ct_dst) = ([0; 16], [0; 16]);
    (ct.ct_nw_proto, ct.ct_tp_src, ct.ct_tp_dst) = (0, 0.into(), 0.into());
    let Some(orig) = &metadata.orig else { return };
    let (src, dst) = orig.key_ports();
    (ct.ct_nw_proto, ct.ct_tp_src, ct.ct_tp_dst) = (orig.proto(), src.into(), dst.into());
    for (bytes, address) in [(&mut ct.ct_src, orig.src()), (&mut ct.ct_dst, orig.dst())] {
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => *bytes = address.octets(),
        }
    }
}

/// Makes a packet an untracked one (`ct_clear`).
pub fn clear(key: &mut Key) {
    key.keep(Blocks(key.present().0 & !(1 << BlockId::Ct as u16)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_come_back_from_the_key() {
        let v4: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let v6: [IpAddr; 2] = ["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        for ([src, dst], proto, ports) in
            [(v4, 6, (1000, 80)), (v6, 17, (53, 5353)), (v4, 47, (0, 0)), (v4, 1, (99, 8))]
        {
            let orig = Tuple::new(src, dst, proto, ports, 7).unwrap();
            let state = CtState::EST | CtState::TRK;
            let metadata = Metadata { state, zone: 7, mark: 5, label: 1 << 100 | 3, orig: Some(orig) };
            let mut key = Key::new();
            write(&metadata, &mut key);
            assert_eq!(of_key(&key, &orig), metadata);
            // What is written next leaves nothing of it.
            let invalid = Metadata { state: CtState::INV | CtState::TRK, zone: 2, ..Metadata::default() };
            write(&invalid, &mut key);
            assert_eq!(of_key(&key, &orig), invalid);
            clear(&mut key);
            assert_eq!(of_key(&key, &orig), Metadata::default());
            assert_eq!(key.ct().ct_zone.get(), 0);
        }
    }
}
