//! Standard error, the log file and the system's log. None makes the daemon wait for a reader, or fail: lines that cannot be
//! written are lost. The lock of the logger is held meanwhile, so whoever waited here would make all threads wait that log; to a
//! file, on a disk that can stall, a thread of its own writes ([`writer`](super::writer)).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::time::Timespec;

use super::journal;
use super::udp::Udp;
use super::writer::Writer;

/// The log file.
#[derive(Default)]
pub struct LogFile {
    /// Where it is, or was to be.
    pub path: Option<PathBuf>,
    file: Option<Arc<File>>,
    /// Started with the first file.
    writer: Option<Writer>,
}

impl LogFile {
    /// Returns when all is written, or at this time.
    pub fn flush(&self, deadline: Instant) {
        self.writer.iter().for_each(|writer| writer.flush(deadline));
    }

    /// Whether lines are written.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Whether `file` is the one that is open.
    pub fn is_same(&self, file: &File) -> bool {
        let identity = |file: &File| rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino));
        self.file.as_ref().is_some_and(|open| identity(open) == identity(file))
    }

    /// Writes to this file from now on; `None` closes.
    pub fn install(&mut self, file: Option<File>) {
        self.file = file.map(Arc::new);
    }

    /// Writes a line that ends in a line feed, in its turn.
    pub fn write(&mut self, line: String) {
        if let Some(file) = &self.file {
            self.writer.get_or_insert_with(Writer::start).write(file, line);
        }
    }
}

/// Standard error.
#[derive(Default)]
pub struct Console {
    /// The last line was cut short.
    torn: bool,
    /// The file that it is, with its device and number there, and who writes to it.
    file: Option<(Arc<File>, Identity)>,
    writer: Option<Writer>,
}

/// What tells one file from all others: the device, in two parts, and the number there.
type Identity = (u32, u32, u64);

/// What a pipe with any room at all takes at once (`PIPE_BUF` in pipe(7)).
const PIECE: usize = 4096;

impl Console {
    /// Writes a line that ends in a line feed, or what there is room for. `O_NONBLOCK` cannot say that: it would be set for the
    /// shell, too, whose terminal this may be. A file always says that it has room.
    pub fn write(&mut self, to: impl AsFd, line: String) {
        if let Some(file) = self.file_of(&to) {
            self.writer.get_or_insert_with(Writer::start).write(&file, line);
            return;
        }
        let pieces = line.as_bytes().chunks(PIECE);
        let start: &[u8] = b"\n";
        for piece in self.torn.then_some(start).into_iter().chain(pieces) {
            let mut wanted = [PollFd::new(&to, PollFlags::OUT)];
            let has_room = poll(&mut wanted, Some(&Timespec::default())).is_ok_and(|ready| ready == 1);
            if !has_room || rustix::io::write(&to, piece) != Ok(piece.len()) {
                return;
            }
            self.torn = !piece.ends_with(b"\n");
        }
    }

    /// Returns when what goes to a file is written, or at this time.
    pub fn flush(&self, deadline: Instant) {
        self.writer.iter().for_each(|writer| writer.flush(deadline));
    }

    /// The file that this is, if it is one: it may become another.
    fn file_of(&mut self, to: impl AsFd) -> Option<Arc<File>> {
        // What is known is good enough: a server of files may not answer.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&to, "", flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
        if !FileType::from_raw_mode(found.stx_mode.into()).is_file() {
            // One that it was is let go of.
            self.file = None;
            return None;
        }
        let identity = (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
        if self.file.as_ref().is_none_or(|(_, known)| *known != identity) {
            self.file = Some((Arc::new(rustix::io::dup(&to).ok()?.into()), identity));
        }
        self.file.as_ref().map(|(file, _)| file.clone())
    }
}

/// Opens a log file to append to it. It may be a pipe or a terminal: a FIFO without a reader is an error,
/// and one whose reader is slow loses lines.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    File::options().create(true).append(true).mode(0o660).custom_flags(flags).open(path)
}

/// How the system's log is reached (`--syslog-method`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    /// Not at all.
    Null,
    /// As libc does, over `/dev/log`.
    Libc,
    /// Over a Unix datagram socket, without time and name.
    Unix(PathBuf),
    /// To a UDP port, without time and name.
    Udp(String),
    /// To systemd's journal at this path, as fields.
    Journal(PathBuf),
}

impl Method {
    /// Reads `null`, `libc`, `unix:PATH`, `udp:HOST:PORT`, `journal` or `journal:PATH`.
    pub fn parse(text: &str) -> Option<Method> {
        match text.split_once(':') {
            None if text == "null" => Some(Method::Null),
            None if text == "libc" => Some(Method::Libc),
            None if text == "journal" => Some(Method::Journal(journal::SOCKET.into())),
            Some(("journal", path)) => Some(Method::Journal(path.into())),
            Some(("unix", path)) => Some(Method::Unix(path.into())),
            Some(("udp", address)) => {
                let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                Some(Method::Udp(if has_port { address.into() } else { format!("{address}:514") }))
            }
            _ => None,
        }
    }

    /// The pattern of what comes before each message.
    pub fn prefix(&self) -> &'static str {
        match self {
            Method::Null | Method::Journal(_) => "",
            Method::Libc => "<%B> %D{%h %e %T} %E %A:",
            Method::Unix(_) | Method::Udp(_) => "<%B>",
        }
    }
}

/// Where the system's log listens.
const SYSTEM_LOG: &str = "/dev/log";

/// The system's log.
pub struct Syslog {
    /// How it is reached.
    pub method: Method,
    socket: Option<Socket>,
}

enum Socket {
    Unix(UnixDatagram),
    Udp(Udp),
}

impl Syslog {
    /// Connects with the first message.
    pub fn new(method: Method) -> Syslog {
        Syslog { method, socket: None }
    }

    /// Sends a message: priority in angle brackets, and text; for the journal, an [`Entry`](journal::Entry).
    pub fn send(&mut self, message: &[u8]) {
        if self.socket.is_none() {
            self.socket = self.connect().ok();
        }
        let sent = match &self.socket {
            Some(Socket::Unix(socket)) => socket.send(message),
            Some(Socket::Udp(log)) => return log.send(message),
            None => return,
        };
        // A log that was restarted is at another socket of that name.
        if sent.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock) {
            self.socket = None;
        }
    }

    fn connect(&self) -> io::Result<Socket> {
        let path = match &self.method {
            Method::Null => return Err(io::ErrorKind::Unsupported.into()),
            Method::Libc => Path::new(SYSTEM_LOG),
            Method::Unix(path) | Method::Journal(path) => path,
            Method::Udp(target) => return Ok(Socket::Udp(Udp::new(target))),
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Socket::Unix(socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods() {
        assert_eq!(Method::parse("udp:127.0.0.1:99"), Some(Method::Udp("127.0.0.1:99".into())));
        assert_eq!(Method::parse("udp:127.0.0.1"), Some(Method::Udp("127.0.0.1:514".into())));
        assert_eq!(Method::parse("unix:/x"), Some(Method::Unix("/x".into())));
        assert_eq!(Method::parse("journal"), Some(Method::Journal(journal::SOCKET.into())));
        assert_eq!(Method::parse("journal:/x"), Some(Method::Journal("/x".into())));
        assert_eq!(Method::parse("libc"), Some(Method::Libc));
        assert_eq!(Method::parse("pigeon"), None);
    }

    #[test]
    fn a_log_that_comes_back_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Syslog::new(Method::Unix(path.clone()));
        log.send(b"<28>lost");
        let mut buffer = [0; 64];
        for message in ["<28>one", "<28>two"] {
            let listener = UnixDatagram::bind(&path).unwrap();
            // The first after a loss may only notice it.
            log.send(message.as_bytes());
            log.send(message.as_bytes());
            let length = listener.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], message.as_bytes());
            drop(listener);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_fifo_that_nobody_reads_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(open(&path).is_err());
    }

    #[test]
    fn a_console_that_nobody_reads_is_not_waited_for() {
        let (mut read, write) = io::pipe().unwrap();
        let mut console = Console::default();
        let line = "x".repeat(PIECE) + "\n";
        (0..100).for_each(|_| console.write(&write, line.clone()));
        // Whoever reads again gets whole lines behind a cut one.
        let mut waiting = vec![0; 1 << 20];
        let length = io::Read::read(&mut read, &mut waiting).unwrap();
        assert!(length < 100 * line.len());
        console.write(&write, "after\n".into());
        drop(write);
        let mut text = String::from_utf8_lossy(&waiting[..length]).into_owned();
        io::Read::read_to_string(&mut read, &mut text).unwrap();
        assert!(text.ends_with("x\nafter\n"), "{}", &text[text.len() - 20..]);
    }

    #[test]
    fn a_console_that_is_a_file_and_becomes_another_has_all_lines() {
        let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let mut console = Console::default();
        for mut file in files {
            console.write(&file, "one\n".into());
            console.write(&file, "two\n".into());
            let mut text = String::new();
            io::Seek::rewind(&mut file).unwrap();
            io::Read::read_to_string(&mut file, &mut text).unwrap();
            assert_eq!(text, "one\ntwo\n");
            assert!(console.writer.is_some(), "a thread writes to it");
        }
        let (_read, write) = io::pipe().unwrap();
        console.write(&write, "three\n".into());
        assert!(console.file.is_none(), "nothing keeps the last one open");
    }

    #[test]
    fn a_full_disk_loses_lines() {
        let mut log = LogFile::default();
        log.install(Some(open(Path::new("/dev/full")).unwrap()));
        log.write("lost\n".into());
        assert!(log.is_open());
    }

    #[test]
    fn the_last_lines_are_waited_for_and_a_thread_that_was_late_is_trusted() {
        let (mut read, write) = io::pipe().unwrap();
        let mut log = LogFile::default();
        log.install(Some(std::os::fd::OwnedFd::from(write).into()));
        let line = "x".repeat(4095) + "\n";
        // More than the pipe takes: somebody waits in vain, and others do not.
        (0..100).for_each(|_| log.write(line.clone()));
        assert_eq!(log.writer.as_ref().unwrap().state(), (false, false));
        let reader = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let mut text = vec![0; 100 * 4096];
            io::Read::read_exact(&mut read, &mut text).unwrap();
            read
        });
        log.flush(Instant::now() + std::time::Duration::from_secs(60));
        assert!(log.writer.as_ref().unwrap().state().0, "all is written");
        let _read = reader.join().unwrap();
        // One line that is quick is enough, of which a busy machine makes some.
        let is_trusted = (0..100).any(|_| {
            log.write("after\n".into());
            log.flush(Instant::now() + std::time::Duration::from_secs(60));
            log.writer.as_ref().unwrap().state().1
        });
        assert!(is_trusted);
    }

    #[test]
    fn a_disk_that_stalls_is_not_waited_for_and_has_what_was_kept_when_it_goes_on() {
        // This pipe takes nothing more when it is full, as a disk that has stalled.
        let (mut read, write) = io::pipe().unwrap();
        let mut log = LogFile::default();
        log.install(Some(std::os::fd::OwnedFd::from(write).into()));
        let line = |number: usize| format!("{number:05}{}\n", "x".repeat(4090));
        (0..1000).for_each(|number| log.write(line(number)));
        let mut text = String::new();
        drop(log);
        io::Read::read_to_string(&mut read, &mut text).unwrap();
        let kept = text.lines().count();
        assert!((250..500).contains(&kept), "{kept} lines of 4 kB");
        assert_eq!(text, (0..kept).map(line).collect::<String>());
    }
}
