//! AF_XDP ports on one end of a veth pair, with an AF_PACKET socket on the other.

#![allow(unsafe_code)]

mod lab;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::{Lab, run};
use packet::{Batch, Offload, Packet, Time};
use ports::afxdp::{self, Mode, Settings};
use ports::early_drop::{DropProgram, Instruction};
use ports::link::Interface;
use ports::{Env, Error, Port, PortSpec, RxQueue, TxQueue, registry};

const NOW: Time = Time(0);

/// How long to wait for what has to happen: machines that run tests are busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// An AF_PACKET socket for IPv4 frames.
struct Peer(i32);

impl Peer {
    fn open(interface: &str) -> Peer {
        let index = Interface::open(interface).unwrap().index();
        let protocol = (libc::ETH_P_IP as u16).to_be();
        // SAFETY: the calls get the address and size of what they read.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol.into());
            assert!(fd >= 0);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            (address.sll_family, address.sll_protocol) = (libc::AF_PACKET as u16, protocol);
            address.sll_ifindex = index as i32;
            assert_eq!(libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32), 0);
            let timeout = libc::timeval { tv_sec: 0, tv_usec: 200_000 };
            let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
            libc::setsockopt(fd, level, option, (&raw const timeout).cast(), size_of_val(&timeout) as u32);
            let size: i32 = 8 << 20;
            libc::setsockopt(fd, level, libc::SO_RCVBUFFORCE, (&raw const size).cast(), 4);
            Peer(fd)
        }
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: address and length are those of the frame.
        let sent = unsafe { libc::send(self.0, frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The next frame.
    fn receive(&self) -> Option<Vec<u8>> {
        let start = Instant::now();
        std::iter::repeat_with(|| self.receive_soon())
            .take_while(|frame| frame.is_some() || start.elapsed() < PATIENCE)
            .find_map(|frame| frame)
    }

    /// The next frame, or nothing after 200 ms.
    fn receive_soon(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65536];
        // SAFETY: address and length are those of the buffer.
        let len = unsafe { libc::recv(self.0, frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(len).ok()?);
        Some(frame)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(self.0) };
    }
}

/// A UDP frame of `len` bytes with a number in its ports and payload.
fn frame(number: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![number as u8; len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let ip_len = (len as u16 - 14).to_be_bytes();
    frame[14..34]
        .copy_from_slice(&[0x45, 0, ip_len[0], ip_len[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = ports::offload::checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame[34..36].copy_from_slice(&number.to_be_bytes());
    frame[36..38].copy_from_slice(&[0, 9]);
    frame[38..40].copy_from_slice(&(len as u16 - 34).to_be_bytes());
    frame[40..42].copy_from_slice(&[0, 0]);
    frame
}

fn settings(mode: Mode) -> Settings {
    Settings { mode, ..Settings::default() }
}

/// Receives until there are `want` packets or time is up.
fn gather(rx: &mut [Box<dyn RxQueue>], want: usize) -> Vec<Packet> {
    let (start, mut packets) = (Instant::now(), Vec::new());
    while packets.len() < want && start.elapsed() < PATIENCE {
        let mut batch = Batch::new();
        let n: usize = rx.iter_mut().map(|queue| queue.receive(&mut batch, NOW)).sum();
        assert_eq!(n, batch.len());
        packets.extend(batch);
        if n == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    packets
}

fn send_all(tx: &mut Box<dyn TxQueue>, packets: impl IntoIterator<Item = Packet>) -> usize {
    let (mut sent, mut batch) = (0, Batch::new());
    for packet in packets {
        batch.push(packet);
        if batch.is_full() {
            sent += tx.transmit(&mut batch, NOW);
            assert!(batch.is_empty());
        }
    }
    sent + tx.transmit(&mut batch, NOW)
}

fn mode_of(port: &Arc<dyn Port>) -> String {
    port.status().into_iter().find(|(name, _)| *name == "xdp-mode").unwrap().1
}

fn xdp_program(interface: &str) -> u32 {
    Interface::open(interface).unwrap().facts().unwrap().xdp.program
}

fn echo(lab: &Lab, mode: Mode, expected: &str) {
    let pool = lab.pool(4096);
    let port = afxdp::open_with("a", &settings(mode), pool).unwrap();
    assert_eq!(mode_of(&port), expected);
    let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
    let peer = Peer::open("b");
    let frames: Vec<_> = (0..200).map(|i| frame(i, 60 + usize::from(i) * 7)).collect();
    let mut expected_bytes = 0;
    // More rounds than there are descriptors, so that rings wrap and chunks come round.
    for _ in 0..12 {
        frames.iter().for_each(|frame| peer.send(frame));
        expected_bytes += frames.iter().map(Vec::len).sum::<usize>();
        let packets = gather(&mut rx, frames.len());
        assert_eq!(packets.len(), frames.len());
        for (packet, frame) in packets.iter().zip(&frames) {
            assert!(packet.data() == frame, "received otherwise than sent: {packet:?}");
            assert!(packet.headroom() >= 192 && std::ptr::eq(packet.memory(), pool.memory()));
        }
        // Every other one goes out as a copy.
        let back = packets.into_iter().enumerate().map(|(i, packet)| match i % 2 {
            0 => packet,
            _ => Packet::from_slice(packet.data()),
        });
        assert_eq!(send_all(&mut tx, back), frames.len());
        for frame in &frames {
            assert!(peer.receive().as_ref() == Some(frame), "echoed otherwise than sent");
        }
    }
    let stats = port.stats();
    assert_eq!((stats.rx_packets, stats.tx_packets), (2400, 2400));
    assert_eq!((stats.rx_bytes, stats.tx_bytes), (expected_bytes as u64, expected_bytes as u64));
    assert_eq!((stats.rx_dropped, stats.tx_dropped, stats.rx_errors, stats.tx_errors), (0, 0, 0, 0));
    assert_ne!(xdp_program("a"), 0);
    drop((port, rx, tx));
    assert_eq!(xdp_program("a"), 0, "the program comes off with the port");
    assert_eq!(pool.available(), 4096, "all chunks come back");
}

#[test]
fn echo_in_generic_mode() {
    let lab = Lab::new("generic", "");
    echo(&lab, Mode::Generic, "generic");
}

#[test]
fn echo_in_native_mode() {
    let lab = Lab::new("native", "");
    echo(&lab, Mode::Native, "native");
}

#[test]
fn best_effort_takes_what_there_is() {
    let lab = Lab::new("best", "");
    // veth has native XDP, but no zero-copy.
    echo(&lab, Mode::BestEffort, "native");
    let error = afxdp::open_with("a", &settings(Mode::NativeZeroCopy), lab.pool(2048)).unwrap_err().to_string();
    assert!(error.contains("use xdp-mode=best-effort"), "{error}");
    assert_eq!(xdp_program("a"), 0);
    // An MTU beyond a page is too much for the driver's XDP.
    run("ip link set dev a mtu 9000");
    run("ip link set dev b mtu 9000");
    echo(&lab, Mode::BestEffort, "generic");
}

#[test]
fn frames_spread_over_queues() {
    let lab = Lab::new("queues", "numrxqueues 4 numtxqueues 4");
    for mode in [Mode::Native, Mode::Generic] {
        let pool = lab.pool(8192);
        let port = afxdp::open_with("a", &settings(mode), pool).unwrap();
        let mut rx = port.take_rx_queues();
        assert_eq!((rx.len(), port.max_tx_queues()), (4, 4));
        let peer = Peer::open("b");
        (0..400).for_each(|i| peer.send(&frame(i, 100)));
        let (start, mut counts) = (Instant::now(), [0; 4]);
        while counts.iter().sum::<usize>() < 400 && start.elapsed() < PATIENCE {
            for (queue, count) in rx.iter_mut().zip(&mut counts) {
                *count += queue.receive(&mut Batch::new(), NOW);
            }
        }
        assert_eq!(counts.iter().sum::<usize>(), 400, "{counts:?}");
        assert!(counts.iter().filter(|&&count| count > 0).count() > 1, "{counts:?}");
        let mut tx: Vec<_> = (0..4).map(|index| port.tx_queue(index).unwrap()).collect();
        for (index, queue) in tx.iter_mut().enumerate() {
            assert_eq!(send_all(queue, [Packet::from_slice(&frame(index as u16, 64))]), 1);
            assert_eq!(peer.receive().unwrap(), frame(index as u16, 64));
        }
        // A queue has one owner, and can be made again after it.
        assert!(port.tx_queue(3).is_err() && port.tx_queue(4).is_err());
        drop(tx.pop());
        assert_eq!(send_all(&mut port.tx_queue(3).unwrap(), [Packet::from_slice(&frame(9, 64))]), 1);
    }
    // Fewer queues than there are leave the others to the kernel.
    let few = Settings { rx_queues: Some(2), ..Settings::default() };
    assert_eq!(afxdp::open_with("a", &few, lab.pool(4096)).unwrap().take_rx_queues().len(), 2);
    let many = Settings { rx_queues: Some(5), ..Settings::default() };
    let error = afxdp::open_with("a", &many, lab.pool(4096)).unwrap_err();
    assert!(matches!(&error, Error::Option { option, .. } if option == "n_rxq"), "{error}");
}

#[test]
fn a_frame_moves_between_ports_without_a_copy() {
    let lab = Lab::new("move", "");
    run("ip link add name c type veth peer name d");
    run("ip link set dev c up");
    run("ip link set dev d up");
    let pool = lab.pool(8192);
    let first = afxdp::open_with("a", &settings(Mode::Native), pool).unwrap();
    let second = afxdp::open_with("c", &settings(Mode::Generic), pool).unwrap();
    let (mut rx, mut tx) = (first.take_rx_queues(), second.tx_queue(0).unwrap());
    let (b, d) = (Peer::open("b"), Peer::open("d"));
    // Often enough for the rings to wrap.
    for i in 0..3000 {
        b.send(&frame(i, 128));
        assert_eq!(send_all(&mut tx, gather(&mut rx, 1)), 1);
        assert_eq!(d.receive().unwrap(), frame(i, 128));
    }
    // With no chunk left for a copy.
    b.send(&frame(1, 128));
    let packets = gather(&mut rx, 1);
    tx.housekeep(NOW);
    let hoard: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
    assert_eq!((send_all(&mut tx, packets), pool.available()), (1, 0));
    assert_eq!(d.receive().unwrap(), frame(1, 128));
    drop(hoard);
    drop((first, second, rx, tx));
    assert_eq!(pool.available(), 8192);
}

/// Not a test by itself: the process that [`nothing_is_left_by_a_killed_process`] kills.
#[test]
#[ignore = "run by nothing_is_left_by_a_killed_process"]
fn open_and_wait_to_be_killed() {
    let namespace = std::env::var("WEIR_AFXDP_VICTIM").expect("the namespace to open a port in");
    lab::enter(&namespace);
    let _port = afxdp::open("a", &Settings::default()).unwrap();
    println!("\nopen");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn nothing_is_left_by_a_killed_process() {
    let lab = Lab::new("killed", "");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "open_and_wait_to_be_killed", "--nocapture", "--ignored"])
        .env("WEIR_AFXDP_VICTIM", &lab.name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let opened = lines.map_while(Result::ok).any(|line| line == "open");
    let attached = xdp_program("a");
    let busy = afxdp::open_with("a", &Settings::default(), lab.pool(1024)).map(|_| ());
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(opened);
    assert_ne!(attached, 0);
    let error = busy.unwrap_err().to_string();
    assert!(error.contains("another Weir process"), "{error}");
    let start = Instant::now();
    while xdp_program("a") != 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    echo(&lab, Mode::Native, "native");
}

#[test]
fn link_goes_down_and_up() {
    let lab = Lab::new("link", "");
    let port = afxdp::open_with("a", &settings(Mode::Native), lab.pool(4096)).unwrap();
    let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
    let peer = Peer::open("b");
    // The kernel tells a change of carrier when it has time to.
    let seen = |up: bool, resets: u64| {
        let start = Instant::now();
        let mut link = port.link();
        while (link.up, link.resets) != (up, resets) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            link = port.link();
        }
        assert_eq!((link.up, link.admin_up, link.resets), (up, true, resets));
    };
    seen(true, 0);

    run("ip link set dev b down");
    seen(false, 1);
    port.set_admin_up(false).unwrap();
    assert!(!port.link().admin_up);
    let sent = (0..100).map(|i| send_all(&mut tx, [Packet::from_slice(&frame(i, 60))])).sum::<usize>();
    assert!(sent <= 2, "only what was in the ring before the port knew: {sent}");
    assert_eq!(port.stats().tx_dropped, 100 - sent as u64);
    assert_eq!(rx[0].receive(&mut Batch::new(), NOW), 0);

    port.set_admin_up(true).unwrap();
    run("ip link set dev b up");
    seen(true, 2);
    assert_eq!(send_all(&mut tx, [Packet::from_slice(&frame(700, 60))]), 1);
    // Behind what was in the ring.
    let received = (0..=sent).find_map(|_| peer.receive().filter(|received| *received == frame(700, 60)));
    assert!(received.is_some());
    peer.send(&frame(8, 60));
    assert_eq!(gather(&mut rx, 1)[0].data(), frame(8, 60));
}

#[test]
fn a_full_receive_ring_drops_and_recovers() {
    let lab = Lab::new("full", "");
    let small = Settings { rx_descriptors: 64, tx_descriptors: 64, ..settings(Mode::Native) };
    let port = afxdp::open_with("a", &small, lab.pool(1024)).unwrap();
    let mut rx = port.take_rx_queues();
    let peer = Peer::open("b");
    (0..500).for_each(|i| peer.send(&frame(i, 60)));
    let first = gather(&mut rx, 64);
    assert!((0..64).zip(&first).all(|(i, packet)| packet.data() == frame(i, 60)));
    assert_eq!(first.len(), 64);
    let (start, mut stats) = (Instant::now(), port.stats());
    while stats.rx_packets + stats.rx_dropped < 500 && start.elapsed() < PATIENCE {
        rx[0].receive(&mut Batch::new(), NOW);
        stats = port.stats();
    }
    assert_eq!(stats.rx_packets + stats.rx_dropped, 500, "{stats:?}");
    assert!(stats.rx_dropped > 300, "{stats:?}");
    drop(first);
    peer.send(&frame(1000, 60));
    assert_eq!(gather(&mut rx, 1)[0].data(), frame(1000, 60));
}

#[test]
fn an_exhausted_pool_stalls_and_recovers() {
    let lab = Lab::new("pool", "");
    let small = Settings { rx_descriptors: 128, tx_descriptors: 128, ..settings(Mode::Native) };
    let pool = lab.pool(256);
    let port = afxdp::open_with("a", &small, pool).unwrap();
    let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
    let peer = Peer::open("b");
    let mut hoard = Vec::new();
    for i in 0..400 {
        peer.send(&frame(i, 60));
        let mut batch = Batch::new();
        rx[0].receive(&mut batch, NOW);
        hoard.extend(batch);
    }
    hoard.extend(gather(&mut rx, 256 - hoard.len()));
    assert_eq!((hoard.len(), pool.available()), (256, 0));
    assert!(hoard.iter().zip(0..).all(|(packet, i)| packet.data() == frame(i, 60)));
    // A frame from elsewhere finds no chunk to be copied to.
    assert_eq!(send_all(&mut tx, [Packet::from_slice(&frame(0, 60))]), 0);
    assert_eq!(port.stats().tx_dropped, 1);
    hoard.clear();
    assert_eq!(rx[0].receive(&mut Batch::new(), NOW), 0);
    peer.send(&frame(1000, 60));
    assert_eq!(gather(&mut rx, 1)[0].data(), frame(1000, 60));
}

#[test]
fn the_interface_is_deleted_while_in_use() {
    let lab = Lab::new("deleted", "");
    for mode in [Mode::Native, Mode::Generic] {
        let pool = lab.pool(4096);
        let port = afxdp::open_with("a", &settings(mode), pool).unwrap();
        let (mut rx, mut tx) = (port.take_rx_queues(), port.tx_queue(0).unwrap());
        assert_eq!(send_all(&mut tx, [Packet::from_slice(&frame(0, 60))]), 1);
        let mac = port.mac();
        run("ip link del dev a");
        for _ in 0..10 {
            let mut batch = Batch::new();
            assert_eq!(rx[0].receive(&mut batch, NOW), 0);
            send_all(&mut tx, [Packet::from_slice(&frame(0, 60))]);
        }
        assert!(port.stats().tx_dropped >= 9);
        // It is not mistaken for its successor.
        run("ip link add name a type veth peer name b");
        run("ip link set dev a up");
        run("ip link set dev b up");
        lab::await_carrier();
        let link = port.link();
        assert!(!link.up && !link.admin_up && link.resets == 1, "{link:?}");
        assert!(port.is_gone() && port.mac() == mac, "what was known of it last");
        assert!(port.set_mtu(1400).is_err());
        drop((port, rx, tx));
        assert_eq!(pool.available(), 4096);
    }
}

#[test]
fn checksums_are_completed_and_large_frames_cut() {
    let lab = Lab::new("offload", "");
    let port = afxdp::open_with("a", &settings(Mode::Native), lab.pool(4096)).unwrap();
    let mut tx = port.tx_queue(0).unwrap();
    let peer = Peer::open("b");
    // The checksum field holds the pseudo header's sum: addresses, protocol 17, length.
    let pseudo = |frame: &[u8]| {
        let mut sum: u32 = frame[26..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        sum += 17 + (frame.len() as u32 - 34);
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let valid = |frame: &[u8]| {
        let mut covered = frame[26..34].to_vec();
        covered.extend_from_slice(&[0, 17]);
        covered.extend_from_slice(&(frame.len() as u16 - 34).to_be_bytes());
        covered.extend_from_slice(&frame[34..]);
        ports::offload::checksum(&covered) == 0
    };
    let partial = |len, gso_size| {
        let mut bytes = frame(1, len);
        let sum = pseudo(&bytes);
        bytes[40..42].copy_from_slice(&sum.to_be_bytes());
        let mut packet = Packet::from_slice(&bytes);
        let gso_type = if gso_size > 0 { Offload::GSO_UDP_L4 } else { Offload::GSO_NONE };
        let flags = Offload::NEEDS_CSUM;
        *packet.offload_mut() = Offload { flags, gso_type, hdr_len: 42, gso_size, csum_start: 34, csum_offset: 6 };
        packet
    };
    assert_eq!(send_all(&mut tx, [partial(300, 0)]), 1);
    // Where the kernel takes the request, the checksum stays unfinished on its way to the receiver's stack.
    let left = port.offloads().csum;
    let right = |frame: &[u8]| if left { frame[40..42] == pseudo(frame).to_be_bytes() } else { valid(frame) };
    let received = peer.receive().unwrap();
    assert!(received.len() == 300 && right(&received));
    assert_eq!(send_all(&mut tx, [partial(42 + 3500, 1000)]), 1);
    // A stack at the other end takes the frame whole; otherwise it is cut.
    let lengths: &[usize] = if port.offloads().uso { &[3542] } else { &[1042, 1042, 1042, 542] };
    let segments: Vec<_> = lengths.iter().map(|_| peer.receive().unwrap()).collect();
    assert_eq!(segments.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
    assert!(segments.iter().all(|segment| right(segment)));
    // What no chunk can hold is dropped, and what is no frame too.
    assert_eq!(send_all(&mut tx, [Packet::from_slice(&frame(1, 1793)), Packet::from_slice(&[0; 13])]), 0);
    assert_eq!(port.stats().tx_dropped, 2);
}

#[test]
fn workers_can_sleep_on_a_queue() {
    let lab = Lab::new("sleep", "");
    let port = afxdp::open_with("a", &settings(Mode::Native), lab.pool(4096)).unwrap();
    let mut rx = port.take_rx_queues();
    let peer = Peer::open("b");
    let readable = |queue: &dyn RxQueue, milliseconds| {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&queue.wait_fd().unwrap());
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry at this address.
        unsafe { libc::poll(&mut poll, 1, milliseconds) == 1 && poll.revents & libc::POLLIN != 0 }
    };
    assert!(!readable(&*rx[0], 10));
    peer.send(&frame(1, 60));
    assert!(readable(&*rx[0], 2000));
    assert_eq!(gather(&mut rx, 1).len(), 1);
    assert!(!readable(&*rx[0], 10));
}

#[test]
fn the_registry_opens_it_and_errors_say_what_is_wrong() {
    let _lab = Lab::new("registry", "");
    let open = |name: &str, options: &[(&str, &str)]| {
        registry::open(&PortSpec::new(name, "afxdp").with(options), &Env::default())
    };
    let port = open("a", &[("xdp-mode", "generic"), ("n_rxq_desc", "256"), ("use-need-wakeup", "false")]).unwrap();
    assert_eq!((port.kind(), port.name(), mode_of(&port).as_str()), ("afxdp", "a", "generic"));
    assert!(port.status().contains(&("driver_name", "veth".to_string())));
    let facts = Interface::open("a").unwrap().facts().unwrap();
    assert_eq!((port.mac(), port.mtu(), port.ifindex()), (facts.mac, 1500, Some(facts.index)));
    port.set_mac([2, 0, 0, 0, 0, 9]).unwrap();
    port.set_mtu(1400).unwrap();
    assert_eq!((port.mac(), port.mtu()), ([2, 0, 0, 0, 0, 9], 1400));
    assert_eq!(port.features().speed_mbps, 10_000, "what veth claims");
    assert!(port.set_mtu(9000).unwrap_err().to_string().contains("at most 1774"));
    drop(port);
    assert!(matches!(open("nosuch", &[]).unwrap_err(), Error::NoInterface { .. }));
    let error = open("a", &[("n_rxq_desc", "1000")]).unwrap_err().to_string();
    assert_eq!(error, "a: option n_rxq_desc: 1000 should be a power of two, like 1024");
    assert!(open("a", &[("xdp-mode", "turbo")]).is_err());
}

/// A program that drops frames whose byte at `place` has this value, as rule 0.
fn dropping(place: i16, value: i32) -> DropProgram {
    let op = |code, registers, offset, immediate| Instruction { code, registers, offset, immediate };
    let instructions = vec![
        // r2 = frame + 60; r0 = -1; where the frame ends before, to the end.
        op(0xbf, 2 | 7 << 4, 0, 0),
        op(0x07, 2, 0, 60),
        op(0xb4, 0, 0, DropProgram::NONE),
        op(0x2d, 2 | 8 << 4, 3, 0),
        // r3 = byte; if r3 == value then r0 = 0.
        op(0x71, 3 | 7 << 4, place, 0),
        op(0x55, 3, 1, value),
        op(0xb4, 0, 0, 0),
    ];
    DropProgram { instructions, rules: 1, tables: Vec::new() }
}

#[test]
fn each_frame_is_received_or_dropped_while_programs_change() {
    for (name, mode) in [("drop-native", Mode::Native), ("drop-generic", Mode::Generic)] {
        let lab = Lab::new(name, "");
        let port = afxdp::open_with("a", &settings(mode), lab.pool(8192)).unwrap();
        let mut rx = port.take_rx_queues();
        let (peer, early) = (Peer::open("b"), port.early_drop().unwrap());
        let program = xdp_program("a");
        // The port of the sender is the number: odd ones pass always, even ones while another program is in force.
        let programs = [dropping(40, 1), dropping(41, 1)];
        let mut counters = Vec::new();
        let (mut received, mut dropped) = (Vec::new(), 0);
        for round in 0..200_u16 {
            match round % 4 {
                0 | 2 => counters.push(early.set(&programs[usize::from(round % 4) / 2]).unwrap()),
                3 => early.clear().unwrap(),
                _ => {}
            }
            for number in 0..10 {
                let mut frame = frame(round * 10 + number, 60);
                // UDP checksums that nobody looks at.
                frame[40..42].copy_from_slice(&[u8::from(number % 3 == 0), u8::from(number % 3 == 1)]);
                dropped += match round % 4 {
                    0 | 1 => usize::from(number % 3 == 0),
                    2 => usize::from(number % 3 == 1),
                    _ => 0,
                };
                peer.send(&frame);
            }
        }
        received.extend(gather(&mut rx, 2000 - dropped));
        let total = early.total();
        assert_eq!((received.len(), total.packets as usize), (2000 - dropped, dropped), "{name}");
        assert_eq!(total.bytes, 60 * total.packets);
        let numbers: Vec<_> = received.iter().map(|p| u16::from_be_bytes([p.data()[34], p.data()[35]])).collect();
        assert!(numbers.is_sorted());
        let stats = port.stats();
        assert_eq!((stats.rx_packets, stats.rx_bytes), (2000, 120_000));
        // Of the last program: what it has dropped itself.
        assert_eq!(counters[99].read()[0].packets, 3);
        assert_eq!(xdp_program("a"), program, "the first program is back");
        drop((received, rx, port));
        assert_eq!(xdp_program("a"), 0);
        assert_eq!(early.total(), total, "what was counted can be read when the port is closed");
        assert!(early.set(&programs[0]).unwrap_err().to_string().contains("closed"));
    }
}

#[test]
fn a_program_that_the_kernel_refuses_changes_nothing() {
    let lab = Lab::new("refused", "");
    let port = afxdp::open_with("a", &settings(Mode::Native), lab.pool(1024)).unwrap();
    let early = port.early_drop().unwrap();
    early.set(&dropping(40, 1)).unwrap();
    let program = xdp_program("a");
    // It reads behind what it has checked.
    let mut wrong = dropping(40, 1);
    wrong.instructions[1].immediate = 20;
    let error = early.set(&wrong).unwrap_err().to_string();
    assert!(error.starts_with("a: cannot load an XDP program that drops frames: "), "{error}");
    let long = DropProgram {
        instructions: vec![wrong.instructions[2]; DropProgram::MAX_INSTRUCTIONS + 1],
        rules: 1,
        ..wrong.clone()
    };
    assert!(
        early.set(&long).unwrap_err().to_string().contains("2049 instructions and 0 prefixes for 1 rules are too many")
    );
    assert_eq!(xdp_program("a"), program);
    let status = |port: &Arc<dyn Port>| port.status().into_iter().find(|(name, _)| *name == "ingress-offloaded-rules");
    assert_eq!(status(&port), Some(("ingress-offloaded-rules", "1".into())));
    early.clear().unwrap();
    assert_eq!(status(&port), None);
}
