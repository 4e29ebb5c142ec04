//! The end of the process takes only so long.

use std::time::Duration;

/// How long the end may take before the process is ended the hard way.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Ends the process when the end takes too long. Without a thread for that, the end takes as long as it takes.
pub fn bound() {
    let watch = std::thread::Builder::new().name("end".into()).spawn(|| {
        std::thread::sleep(TIMEOUT);
        tracing::error!("the end takes too long; a thread hangs");
        std::process::exit(1);
    });
    if let Err(e) = watch {
        tracing::warn!("cannot start a thread that watches the end: {e}");
    }
}
