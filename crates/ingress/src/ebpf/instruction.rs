//! Instructions of eBPF, decoded (RFC 9669): one variant for each thing that is done.
//!
//! Places are counted as `llvm-objdump -d` counts them: in words of eight bytes. The instruction that loads 64 bits takes
//! two of them; the second holds [`Operation::Second`], to which nothing may jump.

use super::arithmetic::{Arithmetic, Comparison};
use super::helper::Helper;

/// Registers that a program has: r0 to r10.
pub const REGISTERS: usize = 11;

/// The register that points behind the stack, which programs cannot change.
pub const FRAME: u8 = 10;

/// The most words of a program.
pub const MAX_WORDS: usize = 16_384;

/// A register's number, below [`REGISTERS`].
pub type Register = u8;

/// A word of a program, as it lies in the object file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Class, and what else the class has.
    pub code: u8,
    /// The registers: destination in the lower four bits, source in the others.
    pub registers: u8,
    /// An offset of memory, or how many words are skipped.
    pub offset: i16,
    /// The constant.
    pub immediate: i32,
}

impl Word {
    /// From eight bytes, little-endian.
    pub fn from_bytes(bytes: [u8; 8]) -> Word {
        let [code, registers, o0, o1, i0, i1, i2, i3] = bytes;
        Word { code, registers, offset: i16::from_le_bytes([o0, o1]), immediate: i32::from_le_bytes([i0, i1, i2, i3]) }
    }

    fn destination(self) -> u8 {
        self.registers & 0xf
    }

    fn source(self) -> u8 {
        self.registers >> 4
    }
}

/// What the relocation of a word refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A map, by its number.
    Map(usize),
    /// A byte of the only value of a map, by its number: a global variable.
    Value(usize, u32),
}

/// What an operation works with, besides its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A constant, its sign extended.
    Constant(i32),
    /// A register.
    Register(Register),
}

/// How many bytes are loaded or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Width {
    Byte = 1,
    Half = 2,
    Word = 4,
    Double = 8,
}

impl Width {
    /// How many bytes these are.
    pub fn bytes(self) -> usize {
        self as usize
    }
}

/// What an atomic operation does with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Atomic {
    Add,
    Or,
    And,
    Xor,
    /// Puts the register's value there.
    Exchange,
    /// The same, where the memory equals r0; r0 gets what was there.
    CompareExchange,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Changes a register; on 32 bits, the upper half becomes zero.
    Compute {
        /// On 64 bits.
        wide: bool,
        /// What is done.
        arithmetic: Arithmetic,
        /// The register.
        to: Register,
        /// With what.
        operand: Operand,
    },
    /// Changes the order of the lowest bytes of a register, and makes the others zero.
    Swap {
        /// The register.
        to: Register,
        /// To big-endian; from and to little-endian, the bytes stay where they are.
        big: bool,
        /// How many bits they have.
        bits: u8,
    },
    /// Loads 64 bits.
    LoadConstant(Register, u64),
    /// Loads a map, by its number.
    LoadMap(Register, usize),
    /// Loads the address of this byte of the first value of a map.
    LoadMapValue(Register, usize, u32),
    /// The second word of one of the three above.
    Second,
    /// Loads from memory.
    Load(Width, Register, Address),
    /// Stores to memory.
    Store(Width, Address, Operand),
    /// Changes memory in one step.
    Atomic {
        /// 64 bits; 32 otherwise.
        wide: bool,
        /// What is done.
        atomic: Atomic,
        /// Where.
        address: Address,
        /// With this register.
        from: Register,
        /// The register gets what was there before.
        fetch: bool,
    },
    /// Goes on elsewhere.
    Jump(u16),
    /// Goes on at `target` where the comparison is true.
    Branch {
        /// On 64 bits.
        wide: bool,
        /// What is compared how.
        comparison: Comparison,
        /// The left side.
        left: Register,
        /// The right side.
        right: Operand,
        /// Where to go on.
        target: u16,
    },
    /// Calls a helper.
    Call(Helper),
    /// Ends.
    Exit,
}

/// Memory at an offset from where a register points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The register.
    pub base: Register,
    /// Bytes from there.
    pub offset: i16,
}

/// Why an instruction cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum DecodeError {
    #[error("unknown instruction (code {code:#04x}, registers {registers:#04x})")]
    Unknown { code: u8, registers: u8 },
    #[error("the program jumps out of its code")]
    Jump,
    #[error("the program uses register r{0}; there are r0 to r10")]
    Register(u8),
    #[error("the program writes to r10, which points to its stack")]
    Frame,
    #[error("a load of 64 bits is cut off")]
    Cut,
    #[error("a shift by {0} bits")]
    Shift(i32),
    #[error("a division by zero")]
    Division,
    #[error("a call of helper {0}, which Weir does not have ({available})", available = Helper::AVAILABLE)]
    Helper(String),
    #[error("a call of a function of the program: make it `static inline __attribute__((always_inline))`")]
    Function,
    #[error("a load of a map that is not named by a relocation")]
    MapNumber,
    #[error("old instruction for socket filters (BPF_ABS or BPF_IND), which XDP programs cannot have")]
    SocketFilter,
}

/// Decodes the words of a program. `target` gives what the relocation at a word refers to.
///
/// # Errors
/// The first word that is wrong, counted from 0, and why.
pub fn decode(
    words: &[Word],
    target: impl Fn(usize) -> Option<Target>,
) -> Result<Vec<Operation>, (usize, DecodeError)> {
    let mut operations = Vec::with_capacity(words.len());
    while operations.len() < words.len() {
        let at = operations.len();
        let decoder = Decoder { at, word: words[at], len: words.len() };
        let decoded = match words[at].code {
            LOAD_DOUBLE => {
                decoder.wide_load(words.get(at + 1).copied(), target(at)).map(|load| (load, Some(Operation::Second)))
            }
            _ => decoder.decode().map(|operation| (operation, None)),
        };
        let (first, second) = decoded.map_err(|e| (at, e))?;
        operations.push(first);
        operations.extend(second);
    }
    Ok(operations)
}

/// Load of 64 bits that the program holds.
const LOAD_DOUBLE: u8 = 0x18;

struct Decoder {
    at: usize,
    word: Word,
    /// How many words the program has.
    len: usize,
}

impl Decoder {
    fn decode(&self) -> Result<Operation, DecodeError> {
        let Word { code, offset, immediate, .. } = self.word;
        match code & 7 {
            0 => Err(DecodeError::SocketFilter),
            1 => self.load(),
            2 if code & 0xe0 == 0x60 && self.word.source() == 0 => {
                Ok(Operation::Store(self.width(), self.to_address()?, Operand::Constant(immediate)))
            }
            3 if code & 0xe0 == 0x60 && immediate == 0 => {
                let from = self.readable(self.word.source())?;
                Ok(Operation::Store(self.width(), self.to_address()?, Operand::Register(from)))
            }
            3 => self.atomic(),
            4 | 7 if offset == 0 => self.arithmetic(),
            5 | 6 => self.jump(),
            _ => Err(self.unknown()),
        }
    }

    fn wide_load(&self, second: Option<Word>, target: Option<Target>) -> Result<Operation, DecodeError> {
        let second = second.ok_or(DecodeError::Cut)?;
        let to = self.writable(self.word.destination())?;
        if self.word.offset != 0 || (Word { immediate: 0, ..second }) != Word::default() {
            return Err(self.unknown());
        }
        let low = self.word.immediate;
        match (target, self.word.source()) {
            (Some(Target::Map(map)), 0 | 1) => Ok(Operation::LoadMap(to, map)),
            (Some(Target::Value(map, offset)), 0..=2) => Ok(Operation::LoadMapValue(to, map, offset)),
            (None, 0) => {
                Ok(Operation::LoadConstant(to, u64::from(low as u32) | u64::from(second.immediate as u32) << 32))
            }
            (None, 1 | 2) => Err(DecodeError::MapNumber),
            _ => Err(self.unknown()),
        }
    }

    fn load(&self) -> Result<Operation, DecodeError> {
        if self.word.code & 0xe0 != 0x60 || self.word.immediate != 0 {
            return Err(self.unknown());
        }
        let to = self.writable(self.word.destination())?;
        let base = self.readable(self.word.source())?;
        Ok(Operation::Load(self.width(), to, Address { base, offset: self.word.offset }))
    }

    fn atomic(&self) -> Result<Operation, DecodeError> {
        let Word { code, immediate, .. } = self.word;
        let wide = match code {
            0xc3 => false,
            0xdb => true,
            _ => return Err(self.unknown()),
        };
        let (atomic, fetch) = match immediate {
            0x00 | 0x01 => (Atomic::Add, immediate & 1 == 1),
            0x40 | 0x41 => (Atomic::Or, immediate & 1 == 1),
            0x50 | 0x51 => (Atomic::And, immediate & 1 == 1),
            0xa0 | 0xa1 => (Atomic::Xor, immediate & 1 == 1),
            0xe1 => (Atomic::Exchange, true),
            0xf1 => (Atomic::CompareExchange, true),
            _ => return Err(self.unknown()),
        };
        let source = self.word.source();
        let from = match fetch && atomic != Atomic::CompareExchange {
            true => self.writable(source)?,
            false => self.readable(source)?,
        };
        Ok(Operation::Atomic { wide, atomic, address: self.to_address()?, from, fetch })
    }

    fn arithmetic(&self) -> Result<Operation, DecodeError> {
        let Word { code, immediate, .. } = self.word;
        let (wide, to) = (code & 7 == 7, self.writable(self.word.destination())?);
        let arithmetic = match code & 0xf0 {
            0x00 => Arithmetic::Add,
            0x10 => Arithmetic::Subtract,
            0x20 => Arithmetic::Multiply,
            0x30 => Arithmetic::Divide,
            0x40 => Arithmetic::Or,
            0x50 => Arithmetic::And,
            0x60 => Arithmetic::ShiftLeft,
            0x70 => Arithmetic::ShiftRight,
            0x80 if code & 8 == 0 && self.word.source() == 0 && immediate == 0 => {
                return Ok(Operation::Compute {
                    wide,
                    arithmetic: Arithmetic::Negate,
                    to,
                    operand: Operand::Constant(0),
                });
            }
            0x90 => Arithmetic::Modulo,
            0xa0 => Arithmetic::Xor,
            0xb0 => Arithmetic::Move,
            0xc0 => Arithmetic::ShiftRightSigned,
            0xd0 if !wide && matches!(immediate, 16 | 32 | 64) && self.word.source() == 0 => {
                return Ok(Operation::Swap { to, big: code & 8 != 0, bits: immediate as u8 });
            }
            _ => return Err(self.unknown()),
        };
        let operand = self.operand()?;
        match (arithmetic, operand) {
            (Arithmetic::Divide | Arithmetic::Modulo, Operand::Constant(0)) => Err(DecodeError::Division),
            (Arithmetic::ShiftLeft | Arithmetic::ShiftRight | Arithmetic::ShiftRightSigned, Operand::Constant(by))
                if !(0..if wide { 64 } else { 32 }).contains(&by) =>
            {
                Err(DecodeError::Shift(by))
            }
            _ => Ok(Operation::Compute { wide, arithmetic, to, operand }),
        }
    }

    fn jump(&self) -> Result<Operation, DecodeError> {
        let Word { code, registers, offset, immediate } = self.word;
        let comparison = match code & 0xf0 {
            0x00 if code == 0x05 && registers == 0 && immediate == 0 => return Ok(Operation::Jump(self.target()?)),
            0x80 if code == 0x85 && offset == 0 => {
                return match self.word.source() {
                    0 => Helper::from_number(immediate).map(Operation::Call).map_err(DecodeError::Helper),
                    1 => Err(DecodeError::Function),
                    _ => Err(DecodeError::Helper(format!("of the kernel {immediate}"))),
                };
            }
            0x90 if code == 0x95 && registers == 0 && offset == 0 && immediate == 0 => return Ok(Operation::Exit),
            0x10 => Comparison::Equal,
            0x20 => Comparison::Greater,
            0x30 => Comparison::GreaterOrEqual,
            0x40 => Comparison::Common,
            0x50 => Comparison::Different,
            0x60 => Comparison::GreaterSigned,
            0x70 => Comparison::GreaterOrEqualSigned,
            0xa0 => Comparison::Less,
            0xb0 => Comparison::LessOrEqual,
            0xc0 => Comparison::LessSigned,
            0xd0 => Comparison::LessOrEqualSigned,
            _ => return Err(self.unknown()),
        };
        let left = self.readable(self.word.destination())?;
        let (right, target) = (self.operand()?, self.target()?);
        Ok(Operation::Branch { wide: code & 7 == 5, comparison, left, right, target })
    }

    fn operand(&self) -> Result<Operand, DecodeError> {
        let Word { code, immediate, .. } = self.word;
        match (code & 8 != 0, self.word.source(), immediate) {
            (true, source, 0) => Ok(Operand::Register(self.readable(source)?)),
            (false, 0, immediate) => Ok(Operand::Constant(immediate)),
            _ => Err(self.unknown()),
        }
    }

    fn to_address(&self) -> Result<Address, DecodeError> {
        Ok(Address { base: self.readable(self.word.destination())?, offset: self.word.offset })
    }

    fn width(&self) -> Width {
        match self.word.code & 0x18 {
            0x00 => Width::Word,
            0x08 => Width::Half,
            0x10 => Width::Byte,
            _ => Width::Double,
        }
    }

    fn target(&self) -> Result<u16, DecodeError> {
        let target = self.at as i64 + 1 + i64::from(self.word.offset);
        let inside = u16::try_from(target).ok().filter(|&target| usize::from(target) < self.len);
        inside.ok_or(DecodeError::Jump)
    }

    fn readable(&self, register: u8) -> Result<Register, DecodeError> {
        if usize::from(register) < REGISTERS { Ok(register) } else { Err(DecodeError::Register(register)) }
    }

    fn writable(&self, register: u8) -> Result<Register, DecodeError> {
        if register == FRAME { Err(DecodeError::Frame) } else { self.readable(register) }
    }

    fn unknown(&self) -> DecodeError {
        DecodeError::Unknown { code: self.word.code, registers: self.word.registers }
    }
}
