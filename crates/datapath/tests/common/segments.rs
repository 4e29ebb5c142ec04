//! Finished segments of TCP, as they come from a NIC.

use std::collections::BTreeMap;

use packet::wire::build;

/// A finished segment of a connection, with this many bytes of payload.
pub fn segment(source: u16, (id, seq, flags): (u16, u32, u8), payload: usize) -> Vec<u8> {
    let mut tcp = build::tcp(source, 80, flags.into(), &vec![source as u8; payload]);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    let header = build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 6, ..Default::default() };
    let mut frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(tcp));
    // The identification was zero.
    let sum = u32::from(!u16::from_be_bytes([frame[24], frame[25]])) + u32::from(id);
    let sum = !((sum & 0xffff) as u16 + (sum >> 16) as u16);
    frame[18..20].copy_from_slice(&id.to_be_bytes());
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// So many frames of a connection.
pub fn stream(count: u16) -> Vec<Vec<u8>> {
    (0..count).map(|n| segment(1000, (n, 1000 * u32::from(n), 0x10), 1000)).collect()
}

/// A checksum that is zero has two forms, which mean the same, and the one that is made here need not be the one that came.
fn write_zero_in_one_way(frame: &mut [u8]) {
    if frame[23] == 6 && frame[50..52] == [0xff; 2] {
        frame[50..52].fill(0);
    }
}

/// Frames by what their connection is known by, or by their protocol.
pub fn by_connection(frames: Vec<Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for mut frame in frames {
        write_zero_in_one_way(&mut frame);
        all.entry(frame[23..24].iter().chain(&frame[26..38]).copied().collect()).or_default().push(frame);
    }
    all
}
