//! The tables QoS and Queue (ovs-vswitchd.conf.db(5)): what the kernel's queueing disciplines are told.

use ovsdb::{Atom, Replica, Row};
use ports::Qos;

/// The QoS of a row, and what is wrong with it: a type that there is not, or queues that cannot be had.
pub fn read(replica: &Replica, row: &Row) -> (Option<Qos>, Vec<String>) {
    let mut qos = match Qos::new(row.string("type").unwrap_or_default(), row.string_pairs("other_config")) {
        Ok(qos) => qos,
        Err(problem) => return (None, vec![problem]),
    };
    let mut problems = Vec::new();
    for pair in row.pairs("queues") {
        let (Atom::Integer(number), Atom::Uuid(uuid)) = pair else { continue };
        let Some(queue) = replica.row("Queue", *uuid) else { continue };
        let number = u32::try_from(*number).unwrap_or(u32::MAX);
        problems.extend(qos.add_queue(number, queue.string_pairs("other_config")).err());
    }
    if let [first, _, ..] = &problems[..] {
        problems = vec![format!("{first}; so it is with {} queues", problems.len())];
    }
    (Some(qos), problems)
}
