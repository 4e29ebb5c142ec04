//! Entry for fuzzing: a switch with a datapath takes over arbitrary bytes, and what it has taken over goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ::conntrack::headers::{Headers, Upper};
use ::conntrack::nat::Place;
use ::conntrack::protocol::tcp::Segment;
use ::conntrack::saved::{Connection, Policy};
use ::conntrack::table::slot::{Contents, Protocol};
use ::conntrack::tracker::{Metadata, Request, Tracker, Translate};
use datapath::sync::clock::ManualClock;
use datapath::{Config, Datapath};
use packet::Time;
use packet::wire::tcp;

use super::wire::{self, kind};
use crate::model::config::BridgeConfig;
use crate::switch::{Switch, SwitchSettings};

/// The connections that there may be: fewer than fit into a snapshot.
const MAX_CONNECTIONS: u32 = 24;

struct Restarted {
    switch: Arc<Switch>,
    datapath: Arc<Datapath>,
}

impl Restarted {
    fn new() -> Restarted {
        // Ages are long, but connections end before ticks do.
        let (clock, ticks) = (ManualClock::new(Time(1 << 62)), ManualClock::new(Time(1 << 40)));
        let switch = Switch::new(SwitchSettings::default(), Arc::new(clock));
        let config = Config { max_connections: MAX_CONNECTIONS, exact_entries: 256, ..Config::default() };
        let datapath = Datapath::new(config, Arc::new(ticks));
        switch.attach(datapath.clone());
        assert!(switch.add_bridge(BridgeConfig::new("br0", 1)).is_ok());
        Restarted { switch, datapath }
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.switch.snapshot(&mut bytes).expect("what was taken over has an encoding");
        bytes
    }
}

/// Has a switch take over arbitrary bytes, as they are and made whole. What it takes over has to come out again, and its connections
/// take packets.
pub fn run(bytes: &[u8]) {
    let first = Restarted::new();
    let _ = first.switch.restore(bytes);
    if first.switch.restore(&wire::seal(bytes)).is_ok() {
        let once = first.snapshot();
        let second = Restarted::new();
        let restored = second.switch.restore(&once).expect("what was written is taken over");
        assert_eq!(restored.lost_connections, 0);
        assert_eq!(comparable(&once), comparable(&second.snapshot()));
        second.datapath.stop();
    }
    go_on(&first.datapath);
    first.datapath.stop();
}

/// The sections of a snapshot in an order of their own, and policies numbered by what they say.
fn comparable(snapshot: &[u8]) -> BTreeSet<(u16, Vec<u8>)> {
    let sections = wire::sorted(snapshot);
    let policy = |(of, body): &(u16, Vec<u8>)| (*of == kind::TIMEOUT_POLICY).then(|| Policy::decode(body).ok())?;
    let policies: Vec<_> = sections.iter().filter_map(policy).collect();
    let texts: BTreeSet<_> = policies.iter().map(|policy| Policy { number: 1, ..*policy }.encode()).collect();
    let number_of = |policy: &Policy| {
        let text = Policy { number: 1, ..*policy }.encode();
        1 + texts.iter().take_while(|other| **other < text).count() as u16
    };
    let renumbered = |(of, body): (u16, Vec<u8>)| {
        let body = match of {
            kind::TIMEOUT_POLICY => {
                Policy::decode(&body).map(|policy| Policy { number: number_of(&policy), ..policy }.encode())
            }
            kind::CONNECTION => Connection::decode(&body).map(|mut connection| {
                let policy = policies.iter().find(|policy| policy.number == connection.contents.policy);
                connection.contents.policy = policy.map_or(0, number_of);
                connection.encode()
            }),
            _ => Ok(body),
        };
        (of, body.expect("it was written"))
    };
    sections.into_iter().map(renumbered).collect()
}

/// Packets in both directions of every connection, and one that was expected for each; then all of them end.
fn go_on(datapath: &Datapath) {
    let (conntrack, now) = (datapath.conntrack(), datapath.now());
    let tracker = &conntrack.tracker;
    let mut connections = Vec::new();
    tracker.table.dump(&mut 0, usize::MAX, |_, contents| connections.push(*contents));
    assert_eq!(connections.len() as u64, tracker.table.limits.connections());
    for contents in &connections {
        for reply in [true, false] {
            pass(tracker, contents, reply, now);
        }
    }
    for (mut tuple, ..) in tracker.expectations.all(now) {
        tuple.set_port(::conntrack::tuple::Side::Src, 1024);
        let request =
            Request { commit: true, nat: Some(Translate::AsBefore), zone: tuple.zone(), ..Request::default() };
        tracker.track(&Headers { tuple, upper: Upper::Other }, &Metadata::default(), &request, now);
    }
    conntrack.expire(now + Duration::from_secs(3600));
    tracker.table.flush(&mut 0, usize::MAX, &mut 0, |_| true);
    assert_eq!(tracker.table.limits.connections(), 0);
}

/// A packet that a connection expects next in a direction, and what follows its verdict.
fn pass(tracker: &Tracker, contents: &Contents, reply: bool, now: Time) {
    let tuple = if reply { contents.reply } else { contents.orig };
    let data: &[u8] = if reply { b"227 (10,0,0,1,4,1)\r\n" } else { b"PORT 10,0,0,1,4,1\r\n" };
    let upper = match &contents.protocol {
        Protocol::Simple(_) => Upper::Other,
        Protocol::Tcp(ends) => {
            let (own, other) = (&ends.0[usize::from(reply)], &ends.0[usize::from(!reply)]);
            let (seq, ack, len) = (own.sent, other.sent, data.len() as u32);
            Upper::Tcp(Segment { seq, ack, len, flags: tcp::flags::ACK, window: 1000, scale: None })
        }
    };
    let nat = Some(Translate::AsBefore);
    let request = Request { commit: true, nat, mark: Some((1, 1)), zone: tuple.zone(), ..Request::default() };
    let verdict = tracker.track(&Headers { tuple, upper }, &Metadata::default(), &request, now);
    if let Some(shift) = verdict.sequence {
        let mut header = [&[0; 12][..], &[0x80, 16], &[0; 6], &[1, 1, 5, 10], &[0x7f; 8]].concat();
        let place = Place { ip: 0, transport: Some(0), end: header.len(), proto: tuple.proto(), partial: false };
        shift.apply(&mut header, &place);
    }
    if let (Some(found), Upper::Tcp(segment)) = (&verdict.connection, &upper) {
        let _ = tracker.ftp(found, segment, data, true, now);
    }
}
