//! Definitions of maps in BTF, the type format of BPF (Linux, Documentation/bpf/btf.rst).
//!
//! A map is a variable in the section `.maps`; its type is a structure whose members are the map's properties: numbers as
//! pointers to arrays of so many elements, types as pointers to them.

use super::map::Definition;

/// How many types may be followed from one to the next.
const MAX_DEPTH: usize = 32;

/// The most types that are looked at.
const MAX_TYPES: usize = 1 << 18;

const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// The types of an object file.
pub struct Btf<'a> {
    /// By number; the first one is `void`.
    types: Vec<Type<'a>>,
    strings: &'a [u8],
}

/// `struct btf_type`, and what follows it.
#[derive(Clone, Copy, Default)]
struct Type<'a> {
    name: u32,
    kind: u32,
    /// Its size in bytes, or the number of the type that it refers to.
    size: u32,
    more: &'a [u8],
}

impl<'a> Btf<'a> {
    /// Reads the section `.BTF`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(section: &'a [u8]) -> Result<Btf<'a>, String> {
        let cut = || "the section .BTF is cut off".to_owned();
        if section.get(..3) != Some(&[0x9f, 0xeb, 1]) {
            return Err("the section .BTF is not BTF of version 1, little-endian".into());
        }
        let header = |at: usize| number(section, at).map(|n| n as usize).ok_or_else(cut);
        let (start, types, types_len, strings, strings_len) =
            (header(4)?, header(8)?, header(12)?, header(16)?, header(20)?);
        let part = |at: usize, len: usize| {
            let from = start.checked_add(at)?;
            section.get(from..from.checked_add(len)?)
        };
        let (mut rest, strings) =
            (part(types, types_len).ok_or_else(cut)?, part(strings, strings_len).ok_or_else(cut)?);
        let mut types = vec![Type::default()];
        while !rest.is_empty() {
            if types.len() == MAX_TYPES {
                return Err(format!("the section .BTF has more than {MAX_TYPES} types"));
            }
            let field = |i: usize| number(rest, i * 4).ok_or_else(cut);
            let (name, info, size) = (field(0)?, field(1)?, field(2)?);
            let (kind, count) = (info >> 24 & 0x1f, info as usize & 0xffff);
            let len = match kind {
                INT | VARIABLE | 17 => 4,
                ARRAY => 12,
                STRUCT | UNION | SECTION | ENUM64 => count * 12,
                ENUM | 13 => count * 8,
                POINTER | 7..=12 | 16 | TYPE_TAG => 0,
                _ => return Err(format!("the section .BTF has a type of the unknown kind {kind}")),
            };
            let more = rest.get(12..12 + len).ok_or_else(cut)?;
            types.push(Type { name, kind, size, more });
            rest = &rest[12 + len..];
        }
        Ok(Btf { types, strings })
    }

    /// The maps that the section `.maps` defines.
    ///
    /// # Errors
    /// A map whose definition is not understood.
    pub fn maps(&self) -> Result<Vec<Definition>, String> {
        let section = self.types.iter().find(|t| t.kind == SECTION && self.name(t.name) == ".maps");
        let Some(section) = section else { return Ok(Vec::new()) };
        let variables = section.more.chunks_exact(12).map(|variable| {
            let variable = self.get(number(variable, 0).unwrap_or(0)).filter(|t| t.kind == VARIABLE);
            let variable = variable.ok_or("what is in the section .maps is not a variable")?;
            let name = self.name(variable.name);
            self.map(name, variable.size).map_err(|reason| format!("map {name}: {reason}"))
        });
        variables.collect()
    }

    fn map(&self, name: &str, number_of_type: u32) -> Result<Definition, String> {
        let structure =
            self.resolve(number_of_type).filter(|t| t.kind == STRUCT).ok_or("its type is not a structure")?;
        let mut definition = Definition { name: name.to_owned(), ..Definition::default() };
        for member in structure.more.chunks_exact(12) {
            let (Some(name), Some(kind)) = (number(member, 0), number(member, 4)) else { continue };
            let pointer = self.resolve(kind).filter(|t| t.kind == POINTER);
            let target = pointer.map(|t| t.size);
            let count = || {
                let array = target.and_then(|t| self.resolve(t)).filter(|t| t.kind == ARRAY);
                array
                    .and_then(|array| number(array.more, 8))
                    .ok_or_else(|| format!("{} is not a number", self.name(name)))
            };
            let size = || {
                let size = target.and_then(|target| self.size(target, 0)).and_then(|size| u32::try_from(size).ok());
                size.ok_or_else(|| format!("the size of its {} is not known", self.name(name)))
            };
            match self.name(name) {
                "type" => definition.kind = count()?,
                "max_entries" => definition.max_entries = count()?,
                "map_flags" => definition.flags = count()?,
                "key_size" => definition.key_size = count()?,
                "value_size" => definition.value_size = count()?,
                "key" => definition.key_size = size()?,
                "value" => definition.value_size = size()?,
                // Where it lies, and under which name others find it: nothing here.
                "numa_node" | "pinning" => {}
                other => return Err(format!("unknown property {other}")),
            }
        }
        Ok(definition)
    }

    fn get(&self, number: u32) -> Option<&Type<'a>> {
        self.types.get(number as usize)
    }

    /// The type behind names and qualifiers.
    fn resolve(&self, mut number: u32) -> Option<&Type<'a>> {
        for _ in 0..MAX_DEPTH {
            let found = self.get(number)?;
            match found.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => number = found.size,
                _ => return Some(found),
            }
        }
        None
    }

    fn size(&self, number_of_type: u32, depth: usize) -> Option<u64> {
        let found = self.resolve(number_of_type).filter(|_| depth < MAX_DEPTH)?;
        match found.kind {
            INT | STRUCT | UNION | ENUM | ENUM64 => Some(found.size.into()),
            POINTER => Some(8),
            ARRAY => {
                let (element, count) = (number(found.more, 0)?, number(found.more, 8)?);
                self.size(element, depth + 1)?.checked_mul(count.into())
            }
            _ => None,
        }
    }

    fn name(&self, at: u32) -> &'a str {
        let rest = self.strings.get(at as usize..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }
}

/// A number of four bytes.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
