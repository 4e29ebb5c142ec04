//! Connections in a snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use ::conntrack::headers::{Headers, Upper};
use ::conntrack::helpers::{Helper, by_port};
use ::conntrack::nat::{Choice, Nat};
use ::conntrack::protocol::tcp::Segment;
use ::conntrack::table::slot::Contents;
use ::conntrack::timeout::{Timeout, Timeouts};
use ::conntrack::tracker::{Metadata, Request, Translate};
use ::conntrack::tuple::{Side, Tuple};

use proptest::prelude::*;

use super::{SnapshotError, fuzz, wire};
use crate::reference::tests::Bed;

fn tuple(client: u8, proto: u8, port: u16) -> Tuple {
    Tuple::new([10, 0, 0, client].into(), [192, 0, 2, 1].into(), proto, (4000, port), 0).unwrap()
}

/// A connection of TCP that is translated and marked, one of UDP in a zone with a policy of its own, one over IPv6, and a TFTP
/// request, whose answer is expected.
fn fill(bed: &Bed) {
    let conntrack = bed.datapath.conntrack();
    let mut timeouts = Timeouts::default();
    timeouts.set(Timeout::UdpFirst, 1000);
    let policy = conntrack.set_zone_policies(&BTreeMap::from([(7, timeouts)])).numbers[&7];
    let track = |tuple: Tuple, upper: Upper, request: Request| {
        let request = Request { commit: true, zone: tuple.zone(), ..request };
        let now = bed.datapath.now();
        let verdict = conntrack.tracker.track(&Headers { tuple, upper }, &Metadata::default(), &request, now);
        assert!(verdict.connection.is_some());
    };
    let address = [203, 0, 113, 1].into();
    let nat = Nat {
        side: Side::Src,
        addresses: Some((address, address)),
        ports: Some((7000, 7999)),
        choice: Choice::Hash,
        persistent: false,
    };
    let syn = Segment { seq: 77, flags: 2, window: 1000, scale: Some(7), ..Segment::default() };
    let nat = Some(Translate::New(nat));
    let request = Request { nat, mark: Some((5, 7)), label: Some((1 << 100, 1 << 100)), ..Request::default() };
    track(tuple(1, 6, 80), Upper::Tcp(syn), request);
    track(tuple(2, 17, 53).in_zone(7), Upper::Other, Request { policy, ..Request::default() });
    bed.clock.advance(Duration::from_millis(2300));
    let v6 = Tuple::new([0xfc; 16].into(), [0xfd; 16].into(), 58, (9, 128), 0).unwrap();
    track(v6, Upper::Other, Request::default());
    let tftp = tuple(3, 17, 69);
    assert_eq!(by_port(&tftp), Some(Helper::Tftp));
    track(tftp, Upper::Other, Request { helper: Some(Helper::Tftp), ..Request::default() });
}

fn connections(bed: &Bed) -> BTreeMap<Tuple, (Contents, Option<u32>)> {
    let table = &bed.datapath.conntrack().tracker.table;
    let mut all = BTreeMap::new();
    table.dump(&mut 0, usize::MAX, |connection, contents| {
        all.insert(contents.orig, (*contents, table.ticks_left(connection, bed.datapath.now())));
    });
    all
}

fn snapshot(bed: &Bed) -> Vec<u8> {
    let mut out = Vec::new();
    bed.switch.snapshot(&mut out).unwrap();
    out
}

#[test]
fn connections_go_on_in_another_switch() {
    let (old, new) = (Bed::new(1), Bed::new(1));
    fill(&old);
    let bytes = snapshot(&old);
    // Its clock has nothing in common with the first one's, and no zone has the policy.
    new.clock.advance(Duration::from_millis(1_000_000_000));
    let restored = new.switch.restore(&bytes).unwrap();
    assert_eq!((restored.connections, restored.lost_connections), (4, 0));
    assert_eq!(connections(&new), connections(&old));
    assert_eq!(wire::sorted(&snapshot(&new)), wire::sorted(&bytes));
    for bed in [&old, &new] {
        let conntrack = bed.datapath.conntrack();
        bed.clock.advance(Duration::from_secs(2));
        // The answer to the TFTP request, from another port.
        let answer = Headers { tuple: tuple(3, 17, 2000).reverse(), upper: Upper::Other };
        let now = bed.datapath.now();
        let verdict = conntrack.tracker.track(&answer, &Metadata::default(), &Request::default(), now);
        assert!(verdict.metadata.state.any(::conntrack::CtState::REL));
        // What is under the policy keeps its timeout.
        let again = Headers { tuple: tuple(2, 17, 53).in_zone(7), upper: Upper::Other };
        let request = Request { zone: 7, ..Request::default() };
        conntrack.tracker.track(&again, &Metadata::default(), &request, now);
    }
    assert_eq!(connections(&new), connections(&old));
    let again = new.switch.restore(&bytes).unwrap();
    assert_eq!((again.connections, again.lost_connections), (0, 4), "they are there");
}

#[test]
fn a_connection_that_cannot_be_or_is_in_a_bridge_is_refused() {
    let old = Bed::new(1);
    fill(&old);
    let sections = wire::sorted(&snapshot(&old));
    let is_connection = |section: &&(u16, Vec<u8>)| section.0 == wire::kind::CONNECTION;
    let (_, connection) = sections.iter().find(is_connection).unwrap();
    let (_, bridge) = sections.iter().find(|section| section.0 == wire::kind::BRIDGE).unwrap();
    let take = |parts: &[(u16, &[u8])]| {
        let mut bytes = Vec::new();
        let mut writer = wire::Writer::new(&mut bytes).unwrap();
        parts.iter().for_each(|(kind, body)| writer.section(*kind, body).unwrap());
        writer.finish().unwrap();
        Bed::new(1).switch.restore(&bytes).map(|restored| restored.connections)
    };
    assert_eq!(take(&[(wire::kind::CONNECTION, connection), (wire::kind::BRIDGE, bridge)]).unwrap(), 1);
    let behind = take(&[(wire::kind::BRIDGE, bridge), (wire::kind::CONNECTION, connection)]);
    assert!(matches!(behind, Err(SnapshotError::Corrupt { .. })));
    let short = take(&[(wire::kind::CONNECTION, &connection[1..])]);
    assert!(matches!(short, Err(SnapshotError::Corrupt { .. })));
}

/// A snapshot of format 1, without its header and end, as the fuzz target takes it: four connections as above, one of FTP whose
/// numbers are shifted, and one that it expected.
const CONNECTIONS: &[u8] = include_bytes!("../../../../fuzz/seeds/snapshot/connections");

/// What was written once can be read for ever.
#[test]
fn connections_of_an_earlier_day_are_taken() {
    let bed = Bed::new(1);
    let restored = bed.switch.restore(&wire::seal(CONNECTIONS)).unwrap();
    assert_eq!((restored.connections, restored.lost_connections), (6, 0));
    assert_eq!(bed.datapath.conntrack().tracker.expectations.len(), 1);
    assert_eq!(wire::sorted(&snapshot(&bed)), wire::sorted(&wire::seal(CONNECTIONS)), "and is what is written");
    fuzz(CONNECTIONS);
}

proptest! {
    #[test]
    fn damaged_connections_are_taken_or_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = CONNECTIONS.to_vec();
        for (at, byte) in damage {
            bytes[at.index(CONNECTIONS.len())] = byte;
        }
        fuzz(&bytes);
    }
}
