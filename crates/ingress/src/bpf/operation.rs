//! Decoded instructions: one variant for each thing that is done, with the targets of jumps as places in the program.

/// What an arithmetic operation or a comparison works with, besides the accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A constant.
    Constant(u32),
    /// The index register.
    Index,
}

/// How many bytes are loaded. All numbers are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
}

/// Arithmetic on 32 bits, which wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// Comparisons of the accumulator with an operand, without sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Comparison {
    Equal,
    Greater,
    GreaterOrEqual,
    /// They have a bit in common.
    Common,
}

/// By their bits in the codes of instructions, which eBPF has, too.
const ARITHMETIC: [(u8, Arithmetic); 10] = [
    (0x00, Arithmetic::Add),
    (0x10, Arithmetic::Subtract),
    (0x20, Arithmetic::Multiply),
    (0x30, Arithmetic::Divide),
    (0x40, Arithmetic::Or),
    (0x50, Arithmetic::And),
    (0x60, Arithmetic::ShiftLeft),
    (0x70, Arithmetic::ShiftRight),
    (0x90, Arithmetic::Modulo),
    (0xa0, Arithmetic::Xor),
];

/// The same of comparisons.
const COMPARISONS: [(u8, Comparison); 4] = [
    (0x10, Comparison::Equal),
    (0x20, Comparison::Greater),
    (0x30, Comparison::GreaterOrEqual),
    (0x40, Comparison::Common),
];

impl Arithmetic {
    /// The operation with these bits.
    pub fn from_bits(bits: u8) -> Option<Arithmetic> {
        ARITHMETIC.iter().find(|(known, _)| *known == bits).map(|&(_, arithmetic)| arithmetic)
    }

    /// Its bits.
    pub fn bits(self) -> u8 {
        ARITHMETIC.iter().find(|(_, known)| *known == self).map_or(0, |&(bits, _)| bits)
    }
}

impl Comparison {
    /// The comparison with these bits.
    pub fn from_bits(bits: u8) -> Option<Comparison> {
        COMPARISONS.iter().find(|(known, _)| *known == bits).map(|&(_, comparison)| comparison)
    }

    /// Its bits.
    pub fn bits(self) -> u8 {
        COMPARISONS.iter().find(|(_, known)| *known == self).map_or(0, |&(bits, _)| bits)
    }
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Loads the accumulator from this place of the frame.
    Load(Width, u32),
    /// The same, from this far behind the index register.
    LoadIndexed(Width, u32),
    /// Loads the accumulator with a constant.
    LoadConstant(u32),
    /// Loads the accumulator with the length of the frame.
    LoadLength,
    /// Loads the accumulator from the memory.
    LoadMemory(u8),
    /// Loads the index register with a constant.
    IndexConstant(u32),
    /// Loads the index register with the length of the frame.
    IndexLength,
    /// Loads the index register from the memory.
    IndexMemory(u8),
    /// Loads the index register with the length of the IPv4 header at this place of the frame.
    IndexHeaderLength(u32),
    /// Stores the accumulator.
    Store(u8),
    /// Stores the index register.
    StoreIndex(u8),
    /// Changes the accumulator.
    Compute(Arithmetic, Operand),
    /// Changes the sign of the accumulator.
    Negate,
    /// Copies the accumulator to the index register.
    ToIndex,
    /// Copies the index register to the accumulator.
    FromIndex,
    /// Goes on elsewhere.
    Jump(u16),
    /// Goes on where `then` says, or `otherwise`.
    Branch {
        /// What is compared how.
        comparison: Comparison,
        /// With what.
        operand: Operand,
        /// Where to go on when it is true.
        then: u16,
        /// Where to go on when it is not.
        otherwise: u16,
    },
    /// Ends: the frame matches unless this is zero.
    Return(u32),
    /// Ends: the frame matches unless the accumulator is zero.
    ReturnAccumulator,
}
