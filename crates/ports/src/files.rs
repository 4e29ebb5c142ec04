//! Files and Unix sockets whose names come from outside: a database, a command line, a configuration.
//!
//! Whoever names a file must not be able to destroy another one by it, nor to make the caller wait. So a
//! socket comes where nothing is, or where a socket is that nobody serves; a capture comes where nothing is, or
//! another capture. Neither goes through a symbolic link, and only the socket that was made here is removed.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The longest path of a Unix socket, in bytes (`sun_path` without its terminating zero, unix(7)).
pub const MAX_SOCKET_PATH: usize = 107;

/// Connections that wait to be accepted, if the system allows so many: for those above it, connecting fails.
const BACKLOG: i32 = 4096;

/// The file of a socket that this process has made. Dropping it removes the file, unless something else is
/// there by then.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<Identity>,
}

/// Device and inode.
type Identity = (u64, u64);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a name stands for, a symbolic link for itself.
pub fn identity(path: &Path) -> Option<Identity> {
    rustix::fs::lstat(path).ok().map(|stat| of_stat(&stat))
}

fn of_stat(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// Listens on a Unix socket at `path`, which the owner and, as far as the umask allows, the group may use, as
/// with OVS's sockets. The listener does not block.
///
/// # Errors
/// A name that cannot be a socket's, a socket that somebody serves, anything there that is no socket, and
/// whatever the system says.
pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    check_socket_path(path)?;
    make_way(path)?;
    let (fd, address) = socket(path)?;
    // On Linux this becomes the file's mode, so that the file is never there with another one.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o770))?;
    rustix::net::bind(&fd, &address)?;
    let file = SocketFile { path: path.into(), identity: identity(path) };
    rustix::net::listen(&fd, BACKLOG)?;
    Ok((fd.into(), file))
}

/// Connects to a Unix socket, without waiting for one whose queue is full. The stream blocks.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    check_socket_path(path)?;
    let (fd, address) = socket(path)?;
    rustix::net::connect(&fd, &address)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn socket(path: &Path) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok((rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, address))
}

/// Whether a path can be that of a socket.
pub fn check_socket_path(path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match bytes.len() {
        0 => Err(wrong("the path of the socket is empty")),
        _ if bytes.contains(&0) => Err(wrong("the path of the socket has a zero byte in it")),
        n if n > MAX_SOCKET_PATH => {
            Err(wrong(format!("the path of the socket has {n} bytes; at most {MAX_SOCKET_PATH} are possible")))
        }
        _ => Ok(()),
    }
}

/// Makes way for a socket that is to be made: one that nobody serves any more is removed, and nothing else.
///
/// The directory is held open between the look and the removal: whoever replaces it meanwhile does not lead
/// the removal elsewhere.
pub fn make_way(path: &Path) -> io::Result<()> {
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
        return Err(wrong("not the name of a file"));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty())
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("directory {}: {e}", parent.display())))?;
    let look = || rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
    let found = match look() {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "it exists and is no socket; remove it"));
    }
    let in_use = || io::Error::new(ErrorKind::AddrInUse, "it is in use by another process");
    match connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
        // Its queue is full.
        Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(in_use()),
        Err(e) => return Err(e),
        Ok(_) => return Err(in_use()),
    }
    if look().map(|now| of_stat(&now)) != Ok(of_stat(&found)) {
        return Err(in_use());
    }
    Ok(rustix::fs::unlinkat(&directory, name, AtFlags::empty())?)
}

/// Opens a capture file to write to, and makes it where it is missing. What is in it stays: whether it may go
/// is for the caller to see.
pub fn open_capture(path: &Path) -> io::Result<File> {
    // Without NONBLOCK, a FIFO would keep the caller until somebody reads it.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(fd) => regular(fd),
        Err(Errno::LOOP) => Err(wrong("it is a symbolic link")),
        Err(e) => Err(e.into()),
    }
}

/// Opens a regular file to read it.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    regular(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Reads a regular file of at most `limit` bytes. Anything else may never end, or keep the caller until somebody writes to it.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read(open_regular(path)?, limit)
}

/// Reads at most `limit` bytes of whatever it is: for who holds up nobody else, since a pipe keeps the caller until its other end is closed.
pub fn read_any(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read(File::open(path)?, limit)
}

fn read(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // It may grow while it is read.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(wrong(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

fn regular(fd: OwnedFd) -> io::Result<File> {
    match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
        FileType::RegularFile => Ok(fd.into()),
        _ => Err(wrong("it is not a regular file")),
    }
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what.into())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Puts something under a name.
    type Make = fn(&Path);

    /// Something hostile to be found under a name.
    const HOSTILE: [(&str, Make); 6] = [
        ("regular file", |at| std::fs::write(at, "precious").unwrap()),
        ("symbolic link", |at| {
            let to = at.with_file_name("target");
            std::fs::write(&to, "precious").unwrap();
            symlink(to, at).unwrap();
        }),
        ("dangling link", |at| symlink(at.with_file_name("nowhere"), at).unwrap()),
        ("link to a dead socket", |at| {
            let to = at.with_file_name("dead");
            drop(UnixListener::bind(&to).unwrap());
            symlink(to, at).unwrap();
        }),
        ("directory", |at| std::fs::create_dir(at).unwrap()),
        ("FIFO", |at| {
            rustix::fs::mknodat(rustix::fs::CWD, at, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        }),
    ];

    /// Every name in a directory, what it stands for, and its content.
    fn snapshot(directory: &Path) -> Vec<(PathBuf, Identity, Vec<u8>)> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let content = |path: &Path| if path.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
        let mut all: Vec<_> = entries.map(|path| (path.clone(), identity(&path).unwrap(), content(&path))).collect();
        all.sort();
        all
    }

    #[test]
    fn a_socket_replaces_nothing_but_a_dead_socket() {
        for (what, make) in HOSTILE {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            make(&path);
            let before = snapshot(dir.path());
            assert!(listen(&path).unwrap_err().to_string().contains("no socket"), "{what}");
            assert_eq!(snapshot(dir.path()), before, "{what}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let (_listener, file) = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o007, 0, "nobody else may use it");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_whose_queue_is_full_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (fd, address) = socket(&path).unwrap();
        rustix::net::bind(&fd, &address).unwrap();
        rustix::net::listen(&fd, 0).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn names_that_cannot_be_a_sockets_are_explained() {
        let long = format!("/tmp/{}", "x".repeat(103));
        for (path, says) in [
            (OsStr::new(""), "empty"),
            (OsStr::new("/"), "not the name of a file"),
            (OsStr::new("/tmp/.."), "not the name of a file"),
            (OsStr::new("/tmp/a\0b"), "zero byte"),
            (OsStr::new(&long), "has 108 bytes; at most 107"),
            (OsStr::new("/nonexistent/s"), "directory /nonexistent: No such file"),
        ] {
            let error = listen(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(says), "{path:?}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        for odd in [&b"a\nb"[..], b"\xff\xfe", b"a b", b"-"] {
            assert!(listen(&dir.path().join(OsStr::from_bytes(odd))).is_ok(), "{odd:?}");
        }
    }

    #[test]
    fn what_took_the_place_of_a_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, file) = listen(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        drop((listener, file));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_capture_is_a_regular_file() {
        for (what, make) in HOSTILE.into_iter().skip(1) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            make(&path);
            let before = snapshot(dir.path());
            assert!(open_capture(&path).is_err(), "{what}");
            assert_eq!(snapshot(dir.path()), before, "{what}");
        }
        assert!(open_regular(Path::new("/dev/zero")).is_err());
        assert!(open_regular(Path::new("/proc/self/stat")).is_ok());
    }

    #[test]
    fn only_what_ends_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, fifo) = (dir.path().join("file"), dir.path().join("fifo"));
        std::fs::write(&file, "12345").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(read_regular(&file, 5).unwrap(), b"12345");
        assert!(read_regular(&file, 4).unwrap_err().to_string().contains("more than 4 bytes"));
        for other in [fifo.as_path(), dir.path(), Path::new("/dev/zero")] {
            let error = read_regular(other, 5).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
        assert!(read_any(Path::new("/dev/zero"), 5).unwrap_err().to_string().contains("more than 5 bytes"));
        assert_eq!(read_any(Path::new("/dev/null"), 5).unwrap(), b"");
    }
}
