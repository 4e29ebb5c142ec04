//! What a port may receive, and be sent, in a second.

use datapath::{PolicerLimits, RateLimit};
use serde::Serialize;

/// Bytes of an Ethernet header, which do not count for [`EgressPolicer`].
const ETHERNET: usize = 14;

/// Limits of a port. What is more is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policing {
    /// What it receives.
    pub ingress: IngressPolicing,
    /// What it is sent.
    pub egress: Option<EgressPolicer>,
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

impl IngressPolicing {
    /// What may come at once where nothing is said, in kb.
    pub const DEFAULT_BURST: u32 = 8000;
    /// The same in thousands of packets.
    pub const DEFAULT_KPKTS_BURST: u32 = 16;
}

impl EgressPolicer {
    /// Its name as a type of QoS.
    pub const TYPE: &str = "egress-policer";
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
    pub fn egress_limits(&self) -> PolicerLimits {
        let limit = |policer: EgressPolicer| RateLimit { rate: policer.cir * 8, burst: policer.cbs * 8 };
        PolicerLimits { bits: self.egress.map(limit), packets: None, uncounted: ETHERNET }
    }
}
