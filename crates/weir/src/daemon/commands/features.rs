//! `dpif/show-dp-features` and `dpif/set-dp-features`: what the datapath can do. Weir's can always do the
//! same, and translation has no second way that would leave something out.

use std::fmt::Write as _;

use super::Context;
use crate::features::FeatureValue::{Flag, Number};
use crate::features::{FEATURES, Feature};
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpif/show-dp-features" "bridge" (1, 1) now!(show), "What the datapath of a bridge can do.";
    "dpif/set-dp-features" "bridge" (1, 3) now!(set),
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
