//! The path of a port's socket: found wrong before librte_vhost is asked, which would only log it.

use std::path::Path;

use crate::files;

/// Whether a path can be that of a socket.
pub fn check(path: &Path) -> Result<(), String> {
    files::check_socket_path(path).map_err(|e| format!("{}: {e}", path.display()))?;
    match path.is_absolute() {
        true => Ok(()),
        false => Err(format!("the path of the socket should begin with /: {}", path.display())),
    }
}

/// Makes way for a socket that is to be made: one that nobody serves any more is removed.
pub fn make_way(path: &Path) -> Result<(), String> {
    files::make_way(path).map_err(|e| format!("{}: {e}", path.display()))
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
        assert!(make_way(&path.join("x/y")).unwrap_err().contains("directory"));
    }
}
