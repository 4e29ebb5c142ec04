//! Changes of meters, and what they hold.

use datapath::meter::{MAX_BANDS, MAX_METERS};
use openflow::meter::{MeterCommand, MeterFlags, meter_id};
use openflow::stats::MeterFeatures;
use openflow::{FlowRemovedReason, MeterConfig, MeterMod, MeterStats, OfError};

use super::Bridge;
use crate::model::forwarding::BridgeState;
use crate::model::meter::Meter;
use crate::model::transaction::Transaction;
use crate::model::users::Used;

impl Bridge {
    /// Changes the meters.
    pub fn meter_mod(&self, change: &MeterMod) -> Result<(), OfError> {
        self.transact(|transaction| apply(transaction, change))
    }

    /// Configuration of a meter, or of all, by number.
    pub fn meter_configs(&self, wanted: u32) -> Result<Vec<MeterConfig>, OfError> {
        Ok(self.describe_meters(&self.meter_ids(wanted, 0, usize::MAX)?))
    }

    /// Counters of a meter, or of all, by number.
    pub fn meter_stats(&self, wanted: u32) -> Result<Vec<MeterStats>, OfError> {
        Ok(self.count_meters(&self.meter_ids(wanted, 0, usize::MAX)?))
    }

    /// Numbers of the meters that `wanted` means, in their order: from a number on, and so many at most.
    pub(crate) fn meter_ids(&self, wanted: u32, from: u32, most: usize) -> Result<Vec<u32>, OfError> {
        let ids = |bridge: &BridgeState| match wanted {
            meter_id::ALL => Ok(bridge.meters.range(from..).map(|(&id, _)| id).take(most).collect()),
            id if bridge.meters.contains_key(&id) => Ok(vec![id]),
            _ => Err(OfError::OFPMMFC_UNKNOWN_METER),
        };
        self.read(ids).unwrap_or(Ok(Vec::new()))
    }

    /// Configuration of those of the meters that there are.
    pub(crate) fn describe_meters(&self, ids: &[u32]) -> Vec<MeterConfig> {
        self.each_meter(ids, |_, meter| meter.config.clone())
    }

    /// Counters of those of the meters that there are.
    pub(crate) fn count_meters(&self, ids: &[u32]) -> Vec<MeterStats> {
        let now = self.switch.clock.now();
        self.each_meter(ids, |bridge, meter| {
            let id = meter.config.meter;
            let counters = meter.limit.counters(now);
            MeterStats {
                meter: id,
                flow_count: bridge.users.rule_count(Used::Meter(id)),
                packet_in_count: counters.packets,
                byte_in_count: counters.bytes,
                duration: now.since(meter.created),
                bands: counters.bands.iter().map(|band| (band.packets, band.bytes)).collect(),
            }
        })
    }

    /// What meters can do.
    pub fn meter_features(&self) -> MeterFeatures {
        MeterFeatures {
            max_meters: MAX_METERS,
            // OFPMBT13_DROP and OFPMBT13_DSCP_REMARK.
            band_types: 1 << 1 | 1 << 2,
            capabilities: MeterFlags::all().bits().into(),
            max_bands: MAX_BANDS as u8,
            max_color: 0,
        }
    }

    fn each_meter<T>(&self, ids: &[u32], shown: impl Fn(&BridgeState, &Meter) -> T) -> Vec<T> {
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return Vec::new() };
        ids.iter().filter_map(|id| bridge.meters.get(id)).map(|meter| shown(bridge, meter)).collect()
    }
}

fn apply(transaction: &mut Transaction, change: &MeterMod) -> Result<(), OfError> {
    let (id, now) = (change.config.meter, transaction.now);
    let (meters, numbers) = (&mut transaction.bridge.meters, &transaction.bridge.meter_numbers);
    match change.command {
        MeterCommand::Delete => {
            delete(transaction, id);
            Ok(())
        }
        MeterCommand::Add if meters.contains_key(&id) => Err(OfError::OFPMMFC_METER_EXISTS),
        MeterCommand::Modify if !meters.contains_key(&id) => Err(OfError::OFPMMFC_UNKNOWN_METER),
        MeterCommand::Add | MeterCommand::Modify => {
            check(&change.config)?;
            let config = change.config.clone();
            let retranslates = match meters.get_mut(&id) {
                Some(meter) => meter.configure(config, numbers, now).ok_or(OfError::OFPMMFC_OUT_OF_METERS)?,
                None => {
                    let meter = Meter::new(config, now, numbers, now).ok_or(OfError::OFPMMFC_OUT_OF_METERS)?;
                    meters.insert(id, meter);
                    limits_packet_ins(transaction.bridge, id)
                }
            };
            transaction.affects_everything |= retranslates;
            Ok(())
        }
    }
}

/// Whether there can be such a meter.
pub(crate) fn check(config: &MeterConfig) -> Result<(), OfError> {
    if config.bands.len() > MAX_BANDS {
        return Err(OfError::OFPMMFC_OUT_OF_BANDS);
    }
    Ok(())
}

/// Whether a meter limits packets whose flows it does not belong to: those that go to controllers or to the slow path.
fn limits_packet_ins(bridge: &BridgeState, id: u32) -> bool {
    matches!(id, meter_id::SLOWPATH | meter_id::CONTROLLER) || bridge.users.count(Used::PacketInMeter(id)) > 0
}

/// The meters that a delete means: one, or all.
pub(super) fn wanted(bridge: &BridgeState, wanted: u32) -> impl Iterator<Item = u32> {
    let range = if wanted == meter_id::ALL { 0..=u32::MAX } else { wanted..=wanted };
    bridge.meters.range(range).map(|(&id, _)| id)
}

/// Removes a meter, or all, and the flows that use it (OpenFlow 1.3.5 section 7.3.4.5). As in OVS, those that send packets to controllers by it
/// stay.
pub(super) fn delete(transaction: &mut Transaction, meter: u32) {
    let gone: Vec<u32> = wanted(transaction.bridge, meter).collect();
    for id in gone {
        let users: Vec<_> = transaction.bridge.users.rules(Used::Meter(id)).cloned().collect();
        users.iter().for_each(|rule| transaction.remove(rule, FlowRemovedReason::MeterDelete));
        transaction.bridge.meters.remove(&id);
        transaction.affects_everything |= limits_packet_ins(transaction.bridge, id);
    }
}
