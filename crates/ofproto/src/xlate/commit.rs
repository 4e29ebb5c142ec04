//! Datapath actions for the difference between the packet as it is and as it should be.
//!
//! Translation changes a copy of the key, not the packet. Before an output, the fields that differ from
//! what the datapath's packet holds by then (the base) are written, one `set` for each header, and the
//! base follows. A field that was written but kept its value costs nothing: its bits are matched, so
//! the value is known.

use std::sync::Arc;

use datapath::{Action, Rewrite};
use packet::flow::{BlockId, Blocks, VLAN_PRESENT};
use packet::wire::nsh;
use packet::{Field, Key, Mask};

use super::headers::{self, BOS, Headers, MAX_LABELS, is_mpls, label_count, labels, set_labels};
use super::packet_type;

/// Fields that are written by one `set` action. The inner slices are units: where one member differs,
/// all of them are written.
type Header = &'static [&'static [Field]];

const ETHERNET: Header = &[&[Field::DlSrc], &[Field::DlDst]];
const IPV4: Header = &[&[Field::NwSrc], &[Field::NwDst], &[Field::NwTos, Field::NwEcn], &[Field::NwTtl]];
const IPV6: Header =
    &[&[Field::Ipv6Src], &[Field::Ipv6Dst], &[Field::Ipv6Label], &[Field::NwTos, Field::NwEcn], &[Field::NwTtl]];
const ARP: Header = &[&[Field::NwSrc], &[Field::NwDst], &[Field::ArpOp], &[Field::ArpSha], &[Field::ArpTha]];
const PORTS: Header = &[&[Field::TcpSrc], &[Field::TcpDst]];
const ICMP: Header = &[&[Field::IcmpType, Field::IcmpCode]];
const ND: Header = &[&[Field::NdTarget], &[Field::ArpSha], &[Field::ArpTha]];
const ND_EXTENSIONS: Header = &[&[Field::NdReserved], &[Field::NdOptionsType]];
/// What is matched of it is written, too, as OVS does.
const NSH: Header = &[&[
    Field::NshFlags,
    Field::NshTtl,
    Field::NshSpi,
    Field::NshSi,
    Field::NshC1,
    Field::NshC2,
    Field::NshC3,
    Field::NshC4,
]];
const PRIORITY: Header = &[&[Field::SkbPriority]];
const MARK: Header = &[&[Field::PktMark]];

/// The header that the next commit adds or takes away.
#[derive(Clone, Default)]
pub(super) enum Pending {
    /// None.
    #[default]
    Nothing,
    /// The outermost of the flow is added. With the options of a network service header.
    Encap(Vec<u8>),
    /// The outermost of the base is taken away.
    Decap,
}

/// Appends to `actions` what makes a packet with the key `base` one with the key `flow`. `pending` is a header that is to be
/// added or taken away before. Where the flow does not know what is behind Ethernet, `knows_l3` is false: its labels were
/// pushed and popped again. The base still knows, and nothing of that is written. Returns whether the packet has become
/// one of another type.
pub(super) fn commit(
    flow: &Headers,
    base: &mut Headers,
    pending: Pending,
    knows_l3: bool,
    wc: &mut Mask,
    actions: &mut Vec<Action>,
) -> bool {
    if matches!(pending, Pending::Nothing) && are_equal(flow, base) {
        return false;
    }
    let retyped = commit_type(flow, base, pending, actions);
    set_header(ETHERNET, flow, base, wc, actions);
    // L3 fields exist again once the labels are gone.
    let uncovered = is_mpls(base) && !is_mpls(flow);
    if uncovered {
        mpls(flow, base, false, actions);
    }
    if knows_l3 {
        l3(flow, base, wc, actions);
    }
    if !uncovered {
        mpls(flow, base, false, actions);
    }
    if !retyped && packet_type::of(base) == packet_type::of(flow) {
        ethertype(flow, base, actions);
    }
    vlan(flow, base, wc, actions);
    set_header(PRIORITY, flow, base, wc, actions);
    set_header(MARK, flow, base, wc, actions);
    retyped
}

/// The network service header that a key has.
fn nsh_of(key: &Key, options: Vec<u8>) -> nsh::Repr {
    let header = key.encap();
    let metadata = match header.nsh_mdtype {
        2 => nsh::Metadata::Options(options),
        _ => nsh::Metadata::Fixed(header.nsh_c.map(|word| word.get())),
    };
    let (flags, ttl, next) = (header.nsh_flags, header.nsh_ttl, header.nsh_np);
    nsh::Repr { flags, ttl, next, path: header.nsh_path.get(), metadata }
}

/// Appends the action for the header that waits. Returns whether there is one.
fn commit_type(flow: &Headers, base: &mut Headers, pending: Pending, actions: &mut Vec<Action>) -> bool {
    let before = actions.len();
    match (pending, packet_type::of(base), packet_type::of(flow)) {
        (Pending::Encap(options), _, packet_type::NSH) => {
            actions.push(Action::PushNsh(Arc::new(nsh_of(flow, options))));
            headers::copy_packet(flow, base);
        }
        (Pending::Encap(_), _, packet_type::MPLS | packet_type::MPLS_MULTICAST) => {
            if packet_type::of(base) == packet_type::ETHERNET {
                // Labels that the frame carries are not of this stack.
                set_labels(base, [0; MAX_LABELS]);
            }
            mpls(flow, base, true, actions);
            base.set_tags([]);
            let common = base.common_mut();
            (common.dl_src, common.dl_dst) = ([0; 6], [0; 6]);
        }
        (Pending::Decap, packet_type::NSH, _) => actions.push(Action::PopNsh),
        (Pending::Decap, packet_type::MPLS | packet_type::MPLS_MULTICAST, _) => mpls(flow, base, false, actions),
        // Also the header that a port gives to packets without one, which waits for nothing.
        (_, from, packet_type::ETHERNET) if from != packet_type::ETHERNET => {
            let (src, dst) = (flow.common().dl_src, flow.common().dl_dst);
            actions.push(Action::PushEthernet { src, dst });
            (base.common_mut().dl_src, base.common_mut().dl_dst) = (src, dst);
        }
        (_, packet_type::ETHERNET, to) if to != packet_type::ETHERNET => {
            actions.push(Action::PopEthernet);
            (base.common_mut().dl_src, base.common_mut().dl_dst) = ([0; 6], [0; 6]);
        }
        _ => {}
    }
    base.common_mut().packet_type = flow.common().packet_type;
    actions.len() > before
}

/// Whether nothing differs but the pipeline's own fields, what only connection tracking writes, and what is about tunnels.
fn are_equal(flow: &Headers, base: &Headers) -> bool {
    let mut blocks = Blocks(flow.present().0 | base.present().0).iter();
    let own = |block: BlockId| {
        matches!(block, BlockId::Pipeline | BlockId::Regs | BlockId::Ct | BlockId::Tunnel) || block >= BlockId::TunMeta0
    };
    flow.covered == base.covered && blocks.all(|block| own(block) || flow.block(block) == base.block(block))
}

fn l3(flow: &Key, base: &mut Key, wc: &mut Mask, actions: &mut Vec<Action>) {
    let (dl_type, proto) = (base.common().dl_type.get(), base.common().nw_proto);
    if flow.common().dl_type.get() != dl_type {
        return;
    }
    match (dl_type, proto) {
        (0x0800, _) => set_header(IPV4, flow, base, wc, actions),
        (0x86dd, _) => {
            set_header(IPV6, flow, base, wc, actions);
            if proto == 58 {
                set_header(ND_EXTENSIONS, flow, base, wc, actions);
                set_header(ND, flow, base, wc, actions);
            }
        }
        (0x0806 | 0x8035, _) => set_header(ARP, flow, base, wc, actions),
        (0x894f, _) => set_header(NSH, flow, base, wc, actions),
        _ => {}
    }
    match (dl_type, proto) {
        (0x0800 | 0x86dd, 6 | 17 | 132) => set_header(PORTS, flow, base, wc, actions),
        (0x0800, 1) | (0x86dd, 58) => set_header(ICMP, flow, base, wc, actions),
        _ => {}
    }
}

fn set_header(header: Header, flow: &Key, base: &mut Key, wc: &mut Mask, actions: &mut Vec<Action>) {
    let mut rewrite: Option<Rewrite> = None;
    for unit in header {
        if unit.iter().all(|&field| flow.bytes(field) == base.bytes(field)) {
            continue;
        }
        let rewrite = rewrite.get_or_insert_with(|| Rewrite { key: Key::new(), mask: Mask::wildcard() });
        for &field in *unit {
            let value = flow.get(field);
            if matches!(field, Field::IcmpType | Field::IcmpCode) {
                wc.set_exact(field);
            }
            let bits = wc.get(field) | (value ^ base.get(field));
            wc.add(field, bits);
            rewrite.mask.add(field, bits);
            rewrite.key.set(field, value & bits);
            base.set(field, value);
        }
    }
    if let Some(rewrite) = rewrite {
        actions.push(Action::Set(Arc::new(rewrite)));
    }
}

/// Pops the tags of the base down to the innermost ones that both share, and pushes those of the flow.
fn vlan(flow: &Headers, base: &mut Headers, wc: &mut Mask, actions: &mut Vec<Action>) {
    let (base_tags, flow_tags) = (base.tags(), flow.tags());
    let shared = base_tags.iter().rev().zip(flow_tags.iter().rev()).take_while(|(a, b)| a == b).count();
    for n in (0..base_tags.len() - shared).rev() {
        actions.push(Action::PopVlan);
        // What the key does not hold was pushed before, so its value is known.
        if let Some(tag) = wc.0.common_mut().vlan.get_mut(n) {
            (tag.tpid, tag.tci) = (0xffff.into(), 0xffff.into());
        }
    }
    let pushed = flow_tags.len() - shared;
    for tag in flow_tags[..pushed].iter().rev() {
        actions.push(Action::PushVlan { tpid: tag.tpid.get(), tci: tag.tci.get() & !VLAN_PRESENT });
    }
    base.set_tags(flow_tags);
}

/// Gives the packet its Ethernet type where labels that came and went between have changed it: a label is pushed, so
/// that popping it says the type.
fn ethertype(flow: &Key, base: &mut Key, actions: &mut Vec<Action>) {
    let ethertype = flow.common().dl_type.get();
    if ethertype != base.common().dl_type.get() {
        actions.push(Action::PushMpls { ethertype: 0x8847, lse: BOS });
        actions.push(Action::PopMpls { ethertype });
        base.common_mut().dl_type = ethertype.into();
    }
}

/// Pops, rewrites and pushes labels: between Ethernet and what it carries, or `before` the whole packet. The translation
/// has matched what this depends on.
pub(super) fn mpls(flow: &Key, base: &mut Key, before: bool, actions: &mut Vec<Action>) {
    let (mut base_n, flow_n) = (label_count(base), label_count(flow));
    let (mut base_lse, flow_lse) = (labels(base), labels(flow));
    let same = |base_lse: &[u32; MAX_LABELS], base_n: usize| {
        (1..=base_n.min(flow_n)).take_while(|&i| base_lse[base_n - i] == flow_lse[flow_n - i]).count()
    };
    let mut common = same(&base_lse, base_n);
    let flow_type = flow.common().dl_type.get();
    let mut ethertype = base.common().dl_type.get();
    while base_n > common {
        if base_n - 1 == common && flow_n > common {
            // The outermost label left is rewritten in place.
            let lse = flow_lse[flow_n - base_n];
            if lse != base_lse[0] {
                actions.push(Action::Set(Arc::new(set_label(base_lse[0], lse))));
            }
            base_lse[0] = lse;
            common += 1;
        } else {
            ethertype = if !is_mpls(flow) && base_n > 1 { 0x8847 } else { flow_type };
            actions.push(Action::PopMpls { ethertype });
            base_lse.copy_within(1.., 0);
            base_lse[MAX_LABELS - 1] = 0;
            base_n -= 1;
        }
    }
    while base_n < flow_n {
        let lse = flow_lse[flow_n - base_n - 1];
        ethertype = flow_type;
        actions.push(match before {
            true => Action::AddMpls { ethertype: flow_type, lse },
            false => Action::PushMpls { ethertype: flow_type, lse },
        });
        base_lse.copy_within(..MAX_LABELS - 1, 1);
        base_lse[0] = lse;
        base_n += 1;
    }
    if base_lse != labels(base) {
        set_labels(base, base_lse);
    }
    if is_mpls(base) || is_mpls(flow) {
        base.common_mut().dl_type = ethertype.into();
    }
}

/// Writes the fields that differ. The others need not have been matched: `old` may not have them.
fn set_label(old: u32, new: u32) -> Rewrite {
    let mut rewrite = Rewrite { key: Key::new(), mask: Mask::wildcard() };
    for (field, shift) in [(Field::MplsLabel, 12), (Field::MplsTc, 9), (Field::MplsBos, 8), (Field::MplsTtl, 0)] {
        if (old ^ new) >> shift & field.info().max() as u32 != 0 {
            rewrite.key.set(field, u128::from(new >> shift) & field.info().max());
            rewrite.mask.set_exact(field);
        }
    }
    rewrite
}
