//! `dpif/show-dp-features` and `dpif/set-dp-features`: what the datapath can do. Weir's can always do the
//! same, and translation has no second way that would leave something out.

use std::fmt::Write as _;

use super::Context;
use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply};

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpif/show-dp-features" "bridge" (1, 1) now!(show), "What the datapath of a bridge can do.";
    "dpif/set-dp-features" "bridge" (1, 3) now!(set),
        "What the datapath of a bridge can do; a feature can be set to what it is.";
    "ofproto/tnl-push-pop" "[on]|[off]" (1, 1) |_, args| Reply::Now(tunnel_push_pop(&args[0])),
        "Has the datapath itself push and pop tunnel headers; there is no other way.";
};

/// A feature's name, title and value.
type Feature = (&'static str, &'static str, FeatureValue);

#[derive(Clone, Copy)]
enum FeatureValue {
    Flag(bool),
    Number(u32),
}

use FeatureValue::{Flag, Number};

/// In the order in which OVS lists them.
const FEATURES: &[Feature] = &[
    ("masked_set_action", "Masked set action", Flag(true)),
    ("tnl_push_pop", "Tunnel push pop", Flag(false)),
    ("ufid", "Ufid", Flag(true)),
    ("trunc", "Truncate action", Flag(true)),
    ("clone", "Clone action", Flag(true)),
    ("sample_nesting", "Sample nesting", Number(0)),
    ("ct_eventmask", "Conntrack eventmask", Flag(false)),
    ("ct_clear", "Conntrack clear", Flag(false)),
    ("max_hash_alg", "Max dp_hash algorithm", Number(0)),
    ("check_pkt_len", "Check pkt length action", Flag(true)),
    ("ct_timeout", "Conntrack timeout policy", Flag(false)),
    ("explicit_drop_action", "Explicit Drop action", Flag(false)),
    ("lb_output_action", "Optimized Balance TCP mode", Flag(false)),
    ("ct_zero_snat", "Conntrack all-zero IP SNAT", Flag(false)),
    ("add_mpls", "MPLS Label add", Flag(false)),
    ("max_vlan_headers", "Max VLAN headers", Number(2)),
    ("max_mpls_depth", "Max MPLS depth", Number(3)),
    ("recirc", "Recirc", Flag(true)),
    ("ct_state", "CT state", Flag(false)),
    ("ct_zone", "CT zone", Flag(false)),
    ("ct_mark", "CT mark", Flag(false)),
    ("ct_label", "CT label", Flag(false)),
    ("ct_state_nat", "CT state NAT", Flag(false)),
    ("ct_orig_tuple", "CT orig tuple", Flag(false)),
    ("ct_orig_tuple6", "CT orig tuple for IPv6", Flag(false)),
    ("nd_ext", "IPv6 ND Extension", Flag(true)),
];

fn known_bridge(context: &Context, name: &str) -> Result<(), String> {
    context.bridge(name).map(drop).map_err(|_| "no such bridge".into())
}

fn show(context: &Context, args: &[String]) -> Outcome {
    known_bridge(context, &args[0])?;
    let mut text = String::new();
    for (_, title, value) in FEATURES {
        let _ = match value {
            Flag(value) => writeln!(text, "{title}: {}", if *value { "Yes" } else { "No" }),
            Number(value) => writeln!(text, "{title}: {value}"),
        };
    }
    Ok(text)
}

fn set(context: &Context, args: &[String]) -> Outcome {
    known_bridge(context, &args[0])?;
    match &args[1..] {
        [] => Ok(list()),
        [name, rest @ ..] => set_feature(name, rest.first().map(String::as_str)),
    }
}

fn list() -> String {
    FEATURES.iter().map(line).collect()
}

fn line((name, title, value): &Feature) -> String {
    let value = match value {
        Flag(value) => value.to_string(),
        Number(value) => value.to_string(),
    };
    format!("{name} ({title}) : [run time]:{value}, [boot time]:{value}\n")
}

fn set_feature(name: &str, value: Option<&str>) -> Outcome {
    let feature = FEATURES.iter().find(|feature| feature.0 == name).ok_or("Unexpected support field")?;
    let Some(text) = value else { return Ok(line(feature)) };
    let same = match feature.2 {
        Flag(value) => match text.to_ascii_lowercase().as_str() {
            "true" => value,
            "false" => !value,
            _ => return Err("Boolean value expected".into()),
        },
        Number(value) => match text.parse::<i64>() {
            Ok(n) if n < 0 => return Err("Negative number not expected".into()),
            Ok(n) if n > i64::from(value) => return Err("Can not set value beyond the datapath capability".into()),
            Ok(n) => n == i64::from(value),
            Err(_) => return Err("Integer number expected".into()),
        },
    };
    match (same, feature.2) {
        (true, _) => Ok(String::new()),
        (false, Flag(false)) => Err("Can not enable features not supported by the datapth".into()),
        (false, _) => Err(format!("{name} cannot be turned off: translation always uses it")),
    }
}

/// The other way of OVS has the kernel's tunnel devices do it, which a datapath in user space never does.
fn tunnel_push_pop(value: &str) -> Outcome {
    match value.to_ascii_lowercase().as_str() {
        "on" => Ok("Tunnel push-pop on\n".into()),
        "off" => Err("tunnel push-pop cannot be turned off: no kernel datapath is there to do it instead".into()),
        _ => Err("Invalid argument".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_push_pop_is_always_on() {
        assert_eq!(tunnel_push_pop("ON"), Ok("Tunnel push-pop on\n".into()));
        assert!(tunnel_push_pop("off").unwrap_err().contains("cannot be turned off"));
        assert_eq!(tunnel_push_pop("maybe"), Err("Invalid argument".into()));
    }

    #[test]
    fn a_feature_stays_what_it_is() {
        assert_eq!(set_feature("recirc", Some("true")), Ok(String::new()));
        assert_eq!(set_feature("ct_state", Some("false")), Ok(String::new()));
        assert!(set_feature("recirc", Some("false")).unwrap_err().contains("cannot be turned off"));
        assert!(set_feature("ct_state", Some("true")).is_err());
        assert_eq!(set_feature("recirc", Some("0")), Err("Boolean value expected".into()));
        assert_eq!(set_feature("nonsense", None), Err("Unexpected support field".into()));
        assert!(set_feature("max_vlan_headers", Some("3")).unwrap_err().contains("beyond"));
        assert_eq!(set_feature("ufid", None), Ok("ufid (Ufid) : [run time]:true, [boot time]:true\n".into()));
    }
}
