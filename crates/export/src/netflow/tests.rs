use super::*;

fn settings() -> Netflow {
    Netflow {
        targets: Vec::new(),
        engine_type: 2,
        engine_id: 1,
        active_timeout: Duration::from_secs(10),
        add_id_to_interface: false,
    }
}

fn key(n: u32) -> FlowKey {
    FlowKey { in_port: 1, src: n, dst: 2, tos: 0, protocol: 6, src_port: 1234, dst_port: 80 }
}

fn at(seconds: u64) -> Moment {
    Moment { now: Time(0) + Duration::from_secs(seconds), wall: Duration::ZERO }
}

fn credit(output: u16, packets: u64, bytes: u64, seconds: u64) -> Credit {
    Credit { output, packets, bytes, used: at(seconds).now, tcp_flags: 2 }
}

/// Source, ports, packets, bytes of the records that are sent.
fn records(flows: &NetFlow, seconds: u64) -> Vec<(u32, u16, u16, u64, u64)> {
    let mut sent = Vec::new();
    flows.run(at(seconds), &mut sent);
    let mut found = Vec::new();
    for packet in sent {
        assert!(packet.len() <= crate::MAX_DATAGRAM);
        let count = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        assert_eq!(packet.len(), packet::HEADER_LEN + count * packet::RECORD_LEN);
        for record in packet[packet::HEADER_LEN..].chunks(packet::RECORD_LEN) {
            let word = |at: usize| u32::from_be_bytes(record[at..at + 4].try_into().unwrap());
            let half = |at: usize| u16::from_be_bytes(record[at..at + 2].try_into().unwrap());
            found.push((word(0), half(12), half(14), word(16).into(), word(20).into()));
        }
    }
    found
}

#[test]
fn a_flow_is_exported_when_it_ends_or_changes_its_way() {
    let flows = NetFlow::new(settings(), Time(0));
    flows.credit(&key(1), &credit(OUT_FLOOD, 1, 100, 1));
    assert_eq!(records(&flows, 1), []);
    flows.credit(&key(1), &credit(2, 1, 50, 2));
    assert_eq!(records(&flows, 2), [(1, 1, OUT_FLOOD, 1, 100)]);
    flows.credit(&key(1), &credit(2, 3, 150, 3));
    flows.end(&key(1));
    flows.end(&key(1));
    assert_eq!(records(&flows, 3), [(1, 1, 2, 4, 200)]);
    assert!(flows.is_empty());
}

#[test]
fn an_active_flow_is_exported_after_its_timeout_and_an_idle_one_is_forgotten() {
    let flows = NetFlow::new(settings(), Time(0));
    let mut packets = 0;
    for second in 1..=35 {
        flows.credit(&key(1), &credit(2, 1, 10, second));
        packets += records(&flows, second).iter().map(|record| record.3).sum::<u64>();
    }
    assert!((30..=34).contains(&packets), "three timeouts: {packets}");
    packets += records(&flows, 60).iter().map(|record| record.3).sum::<u64>();
    assert_eq!(packets, 35);
    assert_eq!(flows.len(), 1);
    assert_eq!(records(&flows, 80), []);
    assert!(flows.is_empty());
}

#[test]
fn without_a_timeout_a_flow_is_exported_when_it_ends() {
    let flows = NetFlow::new(Netflow { active_timeout: Duration::ZERO, ..settings() }, Time(0));
    flows.credit(&key(1), &credit(2, 1, 10, 1));
    assert_eq!(records(&flows, 100_000), []);
    flows.end_all();
    assert_eq!(records(&flows, 100_001).len(), 1);
}

#[test]
fn large_counts_are_split() {
    let flows = NetFlow::new(settings(), Time(0));
    let (packets, bytes) = (10_000_001, 4 * u64::from(u32::MAX) + 7);
    flows.credit(&key(1), &credit(2, packets, bytes, 1));
    flows.end(&key(1));
    let records = records(&flows, 1);
    assert_eq!(records.len(), 5);
    assert_eq!(records.iter().map(|record| record.3).sum::<u64>(), packets);
    assert_eq!(records.iter().map(|record| record.4).sum::<u64>(), bytes);
    let (least, most) = (records.iter().map(|r| r.4).min().unwrap(), records.iter().map(|r| r.4).max().unwrap());
    assert!(most - least <= 1, "they are alike");
}

#[test]
fn a_counter_that_has_gone_wrong_makes_no_flood() {
    let flows = NetFlow::new(settings(), Time(0));
    flows.credit(&key(1), &credit(2, 1, u64::MAX, 1));
    flows.credit(&key(1), &credit(2, 1, u64::MAX, 1));
    flows.end(&key(1));
    assert_eq!(records(&flows, 1).len(), 256);
}

#[test]
fn the_engine_is_in_the_numbers_of_ports() {
    let flows = NetFlow::new(Netflow { add_id_to_interface: true, engine_id: 0x81, ..settings() }, Time(0));
    flows.credit(&key(1), &credit(0x203, 1, 1, 1));
    flows.end(&key(1));
    assert_eq!(records(&flows, 1), [(1, 1 << 9 | 1, 1 << 9 | 3, 1, 1)]);
}

#[test]
fn icmp_has_type_and_code_for_a_port() {
    let flows = NetFlow::new(settings(), Time(0));
    let ping = FlowKey { protocol: 1, src_port: 8, dst_port: 0, ..key(1) };
    flows.credit(&ping, &credit(2, 1, 1, 1));
    flows.end(&ping);
    let mut sent = Vec::new();
    flows.run(at(1), &mut sent);
    assert_eq!(sent[0][24 + 32..24 + 36], [0, 0, 8, 0]);
}

#[test]
fn a_full_cache_exports_others_and_loses_nothing() {
    let flows = NetFlow::new(settings(), Time(0));
    for n in 0..1000 {
        flows.0.lock().credit(&key(n), &credit(2, 1, 10, 1), 64);
        assert!(flows.len() <= 64);
    }
    flows.end_all();
    let records = records(&flows, 1);
    assert_eq!(records.len(), 1000);
}

#[test]
fn what_waits_to_be_sent_is_bounded_and_what_is_lost_has_numbers() {
    let flows = NetFlow::new(settings(), Time(0));
    let total = ((MAX_PACKETS + 10) * packet::MAX_RECORDS) as u32;
    for n in 0..total {
        flows.credit(&key(n), &credit(2, 1, 10, 1));
        flows.end(&key(n));
    }
    assert_eq!(records(&flows, 1).len(), MAX_PACKETS * packet::MAX_RECORDS);
    flows.credit(&key(1), &credit(2, 1, 10, 1));
    flows.end(&key(1));
    let mut sent = Vec::new();
    flows.run(at(2), &mut sent);
    assert_eq!(sent[0][16..20], total.to_be_bytes());
}
