//! The events of a translation, for whoever wants to explain it.
//!
//! `ofproto/trace` implements [`Sink`]; the translation that it watches is the one that packets get.
//! Without a sink nothing is formatted.

use openflow::action::Nat;
use openflow::group::GroupSpec;
use openflow::{Action, Bits, Cookie, GroupId, Subfield, TableId};
use packet::flow::text::{NoNames, number};
use packet::{Key, put};
use tunnel::fields::FieldTable;

use super::steps::PipelineStep;
use crate::model::vlan::PortVlan;
use crate::table::Rule;

/// Something that happens in a translation. Those that have others inside them are followed by these
/// and then by [`Sink::leave`].
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The packet is in this bridge. Has others inside.
    Bridge(&'a str),
    /// A lookup in a table found a rule. Has others inside: what the rule does.
    Rule {
        /// The table.
        table: TableId,
        /// The rule.
        rule: &'a Rule,
        /// What the tun_metadata fields of its bridge stand for.
        tlv: &'a FieldTable,
        /// Its priority, that of a hidden flow too.
        priority: u32,
        /// The rule that would be found if this one were not there, for a sink that [wants](Sink::wants_neighbours) it.
        next: Option<&'a Rule>,
    },
    /// A lookup found none. Has others inside: what happens to packets that miss.
    Miss {
        /// The table.
        table: TableId,
        /// They go to the controller.
        to_controller: bool,
    },
    /// Fragments are dropped here. Has nothing inside.
    FragmentDropped {
        /// At this table.
        table: TableId,
    },
    /// The action set is executed. Has others inside.
    ActionSet,
    /// A group gets the packet.
    Group(&'a GroupSpec, GroupId),
    /// A bucket of a group is executed. Has others inside.
    Bucket(u32),
    /// NORMAL takes a packet in, by the VLAN configuration of the port that it came in at.
    VlanIn {
        /// Name of the port.
        port: &'a str,
        /// Its configuration.
        vlan: &'a PortVlan,
        /// The VLAN id that the packet came with; zero for none.
        received: u16,
        /// The VLAN that it belongs to inside the bridge; `None` where the port does not carry it.
        inside: Option<u16>,
    },
    /// NORMAL hands a packet to a port, by that port's configuration.
    VlanOut {
        /// Name of the port.
        port: &'a str,
        /// Its configuration.
        vlan: &'a PortVlan,
        /// The VLAN that the packet belongs to inside the bridge.
        inside: u16,
        /// The VLAN id that it is sent with; `None` for no tag.
        sent: Option<u16>,
    },
    /// The pipeline goes on after recirculation. Has nothing inside.
    Thaw {
        /// In this table.
        table: TableId,
    },
    /// The steps after this are of a rule in this table and with this cookie.
    Resume {
        /// Table.
        table: TableId,
        /// Cookie.
        cookie: Option<Cookie>,
    },
    /// An action is executed.
    Action(&'a Action),
    /// The meter instruction.
    Meter(u32),
    /// Clear-Actions.
    ClearActions,
    /// The action set before it is cleared.
    ActionSetWas(&'a [Action]),
    /// Write-Actions.
    WriteActions(&'a [Action]),
    /// The action set after a change.
    ActionSetIs(&'a [Action]),
    /// Write-Metadata: value, mask.
    WriteMetadata(u64, u64),
    /// Goto-Table.
    Goto(TableId),
    /// A rule without instructions.
    Drop,
    /// A copy of the packet is recirculated by ct.
    Fork {
        /// Its recirculation id.
        recirc_id: u32,
        /// The packet.
        key: &'a Key,
        /// The zone that it comes back in.
        zone: u16,
        /// How its connection is to be translated.
        nat: Option<&'a Nat>,
    },
    /// A copy of the packet is hashed and recirculated, for a bond to choose the member.
    Hashed {
        /// Its recirculation id.
        recirc_id: u32,
        /// The packet.
        key: &'a Key,
        /// Its hash.
        hash: u32,
        /// The name of the bond.
        bond: &'a str,
    },
    /// An explanation.
    Detail(&'a str),
    /// Something that is probably a mistake of configuration.
    Warning(&'a str),
    /// Something that ends the translation.
    Error(&'a str),
}

/// Watches a translation.
pub trait Sink {
    /// Something happens.
    fn event(&mut self, event: Event<'_>);

    /// What the last open event with others inside did is over.
    fn leave(&mut self);

    /// Whether it wants to know of each rule which one would be found without it. That takes a further look-up.
    fn wants_neighbours(&self) -> bool {
        false
    }
}

/// `NXM_NX_REG0[0..7] is now 0x5`.
pub(super) fn subfield_is_now(part: &Subfield, value: &Bits) -> String {
    let mut out = String::new();
    openflow::text::subfield::format(&mut out, part);
    out.push_str(" is now ");
    match (part.in_key(), value) {
        (Some(all), value) if part.is_whole() => {
            packet::flow::text::format(&mut out, all.field, all.place(value.low()), u128::MAX, &NoNames);
        }
        (_, Bits::Few(value)) => put!(out, "{value:#x}"),
        (_, Bits::Many(bytes)) => number::hex_bytes(&mut out, &**bytes),
    }
    out
}

impl<'a> From<PipelineStep<'a>> for Event<'a> {
    fn from(step: PipelineStep<'a>) -> Event<'a> {
        match step {
            PipelineStep::Act(action) => Event::Action(action),
            PipelineStep::Meter(id) => Event::Meter(id),
            PipelineStep::Clear => Event::ClearActions,
            PipelineStep::Write(actions) => Event::WriteActions(actions),
            PipelineStep::Metadata(write) => Event::WriteMetadata(write.value, write.mask),
            PipelineStep::Goto(table) => Event::Goto(table),
            PipelineStep::Resume { table, cookie } => Event::Resume { table, cookie },
        }
    }
}
