//! The blocks of a capture file, as draft-ietf-opsawg-pcapng describes them: "section 4.1" is a section of it. Numbers are little-endian.

use packet::Time;

/// Section 4.1.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
/// Section 4.2.
const INTERFACE: u32 = 1;
/// Section 4.3.
const ENHANCED_PACKET: u32 = 6;
/// Section 4.6.
const STATISTICS: u32 = 5;

/// Tells the order of bytes (section 4.1).
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Frames begin with an Ethernet header (`LINKTYPE_ETHERNET`).
const ETHERNET: u16 = 1;

/// Options (sections 3.5, 4.1 to 4.6).
mod option {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const SHB_OS: u16 = 3;
    pub const SHB_APPLICATION: u16 = 4;
    pub const IF_NAME: u16 = 2;
    pub const IF_TIME_RESOLUTION: u16 = 9;
    pub const IF_FILTER: u16 = 11;
    pub const EPB_FLAGS: u16 = 2;
    pub const ISB_RECEIVED: u16 = 4;
    pub const ISB_OS_DROPPED: u16 = 7;
}

/// The most bytes of an option's value that is text. A length has 16 bits.
const MOST_TEXT: usize = 32 << 10;

/// The direction of a packet, as in the flags of its block (section 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It came in at the interface.
    Inbound = 1,
    /// It was to leave by it.
    Outbound = 2,
}

/// A packet, for its block.
pub struct PacketBlock<'a> {
    /// The number of its interface.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: Time,
    /// Length of the whole frame.
    pub length: u32,
    /// Its direction.
    pub direction: Direction,
    /// What is said of it; empty: nothing.
    pub comment: &'a str,
}

/// Appends a section header, which begins a file.
pub fn section_header(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        // Version 1.0, and a length that is not known.
        out.extend_from_slice(&[1, 0, 0, 0]);
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        text(out, option::SHB_OS, std::env::consts::OS);
        text(out, option::SHB_APPLICATION, application);
        end_of_options(out);
    });
}

/// Appends the description of an interface. Interfaces are numbered in their order, from zero.
pub fn interface(out: &mut Vec<u8>, name: &str, snap_length: u32, filter: &str) {
    block(out, INTERFACE, |out| {
        out.extend_from_slice(&ETHERNET.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&snap_length.to_le_bytes());
        text(out, option::IF_NAME, name);
        if !filter.is_empty() {
            // The first byte says that it is the text of a filter of libpcap.
            text(out, option::IF_FILTER, &format!("\0{filter}"));
        }
        // Nanoseconds: 10 to the power of -9.
        value(out, option::IF_TIME_RESOLUTION, &[9]);
        end_of_options(out);
    });
}

/// Appends a packet with as much of its frame as is there.
pub fn packet(out: &mut Vec<u8>, packet: &PacketBlock<'_>, frame: &[u8]) {
    block(out, ENHANCED_PACKET, |out| {
        let time = packet.time.0;
        for number in [packet.interface, (time >> 32) as u32, time as u32, frame.len() as u32, packet.length] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        padded(out, frame);
        value(out, option::EPB_FLAGS, &(packet.direction as u32).to_le_bytes());
        if !packet.comment.is_empty() {
            text(out, option::COMMENT, packet.comment);
        }
        end_of_options(out);
    });
}

/// Appends what was counted of an interface: packets that are in the file, and packets that are lost.
pub fn statistics(out: &mut Vec<u8>, interface: u32, time: Time, received: u64, lost: u64) {
    block(out, STATISTICS, |out| {
        for number in [interface, (time.0 >> 32) as u32, time.0 as u32] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        value(out, option::ISB_RECEIVED, &received.to_le_bytes());
        value(out, option::ISB_OS_DROPPED, &lost.to_le_bytes());
        end_of_options(out);
    });
}

/// Appends a block: its type, its length, what is in it, and its length again.
fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let length = ((out.len() - start + 4) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length);
    out.extend_from_slice(&length);
}

fn value(out: &mut Vec<u8>, code: u16, bytes: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    padded(out, bytes);
}

fn text(out: &mut Vec<u8>, code: u16, text: &str) {
    value(out, code, &text.as_bytes()[..text.floor_char_boundary(MOST_TEXT)]);
}

fn end_of_options(out: &mut Vec<u8>) {
    value(out, option::END, &[]);
}

/// Appends bytes, and zeros up to a multiple of four.
fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A block as it is read: its type, what is before its options, and these.
    type Read = (u32, Vec<u8>, Vec<(u16, Vec<u8>)>);

    /// Reads blocks, by the plainest reading of the specification.
    fn read(mut bytes: &[u8]) -> Vec<Read> {
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let (kind, length) = (number(bytes), number(&bytes[4..]) as usize);
            assert!(length.is_multiple_of(4) && number(&bytes[length - 4..]) as usize == length);
            let body = &bytes[8..length - 4];
            let fixed = match kind {
                SECTION_HEADER => 16,
                INTERFACE => 8,
                ENHANCED_PACKET => 20 + (number(&body[12..]) as usize).next_multiple_of(4),
                STATISTICS => 12,
                other => panic!("block {other:#x}"),
            };
            let (mut rest, mut options) = (&body[fixed..], Vec::new());
            loop {
                let [code, length] = [0, 2].map(|at| u16::from_le_bytes(rest[at..at + 2].try_into().unwrap()));
                let after = 4 + usize::from(length).next_multiple_of(4);
                if code == option::END {
                    assert_eq!((length, rest.len()), (0, 4));
                    break;
                }
                options.push((code, rest[4..4 + usize::from(length)].to_vec()));
                rest = &rest[after..];
            }
            blocks.push((kind, body[..fixed].to_vec(), options));
            bytes = &bytes[length..];
        }
        blocks
    }

    #[test]
    fn a_file_begins_with_its_section_and_interfaces() {
        let mut file = Vec::new();
        section_header(&mut file, "weir 1");
        interface(&mut file, "eth1", 96, "tcp port 80");
        statistics(&mut file, 0, Time(5 << 32 | 6), 7, 8);
        let blocks = read(&file);
        assert_eq!((&file[..4], &file[8..12]), (&[0x0a, 0x0d, 0x0d, 0x0a][..], &[0x4d, 0x3c, 0x2b, 0x1a][..]));
        assert_eq!(blocks[0].1[4..], [&[1, 0, 0, 0][..], &[0xff; 8]].concat());
        assert_eq!(blocks[0].2, [(3, b"linux".to_vec()), (4, b"weir 1".to_vec())]);
        assert_eq!(blocks[1].1, [1, 0, 0, 0, 96, 0, 0, 0]);
        assert_eq!(blocks[1].2, [(2, b"eth1".to_vec()), (11, b"\0tcp port 80".to_vec()), (9, vec![9])]);
        assert_eq!(blocks[2].1, [0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(blocks[2].2, [(4, 7u64.to_le_bytes().to_vec()), (7, 8u64.to_le_bytes().to_vec())]);
    }

    #[test]
    fn frames_of_every_length_read_back() {
        let frame: Vec<u8> = (0..=65_535u32).map(|i| (i % 251) as u8).collect();
        for length in (0..70).chain(65_530..=65_535) {
            let mut file = Vec::new();
            let block = PacketBlock {
                interface: 3,
                time: Time(0x1122_3344_5566_7788),
                length: 70_000,
                direction: Direction::Outbound,
                comment: "",
            };
            packet(&mut file, &block, &frame[..length]);
            let [(ENHANCED_PACKET, fixed, options)] = &read(&file)[..] else { panic!("one block") };
            let numbers: Vec<u32> =
                fixed[..20].chunks(4).map(|number| u32::from_le_bytes(number.try_into().unwrap())).collect();
            assert_eq!(numbers, [3, 0x1122_3344, 0x5566_7788, length as u32, 70_000]);
            assert!(fixed[20..20 + length] == frame[..length] && fixed[20 + length..].iter().all(|&b| b == 0));
            assert_eq!(options, &[(2, vec![2, 0, 0, 0])]);
        }
    }

    proptest! {
        #[test]
        fn any_comment_and_frame_reads_back(comment in ".{0,50}", frame: Vec<u8>, name in ".{1,20}") {
            let mut file = Vec::new();
            interface(&mut file, &name, 100, "");
            let (time, direction) = (Time(1), Direction::Inbound);
            packet(&mut file, &PacketBlock { interface: 0, time, length: 1, direction, comment: &comment }, &frame);
            let blocks = read(&file);
            prop_assert_eq!(&blocks[0].2[0].1, name.as_bytes());
            prop_assert_eq!(&blocks[1].1[20..20 + frame.len()], &frame[..]);
            let expected = (!comment.is_empty()).then(|| (option::COMMENT, comment.clone().into_bytes()));
            prop_assert_eq!(blocks[1].2.get(1).cloned(), expected);
        }
    }

    #[test]
    fn a_long_comment_is_cut_between_characters() {
        let (mut file, comment) = (Vec::new(), "é".repeat(40_000));
        let (time, direction) = (Time(1), Direction::Inbound);
        packet(&mut file, &PacketBlock { interface: 0, time, length: 1, direction, comment: &comment }, &[]);
        let text = read(&file)[0].2[1].1.clone();
        assert_eq!(String::from_utf8(text).unwrap(), "é".repeat(MOST_TEXT / 2));
    }
}
