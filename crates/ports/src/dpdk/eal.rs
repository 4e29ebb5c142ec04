//! Loads DPDK when it is first asked for, and starts its environment abstraction layer, once in a process.
//!
//! EAL pins the thread that starts it to a core, and takes it for its main thread. So that no thread of
//! Weir is changed by that, it gets one of its own.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

use parking_lot::Mutex;

use super::arguments::{Arguments, Machine};
use super::{EalState, Init, Settings, log};

/// What has become of DPDK in this process.
#[derive(Clone, Debug)]
struct Started {
    state: EalState,
    memory: Memory,
}

/// What DPDK's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Memory {
    /// Ordinary pages, for want of hugepages or because somebody said so.
    pub ordinary: bool,
    /// Somebody said how much of it there is.
    pub given: bool,
}

static STARTED: Mutex<Started> =
    Mutex::new(Started { state: EalState::Off, memory: Memory { ordinary: false, given: false } });

/// Starts DPDK if the settings want it and nobody has started it yet, and says how it is. Whatever goes wrong is in the
/// log; the process goes on without DPDK. EAL can be started once, whatever comes of it; libraries that are missing
/// are looked for again when this is called again.
pub fn initialise(settings: &Settings) -> EalState {
    let mut started = STARTED.lock();
    if !matches!(started.state, EalState::Ready | EalState::Failed(_)) {
        *started = match settings.init {
            Init::Off => Started { state: EalState::Off, memory: Memory::default() },
            init => start(settings, init),
        };
    }
    started.state.clone()
}

/// How DPDK is.
pub fn state() -> EalState {
    STARTED.lock().state.clone()
}

/// What its memory is.
pub fn memory() -> Memory {
    STARTED.lock().memory
}

/// The version of the library, "DPDK 22.11.4": of the one that is loaded, or that this was compiled with while nobody
/// has asked for it. `None` where there is none.
pub fn version() -> Option<String> {
    if dpdk_sys::is_loaded() {
        // SAFETY: DPDK is loaded, and this returns a static string.
        let version = unsafe { CStr::from_ptr(dpdk_sys::rte_version()) };
        return Some(version.to_string_lossy().into_owned());
    }
    match state() {
        EalState::Absent(_) => None,
        _ => dpdk_sys::BUILT_WITH.map(|version| format!("DPDK {version}")),
    }
}

/// The text of an errno, as DPDK has it, which is loaded.
pub fn error_text(errno: i32) -> String {
    // SAFETY: DPDK is loaded, and this returns a string that lives as long as the thread, or longer.
    let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno.abs())) };
    text.to_string_lossy().into_owned()
}

fn start(settings: &Settings, init: Init) -> Started {
    if let Err(error) = dpdk_sys::load() {
        let why = error.to_string();
        complain(init, &why);
        return Started { state: EalState::Absent(why), memory: Memory::default() };
    }
    // SAFETY: DPDK is loaded, and this returns a static string.
    let version = unsafe { CStr::from_ptr(dpdk_sys::rte_version()) };
    tracing::info!(target: "dpdk", "Using {}", version.to_string_lossy());
    tracing::info!(target: "dpdk", "DPDK Enabled - initializing...");
    log::redirect();
    let arguments = Arguments::new(settings, machine());
    for warning in &arguments.warnings {
        tracing::warn!(target: "dpdk", "{warning}");
    }
    if arguments.chose_no_huge {
        tracing::warn!(
            target: "dpdk",
            "no hugepages are free: working on ordinary memory (--no-huge), which costs throughput by TLB misses and \
             excludes NICs without an IOMMU; to reserve 2 GiB: sysctl vm.nr_hugepages=1024, and start again"
        );
    }
    tracing::info!(target: "dpdk", "EAL ARGS: ovs-vswitchd {}", arguments.words.join(" "));
    let memory = Memory { ordinary: arguments.no_huge, given: arguments.memory_given };
    let (result, complaints) = log::listen(|| on_own_thread(arguments.words.clone()));
    let state = match result {
        Ok(()) => {
            tracing::info!(target: "dpdk", "DPDK Enabled - initialized");
            EalState::Ready
        }
        Err(error) => {
            let why = explain(&error, &complaints, &arguments);
            complain(init, &why);
            EalState::Failed(why)
        }
    };
    Started { state, memory }
}

fn complain(init: Init, why: &str) {
    match init {
        Init::Try => tracing::warn!(target: "dpdk", "Unable to initialize DPDK: {why}"),
        _ => tracing::error!(target: "dpdk", "Unable to initialize DPDK: {why}"),
    }
}

/// An error with what DPDK said before, and what would help.
fn explain(error: &str, complaints: &[String], arguments: &Arguments) -> String {
    let mut why = error.to_owned();
    if let Some(complaint) = log::cause(complaints) {
        why = format!("{why} ({complaint})");
    }
    if !arguments.no_huge && !machine().hugepages {
        why += "; no hugepages are free, and the options ask for them: sysctl vm.nr_hugepages=1024 reserves 2 GiB, \
                or leave them out of dpdk-extra";
    }
    why
}

fn on_own_thread(words: Vec<String>) -> Result<(), String> {
    let thread = std::thread::Builder::new().name("dpdk-init".into()).spawn(move || run(&words));
    let thread = thread.map_err(|e| format!("cannot start a thread: {e}"))?;
    thread.join().unwrap_or_else(|_| Err("internal error".into()))
}

fn run(words: &[String]) -> Result<(), String> {
    let words = std::iter::once("ovs-vswitchd").chain(words.iter().map(String::as_str));
    // EAL keeps pointers into its command line: it lives as long as the process.
    let mut arguments: Vec<*mut c_char> = words
        .map(|word| CString::new(word).map(CString::into_raw))
        .collect::<Result<_, _>>()
        .map_err(|e| e.to_string())?;
    let count = arguments.len() as c_int;
    arguments.push(std::ptr::null_mut());
    let arguments: &'static mut [*mut c_char] = arguments.leak();
    // SAFETY: `arguments` are `count` strings and a null pointer, and are never freed. `initialise` calls
    // this once in a process.
    if unsafe { dpdk_sys::rte_eal_init(count, arguments.as_mut_ptr()) } < 0 {
        // SAFETY: EAL sets it when it fails.
        return Err(error_text(unsafe { dpdk_sys::weir_errno() }));
    }
    // Threads can only be registered in a process that has no secondary ones.
    // SAFETY: EAL is initialised.
    if !unsafe { dpdk_sys::rte_mp_disable() } {
        return Err("secondary processes cannot be ruled out".into());
    }
    Ok(())
}

fn machine() -> Machine {
    let core = lowest_core();
    Machine { hugepages: has_hugepages(Path::new("/sys/kernel/mm/hugepages")), core }
}

/// The lowest core that this thread may run on.
fn lowest_core() -> usize {
    let cores = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| cores.is_set(core)).unwrap_or(0)
}

/// Whether a hugepage is free, or the kernel makes one when it is wanted.
fn has_hugepages(directory: &Path) -> bool {
    let number = |path: &Path, name: &str| -> u64 {
        std::fs::read_to_string(path.join(name)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    let sizes = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    sizes.into_iter().any(|size| {
        let free = number(&size, "free_hugepages").saturating_sub(number(&size, "resv_hugepages"));
        free + number(&size, "nr_overcommit_hugepages").saturating_sub(number(&size, "surplus_hugepages")) > 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugepages_are_those_that_can_be_had() {
        let directory = tempfile::tempdir().unwrap();
        let size = directory.path().join("hugepages-2048kB");
        std::fs::create_dir(&size).unwrap();
        let set = |name: &str, n: u64| std::fs::write(size.join(name), format!("{n}\n")).unwrap();
        assert!(!has_hugepages(directory.path()));
        set("free_hugepages", 3);
        assert!(has_hugepages(directory.path()));
        set("resv_hugepages", 3);
        assert!(!has_hugepages(directory.path()), "reserved ones are not to be had");
        set("nr_overcommit_hugepages", 2);
        assert!(has_hugepages(directory.path()));
        set("surplus_hugepages", 2);
        assert!(!has_hugepages(directory.path()));
        assert!(!has_hugepages(&directory.path().join("none")));
    }
}
