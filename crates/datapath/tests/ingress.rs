//! Optional stages before classification.

mod common;

use std::sync::Arc;

use common::{MemPort, by_hand, flow, udp};
use datapath::pipeline::ingress::{Filter, Ingress};
use datapath::{Action, Config, DropReason};
use packet::{Packet, Time};

/// Refuses frames from odd addresses.
struct Even;

impl Filter for Even {
    fn refused(&mut self, packets: &[Packet], _: Time) -> u32 {
        packets.iter().enumerate().fold(0, |set, (i, packet)| set | u32::from(packet.data()[29] & 1) << i)
    }
}

#[test]
fn what_a_filter_refuses_is_never_classified() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let id = dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let send = |sources: std::ops::Range<u32>| {
        sources.for_each(|n| p[0].1.give(&udp(n, 2, 3, 4)));
        dp.poll();
        p[1].1.take().iter().map(|frame| frame[29]).collect::<Vec<u8>>()
    };
    assert_eq!(send(0..4), [0, 1, 2, 3]);
    dp.set_ingress(p[0].0, |_| Some(Box::new(Ingress { filter: Some(Box::new(Even)), ..Ingress::default() }))).unwrap();
    assert_eq!(send(0..32), (0..32).step_by(2).collect::<Vec<u8>>());
    assert_eq!(send(5..6), [0; 0], "the whole batch");
    let stats = dp.stats();
    assert_eq!(dp.flow_stats(id).unwrap().packets, 20);
    assert_eq!(stats.workers[0].drops.get(DropReason::IngressFilter), 17);
    let (_, of_port) = stats.ports.iter().find(|(no, _)| *no == p[0].0).unwrap();
    assert_eq!(of_port.get(DropReason::IngressFilter), 17);
    let account = dp.account();
    assert_eq!(account.came(), account.went(), "{account}");
    dp.set_ingress(p[0].0, |_| None).unwrap();
    assert_eq!(send(0..4), [0, 1, 2, 3]);
    assert!(dp.set_ingress(datapath::PortNo(99), |_| None).is_err());
}

#[test]
fn queues_that_come_into_being_have_their_stages_before_they_receive() {
    let (dp, _, p) = by_hand(Config::default(), 1);
    dp.set_ingress_source(Arc::new(|port, queue| {
        assert_eq!(queue, 0);
        (port.name() == "filtered").then(|| Box::new(Ingress { filter: Some(Box::new(Even)), ..Ingress::default() }))
    }));
    let [filtered, other] = ["filtered", "other"].map(|name| {
        let port = MemPort::new(name);
        (dp.add_port(port.clone()).unwrap(), port)
    });
    for (from, expected) in [(&filtered, vec![2, 4]), (&other, vec![1, 2, 3, 4])] {
        dp.install(flow(from.0, 0, &[], vec![Action::Output(p[0].0)])).unwrap();
        (1..5).for_each(|n| from.1.give(&udp(n, 2, 3, 4)));
        dp.poll();
        assert_eq!(p[0].1.take().iter().map(|frame| frame[29]).collect::<Vec<u8>>(), expected);
    }
}
