//! Queueing disciplines of the kernel, for what is sent through an interface: tc(8).
//!
//! As in OVS, a discipline has the handle `1:`. Where it has classes, `1:fffe` has the rate of the port, and below it
//! queue N has class `1:(N+1)`; what has no class goes by queue 0. A packet finds its class by its priority, which is the
//! class's number ([`priority_of`]).
//!
//! A discipline of the same kind and handle that is there already, as after a restart, is kept and changed, and nothing
//! that waits in it is lost. Any other one is replaced. An interface that nobody wants QoS for keeps what it has.

mod message;
mod rate;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Instant;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcHandle, TcMessage};

use self::message::{ALL, Options, ROOT, Said, Subject, class_of, queue_of};
use self::rate::Clock;
use super::Interface;
use crate::qos::{Qos, QosState, QueueState, QueueStats, Settings};
use crate::{Error, Features};

pub use message::priority_of;

/// The types of QoS that the kernel can do.
pub const TYPES: &[&str] =
    &["linux-htb", "linux-hfsc", "linux-sfq", "linux-codel", "linux-fq_codel", "linux-netem", "linux-noop"];

/// The rate of a link whose speed is not known, in bits per second.
const DEFAULT_RATE: u64 = 100_000_000;

/// Headers that a burst has room for, beside the MTU.
const BURST_HEADERS: u64 = 64;

/// The discipline that was set up for a port.
#[derive(Default)]
pub struct Discipline {
    installed: Option<Installed>,
}

struct Installed {
    kind: &'static str,
    root: Values,
    /// The queues that have a class.
    queues: BTreeMap<u32, Queue>,
}

/// What the kernel was told, and how that is shown.
#[derive(Clone, PartialEq, Eq)]
struct Values {
    /// `None`: the kernel is told nothing.
    options: Option<Options>,
    shown: Settings,
}

struct Queue {
    values: Values,
    since: Instant,
}

impl Discipline {
    /// Sets up what a QoS says, or removes what was set up before. The error is that of the first part that could not be
    /// had; the other parts are in force.
    pub fn set(&mut self, interface: &Interface, qos: Option<&Qos>) -> Result<(), Error> {
        match (qos, self.installed.take()) {
            (Some(qos), before) => self.install(interface, qos, before),
            // "linux-noop" has left alone what there was.
            (None, Some(Installed { root: Values { options: Some(_), .. }, .. })) => {
                Kernel::of(interface).remove().map_err(|e| interface.error("remove the queueing discipline", e))
            }
            (None, _) => Ok(()),
        }
    }

    /// Whether packets find a class by their priority.
    pub fn has_classes(&self) -> bool {
        self.installed.as_ref().is_some_and(|installed| !installed.queues.is_empty())
    }

    /// The queues that have a class.
    pub fn queues(&self) -> Vec<u32> {
        self.installed.iter().flat_map(|installed| installed.queues.keys().copied()).collect()
    }

    /// What is in force, with the kernel's counters.
    pub fn state(&self, interface: &Interface) -> Option<QosState> {
        let Installed { kind, root, queues } = self.installed.as_ref()?;
        let counters = if queues.is_empty() { Ok(BTreeMap::new()) } else { Kernel::of(interface).classes() };
        let counters = counters.map_err(|e| e.to_string());
        let state = |(&number, queue): (&u32, &Queue)| QueueState {
            number,
            settings: queue.values.shown.clone(),
            stats: match &counters {
                Ok(counters) => counters.get(&number).copied().ok_or_else(|| "No such file or directory".into()),
                Err(error) => Err(error.clone()),
            },
            age: queue.since.elapsed(),
        };
        Some(QosState { kind, settings: root.shown.clone(), queues: queues.iter().map(state).collect() })
    }

    fn install(&mut self, interface: &Interface, qos: &Qos, before: Option<Installed>) -> Result<(), Error> {
        let (kernel, kind) = (Kernel::of(interface), qos.kind.name);
        let root = root_values(qos, kernel.mtu, interface.features());
        let Some((discipline, class)) = parts(&root) else {
            self.installed = Some(Installed { kind, root, queues: BTreeMap::new() });
            return Ok(());
        };
        let mut installed = Installed { kind, root, queues: BTreeMap::new() };
        let same = before.filter(|before| before.kind == kind && (class.is_some() || before.root == installed.root));
        let mut there = match &same {
            Some(before) => before.queues.keys().copied().collect(),
            None => kernel
                .adopt_or_add(discipline, class.is_some())
                .map_err(|e| interface.error(&format!("set up {kind}"), e))?,
        };
        let Some(class) = class else {
            self.installed = Some(installed);
            return Ok(());
        };
        if same.as_ref().is_none_or(|before| before.root != installed.root)
            && let Err(e) = kernel.put_class(ALL, ROOT, class)
        {
            let _ = kernel.remove();
            return Err(interface.error(&format!("set up the rate of {kind}"), e));
        }
        let mut had = same.map(|before| before.queues).unwrap_or_default();
        let mut first = Ok(());
        for (&number, settings) in &qos.queues {
            there.remove(&number);
            let values = queue_values(class, settings, kernel.mtu);
            let before = had.remove(&number);
            let since = before.as_ref().map_or_else(Instant::now, |before| before.since);
            let put = match (class_of(number), values.options) {
                _ if before.is_some_and(|before| before.values == values) => Ok(()),
                (Some(handle), Some(options)) => kernel.put_class(handle, ALL, options),
                _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            };
            match put {
                Ok(()) => drop(installed.queues.insert(number, Queue { values, since })),
                Err(e) => {
                    first = first.and_then(|()| {
                        Err(interface
                            .error(&format!("set up queue {number} of {kind} ({})", in_words(&values.shown)), e))
                    })
                }
            }
        }
        for handle in there.into_iter().filter_map(class_of) {
            if let Err(e) = kernel.remove_class(handle) {
                first = first.and_then(|()| Err(interface.error("remove a queue", e)));
            }
        }
        self.installed = Some(installed);
        first
    }
}

/// Settings as "max-rate=1000 min-rate=500".
fn in_words(settings: &Settings) -> String {
    settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// What is made for the values of a port: the discipline, and the class above its queues if it has any. `None`: nothing.
fn parts(root: &Values) -> Option<(Options, Option<Options>)> {
    Some(match root.options? {
        class @ Options::HtbClass { .. } => (Options::Htb, Some(class)),
        class @ Options::HfscClass { .. } => (Options::Hfsc, Some(class)),
        discipline => (discipline, None),
    })
}

/// The values of a port, with defaults for what is not said.
fn root_values(qos: &Qos, mtu: u32, features: Features) -> Values {
    let said = |name| qos.settings.get(name).copied().filter(|&value| value > 0);
    let or = |name, default: u32| said(name).map_or(default, narrow);
    let rate = || {
        let link = || Some(u64::from(features.speed_mbps) * 1_000_000).filter(|&rate| rate > 0);
        said("max-rate").or_else(link).unwrap_or(DEFAULT_RATE) / 8
    };
    let options = match qos.kind.name {
        "linux-htb" => Options::HtbClass { min_rate: rate(), max_rate: rate(), burst: 0, priority: 0 },
        "linux-hfsc" => Options::HfscClass { min_rate: narrow(rate()), max_rate: narrow(rate()) },
        "linux-sfq" => Options::Sfq { perturb: or("perturb", 10), quantum: or("quantum", mtu) },
        "linux-codel" => {
            Options::Codel { target: or("target", 5000), limit: or("limit", 10_240), interval: or("interval", 100_000) }
        }
        "linux-fq_codel" => Options::FqCodel {
            target: or("target", 5000),
            limit: or("limit", 10_240),
            interval: or("interval", 100_000),
            flows: or("flows", 1024),
            quantum: or("quantum", 1514),
        },
        "linux-netem" => Options::Netem { latency: or("latency", 0), limit: or("limit", 1000), loss: or("loss", 0) },
        _ => return Values { options: None, shown: Settings::new() },
    };
    let shown = match options {
        Options::HtbClass { max_rate, .. } => Settings::from([("max-rate", bits(max_rate))]),
        Options::HfscClass { max_rate, .. } => Settings::from([("max-rate", bits(max_rate.into()))]),
        Options::Sfq { perturb, quantum } => shown(&[("perturb", perturb), ("quantum", quantum)]),
        Options::Codel { target, limit, interval } => {
            shown(&[("target", target), ("limit", limit), ("interval", interval)])
        }
        Options::FqCodel { target, limit, interval, flows, quantum } => shown(&[
            ("target", target),
            ("limit", limit),
            ("interval", interval),
            ("flows", flows),
            ("quantum", quantum),
        ]),
        Options::Netem { latency, limit, loss } => shown(&[("latency", latency), ("limit", limit), ("loss", loss)]),
        Options::Htb | Options::Hfsc => Settings::new(),
    };
    Values { options: Some(options), shown }
}

/// The values of a queue below the class of the port. No rate is above the port's, nor a lower bound above the upper one.
fn queue_values(port: Options, settings: &Settings, mtu: u32) -> Values {
    let said = |name| settings.get(name).copied().filter(|&value| value > 0);
    let bytes = |name| said(name).map(|rate| rate / 8);
    let between = |most: u64, least: u64| {
        let min = bytes("min-rate").unwrap_or(0).max(least).min(most);
        (min, bytes("max-rate").unwrap_or(most).clamp(min, most))
    };
    let mut shown = Settings::new();
    let mut show_rates = |min: u64, max: u64| {
        shown.insert("min-rate", bits(min));
        if min != max {
            shown.insert("max-rate", bits(max));
        }
    };
    let options = match port {
        Options::HtbClass { max_rate, .. } => {
            // A class sends nothing, also over an idle link, whose rate is not even a frame per second.
            let (min_rate, max_rate) = between(max_rate, mtu.into());
            let burst = bytes("burst").unwrap_or(0).max(u64::from(mtu) + BURST_HEADERS);
            let priority = said("priority").map_or(0, narrow);
            show_rates(min_rate, max_rate);
            shown.insert("burst", bits(burst));
            if priority > 0 {
                shown.insert("priority", priority.into());
            }
            Options::HtbClass { min_rate, max_rate, burst, priority }
        }
        Options::HfscClass { max_rate, .. } => {
            let (min, max) = between(max_rate.into(), 1);
            show_rates(min, max);
            Options::HfscClass { min_rate: narrow(min), max_rate: narrow(max) }
        }
        other => return Values { options: Some(other), shown },
    };
    Values { options: Some(options), shown }
}

fn shown(values: &[(&'static str, u32)]) -> Settings {
    values.iter().map(|&(name, value)| (name, value.into())).collect()
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn bits(bytes: u64) -> u64 {
    bytes.saturating_mul(8)
}

/// Requests about one interface.
struct Kernel<'a> {
    interface: &'a Interface,
    index: u32,
    mtu: u32,
    clock: Clock,
}

impl Kernel<'_> {
    fn of(interface: &Interface) -> Kernel<'_> {
        Kernel { interface, index: interface.index(), mtu: interface.known().mtu, clock: Clock::of_kernel() }
    }

    fn request(&self, request: RouteNetlinkMessage, flags: u16) -> io::Result<Option<Said>> {
        self.interface.there()?;
        let mut netlink = self.interface.table.requests();
        Ok(netlink.requests().ask(request, flags | NLM_F_ACK)?.and_then(Said::parse))
    }

    fn change(&self, request: fn(TcMessage) -> RouteNetlinkMessage, of: Subject, options: Options) -> io::Result<()> {
        let flags = NLM_F_CREATE | if of.parent == TcHandle::ROOT { NLM_F_EXCL } else { 0 };
        self.request(request(of.message(Some((options, self.mtu, self.clock)))), flags).map(drop)
    }

    /// Keeps a discipline of this kind with its classes, where there is one and it has classes; else makes it in place of
    /// the one there is. Returns the queues that have a class.
    fn adopt_or_add(&self, discipline: Options, has_classes: bool) -> io::Result<BTreeSet<u32>> {
        let root = self
            .request(RouteNetlinkMessage::GetQueueDiscipline(Subject::any_root(self.index).message(None)), NLM_F_ECHO);
        let is_same = |root: Said| root.kind == discipline.kind() && root.handle == (ROOT.major, ROOT.minor);
        if has_classes && root.ok().flatten().is_some_and(is_same) {
            return Ok(self.classes()?.into_keys().collect());
        }
        self.remove()?;
        self.change(RouteNetlinkMessage::NewQueueDiscipline, Subject::root(self.index), discipline)?;
        Ok(BTreeSet::new())
    }

    /// Removes the discipline. That there is none is no error: the kernel's own default does not count.
    fn remove(&self) -> io::Result<()> {
        let message = Subject::any_root(self.index).message(None);
        match self.request(RouteNetlinkMessage::DelQueueDiscipline(message), 0) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Makes or changes a class.
    fn put_class(&self, handle: TcHandle, parent: TcHandle, options: Options) -> io::Result<()> {
        self.change(RouteNetlinkMessage::NewTrafficClass, Subject { index: self.index, handle, parent }, options)
    }

    fn remove_class(&self, handle: TcHandle) -> io::Result<()> {
        let subject = Subject { index: self.index, handle, parent: TcHandle::UNSPEC };
        self.request(RouteNetlinkMessage::DelTrafficClass(subject.message(None)), 0).map(drop)
    }

    /// The queues that have a class, with their counters.
    fn classes(&self) -> io::Result<BTreeMap<u32, QueueStats>> {
        self.interface.there()?;
        let of_interface = Subject { index: self.index, handle: TcHandle::UNSPEC, parent: TcHandle::UNSPEC };
        let mut found = BTreeMap::new();
        let mut netlink = self.interface.table.requests();
        netlink.requests().dump(RouteNetlinkMessage::GetTrafficClass(of_interface.message(None)), |_, body| {
            let said = Said::parse(body).filter(|said| said.index == self.index);
            let of_queue = |said: Said| {
                let (major, minor) = said.handle;
                Some((queue_of(TcHandle { major, minor })?, said.stats))
            };
            found.extend(said.and_then(of_queue));
        })?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qos(name: &str, settings: &[(&str, &str)]) -> Qos {
        Qos::new(name, settings.iter().copied()).unwrap()
    }

    fn root(name: &str, settings: &[(&str, &str)], speed_mbps: u32) -> Values {
        root_values(&qos(name, settings), 1500, Features { speed_mbps, ..Features::default() })
    }

    fn queue(settings: &[(&'static str, u64)]) -> Settings {
        let port = root("linux-htb", &[("max-rate", "80000000")], 0).options.unwrap();
        queue_values(port, &settings.iter().copied().collect(), 1500).shown
    }

    #[test]
    fn a_port_without_a_rate_has_that_of_its_link() {
        let rate = |settings: &[_], speed| root("linux-htb", settings, speed).shown["max-rate"];
        assert_eq!(rate(&[("max-rate", "1000000")], 10_000), 1_000_000);
        assert_eq!(rate(&[("max-rate", "0")], 10_000), 10_000_000_000);
        assert_eq!(rate(&[], 0), 100_000_000);
        assert_eq!(
            root("linux-hfsc", &[], 100_000).shown["max-rate"],
            8 * u64::from(u32::MAX),
            "hfsc has no more bits"
        );
    }

    #[test]
    fn queues_keep_within_the_port() {
        let all = [("burst", 12_512), ("max-rate", 80_000_000), ("min-rate", 12_000)];
        assert_eq!(queue(&[]), Settings::from(all));
        assert_eq!(
            queue(&[("min-rate", u64::MAX), ("max-rate", 1)]),
            Settings::from([("burst", 12_512), ("min-rate", 80_000_000)])
        );
        let most = [("burst", 8_000_000), ("max-rate", 40_000_000), ("min-rate", 8_000_000), ("priority", 2)];
        assert_eq!(queue(&most), Settings::from(most));
    }

    #[test]
    fn defaults_are_those_of_ovs() {
        assert_eq!(
            root("linux-sfq", &[("perturb", "0")], 0).shown,
            Settings::from([("perturb", 10), ("quantum", 1500)])
        );
        let codel = [("interval", 100_000), ("limit", 10_240), ("target", 5000)];
        assert_eq!(root("linux-codel", &[], 0).shown, Settings::from(codel));
        let more = [("flows", 1024), ("quantum", 1514)];
        assert_eq!(root("linux-fq_codel", &[], 0).shown, codel.into_iter().chain(more).collect());
        let netem = Settings::from([("latency", 7), ("limit", 1000), ("loss", u64::from(u32::MAX))]);
        assert_eq!(root("linux-netem", &[("latency", "7"), ("loss", "99999999999")], 0).shown, netem);
        assert!(root("linux-noop", &[], 0).options.is_none());
    }

    #[test]
    fn what_the_kernel_does_is_a_type_that_there_is() {
        assert!(TYPES.iter().all(|name| crate::qos::TYPES.iter().any(|kind| kind.name == *name)));
    }
}
