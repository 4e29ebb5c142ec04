//! Verified programs.

use super::instruction::Operation;

/// What an instruction accesses, on all ways on which it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is never reached.
    Never,
    /// Nothing, or memory: its stack, or not the same on all ways.
    Plain,
    /// The frame.
    Frame,
    /// A value of this map.
    Value(usize),
    /// The start of the frame in `struct xdp_md`.
    Data,
    /// The end of the frame in `struct xdp_md`.
    DataEnd,
    /// This map, by a helper.
    Map(usize),
}

/// A program that ends for every frame, and accesses nothing that it may not: see [`verify`](super::verify::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    operations: Box<[Operation]>,
    accesses: Box<[Access]>,
    longest: u32,
    stack: usize,
}

impl Program {
    /// A program that was verified.
    pub(super) fn new(operations: Vec<Operation>, accesses: Vec<Access>, longest: u32, stack: usize) -> Program {
        Program { operations: operations.into(), accesses: accesses.into(), longest, stack }
    }

    /// What it does, word by word.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// What its instructions access.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// The most instructions that it executes for a frame.
    pub fn longest(&self) -> u32 {
        self.longest
    }

    /// How many bytes of stack it uses; a multiple of eight.
    pub fn stack(&self) -> usize {
        self.stack
    }
}
