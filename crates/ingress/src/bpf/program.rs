//! Verified programs, and their interpreter.

use super::operation::{Arithmetic, Comparison, Operand, Operation, Width};

/// Words of memory that a program has (`BPF_MEMWORDS`).
pub const MEMORY: usize = 16;

/// A program that ends for every frame and reads nothing else: see [`verify`](super::verify()).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    operations: Box<[Operation]>,
}

impl Program {
    /// A program of operations that were verified.
    pub(super) fn new(operations: Vec<Operation>) -> Program {
        Program { operations: operations.into() }
    }

    /// The same, for tests.
    #[cfg(test)]
    pub fn from_operations(operations: Vec<Operation>) -> Program {
        Program::new(operations)
    }

    /// What it does, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Whether the program wants this frame.
    #[inline]
    pub fn matches(&self, frame: &[u8]) -> bool {
        self.run(frame).is_some_and(|returned| returned != 0)
    }

    /// What the program returns for this frame; `None` where it reads outside of it, or divides by zero.
    ///
    /// All registers and words of memory are zero at the start. Each operation is looked up with a check: a program that was
    /// not verified would be wrong, but it could do no harm.
    pub fn run(&self, frame: &[u8]) -> Option<u32> {
        let (mut accumulator, mut index) = (0_u32, 0_u32);
        let mut memory = [0_u32; MEMORY];
        let mut at = 0;
        loop {
            let operation = self.operations.get(at)?;
            at += 1;
            match *operation {
                Operation::Load(width, place) => accumulator = load(frame, width, place)?,
                Operation::LoadIndexed(width, place) => {
                    accumulator = load(frame, width, place.checked_add(index)?)?;
                }
                Operation::LoadConstant(k) => accumulator = k,
                Operation::LoadLength => accumulator = frame.len() as u32,
                Operation::LoadMemory(word) => accumulator = *memory.get(usize::from(word))?,
                Operation::IndexConstant(k) => index = k,
                Operation::IndexLength => index = frame.len() as u32,
                Operation::IndexMemory(word) => index = *memory.get(usize::from(word))?,
                Operation::IndexHeaderLength(place) => index = (load(frame, Width::Byte, place)? & 0xf) << 2,
                Operation::Store(word) => *memory.get_mut(usize::from(word))? = accumulator,
                Operation::StoreIndex(word) => *memory.get_mut(usize::from(word))? = index,
                Operation::Compute(arithmetic, operand) => {
                    accumulator = compute(arithmetic, accumulator, operand.value(index))?;
                }
                Operation::Negate => accumulator = accumulator.wrapping_neg(),
                Operation::ToIndex => index = accumulator,
                Operation::FromIndex => accumulator = index,
                Operation::Jump(target) => at = target.into(),
                Operation::Branch { comparison, operand, then, otherwise } => {
                    let is_true = compare(comparison, accumulator, operand.value(index));
                    at = if is_true { then } else { otherwise }.into();
                }
                Operation::Return(k) => return Some(k),
                Operation::ReturnAccumulator => return Some(accumulator),
            }
        }
    }
}

impl Operand {
    #[inline(always)]
    fn value(self, index: u32) -> u32 {
        match self {
            Operand::Constant(k) => k,
            Operand::Index => index,
        }
    }
}

#[inline(always)]
fn load(frame: &[u8], width: Width, place: u32) -> Option<u32> {
    let bytes = frame.get(place as usize..)?;
    Some(match width {
        Width::Byte => u32::from(*bytes.first()?),
        Width::Half => u32::from(u16::from_be_bytes(*bytes.first_chunk()?)),
        Width::Word => u32::from_be_bytes(*bytes.first_chunk()?),
    })
}

#[inline(always)]
fn compute(arithmetic: Arithmetic, a: u32, b: u32) -> Option<u32> {
    Some(match arithmetic {
        Arithmetic::Add => a.wrapping_add(b),
        Arithmetic::Subtract => a.wrapping_sub(b),
        Arithmetic::Multiply => a.wrapping_mul(b),
        Arithmetic::Divide => a.checked_div(b)?,
        Arithmetic::Modulo => a.checked_rem(b)?,
        Arithmetic::And => a & b,
        Arithmetic::Or => a | b,
        Arithmetic::Xor => a ^ b,
        Arithmetic::ShiftLeft => a.checked_shl(b).unwrap_or(0),
        Arithmetic::ShiftRight => a.checked_shr(b).unwrap_or(0),
    })
}

#[inline(always)]
fn compare(comparison: Comparison, a: u32, b: u32) -> bool {
    match comparison {
        Comparison::Equal => a == b,
        Comparison::Greater => a > b,
        Comparison::GreaterOrEqual => a >= b,
        Comparison::Common => a & b != 0,
    }
}

#[cfg(test)]
#[allow(missing_docs)]
pub mod tests {
    use proptest::prelude::*;

    use super::super::native::{NativeProgram, build};
    use super::super::{Instruction, Program, verify};
    use crate::jit::Compiler;
    use crate::libpcap;

    /// Instructions that are often right: known codes, small constants, short jumps.
    pub fn any_instruction() -> impl Strategy<Value = Instruction> {
        let codes: Vec<u16> = (0..0x100)
            .filter(|&code| {
                let wanted = Instruction { code, jt: 0, jf: 0, k: 1 };
                verify(&[wanted, Instruction { code: 6, jt: 0, jf: 0, k: 1 }]).is_ok()
            })
            .collect();
        let k = prop_oneof![4 => 0..20_u32, 2 => 0..70_u32, 1 => any::<u32>()];
        (proptest::sample::select(codes), 0..4_u8, 0..4_u8, k).prop_map(|(code, jt, jf, k)| Instruction {
            code,
            jt,
            jf,
            k,
        })
    }

    fn native(program: &Program) -> NativeProgram {
        let mut compiler = Compiler::new().unwrap();
        let function = compiler.add(|builder| build(program, builder)).unwrap();
        NativeProgram::new(compiler.finish(&[function]).unwrap().remove(0))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn programs_return_what_libpcaps_interpreter_returns(
            body in proptest::collection::vec(any_instruction(), 0..24),
            frame in proptest::collection::vec(any::<u8>(), 0..70),
        ) {
            // libpcap's interpreter does not set its memory to zero.
            let zeros = (0..16).map(|k| Instruction { code: 0x02, jt: 0, jf: 0, k });
            let ends = [0x16, 6].map(|code| Instruction { code, jt: 0, jf: 0, k: 5 });
            let program: Vec<_> = zeros.chain(body).chain([ends[1]; 3]).chain(ends).collect();
            if let Ok(verified) = verify(&program) {
                let returned = verified.run(&frame).unwrap_or(0);
                prop_assert_eq!(returned, libpcap::reference(&program, &frame));
                prop_assert_eq!(native(&verified).run(&frame), returned, "native code");
            }
        }
    }

    #[test]
    fn what_is_outside_of_the_frame_does_not_match() {
        let program = |text: &str| verify(&libpcap::compile(text).unwrap()).unwrap();
        let tcp = program("tcp dst port 80");
        let mut frame = [0; 54];
        (frame[12], frame[14], frame[23], frame[37]) = (8, 0x45, 6, 80);
        let is_wanted = |program: &Program, frame: &[u8]| {
            assert_eq!(native(program).run(frame) != 0, program.matches(frame));
            program.matches(frame)
        };
        assert!(is_wanted(&tcp, &frame));
        assert!((0..38).all(|len| !is_wanted(&tcp, &frame[..len])));
        // The header length leads behind the frame.
        frame[14] = 0x4f;
        assert!(!is_wanted(&tcp, &frame));
        assert!(!is_wanted(&program("ip[30:4] = 0"), &frame[..46]));
        assert!(is_wanted(&program("ip[28:4] = 0"), &frame[..46]));
    }
}
