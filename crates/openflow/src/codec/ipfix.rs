//! Statistics of exporters of IPFIX: NXST_IPFIX_BRIDGE and NXST_IPFIX_FLOW, which all versions have as extensions.

use super::wire::{Put, Reader};
use crate::error::OfError;
use crate::stats::IpfixStats;

pub(super) fn pull(r: &mut Reader) -> Result<IpfixStats, OfError> {
    let stats = IpfixStats {
        flows: r.u64()?,
        current_flows: r.u64()?,
        packets: r.u64()?,
        ipv4: r.u64()?,
        ipv6: r.u64()?,
        errors: r.u64()?,
        ipv4_errors: r.u64()?,
        ipv6_errors: r.u64()?,
        sent: r.u64()?,
        not_sent: r.u64()?,
        collector_set: r.u32()?,
    };
    r.skip(4)?;
    Ok(stats)
}

pub(super) fn put(out: &mut Vec<u8>, stats: &IpfixStats) {
    let of_packets = [stats.flows, stats.current_flows, stats.packets, stats.ipv4, stats.ipv6];
    let of_errors = [stats.errors, stats.ipv4_errors, stats.ipv6_errors];
    let counts = of_packets.into_iter().chain(of_errors).chain([stats.sent, stats.not_sent]);
    counts.for_each(|count| out.u64(count));
    out.u32(stats.collector_set);
    out.zeros(4);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_as_ovs_has_it() {
        let stats = IpfixStats {
            flows: 1,
            current_flows: 2,
            packets: 3,
            ipv4: 4,
            ipv6: 5,
            errors: 6,
            ipv4_errors: 7,
            ipv6_errors: 8,
            sent: 9,
            not_sent: 10,
            collector_set: 11,
        };
        let mut out = Vec::new();
        put(&mut out, &stats);
        let mut expected: Vec<u8> = (1..=10u64).flat_map(u64::to_be_bytes).collect();
        expected.extend([0, 0, 0, 11, 0, 0, 0, 0]);
        assert_eq!(out, expected);
        assert_eq!(pull(&mut Reader::new(&out, OfError::OFPBRC_BAD_LEN)), Ok(stats));
        assert!(pull(&mut Reader::new(&out[..87], OfError::OFPBRC_BAD_LEN)).is_err());
    }
}
