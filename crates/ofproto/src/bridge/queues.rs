//! Queues of ports.
//!
//! A port says which queues it has. Weir limits no rates and counts no packets by queue: what it can tell of a
//! queue is that it is there.

use openflow::port::QueueStats;
use openflow::{OfError, OfPort, QueueConfig};

use super::Bridge;

impl Bridge {
    /// Counters of a queue, or of all for [`QueueConfig::ALL`], of a port, or of all for ANY.
    pub fn queue_stats(&self, port: OfPort, queue: u32) -> Result<Vec<QueueStats>, OfError> {
        let unknown = u64::MAX;
        let stats = |(port, queue)| QueueStats {
            port,
            queue,
            tx_bytes: unknown,
            tx_packets: unknown,
            tx_errors: unknown,
            duration: None,
        };
        Ok(self.queues(port, queue)?.into_iter().map(stats).collect())
    }

    /// Configuration of a queue, or of all for [`QueueConfig::ALL`], of a port, or of all for ANY.
    pub fn queue_configs(&self, port: OfPort, queue: u32) -> Result<Vec<QueueConfig>, OfError> {
        let config = |(port, queue)| QueueConfig { port, queue, min_rate: None, max_rate: None };
        Ok(self.queues(port, queue)?.into_iter().map(config).collect())
    }

    fn queues(&self, port: OfPort, queue: u32) -> Result<Vec<(OfPort, u32)>, OfError> {
        let devices = self.each_port(port, |_, _, state| (state.port, state.device.clone()));
        if devices.is_empty() && port != OfPort::ANY {
            return Err(OfError::OFPQOFC_BAD_PORT);
        }
        let mut found = Vec::new();
        for (port, device) in devices {
            if let Some(device) = device.port() {
                found.extend(device.queues().into_iter().map(|queue| (port, queue)));
            }
        }
        found.retain(|&(_, number)| queue == QueueConfig::ALL || queue == number);
        if found.is_empty() && queue != QueueConfig::ALL { Err(OfError::OFPQOFC_BAD_QUEUE) } else { Ok(found) }
    }
}
