//! What shares what a port is sent: `[bridge.port.qos]` and `[[bridge.port.qos.queue]]`, with the names of the tables QoS and Queue.

use std::collections::BTreeMap;

use datapath::{EgressPolicer as DpPolicer, TrtcmPolicer};
use ports::Qos;

use super::reader::{Item, Section};
use crate::config::desired::{self, Interface};
use crate::config::error::nearest;
use crate::config::policing::{Egress, TwoRates};

/// The QoS of a port, for each of its interfaces.
#[derive(Default)]
pub struct PortQos {
    qos: Option<Qos>,
    limits: Option<TwoRates>,
    dscp: BTreeMap<u32, u8>,
}

impl PortQos {
    /// Has an interface of the port, which was read from `s`, do what the QoS says.
    pub fn put(&self, interface: &mut Interface, s: &Section) {
        if self.qos.is_none() && self.limits.is_none() {
            return;
        }
        if !interface.is_device() {
            s.error_at("qos", desired::NO_QOS);
        }
        if interface.policing.egress.is_some() {
            s.error_at("egress-policer-cir", "a port has a QoS, or egress-policer-cir and egress-policer-cbs");
        }
        interface.qos.clone_from(&self.qos);
        interface.queue_dscp.clone_from(&self.dscp);
        if let Some(limits) = &self.limits {
            interface.policing.egress = Some(Egress::TwoRates(limits.clone()));
        }
    }
}

/// Reads the QoS of a port. What a database is only warned of, is a mistake in a file.
pub fn read(port: &mut Section) -> PortQos {
    let Some(mut s) = port.section("qos") else { return PortQos::default() };
    let kind = s.get("type");
    if kind.is_none() {
        s.error("a QoS needs a type: type = \"linux-htb\"");
    }
    let mut qos = kind.and_then(|item| read_type(&item));
    let kind = qos.as_ref().map(|qos| qos.kind);
    let mut dscp = BTreeMap::new();
    let settings = read_settings(&mut s, kind.map(|kind| kind.settings));
    if let Some(qos) = &mut qos {
        qos.set(pairs(&settings));
    }
    let mut seen = BTreeMap::new();
    for item in s.list("queue") {
        let Some(mut queue) = item.section() else { continue };
        let number = queue.get("number");
        if number.is_none() {
            queue.error("a queue needs a number: number = 1");
        }
        let number = number.and_then(|item| item.integer(0..=u32::MAX.into(), "the number of a queue"));
        let settings = read_settings(&mut queue, kind.map(|kind| kind.queue_settings));
        let code = queue.integer("dscp", 0..=63, "a DSCP");
        queue.finish();
        let Some(number) = number.map(|number| number as u32) else { continue };
        if let Some(line) = seen.insert(number, item.line()) {
            item.error(format!("queue {number} is listed twice: line {line} has it already"));
        }
        if let Some(Err(problem)) = qos.as_mut().map(|qos| qos.add_queue(number, pairs(&settings))) {
            item.error(problem);
        }
        dscp.extend(code.map(|code| (number, code as u8)));
    }
    s.finish();
    match qos {
        Some(qos) if qos.kind.name == TrtcmPolicer::TYPE => {
            let (limits, problems) = TwoRates::of(&qos);
            problems.into_iter().for_each(|problem| s.error(problem));
            PortQos { qos: None, limits, dscp }
        }
        qos => PortQos { qos, limits: None, dscp },
    }
}

fn read_type(item: &Item) -> Option<Qos> {
    let name = item.str()?;
    if name == DpPolicer::ONE_RATE {
        item.error("the keys egress-policer-cir and egress-policer-cbs of the port are for this");
        return None;
    }
    Qos::new(name, []).map_err(|problem| item.error(problem)).ok()
}

/// The table `options`, with those settings that the type knows.
fn read_settings(s: &mut Section, known: Option<&'static [&'static str]>) -> BTreeMap<String, String> {
    s.map("options", |name, item| {
        let known = known?;
        if !known.contains(&name) {
            let near = nearest(name, known.iter().copied()).map(|near| format!("; did you mean {near:?}?"));
            let list = if known.is_empty() { "none".into() } else { known.join(", ") };
            item.error(format!("there is no such setting{} (settings here: {list})", near.unwrap_or_default()));
            return None;
        }
        Some(item.integer(0..=i64::MAX, "a number")?.to_string())
    })
}

fn pairs(settings: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    settings.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}
