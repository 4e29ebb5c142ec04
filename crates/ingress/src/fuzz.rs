//! Entry points of the fuzz targets: any rules and frames, and any programs.

use std::net::{Ipv4Addr, Ipv6Addr};

use datapath::pipeline::ingress::Filter as _;
use packet::{Packet, Time};

use crate::bpf::native::{self, NativeProgram};
use crate::bpf::{Instruction, verify};
use crate::ebpf::instruction::Word;
use crate::ebpf::{Machine, assembler};
use crate::jit::Compiler;
use crate::prefix::recognise;
use crate::rule;
use crate::{PortFilter, RuleSet};

/// The longest frame that is made.
const LONGEST_FRAME: usize = 256;

/// What the first byte says: a text of rules, or a program of instructions. Then comes its length, itself, and a frame.
pub fn run(bytes: &[u8]) {
    let [kind, high, low, rest @ ..] = bytes else { return };
    let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
    let (what, frame) = rest.split_at(len);
    let frame = &frame[..frame.len().min(LONGEST_FRAME)];
    match kind & 1 {
        0 => run_rules(what, frame),
        _ => run_program(what, frame),
    }
}

/// What the first byte says: an object file, or the words of a program, of which the second byte says how many there are.
/// Behind a program comes a frame.
pub fn run_ebpf(bytes: &[u8]) {
    let [kind, rest @ ..] = bytes else { return };
    if kind & 1 == 0 {
        run_machine(|| Machine::load(rest, None).ok(), &rest[..rest.len().min(LONGEST_FRAME)]);
        return;
    }
    let [words, rest @ ..] = rest else { return };
    let (code, frame) = rest.split_at((usize::from(*words) * 8).min(rest.len()));
    let words: Vec<_> = code.as_chunks().0.iter().copied().map(Word::from_bytes).collect();
    let load = || assembler::assemble(&words, assembler::maps()).ok();
    run_machine(load, &frame[..frame.len().min(LONGEST_FRAME)]);
}

/// A program that was verified has no faults, with the maps empty and with what it has left there, and returns the same
/// in native code.
fn run_machine(load: impl Fn() -> Option<Machine>, frame: &[u8]) {
    let (Some(interpreted), Some(native)) = (load(), load()) else { return };
    for now in 0..3 {
        let returned = interpreted.interpret(frame, now).expect("it was verified");
        if let Some(by_native_code) = native.run_native(frame, now) {
            assert_eq!(by_native_code, returned);
        }
    }
}

fn run_rules(text: &[u8], frame: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(rules) = rule::parse(text) else { return };
    assert!(rule::parse(&rule::format(&rules)).is_ok());
    // libpcap would ask name servers for what it takes for the name of a host: only words without names go there.
    if !rules.iter().all(|rule| rule.expression.split([' ', '(', ')', '[', ']']).all(is_no_name)) {
        return;
    }
    let Ok(set) = RuleSet::compile(text) else { return };
    let expected = set.first_match(frame);
    let filter = PortFilter::new(set);
    let refused = filter.for_queue().refused(&[Packet::from_slice(frame)], Time(1));
    let counts = filter.counts();
    assert_eq!(counts.iter().position(|counts| counts.packets > 0), expected);
    assert_eq!(counts.iter().map(|counts| counts.dropped).sum::<u64>(), u64::from(refused));
    for rule in filter.rules().rules() {
        let _ = recognise(&rule.expression);
    }
}

/// Whether libpcap looks a word up nowhere.
fn is_no_name(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "and",
        "or",
        "not",
        "ip",
        "ip6",
        "tcp",
        "udp",
        "arp",
        "rarp",
        "icmp",
        "vlan",
        "src",
        "dst",
        "net",
        "host",
        "port",
        "portrange",
        "less",
        "greater",
        "proto",
        "ether",
        "broadcast",
        "multicast",
        "len",
        "=",
        "!=",
        "<",
        ">",
        "&",
        "|",
        "+",
        "-",
        "*",
        "/",
        "%",
        "<<",
        ">>",
    ];
    let (address, len) = word.split_once('/').unwrap_or((word, "0"));
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b':');
    let is_address = address.parse::<Ipv4Addr>().is_ok() || address.parse::<Ipv6Addr>().is_ok();
    WORDS.contains(&word) || is_number(word) || is_address && is_number(len)
}

fn run_program(bytes: &[u8], frame: &[u8]) {
    let instructions = bytes.chunks_exact(8).map(|bytes| Instruction {
        code: u16::from_be_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    });
    if let Ok(program) = verify(&instructions.collect::<Vec<_>>()) {
        let whole = program.run(frame);
        assert_eq!(program.matches(frame), whole.is_some_and(|returned| returned != 0));
        let mut compiler = Compiler::new().expect("there is native code for this processor");
        let function = compiler.add(|builder| native::build(&program, builder)).expect("it can be compiled");
        let native = NativeProgram::new(compiler.finish(&[function]).expect("there is memory").remove(0));
        assert_eq!(native.run(frame), whole.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_seeds_run() {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/ingress");
        let seeds: Vec<_> = std::fs::read_dir(seeds).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(seeds.len() >= 4);
        seeds.iter().for_each(|seed| run(&std::fs::read(seed).unwrap()));
    }

    #[test]
    fn the_seeds_of_programs_run() {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/ingress_ebpf");
        let mut loaded = 0;
        for seed in std::fs::read_dir(seeds).unwrap() {
            let seed = std::fs::read(seed.unwrap().path()).unwrap();
            run_ebpf(&seed);
            loaded += u32::from(seed[0] == 0 && Machine::load(&seed[1..], None).is_ok());
        }
        assert!(loaded >= 2, "of those that are object files, two are right");
    }

    proptest! {
        #[test]
        fn any_bytes_run(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..2_u8) {
            run(&[&[kind, 0, 160], &*bytes].concat());
        }
    }
}
