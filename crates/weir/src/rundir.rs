//! The run directory: sockets and pidfiles, where OVS's tools look for them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};

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
        // Whatever else bears its name may never end, or keep who reads it.
        let read = ports::files::read_regular(&path, MAX_PIDFILE);
        let bytes = read.map_err(|source| Error::NoPidfile { path: path.clone(), source })?;
        match std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()) {
            Some(pid) => Ok(self.control_socket(program, pid)),
            None => Err(Error::BadPidfile { path }),
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
    /// Something else has the pidfile's name.
    #[error("{}: exists and is no pidfile; remove it, or choose another place", path.display())]
    ForeignFile {
        /// The file.
        path: PathBuf,
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
///
/// It is written under another name and linked to its own, so that no process sees it without its number and its
/// lock, and no other file is written to.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    /// Closing any descriptor of the file would give up the lock, so this is the only one.
    file: File,
}

/// The longest that a pidfile can be: the digits of a number and a line feed.
const MAX_PIDFILE: u64 = 21;

/// How long a process that was killed may take to give back its memory, and its lock after that.
const LONGEST_END: Duration = Duration::from_secs(10);

impl Pidfile {
    /// Writes the pidfile of `program`, unless a living process holds one.
    pub fn create(rundir: &Rundir, program: &str) -> Result<Pidfile, Error> {
        Pidfile::create_at(&rundir.file(&format!("{program}.pid")), false)
    }

    /// Writes the pidfile at `path`. With `overwrite`, one that a living process holds is replaced by a new
    /// file, and the other keeps a file without a name. Of a process that has ended but for its files, the end is
    /// waited for.
    ///
    /// # Errors
    /// A living process holds it, something is there that is no pidfile, or what the system says.
    pub fn create_at(path: &Path, overwrite: bool) -> Result<Pidfile, Error> {
        let io = |source| Error::Io { path: path.into(), source };
        let (file, draft) = Draft::write(path).map_err(io)?;
        let began = Instant::now();
        loop {
            match std::fs::hard_link(&draft.0, path) {
                Ok(()) => break,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io(e)),
            }
            let Some(old) = open_pidfile(path)? else { continue };
            let is_stale = fcntl_lock(&old, FlockOperation::NonBlockingLockExclusive).is_ok();
            if !is_stale && !overwrite {
                let mut holder = String::new();
                let _ = old.take(MAX_PIDFILE).read_to_string(&mut holder);
                if is_ending(holder.trim()) && began.elapsed() < LONGEST_END {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                return Err(Error::Running { path: path.into(), holder });
            }
            // Another process may have taken the place of the one that was looked at.
            if is_named(&old, path) {
                std::fs::rename(&draft.0, path).map_err(io)?;
                break;
            }
        }
        Ok(Pidfile { path: path.into(), file })
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        if is_named(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A name beside the pidfile's, which goes away.
struct Draft(PathBuf);

impl Draft {
    /// Writes this process's number to a new file, and locks it.
    fn write(path: &Path) -> io::Result<(File, Draft)> {
        let pid = std::process::id();
        let mut options = OpenOptions::new();
        // Never through a link, nor to a file of another process.
        options.write(true).create_new(true).mode(0o666);
        let name = |n: u32| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".tmp{pid}.{n}"));
            PathBuf::from(name)
        };
        let mut made = Err(io::ErrorKind::AlreadyExists.into());
        for name in (0..100).map(name) {
            made = options.open(&name).map(|file| (file, Draft(name)));
            if !matches!(&made, Err(e) if e.kind() == io::ErrorKind::AlreadyExists) {
                break;
            }
        }
        let (mut file, draft) = made?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(format!("{pid}\n").as_bytes())?;
        Ok((file, draft))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens what is there under a pidfile's name, if it can be one: it may be taken away then. `None` where
/// nothing is there any more.
fn open_pidfile(path: &Path) -> Result<Option<File>, Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(io(e)),
        // A link, a directory, a socket, a FIFO that nobody reads.
        Err(_) => return Err(Error::ForeignFile { path: path.into() }),
    };
    let is_short = file.metadata().is_ok_and(|facts| facts.is_file() && facts.len() <= MAX_PIDFILE);
    // Read at an offset, so that the file's position stays at the beginning for the caller.
    let mut bytes = [0; MAX_PIDFILE as usize];
    let read = if is_short { file.read_at(&mut bytes, 0).unwrap_or(0) } else { 0 };
    match is_short && bytes[..read].iter().all(|b| b.is_ascii_digit() || b.is_ascii_whitespace()) {
        true => Ok(Some(file)),
        false => Err(Error::ForeignFile { path: path.into() }),
    }
}

/// Whether the first thread of this process has ended: its others are about to, and the kernel gives back the process's
/// memory before its files.
fn is_ending(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, can hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Whether this file is the one of this name.
fn is_named(file: &File, path: &Path) -> bool {
    let of_file = rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    of_file.is_some() && of_file == ports::files::identity(path)
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
        // What never ends, and what keeps who opens it.
        std::fs::remove_file(rundir.file("weir.pid")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", rundir.file("weir.pid")).unwrap();
        assert!(matches!(rundir.running_control_socket("weir"), Err(Error::NoPidfile { .. })));
        std::fs::remove_file(rundir.file("weir.pid")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, rundir.file("weir.pid"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(rundir.running_control_socket("weir"), Err(Error::NoPidfile { .. })));
    }

    #[test]
    fn a_pidfile_replaces_nothing_but_a_stale_pidfile() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("p.pid"), dir.path().join("precious"));
        std::fs::write(&precious, "12\n").unwrap();
        let places: [fn(&Path, &Path); 5] = [
            |path, _| std::fs::write(path, "root:x:0:0\n").unwrap(),
            |path, _| std::fs::write(path, "1".repeat(22)).unwrap(),
            |path, precious| std::os::unix::fs::symlink(precious, path).unwrap(),
            |path, _| std::fs::create_dir(path).unwrap(),
            |path, _| {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            },
        ];
        for (n, make) in places.into_iter().enumerate() {
            make(&path, &precious);
            let before = (ports::files::identity(&path), std::fs::symlink_metadata(&path).unwrap().len());
            for overwrite in [false, true] {
                let refused = Pidfile::create_at(&path, overwrite);
                assert!(matches!(refused, Err(Error::ForeignFile { .. })), "{n}: {refused:?}");
            }
            assert_eq!((ports::files::identity(&path), std::fs::symlink_metadata(&path).unwrap().len()), before, "{n}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "{n}: nothing else is left");
            if path.is_dir() { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
        }
        for stale in ["", "12\n"] {
            std::fs::write(&path, stale).unwrap();
            let pidfile = Pidfile::create_at(&path, false).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
            // The process that replaces it keeps what is there.
            std::fs::rename(&precious, &path).unwrap();
            drop(pidfile);
            std::fs::rename(&path, &precious).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "12\n");
    }
}
