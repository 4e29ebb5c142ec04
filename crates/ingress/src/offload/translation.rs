//! Classic BPF as eBPF, with a check of the frame's end before each load.

use super::Obstacle;
use super::code::*;
use crate::bpf::{Arithmetic, Comparison, Operand, Operation, Width};

/// How far behind the frame's start, or the index register, something can be asked for; the kernel follows addresses in
/// frames for 64 KiB.
pub const FARTHEST: u32 = 0x7f00;

/// Where a jump goes.
#[derive(Clone, Copy)]
enum Target {
    Operation(usize),
    Match,
    NoMatch,
}

/// A program of classic BPF that becomes eBPF.
pub struct Translation<'a> {
    code: &'a mut Code,
    operations: &'a [Operation],
    /// Where the jumps go that were written.
    jumps: Vec<(usize, Target)>,
    /// Of each operation: how long the frame is at least where it is reached; `None` where it is not reached.
    known: Vec<Option<u32>>,
}

impl<'a> Translation<'a> {
    /// Of these operations, behind what the code has.
    pub fn new(code: &'a mut Code, operations: &'a [Operation]) -> Translation<'a> {
        let known = vec![None; operations.len()];
        Translation { code, operations, jumps: Vec::new(), known }
    }

    /// Writes it, with an answer for frames that match. Returns whether there may be others.
    pub fn write(mut self, answer: i32) -> Result<bool, Obstacle> {
        self.known[0] = Some(0);
        self.write_start();
        let mut places = Vec::with_capacity(self.operations.len());
        for at in 0..self.operations.len() {
            places.push(self.code.len());
            // The kernel refuses code that is never reached.
            if let Some(known) = self.known[at] {
                self.write_operation(at, known)?;
            }
        }
        let jumps = std::mem::take(&mut self.jumps);
        let code = self.code;
        let to =
            |wanted: fn(&Target) -> bool| jumps.iter().filter(move |(_, target)| wanted(target)).map(|(from, _)| *from);
        for &(from, target) in &jumps {
            if let Target::Operation(target) = target {
                code.instructions[from].offset = (places[target] - from - 1) as i16;
            }
        }
        let mut matches = to(|target| matches!(target, Target::Match)).peekable();
        if matches.peek().is_some() {
            matches.for_each(|from| code.land(from));
            code.answer(answer);
        }
        let mut goes_on = false;
        for from in to(|target| matches!(target, Target::NoMatch)) {
            code.land(from);
            goes_on = true;
        }
        Ok(goes_on)
    }

    /// Registers and memory are zero at the start; what is not used is left alone.
    fn write_start(&mut self) {
        let uses = |wanted: fn(&Operation) -> bool| self.operations.iter().any(wanted);
        let memory = uses(|o| matches!(o, Operation::LoadMemory(_) | Operation::IndexMemory(_)));
        if !matches!(self.operations[0], Operation::Load(..)) {
            self.code.push(MOVE_IMMEDIATE, ACCUMULATOR, 0, 0, 0);
        }
        if uses(uses_index) {
            self.code.push(MOVE_IMMEDIATE, INDEX, 0, 0, 0);
        }
        for word in 0..if memory { 16 } else { 0 } {
            self.code.push(STORE_WORD_IMMEDIATE, STACK, 0, place_of(word), 0);
        }
    }

    fn write_operation(&mut self, at: usize, known: u32) -> Result<(), Obstacle> {
        let mut known = known;
        match self.operations[at] {
            Operation::Load(width, place) => {
                known = self.write_check(known, place, width)?;
                self.write_load(width, FRAME, place);
            }
            Operation::LoadIndexed(width, place) => self.write_indexed(width, place)?,
            Operation::LoadConstant(k) => self.code.push(MOVE_IMMEDIATE, ACCUMULATOR, 0, 0, k as i32),
            Operation::LoadLength | Operation::IndexLength => return Err(Obstacle::Length),
            Operation::LoadMemory(word) => self.code.push(LOAD_WORD, ACCUMULATOR, STACK, place_of(word), 0),
            Operation::IndexConstant(k) => self.code.push(MOVE_IMMEDIATE, INDEX, 0, 0, k as i32),
            Operation::IndexMemory(word) => self.code.push(LOAD_WORD, INDEX, STACK, place_of(word), 0),
            Operation::IndexHeaderLength(place) => {
                known = self.write_check(known, place, Width::Byte)?;
                self.code.push(LOAD_BYTE, INDEX, FRAME, place as i16, 0);
                self.code.push(AND_IMMEDIATE, INDEX, 0, 0, 0xf);
                self.code.push(SHIFT_LEFT_IMMEDIATE, INDEX, 0, 0, 2);
            }
            Operation::Store(word) => self.code.push(STORE_WORD, STACK, ACCUMULATOR, place_of(word), 0),
            Operation::StoreIndex(word) => self.code.push(STORE_WORD, STACK, INDEX, place_of(word), 0),
            Operation::Compute(arithmetic, operand) => self.write_arithmetic(arithmetic, operand),
            Operation::Negate => self.code.push(NEGATE, ACCUMULATOR, 0, 0, 0),
            Operation::ToIndex => self.code.push(MOVE, INDEX, ACCUMULATOR, 0, 0),
            Operation::FromIndex => self.code.push(MOVE, ACCUMULATOR, INDEX, 0, 0),
            Operation::Jump(target) => {
                self.jump(JUMP, 0, 0, 0, Target::Operation(target.into()), known);
                return Ok(());
            }
            Operation::Branch { comparison, operand, then, otherwise } => {
                self.write_branch(at + 1, comparison, operand, [then, otherwise].map(usize::from), known);
                return Ok(());
            }
            Operation::Return(k) => {
                self.jump(JUMP, 0, 0, 0, if k == 0 { Target::NoMatch } else { Target::Match }, known);
                return Ok(());
            }
            Operation::ReturnAccumulator => {
                self.jump(JUMP_UNEQUAL_IMMEDIATE, ACCUMULATOR, 0, 0, Target::Match, known);
                self.jump(JUMP, 0, 0, 0, Target::NoMatch, known);
                return Ok(());
            }
        }
        self.reach(Target::Operation(at + 1), known);
        Ok(())
    }

    /// Writes a jump.
    fn jump(&mut self, code: u8, destination: u8, source: u8, immediate: i32, target: Target, known: u32) {
        self.jumps.push((self.code.len(), target));
        self.code.push(code, destination, source, 0, immediate);
        self.reach(target, known);
    }

    /// Notes that an operation is reached by frames that are at least so long.
    fn reach(&mut self, target: Target, known: u32) {
        if let Target::Operation(at) = target {
            self.known[at] = Some(self.known[at].map_or(known, |before| before.min(known)));
        }
    }

    /// Frames that end before what is to be loaded do not match. Returns how long the others are at least.
    fn write_check(&mut self, known: u32, place: u32, width: Width) -> Result<u32, Obstacle> {
        let end = end_of(place, width)?;
        if end <= known {
            return Ok(known);
        }
        self.code.push(MOVE_64, ADDRESS, FRAME, 0, 0);
        self.code.push(ADD_IMMEDIATE_64, ADDRESS, 0, 0, end as i32);
        self.jump(JUMP_GREATER_64, ADDRESS, FRAME_END, 0, Target::NoMatch, known);
        Ok(end)
    }

    fn write_indexed(&mut self, width: Width, place: u32) -> Result<(), Obstacle> {
        let end = end_of(place, width)?;
        // No frame is as long.
        self.jump(JUMP_GREATER_IMMEDIATE_64, INDEX, 0, FARTHEST as i32, Target::NoMatch, 0);
        self.code.push(MOVE_64, ADDRESS, FRAME, 0, 0);
        self.code.push(ADD_64, ADDRESS, INDEX, 0, 0);
        self.code.push(MOVE_64, LIMIT, ADDRESS, 0, 0);
        self.code.push(ADD_IMMEDIATE_64, LIMIT, 0, 0, end as i32);
        self.jump(JUMP_GREATER_64, LIMIT, FRAME_END, 0, Target::NoMatch, 0);
        self.write_load(width, ADDRESS, place);
        Ok(())
    }

    fn write_load(&mut self, width: Width, base: u8, place: u32) {
        let (load, bits) = match width {
            Width::Byte => (LOAD_BYTE, 8),
            Width::Half => (LOAD_HALF, 16),
            Width::Word => (LOAD_WORD, 32),
        };
        self.code.push(load, ACCUMULATOR, base, place as i16, 0);
        if bits > 8 {
            self.code.push(BIG_ENDIAN, ACCUMULATOR, 0, 0, bits);
        }
    }

    fn write_arithmetic(&mut self, arithmetic: Arithmetic, operand: Operand) {
        let code = ARITHMETIC_CLASS | arithmetic.bits();
        match (arithmetic, operand) {
            (_, Operand::Constant(k)) => return self.code.push(code, ACCUMULATOR, 0, 0, k as i32),
            // Division by zero ends the program.
            (Arithmetic::Divide | Arithmetic::Modulo, _) => {
                self.jump(JUMP_EQUAL_IMMEDIATE, INDEX, 0, 0, Target::NoMatch, 0);
            }
            // Shifts by more than there are bits leave nothing.
            (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, _) => {
                self.code.push(JUMP_GREATER_IMMEDIATE_64, INDEX, 0, 2, 31);
                self.code.push(code | REGISTER, ACCUMULATOR, INDEX, 0, 0);
                self.code.push(JUMP, 0, 0, 1, 0);
                return self.code.push(MOVE_IMMEDIATE, ACCUMULATOR, 0, 0, 0);
            }
            _ => {}
        }
        self.code.push(code | REGISTER, ACCUMULATOR, INDEX, 0, 0);
    }

    /// `next` is the operation that is written next.
    fn write_branch(
        &mut self,
        next: usize,
        comparison: Comparison,
        operand: Operand,
        [then, otherwise]: [usize; 2],
        known: u32,
    ) {
        // What eBPF has besides the comparisons of classic BPF: unequal, less or equal, less.
        let opposite = match comparison {
            Comparison::Equal => Some(0x50),
            Comparison::Greater => Some(0xb0),
            Comparison::GreaterOrEqual => Some(0xa0),
            Comparison::Common => None,
        };
        let (code, to, other) = match opposite {
            Some(opposite) if then == next => (opposite, otherwise, then),
            _ => (comparison.bits(), then, otherwise),
        };
        let target = Target::Operation(to);
        match operand {
            Operand::Constant(k) => self.jump(JUMP_CLASS | code, ACCUMULATOR, 0, k as i32, target, known),
            Operand::Index => self.jump(JUMP_CLASS | code | REGISTER, ACCUMULATOR, INDEX, 0, target, known),
        }
        if other == next {
            self.reach(Target::Operation(other), known);
        } else {
            self.jump(JUMP, 0, 0, 0, Target::Operation(other), known);
        }
    }
}

/// Whether an operation reads the index register.
fn uses_index(operation: &Operation) -> bool {
    match operation {
        Operation::LoadIndexed(..) | Operation::StoreIndex(_) | Operation::FromIndex => true,
        Operation::Compute(_, operand) | Operation::Branch { operand, .. } => *operand == Operand::Index,
        _ => false,
    }
}

/// The byte behind what is loaded.
fn end_of(place: u32, width: Width) -> Result<u32, Obstacle> {
    let bytes = match width {
        Width::Byte => 1,
        Width::Half => 2,
        Width::Word => 4,
    };
    if place > FARTHEST - 4 { Err(Obstacle::Far) } else { Ok(place + bytes) }
}
