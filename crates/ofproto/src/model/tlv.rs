//! Which options of tunnels the tun_metadata fields of a bridge stand for (NXT_TLV_TABLE_*).
//!
//! Within a bridge, the values of these fields are in the blocks of tunnel metadata of keys and masks, where the bridge's table says, and
//! which fields a packet has is in the pipeline's block. OpenFlow's messages have them beside the key. So a match is *placed* when it comes
//! into a bridge, and *described* when it leaves. A field keeps its place as long as a flow uses it ([`Users`](super::users::Users)).

use std::borrow::Cow;

use openflow::tun_metadata::MAX_LEN;
use openflow::{
    Action, AnyField, Bits, FlowMod, Match, OfError, TlvCommand, TlvMap, TlvTableMod, TunField, TunMatch, TunUseMut,
    TunValue, tun_fields,
};
use packet::flow::{BlockId, Blocks};
use packet::{Key, Mask};
use tunnel::fields::{FIELDS, FieldTable, SPACE, Unmappable, Values};

/// What NXT_TLV_TABLE_REPLY says of the space for values, and of the number of fields.
pub(crate) const LIMITS: (u32, u16) = (SPACE as u32, FIELDS as u16);

/// The blocks of tunnel metadata.
const BLOCKS: [BlockId; 4] = [BlockId::TunMeta0, BlockId::TunMeta1, BlockId::TunMeta2, BlockId::TunMeta3];

/// The table after a change. `in_use` tells whether a flow uses a field.
pub(crate) fn changed(
    table: &FieldTable,
    change: &TlvTableMod,
    in_use: impl Fn(u8) -> bool,
) -> Result<FieldTable, OfError> {
    let mut new = table.clone();
    let remove = |new: &mut FieldTable, index: usize| {
        if new.get(index).is_some() && in_use(index as u8) {
            return Err(OfError::NXTTMFC_INVALID_TLV_DEL);
        }
        new.remove(index);
        Ok(())
    };
    match change.command {
        TlvCommand::Add => {
            for map in &change.maps {
                new.add(map.index.into(), map.class, map.kind, map.len).map_err(|error| match error {
                    Unmappable::Index => OfError::NXTTMFC_BAD_FIELD_IDX,
                    Unmappable::Length => OfError::NXTTMFC_BAD_OPT_LEN,
                    Unmappable::Full => OfError::NXTTMFC_TABLE_FULL,
                    Unmappable::AlreadyMapped => OfError::NXTTMFC_ALREADY_MAPPED,
                    Unmappable::Duplicate => OfError::NXTTMFC_DUP_ENTRY,
                })?;
            }
        }
        TlvCommand::Delete => change.maps.iter().try_for_each(|map| remove(&mut new, map.index.into()))?,
        TlvCommand::Clear => (0..FIELDS).try_for_each(|index| remove(&mut new, index))?,
    }
    Ok(new)
}

/// The entries of the table, as NXT_TLV_TABLE_REPLY lists them.
pub(crate) fn maps(table: &FieldTable) -> Vec<TlvMap> {
    let map = |(index, option): (usize, &tunnel::fields::Mapping)| TlvMap {
        class: option.class,
        kind: option.kind,
        len: option.len() as u8,
        index: index as u16,
    };
    table.iter().map(map).collect()
}

/// Which of the fields a packet has.
pub(crate) fn present(key: &Key) -> u64 {
    key.pipeline().tun_metadata_present.get()
}

/// Says which of the fields a packet has, or which of these a mask matches.
pub(crate) fn set_present(key: &mut Key, fields: u64) {
    if fields != present(key) {
        key.pipeline_mut().tun_metadata_present = fields.into();
    }
}

/// The values of a packet.
pub(crate) fn values(key: &Key) -> Values {
    Values { bytes: *key.tun_metadata(), present: present(key) }
}

/// Gives a packet these values, in place of those that it has.
pub(crate) fn set_values(key: &mut Key, values: &Values) {
    set_present(key, values.present);
    // A field that is not there has no value.
    if values.present != 0 && values.bytes.iter().any(|&byte| byte != 0) {
        *key.tun_metadata_mut() = values.bytes;
    } else {
        forget_bytes(key);
    }
}

/// Removes the blocks of tunnel metadata.
pub(crate) fn forget_bytes(key: &mut Key) {
    if key.present().has(BLOCKS[0]) {
        let own = BLOCKS.iter().fold(Blocks::default(), |blocks, block| blocks.with(*block));
        key.keep(Blocks(Blocks::ALL.0 & !own.0));
    }
}

/// A mapping and its field's value: the last bytes of it.
fn write(table: &FieldTable, index: u8, key: &mut Key, value: &[u8; MAX_LEN]) {
    if let Some(option) = table.get(index.into()).filter(|option| !option.is_empty()) {
        option.set(key.tun_metadata_mut(), value);
    }
}

/// Moves what a match says of tun_metadata fields to its key and mask.
pub(crate) fn place(matching: &mut Match, table: &FieldTable) -> Result<(), OfError> {
    for matched in std::mem::take(&mut matching.tun_metadata) {
        let TunMatch::Value(value) = matched else { continue };
        let option = table.get(value.index.into()).ok_or(OfError::NXFMFC_INVALID_TLV_FIELD)?;
        let (bytes, mask) = value.over(option.len()).ok_or(OfError::OFPBMC_BAD_LEN)?;
        let bit = 1 << value.index;
        let (key, bits) = (&mut *matching.key, &mut matching.mask.0);
        set_present(key, present(key) | bit);
        set_present(bits, present(bits) | bit);
        if mask.iter().any(|&byte| byte != 0) {
            write(table, value.index, key, &bytes);
            write(table, value.index, bits, &mask);
        }
    }
    Ok(())
}

/// A match as it is in the bridge. Borrowed where it says nothing of tun_metadata fields.
pub(crate) fn placed<'a>(matching: &'a Match, table: &FieldTable) -> Result<Cow<'a, Match>, OfError> {
    if matching.tun_metadata.is_empty() {
        return Ok(Cow::Borrowed(matching));
    }
    let mut own = matching.clone();
    place(&mut own, table)?;
    Ok(Cow::Owned(own))
}

/// As [`place`], without the fields that stand for nothing here, and without values that do not fit.
pub(crate) fn place_known(matching: &mut Match, table: &FieldTable) {
    let fits = |matched: &TunMatch| match matched {
        TunMatch::Value(value) => {
            table.get(value.index.into()).is_some_and(|option| value.over(option.len()).is_some())
        }
        TunMatch::Absent(_) => false,
    };
    matching.tun_metadata.retain(fits);
    let placed = place(matching, table);
    debug_assert_eq!(placed, Ok(()));
}

/// A flow-mod as it is in the bridge: its match is placed, and the fields that its actions name have their length.
pub(crate) fn placed_flow_mod<'a>(change: &'a FlowMod, table: &FieldTable) -> Result<Cow<'a, FlowMod>, OfError> {
    let instructions = &change.instructions;
    if change.matching.tun_metadata.is_empty() && tun_fields(&instructions.apply) | tun_fields(&instructions.write) == 0
    {
        return Ok(Cow::Borrowed(change));
    }
    let mut own = change.clone();
    place(&mut own.matching, table)?;
    resolve(&mut own.instructions.apply, table)?;
    resolve(&mut own.instructions.write, table)?;
    Ok(Cow::Owned(own))
}

/// Gives the fields that actions name their length, and checks what they do with them.
pub(crate) fn resolve(actions: &mut [Action], table: &FieldTable) -> Result<(), OfError> {
    let option = |index: u8| table.get(index.into()).ok_or(OfError::NXFMFC_INVALID_TLV_FIELD);
    let mut see = |used: TunUseMut<'_>| match used {
        TunUseMut::Part(part) => {
            let AnyField::Tun(field) = part.field else { return Ok(()) };
            let field = TunField { len: option(field.index)?.len() as u8, ..field };
            part.field = field.into();
            if part.ofs + part.n_bits > field.bits() { Err(OfError::OFPBAC_BAD_SET_LEN) } else { Ok(()) }
        }
        TunUseMut::Value(value) => {
            let len = option(value.index)?.len();
            let (bytes, mask) = value.over(len).ok_or(OfError::OFPBAC_BAD_SET_LEN)?;
            *value = if mask[MAX_LEN - len..].iter().all(|&byte| byte == 0xff) {
                TunValue::whole(value.index, &Bits::from_bytes(&bytes))
            } else {
                TunValue::masked(value.index, &Bits::from_bytes(&bytes), &Bits::from_bytes(&mask))
            };
            Ok(())
        }
        TunUseMut::Deleted(index) => option(index).map(|_| ()),
    };
    actions.iter_mut().try_for_each(|action| action.tun_uses_mut(&mut see))
}

/// The match with this key and mask, as OpenFlow has it.
pub(crate) fn describe(mut key: Key, mut mask: Mask, table: &FieldTable) -> Match {
    let (fields, matched) = (present(&key), present(&mask.0));
    let mut tun_metadata = Vec::new();
    if matched != 0 {
        let describe = |(index, option): (usize, &tunnel::fields::Mapping)| {
            let (index, from) = (index as u8, MAX_LEN - option.len());
            if fields >> index & 1 == 0 {
                return TunMatch::Absent(index);
            }
            let (value, bits) = (option.get(key.tun_metadata()), option.get(mask.0.tun_metadata()));
            let bits = &bits[from..];
            // Of an option without a value, all that can be matched is that it is there.
            let whole = !bits.is_empty() && bits.iter().all(|&byte| byte == 0xff);
            TunMatch::Value(TunValue { index, value: value[from..].to_vec(), mask: (!whole).then(|| bits.to_vec()) })
        };
        tun_metadata = table.iter().filter(|(index, _)| matched >> index & 1 != 0).map(describe).collect();
    }
    for key in [&mut key, &mut mask.0] {
        set_present(key, 0);
        forget_bytes(key);
    }
    Match { key: key.into(), mask: mask.into(), tun_metadata }
}

/// What matches these fields, and all of their values.
pub(crate) fn exact(table: &FieldTable, fields: u64) -> Values {
    let mut all = Values { present: fields, ..Values::default() };
    for (_, option) in table.iter().filter(|(index, _)| fields >> index & 1 != 0) {
        option.set(&mut all.bytes, &[0xff; MAX_LEN]);
    }
    all
}

/// The values of the fields that a packet has.
pub(crate) fn of_packet(key: &Key, table: &FieldTable) -> Vec<TunMatch> {
    let has = |index: usize| present(key) >> index & 1 != 0;
    let value = |(index, option): (usize, &tunnel::fields::Mapping)| {
        let value = option.get(key.tun_metadata())[MAX_LEN - option.len()..].to_vec();
        TunMatch::Value(TunValue { index: index as u8, value, mask: None })
    };
    table.iter().filter(|(index, _)| has(*index)).map(value).collect()
}

#[cfg(test)]
mod tests {
    use openflow::FlowModCommand;
    use openflow::text::{format_match, parse_actions, parse_match};
    use packet::Field;
    use packet::flow::text::NoNames;
    use proptest::prelude::*;

    use super::*;

    fn add(index: u16, kind: u8, len: u8) -> TlvTableMod {
        TlvTableMod { command: TlvCommand::Add, maps: vec![TlvMap { class: 0xffff, kind, len, index }] }
    }

    fn table() -> FieldTable {
        let mut table = FieldTable::default();
        for (index, len) in [(0, 4), (1, 8), (2, 124), (3, 0), (63, 20)] {
            table.add(index, 0xffff, index as u8, len).unwrap();
        }
        table
    }

    #[test]
    fn the_table_changes_as_a_whole() {
        let none = |_| false;
        let table = changed(&FieldTable::default(), &add(0, 1, 4), none).unwrap();
        let two = |second: TlvMap| TlvTableMod { maps: vec![add(7, 7, 8).maps[0], second], ..add(0, 0, 0) };
        for (change, error) in [
            (two(add(0, 2, 4).maps[0]), OfError::NXTTMFC_ALREADY_MAPPED),
            (two(add(1, 1, 4).maps[0]), OfError::NXTTMFC_DUP_ENTRY),
            (two(add(1, 2, 5).maps[0]), OfError::NXTTMFC_BAD_OPT_LEN),
            (two(add(64, 2, 4).maps[0]), OfError::NXTTMFC_BAD_FIELD_IDX),
        ] {
            assert_eq!(changed(&table, &change, none), Err(error));
        }
        let full = TlvTableMod { maps: (1..4).map(|n| add(n, 1 + n as u8, 124).maps[0]).collect(), ..add(0, 0, 0) };
        assert_eq!(changed(&table, &full, none), Err(OfError::NXTTMFC_TABLE_FULL));
        let both = changed(&table, &add(1, 2, 8), none).unwrap();
        assert_eq!(maps(&both), [add(0, 1, 4).maps[0], add(1, 2, 8).maps[0]]);
        let delete = |maps| TlvTableMod { command: TlvCommand::Delete, maps };
        // The field says what is deleted.
        let gone = changed(&both, &delete(vec![add(0, 9, 4).maps[0], add(5, 9, 4).maps[0]]), none).unwrap();
        assert_eq!(maps(&gone), [add(1, 2, 8).maps[0]]);
        let clear = TlvTableMod { command: TlvCommand::Clear, maps: Vec::new() };
        assert!(changed(&both, &clear, none).unwrap().is_empty());
        let one = |index| index == 1;
        assert_eq!(changed(&both, &clear, one), Err(OfError::NXTTMFC_INVALID_TLV_DEL));
        assert_eq!(changed(&both, &delete(both_maps(&both)), one), Err(OfError::NXTTMFC_INVALID_TLV_DEL));
        assert!(changed(&both, &delete(vec![add(0, 1, 4).maps[0]]), one).is_ok());
    }

    fn both_maps(table: &FieldTable) -> Vec<TlvMap> {
        maps(table)
    }

    #[test]
    fn actions_get_the_length_of_their_fields() {
        let resolved = |text| {
            let mut actions = parse_actions(text, &NoNames).unwrap();
            resolve(&mut actions, &table()).map(|()| actions)
        };
        let fits =
            "move:tun_metadata0[0..31]->tun_metadata1[32..63],clone(pop:tun_metadata2[991]),delete_field:tun_metadata3";
        assert!(resolved(fits).is_ok());
        let actions = resolved("push:tun_metadata0[0..31],set_field:5/0xffffffff->tun_metadata0").unwrap();
        assert_eq!(
            actions,
            [
                Action::StackPush(openflow::Subfield::whole(TunField { index: 0, len: 4 })),
                Action::SetTunMetadata(Box::new(TunValue::whole(0, &5.into()))),
            ]
        );
        for (text, error) in [
            ("push:tun_metadata4[0]", OfError::NXFMFC_INVALID_TLV_FIELD),
            ("set_field:1->tun_metadata4", OfError::NXFMFC_INVALID_TLV_FIELD),
            ("delete_field:tun_metadata4", OfError::NXFMFC_INVALID_TLV_FIELD),
            ("learn(reg0=1,load:reg1->tun_metadata4[0..31])", OfError::NXFMFC_INVALID_TLV_FIELD),
            ("push:tun_metadata0[32]", OfError::OFPBAC_BAD_SET_LEN),
            ("clone(pop:tun_metadata0[31..32])", OfError::OFPBAC_BAD_SET_LEN),
            ("pop:tun_metadata3[0]", OfError::OFPBAC_BAD_SET_LEN),
            ("set_field:0x100000000->tun_metadata0", OfError::OFPBAC_BAD_SET_LEN),
        ] {
            assert_eq!(resolved(text), Err(error), "{text}");
        }
        let plain = FlowMod::new(FlowModCommand::Add, Match::any(), Default::default());
        assert!(matches!(placed_flow_mod(&plain, &table()), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn matches_are_shown_as_ovs_does() {
        let shown = |text: &str| {
            let mut matching = parse_match(text, &NoNames).unwrap();
            place(&mut matching, &table())?;
            let mut out = String::new();
            format_match(
                &mut out,
                &describe(Key::clone(&matching.key), Mask::clone(&matching.mask), &table()),
                FlowMod::DEFAULT_PRIORITY,
                &NoNames,
            );
            Ok::<_, OfError>(out)
        };
        for (text, expected) in [
            ("tun_metadata0", "tun_metadata0"),
            ("tun_metadata0=0", "tun_metadata0=0"),
            ("tun_metadata3=0", "tun_metadata3"),
            ("tun_metadata0=0x1/0xff", "tun_metadata0=0x1/0xff"),
            (
                "tun_metadata63=0xabcd,tun_metadata1=0xef/0xff,in_port=1",
                "tun_metadata1=0xef/0xff,tun_metadata63=0xabcd,in_port=1",
            ),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(shown("tun_metadata4=1"), Err(OfError::NXFMFC_INVALID_TLV_FIELD));
        assert_eq!(shown("tun_metadata0=0x100000000"), Err(OfError::OFPBMC_BAD_LEN));
        let mut unknown = parse_match("tun_metadata4=1,tun_metadata0=0x100000000,tun_metadata1=5", &NoNames).unwrap();
        place_known(&mut unknown, &table());
        assert_eq!((present(&unknown.key), unknown.tun_metadata.len()), (2, 0));
        let (key, mut mask) = (Key::new(), Mask::wildcard());
        set_present(&mut mask.0, 1);
        assert_eq!(describe(key, mask, &table()).tun_metadata, [TunMatch::Absent(0)]);
    }

    proptest! {
        /// A match that is placed and described matches the same.
        #[test]
        fn places_are_found_again(bytes: [u8; 20], mask: [u8; 20], partial: bool, field in 0usize..5) {
            let (table, index) = (table(), [0, 1, 2, 3, 63][field]);
            let len = table.get(index).unwrap().len().min(20);
            let value = (0..len).map(|i| if partial { bytes[i] & mask[i] } else { bytes[i] }).collect();
            let value = TunValue { index: index as u8, value, mask: partial.then(|| mask[..len].to_vec()) };
            let mut matching = Match::any();
            matching.set(Field::Reg3, 7);
            matching.set_tun(TunMatch::Value(value.clone()));
            let original = matching.clone();
            place(&mut matching, &table).unwrap();
            prop_assert!(matching.tun_metadata.is_empty() && matching.mask.0.present().has(BlockId::Pipeline));
            let described = describe(Key::clone(&matching.key), Mask::clone(&matching.mask), &table);
            prop_assert_eq!((&described.key, &described.mask), (&original.key, &original.mask));
            let [TunMatch::Value(described)] = &described.tun_metadata[..] else { panic!() };
            let len = table.get(index).unwrap().len();
            prop_assert_eq!(described.over(len), value.over(len));
        }
    }
}
