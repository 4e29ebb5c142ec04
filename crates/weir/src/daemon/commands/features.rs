//! `dpif/show-dp-features` and `dpif/set-dp-features`: what the datapath can do. Weir's can always do the
//! same, and translation has no second way that would leave something out, but for tunnels, labels and lengths.

use std::fmt::Write as _;

use ofproto::FlowRequest;

use super::Context;
use super::slow_path::when_done;
use crate::features::FeatureValue::{Flag, Number};
use crate::features::{ADD_MPLS, CHECK_LENGTH, FEATURES, Feature, FeatureValue, TUNNEL_PUSH_POP};
use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply};

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpif/show-dp-features" "bridge" (1, 1) now!(show), "What the datapath of a bridge can do.";
    "dpif/set-dp-features" "bridge" (1, 3) slow!(set),
        "What the datapath of a bridge can do; a feature can be set to what it is.";
    "ofproto/tnl-push-pop" "[on]|[off]" (1, 1) now!(tunnel_push_pop),
        "Whether packets are put into tunnels and taken out of them. Without, what is sent to a tunnel port ends there.";
};

fn known_bridge(context: &Context, name: &str) -> Result<(), String> {
    context.bridge(name).map(drop).map_err(|_| "no such bridge".into())
}

fn show(context: &Context, args: &[String]) -> Outcome {
    known_bridge(context, &args[0])?;
    let mut text = String::new();
    for Feature { title, value, .. } in FEATURES {
        let _ = match value {
            Flag(value) => writeln!(text, "{title}: {}", if *value { "Yes" } else { "No" }),
            Number(value) => writeln!(text, "{title}: {value}"),
        };
    }
    Ok(text)
}

/// Flows that were made with a feature are made anew without it, as in OVS: their counters begin again. The answer comes
/// when none of the old ones is left.
fn set(context: &Context, args: &[String]) -> Reply {
    match show_or_set(context, args) {
        Ok(None) => when_done(context, FlowRequest::Purge, String::new),
        Ok(Some(text)) => Reply::Now(Ok(text)),
        Err(problem) => Reply::Now(Err(problem)),
    }
}

/// What is to be shown, or `None` where a feature has changed.
fn show_or_set(context: &Context, args: &[String]) -> Result<Option<String>, String> {
    known_bridge(context, &args[0])?;
    let switch = &context.engine.switch;
    let now = |feature: &Feature| match feature.name {
        TUNNEL_PUSH_POP => Flag(switch.has_tunnel_push_pop()),
        ADD_MPLS => Flag(switch.has_add_mpls()),
        CHECK_LENGTH => Flag(switch.has_check_length()),
        _ => feature.value,
    };
    match &args[1..] {
        [] => Ok(Some(FEATURES.iter().map(|feature| line(feature, now(feature))).collect())),
        [name] => find(name).map(|feature| Some(line(feature, now(feature)))),
        [name, value, ..] => {
            let feature = find(name)?;
            let before = now(feature);
            match accept(feature, value)? {
                Some(enabled) if name == ADD_MPLS => switch.set_add_mpls(enabled),
                Some(enabled) if name == CHECK_LENGTH => switch.set_check_length(enabled),
                Some(enabled) => switch.set_tunnel_push_pop(enabled),
                None => {}
            }
            Ok(if now(feature) == before { Some(String::new()) } else { None })
        }
    }
}

fn find(name: &str) -> Result<&'static Feature, String> {
    FEATURES.iter().find(|feature| feature.name == name).ok_or_else(|| "Unexpected support field".into())
}

/// A feature, as it is now.
fn line(Feature { name, title, value }: &Feature, now: FeatureValue) -> String {
    let text = |value: FeatureValue| match value {
        Flag(value) => value.to_string(),
        Number(value) => value.to_string(),
    };
    format!("{name} ({title}) : [run time]:{}, [boot time]:{}\n", text(now), text(*value))
}

/// Whether a feature can be set to this. What one that can change is to be.
fn accept(feature: &Feature, text: &str) -> Result<Option<bool>, String> {
    let same = match feature.value {
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
    match (same, feature.value) {
        (same, _) if matches!(feature.name, TUNNEL_PUSH_POP | ADD_MPLS | CHECK_LENGTH) => Ok(Some(same)),
        (true, _) => Ok(None),
        (false, Flag(false)) => Err("Can not enable features not supported by the datapth".into()),
        (false, _) => Err(format!("{} cannot be turned off: translation always uses it", feature.name)),
    }
}

/// The other way of OVS has the kernel's tunnel devices do it, which there are none of below a datapath in user space.
fn tunnel_push_pop(context: &Context, args: &[String]) -> Outcome {
    let (enabled, text) = match args[0].to_ascii_lowercase().as_str() {
        "on" => (true, "on"),
        "off" => (false, "off"),
        _ => return Err("Invalid argument".into()),
    };
    context.engine.switch.set_tunnel_push_pop(enabled);
    Ok(format!("Tunnel push-pop {text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_stays_what_it_is() {
        let set = |name, value| accept(find(name).unwrap(), value);
        assert_eq!(set("recirc", "true"), Ok(None));
        assert_eq!(set("ct_eventmask", "false"), Ok(None));
        assert!(set("recirc", "false").unwrap_err().contains("cannot be turned off"));
        assert!(set("ct_eventmask", "true").is_err());
        assert_eq!(set("recirc", "0"), Err("Boolean value expected".into()));
        assert!(set("max_vlan_headers", "3").unwrap_err().contains("beyond"));
        assert_eq!(find("nonsense").map(|feature| feature.name), Err("Unexpected support field".into()));
        let ufid = find("ufid").unwrap();
        assert_eq!(line(ufid, ufid.value), "ufid (Ufid) : [run time]:true, [boot time]:true\n");
    }

    #[test]
    fn tunnels_can_be_left_to_others() {
        let labels = find(ADD_MPLS).unwrap();
        assert_eq!([accept(labels, "false"), accept(labels, "true")], [Ok(Some(false)), Ok(Some(true))]);
        let feature = find(TUNNEL_PUSH_POP).unwrap();
        assert_eq!([accept(feature, "false"), accept(feature, "true")], [Ok(Some(false)), Ok(Some(true))]);
        let shown = line(feature, Flag(false));
        assert_eq!(shown, "tnl_push_pop (Tunnel push pop) : [run time]:false, [boot time]:true\n");
    }
}
