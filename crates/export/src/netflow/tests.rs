use proptest::prelude::*;

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
    read(&run(flows, seconds))
}

/// What is sent until nothing waits.
fn run(flows: &NetFlow, seconds: u64) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    while flows.run(at(seconds), &mut sent) <= at(seconds).now {}
    sent
}

fn read(sent: &[Vec<u8>]) -> Vec<(u32, u16, u16, u64, u64)> {
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
    let mut sent = Vec::new();
    flows.end_all(at(100_001), &mut sent);
    assert_eq!(read(&sent).len(), 1);
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
    let mut sent = Vec::new();
    flows.end_all(at(1), &mut sent);
    assert_eq!(read(&sent).len(), 1000);
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
    assert_eq!(flows.lost(), 10 * packet::MAX_RECORDS as u64);
    flows.credit(&key(1), &credit(2, 1, 10, 1));
    flows.end(&key(1));
    assert_eq!(run(&flows, 2)[0][16..20], total.to_be_bytes());
}

#[test]
fn very_many_flows_that_are_due_at_once_are_exported_in_rounds_and_none_is_lost() {
    let flows = NetFlow::new(settings(), Time(0));
    let total = ((MAX_PACKETS + 100) * packet::MAX_RECORDS) as u32;
    (0..total).for_each(|n| flows.credit(&key(n), &credit(2, 1, 10, 1)));
    let mut sent = Vec::new();
    assert!(flows.run(at(12), &mut sent) <= at(12).now, "there is more");
    assert_eq!(sent.len(), PACKETS_PER_ROUND);
    let mut exported = read(&sent).len();
    for second in 12..20 {
        exported += records(&flows, second).len();
    }
    assert_eq!((exported, flows.lost()), (total as usize, 0));
}

#[test]
fn records_gather_for_a_second() {
    let flows = NetFlow::new(settings(), Time(0));
    let mut sent = Vec::new();
    for n in 0..10 {
        flows.credit(&key(n), &credit(2, 1, 10, 0));
        flows.end(&key(n));
        let now = Time(0) + Duration::from_millis(u64::from(n) * 50);
        assert_eq!(flows.run(Moment { now, wall: Duration::ZERO }, &mut sent), at(1).now);
    }
    assert_eq!(sent.len(), 0);
    flows.run(at(1), &mut sent);
    assert_eq!((sent.len(), read(&sent).len()), (1, 10));
}

proptest! {
    /// Whatever is credited is exported, with the numbers that it has, and records are numbered without a gap.
    #[test]
    fn all_that_is_credited_is_exported(
        credits in proptest::collection::vec((0..20u32, 0..4u16, 1..1_000_000u64, 0..10_000_000_000u64, 0..100u64), 1..200)
    ) {
        let flows = NetFlow::new(settings(), Time(0));
        let (mut expected, mut found) = (HashMap::new(), HashMap::new());
        let (mut sent, mut second) = (Vec::new(), 0);
        for (n, output, packets, bytes, pause) in credits {
            second += pause / 10;
            flows.credit(&key(n), &credit(output, packets, bytes, second));
            sent.extend(run(&flows, second));
            let sums: &mut (u64, u64) = expected.entry((n, output)).or_default();
            *sums = (sums.0 + packets, sums.1 + bytes);
        }
        flows.end_all(at(second), &mut sent);
        let mut number = 0;
        for packet in &sent {
            prop_assert_eq!(&packet[16..20], &u32::to_be_bytes(number));
            number += u32::from(packet[3]);
        }
        for (src, _, output, packets, bytes) in read(&sent) {
            let sums: &mut (u64, u64) = found.entry((src, output)).or_default();
            *sums = (sums.0 + packets, sums.1 + bytes);
        }
        prop_assert_eq!(expected, found);
        prop_assert_eq!(flows.lost(), 0);
    }
}
