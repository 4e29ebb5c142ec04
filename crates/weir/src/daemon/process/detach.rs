//! Going to the background.
//!
//! The daemon is started again as a new process instead of forked, so it inherits no memory, locks or threads. Its
//! standard output is a pipe, on which it says that the configuration is in force. The first process waits for that
//! message and ends.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Environment variables that tell a process that it is the one in the background, or that it is monitored.
const BACKGROUND: &str = "WEIR_DETACHED";
const MONITORED: &str = "WEIR_MONITORED";

/// The message on the pipe. Libraries print to standard output, too, so it is one that they never print.
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

/// Starts this program again, with an environment variable set.
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
        // The end of what was read may be the beginning of the message.
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
/// when it has ended without a crash. `background`: another process waits for the message.
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

/// Whether a process crashed, rather than being told to end.
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

/// Tells the process that started this one that the configuration is in force.
pub fn ready() {
    let mut out = io::stdout().lock();
    // After a crash, for example, no process waits any more.
    let _ = out.write_all(READY).and_then(|()| out.flush());
}

/// Replaces the terminal by /dev/null.
pub fn leave_terminal() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}
