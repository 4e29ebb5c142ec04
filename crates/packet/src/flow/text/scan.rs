//! Lists of `key`, `key=value`, `key:value` and `key(value)`, separated by commas or white space: the
//! common shape of matches, actions and datapath flows.

use super::Error;

/// What separates the items of a list.
const SEPARATORS: [char; 5] = [',', ' ', '\t', '\r', '\n'];

/// Iterator over the items of a list. Never recurses: what is in parentheses is one value.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    rest: &'a str,
    /// White space may stand before a value.
    loose: bool,
}

/// An item of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// What stands before the value.
    pub key: &'a str,
    /// The value, without the parentheses; empty where there is none.
    pub value: &'a str,
    /// What stands between the two: `=`, `:`, `(`, or nothing.
    pub delimiter: Option<char>,
    /// What follows `->` behind the parentheses: `field` of `key(value)->field`.
    pub target: Option<&'a str>,
    /// The whole item as it was written.
    pub text: &'a str,
}

impl<'a> Items<'a> {
    /// The items of `text`.
    pub fn new(text: &'a str) -> Items<'a> {
        Items { rest: text, loose: false }
    }

    /// The items of `text`, where white space may stand between `key=` and its value, as in a key of the datapath.
    pub fn loose(text: &'a str) -> Items<'a> {
        Items { rest: text, loose: true }
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a str {
        self.rest
    }

    fn item(&mut self) -> Result<Item<'a>, Error> {
        let text = self.rest;
        let end = text.find(|c| matches!(c, ':' | '=' | '(') || SEPARATORS.contains(&c)).unwrap_or(text.len());
        let key = &text[..end];
        let delimiter = text[end..].chars().next().filter(|c| !SEPARATORS.contains(c));
        let value = &text[(end + 1).min(text.len())..];
        let (len, closing) = match delimiter {
            None => (0, 0),
            Some('(') => (value_len(value, |c| c == ')'), 1),
            Some(_) => {
                let space = if self.loose { value.len() - value.trim_start().len() } else { 0 };
                (space + value_len(&value[space..], |c| SEPARATORS.contains(&c)), 0)
            }
        };
        if len + closing > value.len() {
            self.rest = "";
            return Err(Error::Unclosed { text: text.into() });
        }
        let mut whole = if delimiter.is_none() { end } else { end + 1 + len + closing };
        let behind = text[whole..].strip_prefix("->").filter(|_| closing == 1);
        let target = behind.map(|behind| &behind[..value_len(behind, |c| SEPARATORS.contains(&c))]);
        whole += target.map_or(0, |target| "->".len() + target.len());
        self.rest = &text[whole..];
        Ok(Item { key, value: &value[..len], delimiter, target, text: &text[..whole] })
    }
}

/// Bytes up to the first character that ends the value outside of parentheses.
fn value_len(text: &str, ends: impl Fn(char) -> bool) -> usize {
    let mut depth = 0usize;
    // Everything that counts is ASCII, and no byte of a longer character is.
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            byte if depth == 0 && byte.is_ascii() && ends(byte.into()) => return at,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text.len()
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rest = self.rest.trim_start_matches(SEPARATORS);
        (!self.rest.is_empty()).then(|| self.item())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn items_of_each_shape() {
        let text = " ip,in_port=1, resubmit(,2) set_field:(1,2)->x,learn(a=b,c(d)),:x";
        let items: Vec<_> = Items::new(text).map(|i| i.unwrap()).map(|i| (i.key, i.delimiter, i.value)).collect();
        assert_eq!(
            items,
            [
                ("ip", None, ""),
                ("in_port", Some('='), "1"),
                ("resubmit", Some('('), ",2"),
                ("set_field", Some(':'), "(1,2)->x"),
                ("learn", Some('('), "a=b,c(d)"),
                ("", Some(':'), "x"),
            ]
        );
        let check: Vec<_> =
            Items::new("check(100)->reg0[0],2").map(|i| i.unwrap()).map(|i| (i.value, i.target)).collect();
        assert_eq!(check, [("100", Some("reg0[0]")), ("", None)]);
        assert_eq!(Items::new("a(b").next().unwrap().unwrap_err().to_string(), "\"a(b\": missing ')'");
    }

    #[test]
    fn white_space_before_a_value() {
        let values = |items: Items<'static>| items.map(|item| item.unwrap().value).collect::<Vec<_>>();
        let text = "a=\n1,b= 2 ,c=";
        assert_eq!(values(Items::loose(text)), ["\n1", " 2", ""]);
        assert_eq!(values(Items::new(text)), ["", "", "", "", ""]);
    }

    proptest! {
        #[test]
        fn any_text_ends(text in "[a-z(),=: \n\u{3000}é]{0,60}") {
            prop_assert!(Items::new(&text).count() <= text.len());
            prop_assert!(Items::loose(&text).count() <= text.len());
        }
    }
}
