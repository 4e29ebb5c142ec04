//! What tests need of the machine. Where it is missing, the test fails, and says what would help: a test that returns
//! instead passes without having tested anything.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What installs everything that tests need.
const SETUP: &str = "run scripts/setup.sh test";

/// Panics unless each of these programs is installed.
#[track_caller]
pub fn tools(names: &[&str]) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &&&str| {
        // Daemons of Debian are where the path of a user does not lead.
        std::env::split_paths(&path).chain([Path::new("/usr/sbin").to_owned()]).any(|dir| dir.join(name).exists())
    };
    let missing: Vec<_> = names.iter().filter(|name| !found(name)).collect();
    assert!(missing.is_empty(), "{missing:?} not installed; {SETUP}");
}

/// Panics unless this file, which a package has, is there.
#[track_caller]
pub fn file(path: &str) {
    assert!(Path::new(path).exists(), "{path} is not there; {SETUP}");
}

/// Panics unless this process belongs to root, who may make network namespaces.
#[track_caller]
pub fn root() {
    let owner = std::fs::metadata("/proc/self").expect("/proc is mounted").uid();
    assert_eq!(owner, 0, "this test makes network namespaces: run it as root");
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_there_is_found() {
        super::tools(&["sh", "ls"]);
        super::file("/bin/sh");
    }

    #[test]
    #[should_panic(expected = "[\"no-such-tool\"] not installed; run scripts/setup.sh test")]
    fn a_missing_tool_fails() {
        super::tools(&["sh", "no-such-tool"]);
    }

    #[test]
    #[should_panic(expected = "/no/such/file is not there; run scripts/setup.sh test")]
    fn a_missing_file_fails() {
        super::file("/no/such/file");
    }
}
