//! The run directory: sockets and pidfiles, where OVS's tools look for them.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};

/// Where Debian's tools look unless OVS_RUNDIR says otherwise.
const DEFAULT: &str = "/var/run/openvswitch";

/// A run directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rundir(PathBuf);

impl Rundir {
    /// The directory of this name, or of the environment, or the default.
    pub fn choose(option: Option<PathBuf>) -> Rundir {
        let environment = || std::env::var_os("OVS_RUNDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        Rundir(option.or_else(environment).unwrap_or_else(|| DEFAULT.into()))
    }

    /// Makes the directory where it is missing.
    pub fn create(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The control socket of a program's process (ovs-appctl(8)).
    pub fn control_socket(&self, program: &str, pid: u32) -> PathBuf {
        self.file(&format!("{program}.{pid}.ctl"))
    }

    /// The control socket of the process that the program's pidfile names.
    pub fn running_control_socket(&self, program: &str) -> Result<PathBuf, Error> {
        let path = self.file(&format!("{program}.pid"));
        let text = std::fs::read_to_string(&path).map_err(|source| Error::NoPidfile { path: path.clone(), source })?;
        match text.trim().parse() {
            Ok(pid) => Ok(self.control_socket(program, pid)),
            Err(_) => Err(Error::BadPidfile { path }),
        }
    }
}

/// Why a daemon cannot be found, or cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No pidfile.
    #[error(
        "{}: {source}; is the daemon running? (start it with \"weir run CONFIG\", or say where with --rundir)",
        path.display()
    )]
    NoPidfile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The pidfile holds something else.
    #[error("{}: not a pidfile: it does not hold a number", path.display())]
    BadPidfile {
        /// The file.
        path: PathBuf,
    },
    /// Another process holds the pidfile.
    #[error("{}: already running, as process {}; end it first, or choose another --rundir", path.display(), holder.trim())]
    Running {
        /// The file.
        path: PathBuf,
        /// What the file holds: the other's pid.
        holder: String,
    },
    /// The file system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// A pidfile, held by a lock for as long as the process lives: OVS's tools take a pidfile without a
/// lock for a stale one. Dropping it removes the file.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    /// Closing any descriptor of the file would give up the lock, so this is the only one.
    _file: std::fs::File,
}

impl Pidfile {
    /// Writes the pidfile of `program`, unless a living process holds one.
    pub fn create(rundir: &Rundir, program: &str) -> Result<Pidfile, Error> {
        Pidfile::create_at(&rundir.file(&format!("{program}.pid")), false)
    }

    /// Writes the pidfile at `path`. With `overwrite`, one that a living process holds is replaced by a new
    /// file, and the other keeps a file without a name.
    pub fn create_at(path: &Path, overwrite: bool) -> Result<Pidfile, Error> {
        let path = path.to_path_buf();
        let io = |source| Error::Io { path: path.clone(), source };
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        let mut locked = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if !locked && overwrite {
            std::fs::remove_file(&path).map_err(io)?;
            file = options.create_new(true).open(&path).map_err(io)?;
            locked = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        }
        if !locked {
            let holder = io::read_to_string(&file).unwrap_or_default();
            return Err(Error::Running { path, holder });
        }
        // Written before it is cut: a reader never finds a file that was there empty.
        let text = format!("{}\n", std::process::id());
        file.write_all(text.as_bytes()).and_then(|()| file.set_len(text.len() as u64)).map_err(io)?;
        Ok(Pidfile { path, _file: file })
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pidfile_leads_to_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let rundir = Rundir::choose(Some(dir.path().join("sub/run")));
        rundir.create().unwrap();
        assert!(matches!(rundir.running_control_socket("weir"), Err(Error::NoPidfile { .. })));
        let pidfile = Pidfile::create(&rundir, "weir").unwrap();
        let socket = rundir.running_control_socket("weir").unwrap();
        assert_eq!(socket, rundir.file(&format!("weir.{}.ctl", std::process::id())));
        drop(pidfile);
        assert!(!rundir.file("weir.pid").exists());
        std::fs::write(rundir.file("weir.pid"), "nonsense").unwrap();
        assert!(matches!(rundir.running_control_socket("weir"), Err(Error::BadPidfile { .. })));
    }
}
