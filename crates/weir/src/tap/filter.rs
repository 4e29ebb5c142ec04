//! Which packets a tap is about: those that an expression of tcpdump or an OpenFlow match describes.

use std::sync::Arc;

use datapath::tap::TapFilter;
use ingress::RuleSet;
use openflow::text::parse_match;
use packet::flow::extract::extract;
use packet::flow::field::{FIELDS, FieldInfo};
use packet::flow::text::NoNames;
use packet::flow::{BlockId, Mask, VlanLimit};
use packet::{Key, Packet};

/// What an OpenFlow match begins with.
const FLOW: &str = "flow:";

/// Where the metadata of a packet begins in the common block of a key: what is behind is no part of its frame.
const METADATA: usize = std::mem::offset_of!(packet::flow::block::Common, in_port);

/// Compiles a filter; `None` where the text is empty. May take as long as a name server does, where an expression names a host.
///
/// # Errors
/// What is wrong with it.
pub fn compile(text: &str, vlan_limit: VlanLimit) -> Result<Option<Arc<dyn TapFilter>>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    if let Some(matching) = text.strip_prefix(FLOW) {
        return Ok(Some(Arc::new(OfFlow::parse(matching, vlan_limit)?)));
    }
    if text.contains(';') {
        return Err(format!("{text}: an expression has no \";\""));
    }
    let rules = RuleSet::compile(&format!("pass {text}")).map_err(|error| {
        format!("{text}: {} (a filter is an expression of pcap-filter(7), or flow: with an OpenFlow match; words before it name ports)", error.reason)
    })?;
    Ok(Some(Arc::new(OfExpression(rules))))
}

/// An expression of tcpdump.
struct OfExpression(RuleSet);

impl TapFilter for OfExpression {
    fn matches(&self, packet: &Packet) -> bool {
        self.0.first_match(packet.data()).is_some()
    }
}

/// An OpenFlow match on the headers of a frame.
struct OfFlow {
    key: Key,
    mask: Mask,
    vlan_limit: VlanLimit,
}

impl OfFlow {
    fn parse(text: &str, vlan_limit: VlanLimit) -> Result<OfFlow, String> {
        let matching = parse_match(text, &NoNames).map_err(|error| format!("{FLOW}{text}: {error}"))?;
        let (key, mask) = (Key::clone(&matching.key), Mask::clone(&matching.mask));
        let refused = FIELDS.iter().find(|field| mask.get(field.field) != 0 && !is_of_frame(field));
        let name = match (refused, matching.tun_metadata.is_empty()) {
            (None, true) => return Ok(OfFlow { key, mask, vlan_limit }),
            (None, false) => "tun_metadata",
            (Some(field), _) => field.name,
        };
        Err(format!("{FLOW}{text}: {name} is not in a frame, and a tap sees frames; ports are named before the filter"))
    }
}

/// Whether a field is in frames, and not beside them.
fn is_of_frame(field: &FieldInfo) -> bool {
    match field.block() {
        BlockId::Common => usize::from(field.offset) < METADATA,
        block => matches!(block, BlockId::L3 | BlockId::Encap),
    }
}

impl TapFilter for OfFlow {
    fn matches(&self, packet: &Packet) -> bool {
        let mut key = Key::new();
        extract(packet.data(), &mut key, self.vlan_limit);
        key.matches(&self.key, &self.mask)
    }
}

#[cfg(test)]
mod tests {
    use packet::wire::build;
    use proptest::prelude::*;

    use super::*;

    fn frame(port: u16) -> Packet {
        let header = build::Ipv4 { src: [10, 0, 0, 1].into(), proto: 17, ..build::Ipv4::default() };
        Packet::from_slice(&build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, port, b"x"))))
    }

    fn accepts(text: &str) -> [bool; 2] {
        let filter = compile(text, VlanLimit::default()).unwrap().unwrap();
        [53, 80].map(|port| filter.matches(&frame(port)))
    }

    #[test]
    fn both_kinds_choose_packets() {
        for text in ["udp port 53", "flow:udp,tp_dst=53", " flow:udp,udp_dst=53 ", "src host 10.0.0.1 and port 53"] {
            assert_eq!(accepts(text), [true, false], "{text}");
        }
        assert_eq!(accepts("flow:ip,nw_src=10.0.0.0/8"), [true; 2]);
        assert_eq!(accepts("flow:tcp"), [false; 2]);
        assert_eq!(accepts("flow:"), [true; 2], "every packet matches an empty match");
        assert!(compile(" ", VlanLimit::default()).unwrap().is_none());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("eht1", "eht1: can't parse filter expression: syntax error"),
            ("tcp; drop", "an expression has no \";\""),
            ("flow:tcp,in_port=1", "in_port is not in a frame"),
            ("flow:reg0=1", "reg0 is not in a frame"),
            ("flow:ct_state=+trk,ip", "ct_state is not in a frame"),
            ("flow:tun_id=5", "tun_id is not in a frame"),
            ("flow:metadata=5", "metadata is not in a frame"),
            ("flow:pkt_mark=5", "pkt_mark is not in a frame"),
            ("flow:tcpp", "flow:tcpp: "),
        ] {
            let Err(error) = compile(text, VlanLimit::default()) else { panic!("{text}") };
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_frame_panics(frame in prop::collection::vec(any::<u8>(), 0..100)) {
            let frame = Packet::from_slice(&frame);
            FILTERS.with(|filters| assert!(filters.iter().filter(|filter| filter.matches(&frame)).count() <= 2));
        }
    }

    thread_local! {
        static FILTERS: [Arc<dyn TapFilter>; 2] = ["flow:tcp,tp_dst=53", "ip6 or tcp[13] & 2 != 0"]
            .map(|text| compile(text, VlanLimit::default()).unwrap().unwrap());
    }
}
