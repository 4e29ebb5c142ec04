//! Keys and values as text, and from text.
//!
//! Bytes are `hex:0a000001`. A number is one of the machine, of 1, 2, 4 or 8 bytes; `10.0.0.1`, `2001:db8::1` and
//! `02:00:00:00:00:01` are addresses as they are in frames, and `10.0.0.0/8` is a prefix.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::{Definition, Map};

/// The bytes of a key.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_key(map: &Map, text: &str) -> Result<Vec<u8>, String> {
    let Definition { key_size, kind, .. } = *map.definition();
    let prefix = || {
        let (address, len) = text.split_once('/')?;
        let (mut bytes, len) = (len.parse::<u32>().ok()?.to_ne_bytes().to_vec(), len.parse::<usize>().ok()?);
        let address = address_bytes(address)?;
        bytes.extend(&address);
        (len <= address.len() * 8 && bytes.len() == key_size as usize).then_some(bytes)
    };
    if let Some(bytes) = (kind == 11).then(prefix).flatten() {
        return Ok(bytes);
    }
    parse(text, key_size as usize).ok_or_else(|| format!("{text:?} is not a key of {key_size} bytes; {FORMS}"))
}

/// The bytes of a value.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_value(map: &Map, text: &str) -> Result<Vec<u8>, String> {
    let size = map.definition().value_size;
    parse(text, size as usize).ok_or_else(|| format!("{text:?} is not a value of {size} bytes; {FORMS}"))
}

const FORMS: &str =
    "there are hex:0a000001, numbers of 1, 2, 4 or 8 bytes, addresses, and prefixes as keys of lpm_trie";

/// A key as [`parse_key`] reads it.
pub fn format_key(map: &Map, key: &[u8]) -> String {
    if map.definition().kind == 11 {
        let (len, address) = key.split_at(4);
        let len = u32::from_ne_bytes([len[0], len[1], len[2], len[3]]);
        let address = match address.len() {
            4 => <[u8; 4]>::try_from(address).ok().map(IpAddr::from),
            16 => <[u8; 16]>::try_from(address).ok().map(IpAddr::from),
            _ => None,
        };
        return address.map_or_else(|| hex(key), |address| format!("{address}/{len}"));
    }
    if map.is_array() { format(key) } else { hex(key) }
}

/// A value: a number where it has the size of one, or its bytes.
pub fn format_value(value: &[u8]) -> String {
    format(value)
}

fn parse(text: &str, size: usize) -> Option<Vec<u8>> {
    let bytes = if let Some(digits) = text.strip_prefix("hex:") {
        let digits = digits.as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let pairs = digits.as_chunks::<2>();
        if !pairs.1.is_empty() {
            return None;
        }
        pairs.0.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect::<Option<Vec<_>>>()?
    } else if let Ok(number) = text.parse::<u64>() {
        let fits = matches!(size, 1 | 2 | 4 | 8) && (size == 8 || number >> (size * 8) == 0);
        match fits {
            true if cfg!(target_endian = "big") => number.to_be_bytes()[8 - size..].to_vec(),
            true => number.to_le_bytes()[..size].to_vec(),
            false => return None,
        }
    } else {
        address_bytes(text)?
    };
    (bytes.len() == size).then_some(bytes)
}

fn address_bytes(text: &str) -> Option<Vec<u8>> {
    match text.parse() {
        Ok(IpAddr::V4(address)) => Some(address.octets().to_vec()),
        Ok(IpAddr::V6(address)) => Some(address.octets().to_vec()),
        Err(_) => {
            let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<Vec<_>>>()?;
            (bytes.len() == 6).then_some(bytes)
        }
    }
}

fn format(bytes: &[u8]) -> String {
    match *bytes {
        [byte] => byte.to_string(),
        [a, b] => u16::from_ne_bytes([a, b]).to_string(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).to_string(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]).to_string(),
        _ => hex(bytes),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = "hex:".to_owned();
    bytes.iter().for_each(|byte| {
        let _ = write!(text, "{byte:02x}");
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: u32, key_size: u32) -> Map {
        let definition = Definition { kind, key_size, value_size: 8, max_entries: 1, ..Definition::default() };
        definition.check().unwrap();
        Map::new(definition)
    }

    #[test]
    fn keys_are_read_and_shown() {
        let hash = map(1, 4);
        assert_eq!(parse_key(&hash, "hex:0a0000ff"), Ok(vec![10, 0, 0, 255]));
        assert_eq!(parse_key(&hash, "10.0.0.255"), Ok(vec![10, 0, 0, 255]));
        assert_eq!(parse_key(&hash, "258"), Ok(258_u32.to_ne_bytes().to_vec()));
        assert_eq!(format_key(&hash, &[10, 0, 0, 255]), "hex:0a0000ff");
        for wrong in ["", "hex:0a", "hex:0a0000f", "hex:0a0000fg", "4294967296", "-1", "10.0.0", "::1", "10.0.0.0/8"] {
            assert!(parse_key(&hash, wrong).unwrap_err().contains("is not a key of 4 bytes"), "{wrong}");
        }
        assert_eq!(parse_key(&map(1, 6), "02:00:00:00:00:0a"), Ok(vec![2, 0, 0, 0, 0, 10]));
        assert_eq!(parse_key(&map(1, 16), "::1").unwrap()[15], 1);
        let array = map(2, 4);
        assert_eq!(format_key(&array, &parse_key(&array, "3").unwrap()), "3");
        let prefixes = map(11, 8);
        let key = parse_key(&prefixes, "10.0.0.0/8").unwrap();
        assert_eq!((key.len(), &*format_key(&prefixes, &key)), (8, "10.0.0.0/8"));
        assert!(parse_key(&prefixes, "10.0.0.0/33").is_err() && parse_key(&prefixes, "::/8").is_err());
        assert_eq!(format_value(&7_u64.to_ne_bytes()), "7");
        assert_eq!(parse_value(&hash, "7"), Ok(7_u64.to_ne_bytes().to_vec()));
        assert_eq!(format_value(&[1, 2, 3]), "hex:010203");
    }
}
