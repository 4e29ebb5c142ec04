//! The first of many rules that name a prefix only ([`crate::prefix`]) that matches a frame: one look-up for the source
//! address and one for the destination, whatever the number of rules. A few rules are compared with a whole batch instead.

use datapath::classify::bits;
use packet::Packet;

use crate::few_prefixes::FewPrefixes;
use crate::prefix::{Prefix, PrefixExpression};
use crate::prefix_table::{Address, PrefixTable};

/// Bytes of an Ethernet header without tags.
const ETHERNET: usize = 14;

/// Consecutive rules that name a prefix only.
#[derive(Debug)]
pub struct PrefixSet {
    ip: Directions<u32>,
    /// Of the same rules those that are for ARP and RARP, too.
    arp: Directions<u32>,
    ip6: Directions<u128>,
    /// What there is for IPv4, where that is little.
    few: Option<FewPrefixes>,
}

/// Prefixes by the address that they are for.
#[derive(Debug)]
struct Directions<A> {
    source: PrefixTable<A>,
    destination: PrefixTable<A>,
}

impl PrefixSet {
    /// The set of these rules, each with its number.
    pub fn new(rules: &[(u32, PrefixExpression)]) -> PrefixSet {
        let v4 = |only_arp: bool| {
            move |prefix: Prefix| match prefix {
                Prefix::V4 { address, len, arp } if arp || !only_arp => Some((address, len)),
                _ => None,
            }
        };
        let v6 = |prefix: Prefix| match prefix {
            Prefix::V6 { address, len } => Some((address, len)),
            Prefix::V4 { .. } => None,
        };
        PrefixSet {
            ip: Directions::new(rules, v4(false)),
            arp: Directions::new(rules, v4(true)),
            ip6: Directions::new(rules, v6),
            few: FewPrefixes::new(rules),
        }
    }

    /// Tells `matched` of the packets whose first match a rule is, as a set, for each such rule, one or more times. Only
    /// packets of `among` are looked at: bit `i` stands for `packets[i]`.
    #[inline]
    pub fn each_match(&self, packets: &[Packet], among: u32, mut matched: impl FnMut(u32, u32)) {
        let rest = self.few.as_ref().map_or(among, |few| few.each_match(packets, among, &mut matched));
        // Many frames in a row have the same rule.
        let (mut last, mut set) = (None, 0);
        for i in bits(rest) {
            let rule = self.first(packets[i].data());
            if rule != last {
                if let Some(rule) = last {
                    matched(rule, set);
                }
                (last, set) = (rule, 0);
            }
            set |= 1 << i;
        }
        if let Some(rule) = last {
            matched(rule, set);
        }
    }

    /// The number of the first rule that matches a frame.
    #[inline]
    pub fn first(&self, frame: &[u8]) -> Option<u32> {
        match frame.get(12..ETHERNET)? {
            // RFC 791 section 3.1.
            [0x08, 0x00] => self.ip.first(frame, ETHERNET + 12, ETHERNET + 16, v4_at),
            // RFC 826 and 903, with addresses of Ethernet and IPv4.
            [0x08, 0x06] | [0x80, 0x35] => self.arp.first(frame, ETHERNET + 14, ETHERNET + 24, v4_at),
            // RFC 8200 section 3.
            [0x86, 0xdd] => self.ip6.first(frame, ETHERNET + 8, ETHERNET + 24, v6_at),
            _ => None,
        }
    }
}

impl<A: Address> Directions<A> {
    fn new(rules: &[(u32, PrefixExpression)], of_kind: impl Fn(Prefix) -> Option<(A, u8)>) -> Directions<A> {
        let table = |wanted: fn(&PrefixExpression) -> bool| {
            let rules = rules.iter().filter(|(_, expression)| wanted(expression));
            let prefixes = rules.filter_map(|(rule, expression)| {
                let (address, len) = of_kind(expression.prefix)?;
                Some((address, len, *rule))
            });
            PrefixTable::new(&prefixes.collect::<Vec<_>>())
        };
        Directions { source: table(|e| e.source), destination: table(|e| e.destination) }
    }

    #[inline(always)]
    fn first(
        &self,
        frame: &[u8],
        source: usize,
        destination: usize,
        find: impl Fn(&PrefixTable<A>, &[u8], usize) -> Option<u32>,
    ) -> Option<u32> {
        let source = if self.source.is_empty() { None } else { find(&self.source, frame, source) };
        let destination = if self.destination.is_empty() { None } else { find(&self.destination, frame, destination) };
        match (source, destination) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[inline(always)]
fn v4_at(table: &PrefixTable<u32>, frame: &[u8], at: usize) -> Option<u32> {
    table.first(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// The program of libpcap loads those words of an address that the prefix reaches into; so shorter prefixes match frames
/// that end within the address.
#[inline(always)]
fn v6_at(table: &PrefixTable<u128>, frame: &[u8], at: usize) -> Option<u32> {
    let bytes = frame.get(at..)?;
    match bytes.first_chunk() {
        Some(address) => table.first(u128::from_be_bytes(*address)),
        None => part_of_v6(table, bytes),
    }
}

#[cold]
fn part_of_v6(table: &PrefixTable<u128>, bytes: &[u8]) -> Option<u32> {
    let whole = &bytes[..bytes.len() / 4 * 4];
    let mut address = [0; 16];
    address[..whole.len()].copy_from_slice(whole);
    table.first_of_part(u128::from_be_bytes(address), whole.len() as u8 * 8)
}
