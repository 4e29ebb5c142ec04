//! What an instruction does to what is known, and whether it may.

use super::super::arithmetic::{Arithmetic, Comparison};
use super::super::helper::Helper;
use super::super::instruction::{Address, Atomic, Operand, Operation, Register, Width};
use super::super::map::{Definition, MAX_SET, READ_ONLY};
use super::super::program::Access;
use super::scalar::Scalar;
use super::state::{MAX_PACKET, State, Value};

/// Where a way goes on.
pub enum Next {
    /// At this place.
    At(usize),
    /// At this place, or at the other one with another state.
    Either(usize, Box<(usize, State)>),
    /// Nowhere.
    End,
}

/// Executes instructions on what is known.
pub struct Step<'a> {
    operations: &'a [Operation],
    maps: &'a [Definition],
    /// The last number that was given to values that are the same.
    last_id: u32,
    /// What each instruction accesses.
    pub accesses: Vec<Access>,
    /// How many bytes of stack are used.
    pub stack: usize,
}

/// Native code of an instruction is either for `struct xdp_md` or for memory.
const SOMETIMES_CONTEXT: &str = "it accesses xdp_md on one way, and something else on another";

type Checked<T> = Result<T, String>;

impl<'a> Step<'a> {
    /// For a program and its maps.
    pub fn new(operations: &'a [Operation], maps: &'a [Definition]) -> Step<'a> {
        Step { operations, maps, last_id: 0, accesses: vec![Access::Never; operations.len()], stack: 0 }
    }

    /// Executes an instruction.
    ///
    /// # Errors
    /// Why it may not be executed.
    pub fn step(&mut self, at: usize, state: &mut State) -> Checked<Next> {
        let operation = *self.operations.get(at).ok_or("the program has no end (exit) here")?;
        let mut access = Access::Plain;
        let next = Next::At(at + 1);
        let next = match operation {
            Operation::Compute { wide, arithmetic, to, operand } => {
                self.compute(state, wide, arithmetic, to, operand)?;
                next
            }
            Operation::Swap { to, bits, big } => {
                let scalar = number(state, to)?;
                let swapped = match (scalar.as_constant(), big) {
                    (Some(constant), true) => Scalar::constant(constant.swap_bytes() >> (64 - bits)),
                    (_, true) => Scalar::of_bytes(usize::from(bits / 8)),
                    (_, false) => scalar.lowest(usize::from(bits / 8)),
                };
                state.set(to, Value::Number { scalar: swapped, id: 0 });
                next
            }
            Operation::LoadConstant(to, constant) => {
                state.set(to, Value::constant(constant));
                Next::At(at + 2)
            }
            Operation::LoadMap(to, map) => {
                state.set(to, Value::Map(map));
                Next::At(at + 2)
            }
            Operation::LoadMapValue(to, map, offset) => {
                state.set(to, Value::MapElement { map, offset: Scalar::constant(offset.into()) });
                Next::At(at + 2)
            }
            Operation::Second => return Err("the program jumps into a load of 64 bits".into()),
            Operation::Load(width, to, address) => {
                let value;
                (value, access) = self.load(state, width, address)?;
                state.set(to, value);
                next
            }
            Operation::Store(width, address, operand) => {
                access = self.store(state, width, address, operand)?;
                next
            }
            Operation::Atomic { wide, atomic, address, from, fetch } => {
                access = self.atomic(state, wide, atomic, address, from, fetch)?;
                next
            }
            Operation::Jump(target) => Next::At(target.into()),
            Operation::Branch { wide, comparison, left, right, target } => {
                self.branch(state, wide, comparison, (left, right), (at + 1, target.into()))?
            }
            Operation::Call(helper) => {
                if let (Value::Map(map), true) = (state.register(1), helper != Helper::Time) {
                    access = Access::Map(map);
                }
                let result = self.call(state, helper).map_err(|reason| format!("{}: {reason}", helper.name()))?;
                (1..=5).for_each(|register| state.set(register, Value::Nothing));
                state.set(0, result);
                next
            }
            Operation::Exit => {
                number(state, 0).map_err(|_| "the program ends with r0 not a number: return XDP_PASS or XDP_DROP")?;
                Next::End
            }
        };
        self.stack = self.stack.max(state.depth());
        match self.accesses[at] {
            Access::Never => self.accesses[at] = access,
            known if known == access => {}
            Access::Data | Access::DataEnd => return Err(SOMETIMES_CONTEXT.into()),
            _ if matches!(access, Access::Data | Access::DataEnd) => return Err(SOMETIMES_CONTEXT.into()),
            _ => self.accesses[at] = Access::Plain,
        }
        Ok(next)
    }

    fn new_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    fn compute(
        &mut self,
        state: &mut State,
        wide: bool,
        arithmetic: Arithmetic,
        to: Register,
        operand: Operand,
    ) -> Checked<()> {
        let right = match operand {
            Operand::Constant(constant) => Value::constant(i64::from(constant) as u64),
            Operand::Register(register) => written(state, register)?,
        };
        if arithmetic == Arithmetic::Move {
            return self.copy(state, wide, to, operand, right);
        }
        let left = written(state, to)?;
        let result = match (left, right) {
            (Value::Number { scalar: a, .. }, Value::Number { scalar: b, .. }) => {
                Value::Number { scalar: a.apply(arithmetic, wide, b), id: 0 }
            }
            (pointer, Value::Number { scalar, .. })
                if wide && matches!(arithmetic, Arithmetic::Add | Arithmetic::Subtract) =>
            {
                let by = match arithmetic {
                    Arithmetic::Add => scalar,
                    _ => Scalar::constant(0).apply(Arithmetic::Subtract, true, scalar),
                };
                self.moved(pointer, by)?
            }
            (Value::Number { scalar, .. }, pointer) if wide && arithmetic == Arithmetic::Add => {
                self.moved(pointer, scalar)?
            }
            (Value::Packet { .. } | Value::PacketEnd, Value::Packet { .. } | Value::PacketEnd)
                if wide && arithmetic == Arithmetic::Subtract =>
            {
                Value::number(8)
            }
            (Value::Number { .. }, pointer) | (pointer, _) => {
                return Err(format!("computes with {}; a number may be added to it", pointer.name()));
            }
        };
        state.set(to, result);
        Ok(())
    }

    fn copy(&mut self, state: &mut State, wide: bool, to: Register, operand: Operand, value: Value) -> Checked<()> {
        let copied = match (value, operand) {
            (Value::Number { scalar, id }, Operand::Register(from)) if wide || scalar.max <= u32::MAX.into() => {
                // What is found out about one of them is then known of the other, too.
                let id = if id == 0 { self.new_id() } else { id };
                state.set(from, Value::Number { scalar, id });
                Value::Number { scalar, id }
            }
            (Value::Number { scalar, .. }, _) => {
                Value::Number { scalar: if wide { scalar } else { scalar.truncated() }, id: 0 }
            }
            (pointer, _) if wide => pointer,
            (pointer, _) => return Err(format!("copies half of {}", pointer.name())),
        };
        state.set(to, copied);
        Ok(())
    }

    /// A pointer to which a number was added.
    fn moved(&mut self, pointer: Value, by: Scalar) -> Checked<Value> {
        let constant = by.as_constant().map(|constant| constant as i64);
        match (pointer, constant) {
            (Value::MapElement { map, offset }, _) => {
                Ok(Value::MapElement { map, offset: offset.apply(Arithmetic::Add, true, by) })
            }
            (Value::Stack(offset), Some(by)) => match i64::from(offset).checked_add(by) {
                Some(offset) if offset.unsigned_abs() <= 1 << 20 => Ok(Value::Stack(offset as i32)),
                _ => Err("moves a pointer to the stack too far".into()),
            },
            (Value::Stack(_), None) => Err("adds a number that is not constant to a pointer to the stack".into()),
            (Value::Packet { id, offset, more, range }, Some(by)) => match i64::from(offset).checked_add(by) {
                Some(offset) if offset.unsigned_abs() <= MAX_PACKET => {
                    Ok(Value::Packet { id, offset: offset as i32, more, range })
                }
                _ => Err(format!("moves a pointer into the frame by more than {MAX_PACKET} bytes")),
            },
            (Value::Packet { offset, more, .. }, None) => {
                let more = more.saturating_add(by.max);
                if more > MAX_PACKET {
                    return Err(format!(
                        "adds a number of up to {} to a pointer into the frame; bound it with & or a comparison to \
                         {MAX_PACKET} in all",
                        by.max
                    ));
                }
                Ok(Value::Packet { id: self.new_id(), offset, more, range: 0 })
            }
            (Value::MapElementOrNull { .. }, _) => {
                Err("adds to a pointer to a map's value that may be null; compare it with 0 first".into())
            }
            (pointer, Some(0)) => Ok(pointer),
            (pointer, _) => Err(format!("adds to {}", pointer.name())),
        }
    }

    fn load(&self, state: &State, width: Width, Address { base, offset }: Address) -> Checked<(Value, Access)> {
        let bytes = width.bytes();
        let whole = Value::Packet { id: 0, offset: 0, more: 0, range: 0 };
        match (written(state, base)?, offset) {
            (Value::Context, 0) if bytes == 4 => Ok((whole, Access::Data)),
            (Value::Context, 4) if bytes == 4 => Ok((Value::PacketEnd, Access::DataEnd)),
            // There are no metadata: they end where they begin.
            (Value::Context, 8) if bytes == 4 => Ok((whole, Access::Data)),
            (Value::Context, offset) => Err(format!(
                "reads {bytes} bytes at {offset} of xdp_md; data (0), data_end (4) and data_meta (8) exist here"
            )),
            (Value::Stack(at), offset) => Ok((state.load(i64::from(at) + i64::from(offset), bytes)?, Access::Plain)),
            (pointer, offset) => {
                self.check_readable(state, pointer, offset.into(), bytes)?;
                let access = match pointer {
                    Value::Packet { .. } => Access::Frame,
                    Value::MapElement { map, .. } => Access::Value(map),
                    _ => Access::Plain,
                };
                Ok((Value::number(bytes), access))
            }
        }
    }

    fn store(&self, state: &mut State, width: Width, address: Address, operand: Operand) -> Checked<Access> {
        let bytes = width.bytes();
        let value = match operand {
            Operand::Register(register) => written(state, register)?,
            Operand::Constant(constant) => Value::constant(i64::from(constant) as u64),
        };
        match written(state, address.base)? {
            Value::Stack(at) => {
                state.store(i64::from(at) + i64::from(address.offset), bytes, value)?;
                Ok(Access::Plain)
            }
            Value::MapElement { map, offset } => {
                if !matches!(value, Value::Number { .. }) {
                    return Err(format!("stores {} in a map", value.name()));
                }
                self.check_writable(map)?;
                self.check_value(map, offset, address.offset.into(), bytes).map(|_| Access::Value(map))
            }
            Value::Packet { .. } => Err("writes to the frame: a filter cannot change frames".into()),
            Value::MapElementOrNull { .. } => Err(OR_NULL.into()),
            pointer => Err(format!("writes to {}", pointer.name())),
        }
    }

    fn atomic(
        &mut self,
        state: &mut State,
        wide: bool,
        atomic: Atomic,
        address: Address,
        from: Register,
        fetch: bool,
    ) -> Checked<Access> {
        number(state, from)?;
        let bytes = if wide { 8 } else { 4 };
        let Value::MapElement { map, offset } = written(state, address.base)? else {
            return Err("an atomic operation on what is not a map's value".into());
        };
        self.check_writable(map)?;
        let place = self.check_value(map, offset, address.offset.into(), bytes)?;
        if !place.is_multiple_of(bytes as u64) {
            return Err(format!("an atomic operation on {bytes} bytes at a place that is not a multiple of {bytes}"));
        }
        if atomic == Atomic::CompareExchange {
            number(state, 0)?;
            state.set(0, Value::number(bytes));
        } else if fetch {
            state.set(from, Value::number(bytes));
        }
        Ok(Access::Value(map))
    }

    /// Whether these bytes can be read as numbers.
    fn check_readable(&self, state: &State, pointer: Value, more: i64, bytes: usize) -> Checked<()> {
        match pointer {
            Value::Stack(at) => state.check_written(i64::from(at) + more, bytes),
            Value::MapElement { map, offset } => self.check_value(map, offset, more, bytes).map(drop),
            Value::Packet { offset, range, .. } => {
                let start = i64::from(offset) + more;
                if start < 0 || start + bytes as i64 > i64::from(range) {
                    return Err(format!(
                        "reads {bytes} bytes of the frame at {start} of what its pointer was made from, where {range} are \
                         known to be there; compare with data_end first"
                    ));
                }
                Ok(())
            }
            Value::MapElementOrNull { .. } => Err(OR_NULL.into()),
            other => Err(format!("reads from {}", other.name())),
        }
    }

    /// Whether these bytes are in a map's value; where in it.
    fn check_value(&self, map: usize, offset: Scalar, more: i64, bytes: usize) -> Checked<Scalar> {
        let place = offset.apply(Arithmetic::Add, true, Scalar::constant(more as u64));
        let Definition { name, value_size, .. } = &self.maps[map];
        let size = u64::from(*value_size);
        if place.max.checked_add(bytes as u64).is_none_or(|end| end > size) {
            return Err(format!(
                "accesses {bytes} bytes at {} of a value of map {name}, which has {size}",
                if place.as_constant().is_some() {
                    (place.max as i64).to_string()
                } else {
                    format!("up to {}", place.max)
                }
            ));
        }
        Ok(place)
    }

    fn check_writable(&self, map: usize) -> Checked<()> {
        let Definition { name, flags, .. } = &self.maps[map];
        if flags & READ_ONLY != 0 { Err(format!("writes to map {name}, which is read-only")) } else { Ok(()) }
    }

    fn call(&mut self, state: &State, helper: Helper) -> Checked<Value> {
        if helper == Helper::Time {
            return Ok(Value::number(8));
        }
        let Value::Map(map) = written(state, 1)? else { return Err("r1 is not a map".into()) };
        let Definition { key_size, value_size, .. } = self.maps[map];
        self.check_readable(state, written(state, 2)?, 0, key_size as usize)
            .map_err(|e| format!("the key (r2) {e}"))?;
        if helper == Helper::MapLookup {
            return Ok(Value::MapElementOrNull { map, id: self.new_id() });
        }
        self.check_writable(map)?;
        if helper == Helper::MapUpdate {
            if value_size as usize > MAX_SET {
                return Err(format!("values of more than {MAX_SET} bytes cannot be set by their key"));
            }
            let value = written(state, 3)?;
            self.check_readable(state, value, 0, value_size as usize).map_err(|e| format!("the value (r3) {e}"))?;
            number(state, 4).map_err(|e| format!("the flags (r4): {e}"))?;
        }
        Ok(Value::number(8))
    }

    fn branch(
        &mut self,
        state: &mut State,
        wide: bool,
        comparison: Comparison,
        (left, right): (Register, Operand),
        (otherwise, then): (usize, usize),
    ) -> Checked<Next> {
        let a = written(state, left)?;
        let b = match right {
            Operand::Register(register) => written(state, register)?,
            Operand::Constant(constant) => Value::constant(i64::from(constant) as u64),
        };
        let is_zero = matches!(b, Value::Number { scalar, .. } if scalar.as_constant() == Some(0));
        let is_equality = matches!(comparison, Comparison::Equal | Comparison::Different);
        let mut other = state.clone();
        match (a, b) {
            (Value::Number { scalar: x, .. }, Value::Number { scalar: y, .. }) => {
                if let Some(holds) = x.compare(comparison, wide, y) {
                    return Ok(Next::At(if holds { then } else { otherwise }));
                }
                refine(&mut other, comparison, wide, (a, left), (b, right));
                if let Some(negated) = comparison.negated() {
                    refine(state, negated, wide, (a, left), (b, right));
                }
            }
            (Value::MapElementOrNull { map, id }, _) if wide && is_zero && is_equality => {
                let (null, there) =
                    if comparison == Comparison::Equal { (&mut other, state) } else { (state, &mut other) };
                let of_id = |value: &&mut Value| matches!(**value, Value::MapElementOrNull { id: of, .. } if of == id);
                null.values_mut().filter(of_id).for_each(|value| *value = Value::constant(0));
                let first = Value::MapElement { map, offset: Scalar::constant(0) };
                there.values_mut().filter(of_id).for_each(|value| *value = first);
            }
            (Value::Number { .. }, pointer) | (pointer, Value::Number { .. })
                if !(wide && is_zero && is_equality && !matches!(pointer, Value::MapElementOrNull { .. })) =>
            {
                return Err(format!("compares {} with a number", pointer.name()));
            }
            // No other pointer is null.
            (_, Value::Number { .. }) => {
                return Ok(Next::At(if comparison == Comparison::Different { then } else { otherwise }));
            }
            (Value::Packet { id, offset, .. }, Value::PacketEnd) if wide => {
                learn_range((&mut other, state), comparison, id, offset);
            }
            (Value::PacketEnd, Value::Packet { id, offset, .. }) if wide => {
                learn_range((&mut other, state), comparison.mirrored(), id, offset);
            }
            (Value::Packet { .. }, Value::Packet { .. }) if wide => {}
            (a, b) => return Err(format!("compares {} with {}", a.name(), b.name())),
        }
        Ok(Next::Either(otherwise, Box::new((then, other))))
    }
}

const OR_NULL: &str = "uses a pointer to a map's value that may be null; compare it with 0 first";

/// What a comparison of a pointer into the frame with the frame's end tells, where it is true and where it is not.
fn learn_range((then, otherwise): (&mut State, &mut State), comparison: Comparison, id: u32, offset: i32) {
    // Up to the pointer, or with the byte there.
    let (state, range) = match comparison {
        Comparison::LessOrEqual => (then, offset),
        Comparison::Greater => (otherwise, offset),
        Comparison::Less => (then, offset.saturating_add(1)),
        Comparison::GreaterOrEqual => (otherwise, offset.saturating_add(1)),
        _ => return,
    };
    let Ok(known) = u32::try_from(range) else { return };
    for value in state.values_mut() {
        match value {
            Value::Packet { id: of, range, .. } if *of == id => *range = known.max(*range),
            _ => {}
        }
    }
}

/// What a comparison of numbers tells, where it is true.
fn refine(
    state: &mut State,
    comparison: Comparison,
    wide: bool,
    (a, left): (Value, Register),
    (b, right): (Value, Operand),
) {
    let (Value::Number { scalar: x, id: id_a }, Value::Number { scalar: y, id: id_b }) = (a, b) else { return };
    let (x, y) = x.refine(comparison, wide, y);
    let mut put = |scalar: Scalar, id: u32, register: Register| {
        state.set(register, Value::Number { scalar, id });
        for value in state.values_mut().filter(|_| id != 0) {
            match value {
                Value::Number { scalar: of, id: same } if *same == id => *of = scalar,
                _ => {}
            }
        }
    };
    put(x, id_a, left);
    if let Operand::Register(right) = right {
        put(y, id_b, right);
    }
}

/// What a register holds, if it was written.
fn written(state: &State, register: Register) -> Checked<Value> {
    match state.register(register) {
        Value::Nothing => Err(format!("reads r{register}, which was not written")),
        value => Ok(value),
    }
}

/// The number that a register holds.
fn number(state: &State, register: Register) -> Checked<Scalar> {
    match written(state, register)? {
        Value::Number { scalar, .. } => Ok(scalar),
        other => Err(format!("takes {} for a number", other.name())),
    }
}
