//! Sockets of OpenFlow peers, as the threads that make packet-ins send to them without waking this one (`ofproto::connection::DirectSend`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ofproto::connection::DirectSend;
use rustix::net::SendFlags;

use super::message_log;

/// How often something is sent this way to all peers together: a system call takes a handler as long as several packets, and when there
/// are many packet-ins, the thread of the connections is awake anyway and sends many with one call.
const EACH: Duration = Duration::from_micros(100);

/// How many are sent at once after a pause, as when several controllers get the same packet.
const BURST: u32 = 4;

/// The pace of all peers.
static PACE: Pace = Pace(AtomicU64::new(0));

/// Since when the pace is counted.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// When the next one would be sent if all came one after the other, in nanoseconds.
struct Pace(AtomicU64);

impl Pace {
    /// Whether one may be sent at `now`.
    fn take(&self, now: Duration) -> bool {
        let (now, each) = (now.as_nanos() as u64, EACH.as_nanos() as u64);
        let ahead = each * u64::from(BURST - 1);
        let next = |next: u64| (next <= now + ahead).then(|| next.max(now) + each);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// A socket beside the one that the connection reads and writes.
struct Socket(OwnedFd);

/// The same peer, for other threads. `None` where the system has no descriptors left.
pub fn socket(socket: &impl AsFd) -> Option<Arc<dyn DirectSend>> {
    let socket = socket.as_fd().try_clone_to_owned().ok()?;
    Some(Arc::new(Socket(socket)))
}

impl DirectSend for Socket {
    fn may_send(&self) -> bool {
        // What is logged of a connection is logged by its own thread.
        !message_log::is_on() && PACE.take(START.elapsed())
    }

    fn send(&self, bytes: &[u8]) -> usize {
        // The connection's own thread sees errors when it sends the rest.
        rustix::net::send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_go_at_once_and_then_one_each_tenth_of_a_millisecond() {
        let pace = Pace(AtomicU64::new(0));
        let passed = |at: u64| (0..100).filter(|_| pace.take(Duration::from_micros(at))).count();
        assert_eq!(passed(1_000_000), 4);
        assert_eq!(passed(1_000_099), 0);
        assert_eq!(passed(1_000_100), 1);
        assert_eq!(passed(1_000_350), 2);
        assert_eq!(passed(9_000_000), 4);
        assert_eq!((9_000_001..9_010_001).filter(|&at| pace.take(Duration::from_micros(at))).count(), 100);
    }

    #[test]
    fn a_peer_gets_what_it_takes_and_no_more_is_waited_for() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = socket(&ours).unwrap();
        assert_eq!(socket.send(b"hello"), 5);
        let bytes = vec![7; 1 << 20];
        let mut taken = 5;
        loop {
            match socket.send(&bytes) {
                0 => break,
                more => taken += more,
            }
        }
        assert!(taken < 64 << 20);
        drop(theirs);
        assert_eq!(socket.send(b"hello"), 0, "an error is for another one to see");
    }
}
