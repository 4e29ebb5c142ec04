//! Options of tunnels at the borders of a translation.
//!
//! In the datapath, a packet's options are in its key as they were on the wire, and their length in the last byte. A translation has the
//! values of the bridge's tun_metadata fields there, each where the bridge's table says. [`decode`] makes the one of the other when a
//! translation begins, and [`encode_mask`] says at its end which bits of the options its outcome depends on. What is sent to a tunnel has
//! [`options_of`] the key.

use packet::flow::BlockId;
use packet::{Key, Mask};
use tunnel::Malformed;
use tunnel::fields::{FieldTable, SPACE};
use tunnel::metadata::RawOptions;
use tunnel::options::{self, Options};

use super::{Input, Interners, Translation, XlateError, refused, translate};
use crate::model::forwarding::Forwarding;
use crate::model::tlv::{forget_bytes, present, set_present, set_values, values};

/// Where the length of the options is.
const LEN_AT: usize = SPACE - 1;
/// Bytes of an option's header.
const HEADER: usize = 4;
/// What is matched of an option's header: all but the reserved bits.
const HEADER_MASK: [u8; HEADER] = [0xff, 0xff, 0xff, 0x1f];

/// The options of a packet, as the datapath has them; none of it for a packet without any.
fn raw_options(key: &Key) -> Option<&[u8]> {
    if !key.present().has(BlockId::TunMeta0) {
        return None;
    }
    let all = key.tun_metadata();
    let len = usize::from(all[LEN_AT]);
    (1..=options::MAX_LEN).contains(&len).then(|| &all[..len])
}

/// Turns the options of a datapath's key into values of the fields. A packet with an option that it must not have is to be dropped.
pub(crate) fn decode(table: &FieldTable, key: &mut Key) -> Result<(), Malformed> {
    let values = raw_options(key).map(|raw| table.read(raw)).transpose()?.unwrap_or_default();
    set_values(key, &values);
    Ok(())
}

/// The reverse of [`decode`], but for options for which no field stands. Where there is no room, the key has no options.
pub(crate) fn encode(table: &FieldTable, key: &mut Key) {
    let raw = options_of(table, key);
    set_present(key, 0);
    forget_bytes(key);
    if let Some(raw) = raw.as_ref().map(RawOptions::as_bytes).filter(|raw| !raw.is_empty()) {
        let all = key.tun_metadata_mut();
        all[..raw.len()].copy_from_slice(raw);
        all[LEN_AT] = raw.len() as u8;
    }
}

/// The options of a packet that is sent to a tunnel, from the values of its fields. `None` where there is no room for them.
pub(crate) fn options_of(table: &FieldTable, key: &Key) -> Option<RawOptions> {
    if present(key) == 0 {
        return Some(RawOptions::EMPTY);
    }
    let mut raw = [0; options::MAX_LEN];
    let len = table.write(&values(key), &mut raw)?;
    RawOptions::new(&raw[..len])
}

/// Turns the bits of values that a translation depends on into those of the options of `original`, the datapath's key.
///
/// Where the packet has options, the headers of all of them are matched: they say where the values are, and which options are missing.
/// `may_have_options`: packets that come the same way can have some, so that it is matched that this one has none.
pub(crate) fn encode_mask(table: &FieldTable, original: &Key, mask: &mut Mask, may_have_options: bool) {
    let fields = present(&mask.0);
    let matched = (fields != 0).then(|| *mask.0.tun_metadata());
    set_present(&mut mask.0, 0);
    mask.0.keep(packet::flow::Blocks(mask.0.present().0 & !(1 << BlockId::Pipeline as u16)));
    forget_bytes(&mut mask.0);
    match raw_options(original) {
        Some(raw) => {
            let out = mask.0.tun_metadata_mut();
            out[LEN_AT] = 0xff;
            mask_options(table, raw, matched.as_ref(), out);
        }
        None if fields != 0 || may_have_options => mask.0.tun_metadata_mut()[LEN_AT] = 0xff,
        None => {}
    }
}

/// Writes the mask over options. Of those that are not whole, all is matched.
fn mask_options(table: &FieldTable, raw: &[u8], matched: Option<&[u8; SPACE]>, out: &mut [u8; SPACE]) {
    let mut at = 0;
    for option in Options::of(raw) {
        let Ok(option) = option else {
            out[at..raw.len()].fill(0xff);
            return;
        };
        let (header, value) = (at..at + HEADER, at + HEADER..at + HEADER + option.value.len());
        at = value.end;
        out[header].copy_from_slice(&HEADER_MASK);
        let known = table.find(option.class, option.kind).filter(|(_, known)| known.len() == option.value.len());
        if let (Some((_, known)), Some(matched)) = (known, matched) {
            let bits = known.get(matched);
            out[value].copy_from_slice(&bits[bits.len() - known.len()..]);
        }
    }
}

/// What a mask over a packet's own fields says of tun_metadata fields: what was looked at, if the packet has come through a tunnel.
/// `fields`: the fields that were looked at.
pub(super) fn finish_mask(mask: &mut Mask, tunnelled: bool, fields: u64) {
    if tunnelled && fields != 0 {
        set_present(&mut mask.0, fields);
    } else {
        forget_bytes(&mut mask.0);
    }
}

/// Translates the key of a datapath, which is turned into one with values of fields for that, and the mask back. `may_have_options`: see
/// [`encode_mask`].
pub(crate) fn translate_with_options(
    forwarding: &Forwarding,
    interners: &Interners,
    input: &Input<'_>,
    may_have_options: bool,
) -> Translation {
    let original = input.key;
    // Only what has come through a tunnel has options.
    let bridge = input.frozen.map_or(input.bridge, |frozen| frozen.bridge);
    let table = forwarding.bridges.get(&bridge).map(|bridge| &*bridge.tlv);
    let Some(table) = table.filter(|_| original.present().has(BlockId::Tunnel)) else {
        return translate(forwarding, interners, input, None);
    };
    let mut key = original.clone();
    let mut out = match decode(table, &mut key) {
        Ok(()) => translate(forwarding, interners, &Input { key: &key, ..*input }, None),
        Err(_) => {
            forget_bytes(&mut key);
            refused(forwarding, &Input { key: &key, ..*input }, XlateError::TunnelMetadata)
        }
    };
    let masks = std::iter::once(&mut out.mask).chain(out.decided_by.as_deref_mut());
    masks.for_each(|mask| encode_mask(table, original, mask, may_have_options));
    out
}
