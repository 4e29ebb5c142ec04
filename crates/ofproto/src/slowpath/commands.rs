//! What operators can ask of the slow path while it runs: OVS's commands `upcall/...` and `revalidator/...`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datapath::FlowId;
use packet::{Key, Mask};

use crate::slowpath::control::{RevalidationStats, match_all};
use crate::slowpath::requests::{Done, FlowRequest};
use crate::slowpath::revalidators::{FlowRound, TakePart};
use crate::switch::{Switch, SwitchSettings};

impl Switch {
    /// Changes the settings, and the number of revalidators with them.
    pub fn set_settings(self: &Arc<Switch>, settings: SwitchSettings) {
        *self.settings.lock() = settings;
        self.events.set_limit(settings.controller_memory);
        let switch = Arc::downgrade(self);
        let take_part = move |round: &FlowRound, thread| switch.upgrade().map(|switch| switch.take_part(round, thread));
        self.helpers.resize(settings.revalidators.max(1) - 1, &(Arc::new(take_part) as TakePart));
        self.notify();
    }

    /// Sets the numbers of the timeout policies of zones, which new connections get. Flows that have another number are
    /// brought up to date.
    pub fn set_ct_policies(&self, numbers: HashMap<u16, u16>) {
        let mut forwarding = self.forwarding.write();
        if forwarding.ct_policies != numbers {
            forwarding.ct_policies = numbers;
            forwarding.touch();
            drop(forwarding);
            self.notify();
        }
    }

    /// Sets whether one datapath flow may be for many connections; by default it may. Where it may not, each flow
    /// matches every field that its packets have. The flows that there are stay: [`request`](Switch::request) has them removed.
    pub fn set_megaflows(&self, enabled: bool) {
        self.control.exact.store(!enabled, Ordering::Relaxed);
    }

    /// Sets whether the datapath's flows are logged whole, where they are logged, rather than by their identifiers.
    pub fn set_whole_dumps(&self, whole: bool) {
        self.control.dumps_whole.store(whole, Ordering::Relaxed);
    }

    /// Whether they are.
    pub fn has_whole_dumps(&self) -> bool {
        self.control.dumps_whole.load(Ordering::Relaxed)
    }

    /// Stops or resumes the rounds over the datapath's flows that nobody asks for. While they are stopped, no flow is
    /// brought up to date, and none expires.
    pub fn set_paused(&self, paused: bool) {
        self.control.paused.store(paused, Ordering::Relaxed);
        if !paused {
            self.notify();
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.control.paused.load(Ordering::Relaxed)
    }

    /// Has all datapath flows brought up to date or removed by the thread that calls [`run`](Switch::run), and `done` called
    /// by it then. Without such a thread, this one does it. Not to be called from an upcall.
    pub fn request(&self, request: FlowRequest, done: Done) {
        self.requests.add(request, done);
        if self.has_revalidator() {
            self.notify();
        } else {
            self.serve_requests();
        }
    }

    /// Does what has been asked for: each kind once, for all who ask.
    pub(super) fn serve_requests(&self) {
        let requests = self.requests.take();
        let is_any = |wanted| requests.iter().any(|(request, _)| *request == wanted);
        if is_any(FlowRequest::Purge) {
            self.purge();
        }
        if is_any(FlowRequest::Revalidate) {
            self.revalidate();
        }
        requests.into_iter().for_each(|(_, done)| done());
    }

    /// Statistics of the rounds over the datapath's flows.
    pub fn revalidation_stats(&self) -> RevalidationStats {
        self.round_stats.lock().clone()
    }

    /// Removes a datapath flow and counts its last packets. Whether there was one.
    pub fn remove_datapath_flow(&self, id: FlowId) -> bool {
        let Some(datapath) = self.datapath.get() else { return false };
        let removed = datapath.remove_all(&[id]);
        let found = !removed.is_empty();
        self.credit_last(removed);
        found
    }

    /// The mask of a flow for packets with this key, whose translation depends on `mask`.
    pub(crate) fn mask_of_flow(&self, mut mask: Mask, key: &Key) -> Mask {
        if self.are_flows_exact() {
            match_all(&mut mask, key);
        }
        mask
    }

    /// Whether flows match everything.
    pub(crate) fn are_flows_exact(&self) -> bool {
        self.control.exact.load(Ordering::Relaxed)
    }
}
