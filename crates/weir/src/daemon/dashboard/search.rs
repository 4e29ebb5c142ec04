//! `/api/flows`: flows whose text has the words that are asked for.
//!
//! A search looks at a bounded number of flows and answers with where to go on, so a request costs the same however many flows there are.
//! It is done by a thread of its own, which gives way to others, and takes the tables' and the flows' locks for some flows at a time, as a
//! dump does.

use std::sync::Arc;

use datapath::Datapath;
use datapath::text::{Context as Style, format_flow};
use ofproto::{Bridge, RuleId, Switch};
use openflow::TableId;
use openflow::text::flow::format_flow_stats;
use tokio::sync::Semaphore;

use super::{of_reply, with_query};
use crate::daemon::commands::Context;
use crate::daemon::commands::reports::json;
use crate::dashboard::report::{FoundFlow, FoundFlows};
use crate::flow_text::Names;
use crate::http::{Answer, Query};
use crate::report::cut;
use crate::unixctl::Reply;

/// Flows that a request looks at.
const LOOKED_AT: usize = 20_000;

/// Bytes of text after which a request has looked at enough, too: a flow may have very many actions.
const READ: usize = 32 << 20;

/// Most flows of an answer, and how many there are where the request does not say.
const MOST: u64 = 500;
const USUAL: u64 = 50;

/// OpenFlow flows that are described at a time.
const PIECE: usize = 256;

/// How many are under way at a time.
static PLACES: Semaphore = Semaphore::const_new(2);

/// Niceness of the thread: forwarding and everything else comes first.
const NICE: i32 = 10;

/// `/api/flows`.
pub fn report(context: &Context, query: Option<&str>) -> Answer {
    with_query(query, &["of", "text", "bridge", "table", "most", "from"], |query| {
        let (switch, datapath) = (context.engine.switch.clone(), context.engine.datapath.clone());
        let wanted = Wanted::read(query)?;
        let search: Box<dyn FnOnce() -> FoundFlows + Send> = match query.get("of") {
            None | Some("openflow") => {
                let walk = RuleWalk::read(query, &switch)?;
                Box::new(move || walk.find(&switch, &wanted))
            }
            Some("datapath") => {
                if let Some(name) = ["bridge", "table"].into_iter().find(|name| query.get(name).is_some()) {
                    return Err(format!("{name}: flows of the datapath are of no bridge and no table"));
                }
                let from = query.number("from", 0..=u64::MAX, 0)?;
                Box::new(move || find_in_datapath(&datapath, &wanted, from))
            }
            Some(other) => return Err(format!("of={other}: openflow or datapath")),
        };
        Ok(of_reply(Reply::on_thread("search", &PLACES, move || {
            if let Err(e) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
                tracing::debug!("search: cannot give way to others: {e}");
            }
            json(&search())
        })))
    })
}

/// What flows are to have, and how many are wanted.
struct Wanted {
    /// In lower case.
    words: Vec<String>,
    most: usize,
}

impl Wanted {
    fn read(query: &Query) -> Result<Wanted, String> {
        let text = query.get("text").unwrap_or_default().to_ascii_lowercase();
        let words = text.split_whitespace().map(str::to_owned).collect();
        Ok(Wanted { words, most: query.number("most", 1..=MOST, USUAL)? as usize })
    }

    fn accepts(&self, text: &str) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let text = text.to_ascii_lowercase();
        self.words.iter().all(|word| text.contains(word.as_str()))
    }
}

/// Where a search of OpenFlow flows goes.
struct RuleWalk {
    /// By name, the first one that is looked at first.
    bridges: Vec<Bridge>,
    table: TableId,
    /// In the first bridge, after this one.
    after: Option<RuleId>,
}

impl RuleWalk {
    fn read(query: &Query, switch: &Arc<Switch>) -> Result<RuleWalk, String> {
        let mut bridges = switch.bridges();
        bridges.sort_by(|a, b| a.name().cmp(b.name()));
        if let Some(name) = query.get("bridge") {
            bridges.retain(|bridge| bridge.name() == name);
            if bridges.is_empty() {
                return Err(format!("no such bridge: {name}"));
            }
        }
        let table = match query.get("table") {
            None => TableId::ALL,
            Some(_) => TableId(query.number("table", 0..=254, 0)? as u8),
        };
        let Some(from) = query.get("from") else { return Ok(RuleWalk { bridges, table, after: None }) };
        let wrong = || format!("from={from}: not a place; the answer before has it as \"next\"");
        let (name, id) = from.rsplit_once('/').ok_or_else(wrong)?;
        let after: RuleId = id.parse().map_err(|_| wrong())?;
        // The bridge may have gone; those behind it are still to come.
        bridges.retain(|bridge| bridge.name() >= name);
        let after = bridges.first().is_some_and(|bridge| bridge.name() == name).then_some(after);
        Ok(RuleWalk { bridges, table, after })
    }

    fn find(self, switch: &Arc<Switch>, wanted: &Wanted) -> FoundFlows {
        // Waits for a round of the revalidators only where there are few datapath flows.
        switch.refresh_statistics();
        let RuleWalk { bridges, table, mut after } = self;
        let (mut found, mut read) = (FoundFlows::default(), 0);
        for bridge in bridges {
            let names = Names::of_bridge(&bridge);
            let mut walk = bridge.walk_after(table, after.take());
            while let Some(flows) = walk.next_known(PIECE) {
                for (id, flow) in flows {
                    found.looked_at += 1;
                    let mut text = String::new();
                    format_flow_stats(&mut text, &flow, &names);
                    read += text.len();
                    if wanted.accepts(&text) {
                        let (packets, bytes) = (flow.packet_count, flow.byte_count);
                        let text = cut(text.trim_start().to_owned());
                        found.rows.push(FoundFlow { bridge: Some(bridge.name().to_owned()), packets, bytes, text });
                    }
                    if found.rows.len() == wanted.most || found.looked_at == LOOKED_AT || read > READ {
                        found.next = Some(format!("{}/{id}", bridge.name()));
                        return found;
                    }
                }
            }
        }
        found
    }
}

/// Looks at the datapath's flows, a chunk at a time. A chunk that was begun is finished, so an answer may have some more flows than
/// are wanted.
fn find_in_datapath(datapath: &Arc<Datapath>, wanted: &Wanted, from: u64) -> FoundFlows {
    let names = Names::of_datapath(datapath);
    let style = Style { verbose: false, ports: &names };
    let (mut found, mut read) = (FoundFlows::default(), 0);
    let mut next = usize::try_from(from).ok().filter(|from| *from < datapath.flow_numbers());
    while let Some(from) = next {
        if found.rows.len() >= wanted.most || found.looked_at >= LOOKED_AT || read > READ {
            break;
        }
        let (flows, after) = datapath.flows_from(from);
        next = after;
        for flow in flows {
            found.looked_at += 1;
            let mut text = String::new();
            format_flow(&mut text, &flow, datapath.now(), &style);
            read += text.len();
            if wanted.accepts(&text) {
                let (packets, bytes) = (flow.stats.packets, flow.stats.bytes);
                found.rows.push(FoundFlow { bridge: None, packets, bytes, text: cut(text) });
            }
        }
    }
    found.next = next.map(|next| next.to_string());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_words_are_wanted_in_any_order_and_case() {
        let wanted = |text: &str| {
            let text: String = text.replace(' ', "+");
            Wanted::read(&Query::parse(Some(&format!("text={text}")), &["text"]).unwrap()).unwrap()
        };
        let flow = "table=3, priority=100,ip,in_port=Eth1,nw_dst=10.0.0.7 actions=output:p2";
        for found in ["", "10.0.0.7", "ETH1", "p2 table=3", "  ip  "] {
            assert!(wanted(found).accepts(flow), "{found:?}");
        }
        for missed in ["10.0.0.8", "ip udp"] {
            assert!(!wanted(missed).accepts(flow), "{missed:?}");
        }
    }
}
