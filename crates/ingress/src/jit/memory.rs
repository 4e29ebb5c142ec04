//! Memory that can be executed, and no longer written.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::{io, ptr};

/// Code in memory of its own.
#[derive(Debug)]
pub struct CodeMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is never written again once it is there, and belongs to this alone.
unsafe impl Send for CodeMemory {}
// SAFETY: as above: it is only read and executed.
unsafe impl Sync for CodeMemory {}

impl CodeMemory {
    /// Memory with this code, of at least a byte.
    ///
    /// # Errors
    /// The system gives none, or does not allow it to be executed.
    pub fn new(code: &[u8]) -> io::Result<CodeMemory> {
        let len = code.len().max(1);
        // SAFETY: new memory at a place that the kernel chooses touches no other.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = CodeMemory { start, len };
        // SAFETY: the memory is `len` bytes long, may be written, and is nobody else's yet.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), start.as_ptr(), code.len()) };
        // SAFETY: the memory is that of this mapping; nobody has a reference to it.
        let outcome = unsafe { libc::mprotect(start.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_EXEC) };
        if outcome != 0 {
            return Err(io::Error::last_os_error());
        }
        clear_instruction_cache(start.as_ptr(), len);
        Ok(memory)
    }

    /// Where the code begins.
    pub fn address(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own; whoever could call code in it holds a reference to this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Processors other than those of x86 may have old instructions for this memory in their caches.
#[cfg(target_arch = "aarch64")]
fn clear_instruction_cache(start: *mut u8, len: usize) {
    unsafe extern "C" {
        // Of the compiler's runtime library (libgcc, compiler-rt).
        fn __clear_cache(start: *mut u8, end: *mut u8);
    }
    // SAFETY: the range is that of a mapping that may be read.
    unsafe { __clear_cache(start, start.wrapping_add(len)) }
}

#[cfg(not(target_arch = "aarch64"))]
fn clear_instruction_cache(_: *mut u8, _: usize) {}
