//! Round trips of everything that can be said, messages of another implementation, and faults.

mod arbitrary;
mod faults;
mod vectors;

use proptest::prelude::*;

use super::{Body, DecodeOptions, FrameError, Message, Version, decode, encode, encode_all, frame_len, fuzz};

fn round_trip(message: &Message) {
    let options = DecodeOptions { flow_mod_table_id: message.version == Version::V1_0 };
    let bytes = encode(message, options).expect("fits");
    let back = decode(&bytes, options).unwrap_or_else(|e| panic!("{e}: {message:#?} became {bytes:02x?}"));
    assert_eq!(&back, message, "through {bytes:02x?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn flow_mods_survive(m in arbitrary::flow_mod()) {
        round_trip(&m);
    }

    #[test]
    fn packets_survive(m in arbitrary::packet()) {
        round_trip(&m);
    }

    #[test]
    fn small_messages_survive(m in arbitrary::small()) {
        round_trip(&m);
    }

    #[test]
    fn requests_survive(m in arbitrary::request()) {
        round_trip(&m);
    }

    #[test]
    fn replies_survive(m in arbitrary::reply()) {
        round_trip(&m);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 8..300), v in 0..2, kind in 0u8..30) {
        // A header that lets the body be looked at.
        let len = bytes.len() as u16;
        bytes[0] = if v == 0 { 1 } else { 4 };
        bytes[1] = kind;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        fuzz(&bytes);
    }

    #[test]
    fn damaged_messages_do_not_panic(m in arbitrary::any_message(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = encode(&m, DecodeOptions::default()).expect("fits");
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fuzz(&bytes);
    }
}

#[test]
fn a_long_reply_is_cut_with_more_flags() {
    let port = |n| crate::port::PortDesc {
        port: crate::OfPort(n),
        hw_addr: Default::default(),
        name: format!("p{n}"),
        config: Default::default(),
        state: Default::default(),
        current: Default::default(),
        advertised: Default::default(),
        supported: Default::default(),
        peer: Default::default(),
        current_speed: 0,
        max_speed: 0,
    };
    let ports: Vec<_> = (1..3000).map(port).collect();
    let reply = crate::MultipartReply::PortDesc(ports.clone());
    let message = Message::new(Version::V1_3, 7, Body::MultipartReply { more: false, reply });
    assert!(encode(&message, DecodeOptions::default()).is_err());
    let parts = encode_all(&message, DecodeOptions::default()).unwrap();
    assert_eq!(parts.len(), 3);
    let mut all = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let m = decode(part, DecodeOptions::default()).unwrap();
        assert_eq!(m.xid, 7);
        let Body::MultipartReply { more, reply: crate::MultipartReply::PortDesc(mut ports) } = m.body else { panic!() };
        assert_eq!(more, i < 2);
        all.append(&mut ports);
    }
    assert_eq!(all, ports);
}

#[test]
fn an_empty_reply_is_one_message() {
    let reply = crate::MultipartReply::Flow(Vec::new());
    let message = Message::new(Version::V1_0, 1, Body::MultipartReply { more: false, reply });
    assert_eq!(encode_all(&message, DecodeOptions::default()).unwrap(), [vec![1, 17, 0, 12, 0, 0, 0, 1, 0, 1, 0, 0]]);
}

#[test]
fn messages_are_cut_out_of_a_stream() {
    assert_eq!(frame_len(&[1, 0, 0]), Ok(None));
    assert_eq!(frame_len(&[1, 0, 0, 8]), Ok(Some(8)));
    assert_eq!(frame_len(&[1, 0, 0xff, 0xff, 0]), Ok(Some(65535)));
    assert_eq!(frame_len(&[1, 0, 0, 7, 0]), Err(FrameError(7)));
}
