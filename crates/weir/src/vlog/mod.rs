//! Logging as ovs-vswitchd does it: to standard error, to a file and to the system's log. Each module
//! has a level of its own for each of them, which operators set at the start (`-v`) and while the
//! daemon runs (`vlog/set`). A line is `2024-01-31T12:00:00.000Z|00001|module|INFO|text`, or what a
//! pattern makes of it.
//!
//! A message is one line, whatever its text and its fields hold: control characters are escaped, so that no peer whose words are logged can
//! forge a line or command a terminal. What is several lines by itself has those in a field `lines`.
//!
//! Messages come from `tracing`'s macros. The module is the event's target, where that is the name of
//! one, or follows from the path of the code ([`module`]). Warnings and errors of one place in the code
//! are limited ([`limit`]), and so is information on what others do: on links that flap, OpenFlow peers that come, go and complain, and guests.
//!
//! ```text
//! tracing::warn!(target: "bridge", ...) ─▶ [subscriber] ─▶ Logger ─▶ [pattern] ─▶ stderr, [sink]
//! ```
//!
//! - [`journal`]: messages for systemd's journal
//! - [`level`]: levels, destinations, and the syntax in which they are set
//! - [`limit`]: how often one place in the code may warn
//! - [`module`]: the parts of the daemon that have levels of their own
//! - [`pattern`]: how a message becomes a line
//! - [`sink`]: standard error, the log file and the system's log
//! - `subscriber`: takes events of `tracing`
//! - `udp`: the system's log at a UDP port
//! - `writer`: a thread that writes to a file

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

pub mod journal;
pub mod level;
pub mod limit;
pub mod module;
pub mod pattern;
pub mod sink;
mod subscriber;
mod udp;
mod writer;

pub use level::{Destination, Level, LogChange};
use limit::Verdict;
pub use module::Module;
use pattern::Message;
use sink::{Console, LogFile, Method, Syslog};

/// The threads whose messages are OVS's main thread's, which have no thread's name: scripts look for such lines.
const OF_MAIN: [&str; 3] = ["main", "spanning-tree", ovsdb::client::THREAD];

/// Facility `daemon` of syslog.
const DAEMON: u8 = 3;

/// What is logged where, and the places it goes to.
pub struct Logger {
    program: &'static str,
    /// Level of each module and destination.
    levels: Vec<[AtomicU8; Destination::ALL.len()]>,
    /// Modules whose messages are not limited.
    unlimited: Vec<AtomicBool>,
    file_open: AtomicBool,
    number: AtomicU32,
    started: Instant,
    outputs: Mutex<Outputs>,
    limiter: Mutex<limit::Limiter>,
}

struct Outputs {
    patterns: [String; Destination::ALL.len()],
    facility: u8,
    console: Console,
    file: LogFile,
    syslog: Syslog,
}

/// A message.
struct LogMessage<'a> {
    module: Module,
    level: Level,
    /// Tells places in the code apart.
    place: usize,
    text: &'a str,
    /// Lines that follow it: the field `lines`.
    lines: &'a str,
    /// The fields that are in the text, by name.
    fields: &'a [(&'static str, String)],
}

/// How to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The log file.
    pub file: Option<PathBuf>,
    /// Changes of what is logged, in their order.
    pub changes: Vec<LogChange>,
    /// No more than warnings on standard error.
    pub quiet_console: bool,
    /// How to reach the system's log.
    pub syslog: Option<String>,
}

/// How long the end of the process waits for a disk.
const LAST_LINES: Duration = Duration::from_secs(2);

/// That of the process.
static LOGGER: OnceLock<Arc<Logger>> = OnceLock::new();

/// Has the last lines written, for the process is about to end.
pub fn flush() {
    if let Some(logger) = LOGGER.get() {
        logger.flush();
    }
}

/// Whether what the process logs for a module is limited: for places that count what they log themselves.
pub fn is_limited(module: Module) -> bool {
    LOGGER.get().is_none_or(|logger| logger.is_limited(module))
}

/// Makes a logger that takes the messages of the whole process.
pub fn init(program: &'static str, config: &Config) -> Result<Arc<Logger>, String> {
    let environment = || std::env::var("OVS_SYSLOG_METHOD").ok().filter(|method| !method.is_empty());
    let method = config.syslog.clone().or_else(environment);
    let method = match method.as_deref() {
        Some(text) => Method::parse(text).ok_or_else(|| format!("unsupported syslog method '{text}'"))?,
        None => Method::Libc,
    };
    let logger = Arc::new(Logger::new(program, method));
    for change in &config.changes {
        logger.set(change);
    }
    if config.quiet_console {
        for module in Module::all() {
            let level = logger.level(module, Destination::Console).min(Level::Warn);
            logger.set_level(module, Destination::Console, level);
        }
    }
    // A second daemon in one process, in tests, logs where the first one does.
    let _ = tracing::subscriber::set_global_default(subscriber::ToLogger(logger.clone()));
    let _ = LOGGER.set(logger.clone());
    if let Some(path) = &config.file {
        // Without its log file the daemon still does its work.
        let _ = logger.open_file(path);
    }
    Ok(logger)
}

impl Logger {
    /// A logger with OVS's levels and patterns, without destinations.
    pub fn new(program: &'static str, syslog: Method) -> Logger {
        let patterns = [
            "ovs|%05N|%c%T|%p|%m",
            "%D{%Y-%m-%dT%H:%M:%SZ}|%05N|%c%T|%p|%m",
            "%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m",
        ];
        Logger {
            program,
            levels: Module::all().map(|_| std::array::from_fn(|_| AtomicU8::new(Level::Info as u8))).collect(),
            unlimited: Module::all().map(|_| AtomicBool::new(false)).collect(),
            file_open: AtomicBool::new(false),
            number: AtomicU32::new(0),
            started: Instant::now(),
            outputs: Mutex::new(Outputs {
                patterns: patterns.map(str::to_owned),
                facility: DAEMON,
                console: Console::default(),
                file: LogFile::default(),
                syslog: Syslog::new(syslog),
            }),
            limiter: Mutex::default(),
        }
    }

    /// Name of the program.
    pub fn program(&self) -> &'static str {
        self.program
    }

    /// Makes a change, for messages from now on.
    pub fn apply(&self, change: &LogChange) {
        self.set(change);
        tracing::callsite::rebuild_interest_cache();
    }

    fn set(&self, change: &LogChange) {
        match change {
            LogChange::Level { module, destination, level } => {
                for at in Module::all().filter(|at| module.is_none_or(|only| only == *at)) {
                    for to in Destination::ALL.into_iter().filter(|to| destination.is_none_or(|only| only == *to)) {
                        self.set_level(at, to, *level);
                    }
                }
            }
            LogChange::Pattern { destination, pattern } => {
                let mut outputs = self.outputs.lock();
                for to in Destination::ALL.into_iter().filter(|to| destination.is_none_or(|only| only == *to)) {
                    outputs.patterns[to as usize].clone_from(pattern);
                }
            }
            LogChange::Facility(number) => self.outputs.lock().facility = *number,
        }
    }

    fn set_level(&self, module: Module, destination: Destination, level: Level) {
        self.levels[module.index()][destination as usize].store(level as u8, Ordering::Relaxed);
    }

    /// What of a module goes to a destination.
    pub fn level(&self, module: Module, destination: Destination) -> Level {
        Level::of(self.levels[module.index()][destination as usize].load(Ordering::Relaxed))
    }

    /// Limits the warnings of a module, or no longer.
    pub fn set_limited(&self, module: Module, limited: bool) {
        self.unlimited[module.index()].store(!limited, Ordering::Relaxed);
    }

    /// Whether the warnings of a module are limited.
    pub fn is_limited(&self, module: Module) -> bool {
        !self.unlimited[module.index()].load(Ordering::Relaxed)
    }

    /// For each destination, what comes before every message there, and the pattern.
    pub fn patterns(&self) -> [(Destination, &'static str, String); Destination::ALL.len()] {
        let outputs = self.outputs.lock();
        Destination::ALL.map(|to| {
            let prefix = if to == Destination::Syslog { outputs.syslog.method.prefix() } else { "none" };
            (to, prefix, outputs.patterns[to as usize].clone())
        })
    }

    /// Whether a message would go anywhere.
    fn is_enabled(&self, module: Module, level: Level) -> bool {
        Destination::ALL.into_iter().any(|to| self.goes_to(module, level, to))
    }

    fn goes_to(&self, module: Module, level: Level, to: Destination) -> bool {
        level <= self.level(module, to) && (to != Destination::File || self.file_open.load(Ordering::Relaxed))
    }

    /// The highest level of any module and destination.
    fn loudest(&self) -> Level {
        let all = self.levels.iter().flatten().map(|level| level.load(Ordering::Relaxed));
        Level::of(all.max().unwrap_or(0))
    }

    /// Logs, unless the place has used up its budget.
    fn log(&self, record: &LogMessage<'_>) {
        let loudest = if record.module.follows_others() { Level::Info } else { Level::Warn };
        if record.level <= loudest && self.is_limited(record.module) {
            let now = Instant::now();
            let taken = self.limiter.lock().take(record.place, now);
            match taken {
                Verdict::Drop => return,
                Verdict::LogAfter(dropped) => {
                    self.write(&LogMessage { text: &dropped.text(now), lines: "", fields: &[], ..*record });
                }
                Verdict::Log => {}
            }
        }
        self.write(record);
    }

    fn write(&self, record: &LogMessage<'_>) {
        let thread = std::thread::current();
        let mut message = Message {
            program: self.program,
            module: record.module.name(),
            level: record.level,
            text: record.text,
            lines: record.lines,
            number: self.number.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            thread: thread.name().filter(|name| !OF_MAIN.contains(name)).unwrap_or(""),
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            uptime: self.started.elapsed(),
            facility: DAEMON,
        };
        let mut outputs = self.outputs.lock();
        message.facility = outputs.facility;
        for to in Destination::ALL.into_iter().filter(|to| self.goes_to(record.module, record.level, *to)) {
            let mut line = String::new();
            pattern::format(&mut line, &outputs.patterns[to as usize], &message);
            match to {
                Destination::Syslog => outputs.syslog(&line, &message, record.fields),
                Destination::Console => {
                    line.push('\n');
                    outputs.console.write(io::stderr(), line);
                }
                Destination::File => {
                    line.push('\n');
                    outputs.file.write(line);
                }
            }
        }
    }
}

impl Outputs {
    /// Sends each line by itself, with what the method puts before it.
    fn syslog(&mut self, text: &str, message: &Message<'_>, fields: &[(&'static str, String)]) {
        if let Method::Journal(_) = self.syslog.method {
            return self.syslog.send(in_fields(message, fields).bytes());
        }
        for line in text.lines() {
            let mut out = String::new();
            match self.syslog.method {
                Method::Null | Method::Journal(_) => return,
                // The local system knows its name.
                Method::Libc => pattern::format(&mut out, "<%B>%D{%h %e %T} %A: ", message),
                Method::Unix(_) | Method::Udp(_) => pattern::format(&mut out, "<%B>", message),
            }
            out.push_str(line);
            self.syslog.send(out.as_bytes());
        }
    }
}

/// A message for the journal, which has the time by itself. The names are those of systemd.journal-fields(7), and Weir's own.
fn in_fields(message: &Message<'_>, fields: &[(&'static str, String)]) -> journal::Entry {
    let whole = [message.text, message.lines].join(if message.lines.is_empty() { "" } else { "\n" });
    let mut entry = journal::Entry::default();
    entry
        .put("MESSAGE", &whole)
        .put("PRIORITY", &message.level.severity().to_string())
        .put("SYSLOG_IDENTIFIER", message.program)
        .put("SYSLOG_FACILITY", &message.facility.to_string())
        .put("SYSLOG_PID", &std::process::id().to_string())
        .put("WEIR_MODULE", message.module)
        .put("WEIR_LEVEL", message.level.name())
        .put("WEIR_NUMBER", &message.number.to_string());
    if !message.thread.is_empty() {
        entry.put("WEIR_THREAD", message.thread);
    }
    entry.put_event(fields);
    entry
}

/// The log file.
impl Logger {
    /// Where it is, if there is to be one.
    pub fn file_path(&self) -> Option<PathBuf> {
        self.outputs.lock().file.path.clone()
    }

    /// Opens the file anew, which may have been renamed since.
    pub fn reopen(&self) -> io::Result<()> {
        match self.file_path() {
            Some(path) => self.open_file(&path),
            None => Ok(()),
        }
    }

    /// Waits for what has been logged to be written, unless the disk has stalled.
    fn flush(&self) {
        let (deadline, outputs) = (Instant::now() + LAST_LINES, self.outputs.lock());
        outputs.file.flush(deadline);
        outputs.console.flush(deadline);
    }

    /// Closes the file, until it is opened anew.
    pub fn close(&self) {
        self.outputs.lock().file.install(None);
        self.file_open.store(false, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Logs to the file at `path`. Where that fails, an open one is kept.
    fn open_file(&self, path: &Path) -> io::Result<()> {
        self.outputs.lock().file.path = Some(path.to_owned());
        let file = sink::open(path).inspect_err(|e| {
            tracing::warn!(target: "vlog", "failed to open {} for logging: {e}", path.display());
        })?;
        if self.outputs.lock().file.is_same(&file) {
            return Ok(());
        }
        if self.file_open.load(Ordering::Relaxed) {
            tracing::info!(target: "vlog", "closing log file");
        }
        self.outputs.lock().file.install(Some(file));
        self.file_open.store(true, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
        tracing::info!(target: "vlog", "opened log file {}", path.display());
        Ok(())
    }
}

/// Reads what `weir run --log` takes: levels by commas, of all modules or as NAME=LEVEL, where the name
/// is of a module or of a crate. Only standard error is logged to.
pub fn parse_filter(filter: &str) -> Result<Vec<LogChange>, String> {
    let mut changes = vec![
        LogChange::Level { module: None, destination: Some(Destination::Syslog), level: Level::Off },
        LogChange::Level { module: None, destination: Some(Destination::File), level: Level::Off },
    ];
    for part in filter.split(',').filter(|part| !part.is_empty()) {
        let (name, word) = part.split_once('=').map_or((None, part), |(name, word)| (Some(name), word));
        let level = match word {
            "error" => Level::Err,
            "debug" | "trace" => Level::Dbg,
            other => Level::find(other)
                .ok_or_else(|| format!("{other:?} is no level; levels are off, error, warn, info and debug"))?,
        };
        let modules: Vec<Option<Module>> = match name {
            None => vec![None],
            Some(name) => Module::find(name).into_iter().chain(Module::of_path(name)).map(Some).collect(),
        };
        if modules.is_empty() {
            return Err(format!("{:?} is neither a module nor a crate", name.unwrap_or_default()));
        }
        let console = Some(Destination::Console);
        changes.extend(modules.into_iter().map(|module| LogChange::Level { module, destination: console, level }));
    }
    Ok(changes)
}

/// Entry for fuzzing: any text as an argument of `vlog/set` and of `--log`. A pattern makes lines that are no longer
/// than its conversions can be wide.
pub fn fuzz(text: &str) {
    let _ = parse_filter(text);
    if let Ok(LogChange::Pattern { pattern, .. }) = LogChange::parse(text) {
        let mut line = String::new();
        let time = Duration::from_secs(1_700_000_000 + pattern.len() as u64 * 86_400);
        let (program, module, thread) = ("weir", "bridge", "worker 1");
        let message = Message {
            program,
            module,
            level: Level::Warn,
            text: "text\n",
            lines: "",
            number: 7,
            thread,
            time,
            uptime: Duration::from_millis(1),
            facility: 3,
        };
        pattern::format(&mut line, &pattern, &message);
        assert!(line.len() <= 1200 * pattern.len(), "{} bytes of {pattern:?}", line.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str) -> Module {
        Module::find(name).unwrap()
    }

    fn log(logger: &Logger, name: &str, level: Level, text: &str) {
        logger.log(&LogMessage { module: module(name), level, place: text.len(), text, lines: "", fields: &[] });
    }

    /// A logger with a file alone, whose lines are `module|level|text`.
    fn to_file(path: &Path) -> Logger {
        let logger = Logger::new("test", Method::Null);
        for spec in ["console:off", "PATTERN:file:%c|%p|%m"] {
            logger.set(&LogChange::parse(spec).unwrap());
        }
        logger.open_file(path).unwrap();
        logger
    }

    #[test]
    fn modules_have_levels_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let logger = to_file(&path);
        logger.set(&LogChange::parse("bridge:file:dbg").unwrap());
        logger.set(&LogChange::parse("vconn:warn").unwrap());
        for name in ["bridge", "vconn", "unixctl"] {
            for level in [Level::Warn, Level::Info, Level::Dbg] {
                if logger.is_enabled(module(name), level) {
                    log(&logger, name, level, "x");
                }
            }
        }
        let lines = std::fs::read_to_string(&path).unwrap();
        let expected =
            ["bridge|WARN|x", "bridge|INFO|x", "bridge|DBG|x", "vconn|WARN|x", "unixctl|WARN|x", "unixctl|INFO|x"];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
        assert_eq!(logger.level(module("vconn"), Destination::Console), Level::Warn);
        assert_eq!(logger.loudest(), Level::Dbg);
    }

    #[test]
    fn a_renamed_file_is_left_for_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("old"));
        let logger = to_file(&path);
        log(&logger, "bridge", Level::Info, "first");
        std::fs::rename(&path, &old).unwrap();
        log(&logger, "bridge", Level::Info, "second");
        logger.reopen().unwrap();
        log(&logger, "bridge", Level::Info, "third");
        logger.close();
        log(&logger, "bridge", Level::Info, "lost");
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "bridge|INFO|first\nbridge|INFO|second\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "bridge|INFO|third\n");
        assert_eq!(logger.file_path(), Some(path));
    }

    #[test]
    fn warnings_are_limited_unless_told_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let logger = to_file(&path);
        let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
        (0..500).for_each(|_| log(&logger, "bridge", Level::Warn, "again"));
        assert!((100..110).contains(&lines()), "{}", lines());
        logger.set_limited(module("bridge"), false);
        let before = lines();
        (0..500).for_each(|_| log(&logger, "bridge", Level::Warn, "again"));
        assert_eq!(lines() - before, 500);
        (0..500).for_each(|_| log(&logger, "vconn", Level::Info, "information"));
        assert_eq!(lines() - before, 1000);
    }

    #[test]
    fn nobody_else_fills_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let logger = to_file(&path);
        (0..5000).for_each(|_| log(&logger, "bond", Level::Info, "member eth1: disabled"));
        let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
        assert!((100..110).contains(&lines()), "{}", lines());
        // Nor does a controller that sends errors, or a peer that connects again and again.
        for (name, text) in [("connmgr", "the controller reports an error"), ("rconn", "OpenFlow connection closed")] {
            let before = lines();
            (0..5000).for_each(|_| log(&logger, name, Level::Info, text));
            assert!((100..110).contains(&(lines() - before)), "{}", lines() - before);
        }
    }

    #[test]
    fn no_text_forges_a_line_or_commands_a_terminal() {
        let dir = tempfile::tempdir().unwrap();
        let (path, socket) = (dir.path().join("log"), dir.path().join("socket"));
        let listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
        let logger = Logger::new("test", Method::Unix(socket));
        for spec in ["console:off", "PATTERN:file:%c|%p|%m%n-", "PATTERN:syslog:%c|%p|%m"] {
            logger.set(&LogChange::parse(spec).unwrap());
        }
        logger.open_file(&path).unwrap();
        let (place, fields) = (1, &[]);
        let text = "peer says \x1b[2J\r\nbridge|ERR|forged\u{9b}1m\n";
        let lines = "first\n\x1b[1msecond\n";
        logger.log(&LogMessage { module: module("vconn"), level: Level::Warn, place, text, lines, fields });
        let expected = ["vconn|WARN|peer says \\x1b[2J\\r\\nbridge|ERR|forged\\u{9b}1m", "first", "\\x1b[1msecond"];
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected.join("\n") + "\n-\n");
        let mut buffer = [0; 256];
        for line in expected {
            let length = listener.recv(&mut buffer).unwrap();
            assert_eq!(std::str::from_utf8(&buffer[..length]).unwrap(), format!("<28>{line}"));
        }
    }

    #[test]
    fn the_journal_has_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let logger = Logger::new("ovs-vswitchd", Method::Journal(path));
        logger.set(&LogChange::parse("console:off").unwrap());
        let fields = [("port", "p1".to_owned())];
        let text = "is gone port=p1";
        let lines = "";
        logger.log(&LogMessage {
            module: module("bridge"),
            level: Level::Warn,
            place: 1,
            text,
            lines,
            fields: &fields,
        });
        let mut buffer = [0; 4096];
        let len = listener.recv(&mut buffer).unwrap();
        let got = std::str::from_utf8(&buffer[..len]).unwrap();
        for line in [
            "MESSAGE=is gone port=p1",
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=ovs-vswitchd",
            "SYSLOG_FACILITY=3",
            "WEIR_MODULE=bridge",
            "WEIR_LEVEL=WARN",
            "WEIR_NUMBER=1",
            "WEIR_FIELD_PORT=p1",
        ] {
            assert!(got.lines().any(|has| has == line), "{line} is not in {got:?}");
        }
    }

    #[test]
    fn filters_of_weir_run() {
        let logger = Logger::new("weir", Method::Null);
        for change in parse_filter("warn,ports=debug,bridge=off").unwrap() {
            logger.set(&change);
        }
        let level = |name| logger.level(module(name), Destination::Console);
        assert_eq!((level("vconn"), level("netdev_dummy"), level("bridge")), (Level::Warn, Level::Dbg, Level::Off));
        assert!(parse_filter("loud").unwrap_err().contains("levels are"));
        assert!(parse_filter("nonsense=info").unwrap_err().contains("nonsense"));
    }
}
