//! The XDP program that leads frames to the sockets, and its attachment to an interface.
//!
//! The program is five instructions: look the frame's receive queue up in a map of sockets, redirect
//! there, or pass the frame to the kernel's stack where the queue has no socket. Where a filter is pushed down
//! ([`EarlyDrop`](crate::EarlyDrop)), another program with the same map takes its place, which drops and counts before.
//!
//! It is attached by a bpf link, which vanishes with its last descriptor and so with the process,
//! however that ends. Kernels before 5.9 know no links for XDP: there, the program is attached over
//! rtnetlink, stays when the process crashes, and is taken off by the next one, which knows it by its
//! name. An attached program that is not Weir's is never touched.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::syscall;
use crate::Error;
use crate::early_drop::{DropProgram, Instruction, PrefixTable};
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
    queues: u32,
}

/// What is done with frames before they are led to sockets.
pub struct Dropping<'a> {
    /// Says which rule drops a frame.
    pub program: &'a DropProgram,
    /// Counters by number: frames and bytes. The rules' begin with one; number zero counts for all.
    pub counters: BorrowedFd<'a>,
}

impl Program {
    /// Loads the program, for receive queues below `queues`.
    pub fn load(name: &str, queues: u32) -> io::Result<Program> {
        let map = syscall::create_xskmap(NAME, queues)?;
        let program = syscall::load_xdp_program(name, &instructions(map.as_fd()))?;
        Ok(Program { program, map, queues })
    }

    /// Loads the program that leads to the same sockets, but drops frames before.
    pub fn load_dropping(&self, dropping: &Dropping) -> io::Result<OwnedFd> {
        // The program has them when it is loaded.
        let tables = dropping.program.tables.iter().map(make_table).collect::<io::Result<Vec<_>>>()?;
        let body = with_tables(&dropping.program.instructions, &tables);
        let load = |length| {
            let code = dropping_instructions(self.map.as_fd(), self.queues, &body, dropping.counters, length);
            syscall::load_xdp_program(NAME, &code)
        };
        // Without CAP_PERFMON a program must not subtract addresses; the function is there since Linux 5.18.
        load(Length::Subtracted).or_else(|first| load(Length::Asked).map_err(|_| first))
    }

    /// The program that only leads frames to sockets.
    pub fn plain(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Leads the frames of a receive queue to a socket.
    pub fn redirect(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        syscall::update_map(self.map.as_fd(), queue, socket.as_raw_fd() as u32)
    }

    /// Attaches the program.
    pub fn attach(&self, interface: &Arc<Interface>, hook: Hook) -> io::Result<Attachment> {
        match syscall::create_xdp_link(self.program.as_fd(), interface.index(), hook.flag()) {
            Ok(link) => Ok(Attachment::Link(link)),
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
        Ok(Attachment::Rtnetlink { interface: interface.clone(), hook, program })
    }
}

const LOAD_WORD: u8 = 0x61;
const LOAD_LONG: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const STORE_WORD_IMMEDIATE: u8 = 0x62;
const STORE_LONG: u8 = 0x7b;
const LOAD_IMMEDIATE_64: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const ADD: u8 = 0x0f;
const ADD_IMMEDIATE: u8 = 0x07;
const ADD_IMMEDIATE_32: u8 = 0x04;
const SUBTRACT: u8 = 0x1f;
const JUMP_EQUAL: u8 = 0x15;
const JUMP_EQUAL_32: u8 = 0x16;
const JUMP_GREATER_OR_EQUAL: u8 = 0x35;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// BPF_PSEUDO_MAP_FD: the immediate is a map's descriptor.
const MAP_FD: u8 = 1;
/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;
/// Functions of the kernel.
const MAP_LOOK_UP: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const XDP_GET_BUFF_LEN: i32 = 188;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
/// The register that points to the end of the stack.
const STACK: u8 = 10;

fn op(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: destination | source << 4, offset, immediate }
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS);`
fn instructions(map: BorrowedFd) -> Vec<Instruction> {
    redirect(map, 1)
}

/// The same, with `ctx` in a register.
fn redirect(map: BorrowedFd, context: u8) -> Vec<Instruction> {
    vec![
        op(LOAD_WORD, 2, context, RX_QUEUE_INDEX, 0),
        op(LOAD_IMMEDIATE_64, 1, MAP_FD, 0, map.as_raw_fd()),
        op(0, 0, 0, 0, 0),
        // The lower two bits of the flags are the answer where the map has no socket.
        op(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS),
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0),
    ]
}

/// How a program finds how long a frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// From where it begins and ends.
    Subtracted,
    /// By a function of the kernel.
    Asked,
}

/// Frames of queues without a socket go on as they are, and so do those that no rule drops; others are counted, for their
/// rule and for all.
fn dropping_instructions(
    map: BorrowedFd,
    queues: u32,
    body: &[Instruction],
    counters: BorrowedFd,
    length: Length,
) -> Vec<Instruction> {
    let mut counting = vec![op(ADD_IMMEDIATE_32, 0, 0, 0, 1), op(STORE_WORD, STACK, 0, -4, 0)];
    match length {
        Length::Subtracted => counting.extend([op(MOVE, 9, 8, 0, 0), op(SUBTRACT, 9, 7, 0, 0)]),
        Length::Asked => {
            counting.extend([op(MOVE, 1, 6, 0, 0), op(CALL, 0, 0, 0, XDP_GET_BUFF_LEN), op(MOVE, 9, 0, 0, 0)])
        }
    }
    counting.extend(count(counters));
    counting.push(op(STORE_WORD_IMMEDIATE, STACK, 0, -4, 0));
    counting.extend(count(counters));
    counting.extend([op(MOVE_IMMEDIATE, 0, 0, 0, XDP_DROP), op(EXIT, 0, 0, 0, 0)]);

    let mut code = vec![
        op(MOVE, 6, 1, 0, 0),
        op(LOAD_WORD, 2, 6, RX_QUEUE_INDEX, 0),
        // To the redirection, behind all that follows.
        op(JUMP_GREATER_OR_EQUAL, 2, 0, (2 + body.len() + 1 + counting.len()) as i16, queues as i32),
        op(LOAD_WORD, 7, 6, DATA, 0),
        op(LOAD_WORD, 8, 6, DATA_END, 0),
    ];
    code.extend(body);
    code.push(op(JUMP_EQUAL_32, 0, 0, counting.len() as i16, DropProgram::NONE));
    code.extend(counting);
    code.extend(redirect(map, 6));
    code
}

/// A map of a table's prefixes.
fn make_table(table: &PrefixTable) -> io::Result<OwnedFd> {
    let map = syscall::create_prefix_map(NAME, table.address_bytes as u32, table.entries.len() as u32)?;
    for &(len, address, value) in &table.entries {
        syscall::update_prefix_map(map.as_fd(), len, address, value)?;
    }
    Ok(map)
}

/// The instructions with these tables in the places of their numbers.
fn with_tables(instructions: &[Instruction], tables: &[OwnedFd]) -> Vec<Instruction> {
    let mut code = instructions.to_vec();
    for instruction in code.iter_mut().filter(|i| i.code == LOAD_IMMEDIATE_64 && i.registers >> 4 == DropProgram::TABLE)
    {
        instruction.registers = instruction.registers & 0xf | MAP_FD << 4;
        // The kernel refuses what is no descriptor.
        instruction.immediate = tables.get(instruction.immediate as usize).map_or(-1, AsRawFd::as_raw_fd);
    }
    code
}

/// Counts the frame, whose length register 9 has, with the counter whose number is on the stack. No other program runs on
/// this processor meanwhile that would count with it.
fn count(counters: BorrowedFd) -> [Instruction; 12] {
    [
        op(MOVE, 2, STACK, 0, 0),
        op(ADD_IMMEDIATE, 2, 0, 0, -4),
        op(LOAD_IMMEDIATE_64, 1, MAP_FD, 0, counters.as_raw_fd()),
        op(0, 0, 0, 0, 0),
        op(CALL, 0, 0, 0, MAP_LOOK_UP),
        op(JUMP_EQUAL, 0, 0, 6, 0),
        op(LOAD_LONG, 1, 0, 0, 0),
        op(ADD_IMMEDIATE, 1, 0, 0, 1),
        op(STORE_LONG, 0, 1, 0, 0),
        op(LOAD_LONG, 1, 0, 8, 0),
        op(ADD, 1, 9, 0, 0),
        op(STORE_LONG, 0, 1, 8, 0),
    ]
}

/// The number of the rule of a program that drops a frame, as the kernel runs it on a frame of at least 14 bytes that
/// nobody receives; for tests of what makes such programs.
///
/// # Errors
/// When the kernel refuses the program, or this process may load none.
pub fn trial(program: &DropProgram, frames: &[Vec<u8>]) -> io::Result<Vec<Option<u32>>> {
    let mut code = vec![op(MOVE, 6, 1, 0, 0), op(LOAD_WORD, 7, 6, DATA, 0), op(LOAD_WORD, 8, 6, DATA_END, 0)];
    let tables = program.tables.iter().map(make_table).collect::<io::Result<Vec<_>>>()?;
    code.extend(with_tables(&program.instructions, &tables));
    code.push(op(EXIT, 0, 0, 0, 0));
    let program = syscall::load_xdp_program(NAME, &code)?;
    let run = |frame: &Vec<u8>| {
        let answer = syscall::test_run(program.as_fd(), frame)?;
        Ok((answer != DropProgram::NONE as u32).then_some(answer))
    };
    frames.iter().map(run).collect()
}

/// An attached program. Dropping it takes the program off the interface.
pub enum Attachment {
    /// By a link, which has it.
    Link(OwnedFd),
    /// In the way of kernels before 5.9.
    Rtnetlink {
        /// The interface.
        interface: Arc<Interface>,
        /// Where it is attached.
        hook: Hook,
        /// The program.
        program: OwnedFd,
    },
}

impl Attachment {
    /// Puts another program in the place of the attached one; each frame sees one of them.
    pub fn replace(&mut self, new: BorrowedFd) -> io::Result<()> {
        match self {
            Attachment::Link(link) => syscall::update_link(link.as_fd(), new),
            Attachment::Rtnetlink { interface, hook, program } => {
                let (number, flags) = (new.as_raw_fd(), hook.flag());
                let new = new.try_clone_to_owned()?;
                let expected = Some(program.as_raw_fd());
                // Kernels before 5.7 don't know "only if it is this program".
                interface
                    .set_xdp(Some(number), flags | XDP_FLAGS_REPLACE, expected)
                    .or_else(|_| interface.set_xdp(Some(number), flags, None))?;
                *program = new;
                Ok(())
            }
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let (interface, hook, program) = match self {
            Attachment::Link(link) => {
                // Closing the descriptor isn't enough while a child between fork and exec has a copy. Where
                // the kernel can't, or the interface has gone, closing it has to do.
                let _ = syscall::detach_link(link.as_fd());
                return;
            }
            Attachment::Rtnetlink { interface, hook, program } => (interface, hook, program),
        };
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
