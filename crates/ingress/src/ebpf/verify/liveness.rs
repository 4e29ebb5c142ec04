//! Which registers a program may still read, at each place. Others don't matter where two states are compared.

use super::super::helper::Helper;
use super::super::instruction::{Atomic, Operand, Operation, Register};

/// How often the program is walked for what is read; each walk sees what one more loop reads.
const WALKS: usize = 64;

/// For each word of a program, the registers that may be read from there on before they are written: one bit for each.
pub fn live_registers(operations: &[Operation]) -> Vec<u16> {
    let mut live = vec![0_u16; operations.len()];
    for _ in 0..WALKS {
        let mut changed = false;
        for at in (0..operations.len()).rev() {
            let next = |at: usize| live.get(at).copied().unwrap_or(0);
            let behind = match operations[at] {
                Operation::Jump(target) => next(target.into()),
                Operation::Branch { target, .. } => next(target.into()) | next(at + 1),
                Operation::Exit => 0,
                _ => next(at + 1),
            };
            let (read, written) = reads_and_writes(&operations[at]);
            let here = behind & !written | read;
            changed |= here != live[at];
            live[at] = here;
        }
        if !changed {
            return live;
        }
    }
    vec![u16::MAX; operations.len()]
}

fn bit(register: Register) -> u16 {
    1 << register
}

fn of_operand(operand: Operand) -> u16 {
    match operand {
        Operand::Register(register) => bit(register),
        Operand::Constant(_) => 0,
    }
}

fn reads_and_writes(operation: &Operation) -> (u16, u16) {
    use super::super::arithmetic::Arithmetic;
    match *operation {
        Operation::Compute { arithmetic: Arithmetic::Move, to, operand, .. } => (of_operand(operand), bit(to)),
        Operation::Compute { to, operand, .. } => (bit(to) | of_operand(operand), bit(to)),
        Operation::Swap { to, .. } => (bit(to), bit(to)),
        Operation::LoadConstant(to, _) | Operation::LoadMap(to, _) | Operation::LoadMapValue(to, ..) => (0, bit(to)),
        Operation::Load(_, to, address) => (bit(address.base), bit(to)),
        Operation::Store(_, address, from) => (bit(address.base) | of_operand(from), 0),
        Operation::Atomic { atomic, address, from, fetch, .. } => {
            let exchanged = if atomic == Atomic::CompareExchange { bit(0) } else { 0 };
            let written = match (atomic, fetch) {
                (Atomic::CompareExchange, _) => bit(0),
                (_, true) => bit(from),
                (_, false) => 0,
            };
            (bit(address.base) | bit(from) | exchanged, written)
        }
        Operation::Branch { left, right, .. } => (bit(left) | of_operand(right), 0),
        Operation::Call(helper) => {
            let arguments = match helper {
                Helper::MapLookup | Helper::MapDelete => 2,
                Helper::MapUpdate => 4,
                Helper::Time => 0,
            };
            ((1..=arguments).map(bit).sum(), 0b11_1111)
        }
        Operation::Exit => (bit(0), 0),
        Operation::Jump(_) | Operation::Second => (0, 0),
    }
}
