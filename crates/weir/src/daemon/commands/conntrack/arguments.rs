//! The arguments of these commands, as OVS's dpctl library takes them: options first, then perhaps a datapath.

use std::str::FromStr;
use std::sync::Arc;

use datapath::Datapath;

use super::Context;
use crate::daemon::commands::{datapaths, dpctl_error as error};

/// Options, and what follows them.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments<'a> {
    /// `-m`, `--more`.
    pub more: bool,
    /// `-s`, `--statistics`.
    pub statistics: bool,
    /// What follows the options.
    pub rest: Vec<&'a str>,
}

impl<'a> Arguments<'a> {
    /// Reads the options.
    pub fn parse(args: &'a [String]) -> Result<Arguments<'a>, String> {
        let mut arguments = Arguments { more: false, statistics: false, rest: Vec::new() };
        let mut args = args.iter().map(String::as_str);
        for arg in args.by_ref() {
            match arg {
                "--more" => arguments.more = true,
                "--statistics" => arguments.statistics = true,
                // Known to other commands, and taken by all.
                "--clear" | "--may-create" | "--names" | "--no-names" => {}
                long if long.starts_with("--") => return Err(format!("Unrecognized option {long}")),
                short if short.len() > 1 && short.starts_with('-') => {
                    for letter in short.chars().skip(1) {
                        match letter {
                            'm' => arguments.more = true,
                            's' => arguments.statistics = true,
                            other => return Err(format!("Unrecognized option -{other}")),
                        }
                    }
                }
                other => {
                    arguments.rest.push(other);
                    break;
                }
            }
        }
        arguments.rest.extend(args);
        Ok(arguments)
    }

    /// Takes the last argument away, if it is what is `wanted`.
    pub fn take_last<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        let found = wanted(self.rest.last()?)?;
        self.rest.pop();
        Some(found)
    }

    /// Takes a datapath off the front, if there is one, and otherwise means that of the bridges.
    pub fn take_datapath(&mut self, context: &Context) -> Arc<Datapath> {
        let found = self.take_first(|name| datapaths::find(context, Some(name)));
        found.unwrap_or_else(|| context.engine.datapath.clone())
    }

    fn take_first<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let found = find(self.rest.first()?)?;
        self.rest.remove(0);
        Some(found)
    }

    /// As [`take_datapath`](Arguments::take_datapath). Where there are as many arguments as there can be, a datapath has to
    /// be among them.
    pub fn after_datapath(&mut self, context: &Context, most: usize) -> Result<Arc<Datapath>, String> {
        match self.needs_datapath(|name| datapaths::find(context, Some(name)), most) {
            (true, _) => Err(error(context, "datapath not found (Invalid argument)")),
            (false, found) => Ok(found.unwrap_or_else(|| context.engine.datapath.clone())),
        }
    }

    fn needs_datapath<T>(&mut self, find: impl Fn(&str) -> Option<T>, most: usize) -> (bool, Option<T>) {
        let as_many = self.rest.len() == most;
        let found = self.take_first(find);
        (found.is_none() && as_many, found)
    }
}

/// `zone=N`.
pub fn zone_argument(text: &str) -> Option<u16> {
    number(text.strip_prefix("zone=")?)
}

/// The decimal number at the beginning of a text; what follows does not matter.
pub fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).map_or(text, |end| &text[..end]);
    digits.parse().ok()
}

/// A number that is the whole text, in the notation of C: decimal, hexadecimal with `0x`, octal with `0`.
pub fn whole_number(text: &str) -> Option<u128> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u128::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None if text.len() > 1 && text.starts_with('0') => {
            u128::from_str_radix(&text[1..], 8).ok().filter(|_| !text.contains('+'))
        }
        None => text.parse().ok().filter(|_| !text.starts_with('+')),
    }
}

/// Fields and their values: `a=1,b(2),c`. A field without a value has an empty one.
pub fn fields(text: &str) -> Vec<(&str, &str)> {
    let mut rest = text;
    let mut fields = Vec::new();
    let separators = |c: char| matches!(c, ',' | ' ' | '\t' | '\r' | '\n');
    loop {
        rest = rest.trim_start_matches(separators);
        if rest.is_empty() {
            return fields;
        }
        let end = rest.find(|c: char| separators(c) || matches!(c, '=' | ':' | '(')).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        let value_end = |text: &str| text.find(separators).unwrap_or(text.len());
        let value = match after.chars().next() {
            Some('=' | ':') => {
                let value = &after[1..];
                rest = &value[value_end(value)..];
                &value[..value_end(value)]
            }
            Some('(') => {
                let value = &after[1..];
                let end = value.find(')').unwrap_or(value.len());
                rest = value.get(end + 1..).unwrap_or_default();
                &value[..end]
            }
            _ => {
                rest = after;
                ""
            }
        };
        fields.push((key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<(bool, bool, Vec<String>), String> {
        let args: Vec<_> = args.iter().map(|s| s.to_string()).collect();
        let arguments = Arguments::parse(&args)?;
        Ok((arguments.more, arguments.statistics, arguments.rest.iter().map(|s| s.to_string()).collect()))
    }

    #[test]
    fn options_come_first() {
        assert_eq!(parse(&["-m", "-s", "x"]), Ok((true, true, vec!["x".into()])));
        assert_eq!(parse(&["-sm", "--names"]), Ok((true, true, vec![])));
        assert_eq!(parse(&["--more", "x", "-s"]), Ok((true, false, vec!["x".into(), "-s".into()])));
        assert_eq!(parse(&["-x"]), Err("Unrecognized option -x".into()));
        assert_eq!(parse(&["--statistic"]), Err("Unrecognized option --statistic".into()));
        assert_eq!(parse(&["-", "-m"]), Ok((false, false, vec!["-".into(), "-m".into()])));
    }

    #[test]
    fn a_datapath_may_be_left_out_unless_its_place_is_taken() {
        let is_datapath = |name: &str| (name == "netdev@ovs-netdev").then_some(());
        let with = |rest: Vec<&'static str>, most| {
            let mut arguments = Arguments { more: false, statistics: false, rest };
            (arguments.needs_datapath(is_datapath, most).0, arguments.rest)
        };
        assert_eq!(with(vec![], 1), (false, vec![]));
        assert_eq!(with(vec!["netdev@ovs-netdev"], 1), (false, vec![]));
        assert_eq!(with(vec!["bad"], 1), (true, vec!["bad"]));
        assert_eq!(with(vec!["bad"], 2), (false, vec!["bad"]));
        assert_eq!(with(vec!["bad", "10"], 2), (true, vec!["bad", "10"]));
        assert_eq!(with(vec!["netdev@ovs-netdev", "10"], 2), (false, vec!["10"]));
    }

    #[test]
    fn numbers() {
        assert_eq!(number::<u16>("65535"), Some(65535));
        assert_eq!(number::<u16>("5x"), Some(5));
        assert_eq!((number::<u16>("65536"), number::<u16>("x"), number::<u32>("-1")), (None, None, None));
        assert_eq!(
            ["0x1f", "010", "10", "0", "+1", "0x", "9z", ""].map(whole_number),
            [Some(31), Some(8), Some(10), Some(0), None, None, None, None]
        );
        assert_eq!(zone_argument("zone=7"), Some(7));
        assert_eq!((zone_argument("zone="), zone_argument("dp")), (None, None));
    }

    #[test]
    fn fields_and_values() {
        assert_eq!(fields("zone=1,limit=5"), [("zone", "1"), ("limit", "5")]);
        assert_eq!(fields(" a=1, b(2),c"), [("a", "1"), ("b", "2"), ("c", "")]);
        assert_eq!(fields("a=fe80::1,b"), [("a", "fe80::1"), ("b", "")]);
        assert_eq!((fields(""), fields("a(")), (vec![], vec![("a", "")]));
    }
}
