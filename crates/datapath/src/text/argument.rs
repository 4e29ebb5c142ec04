//! Numbers in the arguments of sections, and their errors.

use packet::flow::text::number;

use super::Error;

/// As [`small32`].
pub(super) fn small(name: &str, text: &str, max: u16) -> Result<(u16, u16), Error> {
    small32(name, text, max.into()).map(|(value, mask)| (value as u16, mask as u16))
}

/// A number with an optional mask. The masks of `tc` and `bos` print without 0x, and read as they are.
pub(super) fn small32(name: &str, text: &str, max: u32) -> Result<(u32, u32), Error> {
    let parse = || match text.split_once('/') {
        Some((value, mask)) => number::parse_int(value).zip(number::parse_int(mask)),
        None => number::parse_int(text).map(|value| (value, max.into())),
    };
    let expected = "a number, as 1 or 0x1, or 1/0x3 with a mask";
    let (value, mask) = parse().ok_or_else(|| packet::flow::text::Error::value(name, text, expected))?;
    let max = u128::from(max);
    if value > max {
        return Err(packet::flow::text::Error::TooLarge { name: name.into(), text: text.into(), max }.into());
    }
    let mask = mask & max;
    Ok(((value & mask) as u32, mask as u32))
}

/// A number up to `max`.
pub(super) fn integer(name: &str, text: &str, max: u32) -> Result<u32, Error> {
    let value = number::parse_int(text);
    let value = value.ok_or_else(|| packet::flow::text::Error::value(name, text, "a number"))?;
    match u32::try_from(value) {
        Ok(value) if value <= max => Ok(value),
        _ => {
            let (name, text) = (name.into(), text.into());
            Err(packet::flow::text::Error::TooLarge { name, text, max: max.into() }.into())
        }
    }
}

pub(super) fn argument(section: &str, name: &str, valid: &str) -> Error {
    Error::Argument { section: section.into(), name: name.into(), valid: valid.into() }
}
