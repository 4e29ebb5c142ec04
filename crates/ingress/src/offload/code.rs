//! eBPF code that is being written: registers, operations, and jumps to what is written later.

use ports::early_drop::{DropProgram, Instruction, PrefixTable};

/// Code that is being written.
#[derive(Clone, Default)]
pub struct Code {
    pub instructions: Vec<Instruction>,
    pub tables: Vec<PrefixTable>,
    /// Jumps to the end.
    pub ends: Vec<usize>,
    /// Nothing comes here from what was written last.
    ended: bool,
}

/// Registers. The frame begins and ends where the port says ([`DropProgram`]).
pub const ACCUMULATOR: u8 = 0;
pub const ADDRESS: u8 = 2;
pub const LIMIT: u8 = 3;
pub const FRAME: u8 = 7;
pub const FRAME_END: u8 = 8;
pub const INDEX: u8 = 9;
pub const STACK: u8 = 10;

/// Operations of RFC 9669: those with `_64` for whole registers, the others for their lower halves.
pub const MOVE_64: u8 = 0xbf;
pub const MOVE_IMMEDIATE: u8 = 0xb4;
pub const MOVE: u8 = 0xbc;
pub const ADD_64: u8 = 0x0f;
pub const ADD_IMMEDIATE_64: u8 = 0x07;
pub const AND_IMMEDIATE: u8 = 0x54;
pub const SHIFT_LEFT_IMMEDIATE: u8 = 0x64;
pub const SHIFT_RIGHT_IMMEDIATE: u8 = 0x74;
pub const NEGATE: u8 = 0x84;
pub const BIG_ENDIAN: u8 = 0xdc;
pub const LOAD_BYTE: u8 = 0x71;
pub const LOAD_HALF: u8 = 0x69;
pub const LOAD_WORD: u8 = 0x61;
pub const STORE_WORD: u8 = 0x63;
pub const STORE_WORD_IMMEDIATE: u8 = 0x62;
pub const LOAD_IMMEDIATE_64: u8 = 0x18;
pub const CALL: u8 = 0x85;
pub const JUMP: u8 = 0x05;
pub const JUMP_EQUAL_IMMEDIATE_64: u8 = 0x15;
pub const JUMP_GREATER_OR_EQUAL: u8 = 0x3e;
pub const JUMP_GREATER_64: u8 = 0x2d;
pub const JUMP_GREATER_IMMEDIATE_64: u8 = 0x25;
pub const JUMP_EQUAL_IMMEDIATE: u8 = 0x16;
pub const JUMP_UNEQUAL_IMMEDIATE: u8 = 0x56;
/// The class of jumps that look at lower halves, and of arithmetic on them; the bit that says that the operand is a register.
pub const JUMP_CLASS: u8 = 0x06;
pub const ARITHMETIC_CLASS: u8 = 0x04;
pub const REGISTER: u8 = 0x08;

/// The kernel's function that looks something up in a map.
pub const MAP_LOOK_UP: i32 = 1;

impl Code {
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    pub fn push(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.ended = false;
        self.instructions.push(Instruction { code, registers: destination | source << 4, offset, immediate });
    }

    /// Ends with an answer.
    pub fn answer(&mut self, answer: i32) {
        self.push(MOVE_IMMEDIATE, ACCUMULATOR, 0, 0, answer);
        self.end();
    }

    /// Ends with what the accumulator has.
    pub fn end(&mut self) {
        self.ends.push(self.len());
        self.push(JUMP, 0, 0, 0, 0);
        self.ended = true;
    }

    /// Has the jump at `from` go to what is written next.
    pub fn land(&mut self, from: usize) {
        self.instructions[from].offset = (self.len() - from - 1) as i16;
        self.ended = false;
    }

    pub fn finish(mut self) -> Vec<Instruction> {
        if !self.ended {
            self.push(MOVE_IMMEDIATE, ACCUMULATOR, 0, 0, DropProgram::NONE);
        } else {
            // The last jump would go to where it is; nothing else has to be jumped over.
            self.instructions.pop();
            self.ends.pop();
        }
        for from in std::mem::take(&mut self.ends) {
            self.land(from);
        }
        self.instructions
    }
}

/// Where a word of the memory is on the stack: below the eight bytes that are the port's.
pub fn place_of(word: u8) -> i16 {
    -8 - DropProgram::STACK + 4 * i16::from(word)
}
