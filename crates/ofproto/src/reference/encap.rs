//! Headers that change a packet's type, on its bytes: Ethernet, NSH, and MPLS before a whole packet.

use openflow::action::{Encap, EncapProp};

use super::frame::Frame;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const NSH: u16 = 0x894f;
/// What a network service header calls the header behind it.
const NEXT: [(u8, u16); 3] = [(1, IPV4), (2, IPV6), (4, NSH)];
const NEXT_ETHERNET: u8 = 3;
/// Labels that can be handled.
const MAX_LABELS: usize = 3;

/// What becomes of a packet whose outermost header is taken away.
#[derive(PartialEq)]
pub enum Decapsulated {
    Done,
    /// What is behind it is only known once the packet comes round.
    Freezes,
    Fails,
}

impl Frame {
    /// False where the header cannot be put there.
    pub fn encap(&mut self, encap: &Encap) -> bool {
        let ethertype = encap.packet_type as u16;
        match encap.packet_type {
            0 => std::mem::replace(&mut self.is_bare, false),
            0x1_894f => {
                let next = match NEXT.iter().find(|(_, ethertype)| *ethertype == self.ethertype()) {
                    _ if !self.is_bare => NEXT_ETHERNET,
                    Some((next, _)) => *next,
                    None => return false,
                };
                self.put(NSH, &nsh(encap, next));
                true
            }
            _ => {
                let labels = self.labels();
                if labels >= MAX_LABELS {
                    return false;
                }
                let label = match self.is_bare && labels > 0 {
                    true => [self.bytes[14], self.bytes[15], self.bytes[16] & !1, self.bytes[17]],
                    false if self.ethertype() == IPV6 => [0, 0, 0x21, 64],
                    false => [0, 0, 1, 64],
                };
                self.put(ethertype, &label);
                true
            }
        }
    }

    pub fn decap(&mut self, left: Option<u32>) -> Decapsulated {
        if !self.is_bare {
            if self.tags() > 0 {
                return Decapsulated::Fails;
            }
            self.bytes[..12].fill(0);
            self.is_bare = true;
            return Decapsulated::Done;
        }
        match self.ethertype() {
            NSH => {
                let (next, len) = (self.bytes[17], 4 * usize::from(self.bytes[15] & 0x3f));
                match NEXT.iter().find(|(number, _)| *number == next) {
                    _ if next == NEXT_ETHERNET => self.take(len, None),
                    Some((_, ethertype)) => self.take(len, Some(*ethertype)),
                    None => return Decapsulated::Fails,
                }
                Decapsulated::Freezes
            }
            ethertype @ (0x8847 | 0x8848) => match self.labels() {
                0 => Decapsulated::Done,
                1 => {
                    self.take(4, left.filter(|&left| left != 0).map(|left| left as u16));
                    Decapsulated::Freezes
                }
                _ => {
                    self.take(4, Some(ethertype));
                    Decapsulated::Done
                }
            },
            _ => Decapsulated::Fails,
        }
    }

    /// False where there is no such header, or its TTL is used up.
    pub fn dec_nsh_ttl(&mut self) -> bool {
        let at = 14 + 4 * self.tags();
        if self.ethertype() != NSH {
            return false;
        }
        let word = u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        let ttl = word >> 6 & 0x3f;
        if ttl > 1 {
            self.bytes[at..at + 2].copy_from_slice(&(word - (1 << 6)).to_be_bytes());
        }
        ttl > 1
    }

    /// Puts a header before the packet, with a made-up one of Ethernet that says its type.
    fn put(&mut self, ethertype: u16, header: &[u8]) {
        let packet = if self.is_bare { &self.bytes[14..] } else { &self.bytes[..] };
        let bytes = [&[0; 12][..], &ethertype.to_be_bytes(), header, packet].concat();
        *self = Frame::new(&bytes);
        self.is_bare = true;
    }

    /// Takes `len` bytes away. What is behind has the type `ethertype`, or is a frame.
    fn take(&mut self, len: usize, ethertype: Option<u16>) {
        let packet = self.bytes.split_off(14 + len);
        match ethertype {
            Some(ethertype) => {
                self.bytes.truncate(12);
                self.bytes.extend(ethertype.to_be_bytes());
                self.bytes.extend(packet);
            }
            None => *self = Frame::new(&packet),
        }
    }

    /// How many labels the packet begins with, or the frame carries.
    fn labels(&self) -> usize {
        if !matches!(self.ethertype(), 0x8847 | 0x8848) {
            return 0;
        }
        let labels = self.bytes[14 + 4 * self.tags()..].chunks_exact(4);
        1 + labels.take_while(|label| label[2] & 1 == 0).count()
    }
}

/// A new network service header.
fn nsh(encap: &Encap, next: u8) -> Vec<u8> {
    let (mut md_type, mut options) = (1, Vec::new());
    for prop in &encap.props {
        match prop {
            EncapProp::NshMdType(number) => md_type = *number,
            EncapProp::NshTlv { class, kind, data } => {
                options.extend([class.to_be_bytes(), [*kind, data.len() as u8]].concat());
                options.extend(data);
                options.resize(options.len().div_ceil(4) * 4, 0);
            }
            EncapProp::MplsEtherType(_) => {}
        }
    }
    let metadata = if md_type == 2 { options } else { vec![0; 16] };
    let word = 63u16 << 6 | (2 + metadata.len() as u16 / 4);
    [&word.to_be_bytes()[..], &[md_type, next, 0, 0, 0, 255], &metadata].concat()
}
