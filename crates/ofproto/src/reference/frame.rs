//! Header changes on the bytes of a frame, found by parsing it anew for each change.
//!
//! Checksums are corrected for what was changed, word by word, as RFC 1624 has it: one that was wrong before
//! stays wrong. Headers that are cut short are left alone, but the tables see what would have been written.

use packet::flow::{VlanLimit, block::Common, extract::Layers, frag};
use packet::{Field, Key};

/// A frame that can be changed.
#[derive(Clone)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// Number of VLAN tags. A third one that it came with is payload; one that was pushed is not.
    tags: usize,
    /// It has no Ethernet: only the type in that header, whose addresses are zero, means something.
    pub is_bare: bool,
    /// What was written of headers that are not whole: value and mask.
    unwritten: Vec<(Field, u128, u128)>,
}

const TPIDS: [u16; 2] = [0x8100, 0x88a8];
const NSH: u16 = 0x894f;
/// An Ethernet type of which nothing is known.
const OPAQUE: u16 = 0x9999;

impl Frame {
    /// A frame that came in.
    pub fn new(bytes: &[u8]) -> Frame {
        let tagged =
            |at: usize| bytes.len() >= at + 6 && TPIDS.contains(&u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let tags = (0..2).take_while(|n| tagged(12 + 4 * n)).count();
        Frame { bytes: bytes.to_vec(), tags, is_bare: false, unwritten: Vec::new() }
    }

    /// The frame, looked at anew: what was payload behind tags that were removed may be a tag, and what was not
    /// written is not seen.
    pub fn come_again(&self) -> Frame {
        Frame { is_bare: self.is_bare, ..Frame::new(&self.bytes) }
    }

    /// As the packet is sent.
    pub fn len(&self) -> usize {
        self.bytes.len() - if self.is_bare { 14 } else { 0 }
    }

    /// The type of what is behind Ethernet and its tags.
    pub fn ethertype(&self) -> u16 {
        let at = 12 + 4 * self.tags;
        if self.bytes.len() < at + 2 { 0 } else { self.u16(at) }
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// Number of VLAN tags.
    pub fn tags(&self) -> usize {
        self.tags
    }

    /// TCI of the outermost tag.
    pub fn tci(&self) -> Option<u16> {
        (self.tags() > 0).then(|| self.u16(14))
    }

    pub fn push(&mut self, tpid: u16, tci: u16) {
        let tag = [tpid.to_be_bytes(), tci.to_be_bytes()].concat();
        self.bytes.splice(12..12, tag);
        self.tags += 1;
    }

    pub fn pop(&mut self) {
        if self.tags() > 0 {
            self.bytes.drain(12..16);
            self.tags -= 1;
        }
    }

    /// The frame as the tables see it, two tags at most and what was not written, and where its headers are.
    pub fn key(&self) -> (Key, Layers) {
        let hidden = 4 * self.tags.saturating_sub(2);
        let mut seen = self.bytes.clone();
        if hidden > 0 {
            seen.drain(20..20 + hidden);
        }
        // Behind tags that were removed, another one is payload still.
        let at = 12 + 4 * self.tags;
        let payload =
            (self.tags < 2 && self.bytes.len() >= at + 2).then(|| self.u16(at)).filter(|tpid| TPIDS.contains(tpid));
        if payload.is_some() {
            seen[at..at + 2].copy_from_slice(&OPAQUE.to_be_bytes());
        }
        let mut key = Key::new();
        let mut layers = packet::flow::extract(&seen, &mut key, VlanLimit::default());
        if let Some(tpid) = payload {
            key.common_mut().dl_type = tpid.into();
        }
        if self.is_bare {
            key.common_mut().packet_type = packet::flow::packet_type(key.common().dl_type.get()).into();
        }
        for &(field, value, mask) in &self.unwritten {
            key.set(field, key.get(field) & !mask | value & mask);
        }
        for place in [&mut layers.l2_5, &mut layers.l3, &mut layers.l4] {
            if *place != Layers::NONE {
                *place += hidden as u16;
            }
        }
        (key, layers)
    }

    pub fn set_tci(&mut self, bits: u16, value: u16, push: bool) {
        match self.tci() {
            Some(tci) => self.put16(14, tci & !bits | value),
            None if push => self.push(0x8100, value),
            None => {}
        }
    }

    /// Decrements the TTL. False where it is used up, as is that of a header that is not whole until it is set.
    pub fn dec_ttl(&mut self) -> bool {
        let (key, _) = self.key();
        let Common { dl_type, nw_ttl, .. } = *key.common();
        if !matches!(dl_type.get(), 0x0800 | 0x86dd) {
            return true;
        }
        if nw_ttl <= 1 {
            return false;
        }
        self.set(Field::NwTtl, (nw_ttl - 1).into(), 0xff);
        true
    }

    /// Where the topmost label is, if there is one.
    fn label(&self) -> Option<usize> {
        let at = 12 + 4 * self.tags;
        let labelled = self.bytes.len() >= at + 6 && matches!(self.u16(at), 0x8847 | 0x8848);
        labelled.then_some(at + 2)
    }

    /// Adds a label behind the tags: a copy of the topmost, or one that is explicitly null, with the TTL of IP and the
    /// low bits of its DSCP.
    pub fn push_label(&mut self, ethertype: u16) {
        let at = 12 + 4 * self.tags;
        let label = match self.label() {
            Some(at) => [self.bytes[at], self.bytes[at + 1], self.bytes[at + 2] & !1, self.bytes[at + 3]],
            None => {
                let (key, _) = self.key();
                let Common { dl_type, nw_tos, nw_ttl, .. } = *key.common();
                let number = if dl_type.get() == 0x86dd { 2 } else { 0 };
                let ttl = if nw_ttl == 0 { 64 } else { nw_ttl };
                [0, 0, number << 4 | (nw_tos >> 2 & 7) << 1 | 1, ttl]
            }
        };
        self.bytes.splice(at + 2..at + 2, label);
        self.put16(at, ethertype);
    }

    /// Removes the topmost label, and with a type that is not that of labels those below as well, as OVS does.
    pub fn pop_label(&mut self, ethertype: u16) {
        let all = !matches!(ethertype, 0x8847 | 0x8848);
        while let Some(at) = self.label() {
            let is_last = self.bytes[at + 2] & 1 != 0;
            self.bytes.drain(at..at + 4);
            if is_last || !all {
                return self.put16(at - 2, ethertype);
            }
        }
    }

    /// Decrements the TTL of the topmost label. False where there is none, or its TTL is used up.
    pub fn dec_label_ttl(&mut self) -> bool {
        let Some(at) = self.label() else { return false };
        if self.bytes[at + 3] <= 1 {
            return false;
        }
        self.bytes[at + 3] -= 1;
        true
    }

    /// Writes a field, where the frame has it.
    pub fn set(&mut self, field: Field, value: u128, mask: u128) {
        let bits = match field {
            Field::MplsLabel => Some(12),
            Field::MplsTc => Some(9),
            Field::MplsTtl => Some(0),
            _ => None,
        };
        if let Some(shift) = bits {
            let Some(at) = self.label() else { return };
            let old = u32::from_be_bytes(self.bytes[at..at + 4].try_into().unwrap());
            let new = old & !((mask as u32) << shift) | (value as u32 & mask as u32) << shift;
            self.bytes[at..at + 4].copy_from_slice(&new.to_be_bytes());
            return;
        }
        let (key, layers) = self.key();
        let Common { dl_type, nw_proto, nw_frag, .. } = *key.common();
        let dl_type = dl_type.get();
        let (l3, l4) = (layers.l3, layers.l4);
        let transport = |proto, at: usize| (nw_proto == proto && nw_frag & frag::LATER == 0).then_some((l4, at, 2));
        let place = match (field, dl_type) {
            (Field::DlDst | Field::DlSrc, _) if self.is_bare => None,
            (Field::DlDst, _) => Some((0, 0, 6)),
            (Field::DlSrc, _) => Some((0, 6, 6)),
            (Field::NshFlags | Field::NshTtl, NSH) => Some((l3, 0, 2)),
            (Field::NshSpi, NSH) => Some((l3, 4, 3)),
            (Field::NshSi, NSH) => Some((l3, 7, 1)),
            (Field::NshC1, NSH) => Some((l3, 8, 4)),
            (Field::NshC2, NSH) => Some((l3, 12, 4)),
            (Field::NshC3, NSH) => Some((l3, 16, 4)),
            (Field::NshC4, NSH) => Some((l3, 20, 4)),
            (Field::IpDscp, 0x0800) => Some((l3, 1, 1)),
            (Field::NwTtl, 0x0800) => Some((l3, 8, 1)),
            (Field::NwSrc, 0x0800) => Some((l3, 12, 4)),
            (Field::NwDst, 0x0800) => Some((l3, 16, 4)),
            (Field::NwTtl, 0x86dd) => Some((l3, 7, 1)),
            (Field::Ipv6Src, 0x86dd) => Some((l3, 8, 16)),
            (Field::Ipv6Dst, 0x86dd) => Some((l3, 24, 16)),
            (Field::ArpSpa, 0x0806) => Some((l3, 14, 4)),
            (Field::TcpSrc, 0x0800 | 0x86dd) => transport(6, 0),
            (Field::TcpDst, 0x0800 | 0x86dd) => transport(6, 2),
            (Field::UdpSrc, 0x0800 | 0x86dd) => transport(17, 0),
            (Field::UdpDst, 0x0800 | 0x86dd) => transport(17, 2),
            _ => None,
        };
        let Some((header, at, len)) = place else { return };
        let is_context = matches!(field, Field::NshC1 | Field::NshC2 | Field::NshC3 | Field::NshC4);
        // Where options are instead, context headers are only seen.
        if header == Layers::NONE || is_context && key.encap().nsh_mdtype != 1 {
            return self.unwritten.push((field, value, mask));
        }
        let shift = match field {
            Field::IpDscp => 2,
            Field::NshTtl => 6,
            Field::NshFlags => 12,
            _ => 0,
        };
        // The field is wider than its bits in the header, between which and the next byte are the flags (RFC 8300 section 2.2).
        let mask = if field == Field::NshTtl { mask & 0x3f } else { mask };
        let (value, mask) = (value << shift, mask << shift);
        let (before, at) = (self.bytes.clone(), usize::from(header) + at);
        for (i, byte) in self.bytes[at..at + len].iter_mut().rev().enumerate() {
            let (value, mask) = ((value >> (8 * i)) as u8, (mask >> (8 * i)) as u8);
            *byte = *byte & !mask | value & mask;
        }
        self.checksums(&before, (dl_type, nw_proto), layers);
    }

    /// Corrects checksums for what is other than before.
    fn checksums(&mut self, before: &[u8], (dl_type, proto): (u16, u8), layers: Layers) {
        if !matches!(dl_type, 0x0800 | 0x86dd) || layers.l3 == Layers::NONE {
            return;
        }
        let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
        let changed = |range: std::ops::Range<usize>| change(&before[range.clone()], &self.bytes[range]);
        let addresses = match dl_type {
            0x0800 => l3 + 12..l3 + 20,
            // With hops to come, the destination in the header is not the one that counts.
            _ if self.has_hops_to_come(l3) => l3 + 8..l3 + 24,
            _ => l3 + 8..l3 + 40,
        };
        let pseudo = changed(addresses);
        let own = if layers.l4 == Layers::NONE { 0 } else { changed(l4..before.len()) };
        if dl_type == 0x0800 {
            let delta = changed(l3..l3 + 20);
            self.put16(l3 + 10, corrected(self.u16(l3 + 10), delta));
        }
        if layers.l4 == Layers::NONE {
            return;
        }
        match (proto, dl_type) {
            (6, _) => self.put16(l4 + 16, corrected(self.u16(l4 + 16), pseudo + own)),
            (17, _) if self.u16(l4 + 6) != 0 && pseudo + own != 0 => {
                let checksum = corrected(self.u16(l4 + 6), pseudo + own);
                self.put16(l4 + 6, if checksum == 0 { 0xffff } else { checksum });
            }
            (58, 0x86dd) => self.put16(l4 + 2, corrected(self.u16(l4 + 2), pseudo + own)),
            _ => {}
        }
    }

    /// Whether an IPv6 packet has a routing header with segments left.
    fn has_hops_to_come(&self, l3: usize) -> bool {
        let (mut kind, mut at) = (self.bytes[l3 + 6], l3 + 40);
        while let Some(header) = self.bytes.get(at..at + 4) {
            match kind {
                43 => return header[3] > 0,
                0 | 60 => (kind, at) = (header[0], at + 8 + 8 * usize::from(header[1])),
                _ => return false,
            }
        }
        false
    }
}

/// Sum of what goes and what comes, over the words that differ.
fn change(before: &[u8], after: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let pairs = before.chunks(2).zip(after.chunks(2)).map(|(a, b)| (word(a), word(b)));
    pairs.filter(|(a, b)| a != b).map(|(a, b)| (0xffff - a) + b).sum()
}

/// RFC 1624, equation 3.
fn corrected(checksum: u16, delta: u32) -> u16 {
    if delta == 0 {
        return checksum;
    }
    let mut sum = u32::from(!checksum) + delta;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}
