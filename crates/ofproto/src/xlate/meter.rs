//! Meters: of flows, of packets to controllers, and of packets that are translated one by one.
//!
//! A packet that a meter drops is gone for all that comes after it in the datapath. So a copy that is metered is made in
//! the datapath ([`Ctx::on_copy`]). Tables that come after a meter see the DSCP as it was, whatever the datapath remarks.

use std::sync::Arc;

use datapath::Action as DpAction;
use openflow::meter::meter_id;

use super::Ctx;
use crate::model::forwarding::BridgeState;

impl Ctx<'_, '_> {
    /// Meters the packet.
    pub(super) fn meter(&mut self, id: u32) {
        // One that groups name may be gone.
        let Some(meter) = self.bridge.meters.get(&id) else {
            self.detail(|| format!("meter {id} does not exist"));
            return;
        };
        let limit = meter.limit.clone();
        if limit.remarks() {
            // A rewrite that comes later would write the DSCP that the packet came with.
            self.commit();
        }
        self.out.push(DpAction::Meter(limit));
        self.undoable = false;
    }
}

/// What sends packets up, as far as a meter lets them: one that the action names, or else the one of all packets to
/// controllers. A packet that it drops goes on otherwise.
pub(super) fn to_controller(bridge: &BridgeState, named: Option<u32>, punt: DpAction) -> DpAction {
    metered(bridge, named.unwrap_or(meter_id::CONTROLLER), punt)
}

/// What sends packets up to be translated one by one, as far as the slow path's meter lets them.
pub(crate) fn to_slow_path(bridge: &BridgeState, punt: DpAction) -> DpAction {
    metered(bridge, meter_id::SLOWPATH, punt)
}

/// Whether this is what a meter lets go up. It stays apart from other actions, as in OVS, whose tools look for it.
pub(super) fn is_metered_punt(actions: &[DpAction]) -> bool {
    matches!(actions, [DpAction::Meter(_), DpAction::Punt(_)])
}

fn metered(bridge: &BridgeState, id: u32, punt: DpAction) -> DpAction {
    match bridge.meters.get(&id) {
        Some(meter) => DpAction::Clone(vec![DpAction::Meter(Arc::clone(&meter.limit)), punt]),
        None => punt,
    }
}
