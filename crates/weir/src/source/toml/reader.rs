//! Reading typed values out of a TOML document, with the line of each for errors.
//!
//! A [`Section`] is a table whose keys are asked for one by one. A key that was never asked for is a mistake; those
//! that were asked for are candidates for the suggestion. A method that finds a mistake adds it to the [`Document`]
//! and returns `None`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::time::Duration;

use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};

use super::{ConfigError, ConfigErrors, nearest, parse_mac};

/// Most mistakes that are told. Those beyond are counted.
const MOST_ERRORS: usize = 100;

/// The file that is read, and what was found out about it.
pub(super) struct Document<'a> {
    file: &'a Path,
    /// Offset of the start of each line.
    line_starts: Vec<usize>,
    errors: RefCell<Vec<ConfigError>>,
    /// How many there are beyond those that are kept.
    more: Cell<usize>,
    lines: RefCell<HashMap<String, usize>>,
}

impl<'a> Document<'a> {
    pub(super) fn new(file: &'a Path, text: &str) -> Document<'a> {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Document { file, line_starts, errors: RefCell::default(), more: Cell::default(), lines: RefCell::default() }
    }

    pub(super) fn syntax_error(&self, e: &::toml::de::Error) {
        let line = e.span().map(|span| self.line(span.start));
        let message = e.message().trim().replace('\n', "; ");
        let hint = if message.contains("duplicate key") { "; each key stands once in a table" } else { "" };
        self.push(line, "", format!("{message}{hint}"));
    }

    /// The line where a key that was read stands.
    pub(super) fn line_of(&self, key: &str) -> Option<usize> {
        self.lines.borrow().get(key).copied()
    }

    pub(super) fn error_at_key(&self, key: &str, problem: impl Into<String>) {
        self.push(self.line_of(key), key, problem);
    }

    pub(super) fn lines(&self) -> HashMap<String, usize> {
        self.lines.borrow().clone()
    }

    /// The mistakes, in the order of the file.
    pub(super) fn into_errors(self) -> ConfigErrors {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|e| e.line);
        let more = self.more.get();
        if more > 0 {
            let (file, problem) = (self.file.into(), format!("and {more} more mistakes"));
            errors.push(ConfigError { file, line: None, key: String::new(), problem });
        }
        ConfigErrors(errors)
    }

    fn push(&self, line: Option<usize>, key: &str, problem: impl Into<String>) {
        if self.errors.borrow().len() >= MOST_ERRORS {
            self.more.set(self.more.get() + 1);
            return;
        }
        let error = ConfigError { file: self.file.into(), line, key: key.into(), problem: problem.into() };
        self.errors.borrow_mut().push(error);
    }

    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset)
    }
}

/// A table.
pub(super) struct Section<'a> {
    document: &'a Document<'a>,
    key: String,
    line: usize,
    table: &'a DeTable<'a>,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn root(document: &'a Document<'a>, table: &'a DeTable<'a>) -> Section<'a> {
        Section { document, key: String::new(), line: 1, table, known: Vec::new() }
    }

    /// The value of `key`, if there is one. The Open_vSwitch schema has both `fail_mode` and `mac-aging-time`, so
    /// `_` is accepted for `-`.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Item<'a>> {
        self.known.push(key);
        let (name, value) = self.table.iter().find(|(name, _)| name.get_ref().replace('_', "-") == key)?;
        Some(self.item(name.get_ref(), name.span(), value))
    }

    pub(super) fn section(&mut self, key: &'static str) -> Option<Section<'a>> {
        self.get(key)?.section()
    }

    /// Reads each table of the array at `key` (`[[bridge.port]]`); each has a name of its own.
    pub(super) fn named<T>(&mut self, key: &'static str, read: impl Fn(&str, Section<'a>) -> T) -> BTreeMap<String, T> {
        let mut all = BTreeMap::new();
        let mut lines = HashMap::new();
        for item in self.list(key) {
            let Some(mut section) = item.section() else { continue };
            let Some(name_item) = section.get("name") else {
                section.error(format!("a {key} needs a name: name = \"...\""));
                continue;
            };
            let Some(name) = name_item.str() else { continue };
            (section.key, section.line) = (join(&join(&self.key, key), name), name_item.line);
            if let Some(first) = lines.insert(name, name_item.line) {
                section.error(format!("the name {name:?} is used twice: line {first} has it already"));
            }
            self.document.lines.borrow_mut().insert(section.key.clone(), section.line);
            all.insert(name.to_owned(), read(name, section));
        }
        all
    }

    /// Reads each entry of the table at `key`, whose names the user has chosen.
    pub(super) fn map<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&str, Item<'a>) -> Option<T>,
    ) -> BTreeMap<String, T> {
        let Some(section) = self.section(key) else { return BTreeMap::new() };
        let items = section.table.iter().map(|(name, value)| (name, section.item(name.get_ref(), name.span(), value)));
        items.filter_map(|(name, item)| Some((name.get_ref().to_string(), read(name.get_ref(), item)?))).collect()
    }

    /// The elements of the array at `key`.
    pub(super) fn list(&mut self, key: &'static str) -> Vec<Item<'a>> {
        self.get(key).and_then(|item| item.list()).unwrap_or_default()
    }

    pub(super) fn integer(&mut self, key: &'static str, range: RangeInclusive<i64>, what: &str) -> Option<i64> {
        self.get(key)?.integer(range, what)
    }

    pub(super) fn micros(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Option<Duration> {
        self.integer(key, range, "a number of microseconds").map(|n| Duration::from_micros(n as u64))
    }

    pub(super) fn millis(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Option<Duration> {
        self.integer(key, range, "a number of milliseconds").map(|n| Duration::from_millis(n as u64))
    }

    pub(super) fn seconds(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Option<Duration> {
        self.integer(key, range, "a number of seconds").map(|n| Duration::from_secs(n as u64))
    }

    pub(super) fn bool(&mut self, key: &'static str) -> Option<bool> {
        let item = self.get(key)?;
        item.require(item.value.get_ref().as_bool(), || format!("expected true or false, got {}", item.describe()))
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        self.get(key)?.str().map(str::to_owned)
    }

    pub(super) fn mac(&mut self, key: &'static str) -> Option<ports::Mac> {
        let item = self.get(key)?;
        let text = item.str()?;
        let unicast = parse_mac(text).filter(|mac| mac[0] & 1 == 0 && mac != &[0; 6]);
        item.require(unicast, || format!("{text:?} is not the address of a station, such as 02:00:00:00:00:01"))
    }

    /// One of several words.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let item = self.get(key)?;
        let text = item.str()?;
        let found = words.iter().find(|(word, _)| *word == text).map(|&(_, value)| value);
        item.require(found, || {
            let all: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            format!("{text:?} is not one of {}", all.join(", "))
        })
    }

    /// A mistake in the table as a whole.
    pub(super) fn error(&self, problem: impl Into<String>) {
        self.document.push(Some(self.line), &self.key, problem);
    }

    /// A mistake in a key below this table.
    pub(super) fn error_at(&self, key: &str, problem: impl Into<String>) {
        let key = join(&self.key, key);
        let line = self.document.line_of(&key).unwrap_or(self.line);
        self.document.push(Some(line), &key, problem);
    }

    /// Reports the keys that were never asked for.
    pub(super) fn finish(&self) {
        let mut seen = Vec::new();
        for name in self.table.keys() {
            let (word, plain) = (name.get_ref(), name.get_ref().replace('_', "-"));
            let known = self.known.contains(&plain.as_str());
            let problem = match seen.contains(&plain) {
                true => "the key stands here twice, once with '_' and once with '-'".to_string(),
                false if known => {
                    seen.push(plain);
                    continue;
                }
                false => self.unknown(word),
            };
            self.document.push(Some(self.document.line(name.span().start)), &join(&self.key, word), problem);
        }
    }

    fn unknown(&self, word: &str) -> String {
        match nearest(word, self.known.iter().copied()) {
            Some(near) => format!("unknown key; did you mean {near:?}?"),
            None => format!("unknown key (keys here: {})", self.known.join(", ")),
        }
    }

    fn item(&self, name: &str, span: Range<usize>, value: &'a Spanned<DeValue<'a>>) -> Item<'a> {
        let (key, line) = (join(&self.key, name), self.document.line(span.start));
        self.document.lines.borrow_mut().insert(key.clone(), line);
        Item { document: self.document, key, line, value }
    }
}

/// A value and where it stands.
pub(super) struct Item<'a> {
    document: &'a Document<'a>,
    key: String,
    line: usize,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Item<'a> {
    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn error(&self, problem: impl Into<String>) {
        self.document.push(Some(self.line), &self.key, problem);
    }

    /// Reports a mistake if there is no value.
    pub(super) fn require<T, M: Into<String>>(&self, value: Option<T>, problem: impl FnOnce() -> M) -> Option<T> {
        if value.is_none() {
            self.error(problem());
        }
        value
    }

    pub(super) fn is_str(&self) -> bool {
        self.value.get_ref().is_str()
    }

    pub(super) fn str(&self) -> Option<&'a str> {
        self.require(self.value.get_ref().as_str(), || format!("expected a string in quotes, got {}", self.describe()))
    }

    /// A whole number within `range`; `what` says what it is, for the error.
    pub(super) fn integer(&self, range: RangeInclusive<i64>, what: &str) -> Option<i64> {
        let number = match self.value.get_ref() {
            DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix()).ok(),
            _ => None,
        };
        self.require(number.filter(|n| range.contains(n)), || {
            format!("{} is not {what}; it is a whole number from {} to {}", self.describe(), range.start(), range.end())
        })
    }

    pub(super) fn section(&self) -> Option<Section<'a>> {
        let table = self.value.get_ref().as_table();
        let table = self.require(table, || format!("expected a table, got {}", self.describe()))?;
        Some(Section { document: self.document, key: self.key.clone(), line: self.line, table, known: Vec::new() })
    }

    pub(super) fn list(&self) -> Option<Vec<Item<'a>>> {
        let array = self.value.get_ref().as_array();
        let array = self.require(array, || {
            let word = self.key.rsplit('.').next().unwrap_or_default();
            format!("expected an array, {word} = [...] or [[{}]], got {}", self.key, self.describe())
        })?;
        let item = |value: &'a Spanned<DeValue<'a>>| Item {
            document: self.document,
            key: self.key.clone(),
            line: self.document.line(value.span().start),
            value,
        };
        Some(array.iter().map(item).collect())
    }

    /// A string, number or truth value as text: the options of a port.
    pub(super) fn scalar_text(&self) -> Option<String> {
        let text: Option<String> = match self.value.get_ref() {
            DeValue::String(s) => Some(s.to_string()),
            DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix()).ok().map(|n| n.to_string()),
            DeValue::Boolean(b) => Some(b.to_string()),
            DeValue::Float(f) => Some(f.as_str().to_string()),
            _ => None,
        };
        self.require(text, || format!("expected a string, a number, true or false, got {}", self.describe()))
    }

    /// The value in words.
    fn describe(&self) -> String {
        let quoted = |s: &dyn Display| format!("{s}");
        match self.value.get_ref() {
            DeValue::String(s) => format!("{s:?}"),
            DeValue::Integer(n) => quoted(&n.as_str()),
            DeValue::Float(n) => quoted(&n.as_str()),
            DeValue::Boolean(b) => quoted(b),
            DeValue::Datetime(t) => quoted(t),
            DeValue::Array(_) => "an array".into(),
            DeValue::Table(_) => "a table".into(),
        }
    }
}

fn join(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}
