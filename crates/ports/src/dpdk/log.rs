//! DPDK's messages in the program's log, under the name that OVS has for them.

#![allow(unsafe_code)]

use std::ffi::c_char;

use parking_lot::Mutex;

/// What is being tried, where somebody wants to know what DPDK says about it.
static LISTENER: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// One attempt at a time is listened to.
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

/// Takes one message.
///
/// # Safety
/// `length` bytes from `text` can be read.
unsafe extern "C" fn write(level: u32, text: *const c_char, length: usize) {
    // SAFETY: by this function's contract.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let text = String::from_utf8_lossy(text);
    // A panic must not reach C.
    let _ = std::panic::catch_unwind(|| {
        text.lines().map(str::trim_end).filter(|l| !l.is_empty()).for_each(|l| log(level, l))
    });
}

fn log(level: u32, line: &str) {
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
