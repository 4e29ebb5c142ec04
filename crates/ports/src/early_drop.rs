//! What a port drops for an ingress filter before its receive queues see it.
//!
//! A port that can do this is given a program of eBPF instructions ([`Instruction`]; RFC 9669) that says which rule drops
//! a frame. What goes before and behind it, and where it runs, is the port's affair.

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
/// When it begins, register 7 has the start of the frame and register 8 its end; register 6 is not to be touched. It may
/// use the others and [`DropProgram::STACK`] bytes of the stack, jumps forward only, and goes on behind its last
/// instruction, with the number of the rule in the lower half of register 0, or [`DropProgram::NONE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropProgram {
    /// The program.
    pub instructions: Vec<Instruction>,
    /// How many rules there are: numbers are below.
    pub rules: u32,
}

impl DropProgram {
    /// No rule drops the frame.
    pub const NONE: i32 = -1;

    /// The most instructions of a program: frames that no rule drops pay for all of them.
    pub const MAX_INSTRUCTIONS: usize = 2048;

    /// The most rules of a program.
    pub const MAX_RULES: usize = 256;

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
    /// What has been dropped since `before`.
    pub fn since(self, before: Dropped) -> Dropped {
        Dropped {
            packets: self.packets.wrapping_sub(before.packets),
            bytes: self.bytes.wrapping_sub(before.bytes),
        }
    }
}

/// The counters of a program's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The first of them; the others follow.
    pub first: u32,
    /// What they showed when the program was put in force.
    pub base: Vec<Dropped>,
}

/// A port's means to drop frames early. It outlasts the port, so that what was counted last can still be read.
pub trait EarlyDrop: Send + Sync {
    /// Puts a program in force in the place of another, at once: each frame sees one of them. The counters of one that was
    /// in force before go on for frames that it still has.
    ///
    /// # Errors
    /// When the port cannot; what was in force stays so.
    fn set(&self, program: &DropProgram) -> Result<Counters, Error>;

    /// Puts no program in force.
    ///
    /// # Errors
    /// When the port cannot; what was in force stays so.
    fn clear(&self) -> Result<(), Error>;

    /// What each rule has dropped since its program was put in force.
    fn read(&self, counters: &Counters) -> Vec<Dropped>;

    /// What all programs have dropped since the port was opened.
    fn total(&self) -> Dropped;
}
