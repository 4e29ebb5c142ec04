//! What the tun_metadata fields stand for (NXT_TLV_TABLE_*).

use std::borrow::Cow;
use std::sync::Arc;

use openflow::{Match, OfError, TlvTable, TlvTableMod};
use packet::Key;
use tunnel::Malformed;
use tunnel::fields::FieldTable;

use super::Bridge;
use crate::model::forwarding::BridgeId;
use crate::model::tlv;
use crate::model::users::Used;
use crate::switch::Switch;
use crate::xlate::tunnel_metadata;

impl Bridge {
    /// Changes the table. A field that a flow uses stays.
    pub fn tlv_table_mod(&self, change: &TlvTableMod) -> Result<(), OfError> {
        let changed = self.change(|bridge, _| {
            let in_use = |index| bridge.users.rule_count(Used::TunMetadata(index)) > 0;
            bridge.tlv = Arc::new(tlv::changed(&bridge.tlv, change, in_use)?);
            Ok(())
        });
        changed.unwrap_or(Ok(()))
    }

    /// The table.
    pub fn tlv_table(&self) -> TlvTable {
        let (max_option_space, max_fields) = tlv::LIMITS;
        let maps = self.read(|bridge| tlv::maps(&bridge.tlv)).unwrap_or_default();
        TlvTable { max_option_space, max_fields, maps }
    }

    /// Puts the values of tun_metadata fields that a match has into its key, where the bridge's tables look for them. Those that stand for
    /// nothing in this bridge are left out.
    pub fn place_known(&self, matching: &mut Match) {
        if !matching.tun_metadata.is_empty() {
            let table = self.read(|bridge| bridge.tlv.clone()).unwrap_or_default();
            tlv::place_known(matching, &table);
        }
    }

    /// Puts the values of tun_metadata fields that a match has into its key. All of them have to stand for something.
    pub(crate) fn place(&self, matching: &mut Match) -> Result<(), OfError> {
        self.read(|bridge| tlv::place(matching, &bridge.tlv)).unwrap_or(Ok(()))
    }

    /// Turns the options of a datapath's key into values of tun_metadata fields, where the bridge's tables look for them.
    pub fn decode_options(&self, key: &mut Key) -> Result<(), Malformed> {
        self.read(|bridge| tunnel_metadata::decode(&bridge.tlv, key)).unwrap_or(Ok(()))
    }
}

impl Switch {
    /// A match as it is in a bridge, and what the tun_metadata fields stand for there.
    pub(crate) fn place_in<'a>(
        &self,
        bridge: BridgeId,
        matching: &'a Match,
    ) -> Result<(Cow<'a, Match>, Arc<FieldTable>), OfError> {
        let table = self.forwarding.read().bridges.get(&bridge).map(|bridge| bridge.tlv.clone()).unwrap_or_default();
        Ok((tlv::placed(matching, &table)?, table))
    }
}
