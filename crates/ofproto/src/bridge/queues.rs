//! Queues of ports.
//!
//! A port says which queues it has. Where it has a QoS with queues, it counts what is sent by each; of others it can be told
//! that they are there, and no more. A policer of the datapath may have queues, too.

use std::collections::HashMap;

use openflow::port::QueueStats;
use openflow::{OfError, OfPort, QueueConfig};
use ports::qos::QueueState;

use super::Bridge;

impl Bridge {
    /// Counters of a queue, or of all for [`QueueConfig::ALL`], of a port, or of all for ANY.
    pub fn queue_stats(&self, port: OfPort, queue: u32) -> Result<Vec<QueueStats>, OfError> {
        Ok(self.queues(port, queue)?.into_iter().map(|(port, queue, state)| stats(port, queue, state)).collect())
    }

    /// Configuration of a queue, or of all for [`QueueConfig::ALL`], of a port, or of all for ANY.
    pub fn queue_configs(&self, port: OfPort, queue: u32) -> Result<Vec<QueueConfig>, OfError> {
        let config = |(port, queue, _)| QueueConfig { port, queue, min_rate: None, max_rate: None };
        Ok(self.queues(port, queue)?.into_iter().map(config).collect())
    }

    fn queues(&self, port: OfPort, queue: u32) -> Result<Vec<(OfPort, u32, Option<QueueState>)>, OfError> {
        let devices = self.each_port(port, |_, _, state| (state.port, state.dp_port, state.device.clone()));
        if devices.is_empty() && port != OfPort::ANY {
            return Err(OfError::OFPQOFC_BAD_PORT);
        }
        let mut found = Vec::new();
        for (port, dp_port, device) in devices {
            let Some(device) = device.port() else { continue };
            let of_policer = dp_port.and_then(|dp_port| self.switch.datapath.get()?.egress_state(dp_port));
            if let Some(state) = of_policer.filter(|state| !state.queues.is_empty()) {
                found.extend(state.queues.into_iter().map(|queue| (port, queue.number, Some(queue))));
                continue;
            }
            let states = device.qos().map(|qos| qos.queues).unwrap_or_default();
            let mut states: HashMap<_, _> = states.into_iter().map(|state| (state.number, state)).collect();
            found.extend(device.queues().into_iter().map(|number| (port, number, states.remove(&number))));
        }
        found.retain(|&(_, number, _)| queue == QueueConfig::ALL || queue == number);
        if found.is_empty() && queue != QueueConfig::ALL { Err(OfError::OFPQOFC_BAD_QUEUE) } else { Ok(found) }
    }
}

fn stats(port: OfPort, queue: u32, state: Option<QueueState>) -> QueueStats {
    let duration = state.as_ref().map(|state| state.age);
    let counted = state.and_then(|state| state.stats.ok());
    let or_unknown = |count: Option<u64>| count.unwrap_or(u64::MAX);
    QueueStats {
        port,
        queue,
        tx_bytes: or_unknown(counted.map(|stats| stats.bytes)),
        tx_packets: or_unknown(counted.map(|stats| stats.packets)),
        tx_errors: or_unknown(counted.map(|stats| stats.errors)),
        duration,
    }
}
