//! Bonds: outputs that choose one of several ports for each packet.
//!
//! A bond has a table of [`BUCKETS`] buckets, each with the port of one member. [`Action::Bond`](crate::Action::Bond) sends by
//! the port of one bucket: of one that the action names, or of the one that the hash of the packet's headers selects. Who changes a
//! bucket changes where packets go at once, for all workers, and without a look at any flow.
//!
//! For the programs of flows, a bond is an output port with a number that no device has ([`BondOutput::port`]), so that everything
//! that ends in an output works with bonds, too. A worker finds out that a number is a bond's only after it has not found a port of
//! that number: other outputs cost what they cost without bonds.
//!
//! Who may touch what: buckets are written by whoever manages the bond, one thread at a time, and read by workers. Each is a number of
//! its own, so a reader sees the old or the new port. Counters of a bucket are written by the worker that they belong to. A table is
//! never freed. Its number is free again when no flow has an action with it any more; a worker that is at the last batch of such a flow
//! finds no port there, or that of the next bond.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use packet::wire::ethertype;
use packet::{BATCH_SIZE, Batch};
use parking_lot::Mutex;

use self::counters::Counters;
pub use self::counters::Traffic;
use crate::port_no::PortNo;

mod counters;

/// Buckets of a bond.
pub const BUCKETS: usize = 256;
/// Most bonds of a datapath.
pub const MAX_BONDS: u32 = 4096;

/// The port number of the first bond's first bucket: above those of devices, below the other kinds of
/// [`FastAction`](crate::classify::FastAction).
const FIRST: u32 = 0x2000_0000;
/// Numbers for each bond: one for each bucket, and one for the hash.
const STRIDE: u32 = 512;
/// The number of the hash, after those of the buckets.
const BY_HASH: u32 = BUCKETS as u32;
/// A bucket without port.
const NOWHERE: u32 = u32::MAX;

/// All bonds of a datapath.
pub struct Bonds {
    tables: Box<[OnceLock<Box<Table>>]>,
    numbers: Mutex<Numbers>,
    workers: usize,
}

#[derive(Default)]
struct Numbers {
    /// Above all that were ever in use.
    next: u32,
    /// Below that, and not in use.
    free: BTreeSet<u32>,
}

/// The buckets of a bond.
struct Table {
    ports: [AtomicU32; BUCKETS],
    basis: AtomicU32,
    /// What was sent by each worker. Only the worker writes its own.
    counters: Box<[Counters]>,
}

impl Table {
    fn new(workers: usize) -> Table {
        Table {
            ports: std::array::from_fn(|_| AtomicU32::new(NOWHERE)),
            basis: AtomicU32::new(0),
            counters: (0..workers).map(|_| Counters::default()).collect(),
        }
    }
}

/// Which bucket of a bond a packet goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bucket {
    /// This one.
    Fixed(u8),
    /// That of the hash of its headers: see [`hash`].
    ByHash,
}

impl Bonds {
    /// No bonds yet; there are never more than so many workers.
    pub fn new(workers: usize) -> Bonds {
        let tables = (0..MAX_BONDS).map(|_| OnceLock::new()).collect();
        Bonds { tables, numbers: Mutex::default(), workers }
    }

    /// A new bond, none of whose buckets has a port. `None`: there are [`MAX_BONDS`].
    pub fn add(self: &Arc<Bonds>) -> Option<Arc<BondOutput>> {
        let number = {
            let mut numbers = self.numbers.lock();
            match numbers.free.pop_first() {
                Some(number) => number,
                None if numbers.next == MAX_BONDS => return None,
                None => {
                    numbers.next += 1;
                    numbers.next - 1
                }
            }
        };
        let bond = BondOutput { number, bonds: self.clone() };
        bond.table().ports.iter().for_each(|port| port.store(NOWHERE, Relaxed));
        Some(Arc::new(bond))
    }

    /// The port by which a worker sends a frame that goes to the port of this number, and counts it.
    #[inline(always)]
    pub(crate) fn select(&self, port: PortNo, frame: &[u8], worker: usize) -> Selected {
        let Some(choice) = self.choice(port, worker) else { return Selected::NoBond };
        let bucket = choice.bucket(frame);
        let selected = choice.member(bucket);
        if selected != Selected::NoMember {
            choice.count(bucket, frame);
        }
        selected
    }

    /// What chooses the ports of a worker's frames that go to the port of this number; `None`: the number is that of no bond.
    #[inline(always)]
    pub(crate) fn choice(&self, port: PortNo, worker: usize) -> Option<Choice<'_>> {
        let offset = port.0.checked_sub(FIRST)?;
        let table = self.tables.get((offset / STRIDE) as usize).and_then(OnceLock::get)?;
        let bucket = match offset % STRIDE {
            BY_HASH => None,
            bucket => Some(bucket),
        };
        Some(Choice { table, counters: table.counters.get(worker)?, basis: table.basis.load(Relaxed), bucket })
    }
}

/// Chooses ports of frames that go to one bond.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'a> {
    table: &'a Table,
    /// The worker's counters.
    counters: &'a Counters,
    basis: u32,
    /// `None`: by hash.
    bucket: Option<u32>,
}

impl Choice<'_> {
    /// Finds the ports of all packets of a batch, and counts the packets that have one.
    #[inline(always)]
    pub fn find_members(&self, batch: &Batch, members: &mut Members) {
        for (packet, member) in batch.iter().zip(&mut members.0) {
            let bucket = self.bucket(packet.data());
            *member = self.table.ports[usize::from(bucket)].load(Relaxed);
            if *member != NOWHERE {
                self.count(bucket, packet.data());
            }
        }
    }

    /// The port of a frame.
    pub fn member_of(&self, frame: &[u8]) -> Selected {
        self.member(self.bucket(frame))
    }

    /// The bucket by which a frame goes.
    #[inline(always)]
    fn bucket(&self, frame: &[u8]) -> u8 {
        self.bucket.unwrap_or_else(|| hash(frame, self.basis)) as u8
    }

    /// The port of a bucket.
    #[inline(always)]
    fn member(&self, bucket: u8) -> Selected {
        match self.table.ports[usize::from(bucket)].load(Relaxed) {
            NOWHERE => Selected::NoMember,
            port => Selected::Member(PortNo(port)),
        }
    }

    /// Counts a frame that goes by a bucket.
    #[inline(always)]
    fn count(&self, bucket: u8, frame: &[u8]) {
        self.counters.count(bucket, frame.len());
    }
}

/// The ports of a batch's packets, in their order.
pub(crate) struct Members([u32; BATCH_SIZE]);

impl Members {
    /// Those of no packets.
    #[inline(always)]
    pub fn none() -> Members {
        Members([NOWHERE; BATCH_SIZE])
    }

    /// The port of a packet, by its place in the batch; a number that no port has where it goes nowhere.
    #[inline(always)]
    pub fn of(&self, at: u32) -> PortNo {
        PortNo(self.0[at as usize % BATCH_SIZE])
    }

    /// Which packets go to a port: bit n stands for packet n.
    #[inline(never)]
    pub fn going_to(&self, port: PortNo) -> u32 {
        self.0.iter().enumerate().fold(0, |bits, (n, &member)| bits | u32::from(member == port.0) << n)
    }
}

/// What a number of a port stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Selected {
    /// No bond.
    NoBond,
    /// A bond of which no member can send.
    NoMember,
    /// A bond, of which this member sends.
    Member(PortNo),
}

/// A bond, for whoever manages it and for the actions of flows.
pub struct BondOutput {
    number: u32,
    bonds: Arc<Bonds>,
}

impl BondOutput {
    fn table(&self) -> &Table {
        self.bonds.tables[self.number as usize].get_or_init(|| Box::new(Table::new(self.bonds.workers)))
    }

    /// Its number among all bonds of the datapath, from one on: what `lb_output(...)` shows.
    pub fn id(&self) -> u32 {
        self.number + 1
    }

    /// The number by which programs send to it.
    pub fn port(&self, bucket: Bucket) -> PortNo {
        let within = match bucket {
            Bucket::Fixed(bucket) => bucket.into(),
            Bucket::ByHash => BY_HASH,
        };
        PortNo(FIRST + self.number * STRIDE + within)
    }

    /// Has packets of a bucket sent by this port; `None`: they are dropped.
    pub fn set_member(&self, bucket: u8, port: Option<PortNo>) {
        let port = port.filter(|port| port.0 < FIRST).map_or(NOWHERE, |port| port.0);
        self.table().ports[usize::from(bucket)].store(port, Relaxed);
    }

    /// The port of a bucket.
    pub fn member(&self, bucket: u8) -> Option<PortNo> {
        let port = self.table().ports[usize::from(bucket)].load(Relaxed);
        (port != NOWHERE).then_some(PortNo(port))
    }

    /// The ports of all buckets, each one once, ascending.
    pub fn members(&self) -> BTreeSet<PortNo> {
        (0..=u8::MAX).filter_map(|bucket| self.member(bucket)).collect()
    }

    /// Sets what the hash begins with (`bond-hash-basis`).
    pub fn set_basis(&self, basis: u32) {
        self.table().basis.store(basis, Relaxed);
    }

    /// What was sent by each bucket since the datapath started: also for an earlier bond with this number.
    pub fn traffic(&self) -> [Traffic; BUCKETS] {
        let mut sum = [Traffic::default(); BUCKETS];
        for worker in &self.table().counters {
            worker.add_to(&mut sum);
        }
        sum
    }
}

impl Drop for BondOutput {
    fn drop(&mut self) {
        self.table().ports.iter().for_each(|port| port.store(NOWHERE, Relaxed));
        self.bonds.numbers.lock().free.insert(self.number);
    }
}

impl PartialEq for BondOutput {
    fn eq(&self, other: &BondOutput) -> bool {
        std::ptr::eq(self, other)
    }
}

impl std::fmt::Debug for BondOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bond({})", self.id())
    }
}

/// Most VLAN tags behind which headers are looked for.
const MAX_TAGS: usize = 4;

/// The hash of a frame's headers by which `balance-tcp` spreads packets: addresses, protocol and ports of IP, those of Ethernet
/// where there is no IP. Of fragments, no ports count, so that those of a datagram stay together. Anyone may know the hash: it only
/// spreads load, as with OVS. It is the same after a restart.
#[inline(always)]
pub fn hash(frame: &[u8], basis: u32) -> u32 {
    let (first, second) = frame.first_chunk().and_then(plain).unwrap_or_else(|| of_any(frame));
    let hash = fold(first ^ SECRETS[0] ^ u64::from(basis), second ^ SECRETS[1]);
    (hash >> 32) as u32 ^ hash as u32
}

/// What is hashed of most frames: whole packets of TCP and UDP over IPv4, without options. The same as [`of_any`].
#[inline(always)]
fn plain(frame: &[u8; 38]) -> Option<(u64, u64)> {
    let at = |at: usize| Some(u64::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let is_ip = at(12)? >> 40 == u64::from(ethertype::IPV4) << 8 | 0x45;
    // Neither more fragments nor an offset (RFC 791 section 3.1).
    let is_whole = u16::from_be_bytes([frame[20], frame[21]]) & 0x3fff == 0;
    let protocol = u64::from(frame[23]);
    if !(is_ip && is_whole && (protocol == 6 || protocol == 17)) {
        return None;
    }
    Some((at(26)?, protocol << 32 | at(30)? & 0xffff_ffff))
}

/// What is hashed of any frame.
#[inline(never)]
fn of_any(frame: &[u8]) -> (u64, u64) {
    let mut at = 12;
    for _ in 0..MAX_TAGS {
        if !matches!(word(frame, at), Some(ethertype::VLAN | ethertype::SVLAN)) {
            break;
        }
        at += 4;
    }
    let network = frame.get(at + 2..).unwrap_or_default();
    let words = match word(frame, at) {
        Some(ethertype::IPV4) => ipv4(network),
        Some(ethertype::IPV6) => ipv6(network),
        _ => None,
    };
    words.unwrap_or_else(|| {
        let (dst, src) = (mac(frame, 0), mac(frame, 6));
        (src, dst ^ u64::from(word(frame, at).unwrap_or(0)) << 48)
    })
}

/// Digits of the square roots of three, five, seven and eleven: what is multiplied is not zero by chance.
const SECRETS: [u64; 4] = [0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1, 0x510e_527f_ade6_82d1];

/// A product of 128 bits, of which each half depends on all of both factors.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The addresses, and protocol and ports, of a packet of IPv4.
#[inline(always)]
fn ipv4(packet: &[u8]) -> Option<(u64, u64)> {
    let header = packet.first_chunk::<20>()?;
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return None;
    }
    let addresses = u64::from_be_bytes(*header.last_chunk::<8>()?);
    // More fragments, or an offset (RFC 791 section 3.1).
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let ports = if is_fragment { 0 } else { ports(header[9], packet, length) };
    Some((addresses, u64::from(header[9]) << 32 | ports))
}

/// The same of IPv6. Ports behind extension headers do not count.
#[inline(always)]
fn ipv6(packet: &[u8]) -> Option<(u64, u64)> {
    let header = packet.first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let half = |at: usize| header[at..at + 8].iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let src = fold(half(8) ^ SECRETS[2], half(16) ^ SECRETS[3]);
    let dst = fold(half(24) ^ SECRETS[3], half(32) ^ SECRETS[2]);
    Some((src, dst ^ (u64::from(header[6]) << 32 | ports(header[6], packet, 40))))
}

/// Both ports, where the protocol has some.
#[inline(always)]
fn ports(protocol: u8, packet: &[u8], at: usize) -> u64 {
    match (protocol, packet.get(at..at + 4)) {
        // TCP, UDP and SCTP.
        (6 | 17 | 132, Some(&[a, b, c, d])) => u32::from_be_bytes([a, b, c, d]).into(),
        _ => 0,
    }
}

#[inline(always)]
fn word(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

#[inline(always)]
fn mac(frame: &[u8], at: usize) -> u64 {
    frame.get(at..at + 6).unwrap_or_default().iter().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use packet::flow::compose;
    use packet::flow::text::NoNames;
    use proptest::prelude::*;

    use super::*;
    use crate::text::parse_key;

    fn frame(text: &str) -> Vec<u8> {
        compose(&parse_key(text, &NoNames).unwrap().0, &[])
    }

    fn tcp(vlan: bool, src: u32, sport: u16, dport: u16) -> Vec<u8> {
        let src = std::net::Ipv4Addr::from(src);
        let ip = format!("ipv4(src={src},dst=10.0.0.2,proto=6,ttl=64),tcp(src={sport},dst={dport})");
        let eth = "eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02)";
        match vlan {
            true => frame(&format!("{eth},eth_type(0x8100),vlan(vid=5,pcp=0),encap(eth_type(0x0800),{ip})")),
            false => frame(&format!("{eth},eth_type(0x0800),{ip}")),
        }
    }

    fn bonds() -> Arc<Bonds> {
        Arc::new(Bonds::new(2))
    }

    #[test]
    fn a_bucket_says_where_packets_go_at_once() {
        let bonds = bonds();
        let bond = bonds.add().unwrap();
        let frame = tcp(false, 1, 2, 3);
        let by_hash = bond.port(Bucket::ByHash);
        assert_eq!(bonds.select(by_hash, &frame, 0), Selected::NoMember);
        let bucket = hash(&frame, 0) as u8;
        bond.set_member(bucket, Some(PortNo(7)));
        assert_eq!(bonds.select(by_hash, &frame, 1), Selected::Member(PortNo(7)));
        bond.set_member(bucket, Some(PortNo(8)));
        assert_eq!(bonds.select(by_hash, &frame, 0), Selected::Member(PortNo(8)));
        assert_eq!(bonds.select(bond.port(Bucket::Fixed(bucket)), &frame, 0), Selected::Member(PortNo(8)));
        assert_eq!(bonds.select(bond.port(Bucket::Fixed(bucket ^ 1)), &frame, 0), Selected::NoMember);
        assert_eq!(bond.traffic()[usize::from(bucket)], Traffic { packets: 3, bytes: 3 * frame.len() as u64 });
        // What is no port of a device is none of a member.
        bond.set_member(bucket, Some(by_hash));
        assert_eq!((bond.member(bucket), bonds.select(PortNo(7), &frame, 0)), (None, Selected::NoBond));
        assert_eq!(bonds.select(PortNo(u32::MAX), &frame, 0), Selected::NoBond);
    }

    #[test]
    fn numbers_are_given_again_without_their_ports() {
        let bonds = bonds();
        let (first, second) = (bonds.add().unwrap(), bonds.add().unwrap());
        assert_eq!((first.id(), second.id()), (1, 2));
        first.set_member(9, Some(PortNo(3)));
        let in_a_flow = first.clone();
        drop(first);
        assert_eq!(bonds.add().unwrap().id(), 3);
        drop(in_a_flow);
        let again = bonds.add().unwrap();
        assert_eq!((again.id(), again.member(9)), (1, None));
        let all: Vec<_> = std::iter::from_fn(|| bonds.add()).collect();
        assert_eq!(all.len() as u32, MAX_BONDS - 2);
    }

    #[test]
    fn connections_are_spread_evenly_and_tags_do_not_count() {
        let mut counts = [0u32; BUCKETS];
        for port in 0..25_600u32 {
            let frame = tcp(false, 0x0a00_0001, port as u16, 80);
            counts[hash(&frame, 0) as usize % BUCKETS] += 1;
            if port < 100 {
                assert_eq!(hash(&frame, 0), hash(&tcp(true, 0x0a00_0001, port as u16, 80), 0));
                assert_ne!(hash(&frame, 0), hash(&frame, 1));
            }
        }
        assert!(counts.iter().all(|count| (50..160).contains(count)), "{counts:?}");
    }

    #[test]
    fn fragments_of_a_datagram_stay_together() {
        let fragment = |frag: &str, udp: &str| {
            frame(&format!("eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,frag={frag}),{udp}"))
        };
        let first = fragment("first", "udp(src=1,dst=2)");
        let mut later = first.clone();
        // An offset instead of the flag, and payload instead of ports.
        (later[20], later[21]) = (0, 8);
        later[34..38].copy_from_slice(&[9; 4]);
        assert_eq!(hash(&first, 0), hash(&later, 0));
    }

    #[test]
    fn the_hash_is_the_same_in_each_process() {
        let six = frame("eth_type(0x86dd),ipv6(src=::1,dst=::2,proto=6),tcp(src=1,dst=2)");
        let other = frame("eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x1234)");
        let hashes = [&tcp(false, 1, 2, 3), &six, &other].map(|frame| hash(frame, 0));
        assert_eq!(hashes, HASHES);
    }

    const HASHES: [u32; 3] = [3_740_578_995, 1_306_122_000, 1_259_448_094];

    proptest! {
        #[test]
        fn any_bytes_have_a_hash(bytes in prop::collection::vec(any::<u8>(), 0..80), basis: u32) {
            hash(&bytes, basis);
        }

        /// The short way for most frames reads what the way for any frame reads.
        #[test]
        fn plain_frames_are_read_as_any(
            tail in prop::collection::vec(any::<u8>(), 24..60), fragment in prop::sample::select(vec![0u16, 0x2000, 0x4000, 1]),
            protocol in prop::sample::select(vec![6u8, 17, 1]), version in prop::sample::select(vec![0x45u8, 0x46, 0x65]),
        ) {
            let mut frame = tcp(false, 1, 2, 3);
            frame.truncate(14);
            frame.extend(tail);
            frame[14] = version;
            frame[20..22].copy_from_slice(&fragment.to_be_bytes());
            frame[23] = protocol;
            let is_plain = frame.first_chunk().and_then(plain);
            prop_assert_eq!(is_plain.is_some(), version == 0x45 && fragment & 0x3fff == 0 && protocol != 1);
            prop_assert!(is_plain.is_none_or(|plain| plain == of_any(&frame)));
        }

        /// Where the two halves of the frame's fields are known, the hash is the plain formula of them.
        #[test]
        fn the_frame_is_read_right(src: u32, sport: u16, dport: u16, basis: u32, vlan: bool) {
            let ports = u64::from(sport) << 16 | u64::from(dport);
            let addresses = u64::from(src) << 32 | 0x0a00_0002;
            let product = u128::from(addresses ^ SECRETS[0] ^ u64::from(basis))
                * u128::from((6 << 32 | ports) ^ SECRETS[1]);
            let halves = product as u64 ^ (product >> 64) as u64;
            prop_assert_eq!(hash(&tcp(vlan, src, sport, dport), basis), (halves >> 32) as u32 ^ halves as u32);
        }
    }
}
