//! Texts of `autoattach/...` in the format of OVS 3.1, and of `lldp/show`.

use std::fmt::{self, Display, Write};

use weir_time::Time;

use super::agent::{Agent, Neighbour};
use super::pdu::{CHASSIS_MAC, Element, Identifier, PORT_MAC};
use crate::ethernet::MacText;

/// `autoattach/status` of one agent: which servers it hears.
#[derive(Debug)]
pub struct Status<'a>(pub &'a Agent);

impl Display for Status<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "LLDP: {}", self.0.name())?;
        for Neighbour { pdu, .. } in self.0.neighbours() {
            let Some(element) = pdu.element.as_ref().map(system_id).filter(|id| *id != [0; 12]) else { continue };
            let description = if pdu.system_description.is_empty() { &b"<None>"[..] } else { &pdu.system_description };
            writeln!(f, "  Auto Attach Primary Server Id: {}", Octets(&pdu.chassis.value))?;
            writeln!(f, "  Auto Attach Primary Server Descr: {}", Text(description))?;
            writeln!(f, "  Auto Attach Primary Server System Id: {}", Octets(&element))?;
        }
        Ok(())
    }
}

/// `autoattach/show-isid` of one agent: what neighbours say of its mappings.
#[derive(Debug)]
pub struct ShowIsid<'a>(pub &'a Agent);

impl Display for ShowIsid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "LLDP: {}", self.0.name())?;
        writeln!(f, "{:<8} {:<4} {:<11} {:<8}", "I-SID", "VLAN", "Source", "Status")?;
        f.write_str("-------- ---- ----------- --------\n")?;
        for (&isid, vlan) in &self.0.auto_attach().mappings {
            // Who was heard last knows best.
            let heard = self.0.neighbours().iter().flat_map(|neighbour| {
                let of_it = neighbour.pdu.assignments.iter().filter(|assignment| assignment.isid == isid);
                of_it.map(|assignment| (neighbour.heard, assignment.status))
            });
            let status = heard.max_by_key(|(heard, _)| *heard).map_or("Pending", |(_, status)| status_text(status));
            writeln!(f, "{isid:<8} {vlan:<4} {:<11} {status:<11}", "Switch")?;
        }
        Ok(())
    }
}

/// `autoattach/statistics` of one agent.
#[derive(Debug)]
pub struct Statistics<'a>(pub &'a Agent);

impl Display for Statistics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.0.statistics();
        writeln!(f, "Statistics: {}", self.0.name())?;
        let counters = [
            ("tx", counted.tx),
            ("rx", counted.rx),
            ("rx discarded", counted.rx_discarded),
            ("rx unrecognized", counted.rx_unrecognized),
            ("ageout", counted.ageouts),
            ("insert", counted.inserts),
            ("delete", counted.deletes),
            ("drop", counted.drops),
        ];
        counters.into_iter().try_for_each(|(name, count)| writeln!(f, "  {name} cnt: {count}"))
    }
}

/// `lldp/show` of one agent at a point in time: its neighbours.
#[derive(Debug)]
pub struct Show<'a>(pub &'a Agent, pub Time);

impl Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Show(agent, now) = *self;
        writeln!(f, "---- {} ----", agent.name())?;
        for Neighbour { pdu, heard } in agent.neighbours() {
            writeln!(f, "Chassis ID: {}", Id(&pdu.chassis, CHASSIS_MAC))?;
            writeln!(f, "  Port ID: {}", Id(&pdu.port, PORT_MAC))?;
            writeln!(f, "  Heard: {} s ago, counts for {} s", now.since(*heard).as_secs(), pdu.ttl)?;
            let texts = [
                ("Port Description", &pdu.port_description),
                ("System Name", &pdu.system_name),
                ("System Description", &pdu.system_description),
            ];
            for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
                writeln!(f, "  {name}: {}", Text(text))?;
            }
            if let Some([available, enabled]) = pdu.capabilities {
                writeln!(f, "  Capabilities: {}; enabled: {}", Capabilities(available), Capabilities(enabled))?;
            }
            pdu.addresses.iter().try_for_each(|address| writeln!(f, "  Management Address: {address}"))?;
        }
        Ok(())
    }
}

/// What a mapping's status says, as OVS has it in words.
pub fn status_text(status: u8) -> &'static str {
    match status {
        0 | 1 => "Pending",
        2 => "Active",
        3 => "Reject (Generic)",
        4 => "Reject (AA resources unavailable)",
        6 => "Reject (Invalid)",
        8 => "Reject (VLAN resources unavailable)",
        9 => "Reject (Application interaction issue)",
        _ => "Undefined",
    }
}

/// An element's system, as OVS shows it: its numbers of two bytes with the lower byte first.
fn system_id(element: &Element) -> [u8; 12] {
    let [a, b, c, d, e, g] = element.mac;
    let [reserved_high, reserved_low] = element.reserved.to_be_bytes();
    let [l0, l1] = element.link;
    [a, b, c, d, e, g, element.connection, 0, reserved_low, reserved_high, l0, l1]
}

/// Bytes in hexadecimal, with colons between them.
struct Octets<'a>(&'a [u8]);

impl Display for Octets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separators = std::iter::once("").chain(std::iter::repeat(":"));
        self.0.iter().zip(separators).try_for_each(|(byte, separator)| write!(f, "{separator}{byte:02x}"))
    }
}

/// Text of a neighbour's: nothing in it moves a terminal's cursor.
struct Text<'a>(&'a [u8]);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.0);
        text.chars().try_for_each(|c| f.write_char(if c.is_control() { '.' } else { c }))
    }
}

/// An identifier, and the subtype that is an Ethernet address.
struct Id<'a>(&'a Identifier, u8);

impl Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Id(Identifier { subtype, value }, mac_subtype) = *self;
        match <[u8; 6]>::try_from(value.as_slice()) {
            Ok(mac) if *subtype == mac_subtype => MacText(mac).fmt(f),
            _ if value.iter().any(u8::is_ascii_control) || std::str::from_utf8(value).is_err() => Octets(value).fmt(f),
            _ => Text(value).fmt(f),
        }
    }
}

/// What a system can be (table 8-4).
struct Capabilities(u16);

impl Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 11] = [
            "other",
            "repeater",
            "bridge",
            "wlan-access-point",
            "router",
            "telephone",
            "docsis-cable-device",
            "station",
            "customer-vlan",
            "service-vlan",
            "two-port-mac-relay",
        ];
        let set = NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 != 0).map(|(_, name)| *name);
        let names: Vec<&str> = set.collect();
        f.write_str(if names.is_empty() { "none".into() } else { names.join(", ") }.as_str())
    }
}
