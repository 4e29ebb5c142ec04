//! What the datapath can do, with the names that OVS has for it: in `dpif/show-dp-features`, and in the column
//! `capabilities` of the table Datapath (ovs-vswitchd.conf.db(5)).

/// A feature.
pub struct Feature {
    /// Name of the capability.
    pub name: &'static str,
    /// In words.
    pub title: &'static str,
    /// Whether, or how far, the datapath can do it.
    pub value: FeatureValue,
}

/// Whether, or how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FeatureValue {
    Flag(bool),
    Number(u32),
}

use FeatureValue::{Flag, Number};

const fn feature(name: &'static str, title: &'static str, value: FeatureValue) -> Feature {
    Feature { name, title, value }
}

/// The one that can be turned off.
pub const TUNNEL_PUSH_POP: &str = "tnl_push_pop";

/// MPLS label stack entries before whole packets. Can be turned off: then packets that get one are translated one by one.
pub const ADD_MPLS: &str = "add_mpls";

/// Lengths of packets. Can be turned off: then packets of which they are asked are translated one by one.
pub const CHECK_LENGTH: &str = "check_pkt_len";

/// In the order in which OVS lists them.
pub const FEATURES: &[Feature] = &[
    feature("masked_set_action", "Masked set action", Flag(true)),
    feature(TUNNEL_PUSH_POP, "Tunnel push pop", Flag(true)),
    feature("ufid", "Ufid", Flag(true)),
    feature("trunc", "Truncate action", Flag(true)),
    feature("clone", "Clone action", Flag(true)),
    feature("sample_nesting", "Sample nesting", Number(0)),
    // There are no events of connections.
    feature("ct_eventmask", "Conntrack eventmask", Flag(false)),
    feature("ct_clear", "Conntrack clear", Flag(true)),
    feature("max_hash_alg", "Max dp_hash algorithm", Number(1)),
    feature(CHECK_LENGTH, "Check pkt length action", Flag(true)),
    feature("ct_timeout", "Conntrack timeout policy", Flag(true)),
    feature("explicit_drop_action", "Explicit Drop action", Flag(false)),
    feature("lb_output_action", "Optimized Balance TCP mode", Flag(true)),
    feature("ct_zero_snat", "Conntrack all-zero IP SNAT", Flag(true)),
    feature(ADD_MPLS, "MPLS Label add", Flag(true)),
    feature("max_vlan_headers", "Max VLAN headers", Number(2)),
    feature("max_mpls_depth", "Max MPLS depth", Number(3)),
    feature("recirc", "Recirc", Flag(true)),
    feature("ct_state", "CT state", Flag(true)),
    feature("ct_zone", "CT zone", Flag(true)),
    feature("ct_mark", "CT mark", Flag(true)),
    feature("ct_label", "CT label", Flag(true)),
    feature("ct_state_nat", "CT state NAT", Flag(true)),
    feature("ct_orig_tuple", "CT orig tuple", Flag(true)),
    feature("ct_orig_tuple6", "CT orig tuple for IPv6", Flag(true)),
    feature("nd_ext", "IPv6 ND Extension", Flag(true)),
];

/// The pairs of the column `capabilities`.
pub fn capabilities() -> impl Iterator<Item = (&'static str, String)> {
    let of_datapath = FEATURES.iter().map(|feature| {
        let value = match feature.value {
            Flag(value) => value.to_string(),
            // A flag in this column, though it is a number.
            Number(depth) if feature.name == "sample_nesting" => (depth > 0).to_string(),
            Number(value) => value.to_string(),
        };
        (feature.name, value)
    });
    // OpenFlow's NXT_CT_FLUSH, which has nothing to do with the datapath.
    of_datapath.chain([("ct_flush", "true".to_owned())])
}

/// Logs what tests and programs look for in the log of OVS's daemon, in its words and order.
pub fn log() {
    for said in said() {
        tracing::info!(target: "ofproto_dpif", "ovs-netdev: {said}");
    }
}

fn said() -> impl Iterator<Item = String> {
    SAID.iter().filter_map(|&(name, words)| {
        let feature = FEATURES.iter().find(|feature| feature.name == name)?;
        match feature.value {
            Flag(false) => None,
            Flag(true) if words.is_empty() => Some(format!("Datapath supports {name}")),
            Flag(true) => Some(format!("Datapath supports {words}")),
            Number(number) => Some(format!("{words} {number}")),
        }
    })
}

/// Features by name, with OVS's words for them; their names where these are empty.
const SAID: &[(&str, &str)] = &[
    ("recirc", "recirculation"),
    ("max_vlan_headers", "VLAN header stack length probed as"),
    ("max_mpls_depth", "MPLS label stack length probed as"),
    ("trunc", "truncate action"),
    ("ufid", "unique flow ids"),
    ("clone", "clone action"),
    ("sample_nesting", "Max sample nesting level probed as"),
    ("ct_eventmask", "eventmask in conntrack action"),
    ("ct_clear", "ct_clear action"),
    ("max_hash_alg", "Max dp_hash algorithm probed to be"),
    (CHECK_LENGTH, "check_pkt_len action"),
    ("ct_timeout", "timeout policy in conntrack action"),
    ("ct_zero_snat", ""),
    (ADD_MPLS, "add_mpls action"),
    ("ct_state", ""),
    ("ct_zone", ""),
    ("ct_mark", ""),
    ("ct_label", ""),
    ("ct_state_nat", ""),
    ("ct_orig_tuple", ""),
    ("ct_orig_tuple6", ""),
    ("nd_ext", "IPv6 ND Extensions"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_features() {
        let all: std::collections::BTreeMap<_, _> = capabilities().collect();
        assert_eq!(all.len(), FEATURES.len() + 1, "no name is there twice");
        assert_eq!((&*all["ct_state"], &*all["max_vlan_headers"], &*all["sample_nesting"]), ("true", "2", "false"));
    }

    #[test]
    fn the_log_has_the_words_of_ovs() {
        let said: Vec<_> = said().collect();
        for words in [
            "Datapath supports ct_zero_snat",
            "Datapath supports truncate action",
            "MPLS label stack length probed as 3",
        ] {
            assert!(said.iter().any(|line| line == words), "{words}");
        }
        // What it cannot do, and nothing that is no feature.
        assert_eq!(said.len(), SAID.len() - 1);
    }
}
