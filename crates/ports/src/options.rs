//! Options of ports: each declared once, in a table of its backend, from which help and validation
//! come.

use std::path::PathBuf;

use crate::spec::PortSpec;
use crate::{Error, Mac};

/// Declaration of an option.
#[derive(Clone, Copy, Debug)]
pub struct OptionDef {
    /// Name, as in `options:NAME=VALUE`.
    pub name: &'static str,
    /// What values look like.
    pub form: Form,
    /// One sentence for help, with the default.
    pub doc: &'static str,
}

/// What the value of an option looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Any text.
    Text,
    /// A file name.
    Path,
    /// A stream: `tcp:HOST:PORT`, `unix:FILE`, `ptcp:PORT[:HOST]` or `punix:FILE`.
    Stream,
    /// `true` or `false`.
    Bool,
    /// A decimal number within these bounds, both included.
    Number(u64, u64),
    /// Bytes in hexadecimal; blanks and colons between them are ignored.
    Hex,
    /// One of these words.
    Word(&'static [&'static str]),
}

impl Form {
    /// The form in words, for help: "number 0..64".
    pub fn describe(&self) -> String {
        match self {
            Form::Text => "text".into(),
            Form::Path => "file name".into(),
            Form::Stream => "address of a stream".into(),
            Form::Bool => "true or false".into(),
            Form::Number(min, u64::MAX) => format!("number from {min}"),
            Form::Number(min, max) => format!("number {min}..{max}"),
            Form::Hex => "bytes in hexadecimal".into(),
            Form::Word(words) => words.join(", ").to_string(),
        }
    }

    fn accepts(&self, value: &str) -> bool {
        match self {
            Form::Text | Form::Stream => true,
            Form::Path => !value.is_empty(),
            Form::Bool => matches!(value, "true" | "false"),
            Form::Number(min, max) => value.parse().is_ok_and(|n: u64| (*min..=*max).contains(&n)),
            Form::Hex => parse_hex(value).is_some(),
            Form::Word(words) => words.contains(&value),
        }
    }
}

/// Options of one port that have been checked against their declarations.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    spec: &'a PortSpec,
    defs: &'static [OptionDef],
}

impl<'a> Options<'a> {
    /// Checks the options of `spec`: every name is declared in `defs`, every value has its form.
    pub fn check(spec: &'a PortSpec, defs: &'static [OptionDef]) -> Result<Options<'a>, Error> {
        for (name, value) in &spec.options {
            let problem = match defs.iter().find(|d| d.name == name) {
                None if defs.is_empty() => "unknown; this type of port has no options".to_string(),
                None => {
                    let known: Vec<_> = defs.iter().map(|d| d.name).collect();
                    format!("unknown; known options: {}", known.join(", "))
                }
                Some(def) if !def.form.accepts(value) => format!("{value:?} should be {}", def.form.describe()),
                Some(_) => continue,
            };
            return Err(Error::Option { port: spec.name.clone(), option: name.clone(), problem });
        }
        Ok(Options { spec, defs })
    }

    /// The value of an option that is given.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        debug_assert!(self.defs.iter().any(|d| d.name == name), "option {name} is not declared");
        self.spec.options.get(name).map(String::as_str)
    }

    /// The value of a [`Form::Path`] option.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// The value of a [`Form::Number`] option.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(|v| v.parse().ok())
    }

    /// The value of a [`Form::Bool`] option.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        self.text(name).map_or(default, |v| v == "true")
    }

    /// The value of a [`Form::Hex`] option.
    pub fn hex(&self, name: &str) -> Option<Vec<u8>> {
        self.text(name).and_then(parse_hex)
    }

    /// An error about option `name`.
    pub fn error(&self, name: &str, problem: impl Into<String>) -> Error {
        Error::Option { port: self.spec.name.clone(), option: name.into(), problem: problem.into() }
    }
}

/// Bytes from hexadecimal digits; blanks and colons between bytes are ignored.
pub fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_ascii_whitespace() && *c != ':')
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()?;
    (digits.len().is_multiple_of(2) && !digits.is_empty()).then(|| digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect())
}

/// An Ethernet address as text.
pub fn format_mac(mac: Mac) -> String {
    let [a, b, c, d, e, f] = mac;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFS: &[OptionDef] = &[
        OptionDef { name: "n", form: Form::Number(1, 8), doc: "" },
        OptionDef { name: "hex", form: Form::Hex, doc: "" },
        OptionDef { name: "word", form: Form::Word(&["a", "b"]), doc: "" },
        OptionDef { name: "flag", form: Form::Bool, doc: "" },
    ];

    fn check(pairs: &[(&str, &str)]) -> Result<(), String> {
        let spec = PortSpec::new("p0", "x").with(pairs);
        Options::check(&spec, DEFS).map(|_| ()).map_err(|e| e.to_string())
    }

    #[test]
    fn errors_name_the_option_and_what_would_be_right() {
        assert_eq!(check(&[("n", "9")]).unwrap_err(), "p0: option n: \"9\" should be number 1..8");
        assert_eq!(check(&[("m", "9")]).unwrap_err(), "p0: option m: unknown; known options: n, hex, word, flag");
        assert_eq!(check(&[("word", "c")]).unwrap_err(), "p0: option word: \"c\" should be a, b");
        assert!(check(&[("hex", "0g")]).is_err() && check(&[("hex", "000")]).is_err());
        assert!(check(&[("flag", "yes")]).is_err());
        assert!(check(&[("n", "8"), ("hex", "00:1f 2"), ("word", "b")]).is_err());
        assert_eq!(check(&[("n", "8"), ("hex", "00:1f 20"), ("word", "b"), ("flag", "true")]), Ok(()));
    }

    #[test]
    fn values_are_typed() {
        let spec = PortSpec::new("p0", "x").with(&[("n", "3"), ("hex", "0aFf")]);
        let options = Options::check(&spec, DEFS).unwrap();
        assert_eq!(options.number("n"), Some(3));
        assert_eq!(options.hex("hex"), Some(vec![0x0a, 0xff]));
        assert!(options.flag("flag", true));
    }
}
