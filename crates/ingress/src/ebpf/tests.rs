//! Tests of programs: what is refused, and what they decide.

use proptest::prelude::*;

use super::assembler::*;
use super::instruction::Word;
use super::machine::{Machine, Verdict};
use super::map::Map;

/// r6 = start of the frame, r7 = its end; ends with `XDP_PASS` unless the frame has `bytes`.
fn with_frame(bytes: i32) -> Vec<Word> {
    vec![
        load(4, 6, 1, 0),
        load(4, 7, 1, 4),
        copy(2, 6),
        add(2, bytes),
        skip_if_greater(2, 7, 1),
        skip(2),
        set(0, 2),
        exit(),
    ]
}

fn end(verdict: i32) -> Vec<Word> {
    vec![set(0, verdict), exit()]
}

/// r0 = the value of map `number` for the four bytes in `key`.
fn look_up(number: i32, key: i32) -> Vec<Word> {
    let [first, second] = map(1, number);
    vec![store_constant(4, 10, -4, key), copy(2, 10), add(2, -4), first, second, call(1)]
}

fn program(parts: &[&[Word]]) -> Machine {
    assemble(&parts.concat(), maps()).unwrap()
}

#[test]
fn there_is_native_code() {
    let machine = program(&[&end(2)]);
    assert_eq!(machine.code(), if cfg!(miri) { "interpreted: Miri runs no native code" } else { "native code" });
    assert_eq!(machine.interpreted().code(), "interpreted: native code is not wanted");
}

fn refusal(parts: &[&[Word]]) -> String {
    assemble(&parts.concat(), maps()).expect_err("it is wrong").to_string()
}

#[test]
fn a_program_decides_by_the_frame() {
    let drops_ones = program(&[&with_frame(14), &[load(1, 3, 6, 13), skip_if_equal(3, 1, 2)], &end(2), &end(1)]);
    let mut frame = [0; 14];
    assert_eq!(drops_ones.verdict(&frame, 0), Verdict::Pass);
    frame[13] = 1;
    assert_eq!(drops_ones.verdict(&frame, 0), Verdict::Drop);
    assert_eq!(drops_ones.verdict(&frame[..13], 0), Verdict::Pass, "too short to be looked at");
    for (number, verdict) in [
        (0, Verdict::Aborted),
        (1, Verdict::Drop),
        (2, Verdict::Pass),
        (3, Verdict::Unsupported),
        (-1, Verdict::Unsupported),
    ] {
        assert_eq!(program(&[&end(number)]).verdict(&[], 0), verdict);
    }
    let time = program(&[&[call(5), skip_if_equal(0, 77, 2)], &end(2), &end(1)]);
    assert_eq!((time.verdict(&[], 76), time.verdict(&[], 77)), (Verdict::Pass, Verdict::Drop));
}

#[test]
fn what_is_outside_of_the_frame_is_not_read() {
    let read = |at: i16, bytes: u8| [&with_frame(14), &[load(bytes, 3, 6, at)][..], &end(2)].concat();
    assert!(assemble(&read(10, 4), maps()).is_ok());
    for (at, bytes) in [(11, 4), (14, 1), (-1, 1), (7, 8), (i16::MAX, 1), (i16::MIN, 8)] {
        let error = refusal(&[&read(at, bytes)]);
        assert!(error.contains(&format!("instruction 8: reads {bytes} bytes of the frame at {at}")), "{error}");
    }
    let unchecked = [load(4, 6, 1, 0), load(1, 3, 6, 0)];
    assert!(refusal(&[&unchecked, &end(2)]).contains("where 0 are known to be there; compare with data_end first"));
    // A number that the frame holds.
    let variable = |mask: i32, known: i32| {
        let more = [
            load(1, 3, 6, 0),
            word(0x57, 3, 0, 0, mask),
            add_register(6, 3),
            copy(2, 6),
            add(2, known),
            skip_if_greater(2, 7, 1),
            load(1, 3, 6, 3),
        ];
        assemble(&[&with_frame(14), &more[..], &end(1)].concat(), maps())
    };
    let four = variable(0x3c, 4).unwrap();
    let mut frame = [0; 64];
    for first in [0, 4, 0x3c, 0xff] {
        frame[0] = first;
        (14..64).for_each(|len| assert_eq!(four.verdict(&frame[..len], 0), Verdict::Drop));
    }
    assert!(variable(0x3c, 3).unwrap_err().to_string().contains("where 3 are known"));
    let any = [load(8, 3, 6, 0), add_register(6, 3)];
    assert!(refusal(&[&with_frame(14), &any, &end(2)]).contains("bound it with & or a comparison"));
    let negative = [add(6, -1), load(1, 3, 6, 0)];
    assert!(refusal(&[&with_frame(14), &negative, &end(2)]).contains("at -1"));
    assert!(refusal(&[&with_frame(14), &[store(1, 6, 0, 0)], &end(2)]).contains("r0, which was not written"));
    let written = [set(3, 0), store(1, 6, 0, 3)];
    assert!(refusal(&[&with_frame(14), &written, &end(2)]).contains("a filter cannot change frames"));
}

#[test]
fn comparisons_with_the_end_count_as_they_are() {
    // Each comparison of the frame's start and 4 bytes with its end, its skip, and which bytes are there where it is false.
    let read = |code: u8, swapped: bool, at: i16| {
        let (left, right) = if swapped { (7, 2) } else { (2, 7) };
        let words = [
            load(4, 6, 1, 0),
            load(4, 7, 1, 4),
            copy(2, 6),
            add(2, 4),
            word(code, left, right, 1, 0),
            load(1, 3, 6, at),
        ];
        assemble(&[&words[..], &end(2)].concat(), maps()).is_ok()
    };
    // Greater, and greater or equal; then what the sides exchanged are.
    assert!(read(0x2d, false, 3) && !read(0x2d, false, 4));
    assert!(read(0x3d, false, 4) && !read(0x3d, false, 5));
    assert!(read(0xad, true, 3) && !read(0xad, true, 4));
    assert!(read(0xbd, true, 4) && !read(0xbd, true, 5));
    // The other way round nothing is known there; nor where they are equal, or signs are looked at.
    for code in [0xad, 0xbd, 0x1d, 0x55, 0x6d, 0xcd] {
        assert!(!read(code, false, 0), "{code:#x}");
    }
}

#[test]
fn stack_and_maps_are_kept_within() {
    let read_stack = |at: i16| refusal(&[&[load(4, 0, 10, at), exit()]]);
    assert!(read_stack(-4).contains("reads the stack at -4, which was not written"));
    assert!(read_stack(0).contains("accesses the stack at 0"));
    assert!(read_stack(-516).contains("accesses the stack at -516"));
    assert!(refusal(&[&[store_constant(8, 10, -520, 0)], &end(2)]).contains("it has 512"));
    let half = [store_constant(2, 10, -4, 0), load(4, 0, 10, -4), exit()];
    assert!(refusal(&[&half]).contains("at -2"));
    let spilled = [store(8, 10, -8, 1), load(4, 0, 10, -8), exit()];
    assert!(refusal(&[&spilled]).contains("reads a pointer to xdp_md on the stack as a number"));

    let null = |number: i32| refusal(&[&look_up(number, 0), &[load(4, 0, 0, 0), exit()]]);
    (0..2).for_each(|number| assert!(null(number).contains("may be null; compare it with 0 first")));
    let value =
        |at: i16, bytes: u8| [&look_up(0, 3)[..], &[skip_if_equal(0, 0, 1), load(bytes, 3, 0, at)], &end(2)].concat();
    assert!(assemble(&value(8, 8), maps()).is_ok());
    for (at, bytes) in [(9, 8), (16, 1), (-1, 1)] {
        assert!(refusal(&[&value(at, bytes)]).contains("of a value of map array, which has 16"));
    }
    let key = |bytes: u8, number: i32| {
        let [first, second] = map(1, number);
        let words = [store_constant(bytes, 10, -8, 0), copy(2, 10), add(2, -8), first, second, call(1)];
        assemble(&[&words[..], &end(2)].concat(), maps())
    };
    assert!(key(8, 2).is_ok() && key(4, 1).is_ok());
    assert!(key(4, 2).unwrap_err().to_string().contains("bpf_map_lookup_elem: the key (r2) reads the stack at -4"));
    let pointer = [store(8, 0, 0, 10)];
    assert!(refusal(&[&look_up(0, 0), &[skip_if_equal(0, 0, 1)], &pointer, &end(2)]).contains("in a map"));
    let mut constants = maps();
    constants[0].flags = super::map::READ_ONLY;
    let store = [&look_up(0, 0)[..], &[skip_if_equal(0, 0, 1), store_constant(8, 0, 0, 1)], &end(2)].concat();
    assert!(assemble(&store, constants).unwrap_err().to_string().contains("map array, which is read-only"));
}

#[test]
fn pointers_are_no_numbers() {
    for (words, reason) in [
        (vec![copy(0, 1), exit()], "ends with r0 not a number"),
        (vec![copy(0, 10), word(0x57, 0, 0, 0, 7), exit()], "computes with a pointer to the stack"),
        (vec![word(0xbc, 0, 10, 0, 0), exit()], "copies half of a pointer to the stack"),
        (vec![word(0x15, 10, 0, 0, 5), set(0, 2), exit()], "compares a pointer to the stack with a number"),
        (vec![copy(2, 1), add(2, 4), load(4, 3, 2, 0), set(0, 2), exit()], "adds to a pointer to xdp_md"),
        (vec![exit()], "ends with r0 not a number"),
        (vec![load(4, 0, 1, 12), exit()], "reads 4 bytes at 12 of xdp_md"),
        (vec![load(8, 0, 1, 0), exit()], "reads 8 bytes at 0 of xdp_md"),
        (vec![store_constant(4, 1, 0, 0), set(0, 2), exit()], "writes to a pointer to xdp_md"),
        (vec![set(1, 5), load(4, 0, 1, 0), exit()], "reads from a number"),
        (vec![set(0, 2)], "the program has no end"),
    ] {
        let error = refusal(&[&words]);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn no_pointer_is_null() {
    for register in [1, 10, 8] {
        let words = [
            &look_up(0, 0)[..],
            &[copy(8, 0), skip_if_equal(8, 0, 3), skip_if_equal(register, 0, 2)],
            &end(2),
            &end(1),
        ];
        let words = if register == 8 {
            words.concat()
        } else {
            [&[skip_if_equal(register, 0, 2)][..], &end(2), &end(1)].concat()
        };
        let machine = assemble(&words, maps()).unwrap();
        assert_eq!((machine.verdict(&[], 0), machine.interpreted().verdict(&[], 0)), (Verdict::Pass, Verdict::Pass));
    }
}

#[test]
fn what_cannot_be_decoded_is_refused_by_name() {
    for (word, reason) in [
        (call(6), "helper bpf_trace_printk, which Weir does not have (bpf_map_lookup_elem,"),
        (call(51), "helper bpf_redirect_map"),
        (call(4711), "helper 4711"),
        (word(0x85, 0, 1, 0, 3), "a call of a function of the program"),
        (word(0x85, 0, 2, 0, 3), "helper of the kernel 3"),
        (word(0xb7, 10, 0, 0, 0), "writes to r10"),
        (word(0xb7, 11, 0, 0, 0), "register r11"),
        (word(0xbf, 0, 12, 0, 0), "register r12"),
        (skip(7), "jumps out of its code"),
        (skip(-2), "jumps out of its code"),
        (word(0x67, 0, 0, 0, 64), "a shift by 64 bits"),
        (word(0x37, 0, 0, 0, 0), "a division by zero"),
        (word(0x20, 0, 0, 0, 0), "BPF_ABS"),
        (word(0x8d, 0, 0, 0, 0), "unknown instruction"),
        (word(0xe5, 0, 0, 0, 0), "unknown instruction"),
    ] {
        let error = refusal(&[&[word], &end(2)]);
        assert!(error.starts_with("program test: instruction 0: ") && error.contains(reason), "{error}");
    }
    let numbered = [word(0x18, 1, 1, 0, 3), Word::default()];
    assert!(refusal(&[&numbered, &end(2)]).contains("a map that is not named by a relocation"));
    assert!(refusal(&[&end(2), &[word(0x18, 1, 0, 0, 0)]]).contains("instruction 2: a load of 64 bits is cut off"));
    assert!(refusal(&[&[]]).contains("no instructions"));
}

#[test]
fn programs_end() {
    assert!(refusal(&[&[skip(-1)], &end(2)]).contains("a loop that may not end?"));
    // While a byte of the frame is not 7: it does not change.
    let endless = [load(1, 3, 6, 0), skip_if_equal(3, 7, 1), skip(-3)];
    let error = refusal(&[&with_frame(14), &endless, &end(2)]);
    assert!(error.contains("too many ways") || error.contains("may not end"), "{error}");
    let rounds = |count: i32| {
        let words = [set(3, 0), set(0, 0), add(0, 1), add(3, 1), word(0xa5, 3, 0, -3, count), exit()];
        assemble(&words, maps())
    };
    let hundred = rounds(100).unwrap();
    assert_eq!((hundred.interpret(&[], 0), hundred.longest()), (Ok(100), 2 + 100 * 3 + 1));
    assert!(rounds(i32::MAX).unwrap_err().to_string().contains("instruction 2: a way of more than 32768 instructions"));
    // A number of rounds that the frame says.
    let counted = [load(1, 3, 6, 0), set(0, 0), skip_if_equal(3, 0, 3), add(0, 1), add(3, -1), skip(-4), exit()];
    let counted = program(&[&with_frame(14), &counted]);
    assert_eq!(counted.interpret(&[9; 14], 0), Ok(9));
    assert_eq!(counted.interpret(&[255; 14], 0), Ok(255));
    // Two ways, thirty times: found to be the same again and again.
    let twice = [skip_if_equal(3, 1, 1), set(4, 1), set(4, 2)].repeat(1000);
    let twice = program(&[&with_frame(14), &[load(1, 3, 6, 0)], &twice, &end(1)]);
    assert_eq!(twice.verdict(&[1; 14], 0), Verdict::Drop);
    // Ways that differ in what the program may look at are too many.
    let bits: Vec<_> = (0..64)
        .flat_map(|bit| {
            [load(1, 3, 6, bit % 14), skip_if_equal(3, bit.into(), 1), word(0xa7, 8, 0, 0, 1 << (bit % 31))]
        })
        .collect();
    assert!(refusal(&[&with_frame(14), &[set(8, 0)], &bits, &[copy(0, 8), exit()]]).contains("too many ways"));
}

#[test]
fn maps_keep_what_programs_put_there() {
    let count = [word(0xdb, 0, 3, 8, 0)];
    let counting = program(&[&look_up(0, 2), &[set(3, 5), skip_if_equal(0, 0, 1)], &count, &end(2)]);
    (0..3).for_each(|_| assert_eq!(counting.verdict(&[], 0), Verdict::Pass));
    let value = counting.maps()[0].get(&2_u32.to_ne_bytes()).unwrap();
    assert_eq!(value, [[0; 8], 15_u64.to_ne_bytes()].concat());

    // The hash remembers the first four bytes of a frame; a second one with the same is dropped, and forgotten.
    let [m1, m2] = map(1, 1);
    let remember = [
        load(4, 3, 6, 0),
        store(4, 10, -4, 3),
        copy(2, 10),
        add(2, -4),
        m1,
        m2,
        call(1),
        word(0x55, 0, 0, 11, 0),
        store_constant(8, 10, -16, 9),
        copy(3, 10),
        add(3, -16),
        copy(2, 10),
        add(2, -4),
        m1,
        m2,
        set(4, 0),
        call(2),
        set(0, 2),
        exit(),
        copy(2, 10),
        add(2, -4),
        m1,
        m2,
        call(3),
        set(0, 1),
        exit(),
    ];
    let machine = program(&[&with_frame(14), &remember]);
    let verdicts = [1, 2, 1, 1, 2].map(|first| machine.verdict(&[first; 14], 0));
    let (pass, drop) = (Verdict::Pass, Verdict::Drop);
    assert_eq!(verdicts, [pass, pass, drop, pass, drop]);
    assert_eq!(machine.maps()[1].elements(9), [(vec![1; 4], 9_u64.to_ne_bytes().to_vec())]);
}

/// Words that are often right.
fn any_word() -> impl Strategy<Value = Vec<Word>> {
    let arithmetic: Vec<u8> =
        (0..=0xc_u8).flat_map(|op| [0x04, 0x0c, 0x07, 0x0f].map(|class| op << 4 | class)).collect();
    let arithmetic = prop_oneof![4 => proptest::sample::select(arithmetic), 1 => Just(0xdc), 1 => Just(0xd4)];
    let jumps: Vec<u8> = [1, 2, 3, 4, 5, 6, 7, 0xa, 0xb, 0xc, 0xd]
        .into_iter()
        .flat_map(|op| [5, 0xd, 6, 0xe].map(|class| op << 4 | class))
        .collect();
    let constant =
        prop_oneof![4 => 0..20_i32, 1 => any::<i32>(), 1 => Just(16), 1 => Just(32), 1 => Just(64), 1 => -20..0_i32];
    let bytes = proptest::sample::select(vec![1_u8, 2, 4, 8]);
    let one = |word: Word| vec![word];
    prop_oneof![
        6 => (arithmetic, 0..10_u8, 0..10_u8, constant.clone()).prop_map(move |(code, to, from, constant)| {
            let from_register = code & 8 != 0 && code != 0xdc;
            let unary = code >> 4 == 8;
            one(match (from_register, unary) {
                (_, true) => word(code & !8, to, 0, 0, 0),
                (true, _) => word(code, to, from, 0, 0),
                (false, _) => word(code, to, 0, 0, constant),
            })
        }),
        3 => (proptest::sample::select(jumps), 0..10_u8, 0..10_u8, 0..6_i16, constant.clone()).prop_map(
            move |(code, left, right, words, constant)| one(match code & 8 {
                0 => word(code, left, 0, words, constant),
                _ => word(code, left, right, words, 0),
            })
        ),
        3 => (bytes.clone(), 0..10_u8, 0..20_i16).prop_map(move |(bytes, to, at)| one(load(bytes, to, 6, at))),
        2 => (bytes.clone(), 0..10_u8, 1..20_i16).prop_map(move |(bytes, from, at)| one(store(bytes, 10, -at * 4, from))),
        2 => (bytes.clone(), 0..10_u8, 1..20_i16).prop_map(move |(bytes, to, at)| one(load(bytes, to, 10, -at * 4))),
        1 => (bytes, 0..20_i16, 0..10_u8).prop_map(move |(bytes, at, from)| one(store(bytes, 8, at, from))),
        1 => (proptest::sample::select(vec![0, 1, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1]), any::<bool>(), 0..3_i16, 0..10_u8)
            .prop_map(move |(op, wide, at, from)| one(word(if wide { 0xdb } else { 0xc3 }, 8, from, at * 4, op))),
        1 => (0..3, 0..5_i32).prop_map(|(number, key)| look_up(number, key)),
        1 => (0..3, 0..5_i32, 1..4).prop_map(|(number, key, helper)| {
            let mut words = look_up(number, key);
            words.pop();
            words.extend([store_constant(8, 10, -16, 7), store_constant(8, 10, -24, key), copy(3, 10), add(3, -24), set(4, 0)]);
            words.extend((number == 2).then(|| store_constant(8, 10, -8, key)));
            words.push(call(helper));
            words
        }),
    ]
}

/// Programs that begin with all registers set: numbers, the frame in r6, its end in r7, a value of a map in r8.
pub fn any_program() -> impl Strategy<Value = Vec<Word>> {
    (proptest::collection::vec(any_word(), 0..24), 0..3_i32).prop_map(|(body, key)| {
        let start = [
            &with_frame(14)[..],
            &look_up(0, key),
            &[word(0x55, 0, 0, 2, 0)],
            &end(2),
            &[
                copy(8, 0),
                load(8, 0, 6, 0),
                set(1, key),
                set(2, -1),
                load(2, 3, 6, 12),
                set(4, 0),
                load(1, 5, 6, 3),
                copy(9, 0),
            ],
        ]
        .concat();
        [start, body.concat(), vec![exit(), exit(), exit(), exit(), set(0, 1), exit()]].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 20 } else { 5000 }))]
    #[test]
    fn a_program_that_was_verified_has_no_faults_and_is_the_same_in_native_code(
        words in any_program(),
        frame in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let machines = (assemble(&words, maps()), assemble(&words, maps()));
        if let (Ok(interpreted), Ok(native)) = machines {
            // Again with what the maps hold then.
            for now in 5..7 {
                let returned = interpreted.interpret(&frame, now);
                prop_assert!(returned.is_ok(), "{returned:?}");
                if let Some(by_native_code) = native.run_native(&frame, now) {
                    prop_assert_eq!(by_native_code, returned.unwrap());
                    for (a, b) in interpreted.maps().iter().zip(native.maps()) {
                        let sorted = |map: &Map| { let mut all = map.elements(100); all.sort(); all };
                        prop_assert_eq!(sorted(a), sorted(b));
                    }
                }
            }
        }
    }
}

#[test]
fn many_random_programs_are_accepted() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let tried = 2000;
    let accepted = (0..tried)
        .filter(|_| assemble(&any_program().new_tree(&mut runner).unwrap().current(), maps()).is_ok())
        .count();
    assert!(accepted > tried / 20, "{accepted} of {tried}: the properties would be of nothing");
}
