//! What of a rule set a port can do by itself, before its receive queues see a frame: a program for
//! [`EarlyDrop`](ports::EarlyDrop).
//!
//! The rules are taken in their order, up to the first that cannot be pushed down. Those that drop become code that names
//! the rule; those that pass end the program, so that the frame goes on to the receive queue. There, all rules are
//! looked at again: nothing depends on whether, or since when, the port has the program.
//!
//! The code is eBPF made from verified programs of classic BPF, with a check of the frame's end before each load, so
//! that it does what the interpreter does. The kernel verifies it once more.

use std::collections::HashMap;

use ports::early_drop::{DropProgram, Instruction, PrefixTable};

use crate::bpf::{Arithmetic, Comparison, Operand, Operation, Width};
use crate::prefix::{Prefix, PrefixExpression, recognise};
use crate::rule::{Rule, Verdict};
use crate::rule_set::RuleSet;

/// A rule set's head as a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushDown {
    /// The program; `None` where no rule of the head drops.
    pub program: Option<DropProgram>,
    /// How many rules it has: the first ones.
    pub rules: usize,
    /// How many rules there are before the first that cannot be pushed down, or all.
    pub head: usize,
    /// Why the next rule is not among them.
    pub obstacle: Option<Obstacle>,
}

/// Why a rule cannot be pushed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Obstacle {
    #[error("it limits a rate")]
    Limit,
    #[error("it asks for the frame's length, and parts of a TCP burst are put together only later")]
    Length,
    #[error("it asks for what is more than {FARTHEST} bytes behind the frame's start")]
    Far,
    #[error("the rules up to it have more than {} prefixes", DropProgram::MAX_RULES)]
    Prefixes,
    #[error("the rules up to it take more than {} instructions", DropProgram::MAX_INSTRUCTIONS)]
    Instructions,
}

/// How far behind the frame's start, or the index register, something can be asked for; the kernel follows addresses in
/// frames for 64 KiB.
const FARTHEST: u32 = 0x7f00;

/// The part of a rule set that can be pushed down.
pub fn push_down(set: &RuleSet) -> PushDown {
    let mut code = Code::default();
    let (mut obstacle, mut count) = (None, 0);
    while count < set.rules().len() {
        let (instructions, tables) = (code.len(), code.tables.len());
        let jumps = code.ends.len();
        let prefixes = prefixes_from(set, count);
        let written = match prefixes.len() {
            TABLE_FROM.. => write_tables(&mut code, &prefixes).map(|()| true),
            _ => write_rule(&mut code, set, count),
        };
        let written = written.and_then(|goes_on| match code.len() {
            ..DropProgram::MAX_INSTRUCTIONS => Ok(goes_on),
            _ => Err(Obstacle::Instructions),
        });
        match written {
            Ok(true) => count += if prefixes.len() < TABLE_FROM { 1 } else { prefixes.len() },
            // What follows is never reached.
            Ok(false) => count = set.rules().len(),
            Err(reason) => {
                code.instructions.truncate(instructions);
                code.tables.truncate(tables);
                code.ends.truncate(jumps);
                obstacle = Some(reason);
                break;
            }
        }
    }
    let drops = set.rules()[..count].iter().any(|rule| rule.verdict == Verdict::Drop);
    let tables = std::mem::take(&mut code.tables);
    let program = drops.then(|| DropProgram { instructions: code.finish(), rules: count as u32, tables });
    PushDown { program, rules: if drops { count } else { 0 }, head: count, obstacle }
}

/// So many consecutive rules that name a prefix only become look-ups.
const TABLE_FROM: usize = 4;

/// A rule that names a prefix only.
struct PrefixRule {
    expression: PrefixExpression,
    /// What tables have: the number of the rule, and a bit that says whether it passes. The first rule has the least.
    value: u32,
}

/// The consecutive rules from one on that name a prefix only, and neither limit a rate.
fn prefixes_from(set: &RuleSet, first: usize) -> Vec<PrefixRule> {
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
fn write_tables(code: &mut Code, rules: &[PrefixRule]) -> Result<(), Obstacle> {
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

/// Writes the code of a rule; returns whether there are frames that go on to the next one.
fn write_rule(code: &mut Code, set: &RuleSet, number: usize) -> Result<bool, Obstacle> {
    let rule = &set.rules()[number];
    let answer = match rule.verdict {
        Verdict::Drop => number as i32,
        Verdict::Pass => DropProgram::NONE,
        Verdict::Limit(_) => return Err(Obstacle::Limit),
    };
    if rule.expression.is_empty() {
        code.answer(answer);
        return Ok(false);
    }
    let own;
    let operations = match set.program(number) {
        Some(program) => program.operations(),
        None => {
            let Some(prefix) = recognise(&rule.expression) else { return Err(Obstacle::Instructions) };
            own = prefix_operations(&prefix);
            &own
        }
    };
    Translation::new(code, operations).write(answer)
}

/// Code that is being written.
#[derive(Clone, Default)]
struct Code {
    instructions: Vec<Instruction>,
    tables: Vec<PrefixTable>,
    /// Jumps to the end.
    ends: Vec<usize>,
    /// Nothing comes here from what was written last.
    ended: bool,
}

/// Registers. The frame begins and ends where the port says ([`DropProgram`]).
const ACCUMULATOR: u8 = 0;
const ADDRESS: u8 = 2;
const LIMIT: u8 = 3;
const FRAME: u8 = 7;
const FRAME_END: u8 = 8;
const INDEX: u8 = 9;
const STACK: u8 = 10;

/// Operations of RFC 9669: those with `_64` for whole registers, the others for their lower halves.
const MOVE_64: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb4;
const MOVE: u8 = 0xbc;
const ADD_64: u8 = 0x0f;
const ADD_IMMEDIATE_64: u8 = 0x07;
const AND_IMMEDIATE: u8 = 0x54;
const SHIFT_LEFT_IMMEDIATE: u8 = 0x64;
const SHIFT_RIGHT_IMMEDIATE: u8 = 0x74;
const NEGATE: u8 = 0x84;
const BIG_ENDIAN: u8 = 0xdc;
const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const STORE_WORD: u8 = 0x63;
const STORE_WORD_IMMEDIATE: u8 = 0x62;
const LOAD_IMMEDIATE_64: u8 = 0x18;
const CALL: u8 = 0x85;
const JUMP: u8 = 0x05;
const JUMP_EQUAL_IMMEDIATE_64: u8 = 0x15;
const JUMP_GREATER_OR_EQUAL: u8 = 0x3e;
const JUMP_GREATER_64: u8 = 0x2d;
const JUMP_GREATER_IMMEDIATE_64: u8 = 0x25;
const JUMP_EQUAL_IMMEDIATE: u8 = 0x16;
const JUMP_UNEQUAL_IMMEDIATE: u8 = 0x56;
/// The class of jumps that look at lower halves, and of arithmetic on them; the bit that says that the operand is a register.
const JUMP_CLASS: u8 = 0x06;
const ARITHMETIC_CLASS: u8 = 0x04;
const REGISTER: u8 = 0x08;

/// The kernel's function that looks something up in a map.
const MAP_LOOK_UP: i32 = 1;

impl Code {
    fn len(&self) -> usize {
        self.instructions.len()
    }

    fn push(&mut self, code: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.ended = false;
        self.instructions.push(Instruction { code, registers: destination | source << 4, offset, immediate });
    }

    /// Ends with an answer.
    fn answer(&mut self, answer: i32) {
        self.push(MOVE_IMMEDIATE, ACCUMULATOR, 0, 0, answer);
        self.end();
    }

    /// Ends with what the accumulator has.
    fn end(&mut self) {
        self.ends.push(self.len());
        self.push(JUMP, 0, 0, 0, 0);
        self.ended = true;
    }

    /// Has the jump at `from` go to what is written next.
    fn land(&mut self, from: usize) {
        self.instructions[from].offset = (self.len() - from - 1) as i16;
        self.ended = false;
    }

    fn finish(mut self) -> Vec<Instruction> {
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

/// Where a jump goes.
#[derive(Clone, Copy)]
enum Target {
    Operation(usize),
    Match,
    NoMatch,
}

/// A program of classic BPF that becomes eBPF.
struct Translation<'a> {
    code: &'a mut Code,
    operations: &'a [Operation],
    /// Where the jumps go that were written.
    jumps: Vec<(usize, Target)>,
    /// Of each operation: how long the frame is at least where it is reached; `None` where it is not reached.
    known: Vec<Option<u32>>,
}

impl<'a> Translation<'a> {
    fn new(code: &'a mut Code, operations: &'a [Operation]) -> Translation<'a> {
        let known = vec![None; operations.len()];
        Translation { code, operations, jumps: Vec::new(), known }
    }

    /// Writes it, with an answer for frames that match. Returns whether there may be others.
    fn write(mut self, answer: i32) -> Result<bool, Obstacle> {
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
        let code = ARITHMETIC_CLASS
            | match arithmetic {
                Arithmetic::Add => 0x00,
                Arithmetic::Subtract => 0x10,
                Arithmetic::Multiply => 0x20,
                Arithmetic::Divide => 0x30,
                Arithmetic::Or => 0x40,
                Arithmetic::And => 0x50,
                Arithmetic::ShiftLeft => 0x60,
                Arithmetic::ShiftRight => 0x70,
                Arithmetic::Modulo => 0x90,
                Arithmetic::Xor => 0xa0,
            };
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
        let (code, opposite) = match comparison {
            Comparison::Equal => (0x10, Some(0x50)),
            Comparison::Greater => (0x20, Some(0xb0)),
            Comparison::GreaterOrEqual => (0x30, Some(0xa0)),
            Comparison::Common => (0x40, None),
        };
        let (code, to, other) = match opposite {
            Some(opposite) if then == next => (opposite, otherwise, then),
            _ => (code, then, otherwise),
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

/// Where a word of the memory is on the stack: below the eight bytes that are the port's.
fn place_of(word: u8) -> i16 {
    -8 - DropProgram::STACK + 4 * i16::from(word)
}

/// What libpcap's program for an expression that names a prefix only does.
fn prefix_operations(expression: &PrefixExpression) -> Vec<Operation> {
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::bpf::{Program, verify};

    /// The rule that drops a frame, as the kernel says.
    fn in_the_kernel(set: &RuleSet, frames: &[Vec<u8>]) -> Vec<Option<u32>> {
        testing::root();
        let pushed = push_down(set);
        let program = pushed.program.as_ref().expect("it can be pushed down");
        assert_eq!(pushed.obstacle, None);
        ports::afxdp::trial(program, frames).unwrap()
    }

    /// The same as the filter says.
    fn here(set: &RuleSet, frame: &[u8]) -> Option<u32> {
        let first = set.first_match(frame)?;
        (set.rules()[first].verdict == Verdict::Drop).then_some(first as u32)
    }

    /// Frames of any kind with addresses, ports and tags that expressions below ask for; cut short here and there.
    fn any_frame() -> impl Strategy<Value = Vec<u8>> {
        let kind =
            prop::sample::select(vec![[0x08, 0x00], [0x08, 0x06], [0x80, 0x35], [0x86, 0xdd], [0x81, 0x00], [9, 9]]);
        let body =
            prop::collection::vec(prop::sample::select(vec![0, 1, 6, 8, 10, 17, 80, 0x45, 0x46, 0xc6, 0xff]), 0..90);
        (kind, body, any::<bool>(), any::<u8>(), 0..4_u8).prop_map(|(kind, body, is_plain, last, option)| {
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
            frame.extend(kind);
            frame.extend(body);
            if is_plain && frame.len() > 42 && kind == [8, 0] {
                frame[14] = 0x45 + option;
                (frame[20], frame[21], frame[23]) = (0, 0, if last & 1 == 0 { 17 } else { 6 });
                frame[30..34].copy_from_slice(&[198, 18 + (last >> 6), 0, last & 3]);
            }
            frame
        })
    }

    /// Prefixes that often hold one another, and addresses of [`any_frame`].
    fn any_prefix() -> impl Strategy<Value = String> {
        let address = prop::sample::select(vec![0x0a0a_0a0a, 0xc612_0000, 0xc612_0002, 0x0101_0101, 0x5011_0a0a]);
        let v4 = (address, 1..=32_u32, any::<bool>()).prop_map(|(address, len, is_ip): (u32, _, _)| {
            let address = Ipv4Addr::from(address & u32::MAX << (32 - len));
            format!("{}dst net {address}/{len}", if is_ip { "ip " } else { "" })
        });
        let v6 = (any::<u8>(), 1..=32_u32).prop_map(|(byte, len)| {
            let byte = [0, 1, 6, 8, 10, 17][usize::from(byte % 6)] as u128;
            let address = std::net::Ipv6Addr::from((byte << 120 | byte << 112) & u128::MAX << (128 - len));
            format!("{}net {address}/{len}", ["src ", "dst ", ""][byte as usize % 3])
        });
        let source = prop::sample::select(vec!["src net 10.0.0.0/8", "net 10.10.0.0/16", "src host 17.17.17.17"]);
        prop_oneof![3 => v4, 1 => v6, 1 => source.prop_map(str::to_owned)]
    }

    const EXPRESSIONS: &[&str] = &[
        "dst net 198.18.0.0/15",
        "ip dst net 198.18.0.0/15",
        "src host 10.10.10.10",
        "net 10.0.0.0/8",
        "ip6 dst net 0a0a::/16",
        "dst host 0a0a:0101:0606:0808:0a0a:0101:0606:0808",
        "net 0a00::/9",
        "udp",
        "tcp dst port 80",
        "udp port 80 or tcp port 10",
        "vlan 257 and udp",
        "ether src 02:00:00:00:00:02",
        "icmp or arp",
        "ip[6:2] & 0x1fff != 0",
        "ip[0] & 0xf > 5",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn",
        "ip proto 17 and ip[ip[0] & 0xf] = 10",
        "ip[1] / ip[2] = 1 or ip[1] << ip[2] = 20 or ip[1] % ip[3] = 2",
        "portrange 70-90 and not src net 10.0.0.0/8",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn the_kernel_drops_what_the_filter_drops(
            rules in prop::collection::vec((prop::bool::weighted(0.7), prop::sample::select(EXPRESSIONS)), 1..6),
            every in any::<bool>(),
            frames in prop::collection::vec(any_frame(), 1..40),
        ) {
            let words = |&(drops, text): &(bool, &str)| format!("{} {text}", if drops { "drop" } else { "pass" });
            let mut text: Vec<_> = rules.iter().map(words).collect();
            text.extend(every.then(|| "drop".to_owned()));
            text.push("drop udp port 10".to_owned());
            let set = RuleSet::compile(&text.join(";")).unwrap();
            for (frame, dropped) in frames.iter().zip(in_the_kernel(&set, &frames)) {
                // What ends within its addresses is left to the filter.
                let is_short = dropped.is_none() && frame.len() < 54;
                prop_assert!(is_short || dropped == here(&set, frame), "{:?} {:02x?}", set.rules(), frame);
            }
        }

        #[test]
        fn the_kernel_finds_the_first_of_many_prefixes(
            rules in prop::collection::vec((prop::bool::weighted(0.7), any_prefix()), 4..30),
            then in prop::sample::select(vec!["drop udp", "drop", "pass icmp; drop ip6", "drop src net 10.0.0.0/9"]),
            frames in prop::collection::vec(any_frame(), 1..40),
        ) {
            let words = |(drops, text): &(bool, String)| format!("{} {text}", if *drops { "drop" } else { "pass" });
            let text = rules.iter().map(words).collect::<Vec<_>>().join(";");
            let set = RuleSet::compile(&format!("drop tcp; {text}; {then}")).unwrap();
            let pushed = push_down(&set).program.unwrap();
            prop_assert!(!pushed.tables.is_empty());
            for (frame, dropped) in frames.iter().zip(in_the_kernel(&set, &frames)) {
                let is_short = dropped.is_none() && frame.len() < 54;
                prop_assert!(is_short || dropped == here(&set, frame), "{:?} {:02x?}", set.rules(), frame);
            }
        }

        #[test]
        fn prefixes_are_programs(at in 0..7_usize, frame in any_frame(), cut in 0..90_usize) {
            let expression = EXPRESSIONS[at];
            let operations = prefix_operations(&recognise(expression).unwrap());
            let frame = &frame[..frame.len().min(14 + cut)];
            let set = RuleSet::compile(&format!("drop {expression}")).unwrap();
            let matches = Program::from_operations(operations).matches(frame);
            prop_assert_eq!(matches, set.first_match(frame).is_some(), "{} {:02x?}", expression, frame);
        }

        #[test]
        fn any_program_is_translated_as_the_interpreter_runs_it(
            body in prop::collection::vec(crate::bpf::tests::any_instruction(), 0..24),
            frames in prop::collection::vec(any_frame(), 1..8),
        ) {
            testing::root();
            let ends = [6, 0x16, 6].map(|code| crate::bpf::Instruction { code, jt: 0, jf: 0, k: u32::from(code == 6) });
            let program: Vec<_> = body.into_iter().chain([ends[0], ends[0]]).chain(ends).collect();
            let Ok(program) = verify(&program) else { return Ok(()) };
            let mut code = Code::default();
            let Ok(_) = Translation::new(&mut code, program.operations()).write(7) else { return Ok(()) };
            let translated = DropProgram { instructions: code.finish(), rules: 8, tables: Vec::new() };
            for (frame, dropped) in frames.iter().zip(ports::afxdp::trial(&translated, &frames).unwrap()) {
                prop_assert_eq!(dropped, program.matches(frame).then_some(7), "{:?} {:02x?}", program, frame);
            }
        }
    }

    #[test]
    fn the_head_is_pushed_down_up_to_the_first_rule_that_cannot_be() {
        let pushed = |text: &str| {
            let pushed = push_down(&RuleSet::compile(text).unwrap());
            (pushed.program.map(|program| program.rules), pushed.rules, pushed.obstacle)
        };
        assert_eq!(pushed("drop udp; pass tcp; drop dst net 10.0.0.0/8"), (Some(3), 3, None));
        assert_eq!(pushed("drop udp; limit 5 tcp; drop icmp"), (Some(1), 1, Some(Obstacle::Limit)));
        assert_eq!(pushed("drop udp; drop greater 100"), (Some(1), 1, Some(Obstacle::Length)));
        assert_eq!(pushed("drop ether[40000] = 1; drop udp"), (None, 0, Some(Obstacle::Far)));
        assert_eq!(pushed("pass udp; pass"), (None, 0, None));
        assert_eq!(pushed(""), (None, 0, None));
        assert_eq!(pushed("drop udp; drop; limit 7"), (Some(3), 3, None));
        let many: Vec<_> = (0..3000).map(|n| format!("drop dst host 10.0.{}.{}", n / 250, n % 250)).collect();
        assert_eq!(pushed(&many.join(";")), (Some(3000), 3000, None));
        let too_many: Vec<_> = (0..17_000).map(|n| format!("drop host 10.0.{}.{}", n / 250, n % 250)).collect();
        let text = format!("drop udp; pass tcp; {}", too_many.join(";"));
        assert_eq!(pushed(&text), (Some(2), 2, Some(Obstacle::Prefixes)));
        let long = (0..150)
            .map(|n| format!("drop udp port {} or tcp port {}", 2 * n, 2 * n + 1))
            .collect::<Vec<_>>()
            .join(";");
        let (program, rules, obstacle) = pushed(&long);
        assert!(program == Some(rules as u32) && (10..150).contains(&rules), "{rules}");
        assert_eq!(obstacle, Some(Obstacle::Instructions));
    }
}
