//! A flow of an OpenFlow table.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use openflow::{Action, Cookie, FlowModFlags, FlowRemovedReason, FlowStats, Instructions, Match, TableId, tun_fields};
use packet::Time;
use packet::flow::block::{BlockId, Pipeline};
use tunnel::fields::FieldTable;

use super::classifier::{Classified, Pattern};
use super::instructions::RuleInstructions;

/// A flow. It never changes but for its counters: a modification replaces it by one with the same
/// counters.
pub struct Rule {
    /// Table that it is in.
    pub table: TableId,
    /// Priority.
    pub priority: u16,
    /// Match, in compact form.
    pub pattern: Pattern,
    /// Cookie.
    pub cookie: Cookie,
    /// Seconds without packets until it expires; zero for never. A connection's end can lower it
    /// ([`timeouts`](Rule::timeouts)).
    pub idle_timeout: u16,
    /// Seconds until it expires; zero for never. Can be lowered, too.
    pub hard_timeout: u16,
    /// Importance for eviction.
    pub importance: u16,
    /// Flags.
    pub flags: FlowModFlags,
    /// Instructions. Rules of a bridge that have the same share them.
    pub instructions: Arc<RuleInstructions>,
    /// When it was added.
    pub created: Time,
    /// When it was added or last modified ([`renewed`](Rule::renewed)).
    pub modified: Time,
    /// Counters.
    pub stats: Arc<RuleStats>,
    /// Its number in the listing of its table; zero until it enters the table. Written by whoever changes the table.
    number: AtomicU64,
    /// What `fin_timeout` has made of the timeouts; only where the rule has such an action.
    caps: Option<Arc<Caps>>,
}

/// What a connection's end (`fin_timeout`) lowers the timeouts of a rule to, in seconds. Zero leaves one as it is.
/// Whoever credits packets writes them; whoever reads the timeouts reads them.
#[derive(Debug, Default)]
pub struct Caps {
    idle: AtomicU16,
    hard: AtomicU16,
}

impl Caps {
    /// What the idle and the hard timeout have been lowered to.
    pub fn get(&self) -> (u16, u16) {
        (self.idle.load(Relaxed), self.hard.load(Relaxed))
    }

    /// Lowers the timeouts.
    pub fn lower(&self, idle: u16, hard: u16) {
        let lower = |cap: &AtomicU16, to: u16| {
            // What another has lowered further stays.
            let _ = cap.fetch_update(Relaxed, Relaxed, |now| Some(capped(now, to)).filter(|&new| new != now));
        };
        lower(&self.idle, idle);
        lower(&self.hard, hard);
    }
}

/// The lower one of two timeouts, of which zero means that there is none.
fn capped(timeout: u16, cap: u16) -> u16 {
    if timeout == 0 || cap == 0 { timeout.max(cap) } else { timeout.min(cap) }
}

impl Rule {
    /// A rule that is about to be added at `now`.
    pub fn new(
        table: TableId,
        priority: u16,
        pattern: Pattern,
        instructions: Arc<RuleInstructions>,
        now: Time,
    ) -> Rule {
        let caps = has_fin_timeout(&instructions.apply).then(Arc::default);
        Rule {
            table,
            priority,
            pattern,
            cookie: Cookie::default(),
            idle_timeout: 0,
            hard_timeout: 0,
            importance: 0,
            flags: FlowModFlags::empty(),
            instructions,
            created: now,
            modified: now,
            stats: Arc::new(RuleStats::new(now)),
            number: AtomicU64::new(0),
            caps,
        }
    }

    /// A copy with the same counters, for a modification.
    pub fn successor(&self) -> Rule {
        Rule {
            pattern: self.pattern.clone(),
            instructions: self.instructions.clone(),
            stats: self.stats.clone(),
            number: AtomicU64::new(0),
            caps: self.caps.clone(),
            ..*self
        }
    }

    /// Replaces the instructions of a rule that is not in a table yet.
    pub fn set_instructions(&mut self, instructions: Arc<RuleInstructions>) {
        if self.caps.is_none() && has_fin_timeout(&instructions.apply) {
            self.caps = Some(Arc::default());
        }
        self.instructions = instructions;
    }

    /// Its number in the listing of its table; zero before it enters the table.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// Gives the rule its number.
    pub(super) fn set_number(&self, number: u64) {
        self.number.store(number, Relaxed);
    }

    /// What is matched, as OpenFlow has it, by a table of its bridge's tun_metadata fields.
    pub fn matching(&self, tlv: &FieldTable) -> Match {
        crate::model::tlv::describe(self.pattern.key(), self.pattern.mask(), tlv)
    }

    /// The numbers of the tun_metadata fields that it matches, reads or writes, as bits.
    pub fn tun_fields(&self) -> u64 {
        let matched = self.pattern.matched(BlockId::Pipeline, offset_of!(Pipeline, tun_metadata_present) / 8);
        u64::from_be(matched) | tun_fields(&self.instructions.apply) | tun_fields(&self.instructions.write)
    }

    /// What the rule is, and its counters, as of `now`.
    pub fn describe(&self, now: Time, tlv: &FieldTable) -> FlowStats {
        let seconds = |since: Time| Some(now.since(since).as_secs().min(u16::MAX.into()) as u16);
        let (idle_timeout, hard_timeout) = self.timeouts();
        FlowStats {
            matching: self.matching(tlv),
            cookie: self.cookie,
            table: self.table,
            priority: self.priority,
            idle_timeout,
            hard_timeout,
            duration: now.since(self.created),
            idle_age: seconds(self.stats.used()),
            hard_age: seconds(self.renewed()),
            packet_count: self.stats.packets(),
            byte_count: self.stats.bytes(),
            flags: self.flags,
            importance: self.importance,
            instructions: Instructions::clone(&self.instructions),
        }
    }

    /// Whether it is the table-miss flow of OpenFlow 1.3: priority zero, matches everything.
    pub fn is_table_miss(&self) -> bool {
        self.priority == 0 && self.pattern.is_any()
    }

    /// Why the rule has expired at `now`, if it has: when more than its time has passed, as in OVS.
    pub fn expired(&self, now: Time) -> Option<FlowRemovedReason> {
        let over = |since: Time, secs: u16| secs != 0 && now.since(since) > Duration::from_secs(secs.into());
        let (idle_timeout, hard_timeout) = self.timeouts();
        if over(self.renewed(), hard_timeout) {
            Some(FlowRemovedReason::HardTimeout)
        } else if over(self.stats.used().max(self.created), idle_timeout) {
            Some(FlowRemovedReason::IdleTimeout)
        } else {
            None
        }
    }

    /// When it was added, modified, or taught again by a packet as it is; the hard timeout counts from here.
    pub fn renewed(&self) -> Time {
        self.modified.max(Time(self.stats.taught.load(Relaxed)))
    }

    /// Idle and hard timeout in force.
    pub fn timeouts(&self) -> (u16, u16) {
        let (idle, hard) = self.caps.as_ref().map_or((0, 0), |caps| caps.get());
        (capped(self.idle_timeout, idle), capped(self.hard_timeout, hard))
    }

    /// Whether it has a timeout, or can get one.
    pub fn can_expire(&self) -> bool {
        self.idle_timeout != 0 || self.hard_timeout != 0 || self.caps.is_some()
    }

    /// Where `fin_timeout` lowers the timeouts, if the rule has that action.
    pub fn caps(&self) -> Option<&Arc<Caps>> {
        self.caps.as_ref()
    }
}

impl Classified for Rule {
    fn priority(&self) -> u16 {
        self.priority
    }

    fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    fn conjunctions(&self) -> &[super::Conjunction] {
        &self.instructions.conjunctions
    }
}

fn has_fin_timeout(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::FinTimeout { .. } => true,
        Action::Clone(inner) => has_fin_timeout(inner),
        _ => false,
    })
}

/// Counters of a rule. Whoever credits packets adds to them; anybody may read them. They also know which rule they are of, so that who has the
/// counters, as the records of datapath flows do, can name it.
#[derive(Debug)]
pub struct RuleStats {
    packets: AtomicU64,
    bytes: AtomicU64,
    used: AtomicU64,
    /// When a packet last taught the rule as it is (`learn`).
    taught: AtomicU64,
    cookie: AtomicU64,
    /// [`RuleStats::IN_TABLE`], table and priority; zero until the rule enters a table. Written by whoever changes the table.
    place: AtomicU32,
}

/// What a rule is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleName {
    /// Its table.
    pub table: TableId,
    /// Its priority.
    pub priority: u16,
    /// Its cookie.
    pub cookie: Cookie,
}

impl RuleStats {
    /// Counters at zero, used at `now`.
    pub fn new(now: Time) -> RuleStats {
        let zero = || AtomicU64::new(0);
        let (used, place) = (AtomicU64::new(now.0), AtomicU32::new(0));
        RuleStats { packets: zero(), bytes: zero(), used, taught: zero(), cookie: zero(), place }
    }

    /// Set in `place` where the rule is in a table.
    const IN_TABLE: u32 = 1 << 31;

    /// Notes which rule they are of, as it enters a table.
    pub(super) fn enter(&self, name: RuleName) {
        let place = RuleStats::IN_TABLE | u32::from(name.table.0) << 16 | u32::from(name.priority);
        self.cookie.store(name.cookie.0, Relaxed);
        self.place.store(place, Relaxed);
    }

    /// Which rule they are of. `None`: a hidden flow, which is in no table.
    pub fn rule(&self) -> Option<RuleName> {
        let place = self.place.load(Relaxed);
        let (table, priority) = (TableId((place >> 16) as u8), place as u16);
        (place != 0).then(|| RuleName { table, priority, cookie: Cookie(self.cookie.load(Relaxed)) })
    }

    /// Adds packets.
    pub fn add(&self, packets: u64, bytes: u64, used: Time) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.used.fetch_max(used.0, Relaxed);
    }

    /// Notes that a packet has taught the rule as it is.
    pub fn note_taught(&self, at: Time) {
        self.taught.fetch_max(at.0, Relaxed);
    }

    /// Packets so far.
    pub fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// When the last packet came, or the rule was added.
    pub fn used(&self) -> Time {
        Time(self.used.load(Relaxed))
    }

    /// Starts from zero.
    pub fn reset(&self) {
        self.packets.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
    }

    /// Sets counters and time of use, as after a restart.
    pub fn restore(&self, packets: u64, bytes: u64, used: Time) {
        self.packets.store(packets, Relaxed);
        self.bytes.store(bytes, Relaxed);
        self.used.store(used.0, Relaxed);
    }
}
