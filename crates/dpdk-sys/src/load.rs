//! Loads DPDK when it is first asked for, so that a program that never does neither needs its libraries nor
//! waits for them.
//!
//! The shim is in the program itself, which can thus be copied and renamed as one file. It is put into a file in
//! memory (memfd_create(2)) for the dynamic linker, which finds DPDK's libraries by the names that it was linked with.

use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::functions::FunctionSlot;
use crate::{bindings, shim, vhost};

/// What the build script found.
mod built {
    include!(concat!(env!("OUT_DIR"), "/shim.rs"));
}

/// The version of libdpdk that this was compiled with; `None` where it was not found.
pub const BUILT_WITH: Option<&str> = built::VERSION;

/// Why DPDK cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It was not there when this was compiled.
    #[error("this program was compiled without DPDK ({0}); install libdpdk-dev and pkg-config, and compile again")]
    NotBuilt(&'static str),
    /// Its libraries are not there now, or are of another version.
    #[error(
        "the libraries of DPDK {version} cannot be loaded: {0}; on Debian 12: apt install librte-vhost23 \
         librte-mempool-ring23, and a package librte-net-... for the driver of each kind of device",
        version = BUILT_WITH.unwrap_or_default()
    )]
    Libraries(String),
    /// The shim cannot be given to the dynamic linker.
    #[error("no file in memory can be made to load DPDK by: {0}")]
    File(#[from] std::io::Error),
}

static LOADED: AtomicBool = AtomicBool::new(false);

/// Whether functions may be called.
pub fn is_loaded() -> bool {
    LOADED.load(Ordering::Acquire)
}

/// Loads DPDK's libraries, for as long as the process lives. Afterwards, functions may be called by those who know
/// that this has returned. What fails may be tried again.
///
/// # Errors
/// What is missing, and what would help.
pub fn load() -> Result<(), LoadError> {
    if is_loaded() {
        return Ok(());
    }
    let library = open(built::SHIM.map_err(LoadError::NotBuilt)?)?;
    // All are looked up before the first is stored.
    let found: Vec<_> = places().map(|place| library.find(place)).collect::<Result<_, _>>()?;
    places().zip(found).for_each(|(place, address)| place.address.store(address, Ordering::Relaxed));
    LOADED.store(true, Ordering::Release);
    Ok(())
}

fn places() -> impl Iterator<Item = &'static FunctionSlot> {
    [bindings::PLACES, shim::PLACES, vhost::PLACES].into_iter().flatten()
}

fn open(shim: &[u8]) -> Result<Library, LoadError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("weir-dpdk", flags).map_err(std::io::Error::from)?);
    file.write_all(shim)?;
    // What is about to be executed stays as it is.
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).map_err(std::io::Error::from)?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero in it");
    // Global: a driver that EAL loads may count on the libraries without naming them.
    // SAFETY: `path` is a string. The shim has no code that runs when it is loaded, and that of DPDK's libraries is
    // meant to run then.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() { Err(LoadError::Libraries(last_error())) } else { Ok(Library(handle)) }
}

/// The shim, with the libraries that it needs. Never unloaded: what DPDK's libraries do when they are loaded cannot be
/// undone.
struct Library(*mut c_void);

impl Library {
    fn find(&self, place: &FunctionSlot) -> Result<*mut c_void, LoadError> {
        let name = CStr::from_bytes_with_nul(place.name.as_bytes()).expect("the macro puts a zero behind it");
        // SAFETY: `name` is a string, and the library is loaded.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() { Err(LoadError::Libraries(last_error())) } else { Ok(address) }
    }
}

/// What the dynamic linker says of the last failure.
fn last_error() -> String {
    // SAFETY: returns null or a string, which lives until this thread's next call of the linker.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker does not say why".into();
    }
    // SAFETY: the linker's text is a string that lives until this thread calls the linker again, which it does
    // not do here.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_loaded_is_named() {
        let error = |shim| match open(shim) {
            Ok(_) => panic!("it was loaded"),
            Err(error) => error.to_string(),
        };
        assert!(error(b"no program").contains("cannot be loaded: /proc/self/fd/"), "{}", error(b"no program"));
        let error = LoadError::NotBuilt("pkg-config did not find libdpdk").to_string();
        assert!(error.starts_with("this program was compiled without DPDK (pkg-config did not find libdpdk); install"));
    }

    #[test]
    fn all_functions_have_a_place_of_their_own() {
        let mut names: Vec<_> = places().map(|place| place.name).collect();
        assert!(names.iter().all(|name| CStr::from_bytes_with_nul(name.as_bytes()).is_ok()));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), names.contains(&"rte_eal_init\0")), (count, true));
    }
}
