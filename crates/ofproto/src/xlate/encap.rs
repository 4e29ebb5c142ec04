//! Headers that change the packet's type: `encap`, `decap`, and what they become in the datapath.
//!
//! A header that is put before the packet is not an action of the datapath at once, but with the next commit: until then,
//! set-field writes to it, and so the action has its final values. One that is taken away waits for the commit, too. Behind
//! NSH and the last label there is a packet that has to be parsed, so the pipeline recirculates there.

use datapath::DropReason;
use openflow::PacketInReason;
use openflow::action::{Encap, EncapProp};
use packet::Field;
use packet::wire::{ethertype, nsh};

use super::commit::Pending;
use super::headers::{self, MAX_LABELS, is_mpls, label_count_wc};
use super::packet_type;
use super::packet_type::{ETHERNET, IPV4, IPV6, MPLS, MPLS_MULTICAST, NSH};
use super::trace::Event;
use super::{Ctx, XlateError};

/// TTL of a new network service header (RFC 8300 section 2.2), and its service index.
const NSH_TTL: u8 = 63;
const NSH_SI: u32 = 255;

impl Ctx<'_, '_> {
    /// Puts a header before the packet.
    pub(super) fn encap(&mut self, encap: &Encap) {
        // Changes of the headers inside come first.
        self.commit();
        self.wc.set_exact(Field::PacketType);
        let mut options = Vec::new();
        match encap.packet_type {
            ETHERNET if packet_type::of(&self.flow) == ETHERNET => {
                return self.unsupported(|_| "encap(ethernet) is not supported for a packet that has Ethernet".into());
            }
            ETHERNET => {
                let common = self.flow.common_mut();
                common.dl_type = (common.packet_type.get() as u16).into();
                (common.packet_type, common.dl_src, common.dl_dst) = (ETHERNET.into(), [0; 6], [0; 6]);
            }
            NSH => {
                let Some(next) = next_protocol(packet_type::of(&self.flow)) else {
                    return self.unsupported(|kind| format!("encap(nsh) is not supported for packet type {kind}"));
                };
                let metadata = nsh_metadata(encap);
                self.put_nsh(next, &metadata);
                if let nsh::Metadata::Options(all) = metadata {
                    options = all;
                }
            }
            kind => {
                let ethertype = kind as u16;
                let mut n = label_count_wc(&self.flow, &mut self.wc);
                if n >= MAX_LABELS {
                    return self.refuse_labels("put before the packet");
                }
                if packet_type::of(&self.flow) == ETHERNET && is_mpls(&self.flow) {
                    // Those that the frame carries are not of this stack.
                    n = 0;
                }
                headers::put_label(&mut self.flow, n, ethertype, &mut self.wc);
                let common = self.flow.common_mut();
                (common.packet_type, common.dl_src, common.dl_dst) = (kind.into(), [0; 6], [0; 6]);
                self.flow.set_tags([]);
                self.slow |= self.forwarding.without_add_mpls;
            }
        }
        self.pending = Pending::Encap(options);
    }

    /// Makes the flow that of a packet with a new network service header.
    fn put_nsh(&mut self, next: u8, metadata: &nsh::Metadata) {
        headers::clear_packet(&mut self.flow);
        let common = self.flow.common_mut();
        (common.packet_type, common.dl_type) = (NSH.into(), ethertype::NSH.into());
        let header = self.flow.encap_mut();
        (header.nsh_ttl, header.nsh_np, header.nsh_mdtype) = (NSH_TTL, next, metadata.md_type());
        header.nsh_path = NSH_SI.into();
    }

    /// Takes the outermost header away.
    pub(super) fn decap(&mut self, left: Option<u32>) {
        self.commit();
        self.wc.set_exact(Field::PacketType);
        match packet_type::of(&self.flow) {
            ETHERNET => {
                if headers::vlan_count_wc(&self.flow, &mut self.wc) > 0 {
                    return self
                        .unsupported(|_| "decap of Ethernet is not supported for a packet with a VLAN tag".into());
                }
                let common = self.flow.common_mut();
                common.packet_type = packet::flow::packet_type(common.dl_type.get()).into();
                (common.dl_src, common.dl_dst) = ([0; 6], [0; 6]);
            }
            NSH => {
                self.wc.set_exact(Field::NshNp);
                let kind = match self.flow.encap().nsh_np {
                    nsh::next::ETHERNET => ETHERNET,
                    nsh::next::IPV4 => IPV4,
                    nsh::next::IPV6 => IPV6,
                    nsh::next::NSH => NSH,
                    other => return self.unsupported(|_| format!("next protocol {other} of NSH is not supported")),
                };
                self.flow.common_mut().packet_type = kind.into();
                self.pending = Pending::Decap;
                self.freeze();
            }
            MPLS | MPLS_MULTICAST => self.decap_mpls(left),
            _ => self.unsupported(|kind| format!("decap is not supported for packet type {kind}")),
        }
    }

    fn decap_mpls(&mut self, left: Option<u32>) {
        let n = label_count_wc(&self.flow, &mut self.wc);
        // Nothing but an action can say what is behind the labels.
        let left = if n > 1 { packet_type::of(&self.flow) } else { left.unwrap_or(ETHERNET) };
        let ethertype = if left == ETHERNET { ethertype::TEB } else { left as u16 };
        if headers::pop_mpls(&mut self.flow, n, ethertype, &mut self.wc) {
            self.flow.common_mut().packet_type = left.into();
            self.pending = Pending::Decap;
            self.slow |= self.forwarding.without_add_mpls;
            if n == 1 {
                self.was_mpls = true;
                self.freeze();
            }
        } else if n >= MAX_LABELS {
            self.refuse_labels("taken away");
        }
    }

    /// A label stack that cannot be handled.
    fn refuse_labels(&mut self, what: &str) {
        self.detail(|| format!("dropping packet: no label can be {what} where there are more than {MAX_LABELS}"));
        self.error = Some(XlateError::TooManyLabels);
    }

    /// The packet cannot have another header, or not this one taken away. It is dropped.
    fn unsupported(&mut self, text: impl FnOnce(String) -> String) {
        let kind = packet_type::of(&self.flow);
        let kind = format!("({},{:#x})", kind >> 16, kind & 0xffff);
        self.detail(|| format!("dropping packet: {}", text(kind)));
        self.error = Some(XlateError::UnsupportedPacketType);
    }

    /// False where the TTL is over: the packet is sent to the controllers, and this list ends.
    pub(super) fn dec_nsh_ttl(&mut self) -> bool {
        if self.flow.common().dl_type.get() == ethertype::NSH {
            self.wc.set_exact(Field::NshTtl);
            let ttl = self.flow.encap().nsh_ttl;
            if ttl > 1 {
                self.flow.encap_mut().nsh_ttl = ttl - 1;
                return true;
            }
            self.punt(PacketInReason::InvalidTtl, 0, None, &[], false);
            self.not_sent(DropReason::TtlExceeded);
        }
        self.event(|| Event::Warning("NSH decrement TTL exception"));
        false
    }
}

/// What a network service header says that it is before.
fn next_protocol(packet_type: u32) -> Option<u8> {
    match packet_type {
        ETHERNET => Some(nsh::next::ETHERNET),
        IPV4 => Some(nsh::next::IPV4),
        IPV6 => Some(nsh::next::IPV6),
        NSH => Some(nsh::next::NSH),
        _ => None,
    }
}

/// The metadata that an action asks for. Options without their metadata type are none.
fn nsh_metadata(encap: &Encap) -> nsh::Metadata {
    let mut options = Vec::new();
    let mut md_type = 1;
    for prop in &encap.props {
        match prop {
            EncapProp::NshMdType(number) => md_type = *number,
            EncapProp::NshTlv { class, kind, data } => {
                options.extend_from_slice(&class.to_be_bytes());
                options.extend_from_slice(&[*kind, data.len() as u8]);
                options.extend_from_slice(data);
                options.resize(options.len().next_multiple_of(4), 0);
            }
            EncapProp::MplsEtherType(_) => {}
        }
    }
    if options.len() > nsh::Metadata::MAX_OPTIONS {
        options.clear();
    }
    if md_type == 2 { nsh::Metadata::Options(options) } else { nsh::Metadata::Fixed([0; 4]) }
}
