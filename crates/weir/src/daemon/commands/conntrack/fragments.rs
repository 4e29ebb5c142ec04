//! `dpctl/ipf-...`: the fragments that wait for the rest of their datagrams.

use std::fmt::Write as _;
use std::sync::Arc;

use ::conntrack::fragments::{Family, Incomplete, Status};
use datapath::Datapath;

use super::Context;
use super::arguments::{Arguments, number};
use crate::daemon::commands::dpctl_error as error;
use crate::unixctl::command::Outcome;

/// An optional datapath and the arguments behind it. At most so many, with it, can be there.
fn arguments<'a>(context: &Context, args: &'a [String], most: usize) -> Result<(Arc<Datapath>, Arguments<'a>), String> {
    let mut arguments = Arguments::parse(args)?;
    let datapath = arguments.after_datapath(context, most)?;
    Ok((datapath, arguments))
}

/// Whether IPv6 is meant.
fn family(text: Option<&&str>) -> Option<bool> {
    match text?.get(..2)? {
        "v4" => Some(false),
        "v6" => Some(true),
        _ => None,
    }
}

/// `dpctl/ipf-set-enabled`.
pub fn set_enabled(context: &Context, args: &[String]) -> Outcome {
    switch(context, args, true)
}

/// `dpctl/ipf-set-disabled`.
pub fn set_disabled(context: &Context, args: &[String]) -> Outcome {
    switch(context, args, false)
}

fn switch(context: &Context, args: &[String], enabled: bool) -> Outcome {
    let (datapath, arguments) = arguments(context, args, 3)?;
    let v6 = family(arguments.rest.last());
    let missing = "parameter missing: 'v4' for IPv4 or 'v6' for IPv6 (Invalid argument)";
    let v6 = v6.ok_or_else(|| error(context, missing))?;
    datapath.conntrack().fragments.set_enabled(v6, enabled);
    Ok(format!("{} fragmentation reassembly successful", if enabled { "enabling" } else { "disabling" }))
}

/// `dpctl/ipf-set-min-frag`.
pub fn set_min_size(context: &Context, args: &[String]) -> Outcome {
    let (datapath, arguments) = arguments(context, args, 3)?;
    let (v6, size) = match &arguments.rest[..] {
        [.., v6, size] => (family(Some(v6)), number(size)),
        _ => (None, None),
    };
    let v6 = v6.ok_or_else(|| error(context, "parameter missing: v4 for IPv4 or v6 for IPv6 (Invalid argument)"))?;
    let size = size.ok_or_else(|| error(context, "parameter missing for minimum fragment size (Invalid argument)"))?;
    match datapath.conntrack().fragments.set_min_size(v6, size) {
        true => Ok("setting minimum fragment size successful".into()),
        false => Err(error(
            context,
            "requested minimum fragment size too small; see documentation (Operation not permitted)",
        )),
    }
}

/// `dpctl/ipf-set-max-nfrags`.
pub fn set_max(context: &Context, args: &[String]) -> Outcome {
    let (datapath, arguments) = arguments(context, args, 2)?;
    let most = arguments.rest.last().and_then(|text| number(text));
    let most = most.ok_or_else(|| error(context, "parameter missing for maximum fragments (Invalid argument)"))?;
    match datapath.conntrack().fragments.set_max(most) {
        true => Ok("setting maximum fragments successful".into()),
        false => Err(error(context, "setting maximum fragments failed (Operation not permitted)")),
    }
}

/// `dpctl/ipf-get-status`.
pub fn status(context: &Context, args: &[String]) -> Outcome {
    let (datapath, arguments) = arguments(context, args, 1)?;
    let fragments = &datapath.conntrack().fragments;
    let mut text = describe(&fragments.status());
    if arguments.more {
        text.push_str("\n        Fragment Lists:\n\n");
        // As many as there may be fragments: few enough for one answer.
        fragments.incomplete().iter().for_each(|incomplete| line(&mut text, incomplete));
    }
    Ok(text)
}

fn describe(status: &Status) -> String {
    let mut text = String::from("        Fragmentation Module Status\n        ---------------------------\n");
    let mut put = |what: &str, number: u64| {
        let _ = writeln!(text, "        {what}: {number}");
    };
    put("v4 enabled", status.v4.enabled.into());
    put("v6 enabled", status.v6.enabled.into());
    put("max num frags (v4/v6)", status.max.into());
    put("num frag", status.held.into());
    for (version, family) in [("v4", &status.v4), ("v6", &status.v6)] {
        let Family { enabled: _, min_size, accepted, completed, expired, too_small, overlapped, purged } = *family;
        put(&format!("min {version} frag size"), min_size.into());
        let counts = [
            ("accepted", accepted),
            ("completed", completed),
            ("expired", expired),
            ("too small", too_small),
            ("overlapped", overlapped),
            ("purged", purged),
        ];
        counts.iter().for_each(|(what, count)| put(&format!("{version} frags {what}"), *count));
    }
    text
}

fn line(text: &mut String, incomplete: &Incomplete) {
    let at = &incomplete.datagram;
    let state = match (incomplete.fragments, incomplete.first_seen, incomplete.last_seen) {
        (0, ..) => "reassemble fail",
        (_, true, true) => "first/last frag",
        (_, true, false) => "first frag",
        (_, false, true) => "last frag",
        (_, false, false) => "other frag",
    };
    let dl_type = if at.src.is_ipv6() { 0x86dd } else { 0x0800 };
    let _ = writeln!(
        text,
        "(src={},dst={},recirc_id={},ip_id={},dl_type={dl_type:#x},zone={},nw_proto={},num_fragments={},state={state})",
        at.src, at.dst, at.recirc_id, at.id, at.zone, at.proto, incomplete.fragments
    );
}

#[cfg(test)]
mod tests {
    use ::conntrack::fragments::{Datagram, Fragments};

    use super::*;

    #[test]
    fn status_is_laid_out_as_in_ovs() {
        let fragments: Fragments<()> = Fragments::new();
        assert!(fragments.set_max(500));
        let text = describe(&fragments.status());
        let beginning = "        Fragmentation Module Status\n        ---------------------------\n        v4 enabled: 1\n        \
                         v6 enabled: 1\n        max num frags (v4/v6): 500\n        num frag: 0\n        min v4 frag size: \
                         1200\n        v4 frags accepted: 0\n        v4 frags completed: 0\n";
        assert!(text.starts_with(beginning), "{text}");
        assert!(text.ends_with("        v6 frags overlapped: 0\n        v6 frags purged: 0\n"), "{text}");
        assert_eq!(text.lines().count(), 20);
    }

    #[test]
    fn lines_tell_what_is_there() {
        let [src, dst] = [[10, 1, 1, 1].into(), [10, 1, 1, 2].into()];
        let datagram = Datagram { src, dst, proto: 1, zone: 9, id: 77, recirc_id: 3 };
        let shown = |fragments, first_seen, last_seen| {
            let mut text = String::new();
            line(&mut text, &Incomplete { datagram, fragments, first_seen, last_seen });
            text
        };
        assert_eq!(
            shown(1, true, false),
            "(src=10.1.1.1,dst=10.1.1.2,recirc_id=3,ip_id=77,dl_type=0x800,zone=9,nw_proto=1,num_fragments=1,\
             state=first frag)\n"
        );
        assert!(shown(2, true, true).ends_with("state=first/last frag)\n"));
        assert!(shown(1, false, true).ends_with("state=last frag)\n"));
        assert!(shown(1, false, false).ends_with("state=other frag)\n"));
        assert!(shown(0, false, false).ends_with("num_fragments=0,state=reassemble fail)\n"));
    }
}
