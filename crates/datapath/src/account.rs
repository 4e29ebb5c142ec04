//! The account of packets: every packet that comes in goes out, or ends for a reason that has a name.

use crate::stats::{Drops, WorkerStats};

/// How packets were created and how they ended since the start. Resets of the statistics do not change it.
///
/// The difference of `came` and `went` is under way: between ports, or in the slow path. At rest it is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Received from ports.
    pub received: u64,
    /// Injected with actions to run on them, as controllers' packet-outs are.
    pub injected: u64,
    /// Made from others: copies, and the segments of a super-frame beyond its first.
    pub copied: u64,
    /// Taken by ports.
    pub sent: u64,
    /// Given to ports that did not take them, and count them as dropped or as errors.
    pub refused: u64,
    /// Given to the slow path by an action, to a controller for example.
    pub punted: u64,
    /// Made part of another one: segments that have left a tunnel.
    pub joined: u64,
    /// Dropped, by reason.
    pub drops: Drops,
}

impl Account {
    /// The account of several workers.
    pub fn of<'a>(workers: impl Iterator<Item = &'a WorkerStats>) -> Account {
        workers.fold(Account::default(), |mut sum, worker| {
            sum.received += worker.received;
            sum.injected += worker.injected;
            sum.copied += worker.copied;
            sum.sent += worker.sent;
            sum.refused += worker.refused;
            sum.punted += worker.punted;
            sum.joined += worker.joined;
            sum.drops += &worker.drops;
            sum
        })
    }

    /// Packets that were created.
    pub fn came(&self) -> u64 {
        self.received + self.injected + self.copied
    }

    /// Packets that have ended.
    pub fn went(&self) -> u64 {
        self.sent + self.refused + self.punted + self.joined + self.drops.total()
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Account { received, injected, copied, sent, refused, punted, joined, drops } = self;
        write!(f, "received {received}, injected {injected}, copied {copied}; ")?;
        write!(f, "sent {sent}, refused {refused}, punted {punted}")?;
        if *joined != 0 {
            write!(f, ", joined {joined}")?;
        }
        write!(f, ", dropped {}", drops.total())?;
        for (reason, packets) in drops.iter() {
            write!(f, ", {} {packets}", reason.name())?;
        }
        Ok(())
    }
}
