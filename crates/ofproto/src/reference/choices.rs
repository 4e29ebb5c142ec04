//! Actions and groups that choose by a hash of headers, at random.

use openflow::action::{Bundle, BundleAlgorithm, HashFields, Multipath, MultipathAlgorithm};
use openflow::group::Selection;
use openflow::{Action, OfPort, Subfield};
use packet::Field;
use proptest::prelude::*;
use proptest::sample::select;

fn fields() -> impl Strategy<Value = HashFields> {
    select(HashFields::NAMES).prop_map(|(fields, _)| fields)
}

/// `bundle`, `bundle_load` or `multipath`, over ports up to one that is not there.
pub(super) fn choice(ports: u32) -> impl Strategy<Value = Action> {
    let reg = |n_bits| Subfield::new(Field::Reg0, 0, n_bits).unwrap();
    let algorithm = select(vec![BundleAlgorithm::Hrw, BundleAlgorithm::Hrw, BundleAlgorithm::ActiveBackup]);
    let members = proptest::collection::vec((1..=ports + 1).prop_map(OfPort), 0..4);
    let load = proptest::option::of(Just(reg(16)));
    let bundle = (fields(), 0u16..3, algorithm, members, load).prop_map(|(fields, basis, algorithm, members, dst)| {
        Action::Bundle(Box::new(Bundle { fields, basis, algorithm, members, dst }))
    });
    use MultipathAlgorithm::*;
    let algorithm = select(vec![ModuloN, HashThreshold, Hrw, IterHash]);
    let multipath =
        (fields(), 0u16..3, algorithm, 1u16..4, 0u32..4).prop_map(move |(fields, basis, algorithm, max_link, arg)| {
            Action::Multipath(Box::new(Multipath { fields, basis, algorithm, max_link, arg, dst: reg(4) }))
        });
    let by_register = Action::OutputReg { src: reg(16), max_len: 0 };
    prop_oneof![2 => bundle, 2 => multipath, 1 => Just(by_register)]
}

/// How a select group chooses.
pub(super) fn selection() -> impl Strategy<Value = Selection> {
    let whole = |field: Field| (field, field.info().max());
    let fields = vec![
        whole(Field::DlSrc),
        whole(Field::NwSrc),
        (Field::NwDst, 0xff),
        whole(Field::TcpDst),
        whole(Field::UdpSrc),
        whole(Field::VlanVid),
        whole(Field::Ipv6Dst),
        whole(Field::Reg0),
    ];
    let some = proptest::sample::subsequence(fields, 0..4);
    let method = |method: &str, param, fields| Selection { method: method.into(), param, fields };
    prop_oneof![
        2 => Just(Selection::default()),
        2 => (0u64..2, some).prop_map(move |(param, fields)| method("hash", param, fields)),
        1 => (0u64..2, 0u64..2).prop_map(move |(algorithm, basis)| method("dp_hash", algorithm << 32 | basis, vec![])),
    ]
}
