//! Logging as ovs-vswitchd does it: to standard error and to a file, each with a level of its own
//! (`-v`), one line for each message: `2024-01-31T12:00:00.000Z|00001|module|INFO|text`.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt as layer};

/// What to log where. Messages to syslog are left to standard error and the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Standard error.
    pub console: LevelFilter,
    /// The log file.
    pub file: LevelFilter,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { console: LevelFilter::INFO, file: LevelFilter::INFO }
    }
}

impl Levels {
    /// Takes a `-v` option: module, destination and level in any order, with colons between them. Modules
    /// are accepted and not told apart.
    pub fn set(&mut self, spec: &str) -> Result<(), String> {
        if ["PATTERN:", "FACILITY:"].iter().any(|p| spec.len() >= p.len() && spec[..p.len()].eq_ignore_ascii_case(p)) {
            return Ok(());
        }
        let (mut console, mut file, mut syslog, mut module, mut level) = (false, false, false, false, None);
        for word in spec.split([':', ',', ' ']).filter(|w| !w.is_empty()) {
            match word.to_ascii_lowercase().as_str() {
                "console" => console = true,
                "file" => file = true,
                "syslog" => syslog = true,
                "any" => {}
                other => match parse_level(other) {
                    Some(parsed) => level = Some(parsed),
                    None if module || console || file || syslog => {
                        return Err(format!("-v{spec}: {word} is no level: off, emer, err, warn, info or dbg"));
                    }
                    None => module = true,
                },
            }
        }
        // One module alone cannot be made quieter or louder, so nothing changes for the others.
        if module {
            return Ok(());
        }
        let level = level.unwrap_or(LevelFilter::DEBUG);
        let all = !(console || file || syslog);
        if console || all {
            self.console = level;
        }
        if file || all {
            self.file = level;
        }
        Ok(())
    }

    /// The same with no more than warnings on standard error.
    pub fn quiet_console(self) -> Levels {
        Levels { console: self.console.min(LevelFilter::WARN), ..self }
    }
}

fn parse_level(word: &str) -> Option<LevelFilter> {
    Some(match word {
        "off" => LevelFilter::OFF,
        "emer" | "err" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "dbg" => LevelFilter::DEBUG,
        _ => return None,
    })
}

/// The log file, which can be opened anew after it was renamed.
#[derive(Clone)]
pub struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<LogFile> {
        Ok(LogFile { path: path.into(), file: Arc::new(Mutex::new(append(path)?)) })
    }

    /// Opens the file again.
    pub fn reopen(&self) {
        match append(&self.path) {
            Ok(file) => *self.file.lock() = file,
            Err(e) => tracing::error!("{}: {e}", self.path.display()),
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = FileWriter<'a>;

    fn make_writer(&'a self) -> FileWriter<'a> {
        FileWriter(&self.file)
    }
}

/// Writes to the log file. A full disk loses messages and nothing else.
pub struct FileWriter<'a>(&'a Mutex<File>);

impl io::Write for FileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::Write::write_all(&mut *self.0.lock(), bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts logging.
pub fn init(levels: Levels, path: Option<&Path>) -> io::Result<Option<LogFile>> {
    let file = path.map(LogFile::open).transpose()?;
    let console = layer::layer()
        .event_format(Format(AtomicU64::new(1)))
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_filter(levels.console);
    let to_file = file.clone().map(|file| {
        layer::layer()
            .event_format(Format(AtomicU64::new(1)))
            .with_writer(file)
            .with_ansi(false)
            .with_filter(levels.file)
    });
    // A second daemon in one process, in tests, logs where the first one does.
    let _ = tracing_subscriber::registry().with(console).with(to_file).try_init();
    if let Some(file) = &file {
        tracing::info!(target: "vlog", "opened log file {}", file.path.display());
    }
    Ok(file)
}

/// The form of a line; the messages of a destination are numbered.
struct Format(AtomicU64);

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let level = match *event.metadata().level() {
            Level::ERROR => "ERR",
            Level::WARN => "WARN",
            Level::INFO => "INFO",
            _ => "DBG",
        };
        let module = event.metadata().target().rsplit("::").next().unwrap_or("weir");
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let time = timestamp(since.as_secs(), since.subsec_millis());
        write!(writer, "{time}|{number:05}|{module}|{level}|")?;
        ctx.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// A time in UTC, as ISO 8601 has it, from seconds since 1970.
fn timestamp(seconds: u64, millis: u32) -> String {
    let (days, second) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days are counted from 1 March of year 0, in eras of 400 years (Hinnant, "chrono-compatible
    // low-level date algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc() {
        assert_eq!(timestamp(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(951_827_696, 7), "2000-02-29T12:34:56.007Z");
        assert_eq!(timestamp(1_735_689_599, 999), "2024-12-31T23:59:59.999Z");
    }

    #[test]
    fn levels_by_destination() {
        let mut levels = Levels::default();
        for spec in ["console:off", "syslog:err", "PATTERN:file:%m", "FACILITY:daemon", "dpif_netdev:dbg"] {
            levels.set(spec).unwrap();
        }
        assert_eq!(levels, Levels { console: LevelFilter::OFF, file: LevelFilter::INFO });
        levels.set("ANY:file:dbg").unwrap();
        assert_eq!(levels.file, LevelFilter::DEBUG);
        levels.set("warn").unwrap();
        assert_eq!(levels, Levels { console: LevelFilter::WARN, file: LevelFilter::WARN });
        assert!(levels.set("file:loud").is_err());
    }
}
