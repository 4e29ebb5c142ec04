//! `bond/...` and `lacp/...`: bonds, their members and LACP, in OVS's formats. Old names of commands are taken, too.

use ofproto::model::bond::hash;
use ofproto::model::bond::show::LIST_HEADER;
use ofproto::{BondError, BondMode};

use super::Context;
use crate::config::desired::parse_mac;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

pub static COMMANDS: &[Command<Context>] = commands! {
    "bond/list" "" (0, 0) now!(list), "Names, modes and members of the bonds.";
    "bond/show" "[port]" (0, 1) now!(show), "What one bond, or each, does: mode, members, and which one is active.";
    "bond/migrate" "port hash member" (3, 3) now!(migrate), "Has a bucket of a balance-slb bond sent by a member.";
    "bond/set-active-member" "port member" (2, 2) now!(set_active_member), "Makes a member of a bond the active one.";
    "bond/enable-member" "port member" (2, 2) now!(enable_member), "Enables a member of a bond, until its carrier changes.";
    "bond/disable-member" "port member" (2, 2) now!(disable_member), "Disables a member of a bond, until its carrier changes.";
    "bond/hash" "mac [vlan] [basis]" (1, 3) now!(hash), "The bucket of a source address and VLAN in balance-slb bonds.";
    "bond/set-active-slave" "port member" (2, 2) now!(set_active_member), "The same as bond/set-active-member.";
    "bond/enable-slave" "port member" (2, 2) now!(enable_member), "The same as bond/enable-member.";
    "bond/disable-slave" "port member" (2, 2) now!(disable_member), "The same as bond/disable-member.";
    "lacp/show" "[port]" (0, 1) now!(lacp_show), "What one port, or each, says and hears by LACP.";
    "lacp/show-stats" "[port]" (0, 1) now!(lacp_stats), "How many frames of LACP members have sent and received.";
    "dpif-netdev/bond-show" "[dp]" (0, 1) now!(tables), "The members that workers send by, for each bucket of each bond.";
};

fn list(context: &Context, _: &[String]) -> Outcome {
    let bridges = context.engine.switch.bridges();
    let lines: String = bridges.iter().map(ofproto::Bridge::list_bonds).collect();
    Ok(format!("{LIST_HEADER}{lines}"))
}

fn show(context: &Context, args: &[String]) -> Outcome {
    let name = args.first().map(String::as_str);
    let bridges = context.engine.switch.bridges();
    let texts: Vec<String> = bridges.iter().filter_map(|bridge| bridge.show_bonds(name)).collect();
    if name.is_some() && texts.is_empty() {
        return Err(BondError::NoBond.to_string());
    }
    Ok(texts.concat())
}

fn lacp_show(context: &Context, args: &[String]) -> Outcome {
    lacp(context, args, ofproto::Bridge::show_lacp)
}

fn lacp_stats(context: &Context, args: &[String]) -> Outcome {
    lacp(context, args, ofproto::Bridge::show_lacp_stats)
}

fn lacp(
    context: &Context,
    args: &[String],
    text: impl Fn(&ofproto::Bridge, Option<&str>) -> Option<String>,
) -> Outcome {
    let name = args.first().map(String::as_str);
    let texts: Vec<String> = context.engine.switch.bridges().iter().filter_map(|bridge| text(bridge, name)).collect();
    if name.is_some() && texts.is_empty() {
        return Err("no such lacp object".into());
    }
    Ok(texts.concat())
}

fn tables(context: &Context, _: &[String]) -> Outcome {
    let bridges = context.engine.switch.bridges();
    Ok(bridges.iter().map(ofproto::Bridge::show_bond_tables).collect())
}

/// The bridge with a bond of this name.
fn bridge_of(context: &Context, bond: &str) -> Result<ofproto::Bridge, String> {
    let mut bridges = context.engine.switch.bridges().into_iter();
    let found = bridges.find(|bridge| bridge.bond_settings(bond).is_some());
    found.ok_or_else(|| BondError::NoBond.to_string())
}

fn migrate(context: &Context, args: &[String]) -> Outcome {
    let bridge = bridge_of(context, &args[0])?;
    if bridge.bond_settings(&args[0]).is_none_or(|settings| settings.mode != BondMode::BalanceSlb) {
        return Err(BondError::NotSlb.to_string());
    }
    let is_number = !args[1].is_empty() && args[1].bytes().all(|byte| byte.is_ascii_digit());
    // As in OVS, of larger numbers the lowest eight bits count.
    let digit = |number: u32, byte: u8| number.wrapping_mul(10).wrapping_add(u32::from(byte - b'0'));
    let bucket = is_number.then(|| args[1].bytes().fold(0, digit) as u8).ok_or("bad hash")?;
    bridge.migrate_bucket(&args[0], bucket, &args[2]).map_err(|error| error.to_string())?;
    Ok("migrated".into())
}

fn set_active_member(context: &Context, args: &[String]) -> Outcome {
    let changed = bridge_of(context, &args[0])?.set_active_member(&args[0], &args[1]);
    let changed = changed.map_err(|error| error.to_string())?;
    Ok(if changed { "done" } else { "no change" }.into())
}

fn enable_member(context: &Context, args: &[String]) -> Outcome {
    enable(context, args, true)
}

fn disable_member(context: &Context, args: &[String]) -> Outcome {
    enable(context, args, false)
}

fn enable(context: &Context, args: &[String], enabled: bool) -> Outcome {
    let done = bridge_of(context, &args[0])?.enable_member(&args[0], &args[1], enabled);
    done.map_err(|error| error.to_string())?;
    Ok(if enabled { "enabled" } else { "disabled" }.into())
}

fn hash(_: &Context, args: &[String]) -> Outcome {
    let number = |at: usize, what: &str| {
        let parsed = args.get(at).map_or(Ok(0u32), |text| text.parse());
        parsed.map_err(|_| format!("invalid {what}"))
    };
    let (vlan, basis) = (number(1, "vlan")?, number(2, "basis")?);
    let mac = parse_mac(&args[0]).ok_or("invalid mac")?;
    Ok((hash::source(mac, vlan as u16, basis) as u8).to_string())
}
