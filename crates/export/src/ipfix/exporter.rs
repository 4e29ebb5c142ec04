//! An exporter: a cache with its messages and statistics.
//!
//! A template is sent before the first record that needs it, and again with the first one after each
//! [`TEMPLATE_INTERVAL`]: over UDP it may be lost (RFC 7011, section 8.4).

use std::time::Duration;

use hashbrown::HashMap;
use packet::Time;

use super::cache::{Cache, EndReason, Flow, Totals};
use super::element::{L3, L4, TEMPLATES, Template};
use super::message::{self, Message, Record};
use super::{PLACES, Sample};
use crate::settings::FlowIpfix;
use crate::{Moment, Sent, Sink};

/// How long a template counts as known.
pub const TEMPLATE_INTERVAL: Duration = Duration::from_secs(600);

/// Domains whose templates are remembered. Actions name them, so there may be more; then all of them begin anew.
const MAX_DOMAINS: usize = 4096;

/// Most records that are made in one round, so that bridges and collectors are not kept waiting where very many flows are
/// due at once.
const RECORDS_PER_ROUND: usize = 512;

/// How many are made with one sample: more than one flow begins with it, so that what is due becomes less.
const RECORDS_PER_SAMPLE: usize = 2;

/// What an exporter has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Flows so far.
    pub flows: u64,
    /// Flows in the cache.
    pub current_flows: u64,
    /// Packets that were sampled.
    pub packets: u64,
    /// Those of IPv4 and IPv6 with a protocol that has its own template.
    pub ipv4: u64,
    /// Likewise.
    pub ipv6: u64,
    /// Those of IP with another protocol.
    pub errors: u64,
    /// Of these, IPv4.
    pub ipv4_errors: u64,
    /// Of these, IPv6.
    pub ipv6_errors: u64,
    /// Messages, for each collector.
    pub sent: Sent,
}

/// What collectors of a domain know.
#[derive(Default)]
struct Domain {
    /// Records so far.
    sequence: u32,
    /// The templates that were sent.
    templates: u128,
    /// When the first of them was.
    since: Time,
}

const _: () = assert!(TEMPLATES <= 128);

/// The exporter.
pub struct Exporter {
    settings: FlowIpfix,
    /// Its number.
    id: u32,
    cache: Cache,
    totals: Totals,
    /// The rest of a packet that has not been counted yet.
    fraction: u64,
    statistics: Statistics,
    domains: HashMap<u32, Domain>,
    /// When it last told about itself.
    told: Option<Time>,
    /// Collectors that did not get the last message, or the one before.
    unreached: u64,
    message: Message,
}

impl Exporter {
    /// An exporter with this number.
    pub fn new(settings: FlowIpfix, id: u32) -> Exporter {
        Exporter {
            settings,
            id,
            cache: Cache::default(),
            totals: Totals::default(),
            fraction: 0,
            statistics: Statistics::default(),
            domains: HashMap::new(),
            told: None,
            unreached: 0,
            message: Message::new(0),
        }
    }

    /// What it has done.
    pub fn statistics(&self) -> Statistics {
        Statistics { current_flows: self.cache.len() as u64, ..self.statistics }
    }

    /// Takes a sample.
    pub fn sample(&mut self, sample: Sample, at: Moment, sink: &mut dyn Sink) {
        let statistics = &mut self.statistics;
        statistics.packets += 1;
        let Template { l3, l4, .. } = sample.flow.template;
        match (l3, l4) {
            (L3::Other, _) => {}
            (L3::Ipv4, L4::Other) => {
                (statistics.errors, statistics.ipv4_errors) = (statistics.errors + 1, statistics.ipv4_errors + 1)
            }
            (L3::Ipv6, L4::Other) => {
                (statistics.errors, statistics.ipv6_errors) = (statistics.errors + 1, statistics.ipv6_errors + 1)
            }
            (L3::Ipv4, _) => statistics.ipv4 += 1,
            (L3::Ipv6, _) => statistics.ipv6 += 1,
        }
        // Fractions of packets count as soon as they make a whole one.
        let weight = sample.weight.saturating_add(self.fraction);
        self.fraction = weight & ((1 << PLACES) - 1);
        let counts = self.totals.add(&sample, weight >> PLACES);
        if self.cache.add(sample.flow, &counts, &self.totals, at.now) {
            self.statistics.flows += 1;
        }
        // More than may be are exported at once, so that the cache is bounded between two rounds, too.
        self.export_due(RECORDS_PER_SAMPLE, at, sink);
    }

    /// Exports what is due, and sends what waits. Returns when it is to be called again.
    pub fn run(&mut self, at: Moment, sink: &mut dyn Sink) -> Option<Time> {
        self.export_due(RECORDS_PER_ROUND, at, sink);
        self.flush(at, sink);
        self.cache.next(self.settings.active_timeout)
    }

    /// Exports all flows.
    pub fn end(&mut self, at: Moment, sink: &mut dyn Sink) {
        while let Some((key, flow)) = self.cache.take_oldest() {
            self.export(&key, &flow, EndReason::Forced, at, sink);
        }
        self.flush(at, sink);
    }

    fn export_due(&mut self, records: usize, at: Moment, sink: &mut dyn Sink) {
        let (timeout, most) = (self.settings.active_timeout, self.settings.max_flows);
        for _ in 0..records {
            let Some((key, flow, reason)) = self.cache.take_due(at.now, timeout, most) else { return };
            self.export(&key, &flow, reason, at, sink);
        }
    }

    fn export(&mut self, key: &super::FlowKey, flow: &Flow, reason: EndReason, at: Moment, sink: &mut dyn Sink) {
        self.tell_about_itself(at, sink);
        if !self.domains.contains_key(&key.obs_domain) && self.domains.len() >= MAX_DOMAINS {
            self.flush(at, sink);
            self.domains.clear();
        }
        let obs_id = self.settings.virtual_obs_id.as_deref();
        let set = message::record_set(&Record { key, flow, reason, obs_id }, at);
        let template = self.next_template(key.obs_domain, key.template, at.now);
        if let Some(template) = template {
            self.make_room(key.obs_domain, template.len(), at, sink);
            self.message.add_templates(&template);
        }
        self.make_room(key.obs_domain, set.len(), at, sink);
        self.message.add_record(&set);
    }

    /// The set with a template, if it has to be sent.
    fn next_template(&mut self, domain: u32, template: Template, now: Time) -> Option<Vec<u8>> {
        let domain = self.domains.entry(domain).or_default();
        if now >= domain.since + TEMPLATE_INTERVAL {
            domain.templates = 0;
        }
        if domain.templates == 0 {
            domain.since = now;
        }
        let bit = 1 << template.index();
        if domain.templates & bit != 0 {
            return None;
        }
        domain.templates |= bit;
        Some(message::template_set(template, self.settings.virtual_obs_id.is_some()))
    }

    /// Says how many messages were not sent, now and then.
    fn tell_about_itself(&mut self, at: Moment, sink: &mut dyn Sink) {
        if self.told.is_some_and(|told| at.now < told + TEMPLATE_INTERVAL) {
            return;
        }
        self.told = Some(at.now);
        let template = message::options_template_set();
        let options = message::options_set(self.id, self.statistics.sent.failed);
        self.make_room(0, template.len() + options.len(), at, sink);
        self.message.add_templates(&template);
        self.message.add_record(&options);
    }

    fn make_room(&mut self, domain: u32, len: usize, at: Moment, sink: &mut dyn Sink) {
        if self.message.domain() != domain || !self.message.has_room(len) {
            self.flush(at, sink);
            self.message = Message::new(domain);
        }
    }

    fn flush(&mut self, at: Moment, sink: &mut dyn Sink) {
        if self.message.is_empty() {
            return;
        }
        let message = std::mem::replace(&mut self.message, Message::new(0));
        let domain = self.domains.entry(message.domain()).or_default();
        let sequence = domain.sequence;
        domain.sequence = sequence.wrapping_add(message.records());
        let sent = sink.send(&message.finish(message::export_time(at), sequence));
        self.statistics.sent.taken += sent.taken;
        self.statistics.sent.failed += sent.failed;
        self.statistics.sent.refused += sent.refused;
        let unreached = sent.failed + sent.refused;
        if unreached < self.unreached {
            // A collector is there again, or for the first time: it knows no template.
            self.domains.values_mut().for_each(|domain| domain.templates = 0);
        }
        self.unreached = unreached;
    }
}
