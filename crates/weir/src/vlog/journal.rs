//! Messages for systemd's journal, in its native protocol: a datagram has one message, as fields. A field is `NAME=VALUE` and a
//! line feed; one whose value has line feeds is `NAME`, a line feed, the value's length in eight bytes, the lowest first, the value
//! and a line feed.

/// Where the journal listens.
pub const SOCKET: &str = "/run/systemd/journal/socket";
/// Bytes of a value that are sent.
const MAX_VALUE: usize = 16 << 10;
/// Fields of an event that are sent. Events of Weir have a handful.
const MAX_FIELDS: usize = 32;
/// What comes before the names of an event's fields, so that they are no others'.
const OF_EVENT: &str = "WEIR_FIELD_";
/// Bytes of a name (systemd's limit is 64).
const MAX_NAME: usize = 64;

/// A message's fields.
#[derive(Debug, Default)]
pub struct Entry(Vec<u8>);

impl Entry {
    /// Adds a field. What is more than [`MAX_VALUE`] of the value is left out.
    pub fn put(&mut self, name: &str, value: &str) -> &mut Entry {
        let value = &value.as_bytes()[..value.floor_char_boundary(MAX_VALUE)];
        self.0.extend_from_slice(name.as_bytes());
        if value.contains(&b'\n') {
            self.0.push(b'\n');
            self.0.extend((value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
        self
    }

    /// Adds the fields of an event: their names in capitals, with what is neither letter nor digit as `_`.
    pub fn put_event(&mut self, fields: &[(&'static str, String)]) -> &mut Entry {
        for (name, value) in fields.iter().take(MAX_FIELDS) {
            let name = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
            let name: String = OF_EVENT.chars().chain(name).take(MAX_NAME).collect();
            self.put(&name, value);
        }
        self
    }

    /// The datagram.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The fields of a datagram, as the journal reads them.
    fn read(mut bytes: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
            let line = std::str::from_utf8(&bytes[..end]).unwrap();
            bytes = &bytes[end + 1..];
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
                    let (value, rest) = rest.split_at(u64::from_le_bytes(*len) as usize);
                    assert_eq!(rest[0], b'\n');
                    bytes = &rest[1..];
                    (line, String::from_utf8(value.to_vec()).unwrap())
                }
            };
            assert!(
                name.len() <= MAX_NAME
                    && name.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
            );
            fields.insert(name.to_owned(), value);
        }
        fields
    }

    proptest! {
        #[test]
        fn any_value_arrives_as_it_is(value in "(.|\n){0,200}", other in ".{0,50}") {
            let mut entry = Entry::default();
            entry.put("MESSAGE", &value).put_event(&[("odd.name", other.clone())]);
            let expected = [("MESSAGE".to_owned(), value), ("WEIR_FIELD_ODD_NAME".to_owned(), other)];
            prop_assert_eq!(read(entry.bytes()), BTreeMap::from(expected));
        }
    }

    #[test]
    fn what_is_long_is_cut() {
        let mut entry = Entry::default();
        entry.put("MESSAGE", &"ü".repeat(MAX_VALUE)).put_event(&vec![("x", "y".repeat(MAX_VALUE + 1)); 100]);
        let fields = read(entry.bytes());
        assert_eq!((fields["MESSAGE"].len(), fields["WEIR_FIELD_X"].len()), (MAX_VALUE, MAX_VALUE));
        assert!(entry.bytes().len() < (MAX_FIELDS + 1) * (MAX_VALUE + MAX_NAME + 2));
    }
}
