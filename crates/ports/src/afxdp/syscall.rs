//! The bpf(2) commands that an XDP program needs, one function each.
//!
//! Each attribute structure is a prefix of `union bpf_attr` (linux/bpf.h); the kernel takes what is
//! missing as zero.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::early_drop::Instruction;

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_DETACH: libc::c_long = 34;

const BPF_MAP_TYPE_PERCPU_ARRAY: u32 = 6;
const BPF_MAP_TYPE_LPM_TRIE: u32 = 11;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;

/// Length of a program's or map's name, with its terminating zero.
pub const NAME_LEN: usize = 16;

/// Makes a map from receive queue number to AF_XDP socket.
pub fn create_xskmap(name: &str, entries: u32) -> io::Result<OwnedFd> {
    create_map(name, BPF_MAP_TYPE_XSKMAP, 4, 4, entries, 0)
}

/// Makes a map of `entries` values of `value_size` bytes, by number, which each processor has of its own.
pub fn create_percpu_array(name: &str, value_size: u32, entries: u32) -> io::Result<OwnedFd> {
    create_map(name, BPF_MAP_TYPE_PERCPU_ARRAY, 4, value_size, entries, 0)
}

/// Makes a map of words, by prefixes of addresses of so many bytes.
pub fn create_prefix_map(name: &str, address_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    /// BPF_F_NO_PREALLOC, which this kind of map wants.
    const NOT_PREALLOCATED: u32 = 1;
    create_map(name, BPF_MAP_TYPE_LPM_TRIE, 4 + address_bytes, 4, entries, NOT_PREALLOCATED)
}

fn create_map(name: &str, kind: u32, key_size: u32, value_size: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        name: [u8; NAME_LEN],
    }
    let mut attributes = Attributes {
        kind,
        key_size,
        value_size,
        max_entries: entries,
        flags,
        inner_map_fd: 0,
        numa_node: 0,
        name: name_field(name),
    };
    // SAFETY: these are the attributes of the command; the answer is a new descriptor.
    unsafe { bpf_fd(BPF_MAP_CREATE, &mut attributes) }
}

/// Reads one entry of a map that each processor has of its own: one value after the other.
///
/// # Safety
/// `words` has room for a value for each processor that there may be.
pub unsafe fn look_up(map: BorrowedFd, key: u32, words: &mut [u64]) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: u32,
        pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let mut attributes = Attributes {
        map: map.as_raw_fd() as u32,
        pad: 0,
        key: std::ptr::from_ref(&key).expose_provenance() as u64,
        value: words.as_mut_ptr().expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: these are the attributes of the command; the key outlives the call. The kernel writes one value for each
    // possible processor, which is what `words` has room for (contract of this function).
    unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }.map(|_| ())
}

/// Reads entries of a map that each processor has of its own: as many as `keys` has room for, from the first on or from
/// behind one, and of each what [`look_up`] reads. Returns how many there were. Unknown before Linux 5.13.
///
/// # Safety
/// `words` has room for as many values as there may be processors, for each of the keys.
pub unsafe fn look_up_many(
    map: BorrowedFd,
    behind: Option<u32>,
    keys: &mut [u32],
    words: &mut [u64],
) -> io::Result<usize> {
    #[repr(C)]
    struct Attributes {
        in_batch: u64,
        out_batch: u64,
        keys: u64,
        values: u64,
        count: u32,
        map: u32,
        element_flags: u64,
        flags: u64,
    }
    let mut next = 0_u32;
    let mut attributes = Attributes {
        in_batch: behind.as_ref().map_or(0, |key| std::ptr::from_ref(key).expose_provenance() as u64),
        out_batch: std::ptr::from_mut(&mut next).expose_provenance() as u64,
        keys: keys.as_mut_ptr().expose_provenance() as u64,
        values: words.as_mut_ptr().expose_provenance() as u64,
        count: keys.len() as u32,
        map: map.as_raw_fd() as u32,
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: these are the attributes of the command, and what they point to outlives the call. The kernel writes at most
    // `count` keys and their values, for which there is room (contract of this function), and the place to go on.
    let answer = unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &mut attributes) };
    match answer {
        // The map has no more entries.
        Err(e) if e.raw_os_error() != Some(libc::ENOENT) => Err(e),
        _ => Ok(attributes.count as usize),
    }
}

/// Sets one entry of a map from u32 to u32.
pub fn update_map(map: BorrowedFd, key: u32, value: u32) -> io::Result<()> {
    // SAFETY: the map's keys have four bytes.
    unsafe { update(map, std::ptr::from_ref(&key).cast(), value) }
}

/// Sets one entry of a map from prefixes to u32: the address has as many bytes as those of the map, at most 16.
pub fn update_prefix_map(map: BorrowedFd, len: u8, address: [u8; 16], value: u32) -> io::Result<()> {
    #[repr(C)]
    struct Key {
        len: u32,
        address: [u8; 16],
    }
    let key = Key { len: len.into(), address };
    // SAFETY: no map that `create_prefix_map` makes for addresses has keys longer than this.
    unsafe { update(map, std::ptr::from_ref(&key).cast(), value) }
}

/// # Safety
/// `key` has as many bytes as the map's keys, and the map's values are words.
unsafe fn update(map: BorrowedFd, key: *const u8, value: u32) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: u32,
        pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let mut attributes = Attributes {
        map: map.as_raw_fd() as u32,
        pad: 0,
        key: key.expose_provenance() as u64,
        value: std::ptr::from_ref(&value).expose_provenance() as u64,
        flags: 0,
    };
    // SAFETY: these are the attributes of the command; key and value outlive the call.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(|_| ())
}

/// Loads an XDP program.
pub fn load_xdp_program(name: &str, instructions: &[Instruction]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        instruction_count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buffer: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; NAME_LEN],
        ifindex: u32,
        expected_attach_type: u32,
    }
    let license = c"Apache-2.0";
    let mut attributes = Attributes {
        kind: BPF_PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
        name: name_field(name),
        ifindex: 0,
        expected_attach_type: BPF_XDP,
    };
    // SAFETY: these are the attributes of the command; instructions and licence outlive the call, and
    // the answer is a new descriptor.
    unsafe { bpf_fd(BPF_PROG_LOAD, &mut attributes) }
}

/// Attaches an XDP program to an interface for as long as the descriptor that it returns is open.
pub fn create_xdp_link(program: BorrowedFd, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    let program = program.as_raw_fd() as u32;
    let mut attributes = Attributes { program, target_ifindex: ifindex, attach_type: BPF_XDP, flags };
    // SAFETY: these are the attributes of the command, and the answer is a new descriptor.
    unsafe { bpf_fd(BPF_LINK_CREATE, &mut attributes) }
}

/// Puts another program in the place of a link's.
pub fn update_link(link: BorrowedFd, program: BorrowedFd) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link: u32,
        new_program: u32,
        flags: u32,
        old_program: u32,
    }
    let (link, new_program) = (link.as_raw_fd() as u32, program.as_raw_fd() as u32);
    // SAFETY: these are the attributes of the command.
    unsafe { bpf(BPF_LINK_UPDATE, &mut Attributes { link, new_program, flags: 0, old_program: 0 }) }.map(|_| ())
}

/// Runs a program once on a frame that nobody receives, and returns what it returns.
pub fn test_run(program: BorrowedFd, frame: &[u8]) -> io::Result<u32> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        returned: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
    }
    let mut attributes = Attributes {
        program: program.as_raw_fd() as u32,
        returned: 0,
        data_size_in: frame.len() as u32,
        data_size_out: 0,
        data_in: frame.as_ptr().expose_provenance() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
    };
    // SAFETY: these are the attributes of the command; the kernel reads the frame only, which outlives the call.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut attributes) }?;
    Ok(attributes.returned)
}

/// Takes the program of a link off at once, whoever else has a descriptor of it.
pub fn detach_link(link: BorrowedFd) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link: u32,
    }
    // SAFETY: these are the attributes of the command.
    unsafe { bpf(BPF_LINK_DETACH, &mut Attributes { link: link.as_raw_fd() as u32 }) }.map(|_| ())
}

/// Opens a loaded program.
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        id: u32,
        next_id: u32,
        open_flags: u32,
    }
    // SAFETY: these are the attributes of the command, and the answer is a new descriptor.
    unsafe { bpf_fd(BPF_PROG_GET_FD_BY_ID, &mut Attributes { id, next_id: 0, open_flags: 0 }) }
}

/// The name of a loaded program.
pub fn program_name(program: BorrowedFd) -> io::Result<String> {
    /// `struct bpf_prog_info` as far as its name.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        head: [u32; 6],
        instructions: [u64; 2],
        load_time: u64,
        created_by: u32,
        map_count: u32,
        maps: u64,
        name: [u8; NAME_LEN],
    }
    #[repr(C)]
    struct Attributes {
        fd: u32,
        len: u32,
        info: u64,
    }
    let mut info = Info::default();
    let mut attributes = Attributes {
        fd: program.as_raw_fd() as u32,
        len: size_of::<Info>() as u32,
        info: std::ptr::from_mut(&mut info).expose_provenance() as u64,
    };
    // SAFETY: these are the attributes of the command; the kernel writes `len` bytes to `info` at most.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    let end = info.name.iter().position(|&b| b == 0).unwrap_or(NAME_LEN);
    Ok(String::from_utf8_lossy(&info.name[..end]).into_owned())
}

/// At most 15 bytes of letters, digits, `_` and `.`, or the kernel refuses it.
fn name_field(name: &str) -> [u8; NAME_LEN] {
    let mut field = [0; NAME_LEN];
    let len = name.len().min(NAME_LEN - 1);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
    field
}

/// # Safety
/// As [`bpf`], and the command's answer is a new descriptor.
unsafe fn bpf_fd<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: `attributes` are those of the command, whose answer is a new descriptor that nobody else owns
    // (contract of this function).
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attributes)?)) }
}

/// # Safety
/// `T` is what `union bpf_attr` is for the command, without padding, and addresses in it are valid as
/// the command needs them.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: `attributes` are those of the command, and the addresses in them are valid as the kernel needs
    // them (contract of this function).
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
}
