//! What is known at a place of a program: of each register, and of the stack.

use super::super::instruction::{FRAME, REGISTERS, Register};
use super::scalar::Scalar;

/// Bytes of the stack.
pub const STACK: usize = 512;

/// The largest number that may be added to a pointer into the frame; frames are shorter.
pub const MAX_PACKET: u64 = 0xffff;

/// What a register or a word of the stack holds. Those with the same `id`, other than 0, are equal, or for pointers
/// into the frame: point to the same place but for their offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// It was never written.
    Nothing,
    /// A number.
    Number { scalar: Scalar, id: u32 },
    /// The program's argument, `struct xdp_md`.
    Context,
    /// Into the stack, so many bytes behind its end.
    Stack(i32),
    /// Into the frame: `offset` bytes behind a place that is up to `more` bytes behind its start, and from which `range`
    /// bytes are known to be there.
    Packet { id: u32, offset: i32, more: u64, range: u32 },
    /// Behind the end of the frame.
    PacketEnd,
    /// A map.
    Map(usize),
    /// Into a value of a map.
    MapElement { map: usize, offset: Scalar },
    /// A value of a map, or null.
    MapElementOrNull { map: usize, id: u32 },
}

/// Eight bytes of the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slot {
    /// One bit for each byte that was written.
    Bytes(u8),
    /// A whole value.
    Whole(Value),
}

/// What is known of all registers and the stack.
#[derive(Clone, Debug)]
pub struct State {
    /// The registers.
    pub registers: [Value; REGISTERS],
    /// The stack, its end first; what is behind these was not written.
    slots: Vec<Slot>,
}

impl Value {
    /// Any number of so many bytes.
    pub fn number(bytes: usize) -> Value {
        Value::Number { scalar: Scalar::of_bytes(bytes), id: 0 }
    }

    /// This number.
    pub fn constant(number: u64) -> Value {
        Value::Number { scalar: Scalar::constant(number), id: 0 }
    }

    /// What to call it.
    pub fn name(&self) -> &'static str {
        match self {
            Value::Nothing => "nothing",
            Value::Number { .. } => "a number",
            Value::Context => "a pointer to xdp_md",
            Value::Stack(_) => "a pointer to the stack",
            Value::Packet { .. } => "a pointer into the frame",
            Value::PacketEnd => "a pointer to the frame's end",
            Value::Map(_) => "a map",
            Value::MapElement { .. } => "a pointer to a map's value",
            Value::MapElementOrNull { .. } => "a pointer to a map's value that may be null",
        }
    }
}

impl State {
    /// At the start: r1 is the argument, r10 the end of the stack.
    pub fn new() -> State {
        let mut registers = [Value::Nothing; REGISTERS];
        registers[1] = Value::Context;
        registers[usize::from(FRAME)] = Value::Stack(0);
        State { registers, slots: Vec::new() }
    }

    /// What a register holds.
    pub fn register(&self, register: Register) -> Value {
        self.registers[usize::from(register)]
    }

    /// Sets a register.
    pub fn set(&mut self, register: Register, value: Value) {
        self.registers[usize::from(register)] = value;
    }

    /// How many bytes of the stack are used.
    pub fn depth(&self) -> usize {
        self.slots.len() * 8
    }

    /// All values.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let slots = self.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Whole(value) => Some(value),
            Slot::Bytes(_) => None,
        });
        self.registers.iter_mut().chain(slots)
    }

    /// Reads from the stack.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn load(&self, offset: i64, bytes: usize) -> Result<Value, String> {
        let start = range(offset, bytes)?;
        if bytes == 8
            && start.is_multiple_of(8)
            && let Some(Slot::Whole(value)) = self.slot(start)
        {
            return Ok(value);
        }
        self.check_written(offset, bytes)?;
        Ok(Value::number(bytes))
    }

    /// Whether these bytes of the stack were written, and are numbers.
    ///
    /// # Errors
    /// Why not.
    pub fn check_written(&self, offset: i64, bytes: usize) -> Result<(), String> {
        let start = range(offset, bytes)?;
        for at in start..start + bytes {
            let ok = match self.slot(at) {
                Some(Slot::Whole(Value::Number { .. })) => true,
                Some(Slot::Whole(value)) => {
                    return Err(format!("reads {} on the stack as a number", value.name()));
                }
                Some(Slot::Bytes(written)) => written >> (at % 8) & 1 == 1,
                None => false,
            };
            if !ok {
                return Err(format!("reads the stack at {}, which was not written", at as i64 - STACK as i64));
            }
        }
        Ok(())
    }

    /// Writes to the stack.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub fn store(&mut self, offset: i64, bytes: usize, value: Value) -> Result<(), String> {
        let start = range(offset, bytes)?;
        let lowest = (STACK - start).div_ceil(8);
        if self.slots.len() < lowest {
            self.slots.resize(lowest, Slot::Bytes(0));
        }
        if bytes == 8 && start.is_multiple_of(8) {
            self.slots[lowest - 1] = Slot::Whole(value);
            return Ok(());
        }
        if !matches!(value, Value::Number { .. }) {
            return Err(format!("stores a part of {}", value.name()));
        }
        for at in start..start + bytes {
            let slot = &mut self.slots[(STACK - 1 - at) / 8];
            let written = match *slot {
                Slot::Bytes(written) => written,
                Slot::Whole(Value::Number { .. }) => 0xff,
                Slot::Whole(_) => 0,
            };
            *slot = Slot::Bytes(written | 1 << (at % 8));
        }
        Ok(())
    }

    fn slot(&self, at: usize) -> Option<Slot> {
        self.slots.get((STACK - 1 - at) / 8).copied()
    }
}

/// Where an access to the stack begins, counted from its start.
fn range(offset: i64, bytes: usize) -> Result<usize, String> {
    let start = offset + STACK as i64;
    if start < 0 || start + bytes as i64 > STACK as i64 {
        return Err(format!("accesses the stack at {offset}, {bytes} bytes; it has {STACK}"));
    }
    Ok(start as usize)
}

/// Whether whatever can happen from `new` on can happen from `old` on, which was found to be good.
pub fn covers(old: &State, new: &State) -> bool {
    let mut ids = Vec::new();
    let registers = old.registers.iter().zip(&new.registers);
    if !registers.into_iter().all(|(old, new)| value_covers(old, new, &mut ids)) {
        return false;
    }
    let nothing = Slot::Bytes(0);
    old.slots.iter().enumerate().all(|(i, old)| match (*old, *new.slots.get(i).unwrap_or(&nothing)) {
        (Slot::Bytes(0), _) => true,
        (Slot::Bytes(old), Slot::Bytes(new)) => old & !new == 0,
        (Slot::Bytes(_), Slot::Whole(value)) => matches!(value, Value::Number { .. }),
        (Slot::Whole(old), Slot::Whole(new)) => value_covers(&old, &new, &mut ids),
        (Slot::Whole(Value::Nothing), _) => true,
        (Slot::Whole(_), Slot::Bytes(_)) => false,
    })
}

fn value_covers(old: &Value, new: &Value, ids: &mut Vec<(u32, u32)>) -> bool {
    let mut same_id = |old: u32, new: u32| match ids.iter().find(|(known, _)| *known == old) {
        Some((_, known)) => *known == new,
        None => {
            ids.push((old, new));
            true
        }
    };
    match (*old, *new) {
        (Value::Nothing, _) => true,
        (Value::Number { scalar: old, id: old_id }, Value::Number { scalar: new, id: new_id }) => {
            old.holds(new) && (old_id == 0 || new_id != 0 && same_id(old_id, new_id))
        }
        (
            Value::Packet { id: old_id, offset: old_offset, more: old_more, range: old_range },
            Value::Packet { id: new_id, offset: new_offset, more: new_more, range: new_range },
        ) => {
            old_offset == new_offset
                && new_more <= old_more
                && new_range >= old_range
                && (old_id == 0) == (new_id == 0)
                && same_id(old_id, new_id)
        }
        (Value::MapElement { map: old_map, offset: old }, Value::MapElement { map: new_map, offset: new }) => {
            old_map == new_map && old.holds(new)
        }
        (Value::MapElementOrNull { map: old_map, id: old }, Value::MapElementOrNull { map: new_map, id: new }) => {
            old_map == new_map && same_id(old, new)
        }
        (old, new) => old == new,
    }
}
