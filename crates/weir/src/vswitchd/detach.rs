//! Going to the background.
//!
//! The daemon is started again as a process of its own instead of forked: what it inherits is a pipe as
//! standard output, on which it says that the configuration is in force, and nothing of memory, locks or
//! threads. The first process waits for that word and ends.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

/// Marks the process in the background; its value means nothing.
const MARK: &str = "WEIR_DETACHED";

/// The word on the pipe.
const READY: u8 = b'R';

/// True in the process in the background.
pub fn is_background() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the process in the background and waits until it is ready. Its exit status, where it ends
/// before that, is this one's.
pub fn start() -> io::Result<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "weir".into());
    let mut child = Command::new("/proc/self/exe")
        .arg0(name)
        .args(arguments)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut word = [0];
    let read = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read(&mut word));
    if matches!(read, Ok(1)) && word[0] == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    Ok(ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).filter(|&c| c != 0).unwrap_or(1)))
}

/// Leaves the session of the terminal. Called once, early, in the background.
pub fn leave_session() {
    // Already its leader: nothing to leave.
    let _ = rustix::process::setsid();
}

/// Tells the first process that all is well, and lets go of the terminal.
pub fn ready() -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&[READY])?;
    out.flush()?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}
