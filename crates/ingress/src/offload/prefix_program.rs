//! Rules that name a prefix only as programs of classic BPF.

use crate::bpf::{Arithmetic, Comparison, Operand, Operation, Width};
use crate::prefix::{Prefix, PrefixExpression};

/// What libpcap's program for an expression that names a prefix only does.
pub fn prefix_operations(expression: &PrefixExpression) -> Vec<Operation> {
    /// Stand for places that are known later: where the rule matches, and where it does not.
    const MATCH: u16 = u16::MAX;
    const NO_MATCH: u16 = u16::MAX - 1;
    const IPV4: u32 = 0x0800;
    const ARP: u32 = 0x0806;
    const RARP: u32 = 0x8035;
    const IPV6: u32 = 0x86dd;

    let mut operations = vec![Operation::Load(Width::Half, 12)];
    let equal = |k, then, otherwise| Operation::Branch {
        comparison: Comparison::Equal,
        operand: Operand::Constant(k),
        then,
        otherwise,
    };
    // Addresses at these places, each of some words with a mask.
    let addresses = |operations: &mut Vec<Operation>, places: [u32; 2], words: &[(u32, u32)]| {
        let places = [(expression.source, places[0]), (expression.destination, places[1])];
        let wanted: Vec<u32> = places.iter().filter(|(wanted, _)| *wanted).map(|(_, place)| *place).collect();
        for (nth, place) in wanted.iter().enumerate() {
            let length: usize = words.iter().map(|&(_, mask)| if mask == u32::MAX { 2 } else { 3 }).sum();
            let next = (operations.len() + length) as u16;
            let otherwise = if nth + 1 < wanted.len() { next } else { NO_MATCH };
            for (word, &(value, mask)) in words.iter().enumerate() {
                operations.push(Operation::Load(Width::Word, place + 4 * word as u32));
                if mask != u32::MAX {
                    operations.push(Operation::Compute(Arithmetic::And, Operand::Constant(mask)));
                }
                let then = if word + 1 < words.len() { operations.len() as u16 + 1 } else { MATCH };
                operations.push(equal(value, then, otherwise));
            }
        }
    };
    match expression.prefix {
        Prefix::V4 { address, len, arp } => {
            let words = [(address, u32::MAX.unbounded_shl(32 - u32::from(len)))];
            let kind = operations.len();
            operations.push(equal(IPV4, 0, 0));
            addresses(&mut operations, [26, 30], &words);
            let others = operations.len() as u16;
            operations[kind] = equal(IPV4, kind as u16 + 1, if arp { others } else { NO_MATCH });
            if arp {
                operations.extend([equal(ARP, others + 2, others + 1), equal(RARP, others + 2, NO_MATCH)]);
                addresses(&mut operations, [28, 38], &words);
            }
        }
        Prefix::V6 { address, len } => {
            operations.push(equal(IPV6, 2, NO_MATCH));
            let mask = u128::MAX.unbounded_shl(128 - u32::from(len));
            let word = |of: u128, word: usize| (of >> (96 - 32 * word)) as u32;
            let words = (0..4).map(|n| (word(address, n), word(mask, n))).filter(|&(_, mask)| mask != 0);
            addresses(&mut operations, [22, 38], &words.collect::<Vec<_>>());
        }
    }
    let end = operations.len() as u16;
    operations.extend([Operation::Return(1), Operation::Return(0)]);
    for operation in &mut operations {
        if let Operation::Branch { then, otherwise, .. } = operation {
            for target in [then, otherwise] {
                match *target {
                    MATCH => *target = end,
                    NO_MATCH => *target = end + 1,
                    _ => {}
                }
            }
        }
    }
    operations
}
