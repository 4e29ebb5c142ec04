//! The flow monitors of a connection, and what they are told.
//!
//! Changes come with the tables locked, and only those that a monitor can be about are noted. Whoever has made the change
//! then settles: the notes become messages, each transaction's its own. Where no monitor is, nothing of this is called.
//!
//! What waits for a slow peer is bounded as in Open vSwitch: with more than [`PAUSE_ABOVE`] bytes, the peer is told that its
//! monitors pause. From then on only removals of flows that it knows of are put in the queue. Of other changes a map keeps
//! which rules they have left: one entry for each rule that is in the tables, however often it changes. When the peer has
//! taken all, the map is told piece by piece, and at its end that the monitors have resumed. So nothing but what has
//! changed is looked at. Both queue and map count as memory of the connection's events, which is bounded for all connections.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use openflow::codec::{DecodeOptions, encode_all};
use openflow::monitor::{FlowEvent, FlowMonitorCommand, FlowMonitorFlags, MonitoredFlow};
use openflow::{
    Body, Dialect, FlowMonitorRequest, FlowStatsRequest, FlowUpdate, Instructions, Message, MultipartReply, OfError,
    TableId, Version,
};
use tunnel::fields::FieldTable;

use super::budget::Charge;
use crate::bridge::Filter;
use crate::model::flow_changes::{FlowChanges, RuleChange};
use crate::table::{Rule, Within};

/// Most monitors of a connection. Each change looks at all of them, and so all connections together have a limit of their own.
const MAX_MONITORS: usize = 256;

/// Bytes of updates that wait before the monitors pause.
pub(super) const PAUSE_ABOVE: usize = 128 << 10;

/// Bytes of updates that wait before no more is told of what has changed during a pause.
const RESUME_BELOW: usize = 64 << 10;

/// Most updates of a message.
const AT_ONCE: usize = 128;

/// What a monitor costs in memory, about: a match and its layout.
const MONITOR_BYTES: usize = 2048;

/// What an entry of the map of a pause costs, about.
const WAITING_BYTES: usize = 64;

/// A monitor.
#[derive(Clone)]
pub(super) struct Monitor {
    flags: FlowMonitorFlags,
    table: TableId,
    filter: Arc<Filter>,
    within: Within,
}

impl Monitor {
    /// The monitor that a request is about, whose match has been placed.
    pub fn new(request: &FlowMonitorRequest) -> Monitor {
        Monitor {
            flags: request.flags,
            table: request.table,
            filter: Arc::new(Filter { out_port: request.out_port, out_group: request.out_group }),
            within: Within::new(&request.matching.key, &request.matching.mask),
        }
    }

    /// Whether it is about a rule, whatever that does.
    fn covers(&mut self, rule: &Rule) -> bool {
        (self.table == TableId::ALL || self.table == rule.table) && self.within.contains(&rule.pattern)
    }

    /// Whether it is about a rule that is there.
    pub fn accepts(&mut self, rule: &Rule) -> bool {
        self.covers(rule) && self.filter.accepts(rule)
    }

    /// Whether it is to be told of a change of a rule that it covers. As in Open vSwitch, it is where the rule has output to its port
    /// before the change.
    fn wants(&self, event: FlowEvent, rule: &Rule, old: Option<&Rule>) -> bool {
        let flag = match event {
            FlowEvent::Initial => FlowMonitorFlags::INITIAL,
            FlowEvent::Added => FlowMonitorFlags::ADD,
            FlowEvent::Removed(_) => FlowMonitorFlags::REMOVED,
            FlowEvent::Modified => FlowMonitorFlags::MODIFY,
        };
        self.flags.contains(flag)
            && (self.filter.accepts_port_of(rule) || old.is_some_and(|old| self.filter.accepts_port_of(old)))
            && self.filter.accepts_group_of(rule)
    }

    /// Whether it is told of instructions.
    pub fn has_instructions(&self) -> bool {
        self.flags.contains(FlowMonitorFlags::INSTRUCTIONS)
    }
}

/// An update about a rule.
pub(super) fn update(event: FlowEvent, rule: &Rule, tlv: &FieldTable, with_instructions: bool) -> FlowUpdate {
    let (idle_timeout, hard_timeout) = rule.timeouts();
    FlowUpdate::Flow(Box::new(MonitoredFlow {
        event,
        table: rule.table,
        priority: rule.priority,
        idle_timeout,
        hard_timeout,
        cookie: rule.cookie,
        matching: rule.matching(tlv),
        instructions: if with_instructions { Instructions::clone(&rule.instructions) } else { Instructions::default() },
    }))
}

/// The changes of a transaction that are to be told.
struct Notes {
    tlv: Arc<FieldTable>,
    changes: std::vec::IntoIter<Note>,
    /// The connection has been told that the transaction is its own.
    has_abbreviated: bool,
}

/// A change of a rule that some monitor covers.
struct Note {
    event: FlowEvent,
    /// The rule as it is now, or was when it was removed.
    rule: Arc<Rule>,
    /// The rule that it has replaced.
    old: Option<Arc<Rule>>,
    /// Whether a monitor is to be told.
    wanted: bool,
    with_instructions: bool,
    /// The transaction id of the connection's own request, which is told instead.
    abbreviated: Option<u32>,
}

/// A rule that has changed during a pause, as it is now.
struct Waiting {
    rule: Arc<Rule>,
    was_added: bool,
    /// The peer has been told of a rule with the same match and priority.
    is_known: bool,
    with_instructions: bool,
}

/// What has changed during a pause, by the addresses of the rules, which are held and so keep them.
#[derive(Default)]
struct Pause {
    waiting: BTreeMap<usize, Waiting>,
    /// The peer has taken what came before the pause, and is told of what has changed.
    resumes: bool,
}

/// See the [module](self).
pub(super) struct FlowMonitors {
    monitors: BTreeMap<u32, Monitor>,
    /// As many of those that all connections may have.
    share: Charge,
    version: Option<Version>,
    notes: VecDeque<Notes>,
    /// Messages, each with its number among the events.
    queue: VecDeque<(u64, Vec<u8>)>,
    /// Their bytes.
    queued: usize,
    /// Bytes that were handed over and that the peer has not taken.
    handed_over: usize,
    pause: Option<Pause>,
    /// What the tun_metadata fields stand for, as of the latest change.
    tlv: Arc<FieldTable>,
}

impl FlowMonitors {
    /// None yet.
    pub fn new(share: Charge) -> FlowMonitors {
        FlowMonitors {
            monitors: BTreeMap::new(),
            share,
            version: None,
            notes: VecDeque::new(),
            queue: VecDeque::new(),
            queued: 0,
            handed_over: 0,
            pause: None,
            tlv: Arc::default(),
        }
    }

    /// Adds, replaces and removes monitors as these requests say, all or none.
    pub fn change(&mut self, version: Version, requests: &[FlowMonitorRequest]) -> Result<(), OfError> {
        let mut monitors = self.monitors.clone();
        for request in requests {
            let exists = monitors.contains_key(&request.id);
            match request.command {
                FlowMonitorCommand::Add if exists => return Err(OfError::OFPMOFC_MONITOR_EXISTS),
                FlowMonitorCommand::Modify | FlowMonitorCommand::Delete if !exists => {
                    return Err(OfError::OFPMOFC_UNKNOWN_MONITOR);
                }
                FlowMonitorCommand::Add if monitors.len() == MAX_MONITORS => return Err(OfError::OFPBRC_EPERM),
                FlowMonitorCommand::Add | FlowMonitorCommand::Modify => {
                    monitors.insert(request.id, Monitor::new(request));
                }
                FlowMonitorCommand::Delete => drop(monitors.remove(&request.id)),
            }
        }
        if !self.share.grow(monitors.len().saturating_sub(self.monitors.len())) {
            return Err(OfError::OFPBRC_EPERM);
        }
        self.share.shrink(self.monitors.len().saturating_sub(monitors.len()));
        (self.monitors, self.version) = (monitors, Some(version));
        if self.monitors.is_empty()
            && let Some(pause) = &mut self.pause
        {
            // Of what becomes of these, nothing is heard any more.
            pause.waiting.clear();
        }
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.monitors.is_empty()
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.share.shrink(self.monitors.len());
        (self.monitors, self.notes, self.queue) = Default::default();
        (self.queued, self.handed_over, self.pause) = Default::default();
    }

    /// Bytes that are kept.
    pub fn memory(&self) -> usize {
        let waiting = self.pause.as_ref().map_or(0, |pause| pause.waiting.len());
        self.queued + waiting * WAITING_BYTES + self.monitors.len() * MONITOR_BYTES
    }

    /// Takes note of the changes that a monitor can be about.
    pub fn note(&mut self, changes: &FlowChanges<'_>) {
        let noted: Vec<Note> = changes.changes.iter().filter_map(|change| self.note_one(change, changes.own)).collect();
        if !noted.is_empty() {
            let (tlv, changes) = (changes.tlv.clone(), noted.into_iter());
            self.notes.push_back(Notes { tlv, changes, has_abbreviated: false });
        }
    }

    fn note_one(&mut self, change: &RuleChange, own: Option<u32>) -> Option<Note> {
        let event = change.event?;
        let (rule, old) = match (&change.new, &change.old) {
            (Some(new), old) => (new, old.as_ref()),
            (None, old) => (old.as_ref()?, None),
        };
        let is_same = |old: &Rule| old.cookie == rule.cookie && old.instructions == rule.instructions;
        // A modification that changes nothing is not told. During a pause, the new rule takes the old one's place.
        let changes_nothing = event == FlowEvent::Modified && old.is_some_and(|old| is_same(old));
        let (mut covered, mut flags) = (false, FlowMonitorFlags::empty());
        for monitor in self.monitors.values_mut().filter_map(|monitor| monitor.covers(rule).then_some(monitor)) {
            covered = true;
            if !changes_nothing && monitor.wants(event, rule, old.map(Arc::as_ref)) {
                flags |= monitor.flags;
            }
        }
        // A rule that waits is followed, even if the monitor that covered it is there no more.
        let waits = |pause: &Pause| {
            let before = old.unwrap_or(rule);
            !self.notes.is_empty() || pause.waiting.contains_key(&address(before))
        };
        covered |= self.pause.as_ref().is_some_and(waits);
        let in_full = flags.intersects(FlowMonitorFlags::NO_ABBREV | FlowMonitorFlags::ONLY_OWN);
        covered.then(|| Note {
            event,
            rule: rule.clone(),
            old: old.cloned(),
            wanted: !flags.is_empty(),
            with_instructions: flags.contains(FlowMonitorFlags::INSTRUCTIONS),
            abbreviated: own.filter(|_| !in_full),
        })
    }

    /// Makes a message of the next notes of a transaction. False where there are none. `number` gives it its number.
    pub fn settle_some(&mut self, number: &mut impl FnMut() -> u64) -> bool {
        let Some(mut notes) = self.notes.pop_front() else { return false };
        self.tlv = notes.tlv.clone();
        let mut updates = Vec::new();
        for note in notes.changes.by_ref().take(AT_ONCE) {
            updates.extend(self.tell(note, &mut notes.has_abbreviated));
        }
        if !updates.is_empty() {
            self.send_updates(updates, number);
        }
        if notes.changes.len() > 0 {
            self.notes.push_front(notes);
        }
        true
    }

    /// Whether messages wait.
    pub fn has_messages(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The update that a change makes, if it is to be told at once.
    fn tell(&mut self, note: Note, has_abbreviated: &mut bool) -> Option<FlowUpdate> {
        if let Some(pause) = &mut self.pause {
            let told = pause.defer(note)?;
            return Some(update(told.event, &told.rule, &self.tlv, told.with_instructions));
        }
        match note.abbreviated {
            _ if !note.wanted => None,
            Some(xid) => (!std::mem::replace(has_abbreviated, true)).then_some(FlowUpdate::Abbreviated { xid }),
            None => Some(update(note.event, &note.rule, &self.tlv, note.with_instructions)),
        }
    }

    /// Puts a message of updates into the queue, and pauses where the queue is too long then.
    fn send_updates(&mut self, updates: Vec<FlowUpdate>, number: &mut impl FnMut() -> u64) {
        self.send(Body::MultipartReply { more: false, reply: MultipartReply::FlowMonitor(updates) }, number);
        if self.pause.is_none() && self.queued + self.handed_over > PAUSE_ABOVE {
            self.pause = Some(Pause::default());
            self.send_event(FlowUpdate::Paused, Body::FlowMonitorPaused, number);
        }
    }

    /// Says that the monitors pause or resume, before OpenFlow 1.4 in a message of its own.
    fn send_event(&mut self, update: FlowUpdate, message: Body, number: &mut impl FnMut() -> u64) {
        if self.version.is_some_and(|version| version < Version::V1_4) {
            return self.send(message, number);
        }
        let reply = MultipartReply::FlowMonitor(vec![update]);
        self.send(Body::MultipartReply { more: false, reply }, number);
    }

    fn send(&mut self, body: Body, number: &mut impl FnMut() -> u64) {
        let Some(version) = self.version else { return };
        let message = Message { version, xid: 0, dialect: Dialect::Standard, body };
        // An update that is too long for a message is left out of them.
        let encoded = encode_all(&message, DecodeOptions::default());
        for part in encoded.map(|encoded| encoded.messages).unwrap_or_default() {
            self.queued += part.len();
            self.queue.push_back((number(), part));
        }
    }

    /// Says how many bytes of output the peer has not taken.
    pub fn set_output(&mut self, bytes: usize) {
        self.handed_over = self.handed_over.min(bytes);
    }

    /// The number of the next message. Before, messages of what has changed during a pause are made where the peer has
    /// taken enough.
    pub fn next(&mut self, number: &mut impl FnMut() -> u64) -> Option<u64> {
        if self.pause.is_some() {
            self.resume(number);
        }
        self.queue.front().map(|&(number, _)| number)
    }

    /// The next message.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let (_, message) = self.queue.pop_front()?;
        self.queued -= message.len();
        self.handed_over += message.len();
        Some(message)
    }

    /// Goes on with telling what has changed during the pause, and ends it when all is told.
    fn resume(&mut self, number: &mut impl FnMut() -> u64) {
        let waits = self.queued + self.handed_over;
        let Some(pause) = &mut self.pause else { return };
        pause.resumes |= waits == 0;
        // What has not been settled yet is about the map as it is.
        if !pause.resumes || waits >= RESUME_BELOW || !self.notes.is_empty() {
            return;
        }
        let mut updates = Vec::new();
        while updates.len() < AT_ONCE
            && let Some((_, waiting)) = pause.waiting.pop_first()
        {
            let Waiting { rule, was_added, with_instructions, .. } = waiting;
            // A monitor may have been removed meanwhile.
            if self.monitors.values_mut().any(|monitor| monitor.covers(&rule)) {
                let event = if was_added { FlowEvent::Added } else { FlowEvent::Modified };
                updates.push(update(event, &rule, &self.tlv, with_instructions));
            }
        }
        let is_done = pause.waiting.is_empty();
        if !updates.is_empty() {
            let reply = MultipartReply::FlowMonitor(updates);
            self.send(Body::MultipartReply { more: false, reply }, number);
        }
        if is_done {
            self.pause = None;
            self.send_event(FlowUpdate::Resumed, Body::FlowMonitorResumed, number);
        }
    }
}

impl Pause {
    /// Remembers a change, or returns it where it is to be told at once: the removal of a rule that the peer knows of.
    fn defer(&mut self, note: Note) -> Option<Note> {
        let gone = if matches!(note.event, FlowEvent::Removed(_)) { Some(&note.rule) } else { note.old.as_ref() };
        let before = gone.and_then(|rule| self.waiting.remove(&address(rule)));
        let was_known = before.as_ref().map_or(gone.is_some(), |waiting| waiting.is_known);
        if matches!(note.event, FlowEvent::Removed(_)) {
            return Some(note).filter(|note| was_known && note.wanted);
        }
        if note.wanted || before.is_some() {
            let (was_added, had_instructions) =
                before.map_or((false, false), |waiting| (waiting.was_added, waiting.with_instructions));
            let waiting = Waiting {
                was_added: was_added || note.event == FlowEvent::Added,
                is_known: was_known,
                with_instructions: note.with_instructions || had_instructions,
                rule: note.rule,
            };
            self.waiting.insert(address(&waiting.rule), waiting);
        }
        None
    }
}

fn address(rule: &Arc<Rule>) -> usize {
    Arc::as_ptr(rule) as usize
}

/// The rules that a monitor is about, as a request for statistics has it.
pub(super) fn as_request(request: &FlowMonitorRequest) -> FlowStatsRequest {
    FlowStatsRequest {
        matching: request.matching.clone(),
        table: request.table,
        out_port: request.out_port,
        out_group: request.out_group,
        cookie: Default::default(),
    }
}
