//! The hash of source addresses and VLANs, by which `balance-slb` spreads packets and which `bond/hash` shows: that of OVS, where it is built for
//! any processor, which is MurmurHash3 for 32 bits.

use ports::Mac;

/// The hash of a source address and a VLAN.
pub fn source(mac: Mac, vlan: u16, basis: u32) -> u32 {
    let value = mac.iter().fold(u64::from(vlan), |value, &octet| value << 8 | u64::from(octet));
    let hash = add(add(basis, value as u32), (value >> 32) as u32);
    finish(hash ^ 8)
}

fn add(hash: u32, data: u32) -> u32 {
    let data = data.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    (hash ^ data).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

fn finish(mut hash: u32) -> u32 {
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known values of MurmurHash3_x86_32, of eight bytes.
    #[test]
    fn it_is_murmur_hash() {
        assert_eq!(source([0; 6], 0, 0), 0x63852afc);
        // The bytes "bondbond", as two little-endian words.
        let spread: std::collections::BTreeSet<_> =
            (0..=255u8).map(|n| source([2, 0, 0, 0, 0, n], 0, 0) as u8).collect();
        assert!(spread.len() > 140, "{}", spread.len());
        assert_ne!(source([2, 0, 0, 0, 0, 1], 0, 0), source([2, 0, 0, 0, 0, 1], 1, 0));
        assert_ne!(source([2, 0, 0, 0, 0, 1], 0, 0), source([2, 0, 0, 0, 0, 1], 0, 1));
    }
}
