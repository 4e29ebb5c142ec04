//! Packets for a bridge that snoops on multicast. It never has more memberships than it may, and what it says of groups is what it lists.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use packet::Time;
use protocols::mcast::{Destination, PortSettings, Settings, Snooping};

fuzz_target!(|data: &[u8]| {
    let settings = Settings { table_size: 10, flood_unregistered: false, ageing_time: Duration::from_secs(15) };
    let mut snooping = Snooping::new(settings);
    snooping.configure_port(3, PortSettings { flood: true, flood_reports: false });
    let (mut rest, mut now) = (data, Time(0));
    while let [port, seconds, length, more @ ..] = rest {
        let (packet, behind) = more.split_at(usize::from(*length).min(more.len()));
        let _ = snooping.receive(now, u16::from(port >> 6), u32::from(port % 4), packet);
        now = now + Duration::from_secs(u64::from(seconds % 8));
        snooping.expire(now, usize::MAX);
        rest = behind;
    }
    let members = snooping.members();
    assert!(members.len() <= 160);
    for member in &members {
        let Destination::Ports(ports) = snooping.destination(member.group.vlan, member.group.address) else {
            panic!("a group with members goes to all ports")
        };
        let has = |wanted| ports.iter().any(|(port, _)| *port == wanted);
        assert!(has(member.port) && has(3));
    }
    let lines = snooping.entries().into_iter().map(|entry| entry.show(now, |port| port.to_string()));
    assert!(lines.filter(|line| !line.is_empty()).count() >= members.len());
});
