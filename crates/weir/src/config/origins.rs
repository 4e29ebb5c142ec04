//! Where in its source each part of a configuration stands, for errors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::desired::Desired;
use super::error::ConfigError;

/// A configuration and where its parts stand in the file.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The state that the file wants.
    pub desired: Desired,
    /// Where it says so.
    pub origins: Origins,
}

/// Where the keys of a configuration stand.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    file: PathBuf,
    lines: HashMap<String, usize>,
}

impl Origins {
    /// Those of a file: the lines of its keys.
    pub fn new(file: &Path, lines: HashMap<String, usize>) -> Origins {
        Origins { file: file.into(), lines }
    }

    /// Those of a source that has no lines, a database say.
    pub fn named(name: &str) -> Origins {
        Origins { file: name.into(), lines: HashMap::new() }
    }

    /// Whether they are in a file that somebody wrote, rather than in a database.
    pub fn are_in_file(&self) -> bool {
        !self.lines.is_empty()
    }

    /// An error about a key that was read without one: a port that cannot be opened, say.
    pub fn error(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        let line = self.lines.get(key).copied();
        ConfigError { file: self.file.clone(), line, key: key.into(), problem: problem.into() }
    }
}

/// The key under which the origin of a port is noted.
pub fn port_key(bridge: &str, port: &str) -> String {
    format!("bridge.{bridge}.port.{port}")
}
