//! What a port may receive, and be sent, in a second.

use std::collections::BTreeMap;

use datapath::{EgressLimits, PolicerLimits, RateLimit, TrtcmLimits, TrtcmPolicer, TrtcmRates};
use ports::Qos;
use ports::qos::Settings;
use serde::Serialize;

/// Bytes of an Ethernet header, which do not count for [`Egress`].
const ETHERNET: usize = 14;

/// Limits of a port. What is more is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policing {
    /// What it receives.
    pub ingress: IngressPolicing,
    /// What it is sent.
    pub egress: Option<Egress>,
}

/// The limit of what a port is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Egress {
    /// Of one rate.
    OneRate(EgressPolicer),
    /// Of two rates.
    TwoRates(TwoRates),
}

/// The limits of what a port receives, of whole frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IngressPolicing {
    /// In kb/s; zero: no limit (`ingress_policing_rate`).
    pub rate: u32,
    /// In kb; zero: [`DEFAULT_BURST`](IngressPolicing::DEFAULT_BURST) (`ingress_policing_burst`).
    pub burst: u32,
    /// In thousands of packets per second; zero: no limit (`ingress_policing_kpkts_rate`).
    pub kpkts_rate: u32,
    /// In thousands of packets; zero: [`DEFAULT_KPKTS_BURST`](IngressPolicing::DEFAULT_KPKTS_BURST)
    /// (`ingress_policing_kpkts_burst`).
    pub kpkts_burst: u32,
}

/// The limit of what a port is sent: a QoS of the type `egress-policer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EgressPolicer {
    /// The committed information rate: bytes per second of what follows the Ethernet header, at least 1.
    pub cir: u64,
    /// The committed burst size, in such bytes, at least 1.
    pub cbs: u64,
}

/// The limits of two rates: a QoS of the type `trtcm-policer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TwoRates {
    /// Of all that the port is sent.
    pub port: Rates,
    /// Of its queues, by number; there is always a queue 0.
    pub queues: BTreeMap<u32, Rates>,
}

/// Two rates with their bursts, of what follows the Ethernet header: bytes per second, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rates {
    /// The committed information rate.
    pub cir: u64,
    /// The committed burst size.
    pub cbs: u64,
    /// The excess information rate.
    pub eir: u64,
    /// The excess burst size.
    pub ebs: u64,
}

impl Rates {
    /// Those that settings name; what they do not name is zero. An error says what is wrong.
    fn of(settings: &Settings) -> Result<Rates, String> {
        let number = |name| settings.get(name).copied().unwrap_or_default();
        let rates = Rates { cir: number("cir"), cbs: number("cbs"), eir: number("eir"), ebs: number("ebs") };
        if [rates.cir, rates.cbs, rates.eir, rates.ebs].iter().any(|&number| number > EgressPolicer::MOST) {
            return Err(format!("cir, cbs, eir and ebs are {} at most", EgressPolicer::MOST));
        }
        if rates.cir > 0 && rates.cbs == 0 || rates.eir > 0 && rates.ebs == 0 {
            return Err("a rate needs a burst: cir needs cbs, and eir needs ebs".into());
        }
        Ok(rates)
    }
}

impl TwoRates {
    /// What a QoS of this type asks for, and what is wrong in it. A queue of which something is wrong is not there. `None`: nothing is
    /// limited.
    pub fn of(qos: &Qos) -> (Option<TwoRates>, Vec<String>) {
        let port = match Rates::of(&qos.settings) {
            Ok(rates) if rates.cir == 0 && rates.eir == 0 => {
                Err("a port needs other_config:cir or eir, in bytes per second".into())
            }
            other => other,
        };
        let port = match port {
            Ok(port) => port,
            Err(problem) => {
                let kind = TrtcmPolicer::TYPE;
                return (None, vec![format!("no limit for what is sent: QoS of type {kind}: {problem}")]);
            }
        };
        let (mut queues, mut problems) = (BTreeMap::new(), Vec::new());
        for (&number, settings) in &qos.queues {
            match Rates::of(settings) {
                // As in OVS, the default queue has the rates of the port where it has none of its own.
                Ok(_) if number == 0 && settings.is_empty() => drop(queues.insert(0, port)),
                Ok(rates) => drop(queues.insert(number, rates)),
                Err(problem) => problems.push(format!("queue {number} is not there: {problem}")),
            }
        }
        if let [first, _, ..] = &problems[..] {
            problems = vec![format!("{first}; so it is with {} queues", problems.len())];
        }
        (Some(TwoRates { port, queues }), problems)
    }
}

impl From<Rates> for TrtcmRates {
    fn from(Rates { cir, cbs, eir, ebs }: Rates) -> TrtcmRates {
        TrtcmRates { cir, cbs, eir, ebs }
    }
}

impl IngressPolicing {
    /// What may come at once where nothing is said, in kb.
    pub const DEFAULT_BURST: u32 = 8000;
    /// The same in thousands of packets.
    pub const DEFAULT_KPKTS_BURST: u32 = 16;
}

impl EgressPolicer {
    /// The highest rate and burst, so that all of it is counted in bits.
    pub const MOST: u64 = 1 << 56;
}

impl Policing {
    /// What limits that which is received.
    pub fn ingress_limits(&self) -> PolicerLimits {
        let IngressPolicing { rate, burst, kpkts_rate, kpkts_burst } = self.ingress;
        let limit = |rate: u32, burst: u32, default: u32| {
            let burst = if burst == 0 { default } else { burst };
            (rate > 0).then_some(RateLimit { rate: u64::from(rate) * 1000, burst: u64::from(burst) * 1000 })
        };
        PolicerLimits {
            bits: limit(rate, burst, IngressPolicing::DEFAULT_BURST),
            packets: limit(kpkts_rate, kpkts_burst, IngressPolicing::DEFAULT_KPKTS_BURST),
            uncounted: 0,
        }
    }

    /// What limits that which is sent.
    pub fn egress_limits(&self) -> EgressLimits {
        match &self.egress {
            None => EgressLimits::Nothing,
            Some(Egress::OneRate(EgressPolicer { cir, cbs })) => {
                let bits = Some(RateLimit { rate: cir * 8, burst: cbs * 8 });
                EgressLimits::OneRate(PolicerLimits { bits, packets: None, uncounted: ETHERNET })
            }
            Some(Egress::TwoRates(TwoRates { port, queues })) => EgressLimits::TwoRates(TrtcmLimits {
                port: (*port).into(),
                queues: queues.iter().map(|(number, rates)| (*number, (*rates).into())).collect(),
                uncounted: ETHERNET,
            }),
        }
    }
}
