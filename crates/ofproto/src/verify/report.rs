//! What verification of the caches has found, and what it remembers of flows.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};

use datapath::text::format_ufid;
use datapath::verify::VerifySample;
use datapath::verify::state::VerifyReader;
use datapath::{Action, Datapath, FlowDump, FlowId};
use packet::Time;
use parking_lot::Mutex;

/// How many disagreements are kept in full: the latest ones.
const KEPT: usize = 8;

/// Most flows that are remembered because of what a cache said of them.
const MOST_SUSPECTS: usize = 64;

/// Declares why packets cannot be compared: each with its name, and what it means.
macro_rules! causes {
    ($($variant:ident $name:literal $meaning:literal;)*) => {
        /// Why a sampled packet cannot be compared.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum NotComparable {
            $(#[doc = $meaning] $variant,)*
        }

        impl NotComparable {
            /// All causes.
            pub const ALL: &[NotComparable] = &[$(NotComparable::$variant,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(NotComparable::$variant => $name,)* }
            }

            /// What it means, in a sentence.
            pub fn describe(self) -> &'static str {
                match self { $(NotComparable::$variant => $meaning,)* }
            }
        }
    };
}

causes! {
    FlowGone "flow_gone" "The flow has been removed since.";
    Tables "tables_changed" "What the flow depends on has changed, and the flow has not followed yet.";
    Macs "macs_moved" "An address that the flow depends on was learnt, has moved or was forgotten, or a multicast group has other members.";
    Neighbours "neighbours_changed" "The end of a tunnel is reached otherwise now.";
    Learns "learns" "The packet would teach the tables something now.";
    Ambiguous "ambiguous" "Several OpenFlow flows of one priority match the packet, and it is not defined which one counts.";
    Context "context_gone" "The bridge, the port or the recirculation state has gone.";
    Modified "flow_modified" "The flow's actions changed while the packet was forwarded, or are suspected: its next sample decides.";
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The flow that was found does not match the packet.
    Match,
    /// A cache says something else than the flow.
    Cache,
    /// The tables say something else than the flow.
    Actions,
}

impl Wrong {
    /// It, in words.
    pub fn describe(self) -> &'static str {
        match self {
            Wrong::Match => "the flow that was found does not match the packet",
            Wrong::Cache => "a cache says something else than its flow",
            Wrong::Actions => "the OpenFlow tables say something else than the flow",
        }
    }
}

/// A packet with which the caches did something else than the tables say, and all that is needed to see it again.
#[derive(Clone, Debug)]
pub struct Disagreement {
    /// When the packet was forwarded.
    pub time: Time,
    /// What is wrong.
    pub wrong: Wrong,
    /// The flow, which was removed.
    pub id: FlowId,
    /// The bridge and its port that the packet came in by, as far as they are known.
    pub place: String,
    /// The packet's key with its metadata, in the syntax of datapath flows.
    pub packet: String,
    /// The packet, in hexadecimal, maybe cut short.
    pub frame: String,
    /// Its whole length.
    pub length: u32,
    /// What a cache said is to be done.
    pub decided: String,
    /// The flow's match.
    pub flow: String,
    /// The flow's actions.
    pub actions: String,
    /// The rules that made the flow.
    pub rules: String,
    /// The actions that the tables give, unless they were not asked.
    pub expected: Option<(String, String)>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Disagreement { wrong, id, place, packet, frame, length, decided, flow, actions, rules, .. } = self;
        let mut ufid = String::new();
        format_ufid(&mut ufid, *id);
        write!(
            f,
            "{}: {ufid} {flow}, actions:{actions}; made by {rules}; {decided} for the packet ",
            wrong.describe()
        )?;
        write!(f, "{packet} at {place}, {length} bytes: {frame}")?;
        if let Some((actions, rules)) = &self.expected {
            write!(f, "; expected actions:{actions}, by {rules}")?;
        }
        f.write_str("; the flow was removed")
    }
}

/// How many packets were checked, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyCounts {
    /// Packets for which caches and tables agree.
    pub equal: u64,
    /// Those that could not be compared, in the order of [`NotComparable::ALL`].
    not_comparable: [u64; NotComparable::ALL.len()],
    /// Those for which they do not agree.
    pub disagreements: u64,
    /// Samples that were lost because too many waited.
    pub lost: u64,
}

impl VerifyCounts {
    /// How many packets were checked.
    pub fn checked(&self) -> u64 {
        self.equal + self.disagreements + self.not_comparable.iter().sum::<u64>()
    }

    /// How many could not be compared for this cause.
    pub fn not_comparable(&self, cause: NotComparable) -> u64 {
        self.not_comparable[cause as usize]
    }
}

/// What has been found so far.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// How many packets were checked.
    pub counts: VerifyCounts,
    /// The latest disagreements, the oldest first.
    pub latest: VecDeque<Disagreement>,
}

/// A sample with which the tables did not agree when it was compared, and which is to be compared again.
pub(super) struct Doubt {
    pub sample: VerifySample,
    /// How often it was compared.
    pub compared: usize,
}

/// The actions that a flow had when it was noticed that a cache knew it otherwise, and when that was.
type Suspicion = (Arc<[Action]>, Time);

/// What verification has found, and what it remembers.
#[derive(Default)]
pub(crate) struct Verification {
    report: Mutex<VerifyReport>,
    /// By which samples come.
    pub(super) reader: OnceLock<VerifyReader>,
    /// What is to be compared again, the oldest first.
    pub(super) doubts: Mutex<VecDeque<Doubt>>,
    /// Flows that a cache knew otherwise.
    suspects: Mutex<HashMap<FlowId, Suspicion>>,
}

impl Verification {
    /// Has samples read from this datapath. Can be done once.
    pub fn connect(&self, datapath: &Datapath) {
        let _ = self.reader.set(datapath.verify_reader());
    }

    pub(super) fn note_equal(&self) {
        self.report.lock().counts.equal += 1;
    }

    pub(super) fn note(&self, cause: NotComparable) {
        self.report.lock().counts.not_comparable[cause as usize] += 1;
    }

    pub(super) fn note_disagreement(&self, found: Disagreement) {
        let report = &mut *self.report.lock();
        report.counts.disagreements += 1;
        if report.latest.len() >= KEPT {
            report.latest.pop_front();
        }
        report.latest.push_back(found);
    }

    /// How many packets were checked so far, by outcome.
    pub fn counts(&self) -> VerifyCounts {
        let lost = self.reader.get().map_or(0, VerifyReader::lost);
        VerifyCounts { lost, ..self.report.lock().counts }
    }

    /// What was found so far.
    pub fn report(&self) -> VerifyReport {
        VerifyReport { counts: self.counts(), latest: self.report.lock().latest.clone() }
    }

    /// Whether a cache is wrong about a flow, when it differs from what the flow says. The flow may have been modified after the cache was read:
    /// then a later packet finds the new actions there.
    pub(super) fn is_cache_wrong(&self, sample: &VerifySample, flow: &FlowDump, now: Time) -> bool {
        let mut suspects = self.suspects.lock();
        match suspects.get(&flow.id) {
            Some((actions, since)) if Arc::ptr_eq(actions, &flow.actions) => sample.time > *since,
            _ => {
                if suspects.len() >= MOST_SUSPECTS {
                    suspects.clear();
                }
                suspects.insert(flow.id, (flow.actions.clone(), now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use datapath::verify::Decided;

    use super::*;

    #[test]
    fn a_cache_is_suspected_once_and_wrong_twice() {
        let verification = Verification::default();
        let flow = FlowDump {
            id: FlowId(7),
            key: Box::new(packet::Key::new()),
            mask: Arc::new(packet::Mask::wildcard()),
            actions: Arc::new([]),
            stats: Default::default(),
            created: Time(0),
            tag: Arc::new(()),
        };
        let sample = |time| VerifySample {
            time: Time(time),
            flow: flow.id,
            decided: Decided::Program,
            key: Box::new(packet::Key::new()),
            frame: Vec::new(),
            length: 0,
        };
        let wrong = |time, flow: &FlowDump, now| verification.is_cache_wrong(&sample(time), flow, Time(now));
        assert!(!wrong(10, &flow, 20) && !wrong(19, &flow, 30), "forwarded before the first look");
        let modified = FlowDump { actions: Arc::new([]), ..flow.clone() };
        assert!(!wrong(40, &modified, 50), "modified since");
        assert!(wrong(51, &modified, 60));
        for number in 0..1000 {
            wrong(1, &FlowDump { id: FlowId(number), ..flow.clone() }, 2);
        }
        assert!(verification.suspects.lock().len() <= MOST_SUSPECTS);
    }
}
