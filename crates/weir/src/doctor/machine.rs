//! Where the facts come from.

use std::path::{Path, PathBuf};

/// A machine, as its files tell about it.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine whose file system begins at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Machine {
        Machine { root: root.into() }
    }

    /// A path of the machine, absolute or from its root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether something is there.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text without blanks at its ends; `None` where it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none where it cannot be read.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last part of what a symbolic link names.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Path::new(&target).file_name()?.to_str().map(str::to_owned)
    }

    /// The value of `name` in a file of lines `name: value`.
    pub fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.read(path)?;
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    }

    /// Soft limit of this process, by the name that `/proc/self/limits` has for it. `None`: unlimited, or
    /// not known.
    pub fn soft_limit(&self, name: &str) -> Option<u64> {
        self.limit(name, 0)
    }

    /// The same of its hard limit.
    pub fn hard_limit(&self, name: &str) -> Option<u64> {
        self.limit(name, 1)
    }

    fn limit(&self, name: &str, column: usize) -> Option<u64> {
        let text = self.read("/proc/self/limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(column)?.parse().ok()
    }

    /// A list of processors or nodes as the kernel writes them: "0-3,8".
    pub fn cpu_list(&self, path: &str) -> Vec<u32> {
        let text = self.read(path).unwrap_or_default();
        let ranges = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        });
        ranges.flatten().collect()
    }
}
