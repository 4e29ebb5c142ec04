//! Each type of port says why it does not send a packet, and its reasons make up `tx_dropped` and `tx_errors`.

mod common;

use std::sync::Arc;

use common::{leave_to_own_namespace, run};
use packet::{Batch, Offload, Packet, Time};
use ports::TxDrop::{Down, Malformed, NotConnected, QueueFull, TooLong, TooShort};
use ports::{Env, Port, PortSpec, TxDrop, TxQueue, registry};

fn open(name: &str, kind: &str, options: &[(&str, &str)]) -> Arc<dyn Port> {
    registry::open(&PortSpec::new(name, kind).with(options), &Env::default()).unwrap()
}

/// A frame that asks to be cut into segments and has no headers for that.
fn malformed() -> Packet {
    let mut packet = Packet::from_slice(&[0; 200]);
    *packet.offload_mut() = Offload { gso_type: Offload::GSO_TCPV4, gso_size: 100, ..Offload::NONE };
    packet
}

/// Sends packets, none of which is taken, and checks the reasons.
fn refuses(port: &Arc<dyn Port>, packets: Vec<Packet>, reasons: &[(TxDrop, u64)]) {
    refuses_by(&mut *port.tx_queue(0).unwrap(), port, packets, reasons);
}

/// The same by a queue that there is already.
fn refuses_by(queue: &mut dyn TxQueue, port: &Arc<dyn Port>, packets: Vec<Packet>, reasons: &[(TxDrop, u64)]) {
    let before = port.tx_drops();
    let mut batch: Batch = packets.into_iter().collect();
    assert_eq!(queue.transmit(&mut batch, Time(0)), 0);
    assert!(batch.is_empty());
    let after = port.tx_drops();
    let raised: Vec<_> = TxDrop::ALL.iter().map(|&reason| (reason, after.get(reason) - before.get(reason))).collect();
    let raised: Vec<_> = raised.into_iter().filter(|(_, n)| *n > 0).collect();
    assert_eq!(raised, reasons, "{}", port.kind());
}

/// Everything that the port has not sent has a reason, which it shows.
fn adds_up(port: &Arc<dyn Port>) {
    let (stats, drops) = (port.stats(), port.tx_drops());
    assert!(drops.total() > 0);
    assert_eq!(
        (stats.tx_errors, stats.tx_dropped),
        (drops.errors(), drops.total() - drops.errors()),
        "{}",
        port.kind()
    );
    let shown = port.custom_stats();
    assert!(drops.named().iter().all(|reason| shown.contains(reason)), "{shown:?}");
}

fn of(len: usize) -> Packet {
    Packet::from_slice(&vec![0; len])
}

#[test]
fn null_and_tunnel() {
    let null = open("n0", "null", &[]);
    null.set_admin_up(false).unwrap();
    refuses(&null, vec![of(60), of(60)], &[(Down, 2)]);
    adds_up(&null);
    let tunnel = open("t0", "vxlan", &[("remote_ip", "192.0.2.1")]);
    refuses(&tunnel, vec![of(60)], &[(NotConnected, 1)]);
    adds_up(&tunnel);
}

/// Its `statistics` are those of OVS's dummy ports, which have no such counters: the reasons are only asked for.
#[test]
fn dummy() {
    let env = Env::default();
    let port = registry::open(&PortSpec::new("d0", "dummy"), &env).unwrap();
    let reasons = [(TooLong, 1), (TooShort, 1), (Malformed, 1)];
    refuses(&port, vec![of(1515), of(13), malformed()], &reasons);
    port.set_admin_up(false).unwrap();
    refuses(&port, vec![of(60)], &[(Down, 1)]);
    let (stats, drops) = (env.dummies.find("d0").unwrap().counted(), port.tx_drops());
    assert_eq!((stats.tx_dropped, stats.tx_errors, drops.total()), (3, 1, 4));
    assert_eq!(port.custom_stats().iter().filter(|(name, _)| name.contains("drops")).count(), 0);
}

#[test]
fn pcap() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.pcap");
    let port = open("p0", "pcap", &[("tx_pcap", path.to_str().unwrap())]);
    refuses(&port, vec![malformed()], &[(Malformed, 1)]);
    port.set_admin_up(false).unwrap();
    refuses(&port, vec![of(60)], &[(Down, 1)]);
    adds_up(&port);
    let full = open("p1", "pcap", &[("rx_pcap", path.to_str().unwrap())]);
    refuses(&full, vec![of(60)], &[(NotConnected, 1)]);
    adds_up(&full);
}

#[test]
fn afpacket() {
    leave_to_own_namespace();
    run("ip link add v0 type veth peer name v1");
    run("ip link set v0 up; ip link set v1 up");
    let port = open("v0", "system", &[]);
    assert_eq!(port.kind(), "afpacket");
    refuses(&port, vec![of(1515), of(13), malformed()], &[(TooLong, 1), (TooShort, 1), (Malformed, 1)]);
    // A queueing discipline without room: the kernel has no buffer for the frame.
    run("tc qdisc add dev v0 root bfifo limit 1");
    refuses(&port, vec![of(60), of(60)], &[(QueueFull, 2)]);
    run("tc qdisc del dev v0 root");
    run("ip link set v0 down");
    refuses(&port, vec![of(60), of(60)], &[(Down, 2)]);
    let mut queue = port.tx_queue(0).unwrap();
    run("ip link del v0");
    refuses_by(&mut *queue, &port, vec![of(60)], &[(Down, 1)]);
    adds_up(&port);
    assert_eq!(port.stats().tx_packets, 0);
}

#[test]
fn tap() {
    leave_to_own_namespace();
    let port = open("tap0", "tap", &[]);
    refuses(&port, vec![of(60)], &[(Down, 1)]);
    run("ip link set tap0 up");
    refuses(&port, vec![of(1515), of(13), malformed()], &[(TooLong, 1), (TooShort, 1), (Malformed, 1)]);
    run("ip link del tap0");
    refuses(&port, vec![of(60)], &[(Down, 1)]);
    adds_up(&port);
    assert_eq!(port.stats().tx_packets, 0);
}
