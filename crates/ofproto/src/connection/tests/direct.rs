//! Packet-ins that don't wait for the session, and everything else that does.

use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// A peer that takes what it has room for.
#[derive(Default)]
struct Peer {
    taken: Mutex<Vec<u8>>,
    room: AtomicUsize,
    /// How many more may be sent.
    allowed: AtomicUsize,
}

impl Peer {
    fn with(room: usize, allowed: usize) -> Arc<Peer> {
        Arc::new(Peer { room: room.into(), allowed: allowed.into(), ..Peer::default() })
    }

    fn take(&self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room.load(Ordering::SeqCst));
        self.room.fetch_sub(taken, Ordering::SeqCst);
        self.taken.lock().extend_from_slice(&bytes[..taken]);
        taken
    }

    /// The whole messages that it has.
    fn messages(&self) -> Vec<Message> {
        let mut rest = self.taken.lock().clone();
        let mut all = Vec::new();
        while let Some(len) = frame_len(&rest).unwrap().filter(|&len| len <= rest.len()) {
            let tail = rest.split_off(len);
            all.push(decode(&rest, DecodeOptions::default()).unwrap());
            rest = tail;
        }
        all
    }
}

impl DirectSend for Peer {
    fn may_send(&self) -> bool {
        self.allowed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |allowed| allowed.checked_sub(1)).is_ok()
    }

    fn send(&self, bytes: &[u8]) -> usize {
        self.take(bytes)
    }
}

/// A session that counts how often it is woken.
struct Woken {
    session: Session,
    peer: Arc<Peer>,
    woken: Arc<AtomicUsize>,
}

impl Woken {
    fn new(bridge: &Bridge, version: Version, peer: Arc<Peer>) -> Woken {
        let mut session = session(bridge, ConnectionKind::Controller, version);
        let woken = Arc::<AtomicUsize>::default();
        let count = woken.clone();
        session.set_waker(Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        session.set_direct(peer.clone());
        Woken { session, peer, woken }
    }

    /// As a connection's task does before it waits.
    fn rest(&mut self) {
        self.session.poll(START);
        self.session.rest();
    }

    /// The peer takes what it has room for of the output.
    fn write(&mut self) {
        let taken = self.peer.take(self.session.output());
        self.session.sent(taken);
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }

    fn post(&self, number: u8) {
        self.session.mailbox.packet_in(&numbered(number));
    }
}

/// A packet-in that tells itself from others.
fn numbered(number: u8) -> PacketInEvent {
    let mut event = packet_in(PacketInReason::Action);
    event.packet_in.data[0] = number;
    event
}

/// The numbers of those that are packet-ins.
fn numbers(messages: &[Message]) -> Vec<u8> {
    let number = |message: &Message| match &message.body {
        Body::PacketIn(packet_in) => Some(packet_in.data[0]),
        _ => None,
    };
    messages.iter().filter_map(number).collect()
}

#[test]
fn a_session_that_rests_need_not_wake_and_sends_the_same() {
    let bridge = bridge();
    for version in Versions::ALL.iter() {
        for format in [PacketInFormat::Standard, PacketInFormat::Nxt, PacketInFormat::Nxt2] {
            let mut direct = Woken::new(&bridge, version, Peer::with(1 << 20, 9));
            let mut plain = session(&bridge, ConnectionKind::Controller, version);
            for session in [&mut direct.session, &mut plain] {
                assert_eq!(tell(session, Body::SetPacketInFormat(format)), []);
            }
            let seen = Arc::<Mutex<Vec<u8>>>::default();
            let copies = seen.clone();
            direct.session.set_snoop(Arc::new(move |message| copies.lock().extend_from_slice(message)));
            direct.rest();
            direct.post(1);
            plain.mailbox.packet_in(&numbered(1));
            plain.poll(START);
            assert_eq!(*direct.peer.taken.lock(), plain.output(), "{version} {format:?}");
            assert_eq!(*seen.lock(), plain.output(), "who snoops sees it, too");
            assert_eq!((direct.woken(), numbers(&direct.peer.messages())), (0, vec![1]));
            // It does so again and again.
            direct.post(2);
            assert_eq!(direct.woken(), 0);
            direct.session.poll(START);
            assert!(direct.session.output().is_empty());
            assert_eq!(numbers(&direct.peer.messages()), [1, 2]);
        }
    }
}

#[test]
fn what_a_peer_does_not_take_comes_first_of_all() {
    let bridge = bridge();
    let mut woken = Woken::new(&bridge, Version::V1_3, Peer::with(50, 9));
    woken.rest();
    woken.post(1);
    assert_eq!((woken.woken(), woken.peer.taken.lock().len()), (1, 50));
    assert!(bridge.event_memory().used() > 0, "the rest is counted");
    woken.post(2);
    add_port(&bridge, "p1");
    woken.peer.room.store(1 << 20, Ordering::SeqCst);
    woken.session.poll(START);
    woken.write();
    let messages = woken.peer.messages();
    assert_eq!(numbers(&messages), [1, 2]);
    assert!(matches!(messages[0].body, Body::PacketIn(_)));
    assert_eq!(bridge.event_memory().used(), 0);
}

#[test]
fn what_has_to_wait_is_left_to_the_session() {
    let bridge = bridge();
    // Before it rests, and after it has been told something.
    let mut woken = Woken::new(&bridge, Version::V1_3, Peer::with(1 << 20, 9));
    woken.post(1);
    woken.rest();
    woken.post(2);
    assert_eq!((woken.woken(), woken.peer.messages().len()), (2, 0), "a packet-in waits in the output");
    woken.write();
    woken.rest();
    woken.session.receive(&[4], START);
    woken.post(3);
    assert_eq!(numbers(&woken.peer.messages()), [1]);
    woken.session.poll(START);
    woken.write();
    assert_eq!(numbers(&woken.peer.messages()), [1, 2, 3]);
    // Behind another event.
    woken.rest();
    add_port(&bridge, "p2");
    woken.post(4);
    assert_eq!(numbers(&woken.peer.messages()), [1, 2, 3]);
    woken.session.poll(START);
    woken.write();
    let messages = woken.peer.messages();
    let is_status = |message: &Message| matches!(message.body, Body::PortStatus(_));
    assert!(messages[3..].iter().position(is_status) < messages[3..].iter().position(|m| !is_status(m)));
    // Where the peer may not be sent more.
    woken.peer.allowed.store(0, Ordering::SeqCst);
    let before = woken.woken();
    woken.rest();
    woken.post(5);
    assert_eq!((woken.woken(), woken.peer.messages().len()), (before + 1, messages.len()));
    // Where packet-ins are held, or limited.
    let mut woken = Woken::new(&bridge, Version::V1_3, Peer::with(1 << 20, 9));
    woken.session.hold_packet_ins(true);
    woken.rest();
    woken.post(1);
    assert_eq!((woken.woken(), woken.peer.messages()), (1, Vec::new()));
    let mut woken = Woken::new(&bridge, Version::V1_3, Peer::with(1 << 20, 9));
    woken.session.settings.packet_in_limit = Some(PacketInLimit { rate: 10, burst: 2 });
    woken.rest();
    woken.post(1);
    assert_eq!((woken.woken(), woken.peer.messages()), (1, Vec::new()));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    AddPort,
    Echo,
    Poll,
    Rest,
    Write,
    Room(u16),
    Allow(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Post),
        1 => Just(Step::AddPort),
        1 => Just(Step::Echo),
        1 => Just(Step::Poll),
        4 => Just(Step::Rest),
        2 => Just(Step::Write),
        2 => (0..500u16).prop_map(Step::Room),
        1 => (0..9u8).prop_map(Step::Allow),
    ]
}

proptest! {
    /// Whatever goes directly, the peer gets whole messages, each packet-in once and in order; and nothing waits for a
    /// session that is not woken.
    #[test]
    fn nothing_is_lost_torn_or_late(steps in proptest::collection::vec(step(), 1..80)) {
        let bridge = bridge();
        let mut woken = Woken::new(&bridge, Version::V1_3, Peer::with(0, 0));
        let (mut posted, mut ports, mut echoes) = (0, 0, 0);
        for step in steps {
            match step {
                Step::Post => {
                    let before = (woken.woken(), woken.peer.taken.lock().len());
                    woken.post(posted);
                    posted += 1;
                    let after = (woken.woken(), woken.peer.taken.lock().len());
                    prop_assert!(after != before, "neither sent nor told");
                }
                Step::AddPort => {
                    ports += 1;
                    add_port(&bridge, &format!("p{ports}"));
                }
                Step::Echo => {
                    echoes += 1;
                    woken.session.receive(&[4, 2, 0, 8, 0, 0, 0, 1], START);
                }
                Step::Poll => woken.session.poll(START),
                Step::Rest => woken.rest(),
                Step::Write => woken.write(),
                Step::Room(room) => woken.peer.room.store(room.into(), Ordering::SeqCst),
                Step::Allow(allowed) => woken.peer.allowed.store(allowed.into(), Ordering::SeqCst),
            }
        }
        woken.peer.room.store(1 << 24, Ordering::SeqCst);
        // What is written makes room for what waits.
        for _ in 0..4 {
            woken.session.poll(START);
            woken.write();
        }
        let messages = woken.peer.messages();
        let replies = messages.iter().filter(|m| matches!(m.body, Body::EchoReply(_))).count();
        prop_assert_eq!(numbers(&messages), (0..posted).collect::<Vec<_>>());
        prop_assert_eq!(replies, echoes);
        prop_assert_eq!(woken.session.dropped(), Dropped::default());
        prop_assert_eq!(bridge.event_memory().used(), 0);
    }
}
