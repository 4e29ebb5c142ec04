//! `weir diff`: what changes of flows would do.

use std::path::Path;

use super::{Error, RunningDaemon, shown};
use crate::unixctl::Client;
use crate::whatif::report::Diff;
use crate::whatif::text::text;

/// Asks, prints the answer, and says by its error whether anything would change.
pub(super) fn run(
    daemon: &RunningDaemon,
    mut arguments: Vec<String>,
    files: [(&str, Option<&Path>); 2],
) -> Result<(), Error> {
    for (option, file) in files.into_iter().filter_map(|(option, file)| Some((option, file?))) {
        // The daemon, which reads the file, has another working directory.
        let path = std::path::absolute(file)?;
        let path = path.to_str().ok_or_else(|| Error::NotUtf8(file.to_path_buf()))?;
        arguments.push(format!("{option}={path}"));
    }
    // It may take longer than commands usually do.
    let answer = Client::connect(&daemon.socket()?)?.stream("weir/diff", &arguments, |_| true)?;
    let diff: Diff = daemon.show(&answer.unwrap_or_default(), |diff| shown(&text(diff)).into_owned())?;
    if diff.is_difference() { Err(Error::Differs) } else { Ok(()) }
}
