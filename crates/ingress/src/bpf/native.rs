//! Native code of verified programs.
//!
//! Each load has its check built in: what is behind the end of the frame ends the program, as in the interpreter. A place
//! that all ways to a load have been shown to lie within the frame is not checked again.

#![allow(unsafe_code)]

use std::collections::BTreeMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, MemFlagsData, Type, Value};
use cranelift_frontend::{FunctionBuilder, Variable};

use super::operation::{Arithmetic, Comparison, Operand, Operation, Width};
use super::program::{MEMORY, Program};
use crate::jit::NativeFunction;

/// A program in native code.
#[derive(Clone, Debug)]
pub struct NativeProgram(NativeFunction);

impl NativeProgram {
    /// What [`build`] has built, compiled.
    pub fn new(function: NativeFunction) -> NativeProgram {
        NativeProgram(function)
    }

    /// What the program returns for a frame; 0 where it reads outside of it, or divides by zero.
    #[inline]
    pub fn run(&self, frame: &[u8]) -> u32 {
        type Function = extern "C" fn(data: *const u8, len: u64, unused: u64) -> u64;
        // SAFETY: the code at this address was compiled for this signature, and is there while `self` lives.
        let function = unsafe { std::mem::transmute::<*const u8, Function>(self.0.address()) };
        // It reads nothing but as many bytes as the frame has, from where it begins.
        function(frame.as_ptr(), frame.len() as u64, 0) as u32
    }
}

/// Builds the function of a program, with the frame's start and length as parameters.
pub fn build(program: &Program, builder: &mut FunctionBuilder<'_>) {
    Translation::new(program, builder).translate();
}

struct Translation<'a, 'b> {
    builder: &'a mut FunctionBuilder<'b>,
    operations: &'a [Operation],
    data: Value,
    len: Value,
    accumulator: Variable,
    index: Variable,
    memory: [Variable; MEMORY],
    /// Places to which jumps lead, and how many bytes all ways to there have shown to be in the frame.
    blocks: BTreeMap<usize, (Block, Option<u64>)>,
    /// Where the program ends that cannot go on.
    failed: Block,
}

impl<'a, 'b> Translation<'a, 'b> {
    fn new(program: &'a Program, builder: &'a mut FunctionBuilder<'b>) -> Self {
        let operations = program.operations();
        let entry = builder.current_block().expect("the builder is in the first block");
        let (data, len) = (builder.block_params(entry)[0], builder.block_params(entry)[1]);
        let mut blocks = BTreeMap::new();
        for operation in operations {
            let (then, otherwise) = match *operation {
                Operation::Jump(target) => (target, target),
                Operation::Branch { then, otherwise, .. } => (then, otherwise),
                _ => continue,
            };
            for target in [then, otherwise] {
                blocks.entry(usize::from(target)).or_insert_with(|| (builder.create_block(), None));
            }
        }
        let failed = builder.create_block();
        let mut variable = || builder.declare_var(I32);
        let (accumulator, index, memory) = (variable(), variable(), std::array::from_fn(|_| variable()));
        Translation { operations, data, len, accumulator, index, memory, blocks, failed, builder }
    }

    fn translate(mut self) {
        let zero = self.constant(0);
        for variable in [self.accumulator, self.index].into_iter().chain(self.memory) {
            self.builder.def_var(variable, zero);
        }
        // Bytes that are known to be in the frame; `None` behind the last operation of a block.
        let mut known = Some(0);
        for (at, operation) in self.operations.iter().enumerate() {
            if let Some(&(block, before)) = self.blocks.get(&at) {
                if let Some(known) = known {
                    self.go(at, known);
                    self.builder.ins().jump(block, &[]);
                }
                self.builder.switch_to_block(block);
                known = match (known, before) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => Some(a.or(b).unwrap_or(0)),
                };
            }
            // What no way reaches is left out.
            if let Some(bytes) = known {
                known = self.operation(operation, bytes);
            }
        }
        self.builder.switch_to_block(self.failed);
        let zero = self.builder.ins().iconst(I64, 0);
        self.builder.ins().return_(&[zero]);
    }

    /// Notes that a way on which so many bytes are known to be there leads to a place.
    fn go(&mut self, place: usize, known: u64) {
        let (_, before) = self.blocks.get_mut(&place).expect("all targets have blocks");
        *before = Some(before.map_or(known, |before| before.min(known)));
    }

    /// Translates an operation. Returns how many bytes are known to be there behind it.
    fn operation(&mut self, operation: &Operation, known: u64) -> Option<u64> {
        let mut known = known;
        match *operation {
            Operation::Load(width, place) => {
                let loaded = self.load(width, place, &mut known);
                self.builder.def_var(self.accumulator, loaded);
            }
            Operation::LoadIndexed(width, place) => {
                let index = self.builder.use_var(self.index);
                let (index, place) = (self.builder.ins().uextend(I64, index), self.wide(place.into()));
                let start = self.builder.ins().iadd(index, place);
                let size = self.wide(size(width));
                let end = self.builder.ins().iadd(start, size);
                let is_outside = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, end, self.len);
                self.fail_if(is_outside);
                let loaded = self.load_at(width, start);
                self.builder.def_var(self.accumulator, loaded);
            }
            Operation::LoadConstant(k) => self.set_constant(self.accumulator, k),
            Operation::LoadLength => self.set_length(self.accumulator),
            Operation::LoadMemory(word) => self.copy(self.memory[usize::from(word)], self.accumulator),
            Operation::IndexConstant(k) => self.set_constant(self.index, k),
            Operation::IndexLength => self.set_length(self.index),
            Operation::IndexMemory(word) => self.copy(self.memory[usize::from(word)], self.index),
            Operation::IndexHeaderLength(place) => {
                let byte = self.load(Width::Byte, place, &mut known);
                let (mask, two) = (self.constant(0xf), self.constant(2));
                let words = self.builder.ins().band(byte, mask);
                let bytes = self.builder.ins().ishl(words, two);
                self.builder.def_var(self.index, bytes);
            }
            Operation::Store(word) => self.copy(self.accumulator, self.memory[usize::from(word)]),
            Operation::StoreIndex(word) => self.copy(self.index, self.memory[usize::from(word)]),
            Operation::Compute(arithmetic, operand) => self.compute(arithmetic, operand),
            Operation::Negate => {
                let accumulator = self.builder.use_var(self.accumulator);
                let negative = self.builder.ins().ineg(accumulator);
                self.builder.def_var(self.accumulator, negative);
            }
            Operation::ToIndex => self.copy(self.accumulator, self.index),
            Operation::FromIndex => self.copy(self.index, self.accumulator),
            Operation::Jump(target) => {
                self.go(target.into(), known);
                let block = self.blocks[&usize::from(target)].0;
                self.builder.ins().jump(block, &[]);
                return None;
            }
            Operation::Branch { comparison, operand, then, otherwise } => {
                self.go(then.into(), known);
                self.go(otherwise.into(), known);
                let condition = self.condition(comparison, operand);
                let (then, otherwise) = (self.blocks[&usize::from(then)].0, self.blocks[&usize::from(otherwise)].0);
                self.builder.ins().brif(condition, then, &[], otherwise, &[]);
                return None;
            }
            Operation::Return(k) => {
                let returned = self.wide(k.into());
                self.builder.ins().return_(&[returned]);
                return None;
            }
            Operation::ReturnAccumulator => {
                let accumulator = self.builder.use_var(self.accumulator);
                let returned = self.builder.ins().uextend(I64, accumulator);
                self.builder.ins().return_(&[returned]);
                return None;
            }
        }
        Some(known)
    }

    fn constant(&mut self, k: u32) -> Value {
        self.builder.ins().iconst(I32, i64::from(k))
    }

    fn wide(&mut self, k: u64) -> Value {
        self.builder.ins().iconst(I64, k as i64)
    }

    fn set_constant(&mut self, to: Variable, k: u32) {
        let constant = self.constant(k);
        self.builder.def_var(to, constant);
    }

    fn set_length(&mut self, to: Variable) {
        let len = self.builder.ins().ireduce(I32, self.len);
        self.builder.def_var(to, len);
    }

    fn copy(&mut self, from: Variable, to: Variable) {
        let value = self.builder.use_var(from);
        self.builder.def_var(to, value);
    }

    /// Ends the program where a condition is true.
    fn fail_if(&mut self, condition: Value) {
        let next = self.builder.create_block();
        self.builder.ins().brif(condition, self.failed, &[], next, &[]);
        self.builder.switch_to_block(next);
    }

    fn load(&mut self, width: Width, place: u32, known: &mut u64) -> Value {
        let end = u64::from(place) + size(width);
        if end > *known {
            let wanted = self.wide(end);
            let is_outside = self.builder.ins().icmp(IntCC::UnsignedLessThan, self.len, wanted);
            self.fail_if(is_outside);
            *known = end;
        }
        let place = self.wide(place.into());
        self.load_at(width, place)
    }

    /// Loads a number, big-endian, from a place that lies within the frame.
    fn load_at(&mut self, width: Width, place: Value) -> Value {
        let address = self.builder.ins().iadd(self.data, place);
        let (kind, is_swapped): (Type, bool) = match width {
            Width::Byte => (I8, false),
            Width::Half => (I16, cfg!(target_endian = "little")),
            Width::Word => (I32, cfg!(target_endian = "little")),
        };
        let loaded = self.builder.ins().load(kind, MemFlagsData::new().with_notrap(), address, 0);
        let loaded = if is_swapped { self.builder.ins().bswap(loaded) } else { loaded };
        if kind == I32 { loaded } else { self.builder.ins().uextend(I32, loaded) }
    }

    fn operand(&mut self, operand: Operand) -> Value {
        match operand {
            Operand::Constant(k) => self.constant(k),
            Operand::Index => self.builder.use_var(self.index),
        }
    }

    fn compute(&mut self, arithmetic: Arithmetic, operand: Operand) {
        let (a, b) = (self.builder.use_var(self.accumulator), self.operand(operand));
        let zero = self.constant(0);
        if matches!(arithmetic, Arithmetic::Divide | Arithmetic::Modulo) {
            let is_zero = self.builder.ins().icmp(IntCC::Equal, b, zero);
            self.fail_if(is_zero);
        }
        let ins = self.builder.ins();
        let result = match arithmetic {
            Arithmetic::Add => ins.iadd(a, b),
            Arithmetic::Subtract => ins.isub(a, b),
            Arithmetic::Multiply => ins.imul(a, b),
            Arithmetic::Divide => ins.udiv(a, b),
            Arithmetic::Modulo => ins.urem(a, b),
            Arithmetic::And => ins.band(a, b),
            Arithmetic::Or => ins.bor(a, b),
            Arithmetic::Xor => ins.bxor(a, b),
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight => {
                let shifted = if arithmetic == Arithmetic::ShiftLeft { ins.ishl(a, b) } else { ins.ushr(a, b) };
                let bits = self.constant(32);
                let is_short = self.builder.ins().icmp(IntCC::UnsignedLessThan, b, bits);
                self.builder.ins().select(is_short, shifted, zero)
            }
        };
        self.builder.def_var(self.accumulator, result);
    }

    fn condition(&mut self, comparison: Comparison, operand: Operand) -> Value {
        let (a, b) = (self.builder.use_var(self.accumulator), self.operand(operand));
        let code = match comparison {
            Comparison::Equal => IntCC::Equal,
            Comparison::Greater => IntCC::UnsignedGreaterThan,
            Comparison::GreaterOrEqual => IntCC::UnsignedGreaterThanOrEqual,
            Comparison::Common => {
                let (common, zero) = (self.builder.ins().band(a, b), self.constant(0));
                return self.builder.ins().icmp(IntCC::NotEqual, common, zero);
            }
        };
        self.builder.ins().icmp(code, a, b)
    }
}

/// How many bytes are loaded.
fn size(width: Width) -> u64 {
    match width {
        Width::Byte => 1,
        Width::Half => 2,
        Width::Word => 4,
    }
}
