//! Compiled rules: which one decides about a frame.

use datapath::classify::bits;
use datapath::pipeline::batch::all;
use packet::{Packet, Time};

use crate::bpf::native::{self, NativeProgram};
use crate::bpf::{Program, verify};
use crate::counters::RuleCounts;
use crate::jit::{Compiler, JitError};
use crate::libpcap;
use crate::limit::TokenBucket;
use crate::prefix::recognise;
use crate::prefix_set::PrefixSet;
use crate::rule::{self, Rule, RuleError, Verdict};

/// Compiled rules, with the token buckets of those that limit. By default there are none.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Box<[Rule]>,
    /// What to do, by rule.
    decisions: Box<[Decision]>,
    /// What to look at, one after the other.
    steps: Box<[Step]>,
}

/// What a rule decides.
#[derive(Debug)]
pub enum Decision {
    /// The frame goes on.
    Pass,
    /// The frame is dropped.
    Drop,
    /// The frame goes on while there are tokens.
    Limit(TokenBucket),
}

/// One or more consecutive rules.
#[derive(Debug)]
enum Step {
    /// A rule without an expression.
    Every(u32),
    /// Rules that name a prefix only.
    Prefixes(PrefixSet),
    /// A rule with an expression that libpcap has compiled.
    Program(u32, Program),
    /// The same in native code, and what it was made from.
    Native(u32, NativeProgram, Program),
}

impl RuleSet {
    /// Compiles the text of rules: see [`crate::rule`]. May take as long as a name server does, where an expression names
    /// a host.
    ///
    /// # Errors
    /// The first rule that is wrong, or needs libpcap where there is none.
    pub fn compile(text: &str) -> Result<RuleSet, RuleError> {
        RuleSet::new(rule::parse(text)?, true, true)
    }

    /// The same without native code, as where there is none.
    ///
    /// # Errors
    /// As of [`RuleSet::compile`].
    pub fn compile_to_interpret(text: &str) -> Result<RuleSet, RuleError> {
        RuleSet::new(rule::parse(text)?, true, false)
    }

    /// The same without look-ups of many prefixes at once: every expression becomes a program.
    #[cfg(test)]
    pub fn compile_to_programs(text: &str) -> Result<RuleSet, RuleError> {
        RuleSet::new(rule::parse(text)?, false, false)
    }

    fn new(rules: Vec<Rule>, merge: bool, native: bool) -> Result<RuleSet, RuleError> {
        let mut steps = Vec::new();
        let mut prefixes = Vec::new();
        for (number, rule) in (0..).zip(&rules) {
            let prefix = if merge { recognise(&rule.expression) } else { None };
            if let Some(prefix) = prefix {
                prefixes.push((number, prefix));
                continue;
            }
            steps.extend(take_prefixes(&mut prefixes));
            if rule.expression.is_empty() {
                // What comes behind it is never reached, but is compiled all the same, to be refused where it is wrong.
                steps.push(Step::Every(number));
                continue;
            }
            let failed = |reason| RuleError { rule: number as usize + 1, column: rule.column, reason };
            let program = libpcap::compile(&rule.expression).map_err(|e| failed(e.to_string()))?;
            let program = verify(&program).map_err(|e| failed(e.to_string()))?;
            steps.push(Step::Program(number, program));
        }
        steps.extend(take_prefixes(&mut prefixes));
        if native {
            // Where there is no native code, programs are interpreted.
            let _ = make_native(&mut steps);
        }
        let decisions = rules.iter().map(|rule| Decision::of(rule.verdict)).collect();
        Ok(RuleSet { rules: rules.into(), decisions, steps: steps.into() })
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The program of a rule; `None` where it has none of its own.
    pub fn program(&self, rule: usize) -> Option<&Program> {
        self.steps.iter().find_map(|step| match step {
            Step::Program(number, program) | Step::Native(number, _, program) if *number as usize == rule => {
                Some(program)
            }
            _ => None,
        })
    }

    /// What a rule decides.
    #[inline]
    pub fn decision(&self, rule: usize) -> &Decision {
        &self.decisions[rule]
    }

    /// The packets that the rules drop, as a set: bit `i` stands for `packets[i]`. Tells `count` what each rule has
    /// counted; of a rule it may do so several times.
    #[inline]
    pub fn refused(&self, packets: &[Packet], now: Time, count: impl FnMut(usize, RuleCounts)) -> u32 {
        let decisions = &*self.decisions;
        let mut verdicts = Verdicts { decisions, packets, now, pending: all(packets.len()), refused: 0, count };
        for step in &self.steps {
            if verdicts.pending == 0 {
                break;
            }
            step.decide(&mut verdicts);
        }
        verdicts.refused
    }

    /// The first rule that matches a frame, counted from 0.
    #[inline]
    pub fn first_match(&self, frame: &[u8]) -> Option<usize> {
        self.steps.iter().find_map(|step| step.first(frame)).map(|rule| rule as usize)
    }
}

/// The most instructions of a rule set that become native code: it takes time to compile them. What is left is
/// interpreted.
const MAX_NATIVE: usize = 32_768;

/// Puts native code in the place of programs, as far as there may be.
fn make_native(steps: &mut [Step]) -> Result<(), JitError> {
    let mut compiler = Compiler::new()?;
    let (mut functions, mut places, mut instructions) = (Vec::new(), Vec::new(), 0);
    for (place, step) in steps.iter().enumerate() {
        let Step::Program(_, program) = step else { continue };
        instructions += program.operations().len();
        if instructions > MAX_NATIVE {
            break;
        }
        functions.push(compiler.add(|builder| native::build(program, builder))?);
        places.push(place);
    }
    for (place, function) in places.into_iter().zip(compiler.finish(&functions)?) {
        if let Step::Program(rule, program) = &steps[place] {
            steps[place] = Step::Native(*rule, NativeProgram::new(function), program.clone());
        }
    }
    Ok(())
}

/// The step for the rules that were gathered, if there are any.
fn take_prefixes(prefixes: &mut Vec<(u32, crate::prefix::PrefixExpression)>) -> Option<Step> {
    let prefixes = std::mem::take(prefixes);
    (!prefixes.is_empty()).then(|| Step::Prefixes(PrefixSet::new(&prefixes)))
}

/// What becomes of the packets of a batch, while the steps are taken.
struct Verdicts<'a, C> {
    decisions: &'a [Decision],
    packets: &'a [Packet],
    now: Time,
    /// The packets that no rule has matched so far.
    pending: u32,
    /// Those that are dropped.
    refused: u32,
    /// Is told what a rule has counted.
    count: C,
}

impl<C: FnMut(usize, RuleCounts)> Verdicts<'_, C> {
    /// Decides about pending packets, whose first match a rule is.
    #[inline(always)]
    fn decide(&mut self, rule: u32, matched: u32) {
        if matched == 0 {
            return;
        }
        let dropped = match &self.decisions[rule as usize] {
            Decision::Pass => 0,
            Decision::Drop => matched,
            Decision::Limit(bucket) => {
                bits(matched).fold(0, |dropped, i| dropped | u32::from(!bucket.take(self.now)) << i)
            }
        };
        let bytes = if matched == all(self.packets.len()) {
            self.packets.iter().map(|packet| packet.len() as u64).sum()
        } else {
            bits(matched).map(|i| self.packets[i].len() as u64).sum()
        };
        let (packets, dropped_packets) = (matched.count_ones().into(), dropped.count_ones().into());
        (self.count)(rule as usize, RuleCounts { packets, bytes, dropped: dropped_packets });
        self.pending &= !matched;
        self.refused |= dropped;
    }

    /// As [`decide`](Verdicts::decide), for a rule whose program says which packets it matches.
    #[inline(always)]
    fn decide_by(&mut self, rule: u32, matches: impl Fn(&[u8]) -> bool) {
        let matched = bits(self.pending).fold(0, |set, i| set | u32::from(matches(self.packets[i].data())) << i);
        self.decide(rule, matched);
    }
}

impl Step {
    /// Decides about the packets that the step's rules match first.
    #[inline(always)]
    fn decide<C: FnMut(usize, RuleCounts)>(&self, verdicts: &mut Verdicts<C>) {
        match self {
            Step::Every(rule) => verdicts.decide(*rule, verdicts.pending),
            Step::Prefixes(set) => {
                set.each_match(verdicts.packets, verdicts.pending, |rule, matched| verdicts.decide(rule, matched));
            }
            Step::Program(rule, program) => verdicts.decide_by(*rule, |frame| program.matches(frame)),
            Step::Native(rule, program, _) => verdicts.decide_by(*rule, |frame| program.run(frame) != 0),
        }
    }

    /// The first of the step's rules that matches a frame.
    #[inline]
    fn first(&self, frame: &[u8]) -> Option<u32> {
        match self {
            Step::Every(rule) => Some(*rule),
            Step::Prefixes(set) => set.first(frame),
            Step::Program(rule, program) => program.matches(frame).then_some(*rule),
            Step::Native(rule, program, _) => (program.run(frame) != 0).then_some(*rule),
        }
    }
}

impl Decision {
    fn of(verdict: Verdict) -> Decision {
        match verdict {
            Verdict::Pass => Decision::Pass,
            Verdict::Drop => Decision::Drop,
            Verdict::Limit(rate) => Decision::Limit(TokenBucket::new(rate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::BATCH_SIZE;
    use proptest::prelude::*;

    use super::*;

    /// Prefixes that often hold one another, and the addresses of [`any_frame`].
    fn any_expression() -> impl Strategy<Value = String> {
        let address = (0..3_u32, 0..4_u32).prop_map(|(a, b)| 0x0a00_0000 | a << 16 | b);
        let v4 = (address, 1..=32_u32, any::<bool>()).prop_map(|(address, len, is_host)| {
            let net = std::net::Ipv4Addr::from(address & u32::MAX << (32 - len));
            match is_host {
                true => format!("host {}", std::net::Ipv4Addr::from(address)),
                false => format!("net {net}/{len}"),
            }
        });
        let v6 = (0..3_u128, 0..4_u128, 1..=128_u32).prop_map(|(a, b, len)| {
            let address = 0x2001_0db8 << 96 | a << 48 | b;
            format!("net {}/{len}", std::net::Ipv6Addr::from(address & u128::MAX << (128 - len)))
        });
        let direction = proptest::sample::select(vec!["", "src ", "dst "]);
        prop_oneof![
            3 => (any::<bool>(), direction.clone(), v4)
                .prop_map(|(ip, direction, net)| format!("{}{direction}{net}", if ip { "ip " } else { "" })),
            2 => (any::<bool>(), direction, v6)
                .prop_map(|(ip6, direction, net)| format!("{}{direction}{net}", if ip6 { "ip6 " } else { "" })),
            1 => proptest::sample::select(vec!["tcp", "udp src port 7", "arp", "ip6", "vlan", "less 40"])
                .prop_map(str::to_owned),
        ]
    }

    /// A frame with addresses of the same few, of any length, with any bytes in some place.
    fn any_frame() -> impl Strategy<Value = Vec<u8>> {
        let ethertype = proptest::sample::select(vec![0x0800_u16, 0x0806, 0x8035, 0x86dd, 0x8100, 0x0800]);
        let fields = (ethertype, proptest::collection::vec((0..3_u8, 0..4_u8), 2), 0..80_usize);
        (fields, proptest::option::of((0..80_usize, any::<u8>()))).prop_map(|((ethertype, addresses, len), change)| {
            let mut frame = vec![0; 80];
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            for (nth, (a, b)) in addresses.into_iter().enumerate() {
                let v4 = [10, a, 0, b];
                let at = match ethertype {
                    0x0806 | 0x8035 => 28 + 10 * nth,
                    _ => 26 + 4 * nth,
                };
                if ethertype == 0x86dd {
                    let mut v6 = [0; 16];
                    (v6[0], v6[1], v6[2], v6[3], v6[9], v6[15]) = (0x20, 1, 0x0d, 0xb8, a, b);
                    frame[22 + 16 * nth..][..16].copy_from_slice(&v6);
                } else {
                    frame[at..at + 4].copy_from_slice(&v4);
                }
            }
            if let Some((at, value)) = change {
                frame[at] = value;
            }
            frame.truncate(len);
            frame
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn merged_prefixes_decide_as_libpcaps_programs_do(
            expressions in proptest::collection::vec(any_expression(), 1..8),
            frames in proptest::collection::vec(any_frame(), 60),
        ) {
            let text = expressions.iter().map(|e| format!("drop {e}")).collect::<Vec<_>>().join(";");
            let (merged, programs) = (RuleSet::compile(&text).unwrap(), RuleSet::compile_to_programs(&text).unwrap());
            prop_assert_eq!(programs.steps.len(), expressions.len());
            for frame in &frames {
                prop_assert_eq!(merged.first_match(frame), programs.first_match(frame), "{:?} {:02x?}", text, frame);
            }
            // A batch as its packets one by one.
            for frames in frames.chunks(BATCH_SIZE) {
                let packets: Vec<_> = frames.iter().map(|frame| Packet::from_slice(frame)).collect();
                let mut counted = vec![RuleCounts::default(); expressions.len()];
                let refused = merged.refused(&packets, Time(1), |rule, counts| counted[rule].add(counts));
                let mut expected = vec![RuleCounts::default(); expressions.len()];
                for (i, frame) in frames.iter().enumerate() {
                    let first = programs.first_match(frame);
                    prop_assert_eq!(refused >> i & 1 != 0, first.is_some(), "{:?} {:02x?}", text, frame);
                    let counts = RuleCounts { packets: 1, bytes: frame.len() as u64, dropped: 1 };
                    first.into_iter().for_each(|rule| expected[rule].add(counts));
                }
                prop_assert_eq!(counted, expected, "{:?}", text);
            }
        }
    }

    #[test]
    fn runs_of_prefixes_become_one_step() {
        let steps = |text: &str| RuleSet::compile(text).unwrap().steps.len();
        assert_eq!(steps("drop dst net 10.0.0.0/8; pass src host 10.0.0.1; limit 5 net 2001:db8::/32"), 1);
        assert_eq!(steps("drop dst net 10.0.0.0/8; drop tcp; drop src host 10.0.0.1; pass"), 4);
        assert_eq!(steps(""), 0);
    }

    #[test]
    fn what_libpcap_or_the_verifier_refuses_has_a_place() {
        let error = |text: &str| RuleSet::compile(text).unwrap_err().to_string();
        assert_eq!(error("pass tcp; drop tcp and"), "rule 2, column 16: can't parse filter expression: syntax error");
        assert!(error("drop dst net 10.0.0.1/8").starts_with("rule 1, column 6: non-network bits set"));
        assert!(
            error("drop; drop inbound")
                .starts_with("rule 2, column 12: the expression asks for what is not in the frame")
        );
        assert!(error("pass; deny tcp").starts_with("rule 2, column 7: "));
    }
}
