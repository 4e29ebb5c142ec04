//! Rules that name a prefix only as look-ups in the kernel's tables of prefixes.

use std::collections::HashMap;

use ports::early_drop::{DropProgram, PrefixTable};

use super::Obstacle;
use super::code::*;
use crate::prefix::{Prefix, PrefixExpression, recognise};
use crate::rule::{Rule, Verdict};
use crate::rule_set::RuleSet;

/// A rule that names a prefix only.
pub struct PrefixRule {
    expression: PrefixExpression,
    /// What tables have: the number of the rule, and a bit that says whether it passes. The first rule has the least.
    value: u32,
}

/// The consecutive rules from one on that name a prefix only, and neither limit a rate.
pub fn prefixes_from(set: &RuleSet, first: usize) -> Vec<PrefixRule> {
    let rules = set.rules()[first..].iter().zip(first as u32..);
    let prefix = |(rule, number): (&Rule, u32)| match rule.verdict {
        Verdict::Limit(_) => None,
        verdict => Some(PrefixRule {
            expression: recognise(&rule.expression)?,
            value: number << 1 | u32::from(verdict == Verdict::Pass),
        }),
    };
    rules.map_while(prefix).collect()
}

/// Writes look-ups for rules that name a prefix only: the first whose prefix holds one of the addresses decides. A frame that
/// ends within its addresses is left to the receive queue.
pub fn write_tables(code: &mut Code, rules: &[PrefixRule]) -> Result<(), Obstacle> {
    /// Types of frames with the places of their addresses.
    const KINDS: [(i32, usize, [u32; 2]); 4] =
        [(0x0800, 4, [26, 30]), (0x86dd, 16, [22, 38]), (0x0806, 4, [28, 38]), (0x8035, 4, [28, 38])];

    let of_kind = |kind: i32, wanted: fn(&PrefixExpression) -> bool| {
        let rules = rules.iter().filter(|rule| wanted(&rule.expression));
        let entries = rules.filter_map(move |rule| match (rule.expression.prefix, kind) {
            (Prefix::V4 { arp: false, .. }, 0x0806 | 0x8035) | (Prefix::V4 { .. }, 0x86dd) => None,
            (Prefix::V4 { address, len, .. }, _) => Some((len, u128::from(address) << 96, rule.value)),
            (Prefix::V6 { address, len }, 0x86dd) => Some((len, address, rule.value)),
            (Prefix::V6 { .. }, _) => None,
        });
        first_of_holding(entries.collect())
    };
    let mut short = Vec::new();
    code.push(MOVE_IMMEDIATE, INDEX, 0, 0, DropProgram::NONE);
    write_end_check(code, 14, &mut short);
    code.push(LOAD_HALF, ACCUMULATOR, FRAME, 12, 0);
    code.push(BIG_ENDIAN, ACCUMULATOR, 0, 0, 16);
    let mut done = Vec::new();
    for (kind, bytes, places) in KINDS {
        let directions: [fn(&PrefixExpression) -> bool; 2] = [|e| e.source, |e| e.destination];
        let tables = directions.map(|wanted| of_kind(kind, wanted));
        if tables.iter().all(Vec::is_empty) {
            continue;
        }
        let other_kind = code.len();
        code.push(JUMP_UNEQUAL_IMMEDIATE, ACCUMULATOR, 0, 0, kind);
        for (entries, place) in tables.into_iter().zip(places).filter(|(entries, _)| !entries.is_empty()) {
            write_end_check(code, place as usize + bytes, &mut short);
            write_look_up(code, place as i16, bytes);
            code.tables.push(PrefixTable { address_bytes: bytes, entries });
        }
        done.push(code.len());
        code.push(JUMP, 0, 0, 0, 0);
        code.land(other_kind);
    }
    // What is of no kind goes on, and so does what no rule holds.
    let unknown_kind = code.len();
    code.push(JUMP, 0, 0, 0, 0);
    done.into_iter().for_each(|from| code.land(from));
    let none = code.len();
    code.push(JUMP_EQUAL_IMMEDIATE, INDEX, 0, 0, DropProgram::NONE);
    code.push(MOVE, ACCUMULATOR, INDEX, 0, 0);
    code.push(AND_IMMEDIATE, ACCUMULATOR, 0, 0, 1);
    short.push(code.len());
    code.push(JUMP_UNEQUAL_IMMEDIATE, ACCUMULATOR, 0, 0, 0);
    code.push(MOVE, ACCUMULATOR, INDEX, 0, 0);
    code.push(SHIFT_RIGHT_IMMEDIATE, ACCUMULATOR, 0, 0, 1);
    code.end();
    short.into_iter().for_each(|from| code.land(from));
    code.answer(DropProgram::NONE);
    code.land(unknown_kind);
    code.land(none);
    let entries: usize = code.tables.iter().map(|table| table.entries.len()).sum();
    if entries > DropProgram::MAX_RULES { Err(Obstacle::Prefixes) } else { Ok(()) }
}

/// Prefixes, each with the first rule whose prefix holds it, however short that is.
fn first_of_holding(rules: Vec<(u8, u128, u32)>) -> Vec<(u8, [u8; 16], u32)> {
    let bits = |address: u128, len: u8| address & u128::MAX.unbounded_shl(128 - u32::from(len));
    let mut first: HashMap<(u8, u128), u32> = HashMap::new();
    for (len, address, value) in rules {
        first.entry((len, bits(address, len))).and_modify(|first| *first = value.min(*first)).or_insert(value);
    }
    let mut lengths: Vec<u8> = first.keys().map(|&(len, _)| len).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let holding = |&(len, address): &(u8, u128)| {
        let shorter = lengths.iter().take_while(|&&shorter| shorter <= len);
        let rule = shorter.filter_map(|&shorter| first.get(&(shorter, bits(address, shorter)))).min();
        (len, address.to_be_bytes(), rule.copied().unwrap_or(u32::MAX))
    };
    first.keys().map(holding).collect()
}

/// Frames that end before a place are left to the receive queue.
fn write_end_check(code: &mut Code, end: usize, short: &mut Vec<usize>) {
    code.push(MOVE_64, ADDRESS, FRAME, 0, 0);
    code.push(ADD_IMMEDIATE_64, ADDRESS, 0, 0, end as i32);
    short.push(code.len());
    code.push(JUMP_GREATER_64, ADDRESS, FRAME_END, 0, 0);
}

/// Looks an address up in the table that is added next, and keeps the least of what was found in the index register.
fn write_look_up(code: &mut Code, place: i16, bytes: usize) {
    let key = place_of(0);
    code.push(STORE_WORD_IMMEDIATE, STACK, 0, key, 8 * bytes as i32);
    for word in (0..bytes as i16).step_by(4) {
        code.push(LOAD_WORD, ACCUMULATOR, FRAME, place + word, 0);
        code.push(STORE_WORD, STACK, ACCUMULATOR, key + 4 + word, 0);
    }
    code.push(LOAD_IMMEDIATE_64, 1, DropProgram::TABLE, 0, code.tables.len() as i32);
    code.push(0, 0, 0, 0, 0);
    code.push(MOVE_64, ADDRESS, STACK, 0, 0);
    code.push(ADD_IMMEDIATE_64, ADDRESS, 0, 0, key.into());
    code.push(CALL, 0, 0, 0, MAP_LOOK_UP);
    code.push(JUMP_EQUAL_IMMEDIATE_64, ACCUMULATOR, 0, 3, 0);
    code.push(LOAD_WORD, ACCUMULATOR, ACCUMULATOR, 0, 0);
    code.push(JUMP_GREATER_OR_EQUAL, ACCUMULATOR, INDEX, 1, 0);
    code.push(MOVE, INDEX, ACCUMULATOR, 0, 0);
}
