//! What the control socket asks of DPDK, in DPDK's own words.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char};

use dpdk_sys as sys;

use super::{device, mempool, state};

/// DPDK's threads: `dpdk/lcore-list`.
pub fn lcore_list() -> Result<String, String> {
    // SAFETY: `written` calls this only while EAL is initialised, with a stream that is open.
    written(|stream| unsafe { sys::rte_lcore_dump(stream) })
}

/// DPDK's log levels: `dpdk/log-list`.
pub fn log_list() -> Result<String, String> {
    // SAFETY: `written` calls this only while EAL is initialised, with a stream that is open.
    written(|stream| unsafe { sys::rte_log_dump(stream) })
}

/// DPDK's heaps: `dpdk/get-malloc-stats`.
pub fn malloc_stats() -> Result<String, String> {
    // SAFETY: `written` calls this only while EAL is initialised, with a stream that is open; a null pointer
    // stands for all types.
    written(|stream| unsafe { sys::rte_malloc_dump_stats(stream, std::ptr::null()) })
}

/// All mempools, or that of one port: `netdev-dpdk/get-mempool-info`.
pub fn mempool_info(port: Option<&str>) -> Result<String, String> {
    let Some(port) = port else {
        // Pools come and go meanwhile only when this lets them.
        let _pools = mempool::all();
        // SAFETY: `written` calls this only while EAL is initialised, with a stream that is open, and the lock
        // keeps every pool.
        return written(|stream| unsafe { sys::rte_mempool_list_dump(stream) });
    };
    let pool = device::pool_of(port).ok_or("Not a DPDK Interface")?;
    // SAFETY: `written` calls this only while EAL is initialised, with a stream that is open; our reference
    // keeps the pool.
    let mut text = written(|stream| unsafe { sys::rte_mempool_dump(stream, pool.raw()) })?;
    let (all, free) = pool.count();
    text += &format!("    count: avail ({free}), in use ({})\n", all - free);
    Ok(text)
}

/// Has DPDK forget the device that `devargs` names, which no port may use: `netdev-dpdk/detach`.
pub fn detach(devargs: &str) -> Result<String, String> {
    ready()?;
    device::detach(devargs)
}

/// Words for DPDK's levels, from 1.
const LEVELS: [&str; 8] = ["emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"];

/// Changes DPDK's log levels, each by `LEVEL` or `PATTERN:LEVEL`; without any, everything is logged:
/// `dpdk/log-set`.
pub fn set_log(changes: &[&str]) -> Result<(), String> {
    ready()?;
    let all = ["debug"];
    for change in if changes.is_empty() { &all } else { changes } {
        let (pattern, word) = change.split_once(':').unwrap_or(("*", change));
        let level = LEVELS.iter().position(|level| level == &word);
        let level = level.ok_or_else(|| format!("invalid log level: '{word}'"))? as u32 + 1;
        let failed = || format!("cannot set log level for '{change}'");
        let pattern = CString::new(pattern).map_err(|_| failed())?;
        // SAFETY: EAL is initialised, and the pattern is a string.
        if unsafe { sys::rte_log_set_level_pattern(pattern.as_ptr(), level) } < 0 {
            return Err(failed());
        }
    }
    Ok(())
}

fn ready() -> Result<(), String> {
    state().problem().map_or(Ok(()), Err)
}

/// What a function of DPDK writes to a stream.
fn written(write: impl FnOnce(*mut sys::FILE)) -> Result<String, String> {
    ready()?;
    let (mut text, mut length): (*mut c_char, usize) = (std::ptr::null_mut(), 0);
    // SAFETY: `text` and `length` outlive the stream, and have the text when it is closed. It is ours to free.
    unsafe {
        let stream = libc::open_memstream(&mut text, &mut length);
        if stream.is_null() {
            return Err(format!("Unable to open memstream: {}.", std::io::Error::last_os_error()));
        }
        write(stream.cast());
        libc::fclose(stream);
        let copy = String::from_utf8_lossy(std::slice::from_raw_parts(text.cast::<u8>(), length)).into_owned();
        libc::free(text.cast());
        Ok(copy)
    }
}
