//! Going to the background.
//!
//! The daemon is started again as a process of its own instead of forked: what it inherits is a pipe as
//! standard output, on which it says that the configuration is in force, and nothing of memory, locks or
//! threads. The first process waits for that word and ends.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Says in the environment of a process what it is: one in the background, or one that is monitored.
const BACKGROUND: &str = "WEIR_DETACHED";
const MONITORED: &str = "WEIR_MONITORED";

/// The word on the pipe. Libraries print there too, what is wrong with their options say: it is one that
/// nobody else says.
const READY: &[u8] = b"\0weir is ready\0";

/// Exit status after an internal error (`EX_SOFTWARE` of sysexits.h): the monitor starts another process.
pub const INTERNAL_ERROR: u8 = 70;

/// Shortest time between two starts of a process that crashes again and again.
const MIN_LIFE: Duration = Duration::from_secs(10);

/// True in the process in the background.
pub fn is_background() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// True in the process that a monitor watches.
pub fn is_monitored() -> bool {
    std::env::var_os(MONITORED).is_some()
}

/// This program again, as a process that is told what it is.
fn spawn(mark: &str) -> io::Result<Child> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "weir".into());
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(arguments).env(mark, "1").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// Waits until a process says that it is ready. False if it ended before.
fn is_ready(child: &mut Child) -> bool {
    let Some(mut pipe) = child.stdout.take() else { return false };
    let (mut said, mut part) = (Vec::new(), [0; 512]);
    loop {
        match pipe.read(&mut part) {
            Ok(0) => return false,
            Ok(count) => said.extend_from_slice(&part[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
        if said.windows(READY.len()).any(|window| window == READY) {
            return true;
        }
        // As much as may be the beginning of the word is kept.
        said.drain(..said.len().saturating_sub(READY.len()));
    }
}

/// The exit status of a process that failed, as this one's.
fn failure(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code != 0).unwrap_or(1))
}

/// Starts the process in the background and waits until it is ready. Its exit status, where it ends
/// before that, is this one's.
pub fn start() -> io::Result<ExitCode> {
    let mut child = spawn(BACKGROUND)?;
    if is_ready(&mut child) { Ok(ExitCode::SUCCESS) } else { Ok(failure(child.wait()?)) }
}

/// Runs the daemon as a process of its own, and starts it again when it crashes (`--monitor`). Returns
/// when it has ended in good order. `background`: somebody waits for the word.
pub fn monitor(background: bool) -> io::Result<ExitCode> {
    leave_session();
    let mut first = true;
    loop {
        let started = Instant::now();
        let mut child = spawn(MONITORED)?;
        if !is_ready(&mut child) && first {
            return Ok(failure(child.wait()?));
        }
        if first && background {
            ready();
            leave_terminal()?;
        }
        first = false;
        let status = child.wait()?;
        if !crashed(status) {
            return Ok(if status.success() { ExitCode::SUCCESS } else { failure(status) });
        }
        std::thread::sleep(MIN_LIFE.saturating_sub(started.elapsed()));
    }
}

/// Whether a process ended by its own fault, rather than because somebody wanted so.
fn crashed(status: ExitStatus) -> bool {
    let by_signal = status.signal().is_some_and(|signal| {
        [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGXCPU, libc::SIGXFSZ]
            .contains(&signal)
    });
    by_signal || status.code() == Some(INTERNAL_ERROR.into())
}

/// Leaves the session of the terminal. Called once, early, in the background.
pub fn leave_session() {
    // Already its leader: nothing to leave.
    let _ = rustix::process::setsid();
}

/// Tells whoever started this process that all is well.
pub fn ready() {
    let mut out = io::stdout().lock();
    // Nobody may wait any more: after a crash, say.
    let _ = out.write_all(READY).and_then(|()| out.flush());
}

/// Lets go of the terminal.
pub fn leave_terminal() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}
