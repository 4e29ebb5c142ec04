//! A panic in any thread is reported, and ends the daemon as SIGTERM would: a switch with a dead worker seems to run
//! and forwards nothing, while a service manager restarts a process that has ended.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

static PANICKED: AtomicBool = AtomicBool::new(false);
static NOTIFY: LazyLock<Notify> = LazyLock::new(Notify::new);

/// From now on, reports panics and remembers that there was one.
pub fn report() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let backtrace = std::backtrace::Backtrace::force_capture();
        let name = thread.name().unwrap_or("without a name");
        tracing::error!(lines = %backtrace, "thread {name:?} panicked: {info}");
        PANICKED.store(true, Ordering::SeqCst);
        NOTIFY.notify_one();
    }));
}

/// Returns when there was a panic.
pub async fn happened() {
    while !PANICKED.load(Ordering::SeqCst) {
        NOTIFY.notified().await;
    }
}
