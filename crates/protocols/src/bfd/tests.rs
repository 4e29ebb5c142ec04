//! Sessions in pairs; what they show is what OVS shows in its own tests (tests/bfd.at).

use std::time::Duration;

use weir_time::Time;

use super::control::{Addresses, Control, Flags, Frame};
use super::show::{Show, parse_forwarding, status};
use super::*;
use crate::options::Options;
use crate::random::Random;
use crate::registry::{Registry, Session as _};

/// A point in time.
pub fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// Settings of column `bfd`, enabled.
pub fn settings(pairs: &[(&str, &str)]) -> Settings {
    let enabled = [("enable", "true")];
    let options: Options =
        enabled.iter().chain(pairs).map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Settings::from_column(&options).0.unwrap()
}

/// A session with a number, from which its name and its discriminator are made.
pub fn session(n: u8, pairs: &[(&str, &str)], seed: u64) -> Session {
    let name = format!("p{n}");
    Session::new(&name, [2, 0, 0, 0, 0, n], settings(pairs), 0x10 + u32::from(n), source_port(n.into()), seed)
}

/// Two sessions, a link between them, and the packets that their interfaces have received.
struct Pair {
    sessions: [Session; 2],
    rx_packets: [u64; 2],
    millis: u64,
    /// Whether what session 0 and session 1 send arrives.
    passes: [bool; 2],
}

impl Pair {
    fn new(options: [&[(&str, &str)]; 2]) -> Pair {
        let sessions = [session(0, options[0], 1), session(1, options[1], 2)];
        Pair { sessions, rx_packets: [0; 2], millis: 0, passes: [true; 2] }
    }

    /// Lets time pass in steps of 10 ms; in each second, so many data packets come at both ends.
    fn pass(&mut self, millis: u64, data_rate: u64) {
        for _ in 0..millis / 10 {
            self.millis += 10;
            let now = at(self.millis);
            for near in [0, 1] {
                let far = 1 - near;
                if data_rate != 0 && self.millis.is_multiple_of(1000 / data_rate) {
                    self.rx_packets[near] += 1;
                    self.sessions[near].account_rx(now);
                }
                let outcome = self.sessions[near].run(now, self.rx_packets[near]);
                if let Some(frame) = outcome.frame.filter(|_| self.passes[near]) {
                    self.rx_packets[far] += 1;
                    let _ = self.sessions[far].receive(now, &frame);
                }
            }
        }
    }

    fn configure(&mut self, n: usize, pairs: &[(&str, &str)]) {
        self.sessions[n].configure(at(self.millis), self.rx_packets[n], settings(pairs));
    }

    /// The lines of `bfd/show` that begin with these words.
    fn lines(&self, n: usize, words: &[&str]) -> Vec<String> {
        let text = Show(&self.sessions[n], at(self.millis)).to_string();
        let of = |word: &&str| {
            text.lines().find_map(|line| line.trim().strip_prefix(&format!("{word}: "))).map(String::from)
        };
        words.iter().map(|word| of(word).unwrap_or_else(|| panic!("{word} in {text}"))).collect()
    }

    /// What `BFD_CHECK` of bfd.at checks.
    fn states(&self, n: usize) -> Vec<String> {
        let words =
            ["Forwarding", "Local Session State", "Local Diagnostic", "Remote Session State", "Remote Diagnostic"];
        assert_eq!(self.lines(n, &["Local Flags", "Remote Flags"]), ["none", "none"]);
        self.lines(n, &words)
    }
}

const UP: [&str; 5] = ["true", "up", "No Diagnostic", "up", "No Diagnostic"];
const EXPIRED: [&str; 5] = ["false", "down", "Control Detection Time Expired", "down", "No Diagnostic"];

#[test]
fn a_session_is_shown_as_by_ovs() {
    let mut session = session(0, &[("min_tx", "500"), ("min_rx", "500")], 1);
    assert_eq!(session.run(at(5_000), 0).frame.map(|frame| frame.len()), Some(66));
    let text = Show(&session, at(5_000)).to_string();
    let next: Vec<_> = text.lines().filter(|line| line.starts_with("  Next TX Time: now +")).collect();
    let expected = format!(
        "  Forwarding: false
  Detect Multiplier: 3
  Concatenated Path Down: false
  TX Interval: Approx 1000ms
  RX Interval: Approx 500ms
  Detect Time: now -5000ms
{}
  Last TX Time: now +0ms

  Local Flags: none
  Local Session State: down
  Local Diagnostic: No Diagnostic
  Local Discriminator: 0x10
  Local Minimum TX Interval: 1000ms
  Local Minimum RX Interval: 500ms

  Remote Flags: none
  Remote Session State: down
  Remote Diagnostic: No Diagnostic
  Remote Discriminator: 0x0
  Remote Minimum TX Interval: 0ms
  Remote Minimum RX Interval: 1ms
  Remote Detect Multiplier: 0
",
        next[0]
    );
    assert_eq!(text, expected);
}

#[test]
fn both_come_up_and_the_one_that_is_left_goes_down() {
    let mut pair = Pair::new([&[], &[]]);
    pair.pass(4_100, 0);
    assert_eq!((pair.states(0), pair.states(1)), (UP.map(String::from).into(), UP.map(String::from).into()));
    pair.passes = [false, false];
    pair.pass(4_100, 0);
    assert_eq!(pair.states(0), EXPIRED);
    pair.passes = [true, true];
    pair.pass(4_100, 0);
    let again = ["true", "up", EXPIRED[2], "up", EXPIRED[2]];
    assert_eq!((pair.states(0), pair.states(1)), (again.map(String::from).into(), again.map(String::from).into()));
    // One direction fails: who hears nothing says so, and the other one does not come up.
    pair.passes = [false, true];
    pair.pass(8_200, 0);
    assert_eq!(pair.states(1), EXPIRED);
    assert_eq!(pair.states(0), ["false", "init", "Neighbor Signaled Session Down", "down", EXPIRED[2]]);
    assert_eq!(pair.sessions[0].flap_count(), 4);
}

#[test]
fn a_path_that_is_down_beyond_the_peer_is_told() {
    let mut pair = Pair::new([&[], &[]]);
    pair.pass(4_100, 0);
    pair.configure(0, &[("cpath_down", "true")]);
    pair.pass(4_100, 0);
    assert_eq!(pair.states(1), ["false", "up", "No Diagnostic", "up", "Concatenated Path Down"]);
    let expected = [
        ("diagnostic", "No Diagnostic"),
        ("flap_count", "2"),
        ("forwarding", "false"),
        ("remote_diagnostic", "Concatenated Path Down"),
        ("remote_state", "up"),
        ("state", "up"),
    ];
    assert_eq!(status(&pair.sessions[1], at(8_200)), expected.map(|(key, value)| (key, value.to_string())));
    pair.configure(0, &[]);
    pair.pass(1_000, 0);
    assert_eq!(pair.states(1), UP);
}

#[test]
fn intervals_change_by_a_poll_sequence() {
    let mut pair = Pair::new([&[], &[]]);
    pair.pass(4_100, 0);
    let tx = ["TX Interval", "Local Minimum TX Interval", "Remote Minimum TX Interval"];
    let rx = ["RX Interval", "Local Minimum RX Interval", "Remote Minimum RX Interval"];
    pair.configure(0, &[("min_tx", "200")]);
    pair.passes = [false, true];
    pair.pass(500, 0);
    // The peer has not agreed.
    assert_eq!(pair.lines(0, &tx[1..2]), ["100ms"]);
    assert_eq!(pair.lines(0, &["Local Flags"]), ["poll"]);
    pair.passes = [true, true];
    pair.pass(2_100, 0);
    assert_eq!(pair.lines(0, &tx), ["Approx 1000ms", "200ms", "100ms"]);
    assert_eq!(pair.lines(1, &tx), ["Approx 1000ms", "100ms", "200ms"]);
    pair.configure(1, &[("min_rx", "300")]);
    pair.pass(2_100, 0);
    assert_eq!(pair.lines(1, &rx), ["Approx 300ms", "300ms", "1000ms"]);
    assert_eq!(pair.lines(0, &rx), ["Approx 1000ms", "1000ms", "300ms"]);
    assert_eq!((pair.states(0), pair.sessions[0].flap_count()), (UP.map(String::from).into(), 1));
}

#[test]
fn a_poll_with_another_interval_is_answered_at_once() {
    let mut pair = Pair::new([&[], &[]]);
    pair.pass(4_000, 0);
    pair.configure(0, &[("min_rx", "1500")]);
    pair.pass(20, 0);
    assert_eq!(pair.lines(0, &["Local Flags", "Remote Flags"]), ["none", "final"]);
}

#[test]
fn multipliers_are_told() {
    let mut pair = Pair::new([&[], &[]]);
    pair.pass(3_100, 0);
    pair.configure(0, &[("mult", "1")]);
    pair.configure(1, &[("mult", "255")]);
    pair.pass(3_100, 0);
    let words = ["Detect Multiplier", "Remote Detect Multiplier"];
    assert_eq!(
        (pair.lines(0, &words), pair.lines(1, &words)),
        (vec!["1".into(), "255".into()], vec!["255".into(), "1".into()])
    );
    assert_eq!(pair.sessions[1].flap_count(), 1);
}

#[test]
fn without_data_the_interval_decays() {
    let rx = ["RX Interval", "Local Minimum RX Interval", "Remote Minimum RX Interval"];
    let p0 = [("min_tx", "300"), ("min_rx", "300")];
    let mut pair = Pair::new([&p0, &[("min_tx", "500"), ("min_rx", "500")]]);
    pair.pass(10_000, 0);
    assert_eq!(pair.lines(0, &rx), ["Approx 500ms", "300ms", "500ms"]);
    pair.configure(0, &[p0[0], p0[1], ("decay_min_rx", "3000")]);
    pair.pass(2_000, 0);
    assert_eq!(pair.lines(0, &rx), ["Approx 500ms", "300ms", "500ms"]);
    pair.pass(5_000, 0);
    assert_eq!(pair.lines(0, &rx), ["Approx 3000ms", "3000ms", "500ms"]);
    pair.pass(5_000, 0);
    assert_eq!(pair.states(1), UP);
    // Data bring it back, and their end lets it decay again, to another interval.
    pair.pass(7_000, 10);
    assert_eq!(pair.lines(0, &rx), ["Approx 500ms", "300ms", "500ms"]);
    pair.configure(0, &[p0[0], p0[1], ("decay_min_rx", "1000")]);
    pair.pass(10_000, 0);
    assert_eq!(pair.lines(0, &rx), ["Approx 1000ms", "1000ms", "500ms"]);
    assert_eq!((pair.states(0), pair.sessions[0].flap_count()), (UP.map(String::from).into(), 1));
}

#[test]
fn data_keep_an_interface_forwarding_for_as_long_as_bfd_was_heard_lately() {
    let p0 = [("min_tx", "300"), ("min_rx", "300"), ("forwarding_if_rx", "true")];
    let mut pair = Pair::new([&p0, &[("min_tx", "500"), ("min_rx", "500")]]);
    pair.pass(10_000, 0);
    pair.passes[1] = false;
    pair.pass(4_000, 2);
    assert_eq!(pair.lines(0, &["Forwarding", "Local Session State"]), ["true", "down"]);
    assert_eq!(pair.sessions[0].flap_count(), 1);
    pair.pass(31_000, 2);
    assert_eq!(pair.lines(0, &["Forwarding", "Local Session State"]), ["false", "down"]);
    assert_eq!(pair.sessions[0].flap_count(), 2);
    pair.passes[1] = true;
    pair.pass(5_000, 2);
    pair.passes[1] = false;
    pair.pass(3_000, 2);
    assert_eq!(pair.lines(0, &["Forwarding"]), ["true"]);
    // Without data, the interface forwards for two seconds.
    pair.pass(2_200, 0);
    assert_eq!(pair.lines(0, &["Forwarding"]), ["false"]);
}

#[test]
fn an_operator_may_say_what_is_forwarded() {
    let mut pair = Pair::new([&[], &[]]);
    pair.pass(4_000, 0);
    let words = ["FALSE", "normal", "true", "maybe"].map(parse_forwarding);
    assert_eq!(words, [Some(Some(false)), Some(None), Some(Some(true)), None]);
    pair.sessions[0].set_forwarding(Some(false));
    assert!(pair.sessions[0].run(at(4_000), 0).status_changed);
    pair.passes = [false; 2];
    pair.pass(4_000, 0);
    pair.sessions[0].set_forwarding(Some(true));
    // What the override hides is not counted, and keeps nobody busy.
    pair.sessions[0].run(at(8_000), 0);
    assert!(pair.sessions[0].next_wakeup().unwrap() > at(8_000));
    assert_eq!((pair.lines(0, &["Forwarding"])[0].as_str(), pair.sessions[0].flap_count()), ("true", 1));
}

fn forged(control: Control, ttl: u8) -> Vec<u8> {
    let ip = (std::net::Ipv4Addr::LOCALHOST, std::net::Ipv4Addr::LOCALHOST);
    Addresses { eth: ([2; 6], [4; 6]), ip, port: 50_000, ttl }.emit(&control)
}

const DOWN: Control = Control {
    diagnostic: Diagnostic::NONE,
    state: State::Down,
    flags: Flags::empty(),
    detect_mult: 3,
    my_discriminator: 7,
    your_discriminator: 0,
    desired_min_tx: 1_000_000,
    required_min_rx: 1,
};

#[test]
fn packets_that_are_not_the_sessions_change_nothing() {
    let mut pair = Pair::new([&[], &[]]);
    pair.pass(4_000, 0);
    let session = &mut pair.sessions[0];
    assert_eq!(session.receive(at(4_000), &forged(DOWN, 254)), Err(ReceiveError::Ttl(254)));
    let other = Control { your_discriminator: 99, ..DOWN };
    let error = session.receive(at(4_000), &forged(other, 255)).unwrap_err();
    assert_eq!(error.to_string(), "BFD: Your Discriminator 0x63, this session has 0x10");
    let authenticated = forged(Control { flags: Flags::AUTH, ..DOWN }, 255);
    assert!(matches!(session.receive(at(4_000), &authenticated), Err(ReceiveError::Malformed(_))));
    assert_eq!((session.state(), session.forwarding(at(4_000))), (State::Up, true));
    session.receive(at(4_000), &forged(Control { state: State::AdminDown, ..DOWN }, 255)).unwrap();
    assert_eq!((session.state(), session.diagnostic), (State::Down, Diagnostic::NEIGHBOR_DOWN));
}

#[test]
fn which_frames_are_a_sessions_is_configured() {
    let options = [("bfd_src_ip", "10.0.0.1"), ("bfd_remote_dst_mac", "2:2:2:2:2:2"), ("check_tnl_key", "true")];
    let strict = session(0, &options, 1);
    let lax = session(1, &[], 1);
    let accepts =
        |session: &Session, mac: [u8; 6], ip: &str, key| session.settings().accepts(mac, ip.parse().unwrap(), key);
    assert!(accepts(&strict, [2; 6], "10.0.0.1", 0) && !accepts(&strict, [2; 6], "10.0.0.1", 1));
    assert!(!accepts(&strict, [3; 6], "10.0.0.1", 0) && !accepts(&strict, [2; 6], "10.0.0.2", 0));
    assert!(accepts(&lax, [3; 6], "10.0.0.1", 1) && accepts(&lax, [2; 6], "10.0.0.2", 1));
}

#[test]
fn frames_are_addressed_as_configured() {
    let frame = |pairs: &[(&str, &str)]| session(3, pairs, 1).run(at(0), 0).frame.unwrap();
    let bytes = frame(&[]);
    let defaults = Frame::new_checked(&bytes).unwrap().addresses;
    assert_eq!(defaults.eth, ([0, 0x23, 0x20, 0, 0, 1], [2, 0, 0, 0, 0, 3]));
    assert_eq!((defaults.ip.0.to_string(), defaults.ip.1.to_string()), ("169.254.1.1".into(), "169.254.1.0".into()));
    assert_eq!((defaults.port, defaults.ttl, bytes[15]), (49155, 255, 0xc0));
    let bytes =
        frame(&[("bfd_local_src_mac", "2::1"), ("bfd_local_dst_mac", "2:0:0:0:0:9"), ("bfd_dst_ip", "10.0.0.9")]);
    let configured = Frame::new_checked(&bytes).unwrap().addresses;
    assert_eq!((configured.eth.0[5], configured.eth.1[5], configured.ip.1.to_string()), (9, 3, "10.0.0.9".into()));
}

#[test]
fn a_peer_that_polls_and_toggles_all_the_time_gets_a_thousand_packets_a_second() {
    let mut session = session(0, &[], 1);
    let mut sent = 0;
    for step in 0..100_000 {
        let now = Time(step * 10_000);
        let state = if step % 2 == 0 { State::Down } else { State::AdminDown };
        session.receive(now, &forged(Control { state, flags: Flags::POLL, ..DOWN }, 255)).unwrap();
        sent += u32::from(session.run(now, 0).frame.is_some());
    }
    assert!((900..=1_000).contains(&sent), "{sent}");
}

#[test]
fn a_peer_that_can_receive_nothing_gets_answers_only() {
    let mut session = session(0, &[], 1);
    session.run(at(0), 0);
    session.receive(at(1), &forged(Control { required_min_rx: 0, ..DOWN }, 255)).unwrap();
    assert_eq!(session.run(at(2_000), 0).frame, None);
    session.receive(at(2_001), &forged(Control { required_min_rx: 0, flags: Flags::POLL, ..DOWN }, 255)).unwrap();
    let frame = session.run(at(2_001), 0).frame.unwrap();
    let control = Control::new_checked(Frame::new_checked(&frame).unwrap().payload).unwrap();
    assert_eq!((control.flags, control.your_discriminator), (Flags::FINAL, 7));
    assert_eq!(session.run(at(3_900), 0).frame, None);
}

#[test]
fn a_run_that_is_late_takes_what_has_come_first() {
    let mut pair = Pair::new([&[("min_rx", "100")], &[("min_tx", "100")]]);
    pair.pass(4_000, 0);
    let frame = (0..200).find_map(|millis| pair.sessions[1].run(at(4_000 + millis), 0).frame).unwrap();
    // The thread was away for ten seconds; the frame has waited for it.
    pair.sessions[0].receive(at(14_000), &frame).unwrap();
    pair.sessions[0].run(at(14_000), 0);
    assert_eq!(pair.sessions[0].state(), State::Up);
}

#[test]
fn a_peer_is_not_blamed_for_the_time_in_which_nobody_looked() {
    let mut pair = Pair::new([&[("min_rx", "100")], &[("min_tx", "100")]]);
    pair.pass(4_000, 0);
    let session = &mut pair.sessions[0];
    let silent_at = session.detect_time;
    // The thread was away for ten seconds, and what has come meanwhile is not taken yet.
    let (back, late) = (at(14_000), Duration::from_secs(10));
    session.excuse(back, late);
    session.run(back, 0);
    assert!(silent_at < back && session.state() == State::Up);
    assert_eq!(session.next_wakeup().map(|next| next > back), Some(true), "no haste");
    // No longer than the detection time, and once.
    let end = session.detect_time;
    assert!(end <= back + Duration::from_millis(300), "{end:?}");
    session.excuse(end, late);
    session.run(end, 0);
    assert_eq!((session.state(), session.diagnostic), (State::Down, Diagnostic::EXPIRED));
}

#[test]
fn who_looks_in_time_excuses_nobody() {
    let mut pair = Pair::new([&[("min_rx", "100")], &[("min_tx", "100")]]);
    pair.pass(4_000, 0);
    let session = &mut pair.sessions[0];
    let now = session.detect_time + Duration::from_millis(1);
    session.excuse(now, Duration::from_millis(1));
    session.run(now, 0);
    assert_eq!(session.state(), State::Down);
}

#[test]
fn discriminators_are_not_zero_and_not_taken() {
    let mut first = Random::new(5);
    let taken = new_discriminator(&mut first, |_| false);
    assert_ne!(new_discriminator(&mut Random::new(5), |discriminator| discriminator == taken), taken);
}

/// The sessions of a thousand tunnels at 100 ms, and their peers: work follows what is due.
#[test]
fn a_thousand_sessions_are_served_by_what_is_due() {
    let mut registry = Registry::new();
    let options = [("min_rx", "100"), ("min_tx", "100")];
    for n in 0..2000u32 {
        let session = Session::new("p", [2; 6], settings(&options), n + 1, source_port(n), n.into());
        registry.insert(n, session);
    }
    let (mut runs, mut sent) = (0u64, 0u64);
    for millis in 0..5_000 {
        let mut frames = Vec::new();
        registry.run(at(millis), |n, session| {
            runs += 1;
            frames.extend(session.run(at(millis), 0).frame.map(|frame| (n ^ 1, frame)));
        });
        sent += frames.len() as u64;
        for (to, frame) in frames {
            registry.update(to, |session| session.receive(at(millis), &frame)).unwrap().unwrap();
        }
    }
    assert!(registry.iter().all(|(_, session)| session.state() == State::Up));
    assert!(sent > 2000 * 20 && runs <= 2 * sent, "{runs} runs for {sent} frames");
    assert!(registry.next_wakeup().is_some_and(|wakeup| wakeup < at(5_000) + Duration::from_millis(100)));
}
