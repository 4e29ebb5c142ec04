//! Network namespaces for tests, and a loop that joins two ports as a wire does.
#![allow(dead_code, unsafe_code)]

use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packet::{Batch, Time};
use ports::{Port, RxQueue, TxQueue};

/// Moves this thread, and the threads and processes that it starts, to a network namespace of its
/// own, which disappears with the last of them.
pub fn leave_to_own_namespace() {
    testing::root();
    // SAFETY: affects this thread alone.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", std::io::Error::last_os_error());
    run("ip link set lo up");
}

/// Runs a command line in this thread's namespace and returns what it printed.
pub fn run(line: &str) -> String {
    let out = Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output().expect("sh");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{line}: {text}");
    text
}

/// Returns when the condition holds.
#[track_caller]
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A named network namespace, removed when dropped, also by a panic.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(what: &str) -> Namespace {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("wports-{}-{}-{what}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        run(&format!("ip netns add {name}"));
        let namespace = Namespace { name };
        namespace.run("ip link set lo up");
        namespace
    }

    /// Runs a command line in the namespace.
    pub fn run(&self, line: &str) -> String {
        run(&format!("ip netns exec {} {line}", self.name))
    }

    /// Makes a veth pair: `host` in this thread's namespace and eth0 with `address` in this one.
    pub fn veth(&self, host: &str, address: &str) {
        run(&format!("ip link add {host} type veth peer name eth0 netns {}", self.name));
        run(&format!("ip link set {host} up"));
        self.run(&format!("ip addr add {address} dev eth0"));
        self.run("ip link set eth0 up");
    }

    /// Starts a command that runs until the result is dropped.
    pub fn start(&self, line: &str) -> Running {
        let words = line.split(' ');
        let child = Command::new("ip").args(["netns", "exec", &self.name]).args(words).stdout(Stdio::null()).spawn();
        Running(child.expect("ip"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// A process that ends with this value.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Mbit/s of a TCP connection from `client`, a prefix like "ip netns exec x ", to an iperf3 server.
pub fn iperf(client: &str, server: &str) -> f64 {
    let text = run(&format!(
        "for i in 1 2 3 4 5; do timeout 15 {client}iperf3 -c {server} -t 1 -f m && exit; sleep 0.2; done; false"
    ));
    let line = text.lines().find(|l| l.ends_with("receiver")).unwrap_or_else(|| panic!("{text}"));
    let words: Vec<_> = line.split_whitespace().collect();
    let unit = words.iter().position(|w| *w == "Mbits/sec").unwrap_or_else(|| panic!("{line}"));
    words[unit - 1].parse().expect("a number")
}

/// Two ports joined as by a wire, until dropped.
pub struct Wire {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Frames that are longer than any MTU here.
    pub large: Arc<AtomicU64>,
}

impl Wire {
    pub fn new(a: Arc<dyn Port>, b: Arc<dyn Port>) -> Wire {
        let (stop, large) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut wire = Wire { stop: stop.clone(), thread: None, large: Arc::clone(&large) };
        let body = move || {
            let mut ways: Vec<(Box<dyn RxQueue>, Box<dyn TxQueue>)> = Vec::new();
            for (from, to, base) in [(&a, &b, 0), (&b, &a, 0)] {
                for (i, rx) in from.take_rx_queues().into_iter().enumerate() {
                    ways.push((rx, to.tx_queue(base + i).unwrap()));
                }
            }
            let (start, mut batch) = (Instant::now(), Batch::new());
            while !stop.load(Relaxed) {
                let now = Time(start.elapsed().as_nanos() as u64);
                let mut moved = 0;
                for (rx, tx) in &mut ways {
                    moved += rx.receive(&mut batch, now);
                    for packet in &batch {
                        large.fetch_add(u64::from(packet.len() > 1600), Relaxed);
                    }
                    tx.transmit(&mut batch, now);
                    assert!(batch.is_empty());
                }
                if moved == 0 {
                    let fds: Vec<_> = ways.iter().filter_map(|(rx, _)| rx.wait_fd()).collect();
                    wait(&fds, Duration::from_millis(20));
                }
            }
        };
        wire.thread = Some(std::thread::spawn(body));
        wire
    }
}

impl Wire {
    /// Ends the loop. A panic in it ends the test.
    pub fn stop(mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().expect("running").join().expect("the loop");
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until one of the descriptors is readable.
pub fn wait(fds: &[BorrowedFd], timeout: Duration) -> bool {
    let mut fds: Vec<_> = fds.iter().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)).collect();
    let timeout = rustix::event::Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0
}

/// Receives until a frame satisfies `wanted`, for two seconds at most.
pub fn receive_until(rx: &mut dyn RxQueue, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let mut batch = Batch::new();
        rx.receive(&mut batch, Time(start.elapsed().as_nanos() as u64));
        if let Some(packet) = batch.iter().find(|p| wanted(p.data())) {
            return Some(packet.data().to_vec());
        }
        wait(&[rx.wait_fd().expect("a descriptor")], Duration::from_millis(50));
    }
    None
}
