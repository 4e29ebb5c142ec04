//! Extraction of frames that scapy has built, against what scapy says of them.
//!
//! The file is written by tests/scapy/make_frames.py, which takes the expected values from scapy's own
//! dissection.

use super::*;
use crate::flow::Field;

const FRAMES: &str = include_str!("../../../../../tests/scapy/frames.txt");

fn number(text: &str) -> u128 {
    u128::from_str_radix(text.trim_start_matches("0x"), 16).expect("a hexadecimal number")
}

fn set(key: &mut Key, name: &str, value: u128) {
    let word = value as u16;
    match name {
        "vlan0_tpid" => key.common_mut().vlan[0].tpid = word.into(),
        "vlan1_tpid" => key.common_mut().vlan[1].tpid = word.into(),
        "vlan1_tci" => key.common_mut().vlan[1].tci = word.into(),
        "mpls_lse0" => key.encap_mut().mpls_lse[0] = (value as u32).into(),
        "mpls_lse1" => key.encap_mut().mpls_lse[1] = (value as u32).into(),
        "mpls_lse2" => key.encap_mut().mpls_lse[2] = (value as u32).into(),
        _ => key.set(Field::from_name(name).expect(name), value),
    }
}

#[test]
fn agrees_with_scapy() {
    let mut count = 0;
    // Miri takes seconds for each.
    let every = if cfg!(miri) { 16 } else { 1 };
    for line in FRAMES.lines().filter(|line| !line.starts_with('#')).step_by(every) {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [name, hex, fields] = parts[..] else { panic!("{line}") };
        let frame: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect();
        let mut want = Key::new();
        for field in fields.split_whitespace() {
            let (field, value) = field.split_once('=').expect("FIELD=VALUE");
            set(&mut want, field, number(value));
        }
        let mut key = Key::new();
        extract(&frame, &mut key, VlanLimit::default());
        assert_eq!(key, want, "{name}");
        crate::flow::reference::check(&frame);
        count += 1;
    }
    assert!(count >= 60 / every, "only {count} frames");
}
