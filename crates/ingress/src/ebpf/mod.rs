//! eBPF: XDP programs of object files, verified and run as filters.
//!
//! | module | what it is |
//! |---|---|
//! | [`machine`] | Programs that are loaded, with their maps |
//! | [`port_program`] | The program of a port, and what it has decided |
//! | [`object`](mod@object) | Object files |
//! | [`btf`] | Definitions of maps in BTF |
//! | [`instruction`] | Instructions, decoded |
//! | [`arithmetic`] | What operations and comparisons give |
//! | [`helper`] | The functions that programs can call |
//! | [`map`] | What programs remember, and operators read and set |
//! | [`verify`](mod@verify) | From instructions to a program, or why not |
//! | [`program`] | Verified programs |
//! | [`interpreter`] | The interpreter |
//! | [`native`] | Verified programs in native code |
//! | [`assembler`] | Programs for tests and fuzzing |
//! | `tests` | Tests of programs: what is refused, and what they decide |

pub mod arithmetic;
pub mod assembler;
pub mod btf;
pub mod helper;
pub mod instruction;
pub mod interpreter;
pub mod machine;
pub mod map;
pub mod native;
pub mod object;
pub mod port_program;
pub mod program;
#[cfg(test)]
mod tests;
pub mod verify;

pub use machine::{LoadError, Machine, Verdict};
pub use port_program::{PortProgram, VerdictCounts};
