//! Flow-mods of one connection: what it costs to add many rules, what they take, and what it costs to delete them.
//!
//!     cargo bench -p weir-ofproto --bench rules -- [--rules N] [--masks N] [--groups N]
//!
//! The flow-mods are those of `tests/performance/rules.py`: prefixes of both addresses of a hundred pairs of lengths and a
//! thousand priorities, in OpenFlow 1.3. They are given to a session in pieces as they come from a socket. There is
//! no socket, and nobody else asks for anything. With `--groups`, so many groups are added first, of which each rule names
//! one, and the rules are removed by deleting the groups one by one.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::sync::clock::MonotonicClock;
use datapath::{Config, Datapath};
use ofproto::connection::{ConnectionKind, PACKET_IN_QUEUE, Roles, Session, Settings};
use ofproto::{BridgeConfig, FailMode, Switch, SwitchSettings};
use openflow::Versions;
use openflow::stats::SwitchDesc;
use packet::Clock;

/// Bytes that come at once.
const PIECE: usize = 1 << 16;

/// Adds a message of OpenFlow 1.3 with this body.
fn message(out: &mut Vec<u8>, kind: u8, body: &[&[u8]]) {
    let len = 8 + body.iter().map(|part| part.len()).sum::<usize>() as u16;
    out.extend([4, kind]);
    out.extend(len.to_be_bytes());
    out.extend([0; 4]);
    body.iter().for_each(|part| out.extend(*part));
}

/// Small numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

/// Adds the flow-mod of a rule.
fn flow_mod(out: &mut Vec<u8>, n: u32, masks: u32, group: Option<u32>, random: &mut Random) {
    let (src_len, dst_len) = (32 - n % masks / 20, 32 - n % masks % 20);
    let priority = 1 + (random.next() % 1000) as u16;
    let mut fixed = [0u8; 40];
    fixed[22..24].copy_from_slice(&priority.to_be_bytes());
    fixed[24..36].fill(0xff);
    let mut matching = vec![0, 1, 0, 34, 0x80, 0, 10, 2, 8, 0];
    for (field, len) in [(0x17, src_len), (0x19, dst_len)] {
        let mask = u32::MAX << (32 - len);
        matching.extend([0x80, 0, field, 8]);
        matching.extend((random.next() & mask).to_be_bytes());
        matching.extend(mask.to_be_bytes());
    }
    matching.extend([0; 6]);
    let action: &[u8] = match group {
        None => &[0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0],
        Some(group) => &[&[0, 22, 0, 8], &group.to_be_bytes()[..]].concat(),
    };
    let len = 8 + action.len() as u16;
    message(out, 14, &[&fixed, &matching, &[0, 4], &len.to_be_bytes(), &[0; 4], action]);
}

/// Adds a group-mod: to add a group with one bucket, or to delete it. It is an indirect one.
fn group_mod(out: &mut Vec<u8>, group: u32, adds: bool) {
    const BUCKET: [u8; 32] = {
        let mut bucket = [0; 32];
        (bucket[1], bucket[19], bucket[23]) = (32, 16, 2);
        bucket
    };
    let command = [0, if adds { 0 } else { 2 }, 2, 0];
    message(out, 15, &[&command, &group.to_be_bytes(), if adds { &BUCKET } else { &[] }]);
}

fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(stat.split(' ').next().and_then(|time| time.parse().ok()).expect("a number"))
}

/// Gives the session what comes, and says what it takes for each of so many.
fn measure(session: &mut Session, clock: &MonotonicClock, what: &str, number: u32, bytes: &[u8]) {
    let (began, time, memory) = (Instant::now(), processor_time(), resident());
    for piece in bytes.chunks(PIECE) {
        session.receive(piece, clock.now());
        while session.has_work() {
            session.poll(clock.now());
        }
    }
    assert!(session.output().is_empty(), "an error: {:02x?}", &session.output()[..16]);
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(number.max(1));
    println!(
        "{what:<14} {number:>8}: {:.0} ns each, {:.0} ns of processor time, {:+.0} bytes",
        each(began.elapsed()),
        each(processor_time() - time),
        (resident() as f64 - memory as f64) / f64::from(number.max(1)),
    );
}

fn main() {
    let (mut rules, mut masks, mut groups) = (1_000_000, 100, 0);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let option = match &*arg {
            "--rules" => &mut rules,
            "--masks" => &mut masks,
            "--groups" => &mut groups,
            // What cargo passes.
            "--bench" => continue,
            other => panic!("there is no option {other}"),
        };
        *option = args.next().and_then(|n| n.parse().ok()).expect("a number after the option");
    }
    let clock = Arc::new(MonotonicClock::new());
    let switch = Switch::new(SwitchSettings::default(), clock.clone());
    switch.attach(Datapath::new(Config::default(), clock.clone()));
    let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br0", 1) };
    let bridge = switch.add_bridge(config).expect("new");
    let settings = Settings {
        kind: ConnectionKind::Service,
        versions: Versions::ALL,
        probe_interval: None,
        packet_in_limit: None,
        async_messages: true,
        packet_in_queue: PACKET_IN_QUEUE,
        desc: SwitchDesc::default(),
    };
    let mut session = Session::new(bridge, settings, Arc::new(Roles::default()), clock.now());
    session.receive(&[4, 0, 0, 8, 0, 0, 0, 1], clock.now());
    session.sent(usize::MAX);

    let (mut added, mut deleted, mut flow_mods) = (Vec::new(), Vec::new(), Vec::new());
    (0..groups).for_each(|group| group_mod(&mut added, group, true));
    (0..groups).for_each(|group| group_mod(&mut deleted, group, false));
    let mut random = Random(1);
    (0..rules).for_each(|n| flow_mod(&mut flow_mods, n, masks, n.checked_rem(groups), &mut random));
    if groups > 0 {
        measure(&mut session, &clock, "add groups", groups, &added);
    }
    measure(&mut session, &clock, "add rules", rules, &flow_mods);
    if groups > 0 {
        measure(&mut session, &clock, "delete groups", groups, &deleted);
    } else {
        let everything =
            [&[0u8; 16][..], &[0xff, 3, 0, 0, 0, 0, 0, 0], &[0xff; 12], &[0; 4], &[0, 1, 0, 4, 0, 0, 0, 0]];
        let mut delete = Vec::new();
        message(&mut delete, 14, &everything);
        measure(&mut session, &clock, "delete rules", rules, &delete);
    }
}
