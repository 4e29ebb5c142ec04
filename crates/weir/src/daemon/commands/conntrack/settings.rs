//! How many connections there may be, and whether TCP sequence numbers are checked.

use std::fmt::Write as _;
use std::sync::Arc;

use ::conntrack::table::limits::Limits;
use datapath::Datapath;

use super::Context;
use super::arguments::{Arguments, fields, number, whole_number};
use crate::daemon::commands::dpctl_error as error;
use crate::unixctl::command::Outcome;

fn limits(datapath: &Datapath) -> &Limits {
    &datapath.conntrack().tracker.table.limits
}

/// An error as OVS words it where an argument is wrong.
fn invalid(context: &Context, what: &str) -> String {
    error(context, &format!("{what} (Invalid argument)"))
}

/// An optional datapath and the arguments behind it. At most so many, with it, can be there.
fn arguments<'a>(context: &Context, args: &'a [String], most: usize) -> Result<(Arc<Datapath>, Vec<&'a str>), String> {
    let mut arguments = Arguments::parse(args)?;
    let datapath = arguments.after_datapath(context, most)?;
    Ok((datapath, arguments.rest))
}

/// `dpctl/ct-set-maxconns`.
pub fn set_maxconns(context: &Context, args: &[String]) -> Outcome {
    let (datapath, rest) = arguments(context, args, 2)?;
    let limit = rest.last().and_then(|text| number(text));
    let limit = limit.ok_or_else(|| invalid(context, "maxconns missing or malformed"))?;
    limits(&datapath).set_limit(limit);
    Ok("setting maxconns successful".into())
}

/// `dpctl/ct-get-maxconns`.
pub fn get_maxconns(context: &Context, args: &[String]) -> Outcome {
    let (datapath, _) = arguments(context, args, 1)?;
    Ok(format!("{}\n", limits(&datapath).limit()))
}

/// `dpctl/ct-get-nconns`.
pub fn get_nconns(context: &Context, args: &[String]) -> Outcome {
    let (datapath, _) = arguments(context, args, 1)?;
    Ok(format!("{}\n", limits(&datapath).connections()))
}

/// `dpctl/ct-enable-tcp-seq-chk`.
pub fn enable_tcp_seq_chk(context: &Context, args: &[String]) -> Outcome {
    let (datapath, _) = arguments(context, args, 2)?;
    datapath.set_tcp_sequence_check(true);
    Ok("enabling TCP sequence checking successful".into())
}

/// `dpctl/ct-disable-tcp-seq-chk`.
pub fn disable_tcp_seq_chk(context: &Context, args: &[String]) -> Outcome {
    let (datapath, _) = arguments(context, args, 2)?;
    datapath.set_tcp_sequence_check(false);
    Ok("disabling TCP sequence checking successful".into())
}

/// `dpctl/ct-get-tcp-seq-chk`.
pub fn get_tcp_seq_chk(context: &Context, args: &[String]) -> Outcome {
    let (datapath, _) = arguments(context, args, 1)?;
    let liberal = datapath.conntrack().tracker.is_liberal();
    Ok(format!("TCP sequence checking: {}\n", if liberal { "disabled" } else { "enabled" }))
}

/// `dpctl/ct-enable-fusing`.
pub fn enable_fusing(context: &Context, args: &[String]) -> Outcome {
    let (datapath, _) = arguments(context, args, 2)?;
    datapath.conntrack().set_fusing(true);
    Ok("enabling fusing of connections successful".into())
}

/// `dpctl/ct-disable-fusing`.
pub fn disable_fusing(context: &Context, args: &[String]) -> Outcome {
    let (datapath, _) = arguments(context, args, 2)?;
    datapath.conntrack().set_fusing(false);
    Ok("disabling fusing of connections successful".into())
}

/// Changes the limits of zones, unless the configuration has some for the bridges' datapath: these are what holds, as in OVS
/// from 3.3 on.
fn change_limits(context: &Context, datapath: &Arc<Datapath>, change: impl FnOnce(&Limits)) -> Outcome {
    let configured = context.engine.limits_zones.lock();
    if *configured && Arc::ptr_eq(datapath, &context.engine.datapath) {
        let problem = format!("the zone limits are set in {}, change them there instead", context.location);
        return Err(error(context, &format!("{problem} (Operation not permitted)")));
    }
    change(limits(datapath));
    Ok(String::new())
}

/// `dpctl/ct-set-limits`. All arguments are read before anything changes.
pub fn set_limits(context: &Context, args: &[String]) -> Outcome {
    let (datapath, rest) = arguments(context, args, usize::MAX)?;
    let wanted = parse_limits(&rest).map_err(|problem| invalid(context, &problem))?;
    change_limits(context, &datapath, |limits| {
        if let Some(limit) = wanted.default {
            limits.set_default_zone_limit(Some(limit));
        }
        wanted.zones.iter().for_each(|(zone, limit)| limits.set_zone_limit(*zone, Some(*limit)));
    })
}

/// `dpctl/ct-del-limits`.
pub fn del_limits(context: &Context, args: &[String]) -> Outcome {
    let (datapath, rest) = arguments(context, args, 2)?;
    let zones = parse_zones(rest.first().unwrap_or(&"")).map_err(|problem| invalid(context, &problem))?;
    change_limits(context, &datapath, |limits| zones.iter().for_each(|zone| limits.set_zone_limit(*zone, None)))
}

/// `dpctl/ct-get-limits`.
pub fn get_limits(context: &Context, args: &[String]) -> Outcome {
    let (datapath, rest) = arguments(context, args, 2)?;
    let zones = rest.first().map(|text| parse_zones(text)).transpose();
    let zones = zones.map_err(|problem| invalid(context, &problem))?;
    Ok(list_limits(limits(&datapath), zones))
}

/// The limits of these zones; without any, of those that have one of their own.
fn list_limits(limits: &Limits, zones: Option<Vec<u16>>) -> String {
    let default = limits.default_zone_limit();
    let mut text = format!("default limit={default}");
    let own = |zone: &u16| limits.own_limit(*zone).is_some();
    for zone in zones.unwrap_or_else(|| (0..=u16::MAX).filter(own).collect()) {
        let limit = limits.own_limit(zone).unwrap_or(default);
        let _ = write!(text, "\nzone={zone},limit={limit},count={}", limits.zone_connections(zone));
    }
    text.push('\n');
    text
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WantedLimits {
    default: Option<u32>,
    zones: Vec<(u16, u32)>,
}

/// `[default=L] [zone=N,limit=L]...`
pub(super) fn parse_limits(arguments: &[&str]) -> Result<WantedLimits, String> {
    let mut wanted = WantedLimits::default();
    let mut rest = arguments;
    if let [first, others @ ..] = arguments
        && let Some(text) = first.strip_prefix("default=")
    {
        wanted.default = Some(number(text).ok_or("invalid default limit")?);
        rest = others;
    }
    for argument in rest {
        wanted.zones.push(parse_zone_limit(argument)?);
    }
    Ok(wanted)
}

fn parse_zone_limit(text: &str) -> Result<(u16, u32), String> {
    let (mut zone, mut limit) = (None, None);
    for (key, value) in fields(text) {
        let wrong = || format!("failed to parse field {key}");
        let number = || whole_number(value).ok_or_else(wrong);
        match key {
            _ if value.is_empty() => return Err(format!("field {key} missing value")),
            "zone" => zone = Some(u16::try_from(number()?).map_err(|_| wrong())?),
            "limit" => limit = Some(u32::try_from(number()?).map_err(|_| wrong())?),
            _ => return Err(format!("invalid zone limit field: {key}")),
        }
    }
    zone.zip(limit).ok_or_else(|| "failed to parse zone limit".into())
}

/// `zone=N1[,N2]...`
pub(super) fn parse_zones(text: &str) -> Result<Vec<u16>, String> {
    let list = text.strip_prefix("zone=").ok_or_else(|| format!("invalid argument {text}"))?;
    let zones: Option<Vec<_>> = list.split(',').filter(|zone| !zone.is_empty()).map(number).collect();
    zones.filter(|zones| !zones.is_empty()).ok_or_else(|| "invalid zone".into())
}

#[cfg(test)]
mod tests {
    use ::conntrack::table::Table;

    use super::*;

    #[test]
    fn limits_come_back() {
        let table = Table::new(100, [1, 2]);
        let limits = &table.limits;
        assert_eq!(list_limits(limits, None), "default limit=0\n");
        let wanted = parse_limits(&["default=10", "zone=0,limit=5", "zone=1,limit=15", "zone=0x2,limit=3"]).unwrap();
        assert_eq!(wanted, WantedLimits { default: Some(10), zones: vec![(0, 5), (1, 15), (2, 3)] });
        limits.set_default_zone_limit(wanted.default);
        wanted.zones.iter().for_each(|(zone, limit)| limits.set_zone_limit(*zone, Some(*limit)));
        parse_zones("zone=1,2,4").unwrap().iter().for_each(|zone| limits.set_zone_limit(*zone, None));
        assert_eq!(
            list_limits(limits, Some(vec![0, 1, 65535])),
            "default limit=10\nzone=0,limit=5,count=0\nzone=1,limit=10,count=0\nzone=65535,limit=10,count=0\n"
        );
        assert_eq!(list_limits(limits, None), "default limit=10\nzone=0,limit=5,count=0\n");
    }

    #[test]
    fn errors_are_those_of_ovs() {
        for (text, expected) in [
            ("default=x", "invalid default limit"),
            ("zone", "field zone missing value"),
            ("zone=70000,limit=1", "failed to parse field zone"),
            ("zone=1,limit=x", "failed to parse field limit"),
            ("zone=1,limit=4294967296", "failed to parse field limit"),
            ("zone=1", "failed to parse zone limit"),
            ("foo=1", "invalid zone limit field: foo"),
        ] {
            assert_eq!(parse_limits(&[text]), Err(expected.into()), "{text}");
        }
        assert_eq!(parse_zones("zones=1"), Err("invalid argument zones=1".into()));
        assert_eq!(
            (parse_zones("zone="), parse_zones("zone=1,x")),
            (Err("invalid zone".into()), Err("invalid zone".into()))
        );
    }
}
