//! Small wrappers over system calls that several backends use.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::event::{EventfdFlags, eventfd};

use crate::Error;

/// A descriptor that is readable while there is something to do. Any thread may raise it; one
/// thread lowers it.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
    raised: AtomicBool,
}

impl Doorbell {
    pub fn new(port: &str) -> Result<Doorbell, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system(port, "make an event descriptor", e.into()))?;
        Ok(Doorbell { fd, raised: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable. Costs a system call only when it was not.
    pub fn raise(&self) {
        if !self.raised.swap(true, SeqCst) {
            // Cannot fail: the counter is at most 1 and the descriptor is ours.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable, unless `pending` finds more to do afterwards: what arrived
    /// between the caller's last look and this call is not forgotten.
    pub fn lower(&self, pending: impl Fn() -> bool) {
        if self.raised.load(SeqCst) {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
            self.raised.store(false, SeqCst);
            if pending() {
                self.raise();
            }
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An error of a system call, with a hint where a common cause is known.
pub fn system(port: &str, what: impl Into<String>, source: std::io::Error) -> Error {
    let hint = match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Some("run as root or with CAP_NET_ADMIN and CAP_NET_RAW"),
        Some(libc::EMFILE) => {
            Some("raise the hard limit on open files (LimitNOFILE= in a systemd unit, or ulimit -Hn)")
        }
        _ => None,
    };
    Error::System { port: port.into(), what: what.into(), source, hint }
}
