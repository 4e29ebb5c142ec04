//! Native code for verified programs, made by Cranelift.
//!
//! Who builds a function promises that it does no harm: [`crate::bpf::native`] builds all checks into it,
//! [`crate::ebpf::native`] has a proof by its verifier. Where Cranelift does not know the processor, or the system allows
//! no new code, programs are interpreted.
//!
//! | module | what it is |
//! |---|---|
//! | [`memory`] | Memory that can be executed, and no longer written |

pub mod memory;

use std::sync::Arc;

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use memory::CodeMemory;

/// Functions begin at multiples of this.
const ALIGNMENT: usize = 16;

/// Parameters of a function: 64 bits each. It returns as many.
pub const PARAMETERS: usize = 3;

/// Why there is no native code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JitError(String);

impl JitError {
    /// Native code is not wanted.
    pub fn not_wanted() -> JitError {
        JitError("native code is not wanted".into())
    }
}

/// Compiles functions, which then share their memory.
pub struct Compiler {
    isa: OwnedTargetIsa,
    context: Context,
    builders: FunctionBuilderContext,
    code: Vec<u8>,
}

/// A compiled function.
#[derive(Clone, Debug)]
pub struct NativeFunction {
    memory: Arc<CodeMemory>,
    offset: usize,
}

impl Compiler {
    /// A compiler for this machine.
    ///
    /// # Errors
    /// Cranelift does not know its processor.
    pub fn new() -> Result<Compiler, JitError> {
        if cfg!(miri) {
            return Err(JitError("Miri runs no native code".into()));
        }
        let failed = |e: &dyn std::fmt::Display| JitError(format!("no native code for this processor: {e}"));
        let mut flags = settings::builder();
        for (name, value) in
            [("opt_level", "speed"), ("enable_verifier", if cfg!(debug_assertions) { "1" } else { "0" })]
        {
            flags.set(name, value).map_err(|e| failed(&e))?;
        }
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let builder = isa::lookup_by_name(&target).map_err(|e| failed(&e))?;
        let isa = builder.finish(settings::Flags::new(flags)).map_err(|e| failed(&e))?;
        Ok(Compiler { isa, context: Context::new(), builders: FunctionBuilderContext::new(), code: Vec::new() })
    }

    /// The signature of functions of so many parameters, for the convention of C.
    pub fn signature(&self, parameters: usize) -> Signature {
        let mut signature = Signature::new(self.isa.default_call_conv());
        signature.params = vec![AbiParam::new(I64); parameters];
        signature.returns = vec![AbiParam::new(I64)];
        signature
    }

    /// Compiles a function of [`PARAMETERS`]. `build` begins with its first block. Returns its number for [`Compiler::finish`].
    ///
    /// # Errors
    /// Cranelift cannot compile it.
    pub fn add(&mut self, build: impl FnOnce(&mut FunctionBuilder<'_>)) -> Result<usize, JitError> {
        self.context.clear();
        self.context.func = Function::with_name_signature(UserFuncName::default(), self.signature(PARAMETERS));
        let mut builder = FunctionBuilder::new(&mut self.context.func, &mut self.builders);
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        build(&mut builder);
        builder.seal_all_blocks();
        builder.finalize(self.isa.frontend_config());
        let compiled = self.context.compile(&*self.isa, &mut ControlPlane::default());
        let compiled =
            compiled.map_err(|e| JitError(format!("Cranelift cannot compile the program: {:?}", e.inner)))?;
        if !compiled.buffer.relocs().is_empty() {
            return Err(JitError("the program's native code would need a linker".into()));
        }
        self.code.resize(self.code.len().next_multiple_of(ALIGNMENT), 0);
        let offset = self.code.len();
        self.code.extend_from_slice(compiled.code_buffer());
        Ok(offset)
    }

    /// The functions, by the numbers that [`Compiler::add`] has given, ready to be called.
    ///
    /// # Errors
    /// The system gives no memory for code.
    pub fn finish(self, functions: &[usize]) -> Result<Vec<NativeFunction>, JitError> {
        if functions.is_empty() {
            return Ok(Vec::new());
        }
        let memory =
            CodeMemory::new(&self.code).map_err(|e| JitError(format!("the system allows no native code: {e}")))?;
        let memory = Arc::new(memory);
        Ok(functions.iter().map(|&offset| NativeFunction { memory: memory.clone(), offset }).collect())
    }
}

impl NativeFunction {
    /// Where it begins. It stays there while this lives.
    pub fn address(&self) -> *const u8 {
        self.memory.address().wrapping_add(self.offset)
    }
}
