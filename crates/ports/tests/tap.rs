//! TAP ports.

mod common;

use common::{Namespace, Wire, eventually, iperf, leave_to_own_namespace, receive_until, run};
use packet::{Batch, Packet, Time};
use ports::{Env, Mac, PortSpec, registry};

const MAC: Mac = [2, 0x77, 0, 0, 0, 1];

fn spec(name: &str) -> PortSpec {
    PortSpec { mac: Some(MAC), ..PortSpec::new(name, "internal") }
}

#[test]
fn answers_a_raw_frame() {
    leave_to_own_namespace();
    let port = registry::open(&PortSpec { mtu: Some(1400), ..spec("br-int") }, &Env::default()).unwrap();
    assert_eq!((port.kind(), port.mac(), port.mtu()), ("internal", MAC, 1400));
    assert!(!port.link().admin_up && port.ifindex().is_some());
    run("ip addr add 10.77.1.1/24 dev br-int; ip link set br-int up");
    let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
    let mut request = vec![0xff; 6];
    request.extend([2, 0x77, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend([2, 0x77, 0, 0, 0, 2, 10, 77, 1, 2, 0, 0, 0, 0, 0, 0, 10, 77, 1, 1]);
    let mut batch: Batch = [Packet::from_slice(&request), Packet::from_slice(&[0; 1415])].into_iter().collect();
    assert_eq!(tx.transmit(&mut batch, Time(0)), 1, "the second is longer than the MTU");
    let reply = receive_until(&mut *rx[0], |f| f[12..14] == [8, 6] && f[20..22] == [0, 2]).expect("an ARP reply");
    assert_eq!(
        (&reply[..6], &reply[22..28], &reply[28..32]),
        (&[2, 0x77, 0, 0, 0, 2][..], &MAC[..], &[10, 77, 1, 1][..])
    );
    let stats = port.stats();
    assert_eq!((stats.tx_packets, stats.tx_dropped, stats.tx_errors), (1, 1, 0));
    drop((rx, tx));
    let other = registry::open(&spec("br-int"), &Env::default()).unwrap_err().to_string();
    assert!(other.contains("another process holds"), "{other}");
    drop(port);
    // Another test that starts a process holds the descriptor until that process runs.
    eventually("the device is gone", || run("ip -o link").lines().all(|line| !line.contains("br-int")));
}

#[test]
fn carries_tcp_with_offloads_left_on() {
    leave_to_own_namespace();
    let b = Namespace::new("b");
    b.veth("vb", "10.77.1.2/24");
    let tap = registry::open(&spec("br0").with(&[("n_rxq", "2")]), &Env::default()).unwrap();
    run("ip addr add 10.77.1.1/24 dev br0; ip link set br0 up");
    let veth = registry::open(&PortSpec::new("vb", "system"), &Env::default()).unwrap();
    let wire = Wire::new(tap.clone(), veth);
    run("ping -c 2 -i 0.2 -W 2 10.77.1.2");
    let _server = b.start("iperf3 -s");
    let out = iperf("", "10.77.1.2");
    println!("TCP from a tap to a veth: {out} Mbit/s");
    assert!(wire.large.load(std::sync::atomic::Ordering::Relaxed) > 10, "frames passed uncut");
    wire.stop();
    let stats = tap.stats();
    assert_eq!((stats.rx_errors, stats.tx_errors), (0, 0), "{stats:?}");
}

#[test]
fn a_device_that_was_given_to_a_container_is_still_known() {
    leave_to_own_namespace();
    let b = Namespace::new("b");
    let tap = registry::open(&spec("br0"), &Env::default()).unwrap();
    run(&format!("ip link set br0 netns {}", b.name));
    assert!(!tap.link().admin_up, "the move takes it down");
    b.run("ip link set br0 name eth0");
    b.run("ip link set eth0 up mtu 1300");
    assert!(tap.link().admin_up);
    assert_eq!((tap.mtu(), tap.mac()), (1300, MAC));
    tap.set_mtu(1280).unwrap();
    b.run("ip link show eth0 | grep -q 'mtu 1280'");
}

#[test]
fn device_deleted_under_a_port() {
    leave_to_own_namespace();
    let port = registry::open(&spec("tap0"), &Env::default()).unwrap();
    let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
    run("ip link del tap0");
    let mut batch: Batch = [Packet::from_slice(&[0; 60])].into_iter().collect();
    assert_eq!(tx.transmit(&mut batch, Time(0)), 0);
    assert_eq!(rx[0].receive(&mut batch, Time(0)), 0);
    assert!(rx[0].wait_fd().is_none(), "its descriptor would wake the worker for ever");
    let stats = port.stats();
    assert_eq!((stats.tx_dropped, stats.rx_errors, port.link().up), (1, 1, false));
    assert!(port.is_gone() && port.ifindex().is_none());
}

#[test]
fn names_that_are_taken_or_impossible() {
    leave_to_own_namespace();
    run("ip link add dummy0 type veth peer name other0");
    let error = |name: &str| registry::open(&spec(name), &Env::default()).unwrap_err().to_string();
    assert!(error("dummy0").contains("an interface of this name already"), "{}", error("dummy0"));
    assert!(error("a-name-that-is-too-long").contains("1 to 15 bytes"));
}
