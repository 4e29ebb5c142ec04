//! Meters: what they judge is dropped, or its drop precedence is raised.

use packet::flow::extract::Layers;
use packet::{Batch, Packet};

use crate::actions::execute::{Executor, KeyView, Stepped};
use crate::actions::rewrite::{set_ipv4_tos, set_ipv6_tos, tos};
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
            Some(judgement) => remark(&judgement, std::slice::from_mut(packet), &view.layers),
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
        remark(&judgement, packets, &view.layers);
        if judgement.drop != 0 {
            self.drop_those(judgement.drop, packets, DropReason::Meter, view.in_port());
        }
    }
}

/// Raises the drop precedence of those packets that a meter says.
#[cold]
fn remark(judgement: &Judgement, packets: &mut [Packet], layers: &Layers) {
    let l3 = if layers.l3 == Layers::NONE { return } else { usize::from(layers.l3) };
    for (at, packet) in packets.iter_mut().enumerate().filter(|(at, _)| judgement.remark >> at & 1 != 0) {
        let Some(header) = packet.data_mut().get_mut(l3..) else { continue };
        let Some(raised) = tos(header).map(|tos| raised(tos, judgement.levels[at])) else { continue };
        match header[0] >> 4 {
            4 => header.first_chunk_mut().into_iter().for_each(|header| set_ipv4_tos(header, raised)),
            _ => header.first_chunk_mut().into_iter().for_each(|header| set_ipv6_tos(header, raised)),
        }
    }
}
