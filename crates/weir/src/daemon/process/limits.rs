//! What the system allows a process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. A port takes several, and the soft limit is 1024 on most
/// systems only for programs that use select(2).
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => tracing::debug!(from = limit.current, to = limit.maximum, "raised the limit of open files"),
        Err(error) => tracing::warn!("cannot raise the limit of open files: {error}"),
    }
}
