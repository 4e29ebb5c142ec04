//! From instructions to a program, or why not.
//!
//! A program is accepted when it ends for every frame and reads nothing but the frame and its own memory: all jumps go
//! forward and to instructions of the program, the last instruction returns, places in memory exist, and no constant
//! divides by zero or shifts by more than there are bits. A division by an index register of zero, and a load from
//! outside of the frame, end the program at run time: the frame does not match then.

use super::instruction::{
    ABS, ALU, ANCILLARY, B, CLASS, H, IMM, IND, Instruction, JMP, LD, LDX, LEN, MEM, MISC, MSH, RET, ST, STX, W, X,
};
use super::operation::{Arithmetic, Comparison, Operand, Operation, Width};
use super::program::{MEMORY, Program};

/// The most instructions of a program, as in the kernels (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;

/// Why a program is refused. Instructions are counted from 0, as `tcpdump -d` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum VerifyError {
    #[error("the program has no instructions")]
    Empty,
    #[error("the program has {0} instructions, and {MAX_INSTRUCTIONS} are the most; use several rules")]
    TooLong(usize),
    #[error("the program does not end with a return")]
    NoReturn,
    #[error("instruction {at} has the unknown code {code:#06x}")]
    Code { at: usize, code: u16 },
    #[error("instruction {at} jumps out of the program")]
    Jump { at: usize },
    #[error("instruction {at} uses word {word} of the memory, which has {MEMORY}")]
    Memory { at: usize, word: u32 },
    #[error("instruction {at} divides by zero")]
    Division { at: usize },
    #[error("instruction {at} shifts 32 bits by {by}")]
    Shift { at: usize, by: u32 },
    #[error("the expression asks for what is not in the frame (the direction, the interface, or what a kernel knows)")]
    Ancillary { at: usize },
}

/// Verifies a program.
///
/// # Errors
/// The first instruction that cannot be accepted.
pub fn verify(instructions: &[Instruction]) -> Result<Program, VerifyError> {
    let Some(last) = instructions.last() else { return Err(VerifyError::Empty) };
    let len = instructions.len();
    if len > MAX_INSTRUCTIONS {
        return Err(VerifyError::TooLong(len));
    }
    if last.code & CLASS != RET {
        return Err(VerifyError::NoReturn);
    }
    let decode = |(at, instruction)| Decoder { at, instruction, len }.decode();
    instructions.iter().enumerate().map(decode).collect::<Result<_, _>>().map(Program::new)
}

/// An instruction, and where it is.
struct Decoder<'a> {
    at: usize,
    instruction: &'a Instruction,
    /// How many instructions the program has.
    len: usize,
}

impl Decoder<'_> {
    fn decode(&self) -> Result<Operation, VerifyError> {
        let Instruction { code, k, .. } = *self.instruction;
        if code > 0xff {
            return Err(self.unknown());
        }
        Ok(match code & CLASS {
            LD => self.load()?,
            LDX => self.load_index()?,
            ST if code == ST => Operation::Store(self.word()?),
            STX if code == STX => Operation::StoreIndex(self.word()?),
            ALU => self.arithmetic()?,
            JMP => self.jump()?,
            RET => match code & !CLASS {
                0x00 => Operation::Return(k),
                0x10 => Operation::ReturnAccumulator,
                _ => return Err(self.unknown()),
            },
            MISC => match code & !CLASS {
                0x00 => Operation::ToIndex,
                0x80 => Operation::FromIndex,
                _ => return Err(self.unknown()),
            },
            _ => return Err(self.unknown()),
        })
    }

    fn load(&self) -> Result<Operation, VerifyError> {
        let Instruction { code, k, .. } = *self.instruction;
        const SIZE: u16 = W | H | B;
        let width = || match code & 0x18 {
            W => Ok(Width::Word),
            H => Ok(Width::Half),
            B => Ok(Width::Byte),
            _ => Err(self.unknown()),
        };
        Ok(match code & 0xe0 {
            // The constant of an indexed load may be large: with the index register, it wraps nowhere else than in the
            // kernels, which is to say that it never matches.
            ABS if k >= ANCILLARY => return Err(VerifyError::Ancillary { at: self.at }),
            ABS => Operation::Load(width()?, k),
            IND => Operation::LoadIndexed(width()?, k),
            IMM if code & SIZE == W => Operation::LoadConstant(k),
            LEN if code & SIZE == W => Operation::LoadLength,
            MEM if code & SIZE == W => Operation::LoadMemory(self.word()?),
            _ => return Err(self.unknown()),
        })
    }

    fn load_index(&self) -> Result<Operation, VerifyError> {
        let Instruction { code, k, .. } = *self.instruction;
        Ok(match code & !CLASS {
            IMM => Operation::IndexConstant(k),
            LEN => Operation::IndexLength,
            MEM => Operation::IndexMemory(self.word()?),
            mode if mode == MSH | B => Operation::IndexHeaderLength(k),
            _ => return Err(self.unknown()),
        })
    }

    fn arithmetic(&self) -> Result<Operation, VerifyError> {
        let code = self.instruction.code;
        let operand = self.operand();
        if code == ALU | 0x80 {
            return Ok(Operation::Negate);
        }
        let arithmetic = Arithmetic::from_bits(code as u8 & 0xf0).ok_or(self.unknown())?;
        match (arithmetic, operand) {
            (Arithmetic::Divide | Arithmetic::Modulo, Operand::Constant(0)) => {
                Err(VerifyError::Division { at: self.at })
            }
            (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, Operand::Constant(by @ 32..)) => {
                Err(VerifyError::Shift { at: self.at, by })
            }
            _ => Ok(Operation::Compute(arithmetic, operand)),
        }
    }

    fn jump(&self) -> Result<Operation, VerifyError> {
        let Instruction { code, jt, jf, k } = *self.instruction;
        if code == JMP {
            return Ok(Operation::Jump(self.target(k)?));
        }
        let comparison = Comparison::from_bits((code & !CLASS & !X) as u8).ok_or(self.unknown())?;
        let (then, otherwise) = (self.target(jt.into())?, self.target(jf.into())?);
        Ok(Operation::Branch { comparison, operand: self.operand(), then, otherwise })
    }

    fn operand(&self) -> Operand {
        match self.instruction.code & X {
            0 => Operand::Constant(self.instruction.k),
            _ => Operand::Index,
        }
    }

    /// The place that is so many instructions behind the next one.
    fn target(&self, skipped: u32) -> Result<u16, VerifyError> {
        let target = (self.at as u64) + 1 + u64::from(skipped);
        u16::try_from(target)
            .ok()
            .filter(|&target| usize::from(target) < self.len)
            .ok_or(VerifyError::Jump { at: self.at })
    }

    /// The word of the memory that the constant names.
    fn word(&self) -> Result<u8, VerifyError> {
        let word = self.instruction.k;
        let exists = u8::try_from(word).ok().filter(|&word| usize::from(word) < MEMORY);
        exists.ok_or(VerifyError::Memory { at: self.at, word })
    }

    fn unknown(&self) -> VerifyError {
        VerifyError::Code { at: self.at, code: self.instruction.code }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPT: Instruction = instruction(RET, 0, 0, 1);

    const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    fn error(program: &[Instruction]) -> VerifyError {
        verify(program).expect_err("it is wrong")
    }

    #[test]
    fn what_could_leave_the_program_is_refused() {
        assert_eq!(error(&[]), VerifyError::Empty);
        assert_eq!(error(&[instruction(LD, 0, 0, 0)]), VerifyError::NoReturn);
        assert!(verify(&vec![ACCEPT; MAX_INSTRUCTIONS]).is_ok());
        assert_eq!(error(&vec![ACCEPT; MAX_INSTRUCTIONS + 1]), VerifyError::TooLong(MAX_INSTRUCTIONS + 1));
        let equal = JMP | 0x10;
        assert!(verify(&[instruction(equal, 1, 0, 7), ACCEPT, ACCEPT]).is_ok());
        for wrong in [
            instruction(equal, 2, 0, 7),
            instruction(equal, 0, 2, 7),
            instruction(JMP, 0, 0, 2),
            // Backwards, to those that count with a sign.
            instruction(JMP, 0, 0, u32::MAX),
            instruction(JMP, 0, 0, u32::MAX - 1),
        ] {
            assert_eq!(error(&[wrong, ACCEPT, ACCEPT]), VerifyError::Jump { at: 0 }, "{wrong:?}");
        }
    }

    #[test]
    fn what_could_leave_the_memory_or_divide_by_zero_is_refused() {
        for code in [LD | MEM, LDX | MEM, ST, STX] {
            assert!(verify(&[instruction(code, 0, 0, 15), ACCEPT]).is_ok());
            for word in [16, 256, u32::MAX] {
                let error = error(&[ACCEPT, instruction(code, 0, 0, word), ACCEPT]);
                assert_eq!(error, VerifyError::Memory { at: 1, word });
            }
        }
        for code in [0x30, 0x90] {
            assert_eq!(error(&[instruction(ALU | code, 0, 0, 0), ACCEPT]), VerifyError::Division { at: 0 });
            assert!(verify(&[instruction(ALU | code | X, 0, 0, 0), ACCEPT]).is_ok());
        }
        for code in [0x60, 0x70] {
            assert_eq!(error(&[instruction(ALU | code, 0, 0, 32), ACCEPT]), VerifyError::Shift { at: 0, by: 32 });
        }
        let kernel = instruction(LD | ABS | W, 0, 0, ANCILLARY + 4);
        assert_eq!(error(&[kernel, ACCEPT]), VerifyError::Ancillary { at: 0 });
    }

    #[test]
    fn only_known_codes_are_accepted() {
        let accepted = |&code: &u16| verify(&[instruction(code, 0, 0, 1), ACCEPT, ACCEPT]).is_ok();
        let count = (0..=u16::MAX).filter(accepted).count();
        // Loads: 3 absolute, 3 indexed, constant, length, memory. Index register: constant, length, memory, header.
        // 2 stores. 10 operations with two kinds of operands, and negation. Jumps: 4 comparisons with two, and one.
        // 2 returns. 2 copies.
        assert_eq!(count, 9 + 4 + 2 + 21 + 9 + 2 + 2);
    }
}
