//! Native code of verified programs.
//!
//! [`verify`](super::verify) has proved that loads and stores stay where they may, so what is built here accesses just what
//! the program's operations do. Should the verifier be wrong, programs still cannot leave the frame and the values of
//! their maps: each access to them is compared with their bounds, and ends the program with `XDP_ABORTED` outside of them.
//! So do instructions that no way reaches, as these were not proved. Accesses to the stack are at places that are fixed
//! when the program is compiled, and are not compared.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{
    AtomicRmwOp, Block, InstBuilder, MemFlagsData, SigRef, StackSlotData, StackSlotKind, Type, Value,
};
use cranelift_frontend::{FunctionBuilder, Variable};

use super::arithmetic::{Arithmetic, Comparison};
use super::helper::Helper;
use super::instruction::{Address, Atomic, FRAME, Operand, Operation, REGISTERS, Width};
use super::interpreter::errno;
use super::map::table::MAX_KEY;
use super::map::{MAX_SET, Map};
use super::program::{Access, Program};
use crate::jit::{Compiler, JitError, NativeFunction};

/// A program in native code.
#[derive(Debug)]
pub struct NativeProgram {
    function: NativeFunction,
    /// The code holds their addresses.
    _maps: Vec<Arc<Map>>,
}

impl NativeProgram {
    /// Compiles a program that was verified with these maps.
    ///
    /// # Errors
    /// There is no native code here.
    pub fn new(program: &Program, maps: &[Arc<Map>]) -> Result<NativeProgram, JitError> {
        let mut compiler = Compiler::new()?;
        let signatures = [compiler.signature(2), compiler.signature(4)];
        let function = compiler.add(|builder| {
            let [two, four] = signatures.map(|signature| builder.import_signature(signature));
            Translation::new(builder, program, maps, [two, four]).translate();
        })?;
        let function = compiler.finish(&[function])?.remove(0);
        Ok(NativeProgram { function, _maps: maps.to_vec() })
    }

    /// Runs it on a frame; the same as [`run`](super::interpreter::run).
    #[inline]
    pub fn run(&self, frame: &[u8], now: u64) -> u64 {
        type Function = extern "C" fn(data: *const u8, end: *const u8, now: u64) -> u64;
        let range = frame.as_ptr_range();
        // SAFETY: the code at this address was compiled for this signature, and is there while `self.function` lives.
        let function = unsafe { std::mem::transmute::<*const u8, Function>(self.function.address()) };
        // What it does was proved to be harmless by the verifier, given that the two pointers are the bounds of memory that
        // can be read, and that the maps live.
        function(range.start, range.end, now)
    }
}

struct Translation<'a, 'b> {
    builder: &'a mut FunctionBuilder<'b>,
    program: &'a Program,
    maps: &'a [Arc<Map>],
    registers: [Variable; REGISTERS],
    /// Places to which jumps lead, and those behind branches.
    blocks: BTreeMap<usize, Block>,
    data: Value,
    end: Value,
    /// By the logarithm of an access's bytes: at how many places of the frame, from its start on, it may be.
    room: [Value; 4],
    now: Value,
    /// Where an access ends that is out of bounds.
    outside: Block,
    /// Of helpers with two arguments, and with four.
    signatures: [SigRef; 2],
}

impl<'a, 'b> Translation<'a, 'b> {
    fn new(
        builder: &'a mut FunctionBuilder<'b>,
        program: &'a Program,
        maps: &'a [Arc<Map>],
        signatures: [SigRef; 2],
    ) -> Self {
        let entry = builder.current_block().expect("the builder is in the first block");
        let parameters = builder.block_params(entry);
        let (data, end, now) = (parameters[0], parameters[1], parameters[2]);
        let registers = std::array::from_fn(|_| builder.declare_var(I64));
        let mut blocks = BTreeMap::new();
        for (at, operation) in program.operations().iter().enumerate() {
            let (target, behind) = match operation {
                Operation::Jump(target) => (Some(*target), true),
                Operation::Branch { target, .. } => (Some(*target), true),
                Operation::Exit => (None, true),
                _ => (None, false),
            };
            for place in target.map(usize::from).into_iter().chain(behind.then_some(at + 1)) {
                if place < program.operations().len() {
                    blocks.entry(place).or_insert_with(|| builder.create_block());
                }
            }
        }
        let outside = builder.create_block();
        let len = builder.ins().isub(end, data);
        let zero = builder.ins().iconst(I64, 0);
        let room = std::array::from_fn(|log| {
            let bytes = builder.ins().iconst(I64, (1 << log) - 1);
            let (is_there, room) =
                (builder.ins().icmp(IntCC::UnsignedGreaterThan, len, bytes), builder.ins().isub(len, bytes));
            builder.ins().select(is_there, room, zero)
        });
        Translation { builder, program, maps, registers, blocks, data, end, room, now, outside, signatures }
    }

    fn translate(mut self) {
        let zero = self.constant(0);
        for register in self.registers {
            self.builder.def_var(register, zero);
        }
        // Nothing is read by way of the first one, and of the other without a stack; but they are not null.
        for register in [1, FRAME] {
            self.builder.def_var(self.registers[usize::from(register)], self.data);
        }
        let depth = self.program.stack();
        if depth > 0 {
            let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, depth as u32, 3);
            let slot = self.builder.create_sized_stack_slot(slot);
            let end = self.builder.ins().stack_addr(I64, slot, depth as i32);
            self.builder.def_var(self.registers[usize::from(FRAME)], end);
        }
        // Whether the block has its last instruction.
        let mut is_closed = false;
        for at in 0..self.program.operations().len() {
            if let Some(&block) = self.blocks.get(&at) {
                if !is_closed {
                    self.builder.ins().jump(block, &[]);
                }
                self.builder.switch_to_block(block);
                is_closed = false;
            }
            if is_closed || self.program.operations()[at] == Operation::Second {
                continue;
            }
            is_closed = match self.program.accesses()[at] {
                Access::Never => {
                    self.abort();
                    true
                }
                access => self.operation(at, access),
            };
        }
        if !is_closed {
            self.abort();
        }
        self.builder.switch_to_block(self.outside);
        self.abort();
    }

    /// Ends the program unless an access to the frame or a map's value is within its bounds.
    fn guard(&mut self, access: Access, base: Value, offset: i16, bytes: usize) {
        let (first, room) = match access {
            Access::Frame => (self.data, self.room[bytes.ilog2() as usize]),
            Access::Value(map) => {
                let values = self.maps[map].values();
                let room = (values.bytes().len() + 1).saturating_sub(bytes);
                (self.constant(values.address().expose_provenance() as i64), self.constant(room as i64))
            }
            _ => return,
        };
        let from_first = self.builder.ins().isub(base, first);
        let offset = self.constant(offset.into());
        let place = self.builder.ins().iadd(from_first, offset);
        let is_outside = self.builder.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, place, room);
        let inside = self.builder.create_block();
        self.builder.ins().brif(is_outside, self.outside, &[], inside, &[]);
        self.builder.switch_to_block(inside);
    }

    /// Ends with `XDP_ABORTED`.
    fn abort(&mut self) {
        let aborted = self.constant(0);
        self.builder.ins().return_(&[aborted]);
    }

    /// Translates an operation; whether it was the last one of its block.
    fn operation(&mut self, at: usize, access: Access) -> bool {
        match self.program.operations()[at] {
            Operation::Compute { wide, arithmetic, to, operand } => {
                let (a, b) = (self.register(to), self.operand(operand));
                let result = if wide {
                    self.compute(arithmetic, I64, a, b)
                } else {
                    let (a, b) = (self.builder.ins().ireduce(I32, a), self.builder.ins().ireduce(I32, b));
                    let result = self.compute(arithmetic, I32, a, b);
                    self.builder.ins().uextend(I64, result)
                };
                self.set(to, result);
            }
            Operation::Swap { to, big, bits } => self.swap(to, big, bits),
            Operation::LoadConstant(to, constant) => {
                let constant = self.constant(constant as i64);
                self.set(to, constant);
            }
            Operation::LoadMap(to, map) => {
                let address = self.constant(Arc::as_ptr(&self.maps[map]).expose_provenance() as i64);
                self.set(to, address);
            }
            Operation::LoadMapValue(to, map, offset) => {
                let first = self.maps[map].values().address().expose_provenance() as i64;
                let address = self.constant(first + i64::from(offset));
                self.set(to, address);
            }
            Operation::Second => {}
            Operation::Load(width, to, Address { base, offset }) => {
                let loaded = match access {
                    Access::Data => self.data,
                    Access::DataEnd => self.end,
                    _ => {
                        let base = self.register(base);
                        self.guard(access, base, offset, width.bytes());
                        let kind = kind(width);
                        let loaded = self.builder.ins().load(kind, memory(), base, i32::from(offset));
                        self.extended(kind, loaded)
                    }
                };
                self.set(to, loaded);
            }
            Operation::Store(width, Address { base, offset }, operand) => {
                let (base, value) = (self.register(base), self.operand(operand));
                self.guard(access, base, offset, width.bytes());
                let value = self.reduced(kind(width), value);
                self.builder.ins().store(memory(), value, base, i32::from(offset));
            }
            Operation::Atomic { wide, atomic, address, from, fetch } => {
                let base = self.register(address.base);
                self.guard(access, base, address.offset, if wide { 8 } else { 4 });
                self.atomic(wide, atomic, address, from, fetch);
            }
            Operation::Jump(target) => {
                let block = self.blocks[&usize::from(target)];
                self.builder.ins().jump(block, &[]);
                return true;
            }
            Operation::Branch { wide, comparison, left, right, target } => {
                let condition = self.condition(wide, comparison, left, right);
                let then = self.blocks[&usize::from(target)];
                let Some(&otherwise) = self.blocks.get(&(at + 1)) else {
                    // Behind it there is nothing: the verifier knows that it always jumps.
                    self.builder.ins().jump(then, &[]);
                    return true;
                };
                self.builder.ins().brif(condition, then, &[], otherwise, &[]);
                return true;
            }
            Operation::Call(helper) => {
                let result = self.call(helper, access);
                self.set(0, result);
            }
            Operation::Exit => {
                let result = self.register(0);
                self.builder.ins().return_(&[result]);
                return true;
            }
        }
        false
    }

    fn register(&mut self, register: u8) -> Value {
        self.builder.use_var(self.registers[usize::from(register)])
    }

    fn set(&mut self, register: u8, value: Value) {
        self.builder.def_var(self.registers[usize::from(register)], value);
    }

    fn constant(&mut self, constant: i64) -> Value {
        self.builder.ins().iconst(I64, constant)
    }

    fn operand(&mut self, operand: Operand) -> Value {
        match operand {
            Operand::Constant(constant) => self.constant(constant.into()),
            Operand::Register(register) => self.register(register),
        }
    }

    fn extended(&mut self, kind: Type, value: Value) -> Value {
        if kind == I64 { value } else { self.builder.ins().uextend(I64, value) }
    }

    fn reduced(&mut self, kind: Type, value: Value) -> Value {
        if kind == I64 { value } else { self.builder.ins().ireduce(kind, value) }
    }

    fn compute(&mut self, arithmetic: Arithmetic, kind: Type, a: Value, b: Value) -> Value {
        let ins = self.builder.ins();
        match arithmetic {
            Arithmetic::Add => ins.iadd(a, b),
            Arithmetic::Subtract => ins.isub(a, b),
            Arithmetic::Multiply => ins.imul(a, b),
            Arithmetic::Or => ins.bor(a, b),
            Arithmetic::And => ins.band(a, b),
            Arithmetic::Xor => ins.bxor(a, b),
            // Of the number of bits, the lowest six or five count here, too.
            Arithmetic::ShiftLeft => ins.ishl(a, b),
            Arithmetic::ShiftRight => ins.ushr(a, b),
            Arithmetic::ShiftRightSigned => ins.sshr(a, b),
            Arithmetic::Move => b,
            Arithmetic::Negate => ins.ineg(a),
            Arithmetic::Divide | Arithmetic::Modulo => {
                let (zero, one) = (self.builder.ins().iconst(kind, 0), self.builder.ins().iconst(kind, 1));
                let is_zero = self.builder.ins().icmp(IntCC::Equal, b, zero);
                let divisor = self.builder.ins().select(is_zero, one, b);
                if arithmetic == Arithmetic::Divide {
                    let quotient = self.builder.ins().udiv(a, divisor);
                    self.builder.ins().select(is_zero, zero, quotient)
                } else {
                    let rest = self.builder.ins().urem(a, divisor);
                    self.builder.ins().select(is_zero, a, rest)
                }
            }
        }
    }

    fn swap(&mut self, to: u8, big: bool, bits: u8) {
        let kind = match bits {
            16 => I16,
            32 => I32,
            _ => I64,
        };
        let value = self.register(to);
        let lowest = self.reduced(kind, value);
        let swapped = if big { self.builder.ins().bswap(lowest) } else { lowest };
        let swapped = self.extended(kind, swapped);
        self.set(to, swapped);
    }

    fn atomic(&mut self, wide: bool, atomic: Atomic, Address { base, offset }: Address, from: u8, fetch: bool) {
        let kind = if wide { I64 } else { I32 };
        let (base, offset) = (self.register(base), self.constant(offset.into()));
        let address = self.builder.ins().iadd(base, offset);
        let with = self.register(from);
        let with = self.reduced(kind, with);
        let operation = match atomic {
            Atomic::Add => AtomicRmwOp::Add,
            Atomic::Or => AtomicRmwOp::Or,
            Atomic::And => AtomicRmwOp::And,
            Atomic::Xor => AtomicRmwOp::Xor,
            Atomic::Exchange => AtomicRmwOp::Xchg,
            Atomic::CompareExchange => {
                let expected = self.register(0);
                let expected = self.reduced(kind, expected);
                let was = self.builder.ins().atomic_cas(memory().with_aligned(), address, expected, with);
                let was = self.extended(kind, was);
                self.set(0, was);
                return;
            }
        };
        let was = self.builder.ins().atomic_rmw(kind, memory().with_aligned(), operation, address, with);
        if fetch {
            let was = self.extended(kind, was);
            self.set(from, was);
        }
    }

    fn condition(&mut self, wide: bool, comparison: Comparison, left: u8, right: Operand) -> Value {
        let (a, b) = (self.register(left), self.operand(right));
        let kind = if wide { I64 } else { I32 };
        let (a, b) = (self.reduced(kind, a), self.reduced(kind, b));
        let code = match comparison {
            Comparison::Equal => IntCC::Equal,
            Comparison::Different => IntCC::NotEqual,
            Comparison::Greater => IntCC::UnsignedGreaterThan,
            Comparison::GreaterOrEqual => IntCC::UnsignedGreaterThanOrEqual,
            Comparison::Less => IntCC::UnsignedLessThan,
            Comparison::LessOrEqual => IntCC::UnsignedLessThanOrEqual,
            Comparison::GreaterSigned => IntCC::SignedGreaterThan,
            Comparison::GreaterOrEqualSigned => IntCC::SignedGreaterThanOrEqual,
            Comparison::LessSigned => IntCC::SignedLessThan,
            Comparison::LessOrEqualSigned => IntCC::SignedLessThanOrEqual,
            Comparison::Common => {
                let common = self.builder.ins().band(a, b);
                let zero = self.builder.ins().iconst(kind, 0);
                return self.builder.ins().icmp(IntCC::NotEqual, common, zero);
            }
        };
        self.builder.ins().icmp(code, a, b)
    }

    fn call(&mut self, helper: Helper, access: Access) -> Value {
        let (address, signature, arguments) = match (helper, access) {
            (Helper::Time, _) => return self.now,
            (Helper::MapLookup, Access::Map(map)) if self.maps[map].is_array() => return self.array_element(map),
            (Helper::MapLookup, _) => (map_lookup as *const () as usize, self.signatures[0], 2),
            (Helper::MapDelete, _) => (map_delete as *const () as usize, self.signatures[0], 2),
            (Helper::MapUpdate, _) => (map_update as *const () as usize, self.signatures[1], 4),
        };
        let arguments: Vec<_> = (1..=arguments).map(|register| self.register(register)).collect();
        let address = self.constant(address as i64);
        let call = self.builder.ins().call_indirect(signature, address, &arguments);
        self.builder.inst_results(call)[0]
    }

    /// The address of an element of an array, or null: its index is where r2 points.
    fn array_element(&mut self, map: usize) -> Value {
        let map = &self.maps[map];
        let (first, stride) = (map.values().address().expose_provenance() as i64, map.values().stride() as i64);
        let count = i64::from(map.definition().max_entries);
        let key = self.register(2);
        let index = self.builder.ins().load(I32, memory(), key, 0);
        let index = self.builder.ins().uextend(I64, index);
        let (first, stride, count, null) =
            (self.constant(first), self.constant(stride), self.constant(count), self.constant(0));
        let is_there = self.builder.ins().icmp(IntCC::UnsignedLessThan, index, count);
        let offset = self.builder.ins().imul(index, stride);
        let address = self.builder.ins().iadd(first, offset);
        self.builder.ins().select(is_there, address, null)
    }
}

/// The type of a load or a store.
fn kind(width: Width) -> Type {
    match width {
        Width::Byte => I8,
        Width::Half => I16,
        Width::Word => I32,
        Width::Double => I64,
    }
}

/// Accesses never fault, and may be at any place. On x86-64 and ARM64, bytes lie as they do in eBPF.
fn memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// `bpf_map_lookup_elem` for native code.
extern "C" fn map_lookup(map: *const Map, key: *const u8) -> *mut u8 {
    // SAFETY: the verifier has proved that r1 is a map of the program, which holds it, and that as many bytes as its keys
    // have can be read where r2 points.
    let (map, key) = unsafe { (&*map, Key::new(&*map, key)) };
    match map.find(key.bytes()) {
        Some(slot) => map.values().address().wrapping_add(slot * map.values().stride()),
        None => std::ptr::null_mut(),
    }
}

/// `bpf_map_update_elem` for native code.
extern "C" fn map_update(map: *const Map, key: *const u8, value: *const u8, flags: u64) -> u64 {
    let mut copy = [0; MAX_SET];
    // SAFETY: as above; and as many bytes as the map's values have can be read where r3 points. That these are not more
    // than fit into the copy was proved, too.
    let (map, key, value) = unsafe {
        let copy = &mut copy[..(*map).definition().value_size as usize];
        read(value, copy);
        (&*map, Key::new(&*map, key), copy)
    };
    errno(map.update(key.bytes(), value, flags, false))
}

/// `bpf_map_delete_elem` for native code.
extern "C" fn map_delete(map: *const Map, key: *const u8) -> u64 {
    // SAFETY: as of `map_lookup`.
    let (map, key) = unsafe { (&*map, Key::new(&*map, key)) };
    errno(map.delete(key.bytes(), false))
}

/// A copy of a key.
struct Key {
    copy: [u8; MAX_KEY],
    len: usize,
}

impl Key {
    /// # Safety
    /// As many bytes as the map's keys have can be read there.
    unsafe fn new(map: &Map, key: *const u8) -> Key {
        let (mut copy, len) = ([0; MAX_KEY], map.definition().key_size as usize);
        // SAFETY: as the caller promises.
        unsafe { read(key, &mut copy[..len]) };
        Key { copy, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.copy[..self.len]
    }
}

/// Copies bytes that others may write at the same time.
///
/// # Safety
/// As many bytes can be read there.
unsafe fn read(from: *const u8, into: &mut [u8]) {
    for (i, into) in into.iter_mut().enumerate() {
        // SAFETY: as the caller promises; others access the byte atomically, or by native code.
        *into = unsafe { (*from.add(i).cast::<AtomicU8>()).load(Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::assembler::maps;
    use super::*;

    /// What a program returns for a frame of eight bytes, in the middle of others, that accesses what it may not.
    fn run(operations: &[Operation], accesses: &[Access]) -> u64 {
        let program = Program::new(operations.to_vec(), accesses.to_vec(), 100, 0);
        let maps: Vec<_> = maps().into_iter().map(|definition| Arc::new(Map::new(definition))).collect();
        let native = NativeProgram::new(&program, &maps).expect("there is native code");
        native.run(&[7; 24][8..16], 0)
    }

    #[test]
    #[cfg_attr(miri, ignore = "there is no native code")]
    fn accesses_that_the_verifier_should_have_refused_end_the_program() {
        let exits = |operation: Operation, access: Access| {
            let start =
                [Operation::Load(Width::Word, 1, Address { base: 1, offset: 0 }), Operation::LoadMapValue(2, 0, 0)];
            let one = Operation::LoadConstant(0, 1);
            let operations =
                [start[0], start[1], Operation::Second, one, Operation::Second, operation, Operation::Exit];
            let accesses = [[Access::Data].as_slice(), &[Access::Plain; 4], &[access, Access::Plain]].concat();
            run(&operations, &accesses)
        };
        for width in [Width::Byte, Width::Half, Width::Word, Width::Double] {
            let (load, bytes) =
                (|base, offset| Operation::Load(width, 0, Address { base, offset }), width.bytes() as i16);
            let sevens = u64::MAX / 255 * 7 >> (64 - 8 * bytes);
            let frame = |offset| exits(load(1, offset), Access::Frame);
            assert_eq!([0, 8 - bytes].map(frame), [sevens; 2]);
            assert_eq!([-1, -8, 9 - bytes, 8, i16::MIN, i16::MAX].map(frame), [0; 6]);
            // Four values of sixteen bytes.
            let value = |offset| exits(load(2, offset), Access::Value(0));
            assert_eq!([-1, -8, 65 - bytes, 64].map(value), [0; 4]);
            let stored = |offset| {
                exits(Operation::Store(width, Address { base: 2, offset }, Operand::Constant(1)), Access::Value(0))
            };
            assert_eq!([-1, 0, 64 - bytes, 65 - bytes].map(stored), [0, 1, 1, 0]);
        }
        let added = |offset| {
            let (atomic, address) = (Atomic::Add, Address { base: 2, offset });
            exits(Operation::Atomic { wide: true, atomic, address, from: 0, fetch: false }, Access::Value(0))
        };
        assert_eq!([-8, 0, 56, 64].map(added), [0, 1, 1, 0]);
    }
}
