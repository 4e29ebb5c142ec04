//! Header changes on the bytes of a frame, with every checksum computed anew.
//!
//! Knows Ethernet, two VLAN tags and those it has pushed, IPv4 without options, IPv6 without extension headers, TCP, UDP.
//! Headers may be cut short: they are left alone, but the tables see what would have been written.

use packet::flow::extract::{Layers, extract};
use packet::{Field, Key};

/// A frame that can be changed.
#[derive(Clone)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// Number of VLAN tags. A third one that it came with is payload; one that was pushed is not.
    tags: usize,
    /// What was written of headers that are not whole: value and mask.
    unwritten: Vec<(Field, u128, u128)>,
}

const TPIDS: [u16; 2] = [0x8100, 0x88a8];

impl Frame {
    /// A frame that came in.
    pub fn new(bytes: &[u8]) -> Frame {
        let mut frame = Frame { bytes: bytes.to_vec(), tags: 0, unwritten: Vec::new() };
        frame.tags = (0..2).take_while(|n| TPIDS.contains(&frame.u16(12 + 4 * n))).count();
        frame
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

    fn l3(&self) -> usize {
        14 + 4 * self.tags()
    }

    fn ethertype(&self) -> u16 {
        self.u16(self.l3() - 2)
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

    /// The frame as the tables see it: two tags.
    pub fn seen(&self) -> Vec<u8> {
        if self.tags <= 2 {
            return self.bytes.clone();
        }
        let covered = 20..12 + 4 * self.tags.max(2);
        let mut bytes = self.bytes.clone();
        bytes.drain(covered);
        bytes
    }

    /// What the tables see in the place of headers that are not whole.
    pub fn see_unwritten(&self, key: &mut Key) {
        for &(field, value, mask) in &self.unwritten {
            key.set(field, key.get(field) & !mask | value & mask);
        }
    }

    /// Whether the L3 and the L4 header are whole.
    fn whole(&self) -> (bool, bool) {
        let layers = extract(&self.seen(), &mut Key::new());
        (layers.l3 != Layers::NONE, layers.l4 != Layers::NONE)
    }

    pub fn set_tci(&mut self, bits: u16, value: u16, push: bool) {
        match self.tci() {
            Some(tci) => self.put16(14, tci & !bits | value),
            None if push => self.push(0x8100, value),
            None => {}
        }
    }

    /// Decrements the TTL. False where it is used up.
    pub fn dec_ttl(&mut self) -> bool {
        let at = match self.ethertype() {
            0x0800 => self.l3() + 8,
            0x86dd => self.l3() + 7,
            _ => return true,
        };
        if !self.whole().0 {
            let mut key = Key::new();
            self.see_unwritten(&mut key);
            let ttl = key.get(Field::NwTtl);
            self.unwritten.push((Field::NwTtl, ttl.saturating_sub(1), 0xff));
            return ttl > 1;
        }
        if self.bytes[at] <= 1 {
            return false;
        }
        self.bytes[at] -= 1;
        self.checksums();
        true
    }

    fn proto(&self) -> Option<(u8, usize)> {
        if !self.whole().0 {
            return None;
        }
        match self.ethertype() {
            0x0800 => Some((self.bytes[self.l3() + 9], self.l3() + 20)),
            0x86dd => Some((self.bytes[self.l3() + 6], self.l3() + 40)),
            _ => None,
        }
    }

    /// Writes a field, where the frame has it.
    pub fn set(&mut self, field: Field, value: u128, mask: u128) {
        let (l3, ethertype, proto) = (self.l3(), self.ethertype(), self.proto());
        let (has_l3, has_l4) = self.whole();
        let l4 = |n| proto.filter(|(proto, _)| *proto == n).map(|(_, at)| at);
        let place = match (field, ethertype) {
            (Field::DlDst, _) => Some((0, 6)),
            (Field::DlSrc, _) => Some((6, 6)),
            (Field::NwSrc, 0x0800) => Some((l3 + 12, 4)),
            (Field::NwDst, 0x0800) => Some((l3 + 16, 4)),
            (Field::NwTtl, 0x0800) => Some((l3 + 8, 1)),
            (Field::NwTtl, 0x86dd) => Some((l3 + 7, 1)),
            (Field::Ipv6Dst, 0x86dd) => Some((l3 + 24, 16)),
            (Field::ArpSpa, 0x0806) => Some((l3 + 14, 4)),
            (Field::TcpSrc, _) => l4(6).map(|at| (at, 2)),
            (Field::TcpDst, _) => l4(6).map(|at| (at + 2, 2)),
            (Field::UdpSrc, _) => l4(17).map(|at| (at, 2)),
            (Field::UdpDst, _) => l4(17).map(|at| (at + 2, 2)),
            (Field::IpDscp | Field::NwTos, 0x0800) if has_l3 => {
                self.bytes[l3 + 1] = self.bytes[l3 + 1] & 3 | ((value & mask) as u8) << 2;
                None
            }
            (Field::IpDscp | Field::NwTos, 0x0800) => Some((l3 + 1, 1)),
            _ => None,
        };
        let is_whole = match field {
            Field::DlDst | Field::DlSrc => true,
            Field::TcpSrc | Field::TcpDst | Field::UdpSrc | Field::UdpDst => has_l4,
            _ => has_l3,
        };
        if place.is_some() && !is_whole {
            return self.unwritten.push((field, value, mask));
        }
        if let Some((at, len)) = place {
            for (i, byte) in self.bytes[at..at + len].iter_mut().rev().enumerate() {
                let (value, mask) = ((value >> (8 * i)) as u8, (mask >> (8 * i)) as u8);
                *byte = *byte & !mask | value & mask;
            }
        }
        self.checksums();
    }

    fn checksums(&mut self) {
        let l3 = self.l3();
        let (has_l3, has_l4) = self.whole();
        if !has_l3 {
            return;
        }
        if self.ethertype() == 0x0800 {
            self.put16(l3 + 10, 0);
            let sum = sum(&self.bytes[l3..l3 + 20], 0);
            self.put16(l3 + 10, !fold(sum));
        }
        let Some((proto, l4)) = self.proto().filter(|_| has_l4) else { return };
        let at = match proto {
            6 => l4 + 16,
            17 if self.u16(l4 + 6) != 0 => l4 + 6,
            _ => return,
        };
        self.put16(at, 0);
        let addresses = if self.ethertype() == 0x0800 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 };
        let len = (self.bytes.len() - l4) as u32;
        let total = sum(&self.bytes[l4..], sum(&self.bytes[addresses], len + u32::from(proto)));
        let checksum = !fold(total);
        self.put16(at, if proto == 17 && checksum == 0 { 0xffff } else { checksum });
    }
}

fn sum(bytes: &[u8], start: u32) -> u32 {
    bytes.chunks(2).fold(start, |sum, pair| sum + (u32::from(pair[0]) << 8) + u32::from(*pair.get(1).unwrap_or(&0)))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
