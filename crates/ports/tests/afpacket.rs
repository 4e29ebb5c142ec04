//! AF_PACKET ports between network namespaces.

mod common;

use std::time::{Duration, Instant};

use common::{Namespace, Wire, eventually, iperf, leave_to_own_namespace, receive_until, run, wait};
use packet::{Batch, Packet, Time};
use ports::{Env, PortSpec, registry};

fn open(name: &str, options: &[(&str, &str)]) -> std::sync::Arc<dyn ports::Port> {
    registry::open(&PortSpec::new(name, "system").with(options), &Env::default()).unwrap()
}

/// A broadcast frame of a test ethertype with `content`.
fn frame(content: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9, 0x88, 0xb5], content, &[0; 46]].concat()
}

#[test]
fn ping_and_tcp_with_offloads_left_on() {
    leave_to_own_namespace();
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    a.veth("va", "10.77.0.1/24");
    b.veth("vb", "10.77.0.2/24");
    let (pa, pb) = (open("va", &[]), open("vb", &[]));
    assert_eq!((pa.kind(), pa.offloads().tso4), ("afpacket", true));
    let wire = Wire::new(pa.clone(), pb.clone());
    a.run("ping -c 3 -i 0.2 -W 2 10.77.0.2");
    a.run("ping -c 2 -i 0.2 -W 2 -s 4000 10.77.0.2");
    let _server = b.start("iperf3 -s");
    let rate = iperf(&format!("ip netns exec {} ", a.name), "10.77.0.2");
    println!(
        "TCP with offloads between namespaces: {rate} Mbit/s, {} GSO frames",
        wire.large.load(std::sync::atomic::Ordering::Relaxed)
    );
    assert!(rate > 50.0, "{rate} Mbit/s");
    assert!(wire.large.load(std::sync::atomic::Ordering::Relaxed) > 10, "frames passed uncut");
    wire.stop();
    for port in [pa, pb] {
        let stats = port.stats();
        assert_eq!((stats.rx_errors, stats.tx_errors), (0, 0), "{stats:?}");
    }
}

#[test]
fn vlan_tags_survive() {
    leave_to_own_namespace();
    run("ip link add v0 type veth peer name v1");
    run("ip link set v0 up; ip link set v1 up");
    // By a plain socket, and by a ring.
    for options in [&[][..], &[("n_rxq_desc", "1024")]] {
        let (from, to) = (open("v0", &[]), open("v1", options));
        let (mut tx, mut rx) = (from.tx_queue(0).unwrap(), to.take_rx_queues());
        let tags: [&[u8]; 4] = [&[0x81, 0, 0x60, 7], &[0x88, 0xa8, 0, 9], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 8], &[]];
        for (n, tags) in tags.iter().enumerate() {
            // The kernel takes the outer tag out of what it receives, and tells it beside the frame.
            let sent = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], tags, &[0x88, 0xb5, n as u8], &[0xee; 1400]].concat();
            let mut batch: Batch = [Packet::from_slice(&sent)].into_iter().collect();
            assert_eq!(tx.transmit(&mut batch, Time(0)), 1);
            let received = receive_until(&mut *rx[0], |f| f.ends_with(&[0xee; 1400]));
            assert!(
                received.as_ref() == Some(&sent),
                "{:?} instead of {:?}",
                received.map(|f| f[..30].to_vec()),
                &sent[..30]
            );
        }
    }
}

#[test]
fn own_frames_do_not_come_back_and_queues_share_the_flows() {
    leave_to_own_namespace();
    run("ip link add v0 type veth peer name v1");
    run("ip link set v0 up; ip link set v1 up");
    let (from, to) = (open("v0", &[]), open("v1", &[("n_rxq", "2"), ("n_rxq_desc", "2048")]));
    let (mut tx, mut back) = (from.tx_queue(0).unwrap(), from.take_rx_queues());
    let mut rx = to.take_rx_queues();
    assert_eq!(rx.len(), 2);
    let mut batch = Batch::new();
    for flow in 0..500u16 {
        // UDP from as many ports: the kernel spreads flows by their hash.
        let mut f = vec![0xff; 12];
        f.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend([&flow.to_be_bytes()[..], &[0, 9, 0, 26, 0, 0], &[0; 18]].concat());
        batch.push(Packet::from_slice(&f));
        if batch.is_full() || flow == 499 {
            tx.transmit(&mut batch, Time(0));
        }
    }
    let mut seen = [vec![], vec![]];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) && seen[0].len() + seen[1].len() < 500 {
        for (queue, seen) in rx.iter_mut().zip(&mut seen) {
            queue.receive(&mut batch, Time(0));
            let flows = batch.drain(..).filter(|p| p.data()[23] == 17 && p.data()[..6] == [0xff; 6] && p.len() == 60);
            seen.extend(flows.map(|p| u16::from_be_bytes([p.data()[34], p.data()[35]])));
        }
    }
    assert!(seen.iter().all(|s| s.len() > 50), "both queues get flows: {} {}", seen[0].len(), seen[1].len());
    let mut all = seen.concat();
    all.sort();
    assert_eq!(all, (0..500).collect::<Vec<_>>(), "each frame once");
    let outgoing = receive_until(&mut *back[0], |f| f[23] == 17 && f.len() == 60 && f[26..30] == [10, 0, 0, 1]);
    assert_eq!(outgoing, None);
    assert_eq!(from.stats().tx_packets, 500);
    assert!(to.stats().rx_packets >= 500);
}

#[test]
fn frames_longer_than_the_mtu_are_dropped_and_counted() {
    leave_to_own_namespace();
    run("ip link add v0 type veth peer name v1");
    run("ip link set v0 up; ip link set v1 up");
    let port = open("v0", &[]);
    let mut tx = port.tx_queue(0).unwrap();
    let mut batch: Batch = [1515, 1514].into_iter().map(|n| Packet::from_slice(&vec![0xff; n])).collect();
    assert_eq!(tx.transmit(&mut batch, Time(0)), 1);
    assert_eq!((port.stats().tx_dropped, port.stats().tx_packets), (1, 1));
    run("ip link set v1 mtu 3000");
    port.set_mtu(3000).unwrap();
    batch.push(Packet::from_slice(&[0xff; 3014]));
    assert_eq!((tx.transmit(&mut batch, Time(0)), port.mtu()), (1, 3000));
}

#[test]
fn interface_goes_down_and_away_under_a_port() {
    leave_to_own_namespace();
    run("ip link add v0 type veth peer name v1");
    run("ip link set v0 up; ip link set v1 up");
    let (port, peer) = (open("v0", &[]), open("v1", &[]));
    let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
    let mut peer_tx = peer.tx_queue(0).unwrap();
    let send = |tx: &mut Box<dyn ports::TxQueue>, content: &[u8]| {
        let mut batch: Batch = [Packet::from_slice(&frame(content))].into_iter().collect();
        tx.transmit(&mut batch, Time(0))
    };
    assert!(port.link().up);
    port.set_admin_up(false).unwrap();
    assert_eq!((port.link().up, port.link().admin_up, port.link().resets), (false, false, 1));
    assert_eq!(send(&mut tx, b"down"), 0);
    assert_eq!(port.stats().tx_dropped, 1);
    // The kernel's own IPv6 messages may have come before.
    let becomes_empty = |rx: &mut Box<dyn ports::RxQueue>, seconds: u64| {
        (0..100).any(|_| {
            let mut batch = Batch::new();
            rx.receive(&mut batch, Time(seconds * 1_000_000_000)) == 0
        })
    };
    // What wakes once is taken up, also where it comes a moment later; it does not wake again and again.
    let becomes_quiet = |rx: &mut Box<dyn ports::RxQueue>, seconds: u64| {
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            becomes_empty(rx, seconds) && !wait(&[rx.wait_fd().unwrap()], Duration::ZERO)
        })
    };
    assert!(becomes_quiet(&mut rx[0], 1), "no busy loop while the interface is down");
    assert!(port.stats().rx_errors > 0);

    port.set_admin_up(true).unwrap();
    eventually("the link", || port.link().up && peer.link().up);
    assert_eq!(send(&mut peer_tx, b"up again"), 1);
    assert!(receive_until(&mut *rx[0], |f| f.len() > 22 && &f[14..22] == b"up again").is_some());

    run("ip link del v0");
    assert_eq!(send(&mut tx, b"gone"), 0);
    assert_eq!((port.link().up, port.link().admin_up), (false, false));
    assert!(becomes_quiet(&mut rx[0], 2), "no busy loop after the interface is gone");
    let missing = registry::open(&PortSpec::new("v0", "system"), &Env::default()).unwrap_err();
    assert!(missing.to_string().contains("No such device"), "{missing}");
    run("ip link add v0 type veth peer name v1");
    assert!(port.is_gone(), "another interface of its name is not this one");
    assert!(!open("v0", &[]).is_gone());
}

/// A port that is given to the switch has no ring, whose memory a thousand ports would not have. A busy one gets it
/// without losing, repeating or overtaking a frame. What the kernel itself had no room for between the two ends of the
/// veth, which all veths of a core share, it says.
#[test]
fn a_ring_comes_with_traffic_and_costs_no_frame() {
    leave_to_own_namespace();
    run("ip link add v0 type veth peer name v1");
    run("ip link set v0 up; ip link set v1 up");
    let (from, to) = (open("v0", &[]), open("v1", &[]));
    let (mut tx, mut rx) = (from.tx_queue(0).unwrap(), to.take_rx_queues());
    let ring = |port: &dyn ports::Port| port.status().into_iter().find(|(name, _)| *name == "rx-ring").unwrap().1;
    assert_eq!(ring(&*to), "none");
    let (mut sent, mut seen, mut left) = (0u32, Vec::new(), None);
    let mut last = Instant::now();
    let (mut batch, start) = (Batch::new(), Instant::now());
    let descriptor = rx[0].wait_fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
    while left.is_none_or(|left| seen.len() < sent as usize && start.elapsed() < left) {
        // No more on their way than the system's backlog takes, unless they are lost.
        let way = sent - seen.last().map_or(0, |n| n + 1);
        if left.is_none() && (way < 500 || last.elapsed() > Duration::from_millis(100)) {
            last = Instant::now();
            batch.extend((sent..sent + 8).map(|n| Packet::from_slice(&frame(&n.to_be_bytes()))));
            sent += tx.transmit(&mut batch, Time(0)) as u32;
        }
        let now = Time(1_000_000_000) + start.elapsed();
        rx[0].renew(now);
        rx[0].receive(&mut batch, now);
        let numbers = batch.drain(..).filter(|p| p.data()[12..14] == [0x88, 0xb5]);
        seen.extend(numbers.map(|p| u32::from_be_bytes(p.data()[14..18].try_into().unwrap())));
        // The old socket is gone when there is one descriptor to wait for again.
        let grown = rx[0].wait_fd().is_some_and(|fd| Some(std::os::fd::AsRawFd::as_raw_fd(&fd)) != descriptor);
        if left.is_none() && (grown || start.elapsed() > Duration::from_secs(20)) {
            left = Some(start.elapsed() + Duration::from_secs(2));
        }
    }
    assert_eq!(ring(&*to), "TPACKET_V2");
    assert!(sent > 1000);
    assert!(seen.is_sorted_by(|a, b| a < b), "each frame at most once, in order");
    let link = run("ip -s link show v0");
    let no_room: usize = link.lines().last().unwrap().split_whitespace().nth(3).unwrap().parse().unwrap();
    let lost = sent as usize - seen.len();
    assert!(lost <= no_room, "{lost} of {sent} lost, {no_room} of them by the kernel");
    assert_eq!(to.stats().rx_dropped, 0);
}
