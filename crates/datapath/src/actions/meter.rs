//! Meters: what they judge is dropped, or its drop precedence is raised.

use packet::flow::extract::Layers;
use packet::wire::{ipv4, ipv6};
use packet::{Batch, Packet};
use zerocopy::FromBytes;

use crate::actions::execute::{Executor, KeyView, Stepped};
use crate::drop::DropReason;
use crate::meter::{Judgement, Meter, raised};

impl Executor {
    /// Meters one packet.
    pub(super) fn meter(&self, meter: &Meter, packet: &mut Packet, view: &mut KeyView<'_>) -> Stepped {
        if meter.remarks() {
            view.refresh(packet.data(), false, self.vlan_limit);
        }
        match meter.judge(std::slice::from_ref(packet), self.now) {
            Some(judgement) if judgement.drop != 0 => return Stepped::Exceeds,
            Some(judgement) => remark(&judgement, std::slice::from_mut(packet), view),
            None => {}
        }
        Stepped::Done
    }

    /// Meters the packets of a run, all at a time.
    #[inline]
    pub(super) fn meter_all(&mut self, meter: &Meter, packets: &mut Batch, view: &mut KeyView<'_>) {
        if meter.remarks() {
            view.refresh(packets[0].data(), false, self.vlan_limit);
        }
        let Some(judgement) = meter.judge(packets, self.now) else { return };
        remark(&judgement, packets, view);
        if judgement.drop != 0 {
            self.drop_those(judgement.drop, packets, DropReason::Meter, view.in_port());
        }
    }
}

/// Raises the drop precedence of those packets that a meter says.
#[cold]
fn remark(judgement: &Judgement, packets: &mut [Packet], view: &KeyView<'_>) {
    let (l3, ethertype) = (view.layers.l3, view.key.common().dl_type.get());
    for (at, packet) in packets.iter_mut().enumerate().filter(|(at, _)| judgement.remark >> at & 1 != 0) {
        let Some(header) = packet.data_mut().get_mut(l3.into()..).filter(|_| l3 != Layers::NONE) else { continue };
        let levels = judgement.levels[at];
        match ethertype {
            0x0800 => {
                if let Ok((header, _)) = ipv4::Header::mut_from_prefix(header) {
                    header.set_tos(raised(header.tos, levels));
                }
            }
            0x86dd => {
                if let Ok((header, _)) = ipv6::Header::mut_from_prefix(header) {
                    header.set_traffic_class(raised(header.traffic_class(), levels));
                }
            }
            _ => {}
        }
    }
}
