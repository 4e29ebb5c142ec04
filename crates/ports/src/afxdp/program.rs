//! The XDP program that leads frames to the sockets, and its attachment to an interface.
//!
//! The program is five instructions: look the frame's receive queue up in a map of sockets, redirect
//! there, or pass the frame to the kernel's stack where the queue has no socket.
//!
//! It is attached by a bpf link, which vanishes with its last descriptor and so with the process,
//! however that ends. Kernels before 5.9 know no links for XDP: there, the program is attached over
//! rtnetlink, stays when the process crashes, and is taken off by the next one, which knows it by its
//! name. An attached program that is not Weir's is never touched.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::syscall::{self, Instruction};
use crate::Error;
use crate::link::Interface;

/// Name of the program, by which stale ones are known.
pub const NAME: &str = "weir_xsk";

const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1 << 0;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_FLAGS_REPLACE: u32 = 1 << 4;

/// Where in the receive path the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the driver.
    Native,
    /// Behind it, in the kernel's generic code, with any driver.
    Generic,
}

impl Hook {
    fn flag(self) -> u32 {
        match self {
            Hook::Native => XDP_FLAGS_DRV_MODE,
            Hook::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// A loaded program and its map.
pub struct Program {
    program: OwnedFd,
    map: OwnedFd,
}

impl Program {
    /// Loads the program, for receive queues below `queues`.
    pub fn load(name: &str, queues: u32) -> io::Result<Program> {
        let map = syscall::create_xskmap(NAME, queues)?;
        let program = syscall::load_xdp_program(name, &instructions(map.as_fd()))?;
        Ok(Program { program, map })
    }

    /// Leads the frames of a receive queue to a socket.
    pub fn redirect(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        syscall::update_map(self.map.as_fd(), queue, socket.as_raw_fd() as u32)
    }

    /// Attaches the program.
    pub fn attach(&self, interface: &Arc<Interface>, hook: Hook) -> io::Result<Attachment> {
        match syscall::create_xdp_link(self.program.as_fd(), interface.index(), hook.flag()) {
            Ok(link) => Ok(Attachment { link: Some(link), rtnetlink: None }),
            // The command or its use for XDP is unknown before 5.9. It is also what a driver without
            // XDP makes of it, which then refuses below once more.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.attach_by_rtnetlink(interface, hook),
            Err(e) => Err(e),
        }
    }

    /// Attaches the program in the way of kernels before 5.9.
    pub fn attach_by_rtnetlink(&self, interface: &Arc<Interface>, hook: Hook) -> io::Result<Attachment> {
        let flags = hook.flag() | XDP_FLAGS_UPDATE_IF_NOEXIST;
        interface.set_xdp(Some(self.program.as_raw_fd()), flags, None)?;
        let program = self.program.try_clone()?;
        Ok(Attachment { link: None, rtnetlink: Some((interface.clone(), hook, program)) })
    }
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS);`
fn instructions(map: BorrowedFd) -> [Instruction; 6] {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_IMMEDIATE_64: u8 = 0x18;
    const MOVE_IMMEDIATE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// BPF_PSEUDO_MAP_FD: the immediate is a map's descriptor.
    const MAP_FD: u8 = 1;
    /// Offset of rx_queue_index in `struct xdp_md`.
    const RX_QUEUE_INDEX: i16 = 16;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;

    let op = |code, registers, offset, immediate| Instruction { code, registers, offset, immediate };
    [
        op(LOAD_WORD, 2 | 1 << 4, RX_QUEUE_INDEX, 0),
        op(LOAD_IMMEDIATE_64, 1 | MAP_FD << 4, 0, map.as_raw_fd()),
        op(0, 0, 0, 0),
        // The lower two bits of the flags are the answer where the map has no socket.
        op(MOVE_IMMEDIATE, 3, 0, XDP_PASS),
        op(CALL, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0),
    ]
}

/// An attached program. Dropping it takes the program off the interface.
pub struct Attachment {
    link: Option<OwnedFd>,
    rtnetlink: Option<(Arc<Interface>, Hook, OwnedFd)>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            // Closing the descriptor isn't enough while a child between fork and exec has a copy. Where
            // the kernel can't, or the interface has gone, closing it has to do.
            let _ = syscall::detach_link(link.as_fd());
        }
        let Some((interface, hook, program)) = &self.rtnetlink else { return };
        let flags = hook.flag() | XDP_FLAGS_REPLACE;
        match interface.set_xdp(None, flags, Some(program.as_raw_fd())) {
            Ok(()) => {}
            // With the interface, its program has gone.
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
            // Kernels before 5.7 don't know "only if it is this program".
            Err(_) => {
                if let Err(error) = interface.set_xdp(None, hook.flag(), None) {
                    tracing::warn!(port = interface.name(), %error, "cannot take the XDP program off the interface");
                }
            }
        }
    }
}

/// Makes way for a new attachment: takes off programs that a crashed process of ours has left.
///
/// # Errors
/// When somebody else's program is attached, or that of a running Weir.
pub fn clear(interface: &Interface) -> Result<(), Error> {
    let error = |what: String, source, hint| Error::System { port: interface.name().into(), what, source, hint };
    let facts = interface.facts().map_err(|e| error("ask for the attached XDP program".into(), e, None))?;
    let xdp = facts.xdp;
    let attached = [
        (if xdp.mode == 1 { xdp.program } else { xdp.native_program }, XDP_FLAGS_DRV_MODE),
        (if xdp.mode == 2 { xdp.program } else { xdp.generic_program }, XDP_FLAGS_SKB_MODE),
    ];
    for (id, mode) in attached.into_iter().filter(|&(id, _)| id != 0) {
        let name = syscall::program_by_id(id).and_then(|program| syscall::program_name(program.as_fd()));
        let name = match name {
            Ok(name) => name,
            // It went away by itself.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(e) => {
                let hint = e.raw_os_error().and_then(super::hint);
                return Err(error(format!("identify the attached XDP program {id}"), e, hint));
            }
        };
        let busy = || io::Error::from_raw_os_error(libc::EBUSY);
        if name != NAME {
            let what = format!("attach an XDP program, as program {id} \"{name}\" is attached already");
            let hint = Some("detach that with \"ip link set dev INTERFACE xdp off\" if it is not needed");
            return Err(error(what, busy(), hint));
        }
        if interface.set_xdp(None, mode, None).is_err() {
            // A program that is attached by a link comes off with that only: its owner is alive.
            let what = "use the interface, as another Weir process does".to_string();
            return Err(error(what, busy(), Some("stop that process first")));
        }
        tracing::info!(port = interface.name(), program = id, "took off the XDP program of a crashed run");
    }
    Ok(())
}
