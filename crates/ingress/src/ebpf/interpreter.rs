//! The interpreter: what native code is compared with, and what runs where there is none.
//!
//! It is safe by itself: pointers of programs are numbers that name a region and a place in it, and each access is looked
//! up there. A program that was not verified would end with a fault, and could do no harm.

use std::sync::atomic::Ordering::Relaxed;

use super::helper::Helper;
use super::instruction::{Address, Atomic, FRAME, Operand, Operation, REGISTERS, Width};
use super::map::table::MAX_KEY;
use super::map::{MAX_SET, Map};
use super::program::Program;

/// Why a program was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fault {
    /// It accessed what is not its own.
    Memory,
    /// It executed more instructions than its verifier has found.
    Budget,
    /// It left its code.
    Place,
}

/// Bytes of the stack.
const STACK: usize = 512;

/// The regions begin at multiples of this.
const REGION: u64 = 1 << 40;
const CONTEXT: u64 = 1;
const FRAME_REGION: u64 = 2;
const STACK_REGION: u64 = 3;
const MAP_REGION: u64 = 4;
/// The values of the first map; those of others follow.
const VALUES: u64 = 16;

/// Where the places of a region begin, so that a pointer may be moved in front of its region and back.
const START: u64 = REGION / 2;

/// Runs a program on a frame. `now`: nanoseconds of the switch's clock.
///
/// # Errors
/// See [`Fault`]; a verified program has none.
pub fn run(program: &Program, maps: &[impl AsRef<Map>], frame: &[u8], now: u64) -> Result<u64, Fault> {
    let mut machine = Machine { maps, frame, stack: [0; STACK], registers: [0; REGISTERS] };
    machine.registers[1] = pointer(CONTEXT, 0);
    machine.registers[usize::from(FRAME)] = pointer(STACK_REGION, STACK as u64);
    let mut at = 0_usize;
    for _ in 0..program.longest() {
        let operation = *program.operations().get(at).ok_or(Fault::Place)?;
        at += 1;
        match operation {
            Operation::Compute { wide, arithmetic, to, operand } => {
                let result = arithmetic.apply(wide, machine.register(to), machine.operand(operand));
                machine.set(to, result);
            }
            Operation::Swap { to, big, bits } => {
                let number = machine.register(to);
                let unused = 64 - u32::from(bits);
                machine.set(to, if big { number.swap_bytes() >> unused } else { number << unused >> unused });
            }
            Operation::LoadConstant(to, constant) => {
                machine.set(to, constant);
                at += 1;
            }
            Operation::LoadMap(to, map) => {
                machine.set(to, pointer(MAP_REGION, map as u64));
                at += 1;
            }
            Operation::LoadMapValue(to, map, offset) => {
                machine.set(to, pointer(VALUES + map as u64, offset.into()));
                at += 1;
            }
            Operation::Second => return Err(Fault::Place),
            Operation::Load(width, to, address) => {
                let loaded = machine.load(width, address)?;
                machine.set(to, loaded);
            }
            Operation::Store(width, address, operand) => machine.store(width, address, machine.operand(operand))?,
            Operation::Atomic { wide, atomic, address, from, fetch } => {
                machine.atomic(wide, atomic, address, from, fetch)?;
            }
            Operation::Jump(target) => at = target.into(),
            Operation::Branch { wide, comparison, left, right, target } => {
                if comparison.holds(wide, machine.register(left), machine.operand(right)) {
                    at = target.into();
                }
            }
            Operation::Call(helper) => {
                let result = machine.call(helper, now)?;
                machine.set(0, result);
            }
            Operation::Exit => return Ok(machine.register(0)),
        }
    }
    Err(Fault::Budget)
}

struct Machine<'a, M> {
    maps: &'a [M],
    frame: &'a [u8],
    stack: [u8; STACK],
    registers: [u64; REGISTERS],
}

/// A pointer to a place of a region.
fn pointer(region: u64, place: u64) -> u64 {
    region * REGION + START + place
}

impl<M: AsRef<Map>> Machine<'_, M> {
    fn register(&self, register: u8) -> u64 {
        self.registers[usize::from(register)]
    }

    fn set(&mut self, register: u8, value: u64) {
        self.registers[usize::from(register)] = value;
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Constant(constant) => i64::from(constant) as u64,
            Operand::Register(register) => self.register(register),
        }
    }

    /// The region and the place of an address.
    fn place(&self, Address { base, offset }: Address) -> Result<(u64, usize), Fault> {
        let address = self.register(base).wrapping_add(i64::from(offset) as u64);
        let place = (address % REGION).checked_sub(START).ok_or(Fault::Memory)?;
        Ok((address / REGION, place as usize))
    }

    fn map(&self, number: u64) -> Result<&Map, Fault> {
        self.maps.get(number as usize).map(AsRef::as_ref).ok_or(Fault::Memory)
    }

    fn load(&self, width: Width, address: Address) -> Result<u64, Fault> {
        let (region, place) = self.place(address)?;
        if region == CONTEXT {
            return match (place, width) {
                (0 | 8, Width::Word) => Ok(pointer(FRAME_REGION, 0)),
                (4, Width::Word) => Ok(pointer(FRAME_REGION, self.frame.len() as u64)),
                _ => Err(Fault::Memory),
            };
        }
        let mut bytes = [0; 8];
        self.read(region, place, &mut bytes[..width.bytes()])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn read(&self, region: u64, place: usize, into: &mut [u8]) -> Result<(), Fault> {
        let range = place..place + into.len();
        match region {
            FRAME_REGION => into.copy_from_slice(self.frame.get(range).ok_or(Fault::Memory)?),
            STACK_REGION => into.copy_from_slice(self.stack.get(range).ok_or(Fault::Memory)?),
            VALUES.. => {
                let bytes = self.map(region - VALUES)?.values().bytes().get(range).ok_or(Fault::Memory)?;
                into.iter_mut().zip(bytes).for_each(|(into, byte)| *into = byte.load(Relaxed));
            }
            _ => return Err(Fault::Memory),
        }
        Ok(())
    }

    fn store(&mut self, width: Width, address: Address, value: u64) -> Result<(), Fault> {
        let (region, place) = self.place(address)?;
        let bytes = &value.to_le_bytes()[..width.bytes()];
        let range = place..place + bytes.len();
        match region {
            STACK_REGION => self.stack.get_mut(range).ok_or(Fault::Memory)?.copy_from_slice(bytes),
            VALUES.. => {
                let stored = self.map(region - VALUES)?.values().bytes().get(range).ok_or(Fault::Memory)?;
                stored.iter().zip(bytes).for_each(|(stored, byte)| stored.store(*byte, Relaxed));
            }
            _ => return Err(Fault::Memory),
        }
        Ok(())
    }

    fn atomic(&mut self, wide: bool, atomic: Atomic, address: Address, from: u8, fetch: bool) -> Result<(), Fault> {
        let (region, place) = self.place(address)?;
        let map = self.map(region.checked_sub(VALUES).ok_or(Fault::Memory)?)?;
        let (with, expected) = (self.register(from), self.register(0));
        let was = map.values().atomic(wide, atomic, place, with, expected).ok_or(Fault::Memory)?;
        match (atomic, fetch) {
            (Atomic::CompareExchange, _) => self.set(0, was),
            (_, true) => self.set(from, was),
            (_, false) => {}
        }
        Ok(())
    }

    fn call(&self, helper: Helper, now: u64) -> Result<u64, Fault> {
        if helper == Helper::Time {
            return Ok(now);
        }
        let (region, number) = self.place(Address { base: 1, offset: 0 })?;
        if region != MAP_REGION {
            return Err(Fault::Memory);
        }
        let map = self.map(number as u64)?;
        let mut key = [0; MAX_KEY];
        let key = &mut key[..map.definition().key_size as usize];
        let (region, place) = self.place(Address { base: 2, offset: 0 })?;
        self.read(region, place, key)?;
        Ok(match helper {
            Helper::Time => now,
            Helper::MapLookup => match map.find(key) {
                Some(slot) => pointer(VALUES + number as u64, (slot * map.values().stride()) as u64),
                None => 0,
            },
            Helper::MapUpdate => {
                let (region, place) = self.place(Address { base: 3, offset: 0 })?;
                let size = map.definition().value_size as usize;
                let mut value = [0; MAX_SET];
                let value = value.get_mut(..size).ok_or(Fault::Memory)?;
                self.read(region, place, value)?;
                errno(map.update(key, value, self.register(4), false))
            }
            Helper::MapDelete => errno(map.delete(key, false)),
        })
    }
}

/// What helpers return.
pub fn errno(outcome: Result<(), super::map::MapError>) -> u64 {
    outcome.map_or_else(|e| e.errno() as u64, |()| 0)
}
