//! Cost of translating a packet that misses: one table, ten tables, and a table of 100 000 rules.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use datapath::sync::clock::ManualClock;
use datapath::{Config, Datapath, Miss, Upcall, Verdict};
use ofproto::{Bridge, BridgeConfig, FailMode, PortSpec, Switch, SwitchSettings};
use openflow::{Action, FlowMod, FlowModCommand, Instructions, Match, OfPort, TableId};
use packet::wire::build;
use packet::{Field, Key, Packet, Time};
use ports::registry::{self, Env};

fn bridge() -> (Arc<Switch>, Bridge, Env) {
    let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
    let switch = Switch::new(SwitchSettings::default(), clock.clone());
    switch.attach(Datapath::new(Config::default(), clock));
    let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br0", 1) };
    let (bridge, env) = (switch.add_bridge(config).expect("new"), Env::default());
    for name in ["p1", "p2"] {
        let port = registry::open(&registry::PortSpec::new(name, "dummy"), &env).expect("dummies need nothing");
        bridge.add_port(PortSpec::new(port)).expect("new");
    }
    (switch, bridge, env)
}

fn add(bridge: &Bridge, table: u8, matching: Match, instructions: Instructions) {
    let change = FlowMod { table: Some(TableId(table)), ..FlowMod::new(FlowModCommand::Add, matching, instructions) };
    bridge.flow_mod(&change).expect("a valid flow");
}

fn output() -> Instructions {
    Instructions::apply(vec![Action::output(OfPort(2))])
}

fn frame() -> Vec<u8> {
    let ip =
        build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 1, 2, 3].into(), proto: 6, ttl: 64, ..Default::default() };
    build::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], &[], 0x0800, &ip.packet(build::tcp(1000, 80, 0x10, b"")))
}

fn measure(c: &mut Criterion, name: &str, switch: &Switch) {
    let make = || {
        let packet = Packet::from_slice(&frame());
        let mut key = Box::new(Key::new());
        let layers = packet::flow::extract(packet.data(), &mut key, Default::default());
        key.common_mut().in_port = 1.into();
        [Miss { packet, key, layers, hash: 0, counted: false, verdict: Verdict::Pending }]
    };
    c.bench_function(name, |b| {
        b.iter_batched_ref(
            make,
            |misses| {
                switch.misses(misses, Time(1_000_000_000));
                assert!(matches!(misses[0].verdict, Verdict::Install { .. }));
                black_box(misses);
            },
            BatchSize::SmallInput,
        );
    });
}

fn translate(c: &mut Criterion) {
    let (switch, bridge, _env) = bridge();
    add(&bridge, 0, Match::any(), output());
    measure(c, "translate/one_table", &switch);

    let (switch, bridge, _env) = self::bridge();
    for table in 0..10 {
        let mut matching = Match::any();
        matching.set(Field::DlType, 0x0800);
        let next = Instructions { goto: Some(TableId(table + 1)), ..Instructions::default() };
        add(&bridge, table, matching, if table == 9 { output() } else { next });
    }
    measure(c, "translate/ten_tables", &switch);

    let (switch, bridge, _env) = self::bridge();
    for n in 0..100_000u32 {
        let mut matching = Match::any();
        matching.set(Field::DlType, 0x0800);
        let len = 20 + n % 12;
        matching.set_masked(Field::NwDst, (0x0a00_0000 + n * 64).into(), (u32::MAX << (32 - len)).into());
        matching.set(Field::NwProto, 6);
        matching.set(Field::TcpDst, u128::from(n % 7 + 77));
        add(&bridge, 0, matching, output());
    }
    add(&bridge, 0, Match::any(), output());
    measure(c, "translate/100k_rules", &switch);
}

criterion_group!(benches, translate);
criterion_main!(benches);
