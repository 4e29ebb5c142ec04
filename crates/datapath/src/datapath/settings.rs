//! Settings of the datapath that can change while packets flow.

use std::collections::BTreeMap;
use std::time::Duration;

use packet::flow::VlanLimit;

use crate::action::PortNo;
#[cfg(doc)]
use crate::config::Config;
use crate::control::balance::AutoBalance;
use crate::control::scheduler::{RxPolicy, Scheduling};
use crate::datapath::Datapath;
use crate::error::Error;
use crate::worker::mailbox::Command;

impl Datapath {
    /// Changes on which cores there are workers; none: one worker that may run on any core. Workers whose
    /// core stays go on undisturbed. The others hand their receive queues over between two bursts, when
    /// the slow path has answered for what came from there: no packet is lost, nor overtaken by a later
    /// one of its queue. On an error nothing has changed. Not to be called from an upcall.
    pub fn set_workers(&self, cores: &[usize]) -> Result<(), Error> {
        self.control.lock().set_workers(cores)
    }

    /// Changes how many threads serve the slow path: at least one, and no more than there can be workers, for the misses of
    /// a worker are handled in order by one of them. A worker's packets that are up stay in order: another handler
    /// goes on where the old one has left off. On an error nothing has changed. Not to be called from an upcall, nor with
    /// anything locked that upcalls lock.
    pub fn set_handlers(&self, count: usize) -> Result<(), Error> {
        self.control.lock().set_handlers(count)
    }

    /// Threads that serve the slow path.
    pub fn handlers(&self) -> usize {
        self.control.lock().handlers()
    }

    /// Changes how receive queues are spread, and spreads them anew. With `isolate`, a worker that a
    /// queue is pinned to gets no others. Not to be called from an upcall.
    pub fn set_rx_policy(&self, policy: RxPolicy, isolate: bool) {
        self.control.lock().set_scheduling(Scheduling { policy, isolate });
    }

    /// Pins receive queues of a port to cores; the others go where the policy puts them. Not to be called
    /// from an upcall.
    pub fn set_rx_affinity(&self, port: PortNo, affinity: BTreeMap<usize, usize>) -> Result<(), Error> {
        let mut control = self.control.lock();
        if self.ports.lock().set_affinity(port, affinity)? {
            control.schedule();
        }
        Ok(())
    }

    /// Has packets to a port spread over all of its transmit queues by their hash, or each worker send by one. What waits to be
    /// sent is sent before. Not to be called from an upcall.
    pub fn set_tx_steering(&self, port: PortNo, by_hash: bool) -> Result<(), Error> {
        self.control.lock().set_tx_steering(port, by_hash)
    }

    /// Spreads the receive queues anew by the policy in force and the load of the last minute. Not to be
    /// called from an upcall.
    pub fn rebalance(&self) {
        self.control.lock().schedule();
    }

    /// Changes when receive queues are moved by themselves.
    pub fn set_auto_balance(&self, settings: AutoBalance) {
        self.control.lock().balancer.set(settings);
    }

    /// Moves receive queues where that is due and of use. To be called now and then by a thread that may
    /// wait for the slow path; not from an upcall.
    pub fn balance(&self) {
        // The holder of the lock is changing the assignment anyway.
        if let Some(mut control) = self.control.try_lock() {
            control.balance();
        }
    }

    /// Changes how long a packet may wait for others to the same port. Zero: until the end of its batch.
    pub fn set_tx_flush_interval(&self, interval: Duration) {
        let mut control = self.control.lock();
        control.config.tx_flush_interval = interval;
        control.tell(|| Command::SetFlushInterval(interval));
    }

    /// Changes the longest sleep of an idle worker ([`Config::max_sleep`]).
    pub fn set_max_sleep(&self, max_sleep: Duration) {
        let mut control = self.control.lock();
        control.config.max_sleep = max_sleep;
        control.tell(|| Command::SetMaxSleep(max_sleep));
    }

    /// Changes the insertion policy of the exact-match caches: one in so many of the flows that tier 2 finds is
    /// inserted; zero: none.
    pub fn set_exact_one_in(&self, one_in: u32) {
        let mut control = self.control.lock();
        control.config.exact_one_in = one_in;
        control.tell(|| Command::SetExactOneIn(one_in));
    }

    /// Changes how many VLAN tags of a frame are parsed. What a worker receives after the return is read in the new way;
    /// flows that were made in the old way stay. Not to be called from an upcall.
    pub fn set_vlan_limit(&self, limit: VlanLimit) {
        let mut control = self.control.lock();
        control.config.vlan_limit = limit;
        control.tell(|| Command::SetVlanLimit(limit));
        drop(control);
        // A worker reads its mailbox after it has announced that it is between two batches.
        self.barrier();
    }

    /// Changes how many entries each exact-match cache can have ([`Config::exact_entries`]).
    pub fn set_exact_entries(&self, entries: usize) {
        let mut control = self.control.lock();
        control.config.exact_entries = entries;
        control.tell(|| Command::SetExactEntries(entries));
    }

    /// Changes the limit of flows. Flows above it are evicted within seconds.
    pub fn set_max_flows(&self, max_flows: usize) {
        self.resources.table.set_max_flows(max_flows);
    }

    /// Changes the limit of the memory that flows take, in bytes. Flows above it are evicted within seconds.
    pub fn set_max_flow_memory(&self, bytes: usize) {
        self.resources.table.set_max_memory(bytes);
    }

    /// Changes the limit of masks of one input port. A port that has more keeps them until it needs another.
    pub fn set_max_masks(&self, max_masks: usize) {
        self.resources.table.set_max_masks(max_masks);
    }

    /// Whether TCP segments outside of the windows are invalid.
    pub fn set_tcp_sequence_check(&self, on: bool) {
        self.resources.conntrack.tracker.set_liberal(!on);
    }

    /// Whether the limit of connections makes room by ending unanswered ones.
    pub fn set_early_drop(&self, on: bool) {
        self.resources.conntrack.tracker.set_early_drop(on);
    }
}
