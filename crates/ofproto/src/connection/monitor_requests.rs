//! Requests about flow monitors, and the answer: the flows that are there.
//!
//! The answer is made in pieces like others about flows. What changes meanwhile is told after it: a flow that is removed
//! before its piece is made is told as removed all the same.

use openflow::monitor::{FlowEvent, FlowMonitorCommand, FlowMonitorFlags};
use openflow::{FlowMonitorRequest, FlowUpdate, MultipartReply, OfError, Version};

use super::Session;
use super::flow_monitors::{Monitor, as_request, update};
use super::reply::{PIECE, Pieces, Step};
use crate::bridge::FlowWalk;

impl Session {
    /// Changes the connection's monitors, and begins the answer.
    pub(super) fn monitor_flows(
        &mut self,
        version: Version,
        mut requests: Vec<FlowMonitorRequest>,
    ) -> Result<Pieces, OfError> {
        for request in &mut requests {
            self.bridge.place(&mut request.matching)?;
        }
        self.change_monitors(version, &requests)?;
        let initial = |request: &&FlowMonitorRequest| {
            request.command != FlowMonitorCommand::Delete && request.flags.contains(FlowMonitorFlags::INITIAL)
        };
        let begin = |request| (self.bridge.walk_rules(as_request(request)), Monitor::new(request));
        Ok(Initial { walks: requests.iter().filter(initial).map(begin).collect(), current: 0 }.pieces())
    }

    /// NXT_FLOW_MONITOR_CANCEL.
    pub(super) fn cancel_monitor(&mut self, version: Version, id: u32) -> Result<(), OfError> {
        self.change_monitors(version, &[FlowMonitorRequest::removal(id)])
    }

    /// Is told of changes as long as there are monitors.
    fn change_monitors(&mut self, version: Version, requests: &[FlowMonitorRequest]) -> Result<(), OfError> {
        // Before the monitors are there, so that they miss nothing.
        self.bridge.watch_flows(self.subscription, self.mailbox.clone());
        let changed = self.mailbox.change_monitors(version, requests);
        self.has_monitors = self.mailbox.has_monitors();
        if !self.has_monitors {
            self.bridge.unwatch_flows(self.subscription);
        }
        changed
    }
}

/// Tells the flows that the monitors of a request are about, each of them once.
struct Initial {
    walks: Vec<(FlowWalk, Monitor)>,
    current: usize,
}

impl Initial {
    /// A piece waits until it is known whether another one follows.
    fn pieces(mut self) -> Pieces {
        let mut waiting = Some(Vec::new());
        Box::new(move || {
            let Some(updates) = self.next() else {
                return Some(Step::Piece(MultipartReply::FlowMonitor(waiting.take()?), false));
            };
            if updates.is_empty() {
                return Some(Step::Working);
            }
            let piece = waiting.replace(updates).unwrap_or_default();
            if piece.is_empty() {
                return Some(Step::Working);
            }
            Some(Step::Piece(MultipartReply::FlowMonitor(piece), true))
        })
    }

    /// The next flows, which may be none although more follow. `None` at the end.
    fn next(&mut self) -> Option<Vec<FlowUpdate>> {
        let (walk, _) = self.walks.get_mut(self.current)?;
        let Some((rules, tlv)) = walk.next_rules(PIECE) else {
            self.current += 1;
            return Some(Vec::new());
        };
        let mut updates = Vec::new();
        for rule in rules {
            let is_about = |(_, monitor): &mut (FlowWalk, Monitor)| monitor.accepts(&rule);
            if self.walks[..self.current].iter_mut().any(is_about) {
                continue;
            }
            let later = &mut self.walks[self.current..];
            let with_instructions = later.iter_mut().any(|walk| walk.1.has_instructions() && is_about(walk));
            updates.push(update(FlowEvent::Initial, &rule, &tlv, with_instructions));
        }
        Some(updates)
    }
}
