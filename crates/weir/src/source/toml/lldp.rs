//! LLDP and Auto Attach: the keys of bridges and ports.

use std::collections::BTreeMap;

use protocols::lldp::pdu::MAX_ASSIGNMENTS;

use super::VLAN;
use super::reader::Section;
use crate::config::desired::{AutoAttach, Port};

/// What ports say of their bridge.
pub fn read_bridge(s: &mut Section) -> AutoAttach {
    let mut text = |key| s.text(key).unwrap_or_default();
    let (system_name, system_description) = (text("system-name"), text("system-description"));
    let mappings: BTreeMap<String, (u32, u16)> = s.map("isid-mappings", |key, item| {
        let isid = key.parse::<u32>().ok().filter(|isid| *isid < 1 << 24);
        let isid = item.require(isid, || format!("{key:?} is not an I-SID; 0 to 16777215"))?;
        Some((isid, item.integer(0..=4094, VLAN)? as u16))
    });
    if mappings.len() > MAX_ASSIGNMENTS {
        s.error_at("isid-mappings", format!("an LLDP frame has room for {MAX_ASSIGNMENTS} mappings"));
    }
    AutoAttach { system_name, system_description, mappings: mappings.into_values().collect() }
}

/// Has ports that speak LLDP carry the VLANs of their bridge's mappings; not bonds, as in OVS.
pub fn attach(auto_attach: &AutoAttach, ports: &mut BTreeMap<String, Port>) {
    for (name, port) in ports {
        if port.interfaces.get(name).is_some_and(|interface| interface.lldp) {
            port.vlans.trunks.extend(auto_attach.mappings.values());
        }
    }
}
