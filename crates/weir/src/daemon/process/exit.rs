//! Bounds how long the end of the process takes.

use std::time::Duration;

/// How long the end may take before the process exits without it.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Exits when the end takes too long. If there is no thread to be had for that, the end is not bounded.
pub fn bound() {
    let watch = std::thread::Builder::new().name("end".into()).spawn(|| {
        std::thread::sleep(TIMEOUT);
        tracing::error!("the end takes too long; a thread hangs");
        crate::vlog::flush();
        std::process::exit(1);
    });
    if let Err(e) = watch {
        tracing::warn!("cannot start a thread that watches the end: {e}");
    }
}
