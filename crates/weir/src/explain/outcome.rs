//! What datapath actions do with a packet, as data: where it goes, and with which rewrites.

use datapath::text::{Context as Style, format_actions};
use datapath::{Action, Bucket, DropReason, PortNo, Punt};
use packet::Key;
use serde::{Deserialize, Serialize};

use crate::tap::verdict::{self, PortTable};

/// Most outputs that are listed.
const MOST_OUTPUTS: usize = 1024;

/// What becomes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// In a few words.
    pub text: String,
    /// Where it is sent, in order.
    pub outputs: Vec<Output>,
    /// The recirculation ids with which it comes round again.
    pub recirculations: Vec<u32>,
    /// Whether a controller gets it.
    pub to_controller: bool,
    /// Whether meters can drop it on its way.
    pub metered: bool,
    /// Why it is dropped, if it is sent nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DroppedFor>,
}

/// A port that a packet is sent to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Name of the port.
    pub port: String,
    /// The datapath actions that have changed the packet before, in the syntax of ovs-dpctl(8).
    pub rewrites: String,
}

/// Why a packet is dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DroppedFor {
    /// The reason, as `weir drops` has it.
    pub reason: String,
    /// What that means.
    pub meaning: String,
    /// The stage that drops it.
    pub stage: String,
}

impl Outcome {
    /// The outcome of actions on packets with this key.
    pub fn of(actions: &[Action], key: &Key, ports: &PortTable) -> Outcome {
        let mut outcome = Outcome { text: verdict::outcome(actions, ports), ..Outcome::default() };
        let mut reason = None;
        outcome.add(actions, (key, ports), &mut String::new(), &mut reason);
        if outcome.is_dropped() {
            let reason = reason.unwrap_or(DropReason::Rule);
            outcome.dropped = Some(DroppedFor {
                reason: reason.name().into(),
                meaning: reason.describe().into(),
                stage: reason.stage().name().into(),
            });
        }
        outcome
    }

    /// Whether it is dropped for sure.
    fn is_dropped(&self) -> bool {
        self.text.starts_with("dropped")
    }

    fn add(
        &mut self,
        actions: &[Action],
        of: (&Key, &PortTable),
        rewrites: &mut String,
        reason: &mut Option<DropReason>,
    ) {
        let (key, ports) = of;
        for action in actions {
            match action {
                Action::Output(port) => self.output(*port, ports, rewrites),
                Action::Bond { bond, bucket: Bucket::Fixed(bucket) } => {
                    bond.member(*bucket).iter().for_each(|port| self.output(*port, ports, rewrites));
                }
                Action::Bond { bond, bucket: Bucket::ByHash } => {
                    bond.members().iter().for_each(|port| self.output(*port, ports, rewrites));
                }
                Action::Recirc(id) => self.recirculations.push(*id),
                Action::Punt(punt) => self.to_controller |= matches!(**punt, Punt::PacketIn(_)),
                Action::Drop(why) => *reason = Some(*why),
                Action::Meter(_) => self.metered = true,
                Action::Clone(inner) | Action::Sample { actions: inner, .. } => {
                    self.add(inner, of, &mut rewrites.clone(), reason);
                }
                Action::CheckLength { longer, others, .. } => {
                    self.add(longer, of, &mut rewrites.clone(), reason);
                    self.add(others, of, &mut rewrites.clone(), reason);
                }
                rewrite => {
                    if !rewrites.is_empty() {
                        rewrites.push(',');
                    }
                    let style = Style { ports, verbose: false };
                    format_actions(rewrites, std::slice::from_ref(rewrite), key, &style);
                }
            }
        }
    }

    fn output(&mut self, port: PortNo, ports: &PortTable, rewrites: &str) {
        if self.outputs.len() < MOST_OUTPUTS {
            self.outputs.push(Output { port: ports.shown(port), rewrites: rewrites.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::flow::text::NoNames;

    use super::*;

    fn outcome(actions: &str) -> Outcome {
        let actions = datapath::text::parse_actions(actions, &NoNames).unwrap();
        Outcome::of(&actions, &Key::new(), &PortTable::default())
    }

    #[test]
    fn each_output_has_the_rewrites_before_it() {
        let outcome = outcome("2,push_vlan(vid=5,pcp=0),3,clone(pop_vlan,4),recirc(0x7)");
        let outputs: Vec<_> = outcome.outputs.iter().map(|output| (&output.port[..], &output.rewrites[..])).collect();
        let vlan = "push_vlan(vid=5,pcp=0)";
        let both = format!("{vlan},pop_vlan");
        assert_eq!(outputs, [("datapath port 2", ""), ("datapath port 3", vlan), ("datapath port 4", &both)]);
        assert_eq!((outcome.recirculations, outcome.dropped), (vec![7], None));
    }

    #[test]
    fn a_drop_has_its_reason_and_stage() {
        let dropped = outcome("drop").dropped.unwrap();
        assert_eq!((&dropped.reason[..], &dropped.stage[..]), ("rule", DropReason::Rule.stage().name()));
        let actions = [Action::Drop(DropReason::TtlExceeded)];
        let dropped = Outcome::of(&actions, &Key::new(), &PortTable::default()).dropped.unwrap();
        assert_eq!(dropped.reason, "ttl_exceeded");
    }
}
