//! The path of a port's socket: found wrong before librte_vhost is asked, which would only log it.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest path of a Unix socket, in bytes (`sun_path` without its terminating zero).
const MAX_PATH: usize = 107;

/// Whether a path can be that of a socket.
pub fn check(path: &Path) -> Result<(), String> {
    let length = path.as_os_str().len();
    match () {
        () if length == 0 => Err("the path of the socket is empty".into()),
        () if length > MAX_PATH => Err(format!(
            "the path of the socket has {length} bytes; at most {MAX_PATH} are possible: {}",
            path.display()
        )),
        () if !path.is_absolute() => Err(format!("the path of the socket should begin with /: {}", path.display())),
        () => Ok(()),
    }
}

/// Makes way for a socket that is to be made: one that nobody serves any more is removed.
pub fn make_way(path: &Path) -> Result<(), String> {
    let at = path.display();
    if let Some(directory) = path.parent()
        && !directory.is_dir()
    {
        return Err(format!("the directory {} of the socket does not exist", directory.display()));
    }
    let kind = match std::fs::symlink_metadata(path) {
        Ok(facts) => facts.file_type(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(format!("{at}: {e}")),
    };
    if !kind.is_socket() {
        return Err(format!("{at} exists and is no socket; remove it"));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| format!("the old socket {at} cannot be removed: {e}"))
        }
        Ok(_) => Err(format!("the socket {at} is in use by another process")),
        Err(e) => Err(format!("the socket {at} is there, and cannot be looked at: {e}")),
    }
}

/// Why a socket that exists cannot be connected to, as far as that can be seen without doing so.
pub fn unreachable(path: &Path) -> Option<String> {
    use rustix::fs::{Access, access};
    match access(path, Access::READ_OK | Access::WRITE_OK) {
        Err(rustix::io::Errno::ACCESS) => {
            Some(format!("no permission for the socket {}; let this user read and write it", path.display()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn paths_that_cannot_be() {
        assert!(check(Path::new("")).unwrap_err().contains("empty"));
        assert!(check(Path::new("a/b")).unwrap_err().contains("begin with /"));
        let long = format!("/{}", "x".repeat(107));
        assert!(check(Path::new(&long)).unwrap_err().contains("has 108 bytes; at most 107"));
        assert_eq!(check(Path::new(&long[..107])), Ok(()));
    }

    #[test]
    fn a_socket_that_nobody_serves_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        assert_eq!(make_way(&path), Ok(()));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(make_way(&path).unwrap_err().contains("in use"), "somebody listens");
        drop(listener);
        assert_eq!(make_way(&path), Ok(()));
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        assert!(make_way(&path).unwrap_err().contains("is no socket"));
        assert!(make_way(&path.join("x/y")).unwrap_err().contains("does not exist"));
    }
}
