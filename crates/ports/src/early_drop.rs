//! What a port drops for an ingress filter before its receive queues see it.
//!
//! A port that can do this is given a program of eBPF instructions ([`Instruction`]; RFC 9669) that says which rule drops
//! a frame. What goes before and behind it, and where it runs, is the port's affair.

use std::sync::Arc;

use crate::Error;

/// One instruction of eBPF, `struct bpf_insn` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u8,
    /// Destination register in the low nibble, source register in the high one.
    pub registers: u8,
    /// Offset of loads, stores and jumps.
    pub offset: i16,
    /// Immediate operand.
    pub immediate: i32,
}

/// Says which of some rules drops a frame.
///
/// Loads of 64-bit immediates with [`DropProgram::TABLE`] as their source register name a table by its number, for the kernel's
/// function that looks something up in one (number 1).
///
/// When it begins, register 7 has the start of the frame and register 8 its end; register 6 is not to be touched. It may
/// use the others and [`DropProgram::STACK`] bytes of the stack, jumps forward only, and goes on behind its last
/// instruction, with the number of the rule in the lower half of register 0, or [`DropProgram::NONE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropProgram {
    /// The program.
    pub instructions: Vec<Instruction>,
    /// How many rules there are: numbers are below.
    pub rules: u32,
    /// Tables of prefixes.
    pub tables: Vec<PrefixTable>,
}

/// Values by prefix. A look-up finds that of the longest prefix that an address begins with. Keys are the length of the
/// address in bits, as a word, and the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixTable {
    /// Bytes of an address: 4 or 16.
    pub address_bytes: usize,
    /// Prefixes with their lengths in bits; of the bytes, the first ones count.
    pub entries: Vec<(u8, [u8; 16], u32)>,
}

impl DropProgram {
    /// No rule drops the frame.
    pub const NONE: i32 = -1;

    /// The most instructions of a program: frames that no rule drops pay for all of them.
    pub const MAX_INSTRUCTIONS: usize = 2048;

    /// The most rules of a program, and the most entries of its tables.
    pub const MAX_RULES: usize = 65_536;

    /// Stands for a table in a load of a 64-bit immediate.
    pub const TABLE: u8 = 15;

    /// Bytes of the stack that a program may use, below the frame pointer less eight.
    pub const STACK: i16 = 64;
}

/// Frames that were dropped, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Dropped {
    /// Adds others.
    pub fn add(&mut self, other: Dropped) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    /// What has been dropped since `before`.
    pub fn since(self, before: Dropped) -> Dropped {
        Dropped { packets: self.packets.wrapping_sub(before.packets), bytes: self.bytes.wrapping_sub(before.bytes) }
    }
}

/// The counters of a program's rules.
pub trait Counters: Send + Sync + std::fmt::Debug {
    /// What each rule has dropped.
    fn read(&self) -> Vec<Dropped>;
}

/// A port's means to drop frames early. What was counted can still be read when the port is closed.
pub trait EarlyDrop: Send + Sync {
    /// Puts a program in force in the place of another, at once: each frame sees one of them. The counters of one that was
    /// in force before go on for frames that it still has.
    ///
    /// # Errors
    /// When the port cannot; what was in force stays so.
    fn set(&self, program: &DropProgram) -> Result<Arc<dyn Counters>, Error>;

    /// Puts no program in force.
    ///
    /// # Errors
    /// When the port cannot; what was in force stays so.
    fn clear(&self) -> Result<(), Error>;

    /// What all programs have dropped since the port was opened.
    fn total(&self) -> Dropped;
}
