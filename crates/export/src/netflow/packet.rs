//! Packets of NetFlow version 5: a header of 24 bytes, and up to 30 records of 48 bytes.

use crate::Moment;
use crate::bytes::{Put, set_u16, set_u32};

const VERSION: u16 = 5;
/// Bytes of the header.
pub const HEADER_LEN: usize = 24;
/// Bytes of a record.
pub const RECORD_LEN: usize = 48;
/// Most records of a packet that is no longer than [`MAX_DATAGRAM`](crate::MAX_DATAGRAM); the version allows 30.
pub const MAX_RECORDS: usize = (crate::MAX_DATAGRAM - HEADER_LEN) / RECORD_LEN;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// Source.
    pub src: u32,
    /// Destination.
    pub dst: u32,
    /// Port that the packets came in by.
    pub input: u16,
    /// Port that they went out by.
    pub output: u16,
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub bytes: u32,
    /// When the first came, in milliseconds since the start.
    pub first: u32,
    /// When the last came.
    pub last: u32,
    /// Source port.
    pub src_port: u16,
    /// Destination port; type and code of ICMP.
    pub dst_port: u16,
    /// TCP flags, or-ed.
    pub tcp_flags: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Type of service.
    pub tos: u8,
}

/// A packet that is being filled.
pub struct Packet {
    bytes: Vec<u8>,
    records: u16,
    /// Number of the first record.
    first: u32,
}

impl Packet {
    /// An empty packet. Its first record is number `first`.
    pub fn new(first: u32) -> Packet {
        let mut bytes = Vec::with_capacity(HEADER_LEN + RECORD_LEN);
        bytes.put_u16(VERSION);
        bytes.put(&[0; HEADER_LEN - 2]);
        Packet { bytes, records: 0, first }
    }

    /// Whether it has as many records as it can have.
    pub fn is_full(&self) -> bool {
        usize::from(self.records) >= MAX_RECORDS
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Adds a record.
    pub fn add(&mut self, record: &Record) {
        let out = &mut self.bytes;
        out.put_u32(record.src);
        out.put_u32(record.dst);
        // The next hop is not known.
        out.put_u32(0);
        out.put_u16(record.input);
        out.put_u16(record.output);
        for number in [record.packets, record.bytes, record.first, record.last] {
            out.put_u32(number);
        }
        out.put_u16(record.src_port);
        out.put_u16(record.dst_port);
        out.put(&[0, record.tcp_flags, record.protocol, record.tos]);
        // Autonomous systems and prefixes are not known.
        out.put(&[0; 8]);
        self.records += 1;
    }

    /// The bytes. `uptime` is the time since the start in milliseconds.
    pub fn finish(mut self, uptime: u32, at: Moment, engine: (u8, u8)) -> Vec<u8> {
        let out = &mut self.bytes;
        set_u16(out, 2, self.records);
        set_u32(out, 4, uptime);
        set_u32(out, 8, at.wall.as_secs() as u32);
        set_u32(out, 12, at.wall.subsec_nanos());
        set_u32(out, 16, self.first);
        (out[20], out[21]) = engine;
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use packet::Time;

    use super::*;

    #[test]
    fn a_packet_as_the_version_has_it() {
        let mut packet = Packet::new(7);
        let record = Record {
            src: 0x0a00_0001,
            dst: 0x0a00_0002,
            input: 1,
            output: 2,
            packets: 3,
            bytes: 300,
            first: 1000,
            last: 2000,
            src_port: 1234,
            dst_port: 80,
            tcp_flags: 0x12,
            protocol: 6,
            tos: 0x20,
        };
        packet.add(&record);
        let at = Moment { now: Time(0), wall: Duration::new(0x6000_0000, 5) };
        let bytes = packet.finish(4000, at, (9, 8));
        let expected = [
            [0, 5, 0, 1, 0, 0, 0x0f, 0xa0, 0x60, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 7, 9, 8, 0, 0].as_slice(),
            &[10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 1, 44],
            &[0, 0, 3, 232, 0, 0, 7, 208, 4, 210, 0, 80, 0, 0x12, 6, 0x20, 0, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_full_packet_is_not_too_long() {
        let mut packet = Packet::new(0);
        while !packet.is_full() {
            packet.add(&Record::default());
        }
        assert!(packet.bytes.len() <= crate::MAX_DATAGRAM);
        assert!(packet.records <= 30);
    }
}
