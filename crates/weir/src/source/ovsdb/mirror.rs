//! The table Mirror (ovs-vswitchd.conf.db(5)).

use std::collections::BTreeSet;

use ofproto::{Mirror, MirrorOutput, PortSelection};
use ovsdb::{Replica, Row};

/// Reads a row. An error says in words what it lacks.
pub fn read(replica: &Replica, row: &Row) -> Result<Mirror, String> {
    let name = row.string("name").unwrap_or_default().to_owned();
    let ports = |column: &str| -> BTreeSet<String> {
        let rows = row.references(column).filter_map(|uuid| replica.row("Port", uuid));
        rows.filter_map(|port| port.string("name")).map(str::to_owned).collect()
    };
    let vlan = |n: i64| u16::try_from(n).ok();
    let select = |column: &str| match row.boolean("select_all") {
        Some(true) => PortSelection::All,
        _ => PortSelection::Ports(ports(column)),
    };
    let output = match (ports("output_port").pop_first(), row.integer("output_vlan").and_then(vlan)) {
        (Some(port), _) => MirrorOutput::Port(port),
        (None, Some(vid)) => MirrorOutput::Vlan(vid),
        (None, None) => return Err(format!("mirror {name} does not specify output; ignoring")),
    };
    let vlans: BTreeSet<u16> = row.integers("select_vlan").filter_map(vlan).collect();
    let whole = |len: &u16| *len != 0 && *len != u16::MAX;
    Ok(Mirror {
        name,
        sources: select("select_src_port"),
        destinations: select("select_dst_port"),
        vlans: (!vlans.is_empty()).then_some(vlans),
        output,
        max_len: row.integer("snaplen").and_then(vlan).filter(whole),
    })
}
