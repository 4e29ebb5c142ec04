//! XDP programs that are loaded, with their maps.

use std::sync::Arc;

use super::instruction::decode;
use super::interpreter::{self, Fault};
use super::map::Map;
use super::native::NativeProgram;
use super::object::{RawObject, RawProgram};
use super::program::Program;
use super::verify::verify;
use crate::jit::JitError;

/// What is decided about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `XDP_PASS`: it goes on.
    Pass,
    /// `XDP_DROP`.
    Drop,
    /// `XDP_ABORTED`: it is dropped, as something went wrong.
    Aborted,
    /// What does not exist here, as `XDP_TX` and `XDP_REDIRECT`: it is dropped.
    Unsupported,
    /// The program was stopped: it is dropped.
    Fault,
}

/// Why an object file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum LoadError {
    #[error("{0}")]
    Object(String),
    #[error("there is no XDP program in it: a function in a section whose name begins with \"xdp\"")]
    NoProgram,
    #[error("there is no XDP program {wanted:?} in it; there is {available}")]
    NoSuchProgram { wanted: String, available: String },
    #[error("there are several XDP programs in it, so one has to be named: {0}")]
    WhichProgram(String),
    #[error("program {name}: {reason}")]
    Refused { name: String, reason: String },
}

/// A verified program with its maps.
#[derive(Debug)]
pub struct Machine {
    name: String,
    program: Program,
    maps: Vec<Arc<Map>>,
    /// Its native code, or why there is none.
    native: Result<NativeProgram, JitError>,
}

impl Machine {
    /// Loads a program of an object file: the only one, or the one of this function or in this section.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn load(object: &[u8], wanted: Option<&str>) -> Result<Machine, LoadError> {
        Machine::from_object(RawObject::parse(object).map_err(LoadError::Object)?, wanted)
    }

    /// The same from an object file that was read.
    ///
    /// # Errors
    /// As of [`Machine::load`].
    pub fn from_object(object: RawObject, wanted: Option<&str>) -> Result<Machine, LoadError> {
        let raw = choose(&object.programs, wanted)?;
        let refused = |reason: String| LoadError::Refused { name: raw.name.clone(), reason };
        let operations = decode(&raw.words, |at| raw.targets.get(&at).copied())
            .map_err(|(at, reason)| refused(format!("instruction {at}: {reason}")))?;
        let program = verify(operations, &object.maps).map_err(|e| refused(e.to_string()))?;
        let maps: Vec<_> = object.maps.into_iter().map(|definition| Arc::new(Map::new(definition))).collect();
        let native = NativeProgram::new(&program, &maps);
        Ok(Machine { name: raw.name.clone(), program, maps, native })
    }

    /// The name of its function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many words of instructions it has.
    pub fn len(&self) -> usize {
        self.program.operations().len()
    }

    /// Whether it has none, which the verifier does not let pass.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most instructions that it executes for a frame.
    pub fn longest(&self) -> u32 {
        self.program.longest()
    }

    /// How it is run.
    pub fn code(&self) -> String {
        match &self.native {
            Ok(_) => "native code".into(),
            Err(reason) => format!("interpreted: {reason}"),
        }
    }

    /// The same without native code, as where there is none.
    pub fn interpreted(self) -> Machine {
        Machine { native: Err(JitError::not_wanted()), ..self }
    }

    /// Its maps.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    /// Decides about a frame. `now`: nanoseconds of the switch's clock.
    #[inline]
    pub fn verdict(&self, frame: &[u8], now: u64) -> Verdict {
        match &self.native {
            Ok(native) => Verdict::from_number(native.run(frame, now)),
            Err(_) => self.interpret(frame, now).map_or(Verdict::Fault, Verdict::from_number),
        }
    }

    /// The same by native code: what the program returns; `None` where there is none.
    pub fn run_native(&self, frame: &[u8], now: u64) -> Option<u64> {
        self.native.as_ref().ok().map(|native| native.run(frame, now))
    }

    /// The same by the interpreter.
    ///
    /// # Errors
    /// A verified program has none.
    pub fn interpret(&self, frame: &[u8], now: u64) -> Result<u64, Fault> {
        interpreter::run(&self.program, &self.maps, frame, now)
    }
}

impl Verdict {
    /// From the lower half of what a program returns: `enum xdp_action`.
    fn from_number(number: u64) -> Verdict {
        match number as u32 {
            0 => Verdict::Aborted,
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            _ => Verdict::Unsupported,
        }
    }
}

fn choose<'a>(programs: &'a [RawProgram], wanted: Option<&str>) -> Result<&'a RawProgram, LoadError> {
    let names = || programs.iter().map(|program| program.name.as_str()).collect::<Vec<_>>().join(", ");
    let Some(wanted) = wanted else {
        return match programs {
            [] => Err(LoadError::NoProgram),
            [program] => Ok(program),
            _ => Err(LoadError::WhichProgram(names())),
        };
    };
    let by_name = programs.iter().find(|program| program.name == wanted);
    let mut in_section = programs.iter().filter(|program| program.section == wanted);
    match (by_name, in_section.next(), in_section.next()) {
        (Some(program), _, _) | (None, Some(program), None) => Ok(program),
        (None, Some(_), Some(_)) => Err(LoadError::WhichProgram(names())),
        (None, None, _) if programs.is_empty() => Err(LoadError::NoProgram),
        (None, None, _) => Err(LoadError::NoSuchProgram { wanted: wanted.into(), available: names() }),
    }
}
