//! Templates beside the keys that are extracted.

use proptest::prelude::*;

use super::super::{BlockId, Key, VlanLimit, extract};
use super::number::SNAP;
use super::*;
use crate::buffer::{BATCH_SIZE, Packet};

const UDP: u8 = 17;

impl Template {
    fn new(kind: Kind, tagging: Tagging) -> Template {
        let is = |template: &Template| template.kind() == kind && template.tagging() == tagging;
        Template::all().find(is).expect("there is such a template")
    }
}

/// As the fast path does it.
fn number_of(frame: &[u8], limit: VlanLimit) -> u8 {
    numbers_of(&[Packet::from_slice(frame)], limit)[0]
}

/// Frames near the edges of the templates.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let head = (0..5usize, 0..7usize, 0..7usize, any::<u8>(), 0..90usize);
    (head, proptest::collection::vec(any::<u8>(), 110), 0..24usize, 0..4u8).prop_map(
        |((tag, l3, proto, odd, size), mut f, cut, small)| {
            // Few values, so that frames are often equal in parts.
            f.iter_mut().for_each(|b| *b &= [1, 3, 0x1f, 0xff][usize::from(small)]);
            let at = [14, 18, 18, 22, 22][tag];
            if tag != 0 {
                let is_provider = tag == 2 && odd & 7 == 0 || tag == 4;
                f[12..14].copy_from_slice(&[[0x81, 0x00], [0x88, 0xa8]][usize::from(is_provider)]);
            }
            if tag > 2 {
                let is_provider = odd & 31 == 8;
                f[16..18].copy_from_slice(&[[0x81, 0x00], [0x88, 0xa8]][usize::from(is_provider)]);
            }
            let types =
                [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x88, 0xcc], [0, size as u8]];
            f[at - 2..at].copy_from_slice(if odd & 15 == 1 {
                &[[0x80, 0x35], [0x88, 0x47]][l3 % 2]
            } else {
                &types[l3]
            });
            if l3 == 4 || l3 == 6 && odd & 3 == 1 {
                let arp = [0, 1, 8, 0, 6, 4];
                f[at..at + 6].copy_from_slice(if l3 == 4 && odd & 15 != 6 { &arp } else { &SNAP });
                f[at + 6] &= if l3 == 4 { u8::from(odd & 15 == 7) } else { 0x0f };
                f.truncate(f.len() - if odd & 0x10 == 0 { 0 } else { cut * 4 });
                return f;
            }
            if l3 > 3 {
                return f;
            }
            let proto = [17, 6, 17, 1, 58, 2, 6][proto];
            let total = size as u16;
            // Options, fragments, an extension header: each a bit different now and then.
            let differs = f[0] & 7 == 1;
            let data_offset = 0x50 | odd >> 4 & 0x30;
            if l3 % 2 == 0 {
                f[at] = if odd & 15 == 2 { 0x46 + u8::from(differs) } else { 0x45 };
                f[at + 2..at + 4].copy_from_slice(&total.to_be_bytes());
                let fragment = match odd & 15 {
                    3 => 0x2000 | u16::from(differs) << 15,
                    6 | 8 => u16::from(f[1] & 3) << 13 | u16::from(f[2]),
                    _ => u16::from(odd & 0xc0) << 8,
                };
                f[at + 6..at + 8].copy_from_slice(&fragment.to_be_bytes());
                f[at + 9] = proto;
                f[at + 32 + 4 * usize::from(odd & 15 == 2)] = if odd & 15 == 4 { 0x40 } else { data_offset };
            } else {
                f[at + 4..at + 6].copy_from_slice(&total.saturating_sub(20).to_be_bytes());
                let (next, length, word) = match odd & 15 {
                    2 => ([0, 43, 60][usize::from(f[1]) % 3], u8::from(differs), 1),
                    3 => (44, 0, 1 + u16::from(differs)),
                    6 | 8 => (44, 0, u16::from(f[1] & 3) << 3 | u16::from(f[2] & 7)),
                    5 => (50, 0, 1),
                    _ => (proto, f[3], u16::from(f[4])),
                };
                f[at + 6] = next;
                let [high, low] = u16::to_be_bytes(word);
                f[at + 40..at + 44].copy_from_slice(&[proto, length, high, low]);
                f[at + 52] = data_offset;
                f[at + 60] = data_offset;
            }
            f.truncate(f.len() - if odd & 0x10 == 0 { 0 } else { cut * 4 });
            f
        },
    )
}

fn mask() -> impl Strategy<Value = Mask> {
    proptest::collection::vec((0..16usize, 0..9usize, prop_oneof![Just(u64::MAX), any::<u64>(), Just(0)]), 0..6)
        .prop_map(|words| {
            let mut mask = Key::new();
            for (at, block, bits) in words {
                // Rarely what there is of extension headers.
                let block = [BlockId::Common, BlockId::L3, BlockId::Encap][if block == 8 { 2 } else { block % 2 }];
                mask.block_mut(block).words_mut()[at % 8] |= bits;
            }
            Mask(mask)
        })
}

fn compared(window: &Window, frame: &[u8], bits: &[u64; WINDOW_WORDS]) -> [u64; WINDOW_WORDS] {
    let mut padded = frame.to_vec();
    padded.resize(FRAME + WINDOW, 0xa5);
    std::array::from_fn(|i| {
        let at = window.at as usize + 8 * i;
        u64::from_ne_bytes(padded[at..at + 8].try_into().unwrap()) & bits[i]
    })
}

fn word(frame: &[u8], at: u32) -> u16 {
    u16::from_be_bytes(frame[at as usize..][..2].try_into().unwrap())
}

fn fits(layout: &Layout, frame: &[u8]) -> bool {
    let tcp = || word(frame, layout.tcp) & layout.tcp_mask;
    frame.len() >= layout.min_frame as usize
        && layout.fits(frame.len() as u32, word(frame, layout.length), tcp())
        && layout.is_right(word(frame, layout.check_at))
}

fn fitting(frame: &[u8], limit: VlanLimit) -> Option<Template> {
    Template::of(frame, limit).filter(|template| fits(&template.layout(), frame))
}

fn key(frame: &[u8], limit: VlanLimit) -> Key {
    let mut key = Key::new();
    extract(frame, &mut key, limit);
    key
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 4000 }))]

    /// What the fast path relies on: of two frames, the first of a template and its lengths right, the
    /// second equal in the window and its lengths right, both are of the template, and their keys are
    /// equal under the mask; and different under it where the windows differ.
    #[test]
    fn equal_windows_are_equal_keys(
        mut a in frame(), mut b in frame(), mask in mask(), same in 0..240usize,
        changes in proptest::collection::vec((12..50usize, any::<u8>()), 1..3),
        limit in prop::sample::select(VlanLimit::ALL.to_vec()),
    ) {
        // Often nearly the same frame.
        let n = same.min(a.len()).min(b.len());
        b[..n].copy_from_slice(&a[..n]);
        if same > 120 {
            b.clone_from(&a);
            for (at, to) in changes {
                b.get_mut(at).into_iter().for_each(|byte| *byte ^= to);
            }
        }
        if same > 100 && same < 180 {
            std::mem::swap(&mut a, &mut b);
        }
        let Some(template) = fitting(&a, limit) else { return Ok(()) };
        let Some(window) = template.window(&mask) else { return Ok(()) };
        let layout = window.layout;
        prop_assert!(fits(&layout, &a));
        let flags = word(&a, layout.tcp) & layout.tcp_mask & 0x0fff;
        prop_assert_eq!(flags, key(&a, limit).common().tcp_flags.get());
        if !fits(&layout, &b) {
            return Ok(());
        }
        let of_template = compared(&window, &a, &window.parse) == compared(&window, &b, &window.parse);
        let is_of_template = fitting(&b, limit) == Some(template);
        // Where the bits that are parsed are not the same in all frames of the template, some differ in
        // nothing else.
        let fixed = window.fixed == window.parse;
        prop_assert!(fixed || window.fixed == [0; WINDOW_WORDS]);
        prop_assert!(!of_template || is_of_template, "the parsed bits decide about the template");
        prop_assert!(!fixed || of_template == is_of_template);
        if of_template {
            let equal = compared(&window, &a, &window.mask) == compared(&window, &b, &window.mask);
            let (a, b) = (key(&a, limit), key(&b, limit));
            prop_assert!(!equal || a.matches(&b, &mask));
            prop_assert!(equal || !fixed || !a.matches(&b, &mask));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 500 }))]

    /// Each packet of a batch has the number that it has by itself, whatever is beside it.
    #[test]
    fn numbers_of_a_batch_are_those_of_its_frames(
        frames in proptest::collection::vec(frame(), 0..=BATCH_SIZE),
        limit in prop::sample::select(VlanLimit::ALL.to_vec()),
    ) {
        let packets: Vec<Packet> = frames.iter().map(|frame| Packet::from_slice(frame)).collect();
        let numbers = numbers_of(&packets, limit).map(usize::from);
        for (frame, number) in frames.iter().zip(numbers) {
            let number = Some(number).filter(|&number| number < Template::COUNT);
            // Frames that are too short may have any number: their lengths are looked at anyway.
            let is_short = frame.len() < HEAD;
            prop_assert!(is_short || Template::of(frame, limit).map(Template::number) == number);
        }
    }
}

#[test]
fn a_tag_before_the_window_is_looked_at() {
    let mut mask = Mask::wildcard();
    mask.set_exact(super::super::Field::TcpDst);
    let mut tagged = vec![2; 12];
    tagged.extend([0x81, 0, 0, 10, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
    tagged.extend([0xfd; 32]);
    tagged.extend([0, 7, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    let template = fitting(&tagged, VlanLimit::One).unwrap();
    let window = template.window(&mask).unwrap();
    assert!(window.at as usize > TAG_AT);
    // The type of a tag is among every 0x300th, too.
    let step = if cfg!(miri) { 0x300 } else { 1 };
    for kind in (0..=u16::MAX).step_by(step) {
        let mut frame = tagged.clone();
        frame[TAG_AT..][..2].copy_from_slice(&kind.to_be_bytes());
        assert_eq!(compared(&window, &frame, &window.parse), compared(&window, &tagged, &window.parse));
        assert_eq!(fits(&window.layout, &frame), fitting(&frame, VlanLimit::One) == Some(template), "type {kind:#x}");
    }
}

/// With a limit of one tag, the inner one is payload.
#[test]
fn two_tags_count_where_they_are_parsed() {
    let mut frame = vec![2; 12];
    frame.extend([0x88, 0xa8, 0, 10, 0x81, 0, 0, 11, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP]);
    frame.resize(60, 0);
    let template = fitting(&frame, VlanLimit::Two).unwrap();
    assert_eq!((template.tags(), template.kind() == Kind::Udp), (2, true));
    assert_eq!(Template::of(&frame, VlanLimit::One), None);
    // Another type of the outer tag is another template.
    frame[12..14].copy_from_slice(&[0x81, 0]);
    let other = fitting(&frame, VlanLimit::Two).unwrap();
    assert_eq!((other.tags(), other.kind() == Kind::Udp, other == template), (2, true, false));
    // The inner tag is not a provider's.
    frame[16..18].copy_from_slice(&[0x88, 0xa8]);
    assert_eq!(Template::of(&frame, VlanLimit::Two), None);
}

#[test]
fn windows_exist_for_usual_masks() {
    use super::super::Field::*;
    let window = |kind: Kind, tags: Tagging, fields: &[super::super::Field]| {
        let mut mask = Mask::wildcard();
        fields.iter().for_each(|&f| mask.set_exact(f));
        Template::new(kind, tags).window(&mask)
    };
    let everything_v4 = [DlDst, DlSrc, VlanTci, NwTos, NwTtl, NwSrc, NwDst, UdpSrc, UdpDst];
    assert!(Tagging::ALL.into_iter().all(|tags| window(Kind::Udp, tags, &everything_v4).is_some()));
    for kind in [Kind::OptionUdp, Kind::OptionIgmp, Kind::FirstUdp, Kind::FirstIcmp, Kind::Later] {
        assert!([Tagging::None, Tagging::One].iter().all(|&tags| window(kind, tags, &everything_v4).is_some()));
    }
    let addresses_v6 = [Ipv6Src, Ipv6Dst, NwFrag, NwProto];
    for kind in [Kind::ExtendedIcmpV6, Kind::FirstUdpV6, Kind::LaterV6, Kind::IcmpV6] {
        assert_eq!(window(kind, Tagging::None, &addresses_v6).map(|window| window.at), Some(12));
        assert_eq!(window(kind, Tagging::None, &[Ipv6Exthdr]).is_some(), kind == Kind::IcmpV6);
    }
    // Ports behind an extension header are too far away, and so is what an outline does not have.
    assert_eq!(window(Kind::ExtendedUdpV6, Tagging::None, &[UdpDst]), None);
    assert_eq!(window(Kind::IcmpV6, Tagging::None, &[NdTarget]), None);
    assert!(window(Kind::Tcp, Tagging::None, &[&everything_v4[..], &[TcpFlags]].concat()).is_some());
    let tuple_v6 = [Ipv6Src, Ipv6Dst, UdpSrc, UdpDst];
    assert_eq!(window(Kind::UdpV6, Tagging::None, &tuple_v6).map(|w| w.at), Some(12));
    assert_eq!(window(Kind::UdpV6, Tagging::None, &[&tuple_v6[..], &[DlDst]].concat()), None);
    let tagged = window(Kind::UdpV6, Tagging::One, &[&tuple_v6[..], &[VlanTci]].concat()).unwrap();
    assert_eq!((tagged.at, tagged.layout.check_mask), (14, 0xffff));
}

/// What is unusual and has a template has it, with and without a tag, and with two tags none.
#[test]
fn unusual_packets_have_templates() {
    use VlanLimit::Two;
    let ipv4 = |first: u8, fragment: [u8; 2], protocol| {
        [&[8, 0, first, 0, 0, 60, 0, 0, fragment[0], fragment[1], 64, protocol, 0, 0][..], &[0x50; 60]].concat()
    };
    let ipv6 = |next, behind: [u8; 4]| {
        [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, next, 64][..], &[0xfd; 32], &behind, &[0x50; 60]].concat()
    };
    for (kind, l3) in [
        (Some(Kind::OptionIgmp), ipv4(0x46, [0, 0], 2)),
        (Some(Kind::OptionUdp), ipv4(0x46, [0x40, 0], 17)),
        (None, ipv4(0x47, [0, 0], 17)),
        (None, ipv4(0x46, [0x20, 0], 17)),
        (None, ipv4(0x46, [0, 0], 47)),
        (Some(Kind::FirstTcp), ipv4(0x45, [0x20, 0], 6)),
        (None, ipv4(0x45, [0x20, 0], 47)),
        (Some(Kind::Later), ipv4(0x45, [0x20, 1], 47)),
        (Some(Kind::Later), ipv4(0x45, [0, 1], 17)),
        (Some(Kind::IcmpV6), ipv6(58, [17, 0, 0, 1])),
        (Some(Kind::ExtendedIcmpV6), ipv6(0, [58, 0, 5, 2])),
        (Some(Kind::ExtendedUdpV6), ipv6(60, [17, 0, 1, 4])),
        (None, ipv6(0, [58, 1, 5, 2])),
        (None, ipv6(0, [60, 0, 5, 2])),
        (Some(Kind::FirstUdpV6), ipv6(44, [17, 0, 0, 1])),
        (None, ipv6(44, [17, 0, 0, 0])),
        (None, ipv6(44, [17, 0, 0, 3])),
        (Some(Kind::LaterV6), ipv6(44, [17, 0, 0, 8])),
        (Some(Kind::LaterV6), ipv6(44, [0, 0, 0, 9])),
    ] {
        for (tags, tagging) in [(0, Some(Tagging::None)), (1, Some(Tagging::One)), (2, None)] {
            let frame = [&[2; 12][..], &[0x81, 0, 0, 10].repeat(tags), &l3].concat();
            let template = fitting(&frame, Two);
            let expected = kind.zip(tagging);
            assert_eq!(template.map(|template| (template.kind(), template.tagging())), expected);
            assert_eq!(usize::from(number_of(&frame, Two)) < Template::COUNT, expected.is_some());
        }
    }
}
