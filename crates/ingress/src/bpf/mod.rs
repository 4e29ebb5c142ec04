//! Classic BPF (McCanne and Jacobson, "The BSD Packet Filter", 1993; bpf(4) of FreeBSD): verification and interpreter.
//!
//! | module | what it is |
//! |---|---|
//! | [`instruction`] | Instructions as libpcap gives them |
//! | [`operation`] | The same, decoded |
//! | [`verify`](mod@verify) | From instructions to a program, or why not |
//! | [`program`] | Verified programs, and their interpreter |
//! | [`native`] | Verified programs in native code |

pub mod instruction;
pub mod native;
pub mod operation;
pub mod program;
pub mod verify;

#[cfg(test)]
pub use program::tests;

pub use instruction::Instruction;
pub use operation::{Arithmetic, Comparison, Operand, Operation, Width};
pub use program::Program;
pub use verify::{VerifyError, verify};
