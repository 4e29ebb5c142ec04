//! Patterns: how a message becomes a line (ovs-appctl(8), `vlog/set PATTERN`).

use std::fmt::Write as _;
use std::time::Duration;

use super::level::Level;
use crate::printable::escape_line;

/// What a pattern can show.
pub struct Message<'a> {
    /// The program: `ovs-vswitchd`.
    pub program: &'a str,
    /// Name of the module.
    pub module: &'a str,
    /// Level.
    pub level: Level,
    /// The text, which is shown as one line: others may have a say in it.
    pub text: &'a str,
    /// Lines that follow it.
    pub lines: &'a str,
    /// How many messages there were, with this one.
    pub number: u32,
    /// Name of the thread; empty for the main one.
    pub thread: &'a str,
    /// Time since 1970, in UTC.
    pub time: Duration,
    /// Time since the program started.
    pub uptime: Duration,
    /// Facility of syslog.
    pub facility: u8,
}

/// The form of times without one of their own.
const DEFAULT_TIME: &str = "%Y-%m-%d %H:%M:%S.###";

/// Appends a message in the form that `pattern` gives. Local time is UTC.
pub fn format(out: &mut String, pattern: &str, message: &Message<'_>) {
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        rest = conversion(out, after, message);
    }
    out.push_str(rest);
}

/// Does one conversion, whose percent sign was read, and returns what follows it.
fn conversion<'a>(out: &mut String, text: &'a str, message: &Message<'_>) -> &'a str {
    let (left, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (zeros, text) = text.strip_prefix('0').map_or((false, text), |rest| (true, rest));
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    // Wider than any line makes sense, a field is a mistake, and no reason to run out of memory.
    let width = text[..digits].parse().unwrap_or(0usize).min(1024);
    let mut characters = text[digits..].chars();
    let Some(letter) = characters.next() else { return "" };
    let mut rest = characters.as_str();
    let mut field = String::new();
    match letter {
        'A' => field.push_str(message.program),
        'B' => put(&mut field, u32::from(message.facility) << 3 | u32::from(message.level.severity())),
        'c' => {
            rest = braces(rest).1;
            field.push_str(message.module);
        }
        'd' | 'D' => {
            let (form, after) = braces(rest);
            rest = after;
            format_time(&mut field, form.unwrap_or(DEFAULT_TIME), message.time);
        }
        'E' => field.push_str(&host_name()),
        'm' => put_text(&mut field, message),
        'N' => put(&mut field, message.number),
        'n' => field.push('\n'),
        'p' => field.push_str(message.level.name()),
        'P' => put(&mut field, std::process::id()),
        'r' => put(&mut field, message.uptime.as_millis()),
        't' => field.push_str(if message.thread.is_empty() { "main" } else { message.thread }),
        'T' if message.thread.is_empty() => {}
        'T' => put(&mut field, format_args!("({})", message.thread)),
        other => field.push(other),
    }
    let missing = width.saturating_sub(field.len());
    let pad = if zeros { "0" } else { " " }.repeat(missing);
    match left {
        true => out.extend([field, pad]),
        false => out.extend([pad, field]),
    }
    rest
}

fn put_text(out: &mut String, message: &Message<'_>) {
    escape_line(out, message.text.trim_end_matches('\n'));
    for line in message.lines.lines() {
        out.push('\n');
        escape_line(out, line);
    }
}

fn put(out: &mut String, value: impl std::fmt::Display) {
    let _ = write!(out, "{value}");
}

/// What stands in braces at the beginning, and what follows.
fn braces(text: &str) -> (Option<&str>, &str) {
    match text.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
        Some((inner, rest)) => (Some(inner), rest),
        None => (None, text),
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A time in UTC in a form of strftime(3), where each `#` is a digit of the milliseconds.
pub fn format_time(out: &mut String, form: &str, since_1970: Duration) {
    let time = Civil::of(since_1970.as_secs());
    let millis = format!("{:03}", since_1970.subsec_millis());
    let mut digits = millis.chars();
    let mut characters = form.chars();
    while let Some(c) = characters.next() {
        match c {
            '#' => out.push(digits.next().unwrap_or('0')),
            '%' => match characters.next() {
                Some(letter) => time.put(out, letter, since_1970.as_secs()),
                None => out.push('%'),
            },
            other => out.push(other),
        }
    }
}

/// A time of the Gregorian calendar.
struct Civil {
    year: i64,
    month: u64,
    day: u64,
    /// From 1.
    day_of_year: u64,
    /// 0 is Sunday.
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Civil {
    /// From seconds since 1970. Days are counted from 1 March of year 0, in eras of 400 years (Hinnant,
    /// "chrono-compatible low-level date algorithms").
    fn of(seconds: u64) -> Civil {
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * from_march + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = (year_of_era + era * 400 + u64::from(month <= 2)) as i64;
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = if month <= 2 { from_march - 305 } else { from_march + 60 + u64::from(leap) };
        Civil {
            year,
            month,
            day: from_march - (153 * shifted_month + 2) / 5 + 1,
            day_of_year,
            weekday: (days + 4) % 7,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    fn put(&self, out: &mut String, letter: char, seconds: u64) {
        let (month, weekday) = (MONTHS[self.month as usize - 1], DAYS[self.weekday as usize]);
        let twelve = (self.hour + 11) % 12 + 1;
        match letter {
            'Y' => put(out, self.year),
            'y' => put(out, format_args!("{:02}", self.year % 100)),
            'm' => put(out, format_args!("{:02}", self.month)),
            'd' => put(out, format_args!("{:02}", self.day)),
            'e' => put(out, format_args!("{:2}", self.day)),
            'j' => put(out, format_args!("{:03}", self.day_of_year)),
            'b' | 'h' => out.push_str(&month[..3]),
            'B' => out.push_str(month),
            'a' => out.push_str(&weekday[..3]),
            'A' => out.push_str(weekday),
            'u' => put(out, (self.weekday + 6) % 7 + 1),
            'w' => put(out, self.weekday),
            'H' => put(out, format_args!("{:02}", self.hour)),
            'I' => put(out, format_args!("{twelve:02}")),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'M' => put(out, format_args!("{:02}", self.minute)),
            'S' => put(out, format_args!("{:02}", self.second)),
            's' => put(out, seconds),
            'T' => put(out, format_args!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second)),
            'F' => put(out, format_args!("{:04}-{:02}-{:02}", self.year, self.month, self.day)),
            'z' => out.push_str("+0000"),
            'Z' => out.push_str("UTC"),
            '%' => out.push('%'),
            other => out.extend(['%', other]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pattern: &str) -> String {
        let message = Message {
            program: "ovs-vswitchd",
            module: "bridge",
            level: Level::Warn,
            text: "br0: gone\n",
            lines: "",
            number: 42,
            thread: "handler0",
            time: Duration::from_millis(951_827_696_007),
            uptime: Duration::from_millis(1500),
            facility: 3,
        };
        let mut out = String::new();
        format(&mut out, pattern, &message);
        out
    }

    #[test]
    fn patterns_of_the_destinations() {
        assert_eq!(
            line("%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m"),
            "2000-02-29T12:34:56.007Z|00042|bridge(handler0)|WARN|br0: gone"
        );
        assert_eq!(line("ovs|%05N|%c%T|%p|%m"), "ovs|00042|bridge(handler0)|WARN|br0: gone");
        assert_eq!(line("<%B> %D{%h %e %T} %A:"), "<28> Feb 29 12:34:56 ovs-vswitchd:");
    }

    #[test]
    fn fields_and_mistakes() {
        assert_eq!(line("[%-8c][%8c][%t][%r]"), "[bridge  ][  bridge][handler0][1500]");
        assert_eq!(line("%d"), "2000-02-29 12:34:56.007");
        assert_eq!(line("%%|%q|%"), "%|q|");
        assert_eq!(line("%D{%Y"), "2000-02-29 12:34:56.007{Y");
        assert_eq!(line("%99999999999c").len(), 1024);
    }

    #[test]
    fn times_are_in_utc() {
        let time = |millis, form| {
            let mut out = String::new();
            format_time(&mut out, form, Duration::from_millis(millis));
            out
        };
        assert_eq!(time(0, "%F %T %a %j"), "1970-01-01 00:00:00 Thu 001");
        assert_eq!(time(1_735_689_599_999, "%F %T.### %A %j"), "2024-12-31 23:59:59.999 Tuesday 366");
        assert_eq!(time(1_735_689_600_000, "%F %I%p %j"), "2025-01-01 12AM 001");
    }
}
