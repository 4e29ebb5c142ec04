//! OpenFlow ports: numbers, reserved names, and names of ports that the caller looks up.
//!
//! Numbers are the 32-bit ones of OpenFlow 1.1 and later. The 16-bit reserved numbers of OpenFlow 1.0
//! (0xff00 and above) are understood as their 32-bit counterparts.

use super::Error;
use crate::put;

/// Names of ports. Keeping it a trait lets each layer use the table that it has.
pub trait PortNames {
    /// Name of a port, for output; `None` prints the number.
    fn name(&self, port: u32) -> Option<String>;
    /// Number of the port with this name.
    fn number(&self, name: &str) -> Option<u32>;
}

/// No port has a name.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNames;

impl PortNames for NoNames {
    fn name(&self, _: u32) -> Option<String> {
        None
    }

    fn number(&self, _: &str) -> Option<u32> {
        None
    }
}

/// Reserved ports and their names (OpenFlow 1.5 section 4.5). `NONE` is an older name of `ANY`.
pub const RESERVED: [(&str, u32); 10] = [
    ("IN_PORT", 0xffff_fff8),
    ("TABLE", 0xffff_fff9),
    ("NORMAL", 0xffff_fffa),
    ("FLOOD", 0xffff_fffb),
    ("ALL", 0xffff_fffc),
    ("CONTROLLER", 0xffff_fffd),
    ("LOCAL", 0xffff_fffe),
    ("ANY", 0xffff_ffff),
    ("UNSET", 0xffff_fff7),
    ("NONE", 0xffff_ffff),
];

/// First reserved number of OpenFlow 1.0, and of OpenFlow 1.1 and later.
const FIRST_16: u32 = 0xff00;
const FIRST_32: u32 = 0xffff_ff00;

/// The 32-bit number of a port that may be given by its 16-bit reserved number.
pub fn widen(port: u32) -> u32 {
    if (FIRST_16..=0xffff).contains(&port) { port | 0xffff_0000 } else { port }
}

/// Parses a port: number, reserved name in any case, or name, quoted or not. `context` is for the error.
pub fn parse(context: &str, text: &str, ports: &dyn PortNames) -> Result<u32, Error> {
    let unknown = || Error::Port { name: context.into(), text: text.into() };
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let number: u32 = text.parse().map_err(|_| unknown())?;
        let valid = number <= 0xffff || number >= FIRST_32;
        return valid.then_some(widen(number)).ok_or_else(unknown);
    }
    if let Some(&(_, number)) = RESERVED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        return Ok(number);
    }
    let name = text.strip_prefix('"').map(|rest| unquote(rest).ok_or_else(unknown)).transpose()?;
    ports.number(name.as_deref().unwrap_or(text)).ok_or_else(unknown)
}

/// Formats a port: reserved name, name, or number.
pub fn format(out: &mut String, port: u32, ports: &dyn PortNames) {
    let wide = widen(port);
    if let Some((name, _)) = RESERVED.iter().find(|(_, number)| *number == wide) {
        out.push_str(name);
    } else if let Some(name) = ports.name(port) {
        put_name(out, &name);
    } else if wide >= FIRST_32 {
        // A reserved number without a name: OpenFlow 1.0's is what ovs-ofctl prints.
        put!(out, "{}", wide & 0xffff);
    } else {
        put!(out, "{port}");
    }
}

/// A name as it is where it cannot be mistaken for anything else, else as a JSON string.
pub fn put_name(out: &mut String, name: &str) {
    let mut chars = name.chars();
    let plain = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if plain {
        return out.push_str(name);
    }
    out.push('"');
    for c in name.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => put!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The contents of a JSON string whose opening quote has been taken.
pub fn unquote(rest: &str) -> Option<String> {
    let body = rest.strip_suffix('"')?;
    let mut out = String::new();
    let mut chars = body.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '"' => return None,
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let hex: String = chars.by_ref().take(4).collect();
                    char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?
                }
                c @ ('"' | '\\' | '/') => c,
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;
    impl PortNames for Two {
        fn name(&self, port: u32) -> Option<String> {
            match port {
                1 => Some("eth0".into()),
                2 => Some("2nd port".into()),
                _ => None,
            }
        }
        fn number(&self, name: &str) -> Option<u32> {
            [("eth0", 1), ("2nd port", 2)].into_iter().find(|(n, _)| *n == name).map(|(_, port)| port)
        }
    }

    #[test]
    fn names_and_numbers() {
        let cases = [
            ("1", "eth0"),
            ("eth0", "eth0"),
            ("\"eth0\"", "eth0"),
            ("\"2nd port\"", "\"2nd port\""),
            ("3", "3"),
            ("local", "LOCAL"),
            ("65534", "LOCAL"),
            ("4294967294", "LOCAL"),
            ("none", "ANY"),
            ("65280", "65280"),
        ];
        for (text, expected) in cases {
            let mut out = String::new();
            format(&mut out, parse("output", text, &Two).unwrap(), &Two);
            assert_eq!(out, expected, "{text}");
        }
        for wrong in ["eth1", "", "-1", "65536", "4294967040000", "\"eth0", "\"", "\"\\"] {
            parse("output", wrong, &Two).unwrap_err();
        }
    }
}
