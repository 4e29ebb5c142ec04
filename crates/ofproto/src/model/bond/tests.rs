use std::collections::BTreeSet;

use datapath::Bonds;
use proptest::prelude::*;

use super::status::MemberInfo;
use super::*;

fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

fn info(number: u32, carrier: bool) -> MemberInfo {
    MemberInfo {
        name: format!("p{number}"),
        mac: [2, 0, 0, 0, 0, number as u8],
        dp_port: Some(PortNo(number)),
        carrier,
        path_up: true,
    }
}

/// A bond of members with these numbers, which have carriers.
fn bond(mode: BondMode, members: &[u32]) -> Bond {
    let settings = BondSettings { mode, rebalance_interval: Duration::from_secs(1), ..BondSettings::default() };
    let output = Arc::new(Bonds::new(1)).add();
    let mut bond = Bond::new("bond0", settings, output, [0; 6], at(0));
    members.iter().for_each(|&number| bond.set_member(OfPort(number), info(number, true)));
    bond.run(at(0));
    bond
}

fn carrier(bond: &mut Bond, number: u32, up: bool) {
    bond.set_member(OfPort(number), info(number, up));
}

/// How many buckets each port of the datapath's table has.
fn table(bond: &Bond) -> BTreeMap<u32, usize> {
    let output = bond.table().expect("all members are devices");
    let mut counts = BTreeMap::new();
    for port in (0..=u8::MAX).filter_map(|bucket| output.member(bucket)) {
        *counts.entry(port.0).or_default() += 1;
    }
    counts
}

#[test]
fn a_lost_member_is_out_of_the_table_when_run_returns() {
    for mode in [BondMode::ActiveBackup, BondMode::BalanceSlb] {
        let mut bond = bond(mode, &[1, 2]);
        let active = bond.active();
        assert_eq!(active, Some(OfPort(1)));
        carrier(&mut bond, 1, false);
        let changes = bond.run(at(5));
        assert!(changes.members && changes.tell_neighbours && !changes.way);
        assert_eq!((bond.active(), table(&bond)), (Some(OfPort(2)), BTreeMap::from([(2, 256)])));
        carrier(&mut bond, 1, true);
        bond.run(at(6));
        // The one that is active stays so.
        assert_eq!(bond.active(), Some(OfPort(2)));
        let shared = match mode {
            BondMode::ActiveBackup => BTreeMap::from([(2, 256)]),
            _ => BTreeMap::from([(1, 128), (2, 128)]),
        };
        assert_eq!(table(&bond), shared);
        [1, 2].into_iter().for_each(|number| carrier(&mut bond, number, false));
        bond.run(at(7));
        assert_eq!((bond.active(), table(&bond)), (None, BTreeMap::new()));
    }
}

#[test]
fn the_primary_member_is_active_whenever_it_can_be() {
    let mut bond = bond(BondMode::ActiveBackup, &[1, 2]);
    bond.configure(BondSettings { primary: Some("p2".into()), ..bond.settings().clone() }, at(1));
    bond.run(at(1));
    assert_eq!(bond.active(), Some(OfPort(2)));
    carrier(&mut bond, 2, false);
    bond.run(at(2));
    assert_eq!(bond.active(), Some(OfPort(1)));
    carrier(&mut bond, 2, true);
    bond.run(at(3));
    assert_eq!(bond.active(), Some(OfPort(2)));
}

#[test]
fn delays_are_kept_but_not_while_no_member_is_enabled() {
    let (updelay, downdelay) = (Duration::from_millis(100), Duration::from_millis(50));
    let mut bond = bond(BondMode::ActiveBackup, &[1, 2]);
    bond.configure(
        BondSettings { updelay, downdelay, rebalance_interval: Duration::ZERO, ..bond.settings().clone() },
        at(0),
    );
    carrier(&mut bond, 1, false);
    bond.run(at(10));
    assert_eq!((bond.active(), bond.next_wakeup()), (Some(OfPort(1)), Some(at(60))));
    // Back in time.
    carrier(&mut bond, 1, true);
    bond.run(at(20));
    assert_eq!((bond.active(), bond.next_wakeup()), (Some(OfPort(1)), None));
    carrier(&mut bond, 1, false);
    bond.run(at(30));
    bond.run(at(80));
    assert_eq!(bond.active(), Some(OfPort(2)));
    carrier(&mut bond, 1, true);
    bond.run(at(90));
    assert_eq!(bond.next_wakeup(), Some(at(190)));
    // The last one goes: the other does not wait for the rest of its delay.
    carrier(&mut bond, 2, false);
    bond.run(at(100));
    bond.run(at(150));
    assert_eq!(bond.active(), Some(OfPort(1)));
}

#[test]
fn what_comes_in_by_members() {
    use Admission::{Accept, Drop, DropIfMoved};
    let [one, two] = [OfPort(1), OfPort(2)];
    let of = |bond: &Bond| {
        [(one, false), (one, true), (two, false), (two, true)].map(|(port, to_many)| bond.admits(port, to_many))
    };
    let ab = bond(BondMode::ActiveBackup, &[1, 2]);
    assert_eq!(of(&ab), [Accept, Accept, Drop, Drop]);
    let mut slb = bond(BondMode::BalanceSlb, &[1, 2]);
    assert_eq!(of(&slb), [DropIfMoved, DropIfMoved, DropIfMoved, Drop]);
    slb.configure(BondSettings { all_members_active: true, ..slb.settings().clone() }, at(1));
    assert_eq!(of(&slb), [DropIfMoved; 4]);
    let mut tcp = bond(BondMode::BalanceTcp, &[1, 2]);
    assert_eq!((of(&tcp), tcp.leaves()), ([Drop; 4], Leaves::Nowhere));
    tcp.set_lacp(LacpStatus::Negotiated);
    assert_eq!((of(&tcp), tcp.leaves()), ([Accept; 4], Leaves::ByConnection));
    tcp.set_lacp(LacpStatus::Configured);
    assert_eq!((of(&tcp), tcp.leaves()), ([Drop; 4], Leaves::Nowhere));
    tcp.configure(BondSettings { lacp_fallback_ab: true, ..tcp.settings().clone() }, at(1));
    assert_eq!((of(&tcp), tcp.leaves()), ([Accept, Accept, Drop, Drop], Leaves::Active));
    assert_eq!(ab.admits(OfPort(3), false), Drop);
}

#[test]
fn members_that_are_no_devices_are_chosen_by_the_translation() {
    let mut bond = bond(BondMode::BalanceSlb, &[1, 2]);
    assert!(bond.table().is_some());
    bond.set_member(OfPort(3), MemberInfo { dp_port: None, ..info(3, true) });
    assert!(bond.table().is_none() && bond.run(at(1)).way);
    bond.remove_member(OfPort(3), at(1));
    assert!(bond.table().is_some() && bond.run(at(1)).way);
    assert_eq!(table(&bond), BTreeMap::from([(1, 128), (2, 128)]));
}

/// Load that lies with one member moves to the other; what cannot be split stays.
#[test]
fn load_is_moved_from_the_member_with_most() {
    let bonds = Arc::new(Bonds::new(1));
    let settings = BondSettings {
        mode: BondMode::BalanceSlb,
        rebalance_interval: Duration::from_secs(1),
        ..BondSettings::default()
    };
    let mut bond = Bond::new("bond0", settings, bonds.add(), [0; 6], at(0));
    [1, 2].into_iter().for_each(|number| bond.set_member(OfPort(number), info(number, true)));
    let of_one: Vec<u8> = bond.loads_of(OfPort(1)).map(|(bucket, _)| bucket).collect();
    bond.run(at(0));
    of_one[..4].iter().for_each(|&bucket| bond.buckets.add_load(bucket, 1_000_000));
    assert!(!bond.run(at(999)).members, "not before it is time");
    bond.run(at(1000));
    let load = |bond: &Bond, port| bond.loads_of(OfPort(port)).map(|(_, load)| load).sum::<u64>();
    // It is halved afterwards.
    assert_eq!((load(&bond, 1), load(&bond, 2)), (1_000_000, 1_000_000));
    let mut single = Bond::new("bond1", bond.settings().clone(), bonds.add(), [0; 6], at(0));
    [1, 2].into_iter().for_each(|number| single.set_member(OfPort(number), info(number, true)));
    let bucket = single.loads_of(OfPort(1)).next().unwrap().0;
    single.buckets.add_load(bucket, 8_000_000);
    single.run(at(1000));
    assert_eq!((load(&single, 1), load(&single, 2)), (4_000_000, 0));
}

#[test]
fn texts() {
    let mut bond = bond(BondMode::BalanceSlb, &[2, 1]);
    bond.configure(BondSettings { primary: Some("p9".into()), ..bond.settings().clone() }, at(0));
    carrier(&mut bond, 2, false);
    bond.run(at(250));
    let text = show::Show { bond: &bond, now: at(250) }.to_string();
    assert_eq!(
        text,
        "---- bond0 ----\nbond_mode: balance-slb\nbond may use recirculation: no, Recirc-ID : -1\nbond-hash-basis: 0\n\
         lb_output action: disabled, bond-id: -1\nall members active: false\nupdelay: 0 ms\ndowndelay: 0 ms\n\
         next rebalance: 750 ms\nlacp_status: off\nlacp_fallback_ab: false\n\
         active-backup primary: p9 (no such member)\nactive member mac: 02:00:00:00:00:01(p1)\n\
         \nmember p1: enabled\n  active member\n  may_enable: true\n\nmember p2: disabled\n  may_enable: false\n\n"
    );
    assert_eq!(show::Line(&bond).to_string(), "bond0\tbalance-slb\t0\tp1, p2\n");
}

/// What happens to a bond.
#[derive(Clone, Debug)]
enum Happens {
    Carrier(u32, bool),
    MayEnable(u32, bool),
    Device(u32, bool),
    Removed(u32),
    Lacp(u8),
    Active(u32),
    Migrated(u8, u32),
    Time(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    let member = || 1..6u32;
    prop_oneof![
        4 => (member(), any::<bool>()).prop_map(|(member, up)| Happens::Carrier(member, up)),
        1 => (member(), any::<bool>()).prop_map(|(member, may)| Happens::MayEnable(member, may)),
        1 => (member(), any::<bool>()).prop_map(|(member, has)| Happens::Device(member, has)),
        1 => member().prop_map(Happens::Removed),
        1 => (0..3u8).prop_map(Happens::Lacp),
        1 => member().prop_map(Happens::Active),
        1 => (any::<u8>(), member()).prop_map(|(bucket, member)| Happens::Migrated(bucket, member)),
        2 => (0..300u64).prop_map(Happens::Time),
    ]
}

proptest! {
    /// Whatever happens: packets go by members that are enabled, evenly unless an operator has moved some; the active one is enabled;
    /// and nothing is sent only while there is nobody to send.
    #[test]
    fn packets_go_by_enabled_members_alone(
        mode in prop::sample::select(BondMode::NAMES.map(|(_, mode)| mode).to_vec()),
        fallback: bool,
        delay in prop::sample::select(vec![0u64, 100]),
        all in prop::collection::vec(happens(), 1..60),
    ) {
        let mut bond = bond(mode, &[1, 2, 3]);
        let delay = Duration::from_millis(delay);
        bond.configure(
            BondSettings { updelay: delay, downdelay: delay, lacp_fallback_ab: fallback, ..bond.settings().clone() },
            at(0),
        );
        let (mut now, mut even) = (0, true);
        for what in all {
            match what {
                Happens::Carrier(member, up) => carrier(&mut bond, member, up),
                Happens::MayEnable(member, may) => bond.set_may_enable(OfPort(member), may),
                Happens::Device(member, has) => {
                    let info = info(member, true);
                    bond.set_member(OfPort(member), MemberInfo { dp_port: info.dp_port.filter(|_| has), ..info });
                }
                Happens::Removed(member) => bond.remove_member(OfPort(member), at(now)),
                Happens::Lacp(n) => bond.set_lacp([LacpStatus::Off, LacpStatus::Configured, LacpStatus::Negotiated][usize::from(n)]),
                Happens::Active(member) => {
                    if bond.members().any(|(port, state)| port == OfPort(member) && state.enabled) {
                        bond.set_active(OfPort(member));
                    }
                }
                Happens::Migrated(bucket, member) => {
                    if bond.members().any(|(port, state)| port == OfPort(member) && state.enabled) {
                        bond.migrate(bucket, OfPort(member));
                        even = false;
                    }
                }
                Happens::Time(millis) => now += millis,
            }
            bond.run(at(now));
            let enabled: BTreeSet<OfPort> =
                bond.members().filter(|(_, member)| member.enabled).map(|(port, _)| port).collect();
            prop_assert!(bond.active().is_none_or(|active| enabled.contains(&active)));
            prop_assert_eq!(bond.active().is_none(), enabled.is_empty());
            let all_are_devices = bond.members().all(|(_, member)| member.dp_port.is_some());
            prop_assert_eq!(bond.table().is_some(), bond.members().count() > 0 && all_are_devices);
            let Some(output) = bond.table() else { continue };
            for bucket in 0..=u8::MAX {
                let port = output.member(bucket);
                prop_assert!(port.is_none_or(|port| enabled.contains(&OfPort(port.0))));
                prop_assert_eq!(port.is_none(), enabled.is_empty() || bond.leaves() == Leaves::Nowhere);
            }
            let counts = table(&bond);
            if even && !matches!(bond.leaves(), Leaves::Active | Leaves::Nowhere) && !enabled.is_empty() {
                let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
                prop_assert!(most - least <= 1 && counts.len() == enabled.len(), "{counts:?}");
            }
        }
    }
}
