//! What translation knows of what a bridge exports (crate `export`).

use std::collections::BTreeMap;
use std::sync::Arc;

use export::netflow::NetFlow;
use export::settings::{BridgeExport, probability};

/// What a bridge samples, and whom it credits.
#[derive(Default)]
pub(crate) struct Sampling {
    pub sflow: Option<SflowSampling>,
    pub ipfix: Option<IpfixSampling>,
    /// The collector sets, and whether their records tell tunnels.
    pub collector_sets: BTreeMap<u32, bool>,
    /// What all of this was made from.
    pub settings: BridgeExport,
    /// The flows of NetFlow.
    pub netflow: Option<Arc<NetFlow>>,
}

/// How packets are sampled for sFlow.
#[derive(Clone, Copy)]
pub(crate) struct SflowSampling {
    /// Of `u32::MAX`.
    pub probability: u32,
    /// Most bytes of a packet.
    pub header: usize,
}

/// How packets are sampled for the bridge's exporter of IPFIX.
#[derive(Clone, Copy)]
pub(crate) struct IpfixSampling {
    /// Of `u32::MAX`.
    pub probability: u32,
    /// How many packets a sample stands for.
    pub packets: u32,
    /// Where they come in.
    pub input: bool,
    /// Where they go out.
    pub output: bool,
    /// Records tell tunnels.
    pub tunnels: bool,
}

impl Sampling {
    /// What these settings ask for.
    pub fn of(wanted: &BridgeExport, netflow: Option<Arc<NetFlow>>) -> Sampling {
        let sflow = wanted.sflow.as_ref().map(|sflow| SflowSampling {
            probability: probability(sflow.sampling),
            header: usize::from(sflow.header).min(export::sflow::MAX_HEADER),
        });
        let ipfix = wanted.ipfix.as_ref().map(|ipfix| IpfixSampling {
            probability: probability(ipfix.sampling),
            packets: ipfix.sampling,
            input: ipfix.input,
            output: ipfix.output,
            tunnels: ipfix.exporter.tunnels,
        });
        let collector_sets = wanted.collector_sets.iter().map(|(&id, set)| (id, set.tunnels)).collect();
        Sampling { sflow, ipfix, collector_sets, settings: wanted.clone(), netflow }
    }

    /// Whether there is any exporter of IPFIX.
    pub fn has_ipfix(&self) -> bool {
        self.ipfix.is_some() || !self.collector_sets.is_empty()
    }
}
