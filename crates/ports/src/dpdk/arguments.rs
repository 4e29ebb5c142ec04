//! From settings to EAL's command line.
//!
//! What `dpdk-extra` has wins over every other setting and over every default, and no option is given
//! twice. With hugepages, DPDK works in memory alone (`--in-memory`, as OVS has it); without any that are
//! free, on ordinary memory (`--no-huge`). The two exclude each other.

use super::Settings;

/// MiB of addresses for DPDK's memory on ordinary pages; a page takes up memory when it is first used.
const NO_HUGE_MIB: u32 = 1024;

/// Options of EAL that make sense with hugepages alone: whoever gives one of them wants hugepages.
const WANT_HUGEPAGES: &[&str] = &[
    "--in-memory",
    "--legacy-mem",
    "--huge-dir",
    "--huge-unlink",
    "--huge-worker-stack",
    "--match-allocations",
    "--single-file-segments",
    "--socket-mem",
    "--socket-limit",
];

/// The machine, as far as the command line depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Whether a hugepage of any size is free, or the kernel makes one on demand.
    pub hugepages: bool,
    /// The lowest core that this process may use.
    pub core: usize,
}

/// EAL's command line, and what is to be said about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Without the name of the program.
    pub words: Vec<String>,
    /// Settings that have no effect, and why.
    pub warnings: Vec<String>,
    /// Whether ordinary memory was chosen because no hugepage is free.
    pub chose_no_huge: bool,
    /// Whether DPDK's memory is ordinary memory.
    pub no_huge: bool,
    /// Whether somebody said how much memory there is to be.
    pub memory_given: bool,
}

impl Arguments {
    /// The command line for these settings on this machine.
    pub fn new(settings: &Settings, machine: Machine) -> Arguments {
        let words = split_words(settings.extra.as_deref().unwrap_or_default());
        let mut arguments = Arguments { words, ..Arguments::default() };
        arguments.no_huge = arguments.has(&["--no-huge"]);
        if !arguments.no_huge && !machine.hugepages && !arguments.has(WANT_HUGEPAGES) {
            (arguments.no_huge, arguments.chose_no_huge) = (true, true);
            arguments.words.push("--no-huge".into());
        }
        arguments.add_settings(settings);
        arguments.add_memory_mode();
        if !arguments.has(&["-c", "-l", "--lcores"]) {
            arguments.words.extend(["-l".into(), machine.core.to_string()]);
        }
        arguments
    }

    fn add_settings(&mut self, settings: &Settings) {
        self.add("dpdk-lcore-mask", &settings.lcore_mask, "-c", &["-c", "-l", "--lcores"], false);
        self.add("dpdk-hugepage-dir", &settings.hugepage_dir, "--huge-dir", &["--huge-dir"], true);
        self.add("dpdk-socket-limit", &settings.socket_limit, "--socket-limit", &["--socket-limit"], true);
        let memory = &["-m", "--socket-mem"];
        self.add("dpdk-alloc-mem", &settings.alloc_mem, "-m", memory, false);
        // "0": nothing at the start, which is what happens by default.
        let nothing = |text: &&String| text.split(',').all(|mib| mib.trim() == "0");
        let socket_mem = settings.socket_mem.as_ref().filter(|text| !nothing(text)).cloned();
        self.add("dpdk-socket-mem", &socket_mem, "--socket-mem", memory, true);
        self.memory_given = self.has(memory);
    }

    /// Adds a setting, unless one of `rivals` is there already, or it is of hugepages and there are none.
    fn add(&mut self, name: &str, value: &Option<String>, option: &str, rivals: &[&str], of_hugepages: bool) {
        let Some(value) = value.as_deref().map(str::trim).filter(|value| !value.is_empty()) else { return };
        if let Some(rival) = rivals.iter().find(|rival| self.has(&[rival])) {
            self.warnings.push(format!("{name} has no effect: {rival} is given already"));
        } else if of_hugepages && self.no_huge {
            self.warnings.push(format!("{name} has no effect without hugepages"));
        } else {
            self.words.extend([option.into(), value.into()]);
        }
    }

    fn add_memory_mode(&mut self) {
        if self.no_huge {
            // A directory of its own under /run would hinder a second process.
            if !self.has(&["--no-shconf", "--file-prefix"]) {
                self.words.push("--no-shconf".into());
            }
            if !self.has(&["-m", "--socket-mem"]) {
                self.words.extend(["-m".into(), NO_HUGE_MIB.to_string()]);
            }
        } else if !self.has(&["--in-memory", "--legacy-mem"]) {
            self.words.push("--in-memory".into());
        }
    }

    /// Whether one of these options is given, in any of its forms: `-l 0`, `-l0`, `--huge-dir D`,
    /// `--huge-dir=D`.
    fn has(&self, options: &[&str]) -> bool {
        let is = |word: &str, option: &str| match option.strip_prefix("--") {
            Some(_) => word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')),
            None => word.starts_with(option),
        };
        self.words.iter().any(|word| options.iter().any(|option| is(word, option)))
    }
}

/// Words at blanks; quotes hold words together, and a backslash takes what follows as it is.
fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(characters.next()),
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    // EAL would read them as the end of its options.
    words.retain(|word| !word.contains('\0'));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH: Machine = Machine { hugepages: true, core: 2 };
    const WITHOUT: Machine = Machine { hugepages: false, core: 0 };

    fn line(settings: &Settings, machine: Machine) -> String {
        Arguments::new(settings, machine).words.join(" ")
    }

    fn extra(text: &str) -> Settings {
        Settings { extra: Some(text.into()), ..Settings::default() }
    }

    #[test]
    fn defaults() {
        assert_eq!(line(&Settings::default(), WITH), "--in-memory -l 2");
        assert_eq!(line(&Settings::default(), WITHOUT), "--no-huge --no-shconf -m 1024 -l 0");
        assert!(Arguments::new(&Settings::default(), WITHOUT).chose_no_huge);
    }

    #[test]
    fn extra_wins_and_nothing_is_given_twice() {
        let mut settings = extra("-l 1 --socket-mem=64 --huge-dir=/h --in-memory");
        settings.lcore_mask = Some("0x1".into());
        settings.alloc_mem = Some("128".into());
        settings.hugepage_dir = Some("/g".into());
        let arguments = Arguments::new(&settings, WITH);
        assert_eq!(arguments.words.join(" "), "-l 1 --socket-mem=64 --huge-dir=/h --in-memory");
        assert_eq!(arguments.warnings.len(), 3, "{:?}", arguments.warnings);
        assert!(arguments.warnings[2].starts_with("dpdk-alloc-mem has no effect: --socket-mem"));
    }

    #[test]
    fn extra_decides_on_hugepages() {
        assert_eq!(line(&extra("--in-memory --no-pci"), WITHOUT), "--in-memory --no-pci -l 0");
        assert_eq!(line(&extra("--no-huge"), WITH), "--no-huge --no-shconf -m 1024 -l 2");
        assert!(!Arguments::new(&extra("--no-huge"), WITH).chose_no_huge);
        assert_eq!(line(&extra("--legacy-mem"), WITH), "--legacy-mem -l 2");
        assert_eq!(
            line(&extra("--no-pci -m 64 --file-prefix=x"), WITHOUT),
            "--no-pci -m 64 --file-prefix=x --no-huge -l 0"
        );
    }

    #[test]
    fn settings_of_hugepages_fall_away_without() {
        let settings = Settings {
            socket_mem: Some("512,0".into()),
            socket_limit: Some("512".into()),
            hugepage_dir: Some("/h".into()),
            alloc_mem: Some("300".into()),
            lcore_mask: Some("0x3".into()),
            ..Settings::default()
        };
        let arguments = Arguments::new(&settings, WITHOUT);
        assert_eq!(arguments.words.join(" "), "--no-huge -c 0x3 -m 300 --no-shconf");
        assert!(arguments.memory_given);
        assert_eq!(arguments.warnings.len(), 3, "{:?}", arguments.warnings);
        let with = Settings { alloc_mem: None, ..settings };
        let expected = "-c 0x3 --huge-dir /h --socket-limit 512 --socket-mem 512,0 --in-memory";
        assert_eq!(line(&with, WITH), expected);
    }

    #[test]
    fn words_of_extra() {
        assert_eq!(split_words(r#" a  'b c' "d\" e" f\ g ''"#), ["a", "b c", "d\" e", "f g", ""]);
        assert_eq!(split_words("--vdev=\"net_tap0,iface=x y\""), ["--vdev=net_tap0,iface=x y"]);
        assert!(split_words("").is_empty());
    }
}
