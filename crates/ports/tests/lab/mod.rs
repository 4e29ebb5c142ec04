//! A network namespace with a veth pair "a" and "b", for tests of ports on kernel interfaces.

#![allow(unsafe_code, missing_docs, dead_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use packet::{Pool, PoolConfig};

const PREFIX: &str = "weirafxdp";

/// The namespace, which the thread that made it is in. Removed on drop, also by a panic.
pub struct Lab {
    pub name: String,
}

impl Lab {
    /// Makes the namespace and the pair, with `queues` as further words for each end ("numrxqueues 4").
    pub fn new(test: &str, queues: &str) -> Lab {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        testing::root();
        remove_stale();
        let name = format!("{PREFIX}-{}-{}-{test}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run(&format!("ip netns add {name}"));
        let lab = Lab { name };
        lab.enter();
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        run(&format!("ip link add name a {queues} type veth peer name b {queues}"));
        run("ip link set dev a up");
        run("ip link set dev b up");
        await_carrier();
        lab
    }

    /// Moves this thread into the namespace.
    pub fn enter(&self) {
        enter(&self.name);
    }

    /// A pool of its own, so that tests that run at the same time don't disturb each other's counts.
    pub fn pool(&self, chunks: usize) -> &'static Pool {
        Pool::new(PoolConfig { chunks, chunk_size: 2048, headroom: 256 }).unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Waits for the carrier of both ends. The kernel tells of it when it has time to: what is opened before would see it change.
pub fn await_carrier() {
    let start = Instant::now();
    while !["a", "b"].map(link).iter().all(|link| link.contains("state UP")) {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", link("a"));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the kernel says of an interface of this thread's namespace.
fn link(name: &str) -> String {
    let output = Command::new("ip").args(["-o", "link", "show", name]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Moves this thread into a network namespace.
pub fn enter(name: &str) {
    let namespace = File::open(format!("/var/run/netns/{name}")).unwrap();
    // SAFETY: the call has no memory arguments.
    let answer = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(answer, 0, "setns: {}", std::io::Error::last_os_error());
}

/// Runs a command in this thread's namespace.
pub fn run(command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Removes namespaces of test processes that have been killed.
fn remove_stale() {
    for entry in std::fs::read_dir("/var/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').nth(1)?.parse::<u32>().ok()) else {
            continue;
        };
        if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}
