//! Options of Geneve: `{class=0xffff,type=0x80,len=4,0xa/0xf}`, one after the other, as OVS writes them.
//!
//! In keys and masks they lie as on the wire, with the length of all of them in the last byte.

use packet::flow::text::{Error as Wrong, number};
use packet::put;
use tunnel::options::{self, Options};

use super::Error;
use super::argument::{argument, small};

/// Bytes of the blocks that options lie in.
const SPACE: usize = 256;
/// Where the length of all options is.
const LEN_AT: usize = SPACE - 1;
/// Bytes of an option's header.
const HEADER: usize = 4;
/// Bytes of the longest value.
const MAX_VALUE: usize = 124;
/// What is matched of the length of an option's value, in words, if all of it is.
const LEN_MASK: u8 = 0x1f;

/// Formats the options of a key under its mask: `geneve(...),`. A packet without options has none of it, unless that is matched.
pub(super) fn format_key(out: &mut String, key: &[u8; SPACE], mask: &[u8; SPACE], verbose: bool) {
    let len = usize::from(key[LEN_AT]).min(options::MAX_LEN);
    if len > 0 || mask[LEN_AT] != 0 {
        out.push_str("geneve(");
        format(out, &key[..len], Some(&mask[..len]), verbose);
        out.push_str("),");
    }
}

/// Formats options, with their mask if there is one; of a mask, only what matches something unless `verbose`.
pub(super) fn format(out: &mut String, raw: &[u8], mask: Option<&[u8]>, verbose: bool) {
    let mut at = 0;
    for option in Options::of(raw) {
        let Ok(option) = option else { return out.push_str("{malformed}") };
        let end = at + HEADER + option.value.len();
        let (bits, exact) = (mask.and_then(|mask| mask.get(at..end)), [0xff; HEADER + MAX_VALUE]);
        let bits = bits.unwrap_or(&exact[..end - at]);
        at = end;
        out.push('{');
        let class = u16::from_be_bytes([bits[0], bits[1]]);
        let len = if bits[3] & LEN_MASK == LEN_MASK { u8::MAX } else { bits[3] };
        if class != 0 || verbose {
            out.push_str("class=");
            number::hex_masked(out, option.class.into(), class.into(), u16::MAX.into());
            out.push(',');
        }
        if bits[2] != 0 || verbose {
            out.push_str("type=");
            number::hex_masked(out, option.kind.into(), bits[2].into(), u8::MAX.into());
            out.push(',');
        }
        if len != 0 || verbose {
            put!(out, "len=");
            number::decimal_masked(out, option.value.len() as u128, len.into(), u8::MAX.into());
            out.push(',');
        }
        let bits = &bits[HEADER..];
        if !option.value.is_empty() && (verbose || bits.iter().any(|&byte| byte != 0)) {
            number::hex_bytes(out, option.value);
            if bits.iter().any(|&byte| byte != 0xff) {
                out.push('/');
                number::hex_bytes(out, bits);
            }
        } else if out.ends_with(',') {
            out.truncate(out.len() - 1);
        }
        out.push('}');
    }
}

/// Parses what stands between the parentheses of `geneve(...)` into key and mask.
pub(super) fn parse(text: &str, key: &mut [u8; SPACE], mask: &mut [u8; SPACE]) -> Result<(), Error> {
    (*key, *mask) = ([0; SPACE], [0; SPACE]);
    let (mut rest, mut at) = (text, 0);
    let wrong = |text: &str| {
        let expected = "options as {class=0xffff,type=0x80,len=4,0xa/0xf}, of at most 252 bytes";
        Error::from(Wrong::value("tunnel(geneve)", text, expected))
    };
    while !rest.is_empty() {
        let (option, behind) =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or_else(|| wrong(rest))?;
        at += parse_option(option, &mut key[at..options::MAX_LEN], &mut mask[at..options::MAX_LEN])?
            .ok_or_else(|| wrong(option))?;
        rest = behind;
    }
    (key[LEN_AT], mask[LEN_AT]) = (at as u8, 0xff);
    Ok(())
}

/// Parses one option. Returns how many bytes it has; `None` where there is no room, or its length is wrong.
fn parse_option(text: &str, key: &mut [u8], mask: &mut [u8]) -> Result<Option<usize>, Error> {
    let mut len = 0;
    let (Some(header), Some(header_mask)) = (key.first_chunk_mut::<HEADER>(), mask.first_chunk_mut::<HEADER>()) else {
        return Ok(None);
    };
    let mut data = None;
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let Some((name, value)) = item.split_once('=') else {
            if data.replace(item).is_some() {
                return Ok(None);
            }
            continue;
        };
        match name {
            "class" => {
                let (value, bits) = small("geneve(class)", value, u16::MAX)?;
                header[..2].copy_from_slice(&value.to_be_bytes());
                header_mask[..2].copy_from_slice(&bits.to_be_bytes());
            }
            "type" => {
                let (value, bits) = small("geneve(type)", value, u8::MAX.into())?;
                (header[2], header_mask[2]) = (value as u8, bits as u8);
            }
            "len" => {
                let (number, bits) = value.split_once('/').map_or((value, None), |(value, bits)| (value, Some(bits)));
                len = usize::from(small("geneve(len)", number, u8::MAX.into())?.0);
                let bits =
                    bits.map_or(Ok(u8::MAX.into()), |bits| small("geneve(len)", bits, u8::MAX.into()).map(|b| b.0))?;
                (header[3], header_mask[3]) = ((len / 4) as u8, bits as u8 & LEN_MASK);
            }
            name => return Err(argument("geneve", name, "class, type, len")),
        }
    }
    let (Some(value), Some(bits)) = (key.get_mut(HEADER..HEADER + len), mask.get_mut(HEADER..HEADER + len)) else {
        return Ok(None);
    };
    if let Some(data) = data {
        let (number, of_mask) = data.split_once('/').map_or((data, None), |(value, mask)| (value, Some(mask)));
        bits.fill(0xff);
        let parsed =
            number::parse_bytes(number, value).and(of_mask.map_or(Some(()), |mask| number::parse_bytes(mask, bits)));
        if parsed.is_none() {
            return Ok(None);
        }
        value.iter_mut().zip(bits).for_each(|(value, bits)| *value &= *bits);
    }
    Ok((len.is_multiple_of(4) && len <= MAX_VALUE).then_some(HEADER + len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(key: &[u8; SPACE], mask: &[u8; SPACE]) -> String {
        let mut out = String::new();
        format_key(&mut out, key, mask, false);
        out
    }

    fn parsed(text: &str) -> Result<([u8; SPACE], [u8; SPACE]), Error> {
        let (mut key, mut mask) = ([7; SPACE], [7; SPACE]);
        parse(text, &mut key, &mut mask).map(|()| (key, mask))
    }

    #[test]
    fn texts_are_those_of_ovs() {
        for inside in [
            "",
            "{class=0,type=0,len=4,0xa/0xff}{class=0xffff,type=0x1,len=4,0xffffffff}",
            "{class=0xffff,type=0x80,len=4,0xa/0xf}{class=0xffff,type=0,len=4}",
            "{class=0xffff,type=0x1,len=0}",
            "{class=0xffff,type=0x1,len=8,0x1234567890abcdef}",
            "{class=0xffff,type=0x1,len=4,0}",
            "{class=0xff00/0xff00,len=8/0x3}",
            "{}",
        ] {
            let (key, mask) = parsed(inside).unwrap();
            let expected = format!("geneve({inside}),");
            // A mask over the length is one over words.
            assert_eq!(text(&key, &mask), expected, "{inside}");
        }
        assert_eq!(text(&[0; SPACE], &[0; SPACE]), "");
        let (key, _) = parsed("{class=1,type=2,len=4,0x5}").unwrap();
        assert_eq!(text(&key, &[0; SPACE]), "geneve({}),");
        let mut verbose = String::new();
        format_key(&mut verbose, &key, &[0; SPACE], true);
        assert_eq!(verbose, "geneve({class=0x1/0,type=0x2/0,len=4/0,0x5/0}),");
    }

    #[test]
    fn mistakes() {
        for wrong in [
            "{class=1",
            "class=1",
            "{len=5}",
            "{len=128}",
            "{class=0x10000}",
            "{type=0x100}",
            "{len=4,0x100000000}",
            "{len=4,1,2}",
            "{len=4,1/}",
            "{len=0,1}",
            "{nope=1}",
            "{len=124}{len=124}",
            "{len=4}x",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!(parsed(&"{len=0}".repeat(63)).is_ok());
        assert!(parsed(&"{len=0}".repeat(64)).is_err());
    }

    proptest! {
        #[test]
        fn options_come_back(
            all in prop::collection::vec((any::<u16>(), any::<u8>(), prop::collection::vec((any::<u8>(), any::<u8>()), 0..5)), 0..9),
        ) {
            let (mut key, mut mask) = ([0; SPACE], [0; SPACE]);
            let mut at = 0;
            for (class, kind, words) in all {
                let [high, low] = class.to_be_bytes();
                key[at..at + 4].copy_from_slice(&[high, low, kind, words.len() as u8]);
                mask[at..at + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0x1f]);
                at += 4;
                for (value, bits) in words {
                    key[at..at + 4].fill(value & bits);
                    mask[at..at + 4].fill(bits);
                    at += 4;
                }
            }
            (key[LEN_AT], mask[LEN_AT]) = (at as u8, 0xff);
            let shown = text(&key, &mask);
            let inside = shown.strip_prefix("geneve(").and_then(|rest| rest.strip_suffix("),"));
            prop_assert_eq!(parsed(inside.unwrap()).unwrap(), (key, mask), "{}", shown);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(\\{|\\}|class=|type=|len=|0x|,|/|[0-9a-f]){0,30}") {
            if let Ok((key, _)) = parsed(&text) {
                prop_assert!(options::check(&key[..key[LEN_AT].into()]).is_ok());
            }
        }
    }
}
