//! Translated connections, case by case, and the connections that FTP and TFTP announce.

use std::net::IpAddr;
use std::time::Duration;

use conntrack::headers::{Headers, Upper, Verify};
use conntrack::helpers::Helper;
use conntrack::nat::{Choice, Nat, Place};
use conntrack::table::Refused;
use conntrack::tracker::{Metadata, Request, Tracker, Translate};
use conntrack::tuple::{Side, Tuple};
use conntrack::{CtState, Verdict};
use packet::wire::{build, tcp};
use packet::{Packet, Time};
use zerocopy::FromBytes;

const NOW: Time = Time(1_000_000_000);
const CLIENT: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [192, 0, 2, 1];
const OUTSIDE: [u8; 4] = [203, 0, 113, 200];
const SYN: u16 = 2;
const ACK: u16 = 16;

fn v4(src: [u8; 4], sport: u16, dst: [u8; 4], dport: u16, proto: u8) -> Tuple {
    Tuple::new(src.into(), dst.into(), proto, (sport, dport), 0).unwrap()
}

fn udp(tuple: Tuple) -> Headers {
    Headers { tuple, upper: Upper::Other }
}

fn nat(side: Side, addresses: Option<(IpAddr, IpAddr)>, ports: Option<(u16, u16)>) -> Nat {
    Nat { side, addresses, ports, choice: Choice::Hash, persistent: false }
}

fn one(address: [u8; 4]) -> Option<(IpAddr, IpAddr)> {
    Some((address.into(), address.into()))
}

fn commit(nat: Nat) -> Request {
    Request { commit: true, nat: Some(Translate::New(nat)), ..Request::default() }
}

fn track(tracker: &Tracker, packet: &Headers, request: &Request) -> Verdict {
    tracker.track(packet, &Metadata::default(), request, NOW)
}

fn reply_of(tracker: &Tracker, verdict: &Verdict) -> Tuple {
    tracker.table.read(verdict.connection.expect("a connection").connection).unwrap().0.reply
}

#[test]
fn source_ports_are_kept_until_they_collide() {
    let tracker = Tracker::new(1000, [1, 2]);
    let request = commit(nat(Side::Src, one(OUTSIDE), None));
    let first = track(&tracker, &udp(v4(CLIENT, 5000, SERVER, 53, 17)), &request);
    assert_eq!(first.metadata.state, CtState::NEW | CtState::TRK | CtState::SNAT);
    assert_eq!(reply_of(&tracker, &first), v4(SERVER, 53, OUTSIDE, 5000, 17));
    let second = track(&tracker, &udp(v4([10, 0, 0, 2], 5000, SERVER, 53, 17)), &request);
    assert_eq!(reply_of(&tracker, &second), v4(SERVER, 53, OUTSIDE, 5001, 17));
    // The same port serves another destination.
    let third = track(&tracker, &udp(v4([10, 0, 0, 3], 5000, [192, 0, 2, 9], 53, 17)), &request);
    assert_eq!(reply_of(&tracker, &third), v4([192, 0, 2, 9], 53, OUTSIDE, 5000, 17));
    let low = track(&tracker, &udp(v4(CLIENT, 700, SERVER, 53, 17)), &request);
    let low2 = track(&tracker, &udp(v4([10, 0, 0, 2], 700, SERVER, 53, 17)), &request);
    assert_eq!((reply_of(&tracker, &low).port(Side::Dst), reply_of(&tracker, &low2).port(Side::Dst)), (700, 701));
}

#[test]
fn zero_addresses_change_ports_only_where_needed() {
    let tracker = Tracker::new(1000, [1, 2]);
    // A translation to the client's own address takes the tuple of the connection that is made without one.
    let request = commit(nat(Side::Src, one(CLIENT), None));
    track(&tracker, &udp(v4([10, 0, 0, 7], 5000, SERVER, 53, 17)), &request);
    let zero = commit(nat(Side::Src, one([0, 0, 0, 0]), None));
    let verdict = track(&tracker, &udp(v4(CLIENT, 5000, SERVER, 53, 17)), &zero);
    assert_eq!(reply_of(&tracker, &verdict), v4(SERVER, 53, CLIENT, 5001, 17));
    let verdict = track(&tracker, &udp(v4(CLIENT, 6000, SERVER, 53, 17)), &zero);
    assert_eq!((reply_of(&tracker, &verdict), verdict.translation), (v4(SERVER, 53, CLIENT, 6000, 17), None));
}

#[test]
fn destinations_and_their_ports_are_in_the_range() {
    let tracker = Tracker::new(10_000, [1, 2]);
    let request = commit(nat(Side::Dst, Some(([10, 1, 0, 1].into(), [10, 1, 0, 4].into())), Some((8000, 8003))));
    let mut seen = std::collections::HashSet::new();
    for n in 0..500 {
        let orig = v4(CLIENT, 1024 + n, SERVER, 80, 17);
        let verdict = track(&tracker, &udp(orig), &request);
        assert_eq!(verdict.metadata.state, CtState::NEW | CtState::TRK | CtState::DNAT);
        let reply = reply_of(&tracker, &verdict);
        let (IpAddr::V4(address), port) = (reply.src(), reply.port(Side::Src)) else { panic!("IPv4") };
        assert!(address.octets()[..3] == [10, 1, 0] && (1..=4).contains(&address.octets()[3]));
        assert!((8000..=8003).contains(&port));
        seen.insert((address, port));
        let answer = track(&tracker, &udp(reply), &Request { nat: Some(Translate::AsBefore), ..Request::default() });
        assert_eq!(answer.metadata.state, CtState::EST | CtState::RPL | CtState::TRK | CtState::SNAT);
    }
    assert_eq!(seen.len(), 16, "the hash uses the whole range");
}

#[test]
fn exhausted_ranges_refuse_after_a_bounded_number_of_tries() {
    let tracker = Tracker::new(1000, [1, 2]);
    let request = commit(nat(Side::Src, one(OUTSIDE), Some((7000, 7099))));
    let go = |n: u8| track(&tracker, &udp(v4([10, 0, 1, n], 9, SERVER, 53, 17)), &request);
    assert!((0..100).all(|n| go(n).connection.is_some()), "each port of the range is found");
    assert_eq!(go(100).refused, Some(Refused::ReplyTaken));
    let wide = nat(Side::Src, one(OUTSIDE), Some((1, 65535)));
    let orig = v4(CLIENT, 9, SERVER, 53, 17);
    assert!(wide.candidates(&orig, tracker.table.hasher(), 7).count() <= 256);
}

/// A range of ports is for ports: an ICMP identifier changes only where two connections would be the same.
#[test]
fn icmp_identifiers_are_kept_until_they_collide() {
    for side in [Side::Src, Side::Dst] {
        let tracker = Tracker::new(10, [1, 2]);
        let request = commit(nat(side, one(OUTSIDE), Some((7000, 7099))));
        let ids = [1, 2].map(|n| {
            let ping = Headers { tuple: v4([10, 0, 1, n], 5, SERVER, 8, 1), upper: Upper::Other };
            reply_of(&tracker, &track(&tracker, &ping, &request)).port(Side::Src)
        });
        assert_eq!(ids[0], 5);
        // With DNAT the clients' addresses differ.
        assert_eq!(ids[1] == 5, side == Side::Dst);
    }
}

#[test]
fn helpers_are_for_their_protocol() {
    let tracker = Tracker::new(10, [1, 2]);
    let request = Request { commit: true, helper: Some(Helper::Ftp), ..Request::default() };
    let verdict = track(&tracker, &udp(v4(CLIENT, 9, SERVER, 53, 17)), &request);
    assert_eq!((verdict.helper, verdict.connection.is_some()), (None, true));
}

/// As in Open vSwitch's userspace tracker, ct_nw_src and so on of such a packet are its own.
#[test]
fn invalid_packets_without_a_connection_have_their_own_tuple() {
    let tracker = Tracker::new(10, [1, 2]);
    let answer = Headers { tuple: v4(CLIENT, 9, SERVER, 0, 1), upper: Upper::Other };
    let verdict = track(&tracker, &answer, &Request::default());
    assert_eq!(verdict.metadata.state, CtState::INV | CtState::TRK);
    assert_eq!(verdict.metadata.orig, Some(answer.tuple));
}

#[test]
fn a_persistent_choice_is_the_same_in_each_process() {
    let range = Some(([198, 51, 100, 0].into(), [198, 51, 100, 255].into()));
    let persistent = Nat { persistent: true, ..nat(Side::Src, range, None) };
    let address = |secret, nat: Nat, port| {
        let tracker = Tracker::new(1000, [secret, 2]);
        let verdict = track(&tracker, &udp(v4(CLIENT, port, SERVER, 53, 17)), &commit(nat));
        reply_of(&tracker, &verdict).dst()
    };
    assert!((1..9).all(|secret| address(secret, persistent, 1000 + secret as u16) == address(77, persistent, 4000)));
    let other = nat(Side::Src, range, None);
    assert!((1..9).any(|secret| address(secret, other, 1000) != address(77, other, 1000)));
}

/// A packet that was translated, and is tracked again in the same zone, is of its connection.
#[test]
fn a_translated_packet_is_found_again() {
    let tracker = Tracker::new(1000, [1, 2]);
    let request = commit(nat(Side::Src, one(OUTSIDE), None));
    let orig = v4(CLIENT, 5000, SERVER, 53, 17);
    let first = track(&tracker, &udp(orig), &request);
    let translated = udp(reply_of(&tracker, &first).reverse());
    let again = tracker.track(&translated, &first.metadata, &Request::default(), NOW);
    assert_eq!(
        again.connection.map(|found| (found.connection, found.reply)),
        first.connection.map(|f| (f.connection, false))
    );
    assert_eq!(again.metadata.orig, Some(orig));
    assert!(again.metadata.state.has(CtState::SNAT | CtState::NEW) && again.translation.is_none());
}

/// A client behind the gateway reaches a server behind it by the outer address: one zone for each translation.
#[test]
fn hairpin() {
    let tracker = Tracker::new(1000, [1, 2]);
    let server = [10, 0, 0, 9];
    let dnat = Request { zone: 1, ..commit(nat(Side::Dst, one(server), Some((80, 80)))) };
    let snat = Request { zone: 2, ..commit(nat(Side::Src, one(OUTSIDE), None)) };
    let at = |tuple: Tuple, zone| udp(tuple.in_zone(zone));
    let first = track(&tracker, &at(v4(CLIENT, 5000, OUTSIDE, 8080, 17), 1), &dnat);
    let inside = reply_of(&tracker, &first).reverse();
    assert_eq!(inside.in_zone(0), v4(CLIENT, 5000, server, 80, 17));
    let second = tracker.track(&at(inside, 2), &first.metadata, &snat, NOW);
    assert_eq!(
        second.metadata.state,
        CtState::NEW | CtState::TRK | CtState::SNAT,
        "the other zone's state is forgotten"
    );
    let answer = reply_of(&tracker, &second);
    assert_eq!(answer.in_zone(0), v4(server, 80, OUTSIDE, 5000, 17));
    let back = Request { nat: Some(Translate::AsBefore), ..Request::default() };
    let verdict = track(&tracker, &at(answer, 2), &Request { zone: 2, ..back });
    assert!(verdict.metadata.state.has(CtState::EST | CtState::RPL | CtState::DNAT));
    let verdict =
        tracker.track(&at(v4(server, 80, CLIENT, 5000, 17), 1), &verdict.metadata, &Request { zone: 1, ..back }, NOW);
    assert!(verdict.metadata.state.has(CtState::EST | CtState::RPL | CtState::SNAT));
}

/// A control connection of FTP, with frames.
struct Ftp {
    tracker: Tracker,
    request: Request,
}

struct Passed {
    verdict: Verdict,
    /// The frame as it goes on.
    frame: Vec<u8>,
}

fn segment(tuple: &Tuple, flags: u16, seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = build::tcp(tuple.port(Side::Src), tuple.port(Side::Dst), flags, data);
    let (header, _) = tcp::Header::mut_from_prefix(&mut bytes).unwrap();
    (header.seq, header.ack, header.window) = (seq.into(), ack.into(), 60_000.into());
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (tuple.src(), tuple.dst()) else { panic!("IPv4") };
    let ip = build::Ipv4 { src, dst, proto: 6, ..build::Ipv4::default() }.packet(bytes);
    build::ethernet([2; 6], [4; 6], &[], 0x0800, &ip)
}

fn read(frame: &[u8]) -> Headers {
    let mut key = packet::Key::new();
    let layers = packet::flow::extract(frame, &mut key, packet::flow::VlanLimit::Two);
    Headers::of(frame, &key, layers, 0, Verify { ip: true, transport: true }).expect("right checksums")
}

impl Ftp {
    fn new(nat: Option<Nat>) -> Ftp {
        let nat = nat.map(Translate::New);
        let request = Request { commit: true, nat, helper: Some(Helper::Ftp), ..Request::default() };
        Ftp { tracker: Tracker::new(100, [1, 2]), request }
    }

    /// What the datapath does with a segment of the control connection.
    fn pass(&self, tuple: &Tuple, flags: u16, seq: u32, ack: u32, data: &[u8]) -> Passed {
        let frame = segment(tuple, flags, seq, ack, data);
        let headers = read(&frame);
        let verdict = track(&self.tracker, &headers, &self.request);
        let mut packet = Packet::from_slice(&frame);
        let place = Place { ip: 14, transport: Some(34), end: frame.len(), proto: 6, partial: false };
        if let Some((translation, _)) = &verdict.translation {
            translation.apply(packet.data_mut(), &place);
        }
        if let Some(by) = verdict.sequence {
            by.apply(packet.data_mut(), &place);
        }
        if let (Some(Helper::Ftp), Some(found)) = (verdict.helper, &verdict.connection) {
            let Upper::Tcp(tcp) = &headers.upper else { panic!("TCP") };
            let edit = self.tracker.ftp(found, tcp, data, self.request.nat.is_some(), NOW).expect("well-formed");
            if let Some(edit) = edit {
                assert!(edit.apply(&mut packet, &place));
            }
        }
        Passed { verdict, frame: packet.data().to_vec() }
    }

    /// A handshake; the tuples of both directions, as their senders have them.
    fn connect(&self, client: Tuple) -> (Tuple, Tuple) {
        let first = self.pass(&client, SYN, 99, 0, b"");
        let server = reply_of(&self.tracker, &first.verdict);
        assert_eq!(read(&first.frame).tuple, server.reverse());
        self.pass(&server, SYN | ACK, 499, 100, b"");
        self.pass(&client, ACK, 100, 500, b"");
        (client, server)
    }
}

#[test]
fn active_ftp_behind_a_translated_source() {
    let ftp = Ftp::new(Some(nat(Side::Src, one(OUTSIDE), None)));
    let (client, server) = ftp.connect(v4(CLIENT, 40000, SERVER, 21, 6));
    let text = b"PORT 10,0,0,1,200,10\r\n";
    let sent = ftp.pass(&client, ACK, 100, 500, text);
    let after = b"PORT 203,0,113,200,200,10\r\n";
    assert_eq!(&sent.frame[54..], after);
    let added = (after.len() - text.len()) as u32;
    let tuple = read(&sent.frame).tuple;
    assert_eq!(tuple, server.reverse());
    // The server acknowledges what it got, the client sees what it sent.
    let end = 100 + text.len() as u32;
    let answer = ftp.pass(&server, ACK, 500, end + added, b"200 done\r\n");
    assert!(answer.verdict.metadata.state.has(CtState::EST));
    let Upper::Tcp(seen) = read(&answer.frame).upper else { panic!("TCP") };
    assert_eq!((seen.seq, seen.ack), (500, end));
    // What is sent again is changed the same way, and what follows is shifted once.
    let again = ftp.pass(&client, ACK, 100, 500, text);
    assert_eq!(again.frame, sent.frame);
    let next = ftp.pass(&client, ACK, end, 510, b"LIST\r\n");
    let Upper::Tcp(seen) = read(&next.frame).upper else { panic!("TCP") };
    assert_eq!((seen.seq, seen.ack), (end + added, 510));
    // A server that has got what came behind the text, but not the text, says so in a selective acknowledgement.
    let behind = ftp.pass(&server, ACK, 510, 100, b"");
    let mut header =
        build::tcp(21, 40000, ACK, &[&[1, 1, 5, 10], &(end + added).to_be_bytes()[..], &[0xff; 4]].concat());
    header[12] = 0x80;
    let shift = behind.verdict.sequence.expect("the numbers of the client are shifted");
    shift.apply(&mut header, &Place { ip: 0, transport: Some(0), end: 32, proto: 6, partial: true });
    assert_eq!(header[24..28], end.to_be_bytes());
    // The server opens the data connection to the outer address.
    let data = ftp.pass(&v4(SERVER, 20, OUTSIDE, 200 * 256 + 10, 6), SYN, 7, 0, b"");
    let state = CtState::NEW | CtState::REL | CtState::TRK | CtState::DNAT;
    assert_eq!(data.verdict.metadata.state, state);
    assert_eq!(data.verdict.metadata.orig, Some(client));
    assert_eq!(read(&data.frame).tuple, v4(SERVER, 20, CLIENT, 200 * 256 + 10, 6));
    let answer = ftp.pass(&v4(CLIENT, 200 * 256 + 10, SERVER, 20, 6), SYN | ACK, 9, 8, b"");
    let state = CtState::EST | CtState::REL | CtState::RPL | CtState::TRK | CtState::SNAT;
    assert_eq!(answer.verdict.metadata.state, state);
}

#[test]
fn passive_ftp_to_a_translated_destination() {
    let inside = [10, 9, 0, 1];
    let ftp = Ftp::new(Some(nat(Side::Dst, one(inside), None)));
    let (client, server) = ftp.connect(v4(CLIENT, 40000, SERVER, 21, 6));
    let sent = ftp.pass(&server, ACK, 500, 100, b"227 Entering Passive Mode (10,9,0,1,4,1).\r\n");
    assert_eq!(&sent.frame[54..], b"227 Entering Passive Mode (192,0,2,1,4,1).\r\n");
    let data = ftp.pass(&v4(CLIENT, 40001, SERVER, 1025, 6), SYN, 7, 0, b"");
    assert!(data.verdict.metadata.state.has(CtState::NEW | CtState::REL | CtState::DNAT));
    assert_eq!(read(&data.frame).tuple, v4(CLIENT, 40001, inside, 1025, 6));
    assert_eq!(data.verdict.metadata.orig, Some(client));
}

#[test]
fn announcements_without_translation() {
    let ftp = Ftp::new(None);
    let (client, server) = ftp.connect(v4(CLIENT, 40000, SERVER, 21, 6));
    ftp.pass(&server, ACK, 500, 100, b"229 Entering Extended Passive Mode (|||6446|)\r\n");
    let data = udp(v4(CLIENT, 40001, SERVER, 6446, 17));
    assert_eq!(track(&ftp.tracker, &data, &Request::default()).metadata.state, CtState::NEW | CtState::TRK, "not TCP");
    let first = ftp.pass(&v4(CLIENT, 40001, SERVER, 6446, 6), SYN, 7, 0, b"");
    assert_eq!(first.verdict.metadata.state, CtState::NEW | CtState::REL | CtState::TRK);
    // A client that announces somebody else's address.
    let headers = read(&segment(&client, ACK, 100, 545, b"PORT 10,0,0,99,4,1\r\n"));
    let verdict = track(&ftp.tracker, &headers, &ftp.request);
    let Upper::Tcp(tcp) = &headers.upper else { panic!("TCP") };
    let found = verdict.connection.unwrap();
    assert!(ftp.tracker.ftp(&found, tcp, b"PORT 10,0,0,99,4,1\r\n", false, NOW).is_err());
    // What the control connection expects ends with it.
    assert!(ftp.tracker.table.remove(found.connection));
    let late = ftp.pass(&v4(CLIENT, 40002, SERVER, 6446, 6), SYN, 7, 0, b"");
    assert_eq!(late.verdict.metadata.state, CtState::NEW | CtState::TRK);
}

#[test]
fn tftp_is_answered_from_another_port() {
    let tracker = Tracker::new(100, [1, 2]);
    let snat = commit(nat(Side::Src, one(OUTSIDE), Some((9000, 9000))));
    let request = Request { helper: Some(Helper::Tftp), ..snat };
    track(&tracker, &udp(v4(CLIENT, 5000, SERVER, 69, 17)), &request);
    let data = track(&tracker, &udp(v4(SERVER, 3333, OUTSIDE, 9000, 17)), &snat);
    assert_eq!(data.metadata.state, CtState::NEW | CtState::REL | CtState::TRK | CtState::DNAT);
    assert_eq!(reply_of(&tracker, &data), v4(CLIENT, 5000, SERVER, 3333, 17));
    let later = NOW + Duration::from_secs(301);
    let late =
        tracker.track(&udp(v4(SERVER, 3334, OUTSIDE, 9000, 17)), &Metadata::default(), &Request::default(), later);
    assert_eq!(late.metadata.state, CtState::NEW | CtState::TRK);
}

#[test]
fn force_begins_in_the_other_direction() {
    let tracker = Tracker::new(100, [1, 2]);
    let orig = v4(CLIENT, 5000, SERVER, 53, 17);
    let commit = Request { commit: true, ..Request::default() };
    let first = track(&tracker, &udp(orig), &commit);
    let forced = track(&tracker, &udp(orig.reverse()), &Request { force: true, ..commit });
    assert_eq!(forced.metadata.state, CtState::NEW | CtState::TRK);
    assert_eq!(forced.metadata.orig, Some(orig.reverse()));
    assert_ne!(forced.connection.map(|f| f.connection), first.connection.map(|f| f.connection));
    assert_eq!(tracker.table.limits.connections(), 1);
}
