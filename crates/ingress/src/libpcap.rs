//! Expressions compiled by libpcap, which is loaded when it is first asked for: a program that never does so needs
//! no libpcap.
//!
//! Nothing here reads frames: what comes out of libpcap is a program, which [`crate::bpf`] verifies as it would that
//! of a stranger.
//!
//! Sharing between threads: [`LIBRARY`] is written once. libpcap's compiler is re-entrant, but it looks names up by
//! functions of the C library that are not, so one expression is compiled at a time.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::bpf::Instruction;

/// The library's name: that of its stable interface, on Debian.
const NAME: &CStr = c"libpcap.so.0.8";

/// Frames begin with an Ethernet header (`DLT_EN10MB`).
const ETHERNET: c_int = 1;

/// The longest frame; a program returns it for a frame that matches (`MAXIMUM_SNAPLEN`).
const LONGEST_FRAME: c_int = 262_144;

/// The network mask is not known (`PCAP_NETMASK_UNKNOWN`): only `ip broadcast` needs it.
const NO_NETMASK: c_uint = 0xffff_ffff;

/// Why an expression has no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// libpcap is not there.
    #[error("libpcap cannot be loaded, which compiles this expression: {0}; on Debian: apt install libpcap0.8")]
    Library(String),
    /// It has no memory.
    #[error("libpcap has no memory")]
    Memory,
    /// The expression is wrong; libpcap's own words.
    #[error("{0}")]
    Expression(String),
}

/// `struct bpf_program` of libpcap.
#[repr(C)]
struct RawProgram {
    len: c_uint,
    instructions: *mut Instruction,
}

/// `pcap_t`, which only libpcap looks into.
type Pcap = c_void;

/// libpcap's functions, by their types in pcap/pcap.h.
struct Library {
    open_dead: unsafe extern "C" fn(linktype: c_int, snaplen: c_int) -> *mut Pcap,
    close: unsafe extern "C" fn(*mut Pcap),
    compile: unsafe extern "C" fn(*mut Pcap, *mut RawProgram, *const c_char, optimize: c_int, netmask: c_uint) -> c_int,
    free_code: unsafe extern "C" fn(*mut RawProgram),
    error: unsafe extern "C" fn(*mut Pcap) -> *const c_char,
    /// libpcap's own interpreter, which tests compare with.
    #[cfg(test)]
    filter: unsafe extern "C" fn(*const Instruction, *const u8, wire_len: c_uint, len: c_uint) -> c_uint,
}

/// Set when it has been loaded, for as long as the process lives.
static LIBRARY: OnceLock<Library> = OnceLock::new();

/// One expression at a time.
static COMPILER: Mutex<()> = Mutex::new(());

/// Compiles an expression of pcap-filter(7) for Ethernet frames. May take as long as a name server does, where the
/// expression names a host.
///
/// # Errors
/// libpcap is missing, or refuses the expression.
pub fn compile(expression: &str) -> Result<Vec<Instruction>, CompileError> {
    let text = CString::new(expression)
        .map_err(|_| CompileError::Expression("the expression has a character of code 0".into()))?;
    let library = load()?;
    let _one = COMPILER.lock();
    let handle = Handle::open(library)?;
    let mut program = RawProgram { len: 0, instructions: std::ptr::null_mut() };
    // SAFETY: the handle is open, `program` is writable, and `text` is a string.
    let outcome = unsafe { (library.compile)(handle.pcap.as_ptr(), &mut program, text.as_ptr(), 1, NO_NETMASK) };
    if outcome != 0 {
        return Err(CompileError::Expression(handle.error()));
    }
    let instructions = match program.instructions.is_null() {
        true => Vec::new(),
        // SAFETY: libpcap has written a program of `len` instructions to memory of its own, which is freed below.
        false => unsafe { std::slice::from_raw_parts(program.instructions, program.len as usize) }.to_vec(),
    };
    // SAFETY: the program was made by `compile`, and is not used again.
    unsafe { (library.free_code)(&mut program) };
    Ok(instructions)
}

/// What libpcap's own interpreter says of a frame. The program has passed its verification, and ours.
#[cfg(test)]
pub fn reference(program: &[Instruction], frame: &[u8]) -> u32 {
    let library = load().expect("libpcap is there");
    let len = frame.len() as c_uint;
    // SAFETY: the program ends in a return, jumps forward and within itself, and uses 16 words of memory (it was
    // verified), so that the interpreter stays within it; and within the frame, of which it knows the length.
    unsafe { (library.filter)(program.as_ptr(), frame.as_ptr(), len, len) }
}

/// A handle of libpcap that stands for no device.
struct Handle {
    library: &'static Library,
    pcap: NonNull<Pcap>,
}

impl Handle {
    fn open(library: &'static Library) -> Result<Handle, CompileError> {
        // SAFETY: takes any numbers.
        let pcap = unsafe { (library.open_dead)(ETHERNET, LONGEST_FRAME) };
        NonNull::new(pcap).map(|pcap| Handle { library, pcap }).ok_or(CompileError::Memory)
    }

    /// What libpcap says of the last failure.
    fn error(&self) -> String {
        // SAFETY: the handle is open, and has a text of its own, which ends with a zero.
        unsafe { CStr::from_ptr((self.library.error)(self.pcap.as_ptr())) }.to_string_lossy().into_owned()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and not used again.
        unsafe { (self.library.close)(self.pcap.as_ptr()) }
    }
}

/// The library. What fails may be tried again, as when it has been installed since.
fn load() -> Result<&'static Library, CompileError> {
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = open(NAME).map_err(CompileError::Library)?;
    Ok(LIBRARY.get_or_init(|| library))
}

fn open(name: &CStr) -> Result<Library, String> {
    // SAFETY: `name` is a string. The code of libpcap that runs when it is loaded is meant to run then.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(last_error());
    }
    let find = |name: &CStr| {
        // SAFETY: the library is loaded, and never unloaded; `name` is a string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if address.is_null() { Err(last_error()) } else { Ok(address) }
    };
    // SAFETY: functions of these names have these types in every libpcap.so.0.8 (pcap/pcap.h, pcap/bpf.h).
    unsafe {
        Ok(Library {
            open_dead: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, c_int) -> *mut Pcap>(find(
                c"pcap_open_dead",
            )?),
            close: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Pcap)>(find(c"pcap_close")?),
            compile: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut Pcap, *mut RawProgram, *const c_char, c_int, c_uint) -> c_int,
            >(find(c"pcap_compile")?),
            free_code: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut RawProgram)>(find(
                c"pcap_freecode",
            )?),
            error: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Pcap) -> *const c_char>(find(
                c"pcap_geterr",
            )?),
            #[cfg(test)]
            filter: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const Instruction, *const u8, c_uint, c_uint) -> c_uint,
            >(find(c"bpf_filter")?),
        })
    }
}

/// What the dynamic linker says of the last failure.
fn last_error() -> String {
    // SAFETY: returns null or a string, which lives until this thread's next call of the linker.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker does not say why".into();
    }
    // SAFETY: the text is a string, and this thread does not call the linker before it has been copied.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_what_helps() {
        let Err(error) = open(c"libpcap-missing.so.7") else { panic!("it was loaded") };
        let error = CompileError::Library(error).to_string();
        assert!(error.contains("libpcap-missing.so.7") && error.ends_with("apt install libpcap0.8"), "{error}");
    }

    #[test]
    fn expressions_are_compiled_or_refused_in_libpcaps_words() {
        assert!(compile("tcp port 80").unwrap().len() > 5);
        assert_eq!(compile("").unwrap().len(), 1, "every frame: one return");
        let error = |text: &str| compile(text).unwrap_err().to_string();
        assert_eq!(error("tcp and"), "can't parse filter expression: syntax error");
        assert_eq!(error("ip[0] / 0 = 1"), "division by zero");
        assert!(error("tcp\0").contains("character of code 0"));
    }
}
