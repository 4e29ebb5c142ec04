//! What of a rule set a port can do by itself, before its receive queues see a frame: a program for
//! [`EarlyDrop`](ports::EarlyDrop).
//!
//! The rules are taken in their order, up to the first that cannot be pushed down. Those that drop become code that names
//! the rule; those that pass end the program, so that the frame goes on to the receive queue. There, all rules are
//! looked at again: nothing depends on whether, or since when, the port has the program.
//!
//! The code is eBPF made from verified programs of classic BPF, with a check of the frame's end before each load, so
//! that it does what the interpreter does. The kernel verifies it once more.
//!
//! | module | what it is |
//! |---|---|
//! | `code` | eBPF code that is being written |
//! | `translation` | Classic BPF as eBPF |
//! | `tables` | Many prefixes as look-ups in the kernel's tables |
//! | `prefix_program` | A single prefix as classic BPF |

mod code;
mod prefix_program;
mod tables;
mod translation;

use ports::early_drop::DropProgram;

use crate::prefix::recognise;
use crate::rule::Verdict;
use crate::rule_set::RuleSet;
use code::Code;
use prefix_program::prefix_operations;
use tables::{prefixes_from, write_tables};
use translation::{FARTHEST, Translation};

/// A rule set's head as a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushDown {
    /// The program; `None` where no rule of the head drops.
    pub program: Option<DropProgram>,
    /// How many rules it has: the first ones.
    pub rules: usize,
    /// How many rules there are before the first that cannot be pushed down, or all.
    pub head: usize,
    /// Why the next rule is not among them.
    pub obstacle: Option<Obstacle>,
}

/// Why a rule cannot be pushed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Obstacle {
    #[error("it limits a rate")]
    Limit,
    #[error("it asks for the frame's length, and parts of a TCP burst are put together only later")]
    Length,
    #[error("it asks for what is more than {FARTHEST} bytes behind the frame's start")]
    Far,
    #[error("the rules up to it have more than {} prefixes", DropProgram::MAX_RULES)]
    Prefixes,
    #[error("the rules up to it take more than {} instructions", DropProgram::MAX_INSTRUCTIONS)]
    Instructions,
}

/// The part of a rule set that can be pushed down.
pub fn push_down(set: &RuleSet) -> PushDown {
    let mut code = Code::default();
    let (mut obstacle, mut count) = (None, 0);
    while count < set.rules().len() {
        let (instructions, tables) = (code.len(), code.tables.len());
        let jumps = code.ends.len();
        let prefixes = prefixes_from(set, count);
        let written = match prefixes.len() {
            TABLE_FROM.. => write_tables(&mut code, &prefixes).map(|()| true),
            _ => write_rule(&mut code, set, count),
        };
        let written = written.and_then(|goes_on| match code.len() {
            ..DropProgram::MAX_INSTRUCTIONS => Ok(goes_on),
            _ => Err(Obstacle::Instructions),
        });
        match written {
            Ok(true) => count += if prefixes.len() < TABLE_FROM { 1 } else { prefixes.len() },
            // What follows is never reached.
            Ok(false) => count = set.rules().len(),
            Err(reason) => {
                code.instructions.truncate(instructions);
                code.tables.truncate(tables);
                code.ends.truncate(jumps);
                obstacle = Some(reason);
                break;
            }
        }
    }
    let drops = set.rules()[..count].iter().any(|rule| rule.verdict == Verdict::Drop);
    let tables = std::mem::take(&mut code.tables);
    let program = drops.then(|| DropProgram { instructions: code.finish(), rules: count as u32, tables });
    PushDown { program, rules: if drops { count } else { 0 }, head: count, obstacle }
}

/// So many consecutive rules that name a prefix only become look-ups.
const TABLE_FROM: usize = 4;

/// Writes the code of a rule; returns whether there are frames that go on to the next one.
fn write_rule(code: &mut Code, set: &RuleSet, number: usize) -> Result<bool, Obstacle> {
    let rule = &set.rules()[number];
    let answer = match rule.verdict {
        Verdict::Drop => number as i32,
        Verdict::Pass => DropProgram::NONE,
        Verdict::Limit(_) => return Err(Obstacle::Limit),
    };
    if rule.expression.is_empty() {
        code.answer(answer);
        return Ok(false);
    }
    let own;
    let operations = match set.program(number) {
        Some(program) => program.operations(),
        None => {
            let Some(prefix) = recognise(&rule.expression) else { return Err(Obstacle::Instructions) };
            own = prefix_operations(&prefix);
            &own
        }
    };
    Translation::new(code, operations).write(answer)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::bpf::{Program, verify};

    /// The rule that drops a frame, as the kernel says.
    fn in_the_kernel(set: &RuleSet, frames: &[Vec<u8>]) -> Vec<Option<u32>> {
        testing::root();
        let pushed = push_down(set);
        let program = pushed.program.as_ref().expect("it can be pushed down");
        assert_eq!(pushed.obstacle, None);
        ports::afxdp::trial(program, frames).unwrap()
    }

    /// The same as the filter says.
    fn here(set: &RuleSet, frame: &[u8]) -> Option<u32> {
        let first = set.first_match(frame)?;
        (set.rules()[first].verdict == Verdict::Drop).then_some(first as u32)
    }

    /// Frames of any kind with addresses, ports and tags that expressions below ask for; cut short here and there.
    fn any_frame() -> impl Strategy<Value = Vec<u8>> {
        let kind =
            prop::sample::select(vec![[0x08, 0x00], [0x08, 0x06], [0x80, 0x35], [0x86, 0xdd], [0x81, 0x00], [9, 9]]);
        let body =
            prop::collection::vec(prop::sample::select(vec![0, 1, 6, 8, 10, 17, 80, 0x45, 0x46, 0xc6, 0xff]), 0..90);
        (kind, body, any::<bool>(), any::<u8>(), 0..4_u8).prop_map(|(kind, body, is_plain, last, option)| {
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
            frame.extend(kind);
            frame.extend(body);
            if is_plain && frame.len() > 42 && kind == [8, 0] {
                frame[14] = 0x45 + option;
                (frame[20], frame[21], frame[23]) = (0, 0, if last & 1 == 0 { 17 } else { 6 });
                frame[30..34].copy_from_slice(&[198, 18 + (last >> 6), 0, last & 3]);
            }
            frame
        })
    }

    /// Prefixes that often hold one another, and addresses of [`any_frame`].
    fn any_prefix() -> impl Strategy<Value = String> {
        let address = prop::sample::select(vec![0x0a0a_0a0a, 0xc612_0000, 0xc612_0002, 0x0101_0101, 0x5011_0a0a]);
        let v4 = (address, 1..=32_u32, any::<bool>()).prop_map(|(address, len, is_ip): (u32, _, _)| {
            let address = Ipv4Addr::from(address & u32::MAX << (32 - len));
            format!("{}dst net {address}/{len}", if is_ip { "ip " } else { "" })
        });
        let v6 = (any::<u8>(), 1..=32_u32).prop_map(|(byte, len)| {
            let byte = [0, 1, 6, 8, 10, 17][usize::from(byte % 6)] as u128;
            let address = std::net::Ipv6Addr::from((byte << 120 | byte << 112) & u128::MAX << (128 - len));
            format!("{}net {address}/{len}", ["src ", "dst ", ""][byte as usize % 3])
        });
        let source = prop::sample::select(vec!["src net 10.0.0.0/8", "net 10.10.0.0/16", "src host 17.17.17.17"]);
        prop_oneof![3 => v4, 1 => v6, 1 => source.prop_map(str::to_owned)]
    }

    const EXPRESSIONS: &[&str] = &[
        "dst net 198.18.0.0/15",
        "ip dst net 198.18.0.0/15",
        "src host 10.10.10.10",
        "net 10.0.0.0/8",
        "ip6 dst net 0a0a::/16",
        "dst host 0a0a:0101:0606:0808:0a0a:0101:0606:0808",
        "net 0a00::/9",
        "udp",
        "tcp dst port 80",
        "udp port 80 or tcp port 10",
        "vlan 257 and udp",
        "ether src 02:00:00:00:00:02",
        "icmp or arp",
        "ip[6:2] & 0x1fff != 0",
        "ip[0] & 0xf > 5",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn",
        "ip proto 17 and ip[ip[0] & 0xf] = 10",
        "ip[1] / ip[2] = 1 or ip[1] << ip[2] = 20 or ip[1] % ip[3] = 2",
        "portrange 70-90 and not src net 10.0.0.0/8",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn the_kernel_drops_what_the_filter_drops(
            rules in prop::collection::vec((prop::bool::weighted(0.7), prop::sample::select(EXPRESSIONS)), 1..6),
            every in any::<bool>(),
            frames in prop::collection::vec(any_frame(), 1..40),
        ) {
            let words = |&(drops, text): &(bool, &str)| format!("{} {text}", if drops { "drop" } else { "pass" });
            let mut text: Vec<_> = rules.iter().map(words).collect();
            text.extend(every.then(|| "drop".to_owned()));
            text.push("drop udp port 10".to_owned());
            let set = RuleSet::compile(&text.join(";")).unwrap();
            for (frame, dropped) in frames.iter().zip(in_the_kernel(&set, &frames)) {
                // What ends within its addresses is left to the filter.
                let is_short = dropped.is_none() && frame.len() < 54;
                prop_assert!(is_short || dropped == here(&set, frame), "{:?} {:02x?}", set.rules(), frame);
            }
        }

        #[test]
        fn the_kernel_finds_the_first_of_many_prefixes(
            rules in prop::collection::vec((prop::bool::weighted(0.7), any_prefix()), 4..30),
            then in prop::sample::select(vec!["drop udp", "drop", "pass icmp; drop ip6", "drop src net 10.0.0.0/9"]),
            frames in prop::collection::vec(any_frame(), 1..40),
        ) {
            let words = |(drops, text): &(bool, String)| format!("{} {text}", if *drops { "drop" } else { "pass" });
            let text = rules.iter().map(words).collect::<Vec<_>>().join(";");
            let set = RuleSet::compile(&format!("drop tcp; {text}; {then}")).unwrap();
            let pushed = push_down(&set).program.unwrap();
            prop_assert!(!pushed.tables.is_empty());
            for (frame, dropped) in frames.iter().zip(in_the_kernel(&set, &frames)) {
                let is_short = dropped.is_none() && frame.len() < 54;
                prop_assert!(is_short || dropped == here(&set, frame), "{:?} {:02x?}", set.rules(), frame);
            }
        }

        #[test]
        fn prefixes_are_programs(at in 0..7_usize, frame in any_frame(), cut in 0..90_usize) {
            let expression = EXPRESSIONS[at];
            let operations = prefix_operations(&recognise(expression).unwrap());
            let frame = &frame[..frame.len().min(14 + cut)];
            let set = RuleSet::compile(&format!("drop {expression}")).unwrap();
            let matches = Program::from_operations(operations).matches(frame);
            prop_assert_eq!(matches, set.first_match(frame).is_some(), "{} {:02x?}", expression, frame);
        }

        #[test]
        fn any_program_is_translated_as_the_interpreter_runs_it(
            body in prop::collection::vec(crate::bpf::tests::any_instruction(), 0..24),
            frames in prop::collection::vec(any_frame(), 1..8),
        ) {
            testing::root();
            let ends = [6, 0x16, 6].map(|code| crate::bpf::Instruction { code, jt: 0, jf: 0, k: u32::from(code == 6) });
            let program: Vec<_> = body.into_iter().chain([ends[0], ends[0]]).chain(ends).collect();
            let Ok(program) = verify(&program) else { return Ok(()) };
            let mut code = Code::default();
            let Ok(_) = Translation::new(&mut code, program.operations()).write(7) else { return Ok(()) };
            let translated = DropProgram { instructions: code.finish(), rules: 8, tables: Vec::new() };
            for (frame, dropped) in frames.iter().zip(ports::afxdp::trial(&translated, &frames).unwrap()) {
                prop_assert_eq!(dropped, program.matches(frame).then_some(7), "{:?} {:02x?}", program, frame);
            }
        }
    }

    #[test]
    fn the_head_is_pushed_down_up_to_the_first_rule_that_cannot_be() {
        let pushed = |text: &str| {
            let pushed = push_down(&RuleSet::compile(text).unwrap());
            (pushed.program.map(|program| program.rules), pushed.rules, pushed.obstacle)
        };
        assert_eq!(pushed("drop udp; pass tcp; drop dst net 10.0.0.0/8"), (Some(3), 3, None));
        assert_eq!(pushed("drop udp; limit 5 tcp; drop icmp"), (Some(1), 1, Some(Obstacle::Limit)));
        assert_eq!(pushed("drop udp; drop greater 100"), (Some(1), 1, Some(Obstacle::Length)));
        assert_eq!(pushed("drop ether[40000] = 1; drop udp"), (None, 0, Some(Obstacle::Far)));
        assert_eq!(pushed("pass udp; pass"), (None, 0, None));
        assert_eq!(pushed(""), (None, 0, None));
        assert_eq!(pushed("drop udp; drop; limit 7"), (Some(3), 3, None));
        let many: Vec<_> = (0..3000).map(|n| format!("drop dst host 10.0.{}.{}", n / 250, n % 250)).collect();
        assert_eq!(pushed(&many.join(";")), (Some(3000), 3000, None));
        let too_many: Vec<_> = (0..17_000).map(|n| format!("drop host 10.0.{}.{}", n / 250, n % 250)).collect();
        let text = format!("drop udp; pass tcp; {}", too_many.join(";"));
        assert_eq!(pushed(&text), (Some(2), 2, Some(Obstacle::Prefixes)));
        let long = (0..150)
            .map(|n| format!("drop udp port {} or tcp port {}", 2 * n, 2 * n + 1))
            .collect::<Vec<_>>()
            .join(";");
        let (program, rules, obstacle) = pushed(&long);
        assert!(program == Some(rules as u32) && (10..150).contains(&rules), "{rules}");
        assert_eq!(obstacle, Some(Obstacle::Instructions));
    }
}
