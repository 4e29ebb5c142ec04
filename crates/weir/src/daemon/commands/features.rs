//! `dpif/show-dp-features` and `dpif/set-dp-features`: what the datapath can do. Weir's can always do the
//! same, and translation has no second way that would leave something out.

use std::fmt::Write as _;

use super::Context;
use crate::features::FeatureValue::{Flag, Number};
use crate::features::{FEATURES, Feature};
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

fn line(Feature { name, title, value }: &Feature) -> String {
    let value = match value {
        Flag(value) => value.to_string(),
        Number(value) => value.to_string(),
    };
    format!("{name} ({title}) : [run time]:{value}, [boot time]:{value}\n")
}

fn set_feature(name: &str, value: Option<&str>) -> Outcome {
    let feature = FEATURES.iter().find(|feature| feature.name == name).ok_or("Unexpected support field")?;
    let Some(text) = value else { return Ok(line(feature)) };
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
        assert_eq!(set_feature("ct_eventmask", Some("false")), Ok(String::new()));
        assert!(set_feature("recirc", Some("false")).unwrap_err().contains("cannot be turned off"));
        assert!(set_feature("ct_eventmask", Some("true")).is_err());
        assert_eq!(set_feature("recirc", Some("0")), Err("Boolean value expected".into()));
        assert_eq!(set_feature("nonsense", None), Err("Unexpected support field".into()));
        assert!(set_feature("max_vlan_headers", Some("3")).unwrap_err().contains("beyond"));
        assert_eq!(set_feature("ufid", None), Ok("ufid (Ufid) : [run time]:true, [boot time]:true\n".into()));
    }
}
