//! `weir tap`: shows packets as they pass, until it has enough.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::signal::unix::{SignalKind, signal};

use super::args::TapOptions;
use super::{Error, RunningDaemon, shown};
use crate::unixctl::Client;

/// How long the daemon may take to say how much there was, once it has been told to end.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The exit status after a signal.
const INTERRUPTED: i32 = 130;

/// Where what is seen goes.
enum Sink {
    /// Text.
    Terminal,
    /// A capture file. It is made when there is something to write: what is refused leaves an older one as it is.
    File(PathBuf, Option<File>),
    /// A capture file as a stream.
    Output,
}

impl Sink {
    /// Opens what is to be written to. Returns a descriptor that tells when nobody reads it any more.
    fn open(&mut self) -> io::Result<OwnedFd> {
        match self {
            Sink::Terminal | Sink::Output => io::stdout().as_fd().try_clone_to_owned(),
            Sink::File(path, file) => {
                let file = match file {
                    Some(file) => file,
                    None => file.insert(File::create(path)?),
                };
                file.as_fd().try_clone_to_owned()
            }
        }
    }

    fn write(&mut self, piece: &str) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the daemon's answer is no capture file");
        let bytes = || BASE64.decode(piece).map_err(|_| wrong());
        let mut out = io::stdout().lock();
        match self {
            Sink::Terminal => out.write_all(shown(piece).as_bytes())?,
            Sink::Output => out.write_all(&bytes()?)?,
            Sink::File(_, Some(file)) => return file.write_all(&bytes()?),
            Sink::File(_, None) => {}
        }
        out.flush()
    }
}

/// Shows packets until there are enough of them, a signal comes, or nobody reads.
pub(super) fn run(daemon: &RunningDaemon, options: &TapOptions) -> Result<(), Error> {
    let (sink, format) = match &options.write {
        Some(path) if path == Path::new("-") => (Sink::Output, "pcapng"),
        Some(path) => (Sink::File(path.clone(), None), "pcapng"),
        None if daemon.json => (Sink::Terminal, "json"),
        None => (Sink::Terminal, "text"),
    };
    if matches!(sink, Sink::Output) && io::stdout().is_terminal() {
        return Err(Error::CaptureOnTerminal);
    }
    let mut arguments = vec![format!("--format={format}")];
    arguments.extend(options.arguments());
    show(daemon, &arguments, sink)
}

/// The same, as a capture file that Wireshark reads through a pipe.
pub(super) fn capture(daemon: &RunningDaemon, arguments: &[String], pipe: PathBuf) -> Result<(), Error> {
    // Wireshark waits until the pipe is opened, also where nothing will come.
    let file = File::options().write(true).open(&pipe)?;
    show(daemon, arguments, Sink::File(pipe, Some(file)))
}

fn show(daemon: &RunningDaemon, arguments: &[String], mut sink: Sink) -> Result<(), Error> {
    let mut client = Client::connect(&daemon.socket()?)?;
    end_by_signal(client.handle()?)?;
    let mut connection = Some(client.handle()?);
    let mut failed = None;
    let end = client.stream("weir/tap", arguments, |piece| {
        let begun = connection.take().map_or(Ok(()), |connection| {
            eprintln!("weir: looking at packets; Ctrl-C ends it");
            end_without_reader(sink.open()?, connection)
        });
        failed = begun.and_then(|()| sink.write(piece)).err();
        failed.is_none()
    })?;
    match failed {
        // A reader that has seen enough is no failure.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Some(source) => {
            return Err(match sink {
                Sink::File(file, _) => Error::CaptureFile { file, source },
                Sink::Terminal | Sink::Output => source.into(),
            });
        }
        None => eprint!("weir: {}", end.unwrap_or_default()),
    }
    Ok(())
}

/// Has the daemon told that it is enough when nobody reads any more what is written: the next packet, at which that would be found out, may be
/// long in coming. A file is always read.
fn end_without_reader(output: OwnedFd, connection: UnixStream) -> io::Result<()> {
    let wait = move || {
        let events = &mut [PollFd::new(&output, PollFlags::empty())];
        while poll(events, None) == Err(rustix::io::Errno::INTR) {}
        // Where the connection has ended already, so does the program.
        let _ = connection.shutdown(Shutdown::Write);
    };
    std::thread::Builder::new().name("reader".into()).spawn(wait).map(drop)
}

/// Has the first signal tell the daemon that it is enough; what there is by then still comes. A second one, or a daemon that does not end, ends
/// the program.
fn end_by_signal(connection: UnixStream) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _within = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let wait = async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        // Where the connection has ended already, so does the program.
        let _ = connection.shutdown(Shutdown::Write);
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = tokio::time::sleep(LAST_WORDS) => {}
        }
        std::process::exit(INTERRUPTED);
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || runtime.block_on(wait)).map(drop)
}
