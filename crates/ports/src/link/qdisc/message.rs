//! Requests about queueing disciplines and their classes, as bytes (linux/pkt_sched.h, linux/rtnetlink.h).
//!
//! Each kind of discipline has options of its own, which are written by hand: netlink-packet-route knows few of them.

use netlink_packet_core::{DefaultNla, NlasIterator};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use super::rate::{Clock, Rate};
use crate::qos::QueueStats;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;

/// Length of `struct tcmsg`.
const HEADER: usize = 20;

/// `struct tc_htb_glob`, as the version of the interface.
const HTB_VERSION: u32 = 3;
/// What divides a class's rate into its quantum.
const RATE_TO_QUANTUM: u32 = 10;

/// The handle of the discipline of a port.
pub const ROOT: TcHandle = TcHandle { major: 1, minor: 0 };
/// The class that all queues are under, where a discipline has classes.
pub const ALL: TcHandle = TcHandle { major: 1, minor: 0xfffe };

/// The class of a queue, if it has one: their numbers count from 1.
pub fn class_of(queue: u32) -> Option<TcHandle> {
    let minor = u16::try_from(queue.checked_add(1)?).ok().filter(|&minor| minor < ALL.minor)?;
    Some(TcHandle { major: ROOT.major, minor })
}

/// The queue of a class.
pub fn queue_of(class: TcHandle) -> Option<u32> {
    let is_queue = class.major == ROOT.major && class.minor > 0 && class.minor < ALL.minor;
    is_queue.then(|| u32::from(class.minor) - 1)
}

/// The packet priority by which a discipline with classes finds that of a queue.
pub fn priority_of(queue: u32) -> Option<u32> {
    class_of(queue).map(|class| u32::from(class.major) << 16 | u32::from(class.minor))
}

/// A discipline, or a class of one, with the values that it is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Options {
    /// Hierarchical token buckets: the discipline itself.
    Htb,
    /// A class of those. Rates are in bytes per second.
    HtbClass { min_rate: u64, max_rate: u64, burst: u64, priority: u32 },
    /// Hierarchical fair service curves: the discipline itself.
    Hfsc,
    /// A class of those. Rates are in bytes per second.
    HfscClass { min_rate: u32, max_rate: u32 },
    /// Stochastic fairness queueing.
    Sfq { perturb: u32, quantum: u32 },
    /// Controlled delay. Times are in microseconds.
    Codel { target: u32, limit: u32, interval: u32 },
    /// The same with fair queueing.
    FqCodel { target: u32, limit: u32, interval: u32, flows: u32, quantum: u32 },
    /// Emulation of a network: microseconds, packets, and per cent.
    Netem { latency: u32, limit: u32, loss: u32 },
}

impl Options {
    /// The kernel's name of the discipline.
    pub fn kind(&self) -> &'static str {
        match self {
            Options::Htb | Options::HtbClass { .. } => "htb",
            Options::Hfsc | Options::HfscClass { .. } => "hfsc",
            Options::Sfq { .. } => "sfq",
            Options::Codel { .. } => "codel",
            Options::FqCodel { .. } => "fq_codel",
            Options::Netem { .. } => "netem",
        }
    }

    /// What the attribute TCA_OPTIONS holds.
    fn encode(&self, mtu: u32, clock: Clock) -> Vec<u8> {
        match *self {
            // Packets of no class go to that of queue 0.
            Options::Htb => attribute(2, &words(&[HTB_VERSION, RATE_TO_QUANTUM, 1, 0, 0])),
            Options::HtbClass { min_rate, max_rate, burst, priority } => {
                htb_class([Rate::new(min_rate, mtu), Rate::new(max_rate, mtu)], burst, priority, mtu, clock)
            }
            Options::Hfsc => 1u16.to_ne_bytes().to_vec(),
            Options::HfscClass { min_rate, max_rate } => {
                let curve = |kind, rate| attribute(kind, &words(&[0, 0, rate]));
                [curve(1, min_rate), curve(2, min_rate), curve(3, max_rate)].concat()
            }
            // `struct tc_sfq_qopt`: limit, divisor and flows are the kernel's.
            Options::Sfq { perturb, quantum } => words(&[quantum, perturb, 0, 0, 0]),
            Options::Codel { target, limit, interval } => numbers(&[(1, target), (2, limit), (3, interval)]),
            Options::FqCodel { target, limit, interval, flows, quantum } => {
                numbers(&[(1, target), (2, limit), (3, interval), (5, flows), (6, quantum)])
            }
            // `struct tc_netem_qopt`: latency, limit, loss, gap, duplicate, jitter.
            Options::Netem { latency, limit, loss } => {
                let loss = u64::from(u32::MAX) * u64::from(loss.min(100)) / 100;
                words(&[clock.microseconds(latency.into()), limit, loss as u32, 0, 0, 0])
            }
        }
    }
}

fn htb_class([rate, ceil]: [Rate; 2], burst: u64, priority: u32, mtu: u32, clock: Clock) -> Vec<u8> {
    // Without it, a quantum would be less than a frame.
    let quantum = if rate.bytes / u64::from(RATE_TO_QUANTUM) < u64::from(mtu) { mtu } else { 0 };
    let [buffer, ceil_buffer] = [rate, ceil].map(|rate| clock.burst(burst, rate.bytes, mtu));
    let parameters = [&rate.spec()[..], &ceil.spec(), &words(&[buffer, ceil_buffer, quantum, 0, priority])].concat();
    let mut options = attribute(1, &parameters);
    for (kind, rate) in [(6, rate), (7, ceil)] {
        if rate.is_long() {
            options.extend(attribute(kind, &rate.bytes.to_ne_bytes()));
        }
    }
    for (kind, rate) in [(4, rate), (3, ceil)] {
        options.extend(attribute(kind, &rate.table(clock)));
    }
    options
}

/// An attribute. Its value is padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = 4 + value.len();
    let mut bytes = [(len as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn numbers(numbers: &[(u16, u32)]) -> Vec<u8> {
    numbers.iter().flat_map(|&(kind, number)| attribute(kind, &number.to_ne_bytes())).collect()
}

/// What a request is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The interface.
    pub index: u32,
    /// The discipline or class.
    pub handle: TcHandle,
    /// What it is under.
    pub parent: TcHandle,
}

impl Subject {
    /// The discipline of an interface.
    pub fn root(index: u32) -> Subject {
        Subject { index, handle: ROOT, parent: TcHandle::ROOT }
    }

    /// The same, whichever handle it has.
    pub fn any_root(index: u32) -> Subject {
        Subject { index, handle: TcHandle { major: 0, minor: 0 }, parent: TcHandle::ROOT }
    }

    /// A message about it, with options for what is to be made or changed.
    pub fn message(self, options: Option<(Options, u32, Clock)>) -> TcMessage {
        let mut message = TcMessage::with_index(self.index as i32);
        (message.header.handle, message.header.parent) = (self.handle, self.parent);
        if let Some((options, mtu, clock)) = options {
            let encoded = DefaultNla::new(TCA_OPTIONS, options.encode(mtu, clock));
            message.attributes = vec![TcAttribute::Kind(options.kind().into()), TcAttribute::Other(encoded)];
        }
        message
    }
}

/// What the kernel says of a discipline or class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The interface.
    pub index: u32,
    /// Major and minor number.
    pub handle: (u16, u16),
    /// The kind of discipline.
    pub kind: String,
    /// What went through it.
    pub stats: QueueStats,
}

impl Said {
    /// The body of a message. `None`: it is cut short.
    pub fn parse(body: &[u8]) -> Option<Said> {
        let word = |at: usize| body.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let handle = word(8)?;
        let mut said = Said { index: word(4)?, handle: ((handle >> 16) as u16, handle as u16), ..Said::default() };
        for attribute in NlasIterator::new(body.get(HEADER..)?).map_while(Result::ok) {
            match attribute.kind() {
                TCA_KIND => {
                    let text = attribute.value();
                    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
                    said.kind = String::from_utf8_lossy(&text[..end]).into_owned();
                }
                TCA_STATS2 => said.stats = stats(attribute.value()),
                _ => {}
            }
        }
        Some(said)
    }
}

/// The statistics: `struct gnet_stats_basic` and `gnet_stats_queue`, as far as they are there.
fn stats(attributes: &[u8]) -> QueueStats {
    let mut stats = QueueStats::default();
    for attribute in NlasIterator::new(attributes).map_while(Result::ok) {
        let value = attribute.value();
        let word = |at: usize| value.get(at..at + 4).map_or(0, |w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
        match attribute.kind() {
            TCA_STATS_BASIC => {
                let bytes = value.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                (stats.bytes, stats.packets) = (bytes, word(8).into());
            }
            TCA_STATS_QUEUE => stats.errors = word(8).into(),
            _ => {}
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USUAL: &str = "000003e8 00000040 000f4240 3b9aca00";

    fn encode(options: Options) -> Vec<u8> {
        options.encode(1500, Clock::parse(USUAL).unwrap())
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    }

    /// Recorded from tc(8) of iproute2 6.1 on a machine of little endian.
    #[test]
    #[cfg(target_endian = "little")]
    fn options_are_those_of_tc() {
        // htb default 1
        assert_eq!(encode(Options::Htb), hex("18000200 03000000 0a000000 01000000 00000000 00000000"));
        // hfsc default 1
        assert_eq!(encode(Options::Hfsc), hex("0100"));
        // hfsc sc rate 1000000 ul rate 2000000
        let curves = "10000100 00000000 00000000 48e80100 10000200 00000000 00000000 48e80100 \
                      10000300 00000000 00000000 90d00300";
        assert_eq!(encode(Options::HfscClass { min_rate: 125_000, max_rate: 250_000 }), hex(curves));
        // sfq quantum 1500 perturb 10, whose structure tc sends with that of a later version.
        assert_eq!(
            encode(Options::Sfq { perturb: 10, quantum: 1500 }),
            hex("dc050000 0a000000 00000000 00000000 00000000")
        );
        // netem latency 10000 limit 1000 loss 0%
        assert_eq!(
            encode(Options::Netem { latency: 10_000, limit: 1000, loss: 0 }),
            hex("5a620200 e8030000 00000000 00000000 00000000 00000000")
        );
        // The same attributes in another order than tc's: codel target 5000 limit 10240 interval 100000
        assert_eq!(
            encode(Options::Codel { target: 5000, limit: 10240, interval: 100_000 }),
            hex("08000100 88130000 08000200 00280000 08000300 a0860100")
        );
        let fq_codel = Options::FqCodel { target: 5000, limit: 10240, interval: 100_000, flows: 1024, quantum: 1514 };
        assert_eq!(
            encode(fq_codel),
            hex("08000100 88130000 08000200 00280000 08000300 a0860100 08000500 00040000 08000600 ea050000")
        );
    }

    /// htb rate 125000bps ceil 125000bps burst 2000 cburst 2000 mpu 60 mtu 1518, of which tc also says that cells are
    /// aligned and that the link is Ethernet, which is what kernels take for granted.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_class_is_that_of_tc() {
        let class = Options::HtbClass { min_rate: 125_000, max_rate: 125_000, burst: 2000, priority: 0 };
        let found = encode(class);
        let start = "30000100 03000000 00003c00 48e80100 03000000 00003c00 48e80100 90d00300 90d00300 00000000 00000000 \
                     00000000 04040400 4c1d0000 4c1d0000";
        assert_eq!(found[..60], hex(start));
        assert_eq!(found.len(), 48 + 2 * 1028);
    }

    #[test]
    fn rates_beyond_32_bits_have_attributes_of_their_own() {
        let class = |rate| Options::HtbClass { min_rate: 1500, max_rate: rate, burst: 2000, priority: 0 };
        let (short, long) = (encode(class(u32::MAX.into())), encode(class(1 << 32)));
        assert_eq!(long.len(), short.len() + 12);
        assert_eq!(long[48..60], attribute(7, &(1u64 << 32).to_ne_bytes()));
    }

    #[test]
    fn classes_are_numbered_as_in_ovs() {
        assert_eq!(class_of(0), Some(TcHandle { major: 1, minor: 1 }));
        assert_eq!((priority_of(0xefff), priority_of(0xfffd), priority_of(70_000)), (Some(0x1_f000), None, None));
        assert_eq!(queue_of(TcHandle { major: 1, minor: 8 }), Some(7));
        assert_eq!([ROOT, ALL, TcHandle { major: 2, minor: 8 }].map(queue_of), [None; 3]);
    }

    #[test]
    fn statistics_are_read() {
        let basic = attribute(TCA_STATS_BASIC, &[&7000u64.to_ne_bytes()[..], &5u32.to_ne_bytes(), &[0; 4]].concat());
        let queue = attribute(TCA_STATS_QUEUE, &words(&[1, 2, 3, 4, 5]));
        let attributes = [attribute(TCA_KIND, b"htb\0"), attribute(TCA_STATS2, &[basic, queue].concat())].concat();
        let body = [&words(&[0, 4, 0x1_0008, 0x1_fffe, 0]), &attributes[..]].concat();
        let stats = QueueStats { packets: 5, bytes: 7000, errors: 3 };
        assert_eq!(Said::parse(&body), Some(Said { index: 4, handle: (1, 8), kind: "htb".into(), stats }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Said::parse(&bytes);
            stats(&bytes);
        }

        /// Whatever is asked for, it has a message.
        #[test]
        fn any_values_are_encoded(
            [min_rate, max_rate, burst]: [u64; 3],
            [priority, mtu, latency, loss]: [u32; 4],
        ) {
            let clock = Clock::parse(USUAL).unwrap();
            Options::HtbClass { min_rate, max_rate, burst, priority }.encode(mtu, clock);
            Options::Netem { latency, limit: priority, loss }.encode(mtu, clock);
        }
    }
}
