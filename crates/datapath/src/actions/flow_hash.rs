//! Hashes of packets' headers: for `hash(...)`, and to tell connections apart.

use packet::Key;
use packet::flow::hash::Hasher;
use packet::flow::{Block, BlockId};

use crate::action::HashAlgorithm;

/// What `hash(...)` hashes with. It is no secret: a connection keeps its place in a select group over restarts, and has the same
/// on every switch, as with OVS. (Digits of the square root of two.)
static PUBLIC: Hasher = Hasher::new([0x6a09_e667_f3bc_c908, 0xb2fb_1366_ea95_7d3e]);

/// Hash of the fields that all packets of a connection in one direction have in common.
pub fn connection_hash(hasher: &Hasher, key: &Key) -> u32 {
    hash(hasher, HashAlgorithm::L4, key, 0)
}

/// The hash of a packet's headers that `hash(...)` gives. Zero stands for none, so it is another number.
pub fn flow_hash(algorithm: HashAlgorithm, key: &Key, basis: u32) -> u32 {
    hash(&PUBLIC, algorithm, key, basis)
}

#[inline]
fn hash(hasher: &Hasher, algorithm: HashAlgorithm, key: &Key, basis: u32) -> u32 {
    let common = key.common();
    let mut block = Block::ZERO;
    let words = block.words_mut();
    words[2] = u64::from(common.nw_proto) << 48 | u64::from(common.dl_type.get()) << 32 | u64::from(basis);
    let symmetric = algorithm == HashAlgorithm::SymmetricL4;
    let ports = match common.nw_proto {
        // Only the first fragment of a datagram has them. All are to stay together.
        _ if common.nw_frag != 0 => (0, 0),
        6 | 132 => (common.tp_src.get(), common.tp_dst.get()),
        _ if symmetric => (0, 0),
        _ => (common.tp_src.get(), common.tp_dst.get()),
    };
    let ends = match common.dl_type.get() {
        // The addresses of IPv6 are hashed with their ports; those of IPv4 are the lower half of such.
        0x86dd if key.present().has(BlockId::L3) => {
            let addresses = key.block(BlockId::L3).words();
            ([addresses[0], addresses[1], ports.0.into()], [addresses[2], addresses[3], ports.1.into()])
        }
        0x0800 => ([0, common.nw_src.get().into(), ports.0.into()], [0, common.nw_dst.get().into(), ports.1.into()]),
        0x86dd => ([0, 0, ports.0.into()], [0, 0, ports.1.into()]),
        _ => {
            let mac = |m: [u8; 6]| m.iter().fold(0, |n, &b| n << 8 | u64::from(b));
            ([0, mac(common.dl_src), 0], [0, mac(common.dl_dst), 0])
        }
    };
    // Both directions have the same ends.
    let (first, second) = if symmetric && ends.1 < ends.0 { (ends.1, ends.0) } else { ends };
    (words[0], words[1]) = (first[2] << 16 | second[2], 0);
    (words[3], words[4], words[5], words[6]) = (first[0], first[1], second[0], second[1]);
    (hasher.finish(hasher.block(block.words())) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use packet::flow::text::NoNames;
    use proptest::prelude::*;

    use super::*;
    use crate::text::parse_key;

    fn key(text: &str) -> Key {
        parse_key(text, &NoNames).unwrap().0
    }

    /// A packet of a protocol from one end of a connection to the other.
    fn packet(ends: [(u32, u16); 2], proto: u8, is_ipv6: bool) -> Key {
        let [(src, sport), (dst, dport)] = ends;
        let ports = |name| format!("{name}(src={sport},dst={dport})");
        let transport = match proto {
            6 => ports("tcp"),
            17 => ports("udp"),
            _ => ports("sctp"),
        };
        let [src, dst] = [src, dst].map(|address| std::net::Ipv4Addr::from(address).to_string());
        match is_ipv6 {
            true => key(&format!("eth_type(0x86dd),ipv6(src=::{src},dst=::{dst},proto={proto}),{transport}")),
            false => key(&format!("eth_type(0x0800),ipv4(src={src},dst={dst},proto={proto}),{transport}")),
        }
    }

    proptest! {
        #[test]
        fn both_directions_have_one_symmetric_hash(
            here: (u32, u16), there: (u32, u16), proto in prop::sample::select(vec![6u8, 17, 132]), is_ipv6: bool,
            basis: u32,
        ) {
            let hash = |algorithm, ends| flow_hash(algorithm, &packet(ends, proto, is_ipv6), basis);
            let both = |algorithm| (hash(algorithm, [here, there]), hash(algorithm, [there, here]));
            let (out, back) = both(HashAlgorithm::SymmetricL4);
            prop_assert_eq!(out, back);
            prop_assert_ne!(out, 0);
            let (out, back) = both(HashAlgorithm::L4);
            prop_assert_eq!(out == back, here == there);
        }
    }

    /// A restart must not send the packets of a connection to another bucket.
    #[test]
    fn hashes_are_the_same_in_each_process() {
        let key = key("eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=6),tcp(src=1,dst=2)");
        let hashes = [flow_hash(HashAlgorithm::L4, &key, 0), flow_hash(HashAlgorithm::SymmetricL4, &key, 7)];
        assert_eq!(hashes, [4_077_351_546, 1_547_996_976]);
    }

    #[test]
    fn what_counts() {
        let hash = |algorithm, text| flow_hash(algorithm, &key(text), 0);
        let first = "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17),udp(src=1,dst=2)";
        let later = "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,frag=later)";
        assert_eq!(hash(HashAlgorithm::SymmetricL4, first), hash(HashAlgorithm::SymmetricL4, later));
        assert_ne!(hash(HashAlgorithm::L4, first), hash(HashAlgorithm::L4, later));
        // The first fragment has ports, which do not count.
        let fragment = "eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,frag=first),udp(src=1,dst=2)";
        assert_eq!(hash(HashAlgorithm::L4, fragment), hash(HashAlgorithm::L4, later));
        // The last bits of both addresses differ in the same way.
        let [a, b] = ["10.0.0.2,dst=10.0.1.3", "10.0.0.3,dst=10.0.1.2"]
            .map(|addresses| key(&format!("eth_type(0x0800),ipv4(src={addresses},proto=6),tcp(src=1,dst=2)")));
        let symmetric = |key: &Key| flow_hash(HashAlgorithm::SymmetricL4, key, 0);
        assert_ne!(symmetric(&a), symmetric(&b));
        assert_ne!(symmetric(&a), flow_hash(HashAlgorithm::SymmetricL4, &a, 1));
        let frame =
            |src, dst| key(&format!("eth(src=02:00:00:00:00:0{src},dst=02:00:00:00:00:0{dst}),eth_type(0x1234)"));
        assert_eq!(symmetric(&frame(1, 2)), symmetric(&frame(2, 1)));
        assert_ne!(symmetric(&frame(1, 2)), symmetric(&frame(1, 3)));
    }
}
