//! DPDK's messages in the program's log, under the name that OVS has for them.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What is being tried, where somebody wants to know what DPDK says about it.
static LISTENER: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Whether what DPDK says is left out.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// One attempt at a time is listened to, or hushed.
static TURN: Mutex<()> = Mutex::new(());

/// Has DPDK log here from now on.
pub fn redirect() {
    // SAFETY: `write` accepts what the shim calls it with, from any thread.
    if unsafe { dpdk_sys::weir_log_to(write) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::error!(target: "dpdk", "cannot redirect DPDK's log: {error}");
    }
}

/// Runs `attempt`, and returns too the warnings and errors that DPDK logged meanwhile.
pub fn listen<R>(attempt: impl FnOnce() -> R) -> (R, Vec<String>) {
    let _turn = TURN.lock();
    *LISTENER.lock() = Some(Vec::new());
    let result = attempt();
    (result, LISTENER.lock().take().unwrap_or_default())
}

/// Runs `attempt`, whose failure is to be expected, without a word in the log.
pub fn hush<R>(attempt: impl FnOnce() -> R) -> R {
    let _turn = TURN.lock();
    HUSHED.store(true, Ordering::Relaxed);
    let result = attempt();
    HUSHED.store(false, Ordering::Relaxed);
    result
}

/// Which of DPDK's complaints says most: the first, which is about the cause, but for those that only say
/// that something failed.
pub fn cause(complaints: &[String]) -> Option<&str> {
    let says_nothing = |line: &str| {
        line.starts_with("EAL: Failed to attach")
            || line.starts_with("EAL: Driver cannot attach")
            || line.starts_with("EAL: failed to parse device")
            || line.starts_with("Port") && line.contains("dev_configure")
    };
    complaints.iter().map(String::as_str).find(|line| !says_nothing(line))
}

/// Takes one message.
///
/// # Safety
/// `length` bytes from `text` can be read.
unsafe extern "C" fn write(level: u32, text: *const c_char, length: usize) {
    // SAFETY: `length` bytes from `text` can be read (contract of this function).
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let text = String::from_utf8_lossy(text);
    // A panic must not reach C.
    let _ = std::panic::catch_unwind(|| {
        text.lines().map(str::trim_end).filter(|l| !l.is_empty()).for_each(|l| log(level, l))
    });
}

fn log(level: u32, line: &str) {
    if HUSHED.load(Ordering::Relaxed) {
        return;
    }
    match level {
        dpdk_sys::RTE_LOG_DEBUG.. => tracing::debug!(target: "dpdk", "{line}"),
        dpdk_sys::RTE_LOG_NOTICE..=dpdk_sys::RTE_LOG_INFO => tracing::info!(target: "dpdk", "{line}"),
        dpdk_sys::RTE_LOG_WARNING => tracing::warn!(target: "dpdk", "{line}"),
        _ => tracing::error!(target: "dpdk", "{line}"),
    }
    if level <= dpdk_sys::RTE_LOG_WARNING
        && let Some(lines) = LISTENER.lock().as_mut()
    {
        lines.push(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_come_before_what_follows_from_them() {
        let lines =
            ["EAL: Driver cannot attach the device (net_x)", "f(): no such file", "EAL: Failed to attach device"];
        assert_eq!(cause(&lines.map(String::from)), Some("f(): no such file"));
        assert_eq!(cause(&lines.map(String::from)[..1]), None);
    }
}
