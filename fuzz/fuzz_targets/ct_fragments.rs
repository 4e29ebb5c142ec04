//! Fragments in any order: each comes out once, what is whole has every byte once, and no more are held than may be.
#![no_main]

use std::time::Duration;

use conntrack::fragments::{Datagram, Fragments, Outcome, Piece, TIMEOUT};
use libfuzzer_sys::fuzz_target;
use packet::Time;

fuzz_target!(|steps: Vec<(u8, u16, u16, bool)>| {
    let fragments = Fragments::new();
    fragments.set_max(64);
    let (mut now, mut out) = (Time(0), 0);
    let pieces: Vec<Piece> = steps
        .iter()
        .map(|(_, offset, len, more)| Piece {
            offset: u32::from(offset % 32) * 8,
            len: u32::from(len % 64),
            more: *more,
            packet_len: 1500,
        })
        .collect();
    for (n, (id, ..)) in steps.iter().enumerate() {
        now = now + Duration::from_secs(u64::from(id >> 6));
        while let Some(expired) = fragments.expire(now) {
            out += expired.len();
        }
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let datagram = Datagram { src, dst, proto: 17, zone: 0, id: u32::from(id % 8), recirc_id: 0 };
        match fragments.add(datagram, pieces[n], now, |_| Some(n)) {
            Outcome::Held => {}
            Outcome::Refused(_) => out += 1,
            Outcome::Void(dropped) => out += dropped.len() + 1,
            Outcome::Whole(whole, first) => {
                assert_eq!(pieces[whole[first]].offset, 0);
                let mut parts: Vec<Piece> = whole.iter().map(|n| pieces[*n]).collect();
                parts.sort_by_key(|piece| piece.offset);
                let end = parts.iter().try_fold(0, |at, part| (at == part.offset).then_some(part.offset + part.len));
                assert!(end.is_some(), "no hole and no overlap");
                out += whole.len();
            }
        }
        assert!(fragments.status().held <= 64);
    }
    while let Some(expired) = fragments.expire(now + TIMEOUT) {
        out += expired.len();
    }
    assert_eq!(out, steps.len());
});
