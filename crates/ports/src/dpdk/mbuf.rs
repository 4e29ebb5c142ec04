//! From mbufs to packets and back, in place: a frame in an mbuf becomes a packet, and a packet an mbuf,
//! without a copy and without a call. Packets of other memories are copied into an mbuf, once.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::mbuf::{self as bits, rte_mbuf};
use dpdk_sys::rte_mempool;
use packet::buffer::RawPacket;
use packet::{BATCH_SIZE, Batch, Memory, Offload, Packet};

use super::mempool::{self, Mempool};
use super::thread;
use crate::TxDrop;

/// Mbufs to be sent together.
pub type Mbufs = ArrayVec<*mut rte_mbuf, BATCH_SIZE>;

/// The most segments that one frame is sent in: 64 KiB in the smallest buffers, and some.
const MAX_SEGMENTS: usize = 64;

/// Flags of received mbufs that say anything about offloads.
const RX_OFFLOADS: u64 = bits::RX_L4_CKSUM_MASK | bits::RX_LRO;

/// What came of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets that were added to the batch.
    pub packets: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Frames that there was no memory for.
    pub dropped: usize,
}

/// Appends received frames to `batch`, which has room for them. Most mbufs are of `pool`. Frames in
/// several segments are copied into one packet of `large`.
///
/// # Safety
/// The caller owns the mbufs, which a driver has filled, and gives them up.
#[inline(always)]
pub unsafe fn to_packets(
    pool: &'static Mempool,
    large: &'static Memory,
    mbufs: &[*mut rte_mbuf],
    batch: &mut Batch,
) -> Received {
    assert!(mbufs.len() <= batch.remaining_capacity(), "a batch without room");
    let (raw, before) = (pool.raw(), batch.len());
    let mut received = Received::default();
    for &mbuf in mbufs {
        // SAFETY: the mbuf is good by this function's contract. The batch has room for as many packets as there
        // are mbufs, and its length is set when they are there: should this end early, they are leaked.
        unsafe {
            let place = batch.as_mut_ptr().add(before + received.packets);
            // A plain packet is built where it belongs: to move it there would wait for the parts to be written.
            if (*mbuf).is_single() && (*mbuf).ol_flags & RX_OFFLOADS == 0 {
                place.write(to_packet(pool, raw, mbuf));
            } else if let Some(packet) = to_other(pool, large, mbuf) {
                place.write(packet);
            } else {
                received.dropped += 1;
                continue;
            }
            received.bytes += (*place).len();
            received.packets += 1;
        }
    }
    // SAFETY: as many were written behind those that were there.
    unsafe { batch.set_len(before + received.packets) };
    received
}

/// The packet in an mbuf of one segment; `of_pool` is the mempool of `pool`.
///
/// # Safety
/// The caller alone owns the mbuf, which a driver has filled, and gives it up.
#[inline(always)]
unsafe fn to_packet(pool: &'static Mempool, of_pool: *mut rte_mempool, mbuf: *mut rte_mbuf) -> Packet {
    // SAFETY: the caller alone owns the mbuf (contract of this function), whose frame lies within its buffer,
    // at an address that is not null.
    unsafe {
        let m = &*mbuf;
        let data = NonNull::new_unchecked(m.buf_addr.cast::<u8>().add(m.data_off.into()));
        let len = u32::from(m.data_len);
        let memory = if m.pool == of_pool { pool.memory() } else { mempool::memory_of(m.pool) };
        let raw = RawPacket {
            data,
            handle: mbuf as usize,
            memory,
            len,
            tailroom: u32::from(m.buf_len).saturating_sub(u32::from(m.data_off) + len),
            queue: 0,
            headroom: m.data_off,
            offload: Offload::NONE,
        };
        Packet::from_raw(raw)
    }
}

/// The packet of an mbuf that is more than a plain frame: its driver says something about checksums or segmentation,
/// or the frame is in several segments.
///
/// # Safety
/// As for [`to_packet`], but for others that only read.
#[inline(never)]
unsafe fn to_other(pool: &'static Mempool, large: &'static Memory, mbuf: *mut rte_mbuf) -> Option<Packet> {
    // SAFETY: the caller owns a reference to the mbuf and gives it up (contract of this function), which is
    // what the functions called here ask for.
    unsafe {
        if !(*mbuf).is_single() {
            return to_copy(large, mbuf);
        }
        let mut packet = to_packet(pool, pool.raw(), mbuf);
        *packet.offload_mut() = received_offload((*mbuf).ol_flags, (*mbuf).tx_offload, packet.data());
        Some(packet)
    }
}

/// A copy of a frame in several segments, or of one that others own too.
///
/// # Safety
/// As for [`to_packet`], but for others that only read.
#[cold]
unsafe fn to_copy(large: &'static Memory, mbuf: *mut rte_mbuf) -> Option<Packet> {
    // SAFETY: the caller owns a reference to the mbuf (contract of this function), which keeps its segments;
    // the copy has room for the whole frame.
    unsafe {
        let m = &*mbuf;
        let mut copy = (large.allocate)(large, dpdk_sys::mbuf::HEADROOM.into(), m.pkt_len as usize);
        if let Some(copy) = &mut copy
            && let Some(frame) = copy.push_back(m.pkt_len as usize)
        {
            dpdk_sys::weir_pktmbuf_read(mbuf, frame.as_mut_ptr().cast(), m.pkt_len);
            let offload = received_offload(m.ol_flags, m.tx_offload, copy.data());
            *copy.offload_mut() = offload;
        }
        thread::give_back(mbuf);
        copy
    }
}

/// What a driver says about checksums and segmentation, in Weir's words.
pub(crate) fn received_offload(flags: u64, tx_offload: u64, frame: &[u8]) -> Offload {
    let unfinished = flags & bits::RX_L4_CKSUM_MASK == bits::RX_L4_CKSUM_NONE;
    let mut offload = Offload::NONE;
    if flags & bits::RX_L4_CKSUM_MASK == bits::RX_L4_CKSUM_GOOD {
        offload.flags = Offload::DATA_VALID;
    }
    let segment = bits::segment_size(tx_offload);
    let merged = flags & bits::RX_LRO != 0 && segment > 0;
    if !(unfinished || merged) {
        return offload;
    }
    let Some(transport) = Transport::find(frame) else { return offload };
    if let Some(place) = transport.checksum_offset() {
        offload.flags = Offload::NEEDS_CSUM;
        offload.csum_start = transport.l4;
        offload.csum_offset = place;
    }
    if merged && offload.needs_csum() {
        offload.gso_type = match (transport.protocol, transport.ipv6) {
            (TCP, false) => Offload::GSO_TCPV4,
            (TCP, true) => Offload::GSO_TCPV6,
            _ => Offload::GSO_UDP_L4,
        };
        // Drivers have no flag for it; the header has (RFC 3168 section 6.1.2).
        if transport.protocol == TCP && frame.get(usize::from(transport.l4) + 13).is_some_and(|flags| flags & CWR != 0)
        {
            offload.gso_type |= Offload::GSO_ECN;
        }
        offload.gso_size = segment;
        crate::offload::note_received(&offload);
        offload.hdr_len = transport.l4 + transport.header_len(frame);
    }
    offload
}

/// Turns a whole batch into the mbufs that its packets lie in, if all of them do and have nothing left to be done:
/// then the batch is empty, and the mbufs belong to the caller. Otherwise it stays as it is.
#[inline(always)]
pub fn all_in_place<'a>(
    batch: &mut Batch,
    mbufs: &'a mut [MaybeUninit<*mut rte_mbuf>; BATCH_SIZE],
) -> Option<&'a mut [*mut rte_mbuf]> {
    let mut known: *const Memory = std::ptr::null();
    for (packet, mbuf) in batch.iter().zip(mbufs.iter_mut()) {
        if !std::ptr::eq(packet.memory(), known) {
            if !mempool::is_mbufs(packet.memory()) {
                return None;
            }
            known = packet.memory();
        }
        if packet.offload().needs_csum() || packet.offload().is_gso() {
            return None;
        }
        mbuf.write(describe(packet));
    }
    let count = batch.len();
    // SAFETY: there is an mbuf for each packet, whose owner is the caller now.
    unsafe {
        batch.set_len(0);
        Some(std::slice::from_raw_parts_mut(mbufs.as_mut_ptr().cast(), count))
    }
}

/// One packet as an mbuf to be sent, which belongs to the caller. Packets of other memories are copied into mbufs of
/// `pool`; `chains`: those that need several may be. Checksums and segmentation that are still to be done are
/// asked of the device. Fails where there is no mbuf, the packet is too long, or a device cannot be told what to do.
pub fn from_packet(pool: &Mempool, chains: bool, packet: Packet) -> Result<*mut rte_mbuf, TxDrop> {
    let (flags, lengths) = match *packet.offload() {
        offload if offload.needs_csum() || offload.is_gso() => {
            sent_offload(&offload, packet.data()).ok_or(TxDrop::Malformed)?
        }
        _ => (0, 0),
    };
    let mbuf = match mempool::is_mbufs(packet.memory()) {
        true => in_place(packet),
        false => copy(pool, chains, packet.data())?,
    };
    // SAFETY: the mbuf is ours alone.
    unsafe { ((*mbuf).ol_flags, (*mbuf).tx_offload) = (flags, lengths) };
    Ok(mbuf)
}

/// The mbuf that a packet lies in, as the packet is now.
fn in_place(packet: Packet) -> *mut rte_mbuf {
    let mbuf = describe(&packet);
    let _ = packet.into_raw();
    mbuf
}

/// Tells the mbuf that a packet lies in what has become of its frame.
#[inline(always)]
fn describe(packet: &Packet) -> *mut rte_mbuf {
    let mbuf = packet.handle() as *mut rte_mbuf;
    // SAFETY: the handle of a packet of a mempool is its mbuf, which the packet owns. Its frame begins
    // behind its headroom, and is no longer than the buffer, whose size is 16 bits.
    unsafe {
        let m = &mut *mbuf;
        m.data_off = packet.headroom() as u16;
        m.data_len = packet.len() as u16;
        m.pkt_len = packet.len() as u32;
        m.ol_flags &= bits::NOT_DIRECT;
    }
    mbuf
}

/// A copy of a frame in mbufs of `pool`.
fn copy(pool: &Mempool, chains: bool, frame: &[u8]) -> Result<*mut rte_mbuf, TxDrop> {
    let room = pool.buffer() - usize::from(bits::HEADROOM);
    let count = frame.len().div_ceil(room).max(1);
    if count > 1 && !chains || count > MAX_SEGMENTS {
        return Err(TxDrop::TooLong);
    }
    let mut segments = [std::ptr::null_mut::<rte_mbuf>(); MAX_SEGMENTS];
    let segments = &mut segments[..count];
    if !pool.take_bulk(segments) {
        return Err(TxDrop::NoBuffer);
    }
    for (index, &segment) in segments.iter().enumerate() {
        let part = &frame[index * room..frame.len().min((index + 1) * room)];
        // SAFETY: a fresh mbuf has `room` bytes behind its headroom.
        unsafe {
            let m = &mut *segment;
            let to = m.buf_addr.cast::<u8>().add(m.data_off.into());
            std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
            m.data_len = part.len() as u16;
            m.next = segments.get(index + 1).copied().unwrap_or(std::ptr::null_mut());
        }
    }
    // SAFETY: there is at least one segment, and all of them were allocated here and are owned by nobody else.
    unsafe {
        (*segments[0]).pkt_len = frame.len() as u32;
        (*segments[0]).nb_segs = count as u16;
    }
    Ok(segments[0])
}

/// What a device is told to do: `ol_flags` and `tx_offload`. `None`: it has no words for that.
pub(crate) fn sent_offload(offload: &Offload, frame: &[u8]) -> Option<(u64, u64)> {
    // A device stores the checksum where the protocol has it.
    let as_said = |t: &Transport| (t.l4, t.checksum_offset()) == (offload.csum_start, Some(offload.csum_offset));
    let transport = Transport::find(frame).filter(|t| !offload.needs_csum() || as_said(t))?;
    let mut flags = if transport.ipv6 { bits::TX_IPV6 } else { bits::TX_IPV4 };
    let (mut l4, mut segment) = (0, 0);
    if offload.is_gso() {
        (l4, segment) = (transport.header_len(frame), offload.gso_size);
        flags |= match (transport.protocol, transport.ipv6) {
            (TCP, false) => bits::TX_TCP_SEG | bits::TX_IP_CKSUM,
            (TCP, true) => bits::TX_TCP_SEG,
            (_, false) => bits::TX_UDP_SEG | bits::TX_IP_CKSUM,
            (_, true) => bits::TX_UDP_SEG,
        };
    }
    flags |= match transport.protocol {
        TCP => bits::TX_TCP_CKSUM,
        UDP => bits::TX_UDP_CKSUM,
        _ => return None,
    };
    Some((flags, bits::tx_offload(transport.l2, transport.l4 - transport.l2, l4, segment)))
}

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The flag of TCP's header that says that the window was reduced.
const CWR: u8 = 0x80;

/// Where the transport header of a TCP or UDP packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transport {
    /// Bytes before the IP header.
    l2: u16,
    /// Bytes before the transport header.
    l4: u16,
    ipv6: bool,
    protocol: u8,
}

impl Transport {
    fn find(frame: &[u8]) -> Option<Transport> {
        let mut l2 = 14;
        // As many tags as the length of the L2 header, in 7 bits, has room for.
        while l2 <= 118 && matches!(frame.get(l2 - 2..l2)?, [0x81, 0x00] | [0x88, 0xa8]) {
            l2 += 4;
        }
        let (ipv6, protocol, l4) = match frame.get(l2 - 2..l2)? {
            [0x08, 0x00] => {
                let ip = frame.get(l2..l2 + 20)?;
                (false, ip[9], l2 + usize::from(ip[0] & 15) * 4)
            }
            [0x86, 0xdd] => {
                let (mut next, mut at) = (*frame.get(l2 + 6)?, l2 + 40);
                // Hop-by-hop options, routing header, destination options (RFC 8200 section 4.1).
                while matches!(next, 0 | 43 | 60) && at - l2 < 512 {
                    let length = usize::from(*frame.get(at + 1)?);
                    next = frame[at];
                    at += 8 + length * 8;
                }
                (true, next, at)
            }
            _ => return None,
        };
        let fits = matches!(protocol, TCP | UDP) && l4 - l2 < 512 && l4 - l2 >= 20 && frame.len() >= l4 + 8;
        fits.then_some(Transport { l2: l2 as u16, l4: l4 as u16, ipv6, protocol })
    }

    /// Where the checksum is, from the transport header.
    fn checksum_offset(&self) -> Option<u16> {
        match self.protocol {
            TCP => Some(16),
            UDP => Some(6),
            _ => None,
        }
    }

    /// Bytes of the transport header.
    fn header_len(&self, frame: &[u8]) -> u16 {
        match self.protocol {
            TCP => frame.get(usize::from(self.l4) + 12).map_or(20, |offset| u16::from(offset >> 4) * 4),
            _ => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, tags, IPv4 or IPv6, TCP with 12 bytes of options or UDP.
    fn frame(tags: usize, ipv6: bool, protocol: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0, 0, 1]);
        }
        if ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
            frame.extend([0; 32]);
        } else {
            frame.extend([0x08, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0]);
            frame.extend([0; 8]);
        }
        let mut l4 = [0; 40];
        l4[12] = 0x80;
        frame.extend(l4);
        frame
    }

    #[test]
    fn devices_are_told_what_is_left_to_do() {
        for (tags, ipv6, protocol, l4_flag, offset) in
            [(0, false, TCP, bits::TX_TCP_CKSUM, 16), (1, true, UDP, bits::TX_UDP_CKSUM, 6)]
        {
            let frame = frame(tags, ipv6, protocol);
            let (l2, l3) = (14 + 4 * tags as u16, if ipv6 { 40 } else { 20 });
            let offload =
                Offload { flags: Offload::NEEDS_CSUM, csum_start: l2 + l3, csum_offset: offset, ..Offload::NONE };
            let version = if ipv6 { bits::TX_IPV6 } else { bits::TX_IPV4 };
            assert_eq!(sent_offload(&offload, &frame), Some((l4_flag | version, bits::tx_offload(l2, l3, 0, 0))));
            assert_eq!(sent_offload(&Offload { csum_start: 30, ..offload }, &frame), None);
        }
    }

    #[test]
    fn a_device_is_not_asked_for_a_checksum_behind_the_frame() {
        // The place that was named is within the frame; that of TCP, which a device takes, is not.
        let short = &frame(0, false, TCP)[..34 + 8];
        let offload = Offload { flags: Offload::NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..Offload::NONE };
        assert_eq!(sent_offload(&offload, short), None);
    }

    #[test]
    fn devices_are_told_to_cut() {
        let gso = Offload {
            flags: Offload::NEEDS_CSUM,
            gso_type: Offload::GSO_TCPV4,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        let flags = bits::TX_IPV4 | bits::TX_IP_CKSUM | bits::TX_TCP_SEG | bits::TX_TCP_CKSUM;
        assert_eq!(sent_offload(&gso, &frame(0, false, TCP)), Some((flags, bits::tx_offload(14, 20, 32, 1448))));
        let merged = |frame: &[u8]| received_offload(bits::RX_LRO | bits::RX_L4_CKSUM_NONE, 1448 << 24, frame);
        assert_eq!(merged(&frame(0, false, TCP)), gso);
        let mut reduced = frame(0, false, TCP);
        reduced[34 + 13] |= CWR;
        assert_eq!(merged(&reduced), Offload { gso_type: Offload::GSO_TCPV4 | Offload::GSO_ECN, ..gso });
    }

    #[test]
    fn what_drivers_verified_is_known() {
        let frame = frame(0, true, UDP);
        let of = |flags| received_offload(flags, 0, &frame);
        assert_eq!(of(bits::RX_L4_CKSUM_GOOD), Offload { flags: Offload::DATA_VALID, ..Offload::NONE });
        assert_eq!(of(bits::RX_L4_CKSUM_BAD), Offload::NONE);
        let unfinished = Offload { flags: Offload::NEEDS_CSUM, csum_start: 54, csum_offset: 6, ..Offload::NONE };
        assert_eq!(of(bits::RX_L4_CKSUM_NONE), unfinished);
        assert_eq!(received_offload(bits::RX_L4_CKSUM_NONE, 0, &[0; 14]), Offload::NONE);
    }

    #[test]
    fn short_and_strange_frames_have_no_transport() {
        let whole = frame(2, true, TCP);
        for len in 0..whole.len() - 32 {
            assert_eq!(Transport::find(&whole[..len]), None, "{len}");
        }
        assert!(Transport::find(&whole).is_some());
        assert_eq!(Transport::find(&[0x81, 0].repeat(100)), None);
        let mut options = frame(0, true, 0);
        options[55] = 255;
        assert_eq!(Transport::find(&options), None);
    }
}
