//! Helpers look into control connections and expect the connections that these announce.
//!
//! | module | what it is |
//! |---|---|
//! | [`ftp`] | FTP: active and passive, with translated addresses |
//! | [`sequence`] | The numbers of segments behind a changed text |
//!
//! TFTP needs no look at the packet: the answer to a request comes from another port of the server.

pub mod ftp;
pub mod sequence;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use packet::Time;
use packet::wire::ip_proto;

use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::table::Reference;
use crate::tuple::{Side, Tuple};

/// Which helper looks at a connection: `alg` of the ct action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Helper {
    /// FTP.
    Ftp,
    /// TFTP.
    Tftp,
}

/// A connection that is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expectation {
    /// The original direction of the connection that announced it.
    pub parent: Tuple,
    /// The parent's mark.
    pub mark: u32,
    /// The parent's label.
    pub label: u128,
    /// An end of the direction of replies, and the address and port that it gets, where the parent is translated. A port
    /// of zero stays as it is.
    pub replacement: Option<(Side, IpAddr, u16)>,
}

/// The most expectations.
pub const MAX_EXPECTATIONS: usize = 1 << 14;
/// The most expectations of one connection: the oldest gives way.
pub const MAX_OF_PARENT: usize = 8;
/// An expectation that has not been met is forgotten.
pub const LIFETIME: Duration = Duration::from_secs(300);

/// The expectations, shared by all threads. While there are none, a new connection pays for one load.
pub struct Expectations {
    number: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_tuple: HashMap<Tuple, (Expectation, Reference, Time)>,
    of_parent: HashMap<Reference, VecDeque<Tuple>>,
    /// In the order in which they came; some may be gone.
    order: VecDeque<(Tuple, Time)>,
}

impl Known {
    fn remove(&mut self, tuple: &Tuple) {
        let Some((_, parent, _)) = self.by_tuple.remove(tuple) else { return };
        if let Some(tuples) = self.of_parent.get_mut(&parent) {
            tuples.retain(|known| known != tuple);
            if tuples.is_empty() {
                self.of_parent.remove(&parent);
            }
        }
    }
}

impl Expectations {
    pub(crate) fn new() -> Expectations {
        Expectations { number: AtomicU64::new(0), known: Mutex::new(Known::default()) }
    }

    /// Expects a connection in the direction of `tuple`, from any port.
    pub fn expect(&self, tuple: &Tuple, parent: Reference, expectation: Expectation, now: Time) {
        self.expect_for(tuple, parent, expectation, LIFETIME, now);
    }

    /// As [`expect`](Expectations::expect), for so long, but not longer than others.
    pub fn expect_for(&self, tuple: &Tuple, parent: Reference, expectation: Expectation, left: Duration, now: Time) {
        let mut tuple = *tuple;
        tuple.set_port(Side::Src, 0);
        let mut known = self.known.lock();
        known.remove(&tuple);
        // What is too old, or too many.
        while let Some(&(oldest, end)) = known.order.front()
            && (end <= now || known.order.len() >= MAX_EXPECTATIONS)
        {
            known.order.pop_front();
            if known.by_tuple.get(&oldest).is_some_and(|(.., same)| *same == end) {
                known.remove(&oldest);
            }
        }
        let siblings = known.of_parent.entry(parent).or_default();
        siblings.push_back(tuple);
        let oldest = if siblings.len() > MAX_OF_PARENT { siblings.pop_front() } else { None };
        if let Some(oldest) = oldest {
            known.by_tuple.remove(&oldest);
        }
        let end = now + left.min(LIFETIME);
        known.by_tuple.insert(tuple, (expectation, parent, end));
        known.order.push_back((tuple, end));
        self.number.store(known.by_tuple.len() as u64, Ordering::Release);
    }

    /// The expectation that a connection in this direction meets, if its parent is `alive`. It stays: a file may be asked
    /// for again.
    pub fn find(&self, tuple: &Tuple, now: Time, alive: impl Fn(Reference) -> bool) -> Option<Expectation> {
        if self.number.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut tuple = *tuple;
        tuple.set_port(Side::Src, 0);
        let mut known = self.known.lock();
        let (expectation, parent, end) = *known.by_tuple.get(&tuple)?;
        if end > now && alive(parent) {
            return Some(expectation);
        }
        known.remove(&tuple);
        self.number.store(known.by_tuple.len() as u64, Ordering::Release);
        None
    }

    /// All of them, in the order in which they came, each with how long it is kept.
    pub fn all(&self, now: Time) -> Vec<(Tuple, Expectation, Duration)> {
        let known = self.known.lock();
        let present = known.order.iter().filter_map(|(tuple, end)| {
            let (expectation, _, same) = known.by_tuple.get(tuple)?;
            (same == end && *end > now).then(|| (*tuple, *expectation, end.since(now)))
        });
        present.collect()
    }

    /// How many there are, those included whose parent is gone.
    pub fn len(&self) -> usize {
        self.number.load(Ordering::Acquire) as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The direction of a connection that a control connection announces, and what becomes of the ends of its replies.
/// `from_reply` says that the announcement went in the direction of replies. The new connection goes to the end that
/// announced: to the port `seen`, as the other end sees it, which is its port `own`.
///
/// The other end opens the new connection, and sees addresses as in the control connection.
pub fn announced(
    orig: &Tuple,
    reply: &Tuple,
    from_reply: bool,
    seen: u16,
    own: u16,
) -> (Tuple, Option<(Side, IpAddr, u16)>) {
    // What the opener sends in the control connection, and what it is answered.
    let (mut tuple, answer) = if from_reply { (*orig, *reply) } else { (*reply, *orig) };
    tuple.set_port(Side::Dst, seen);
    let plain = tuple.reverse();
    let differs = |side| answer.address(side) != plain.address(side);
    let replacement = if differs(Side::Src) || own != seen {
        Some((Side::Src, answer.src(), own))
    } else {
        // The opener's port is not known yet.
        differs(Side::Dst).then(|| (Side::Dst, answer.dst(), 0))
    };
    (tuple, replacement)
}

/// The helper for a connection on a well-known port (as Open vSwitch has it, FTP by either port, TFTP by the
/// destination).
pub fn by_port(tuple: &Tuple) -> Option<Helper> {
    match tuple.proto() {
        ip_proto::TCP if [Side::Src, Side::Dst].iter().any(|side| tuple.port(*side) == 21) => Some(Helper::Ftp),
        ip_proto::UDP if tuple.port(Side::Dst) == 69 => Some(Helper::Tftp),
        _ => None,
    }
}
