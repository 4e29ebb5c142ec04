//! Object files of BPF: ELF as `clang -target bpf -c` writes it.
//!
//! XDP programs are the functions in the sections `xdp`, `xdp.frags`, `xdp/…` and `xdp_…`. Maps are defined in the section
//! `.maps` by BTF, or in the section `maps` by `struct bpf_map_def`. Global variables, which are in `.data`, `.bss` and
//! `.rodata` and sections whose names begin so, become a map of one value for each section, as libbpf(7) makes them.
//! Programs refer to them by relocations (RFC 9669 has none; Linux, Documentation/bpf/llvm_reloc.rst).

use std::collections::{BTreeMap, HashMap};

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex};

use super::btf::Btf;
use super::instruction::{MAX_WORDS, Target, Word};
use super::map::{Definition, READ_ONLY};

/// The most bytes of an object file.
pub const MAX_BYTES: usize = 16 << 20;

/// The most maps of an object file.
const MAX_MAPS: usize = 64;

/// The ELF machine of BPF.
const EM_BPF: u16 = 247;

/// A 64-bit constant that is a map, or an address in a section (`R_BPF_64_64`).
const RELOCATE_CONSTANT: u32 = 1;

/// A call of a function (`R_BPF_64_32`).
const RELOCATE_CALL: u32 = 10;

/// An XDP program, not looked into yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawProgram {
    /// The name of its function.
    pub name: String,
    /// The section that it is in.
    pub section: String,
    /// Its instructions.
    pub words: Vec<Word>,
    /// What relocations at instructions refer to.
    pub targets: BTreeMap<usize, Target>,
}

/// What is in an object file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawObject {
    /// The programs.
    pub programs: Vec<RawProgram>,
    /// The maps.
    pub maps: Vec<Definition>,
}

type File<'a> = ElfFile64<'a, LittleEndian>;

impl RawObject {
    /// Reads an object file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<RawObject, String> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("the file has more than {} MiB", MAX_BYTES >> 20));
        }
        let file =
            File::parse(bytes).map_err(|e| format!("not an object file of BPF (ELF, 64 bits, little-endian): {e}"))?;
        if file.elf_header().e_machine.get(LittleEndian) != EM_BPF {
            return Err("an object file, but not of BPF: compile it with clang -target bpf -c".into());
        }
        let maps = Maps::read(&file)?;
        let mut programs = Vec::new();
        for section in file.sections() {
            let Ok(name) = section.name() else { continue };
            if is_xdp(name) && section.size() > 0 {
                programs
                    .extend(read_programs(&file, &section, name, &maps).map_err(|e| format!("section {name}: {e}"))?);
            }
        }
        Ok(RawObject { programs, maps: maps.definitions })
    }
}

/// Whether a section holds XDP programs.
fn is_xdp(section: &str) -> bool {
    section.strip_prefix("xdp").is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '_']) || rest == ".frags")
}

/// The maps of a file, and where they are.
struct Maps {
    definitions: Vec<Definition>,
    /// Maps that symbols name, by section and place in it.
    places: HashMap<(SectionIndex, u64), usize>,
    /// Maps that are whole sections.
    sections: HashMap<SectionIndex, usize>,
}

impl Maps {
    fn read(file: &File<'_>) -> Result<Maps, String> {
        let mut maps = Maps { definitions: Vec::new(), places: HashMap::new(), sections: HashMap::new() };
        maps.read_btf(file)?;
        maps.read_legacy(file)?;
        maps.read_variables(file)?;
        if maps.definitions.len() > MAX_MAPS {
            return Err(format!("the file has {} maps; {MAX_MAPS} are the most", maps.definitions.len()));
        }
        let mut memory = 0;
        for definition in &maps.definitions {
            memory += definition.check().map_err(|reason| format!("map {}: {reason}", definition.name))?;
        }
        match memory <= super::map::MAX_MEMORY {
            true => Ok(maps),
            false => Err(format!("the maps take {} MiB; {} are the most", memory >> 20, super::map::MAX_MEMORY >> 20)),
        }
    }

    fn read_btf(&mut self, file: &File<'_>) -> Result<(), String> {
        let Some(section) = file.section_by_name(".maps") else { return Ok(()) };
        let types = file.section_by_name(".BTF").ok_or("maps in section .maps need BTF: compile with clang -g")?;
        let types = types.data().map_err(|e| format!("section .BTF: {e}"))?;
        for definition in Btf::parse(types)?.maps()? {
            // BTF does not know where the variable is until it is linked; the symbol does.
            let mut symbols = file.symbols().filter(|symbol| symbol.section_index() == Some(section.index()));
            let symbol = symbols.find(|symbol| symbol.name() == Ok(&definition.name));
            let symbol = symbol.ok_or_else(|| format!("map {}: it has no symbol", definition.name))?;
            self.places.insert((section.index(), symbol.address()), self.definitions.len());
            self.definitions.push(definition);
        }
        Ok(())
    }

    /// `struct bpf_map_def`: type, sizes of key and value, number of elements, flags.
    fn read_legacy(&mut self, file: &File<'_>) -> Result<(), String> {
        let Some(section) = file.section_by_name("maps") else { return Ok(()) };
        let data = section.data().map_err(|e| format!("section maps: {e}"))?;
        for symbol in file.symbols().filter(|symbol| symbol.section_index() == Some(section.index())) {
            let name = symbol.name().unwrap_or_default();
            if name.is_empty() || symbol.kind() == object::SymbolKind::Section {
                continue;
            }
            let at = usize::try_from(symbol.address()).unwrap_or(usize::MAX);
            let field = |i: usize| {
                let from = at.checked_add(i * 4)?;
                data.get(from..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
            };
            let fields = || Some((field(0)?, field(1)?, field(2)?, field(3)?, field(4)?));
            let (kind, key_size, value_size, max_entries, flags) =
                fields().ok_or_else(|| format!("map {name}: its definition is cut off"))?;
            let name = name.to_owned();
            self.places.insert((section.index(), symbol.address()), self.definitions.len());
            self.definitions.push(Definition {
                name,
                kind,
                key_size,
                value_size,
                max_entries,
                flags,
                initial: Vec::new(),
            });
        }
        Ok(())
    }

    fn read_variables(&mut self, file: &File<'_>) -> Result<(), String> {
        for section in file.sections() {
            let Ok(name) = section.name() else { continue };
            let is = |kind: &str| name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            let is_constant = is(".rodata");
            if section.size() == 0 || !(is(".data") || is(".bss") || is_constant) {
                continue;
            }
            let initial = section.data().map_err(|e| format!("section {name}: {e}"))?.to_vec();
            self.sections.insert(section.index(), self.definitions.len());
            self.definitions.push(Definition {
                name: name.to_owned(),
                kind: 2,
                key_size: 4,
                value_size: u32::try_from(section.size()).unwrap_or(u32::MAX),
                max_entries: 1,
                flags: if is_constant { READ_ONLY } else { 0 },
                initial,
            });
        }
        Ok(())
    }

    /// What a place in a section is.
    fn target(&self, section: SectionIndex, place: u64) -> Option<Target> {
        if let Some(map) = self.places.get(&(section, place)) {
            return Some(Target::Map(*map));
        }
        let map = *self.sections.get(&section)?;
        Some(Target::Value(map, u32::try_from(place).ok()?))
    }
}

type Section<'a, 'b> = object::read::elf::ElfSection64<'a, 'b, LittleEndian>;

fn read_programs(
    file: &File<'_>,
    section: &Section<'_, '_>,
    section_name: &str,
    maps: &Maps,
) -> Result<Vec<RawProgram>, String> {
    let data = section.data().map_err(|e| e.to_string())?;
    let targets = read_targets(file, section, data, maps)?;
    let mut programs = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.section_index() == Some(section.index())) {
        if symbol.kind() != object::SymbolKind::Text || symbol.size() == 0 {
            continue;
        }
        let name = symbol.name().map_err(|e| e.to_string())?.to_owned();
        let (start, size) = (symbol.address(), symbol.size());
        let code = usize::try_from(start).ok().zip(usize::try_from(size).ok());
        let code = code.and_then(|(start, size)| data.get(start..start.checked_add(size)?));
        let code = code.filter(|_| start % 8 == 0 && size % 8 == 0);
        let code = code.ok_or_else(|| format!("program {name} does not lie within the section"))?;
        if code.len() / 8 > MAX_WORDS {
            return Err(format!("program {name} has more than {MAX_WORDS} instructions"));
        }
        let words: Vec<_> = code.as_chunks().0.iter().copied().map(Word::from_bytes).collect();
        let first = start as usize / 8;
        let within = targets.range(first..first + words.len());
        let targets = within.map(|(at, target)| (at - first, *target)).collect();
        programs.push(RawProgram { name, section: section_name.to_owned(), words, targets });
    }
    Ok(programs)
}

/// What the relocations of a section refer to, by the instruction's number in it.
fn read_targets(
    file: &File<'_>,
    section: &Section<'_, '_>,
    data: &[u8],
    maps: &Maps,
) -> Result<BTreeMap<usize, Target>, String> {
    let mut targets = BTreeMap::new();
    for (offset, relocation) in section.relocations() {
        let at = usize::try_from(offset / 8).unwrap_or(usize::MAX);
        let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
        let RelocationTarget::Symbol(symbol) = relocation.target() else {
            return Err(format!("instruction {at} has a relocation without a symbol"));
        };
        let symbol = file.symbol_by_index(symbol).map_err(|e| e.to_string())?;
        let name = symbol.name().unwrap_or_default();
        match r_type {
            RELOCATE_CONSTANT if offset % 8 == 0 => {}
            // The decoder refuses the call, and says why.
            RELOCATE_CALL => continue,
            _ => return Err(format!("instruction {at} has a relocation of unknown type {r_type} ({name})")),
        }
        let word = data.get(at.saturating_mul(8)..).and_then(|rest| rest.first_chunk()).copied().map(Word::from_bytes);
        let addend = word.ok_or_else(|| format!("a relocation is behind the end, at instruction {at}"))?.immediate;
        let place = symbol.address().wrapping_add(i64::from(addend) as u64);
        let target = symbol.section_index().and_then(|section| maps.target(section, place));
        let target =
            target.ok_or_else(|| format!("instruction {at} refers to {name:?}, which is no map and no variable"))?;
        targets.insert(at, target);
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, StandardSegment, Symbol, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};

    use super::super::assembler::{call, exit, load, set, word};
    use super::*;

    /// BTF of one structure for each map: `type`, `max_entries`, `key_size` and `value_size`.
    fn btf(maps: &[(&str, u32, u32, u32)]) -> Vec<u8> {
        let (mut strings, mut types, mut count) = (vec![0], Vec::new(), 0);
        let mut name = |text: &str| {
            let at = strings.len() as u32;
            strings.extend(text.bytes().chain([0]));
            at
        };
        let members = ["type", "max_entries", "key_size", "value_size"].map(&mut name);
        let mut variables = Vec::new();
        let mut add = |words: &[u32]| {
            types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            count += 1;
            count
        };
        for &(map, kind, key_size, value_size) in maps {
            let mut structure = vec![0, 4 << 24 | 4, 32];
            for (member, number) in members.into_iter().zip([kind, 4, key_size, value_size]) {
                let array = add(&[0, 3 << 24, 0, 0, 0, number]);
                let pointer = add(&[0, 2 << 24, array]);
                structure.extend([member, pointer, 0]);
            }
            let structure = add(&structure);
            variables.push(add(&[name(map), 14 << 24, structure, 1]));
        }
        let mut section = vec![name(".maps"), 15 << 24 | variables.len() as u32, 0];
        section.extend(variables.into_iter().flat_map(|variable| [variable, 0, 32]));
        add(&section);
        let header = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let header = header.iter().flat_map(|word: &u32| word.to_le_bytes());
        [0x9f, 0xeb, 1, 0]
            .into_iter()
            .chain(header)
            .chain(types.iter().copied())
            .chain(strings.iter().copied())
            .collect()
    }

    struct Builder(Object<'static>);

    impl Builder {
        fn new() -> Builder {
            Builder(Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little))
        }

        fn section(&mut self, name: &str, kind: SectionKind, data: &[u8]) -> object::write::SectionId {
            let segment = self.0.segment_name(StandardSegment::Data).to_vec();
            let section = self.0.add_section(segment, name.into(), kind);
            self.0.append_section_data(section, data, 8);
            section
        }

        fn symbol(
            &mut self,
            name: &str,
            kind: SymbolKind,
            section: object::write::SectionId,
            at: u64,
            size: u64,
        ) -> object::write::SymbolId {
            self.0.add_symbol(Symbol {
                name: name.into(),
                value: at,
                size,
                kind,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(section),
                flags: SymbolFlags::None,
            })
        }

        /// A program, whose words at these places refer to symbols.
        fn program(&mut self, section: &str, name: &str, words: &[Word], targets: &[(usize, object::write::SymbolId)]) {
            let bytes: Vec<u8> = words
                .iter()
                .flat_map(|word| {
                    let [o0, o1] = word.offset.to_le_bytes();
                    let [a, b, c, d] = word.immediate.to_le_bytes();
                    [word.code, word.registers, o0, o1, a, b, c, d]
                })
                .collect();
            let section = self.section(section, SectionKind::Text, &bytes);
            self.symbol(name, SymbolKind::Text, section, 0, bytes.len() as u64);
            for &(at, symbol) in targets {
                let flags = RelocationFlags::Elf { r_type: RELOCATE_CONSTANT };
                let relocation = Relocation { offset: at as u64 * 8, symbol, addend: 0, flags };
                self.0.add_relocation(section, relocation).unwrap();
            }
        }

        fn bytes(&self) -> Vec<u8> {
            self.0.write().unwrap()
        }
    }

    fn constant(to: u8, addend: i32) -> [Word; 2] {
        [word(0x18, to, 0, 0, addend), Word::default()]
    }

    /// An object with a map defined by BTF, one by `bpf_map_def`, two variables, and a program that names them all.
    fn whole() -> Vec<u8> {
        let mut builder = Builder::new();
        builder.section(".BTF", SectionKind::Other, &btf(&[("first", 2, 4, 8), ("second", 1, 16, 4)]));
        let maps = builder.section(".maps", SectionKind::Data, &[0; 64]);
        builder.symbol("first", SymbolKind::Data, maps, 0, 32);
        let second = builder.symbol("second", SymbolKind::Data, maps, 32, 32);
        let legacy: Vec<u8> = [11_u32, 8, 4, 16, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
        let old = builder.section("maps", SectionKind::Data, &legacy);
        let old = builder.symbol("old", SymbolKind::Data, old, 0, 20);
        let data = builder.section(".data", SectionKind::Data, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let five = builder.symbol("five", SymbolKind::Data, data, 4, 4);
        let license = builder.section("license", SectionKind::Data, b"GPL\0");
        builder.symbol("_license", SymbolKind::Data, license, 0, 4);
        let words = [constant(1, 0).as_slice(), &constant(2, 0), &constant(3, 1), &[load(1, 0, 3, 0), exit()]].concat();
        builder.program("xdp", "reads", &words, &[(0, second), (2, old), (4, five)]);
        builder.bytes()
    }

    #[test]
    fn maps_variables_and_programs_are_found() {
        let object = RawObject::parse(&whole()).unwrap();
        let maps: Vec<_> =
            object.maps.iter().map(|m| (&*m.name, m.kind, m.key_size, m.value_size, m.max_entries)).collect();
        assert_eq!(
            maps,
            [("first", 2, 4, 8, 4), ("second", 1, 16, 4, 4), ("old", 11, 8, 4, 16), (".data", 2, 4, 8, 1)]
        );
        assert_eq!(object.maps[3].initial, [1, 2, 3, 4, 5, 6, 7, 8]);
        let [program] = &object.programs[..] else { panic!("{:?}", object.programs) };
        assert_eq!((&*program.name, &*program.section, program.words.len()), ("reads", "xdp", 8));
        let targets: Vec<_> = program.targets.iter().map(|(at, target)| (*at, *target)).collect();
        assert_eq!(targets, [(0, Target::Map(1)), (2, Target::Map(2)), (4, Target::Value(3, 5))]);
        let machine = super::super::Machine::load(&whole(), None).unwrap();
        assert_eq!(machine.interpret(&[], 0), Ok(6));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |make: &dyn Fn(&mut Builder)| {
            let mut builder = Builder::new();
            make(&mut builder);
            RawObject::parse(&builder.bytes()).unwrap_err()
        };
        let program = [constant(1, 0).as_slice(), &[set(0, 2), exit()]].concat();
        let error = wrong(&|b| {
            let other = b.section("other", SectionKind::Data, &[0; 8]);
            let symbol = b.symbol("stray", SymbolKind::Data, other, 0, 8);
            b.program("xdp", "p", &program, &[(0, symbol)]);
        });
        assert_eq!(error, "section xdp: instruction 0 refers to \"stray\", which is no map and no variable");
        let maps = |b: &mut Builder| {
            b.section(".maps", SectionKind::Data, &[0; 32]);
        };
        assert!(wrong(&maps).contains("compile with clang -g"));
        let error = wrong(&|b| {
            maps(b);
            b.section(".BTF", SectionKind::Other, &btf(&[("lost", 2, 4, 8)]));
        });
        assert_eq!(error, "map lost: it has no symbol");
        assert!(
            wrong(&|b| {
                b.section(".data", SectionKind::Data, &vec![0; 1 << 17]);
            })
            .contains("values of 131072 bytes")
        );
        let mut many = Builder::new();
        (0..65).for_each(|i| {
            many.section(&format!(".data.{i}"), SectionKind::Data, &[0; 8]);
        });
        assert!(RawObject::parse(&many.bytes()).unwrap_err().contains("65 maps; 64 are the most"));
        let mut long = Builder::new();
        long.program("xdp", "long", &vec![call(5); MAX_WORDS + 1], &[]);
        assert!(RawObject::parse(&long.bytes()).unwrap_err().contains("more than 16384 instructions"));
        assert!(RawObject::parse(&vec![0; MAX_BYTES + 1]).unwrap_err().contains("more than 16 MiB"));
        let other = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        assert!(RawObject::parse(&other.write().unwrap()).unwrap_err().contains("clang -target bpf"));
    }

    #[test]
    fn files_that_are_cut_off_or_damaged_do_no_harm() {
        let whole = whole();
        for len in 0..whole.len() {
            let _ = super::super::Machine::load(&whole[..len], None);
        }
        for at in 0..whole.len() {
            for flipped in [0x01, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= flipped;
                let _ = super::super::Machine::load(&damaged, None);
            }
        }
    }
}
