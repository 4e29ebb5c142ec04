//! Which ports send to which: the flows with the most traffic, added up by where their packets come in and where they leave.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use datapath::{Action, Datapath, FlowId, PortNo};

use super::question::Question;
use super::top::{Count, Highest, by_second, rank};
use crate::report::ranking::{Pairs, TopPair};

/// Flows that are looked at: the first ones by traffic, so that the work does not grow with the number of all.
pub const FLOWS: usize = 1000;

/// Ports of one flow that are looked at. A flood may have any number.
const MOST_OUTPUTS: usize = 64;

/// Adds flows up. `flows` are the rise, the count and the identity of each; all flows together have risen by `all`.
pub fn pairs(
    datapath: &Datapath,
    question: &Question,
    flows: impl Iterator<Item = (Count, Count, FlowId)>,
    all: Count,
    time: Duration,
) -> Pairs {
    let (mut sums, mut looked_at, mut seen) = (BTreeMap::<(PortNo, PortNo), (Count, Count)>::new(), 0, 0);
    for (risen, count, id) in flows {
        let Some(flow) = datapath.flow(id) else { continue };
        looked_at += 1;
        seen += risen.packets;
        let mut outputs = Vec::new();
        outputs_of(&flow.actions, &mut outputs);
        let from = datapath::upcall::in_port(&flow.key);
        for to in outputs {
            let (rise, sum) = sums.entry((from, to)).or_default();
            *rise += risen;
            *sum += count;
        }
    }
    let of = sums.len();
    let mut highest = Highest::new(question.most);
    sums.into_iter()
        .for_each(|(pair, (risen, count))| highest.offer((rank(question.by, risen, count), risen, count, pair)));
    let names: HashMap<_, _> =
        datapath.ports().into_iter().map(|(number, port)| (number, port.name().to_owned())).collect();
    let name = |port: PortNo| names.get(&port).cloned().unwrap_or_else(|| format!("datapath port {}", port.0));
    let row = |(_, risen, count, (from, to)): (_, Count, Count, (PortNo, PortNo))| TopPair {
        traffic: by_second(risen, count, time),
        from: name(from),
        to: name(to),
    };
    let percent = if all.packets == 0 { 100.0 } else { 100.0 * seen as f64 / all.packets as f64 };
    let rows = highest.into_sorted().into_iter().map(row).collect();
    Pairs { interval_s: time.as_secs_f64(), flows: looked_at, percent, of, rows }
}

/// The ports that actions send to, each once. What enters a tunnel is sent to the tunnel's port.
fn outputs_of(actions: &[Action], outputs: &mut Vec<PortNo>) {
    for action in actions {
        let port = match action {
            Action::Output(port) => *port,
            Action::TunnelPush(headers) => headers.tunnel_port,
            Action::Clone(inner) => {
                outputs_of(inner, outputs);
                continue;
            }
            Action::CheckLength { longer, others, .. } => {
                outputs_of(longer, outputs);
                outputs_of(others, outputs);
                continue;
            }
            _ => continue,
        };
        if outputs.len() < MOST_OUTPUTS && !outputs.contains(&port) {
            outputs.push(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::flow::text::NoNames;

    use super::*;

    fn outputs(actions: &str) -> Vec<u32> {
        let mut outputs = Vec::new();
        outputs_of(&datapath::text::parse_actions(actions, &NoNames).unwrap(), &mut outputs);
        outputs.into_iter().map(|port| port.0).collect()
    }

    #[test]
    fn each_port_counts_once() {
        assert_eq!(outputs("2,push_vlan(vid=5,pcp=0),3,clone(pop_vlan,4,2),recirc(0x7)"), [2, 3, 4]);
        assert!(outputs("drop").is_empty());
        let flood: Vec<_> = (1..1000).map(|port| port.to_string()).collect();
        assert_eq!(outputs(&flood.join(",")).len(), MOST_OUTPUTS);
    }
}
