//! The last hour: what happened in each interval of some seconds, for the switch and for its busiest ports.
//!
//! What is kept is bounded: [`KEPT`] samples of the switch and of [`MOST_PORTS`] ports, 600 KiB together, and of each port that the switch
//! has its last rates and its load. Which ports are kept is decided by their traffic of the last minute or so: a port without a history takes the place
//! of one with much less traffic, and not of one with about as much, so that two ports don't take turns.
//!
//! Samples are numbered from 1 on. Whoever has those up to a number asks for the following ones.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tunnel::config::Kind;

use super::report::TableRates;
use crate::report::measurement::{Measurement, PortRates};

/// How long a sample is measured.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Samples that are kept: those of an hour.
pub const KEPT: usize = 720;

/// Ports that have a history.
pub const MOST_PORTS: usize = 16;

/// How much of a port's load is of the last sample. The rest is of those before.
const NEWEST: f64 = 0.1;

/// How much busier than another one a port has to be to take its place.
const BUSIER: f64 = 1.5;

/// A column of a history: its name in the JSON, what it means, and where it comes from.
pub struct Column<T: 'static> {
    /// Name.
    pub name: &'static str,
    /// What it is, with its unit.
    pub meaning: &'static str,
    value: fn(&T) -> f64,
}

macro_rules! columns {
    ($($name:literal $value:expr, $meaning:literal;)*) => {
        [$(Column { name: $name, meaning: $meaning, value: $value },)*]
    };
}

/// What is kept of the switch.
pub const SWITCH: [Column<Measurement>; 11] = columns! {
    "rx_packets" |m| m.stats.total.packets, "packets per second received";
    "tx_packets" |m| m.stats.total.sent, "packets per second sent";
    "rx_bytes" |m| sum(m, |port| port.rx_bytes), "bytes per second received by all ports but tunnels";
    "tx_bytes" |m| sum(m, |port| port.tx_bytes), "bytes per second sent by all ports but tunnels";
    "dropped" |m| m.stats.total.dropped, "packets per second that Weir has dropped, for whatever reason";
    "tx_dropped" |m| sum(m, |port| port.tx_dropped + port.tx_errors), "packets per second that ports did not send";
    "rx_dropped" |m| sum(m, |port| port.rx_dropped), "packets per second that devices dropped before Weir had them";
    "misses" |m| m.stats.total.misses, "misses per second that the slow path answered";
    "busy_percent" |m| m.stats.total.busy_percent, "how busy the workers were on average, in percent";
    "cycles_per_packet" |m| m.stats.total.cycles_per_packet, "busy cycles for each pass of a packet";
    "flows" |m| m.stats.flows as f64, "flows of the datapath at the end of the interval";
};

/// What is kept of a port.
pub const PORT: [Column<PortRates>; 5] = columns! {
    "rx_packets" |p| p.rx_packets, "packets per second received";
    "tx_packets" |p| p.tx_packets, "packets per second sent";
    "rx_bytes" |p| p.rx_bytes, "bytes per second received";
    "tx_bytes" |p| p.tx_bytes, "bytes per second sent";
    "dropped" lost, "packets per second that were dropped: by the device on reception, by Weir, and instead of being sent";
};

/// The packets of a port that were dropped by whoever, by second.
pub fn lost(port: &PortRates) -> f64 {
    port.dropped + port.rx_dropped + port.tx_dropped + port.tx_errors
}

/// What goes through a tunnel goes through another port, too.
fn sum(measurement: &Measurement, of: fn(&PortRates) -> f64) -> f64 {
    measurement.ports.iter().filter(|port| Kind::from_name(&port.kind).is_err()).map(of).sum()
}

fn row<T, const N: usize>(columns: &[Column<T>; N], of: &T) -> [f32; N] {
    std::array::from_fn(|at| (columns[at].value)(of) as f32)
}

/// What was measured last.
#[derive(Debug, Default)]
pub struct Latest {
    /// The number of the sample.
    pub number: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// Rates.
    pub measurement: Measurement,
    /// OpenFlow tables.
    pub tables: Vec<TableRates>,
}

/// Bridge and name of a port.
type PortId = (Rc<str>, Rc<str>);

/// See the [module](self).
#[derive(Default)]
pub struct History {
    /// The number of the last sample.
    last: u64,
    switch: VecDeque<(f64, [f32; SWITCH.len()])>,
    ports: Vec<PortHistory>,
    /// The load of each port, in packets per second.
    loads: HashMap<PortId, f64>,
    latest: Option<Rc<Latest>>,
}

struct PortHistory {
    id: PortId,
    /// With the number of each sample.
    samples: VecDeque<(u64, [f32; PORT.len()])>,
}

impl History {
    /// What was measured last.
    pub fn latest(&self) -> Option<Rc<Latest>> {
        self.latest.clone()
    }

    /// The number of the last sample; zero before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Forgets everything, and frees its memory. Numbers go on.
    pub fn clear(&mut self) {
        *self = History { last: self.last, ..History::default() };
    }

    /// Takes a sample, which ended at this time.
    pub fn add(&mut self, measurement: Measurement, tables: Vec<TableRates>, at: SystemTime) {
        let time = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.follow_clock(time, measurement.interval_s);
        self.last += 1;
        self.switch.push_back((time, row(&SWITCH, &measurement)));
        if self.switch.len() > KEPT {
            self.switch.pop_front();
        }
        self.weigh(&measurement.ports);
        self.choose();
        let known: HashMap<(&str, &str), &PortRates> =
            measurement.ports.iter().map(|port| ((&*port.bridge, &*port.name), port)).collect();
        let oldest = self.first();
        for history in &mut self.ports {
            if let Some(port) = known.get(&(&*history.id.0, &*history.id.1)) {
                history.samples.push_back((self.last, row(&PORT, port)));
            }
            while history.samples.front().is_some_and(|(number, _)| *number < oldest) {
                history.samples.pop_front();
            }
        }
        self.ports.retain(|history| !history.samples.is_empty());
        self.latest = Some(Rc::new(Latest { number: self.last, time, measurement, tables }));
    }

    /// Where the system's clock was set since the last sample, moves the times of all as far: what is drawn by them goes on where it was. Numbers
    /// leap, so that whoever has some samples asks for all.
    fn follow_clock(&mut self, time: f64, interval_s: f64) {
        let set = self.switch.back().map_or(0.0, |(last, _)| time - last - interval_s);
        if set.abs() < INTERVAL.as_secs_f64() / 2.0 {
            return;
        }
        self.switch.iter_mut().for_each(|(time, _)| *time += set);
        let leap = KEPT as u64 + 1;
        self.last += leap;
        for history in &mut self.ports {
            history.samples.iter_mut().for_each(|(number, _)| *number += leap);
        }
    }

    /// The number of the first sample that is kept.
    fn first(&self) -> u64 {
        self.last + 1 - self.switch.len() as u64
    }

    /// Brings the loads of the ports up to date, and forgets those that have gone.
    fn weigh(&mut self, ports: &[PortRates]) {
        let before = std::mem::take(&mut self.loads);
        let weighed = ports.iter().map(|port| {
            let id: PortId = (port.bridge.as_str().into(), port.name.as_str().into());
            let now = port.rx_packets + port.tx_packets + lost(port);
            let load = before.get(&id).map_or(now, |load| load + NEWEST * (now - load));
            (id, load)
        });
        self.loads = weighed.collect();
    }

    /// Gives busy ports a history, and takes it from others.
    fn choose(&mut self) {
        let has: std::collections::HashSet<_> = self.ports.iter().map(|history| history.id.clone()).collect();
        let mut without: Vec<_> = self.loads.iter().filter(|(id, _)| !has.contains(id)).collect();
        without.sort_by(|(x, a), (y, b)| b.total_cmp(a).then_with(|| x.cmp(y)));
        for (id, &load) in without.into_iter().take(MOST_PORTS) {
            let history = PortHistory { id: id.clone(), samples: VecDeque::new() };
            if self.ports.len() < MOST_PORTS {
                self.ports.push(history);
                continue;
            }
            // One that has gone has less than none.
            let load_of = |history: &PortHistory| self.loads.get(&history.id).copied().unwrap_or(-1.0);
            let least = self.ports.iter_mut().min_by(|a, b| load_of(a).total_cmp(&load_of(b)));
            let Some(least) = least.filter(|least| load > BUSIER * load_of(least)) else { return };
            *least = history;
        }
    }

    /// The samples after the one with this number; all where it is none of them.
    pub fn since(&self, after: u64) -> Span {
        let first = self.first();
        let from = if (first - 1..=self.last).contains(&after) { after + 1 } else { first };
        Span { from, to: self.last }
    }

    /// The times of some samples, in seconds since 1970.
    pub fn times(&self, span: Span) -> Vec<f64> {
        span.numbers().map(|number| self.switch_at(number).map_or(0.0, |(time, _)| *time)).collect()
    }

    fn switch_at(&self, number: u64) -> Option<&(f64, [f32; SWITCH.len()])> {
        self.switch.get(usize::try_from(number.checked_sub(self.first())?).ok()?)
    }

    /// What is kept of the switch, by column.
    pub fn switch(&self, span: Span) -> BTreeMap<&'static str, Vec<Option<f32>>> {
        columns(&SWITCH, span, |number| self.switch_at(number).map(|(_, row)| row))
    }

    /// What is kept of the port that stands at this place, the busiest first.
    pub fn port(&self, at: usize, span: Span) -> Option<PortColumns> {
        let mut order: Vec<_> = self.ports.iter().collect();
        let load_of = |history: &PortHistory| self.loads.get(&history.id).copied().unwrap_or(-1.0);
        order.sort_by(|a, b| load_of(b).total_cmp(&load_of(a)).then_with(|| a.id.cmp(&b.id)));
        let history = order.get(at)?;
        let mut samples = history.samples.iter().skip_while(|(number, _)| *number < span.from).peekable();
        let mut rows = HashMap::new();
        while let Some((number, row)) = samples.next_if(|(number, _)| *number <= span.to) {
            rows.insert(*number, row);
        }
        let (bridge, name) = (history.id.0.to_string(), history.id.1.to_string());
        Some(PortColumns { bridge, name, columns: columns(&PORT, span, |number| rows.get(&number).copied()) })
    }
}

/// The numbers of some samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub from: u64,
    /// The last; lower than the first where there is none.
    pub to: u64,
}

impl Span {
    fn numbers(self) -> std::ops::RangeInclusive<u64> {
        self.from..=self.to
    }
}

/// A port in a history.
#[derive(Debug, Serialize)]
pub struct PortColumns {
    /// Bridge.
    pub bridge: String,
    /// Name.
    pub name: String,
    /// A value for each sample, nothing where there is none.
    #[serde(flatten)]
    pub columns: BTreeMap<&'static str, Vec<Option<f32>>>,
}

fn columns<'a, T, const N: usize>(
    columns: &[Column<T>; N],
    span: Span,
    row: impl Fn(u64) -> Option<&'a [f32; N]>,
) -> BTreeMap<&'static str, Vec<Option<f32>>> {
    let values = |at: usize| span.numbers().map(|number| row(number).map(|row| rounded(row[at]))).collect();
    columns.iter().enumerate().map(|(at, column)| (column.name, values(at))).collect()
}

/// To tenths: more digits would only make the answer longer.
fn rounded(value: f32) -> f32 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::rates::{StatsRates, WorkerRates};

    fn port(name: usize, packets: f64) -> PortRates {
        PortRates {
            bridge: "br0".into(),
            name: format!("p{name}"),
            kind: "null".into(),
            rx_packets: packets,
            rx_bytes: 100.0 * packets,
            ..PortRates::default()
        }
    }

    fn measured(packets: f64, ports: Vec<PortRates>) -> Measurement {
        let total = WorkerRates { packets, ..WorkerRates::default() };
        let stats = StatsRates { total, ..StatsRates::default() };
        Measurement { interval_s: INTERVAL.as_secs_f64(), stats, ports, ..Measurement::default() }
    }

    fn add(history: &mut History, measurement: Measurement) {
        let at = UNIX_EPOCH + INTERVAL * (history.last as u32 + 1);
        history.add(measurement, Vec::new(), at);
    }

    fn names(history: &History) -> Vec<String> {
        let span = history.since(0);
        (0..).map_while(|at| history.port(at, span)).map(|port| port.name).collect()
    }

    #[test]
    fn a_clock_that_is_set_moves_all_samples() {
        let mut history = History::default();
        let (hour, year) = (Duration::from_secs(3600), Duration::from_secs(31_536_000));
        for n in 1..=10 {
            history.add(measured(1.0, vec![port(1, n.into())]), Vec::new(), UNIX_EPOCH + hour + INTERVAL * n);
        }
        for at in [INTERVAL * 10, year] {
            let before = history.last();
            history.add(measured(1.0, vec![port(1, 77.0)]), Vec::new(), UNIX_EPOCH + at);
            // Who had all of them gets all of them.
            let span = history.since(before);
            let times = history.times(span);
            assert_eq!(*times.last().unwrap(), at.as_secs_f64());
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 5.0), "{times:?}");
            let column = &history.port(0, span).unwrap().columns["rx_packets"];
            assert!(column.len() == times.len() && column.iter().all(Option::is_some), "{column:?}");
        }
        assert_eq!(history.times(history.since(0)).len(), 12);
    }

    #[test]
    fn the_last_hour_is_kept_and_no_more() {
        let mut history = History::default();
        for n in 1..=KEPT + 3 {
            add(&mut history, measured(n as f64, vec![port(1, n as f64)]));
        }
        let span = history.since(0);
        assert_eq!((span.from, span.to), (4, KEPT as u64 + 3));
        let (switch, port) = (history.switch(span), history.port(0, span).unwrap());
        for column in [&switch["rx_packets"], &port.columns["rx_packets"]] {
            assert_eq!((column.len(), column[0], column[KEPT - 1]), (KEPT, Some(4.0), Some(KEPT as f32 + 3.0)));
        }
        assert_eq!(switch["rx_bytes"][0], Some(400.0));
        assert_eq!(history.times(span)[0], 20.0);
        // Who has some of it asks for the rest; who has what is of another time gets all.
        assert_eq!(history.since(KEPT as u64 + 1), Span { from: KEPT as u64 + 2, to: KEPT as u64 + 3 });
        let none = history.since(KEPT as u64 + 3);
        assert!(history.times(none).is_empty() && history.switch(none)["flows"].is_empty());
        assert_eq!(history.since(2).from, 4);
        assert_eq!(history.since(9999).from, 4);
        history.clear();
        assert_eq!((names(&history).len(), history.since(0)), (0, Span { from: KEPT as u64 + 4, to: KEPT as u64 + 3 }));
    }

    #[test]
    fn busy_ports_take_the_place_of_idle_ones_but_not_of_their_like() {
        let mut history = History::default();
        let many = |busy: &[(usize, f64)]| {
            let of = |n: usize| busy.iter().find(|(busy, _)| *busy == n).map_or(n as f64, |(_, packets)| *packets);
            measured(0.0, (0..1000).map(|n| port(n, of(n))).collect())
        };
        add(&mut history, many(&[]));
        assert_eq!(names(&history).len(), MOST_PORTS);
        assert_eq!(names(&history)[0], "p999");
        // One that is a little busier waits; one that is much busier does not.
        (0..30).for_each(|_| add(&mut history, many(&[(5, 1100.0)])));
        assert!(!names(&history).contains(&"p5".into()));
        (0..30).for_each(|_| add(&mut history, many(&[(5, 9000.0)])));
        assert_eq!((names(&history)[0].as_str(), names(&history).len()), ("p5", MOST_PORTS));
        let span = history.since(0);
        let column = history.port(0, span).unwrap().columns.remove("rx_packets").unwrap();
        assert_eq!((column.len(), column[0], column[60]), (61, None, Some(9000.0)), "it has none from before");
    }

    #[test]
    fn a_port_that_has_gone_stays_for_an_hour_or_until_its_place_is_wanted() {
        let mut history = History::default();
        add(&mut history, measured(0.0, vec![port(1, 5.0), port(2, 1.0)]));
        add(&mut history, measured(0.0, vec![port(2, 1.0)]));
        assert_eq!(names(&history), ["p2", "p1"]);
        add(&mut history, measured(0.0, (10..30).map(|n| port(n, 1.0)).collect()));
        assert!(!names(&history).contains(&"p1".into()));
        let mut history = History::default();
        add(&mut history, measured(0.0, vec![port(1, 5.0)]));
        (0..KEPT).for_each(|_| add(&mut history, measured(0.0, Vec::new())));
        assert!(names(&history).is_empty());
    }

    proptest! {
        #[test]
        fn memory_is_bounded_whatever_comes(samples in prop::collection::vec(prop::collection::vec((0usize..60, 0f64..1e9), 0..40), 1..60)) {
            let mut history = History::default();
            for ports in samples {
                let mut ports = ports;
                ports.sort_by_key(|(name, _)| *name);
                ports.dedup_by_key(|(name, _)| *name);
                let count = ports.len();
                add(&mut history, measured(0.0, ports.into_iter().map(|(name, packets)| port(name, packets)).collect()));
                prop_assert!(history.ports.len() <= MOST_PORTS);
                prop_assert_eq!(history.loads.len(), count);
            }
            let span = history.since(0);
            for at in 0..history.ports.len() {
                let port = history.port(at, span).unwrap();
                prop_assert!(port.columns.values().all(|column| column.len() as u64 == history.last()));
            }
        }
    }

    #[test]
    fn the_documentation_has_each_column() {
        let documentation = include_str!("../../../../docs/dashboard.md");
        let lines = SWITCH.iter().map(|c| (c.name, c.meaning)).chain(PORT.iter().map(|c| (c.name, c.meaning)));
        for (name, meaning) in lines {
            let line = format!("| `{name}` | {meaning} |");
            assert!(documentation.lines().any(|documented| documented == line), "docs/dashboard.md lacks: {line}");
        }
    }
}
