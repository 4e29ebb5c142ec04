//! LLDP and Auto Attach: columns `Interface.lldp` and `Bridge.auto_attach`, and what the latter's mappings do to columns of table
//! Port (ovs-vswitchd.conf.db(5)).

use ovsdb::transaction::{Mutator, values};
use ovsdb::{Atom, Datum, Replica, Row, Transaction};
use protocols::lldp::pdu::MAX_ASSIGNMENTS;

use crate::config::desired::AutoAttach;

/// Whether an interface is to speak LLDP.
pub fn is_on(interface: &Row) -> bool {
    interface.map_string("lldp", "enable") == Some("true")
}

/// What ports say of their bridge, and what is wrong with it.
pub fn auto_attach(replica: &Replica, bridge: &Row) -> (AutoAttach, Option<String>) {
    let Some(row) = bridge.reference("auto_attach").and_then(|uuid| replica.row("AutoAttach", uuid)) else {
        return (AutoAttach::default(), None);
    };
    let text = |column| row.string(column).unwrap_or_default().to_owned();
    let number = |atom: &Atom| if let Atom::Integer(number) = atom { Some(*number) } else { None };
    let pair = |(isid, vlan): &(Atom, Atom)| {
        let (isid, vlan) = (u32::try_from(number(isid)?).ok()?, u16::try_from(number(vlan)?).ok()?);
        (isid < 1 << 24 && vlan <= 0xfff).then_some((isid, vlan))
    };
    let pairs = row.pairs("mappings");
    let mappings = pairs.iter().filter_map(pair).take(MAX_ASSIGNMENTS).collect();
    let problem = (pairs.len() > MAX_ASSIGNMENTS).then(|| {
        let count = pairs.len();
        format!("{count} mappings of Auto Attach; an LLDP frame has room for {MAX_ASSIGNMENTS}, and the others have no effect")
    });
    let (system_name, system_description) = (text("system_name"), text("system_description"));
    (AutoAttach { system_name, system_description, mappings }, problem)
}

/// Has a port carry VLANs (true), or carry them no longer, as far as it does not yet; those with which nothing is to be done
/// are returned. As in OVS, its mode becomes `trunk` with the first VLAN, and `access` without any: a trunk without VLANs
/// carries all.
pub fn change_trunks(out: &mut Transaction, port: &Row, changes: &[(u16, bool)]) -> Vec<(u16, bool)> {
    let mut trunks: std::collections::BTreeSet<i64> = port.integers("trunks").collect();
    let is_so = |&(vlan, is_carried): &(u16, bool)| trunks.contains(&vlan.into()) == is_carried;
    let (done, wanted): (Vec<_>, Vec<_>) = changes.iter().copied().partition(is_so);
    for &(vlan, is_carried) in &wanted {
        let vlan = i64::from(vlan);
        let mutator = if is_carried { Mutator::Insert } else { Mutator::Delete };
        if is_carried {
            trunks.insert(vlan)
        } else {
            trunks.remove(&vlan)
        };
        out.mutate("Port", port.uuid(), "trunks", mutator, Datum::set([vlan]));
        let mode = match trunks.len() {
            0 => "access",
            1 => "trunk",
            _ => continue,
        };
        if port.string("vlan_mode") != Some(mode) || wanted.len() > 1 {
            out.update("Port", port.uuid(), values([("vlan_mode", mode.into())]));
        }
    }
    done
}
