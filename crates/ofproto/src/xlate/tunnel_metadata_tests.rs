//! Options of tunnels: what the tables do by their fields, against a plain reading of the options, and which other packets a translation
//! is for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use datapath::{Action as DpAction, FlowTag, PortNo, Upcall};
use openflow::text::{parse_actions, parse_flow_mod};
use openflow::{FlowModCommand, OfError, OfPort, TlvCommand, TlvMap, TlvTableMod};
use packet::flow::text::NoNames;
use packet::{Clock, Field, Key};
use proptest::prelude::*;
use proptest::sample::select;

use super::{Translation, XlateError};
use crate::reference::tests::Bed;

const CLASS: u16 = 0x0102;

fn table_mod(command: TlvCommand, maps: &[(u16, u8, u8)]) -> TlvTableMod {
    let map = |&(index, kind, len): &(u16, u8, u8)| TlvMap { class: CLASS, kind, len, index };
    TlvTableMod { command, maps: maps.iter().map(map).collect() }
}

fn add_flow(bed: &Bed, flow: &str) -> Result<(), OfError> {
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap())
}

/// A bridge whose fields stand for these options: number, type, length.
fn bed(maps: &[(u16, u8, u8)], flows: &[&str]) -> Bed {
    let bed = Bed::new(4);
    bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Add, maps)).unwrap();
    for flow in flows {
        add_flow(&bed, flow).unwrap_or_else(|error| panic!("{flow}: {error}"));
    }
    bed
}

fn option(kind: u8, value: &[u8]) -> Vec<u8> {
    let [high, low] = CLASS.to_be_bytes();
    [&[high, low, kind, (value.len() / 4) as u8], value].concat()
}

/// A packet that has come out of a tunnel, as the datapath has it.
fn tunnelled(bed: &Bed, options: &[u8]) -> Key {
    let mut key = Key::new();
    let dp_port =
        bed.switch.forwarding.read().by_dp_port.iter().find(|(_, port)| port.1 == OfPort(1)).map(|(dp, _)| *dp);
    for (field, value) in [(Field::TunDst, 0x0101_0101), (Field::DlType, 0x88b5), (Field::DlSrc, 2), (Field::DlDst, 4)]
    {
        key.set(field, value);
    }
    key.common_mut().in_port = dp_port.unwrap().0.into();
    if !options.is_empty() {
        let all = key.tun_metadata_mut();
        all[..options.len()].copy_from_slice(options);
        all[255] = options.len() as u8;
    }
    key
}

fn translate(bed: &Bed, key: &Key) -> Translation {
    bed.switch.translate_dp(&bed.switch.forwarding.read(), key, None, bed.clock.now()).unwrap()
}

/// The ports that the packet goes to.
fn outputs(bed: &Bed, out: &Translation) -> Vec<OfPort> {
    let forwarding = bed.switch.forwarding.read();
    let port = |port: &PortNo| forwarding.by_dp_port[port].1;
    out.actions
        .iter()
        .filter_map(|action| if let DpAction::Output(to) = action { Some(port(to)) } else { None })
        .collect()
}

/// What fields there can be: number, type of the option, length.
const FIELDS: [(u16, u8, u8); 6] = [(0, 1, 4), (1, 2, 8), (2, 3, 0), (7, 4, 16), (62, 0x85, 4), (63, 6, 12)];

#[derive(Clone, Debug)]
struct Condition {
    field: usize,
    value: u128,
    mask: u128,
}

/// Bits of a field: index in [`FIELDS`], offset.
type Part = (usize, u16);

#[derive(Clone, Debug)]
enum Step {
    Set(usize, u128, u128),
    Delete(usize),
    Move(Part, Part, u16),
    ToRegister(Part, u16),
    FromRegister(Part, u16),
    PushPop(Part, Part, u16),
}

#[derive(Clone, Debug)]
struct RefFlow {
    table: u8,
    conditions: Vec<Condition>,
    register: Option<u128>,
    steps: Vec<Step>,
    port: u32,
}

fn bits_of(field: usize) -> u16 {
    u16::from(FIELDS[field].2) * 8
}

fn all_of(field: usize) -> u128 {
    u128::MAX.checked_shr(128 - u32::from(bits_of(field))).unwrap_or(0)
}

/// Few values, so that conditions are met.
fn small() -> impl Strategy<Value = u128> {
    prop_oneof![Just(0u128), Just(1), Just(u128::MAX), (0u32..128).prop_map(|n| 1 << n), any::<u128>()]
}

fn part(n_bits: u16) -> impl Strategy<Value = Part> {
    let wide: Vec<usize> = (0..FIELDS.len()).filter(|&field| bits_of(field) >= n_bits).collect();
    (select(wide), any::<u16>()).prop_map(move |(field, ofs)| (field, ofs % (bits_of(field) - n_bits + 1)))
}

fn step() -> impl Strategy<Value = Step> {
    let field = 0..FIELDS.len();
    prop_oneof![
        (field.clone(), small(), small()).prop_map(|(field, value, mask)| {
            let mask = if mask & all_of(field) == 0 { all_of(field) } else { mask & all_of(field) };
            Step::Set(field, value & mask, mask)
        }),
        field.prop_map(Step::Delete),
        (1u16..=32).prop_flat_map(|n| (part(n), part(n)).prop_map(move |(a, b)| Step::Move(a, b, n))),
        (1u16..=32).prop_flat_map(|n| part(n).prop_map(move |a| Step::ToRegister(a, n))),
        (1u16..=32).prop_flat_map(|n| part(n).prop_map(move |a| Step::FromRegister(a, n))),
        (1u16..=32).prop_flat_map(|n| (part(n), part(n)).prop_map(move |(a, b)| Step::PushPop(a, b, n))),
    ]
}

fn flow() -> impl Strategy<Value = RefFlow> {
    let condition = (0..FIELDS.len(), small(), small()).prop_map(|(field, value, mask)| {
        let mask = mask & all_of(field);
        Condition { field, value: value & mask, mask }
    });
    let register = prop::option::weighted(0.2, 0u128..2);
    (0u8..2, prop::collection::vec(condition, 0..3), register, prop::collection::vec(step(), 0..3), 2u32..5).prop_map(
        |(table, mut conditions, register, steps, port)| {
            conditions.sort_by_key(|condition| condition.field);
            conditions.dedup_by_key(|condition| condition.field);
            RefFlow { table, conditions, register, steps, port }
        },
    )
}

impl RefFlow {
    fn text(&self, priority: usize) -> String {
        let name = |field: usize| format!("tun_metadata{}", FIELDS[field].0);
        let part = |(field, ofs): Part, n: u16| format!("{}[{ofs}..{}]", name(field), ofs + n - 1);
        let mut text = format!("table={},priority={priority}", self.table);
        for Condition { field, value, mask } in &self.conditions {
            text += &match *mask {
                0 => format!(",{}", name(*field)),
                mask => format!(",{}={value:#x}/{mask:#x}", name(*field)),
            };
        }
        if let Some(register) = self.register {
            text += &format!(",reg0={register}");
        }
        text += ",actions=";
        for step in &self.steps {
            text += &match *step {
                Step::Set(field, value, _) if bits_of(field) == 0 => format!("set_field:{value}->{},", name(field)),
                Step::Set(field, value, mask) => format!("set_field:{value:#x}/{mask:#x}->{},", name(field)),
                Step::Delete(field) => format!("delete_field:{},", name(field)),
                Step::Move(from, to, n) => format!("move:{}->{},", part(from, n), part(to, n)),
                Step::ToRegister(from, n) => format!("move:{}->reg0[0..{}],", part(from, n), n - 1),
                Step::FromRegister(to, n) => format!("move:reg0[0..{}]->{},", n - 1, part(to, n)),
                Step::PushPop(from, to, n) => format!("push:{},pop:{},", part(from, n), part(to, n)),
            };
        }
        text + &if self.table == 0 { "resubmit(,1)".into() } else { format!("output:{}", self.port) }
    }
}

/// A packet as the reference has it.
#[derive(Clone, Default)]
struct RefPacket {
    fields: BTreeMap<usize, u128>,
    register: u128,
}

impl RefPacket {
    /// `None` for a packet that is to be dropped.
    fn new(options: &[(u8, Vec<u8>)]) -> Option<RefPacket> {
        let mut packet = RefPacket::default();
        for (kind, value) in options {
            match FIELDS.iter().position(|field| field.1 == *kind) {
                Some(field) if value.len() != usize::from(FIELDS[field].2) => return None,
                Some(field) => {
                    let number = value.iter().fold(0, |n, byte| n << 8 | u128::from(*byte));
                    packet.fields.insert(field, number);
                }
                None if kind & 0x80 != 0 => return None,
                None => {}
            }
        }
        Some(packet)
    }

    fn is_met(&self, flow: &RefFlow) -> bool {
        let met = |c: &Condition| self.fields.get(&c.field).is_some_and(|value| value & c.mask == c.value);
        flow.conditions.iter().all(met) && flow.register.is_none_or(|register| self.register == register)
    }

    fn get(&self, (field, ofs): Part, n: u16) -> u128 {
        self.fields.get(&field).copied().unwrap_or(0) >> ofs & ((1 << n) - 1)
    }

    fn put(&mut self, (field, ofs): Part, n: u16, value: u128) {
        let (mask, now) = (((1 << n) - 1) << ofs, self.fields.entry(field).or_insert(0));
        *now = *now & !mask | value << ofs & mask;
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Set(field, value, mask) => {
                let now = self.fields.entry(field).or_insert(0);
                *now = *now & !mask | value & mask;
            }
            Step::Delete(field) => drop(self.fields.remove(&field)),
            Step::Move(from, to, n) | Step::PushPop(from, to, n) => self.put(to, n, self.get(from, n)),
            Step::ToRegister(from, n) => {
                let mask = (1u128 << n) - 1;
                self.register = self.register & !mask | self.get(from, n);
            }
            Step::FromRegister(to, n) => self.put(to, n, self.register & ((1 << n) - 1)),
        }
    }

    /// The port that it goes to. Of the flows, the first has the highest priority.
    fn run(&mut self, flows: &[RefFlow]) -> Vec<OfPort> {
        for table in 0..2 {
            let Some(flow) = flows.iter().find(|flow| flow.table == table && self.is_met(flow)) else { break };
            flow.steps.iter().for_each(|step| self.step(step));
            if table == 1 {
                return vec![OfPort(flow.port)];
            }
        }
        Vec::new()
    }
}

fn packet() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let one = (0..FIELDS.len(), small(), 0u8..40).prop_map(|(field, value, odd)| {
        let (_, kind, len) = FIELDS[field];
        let value = value.to_be_bytes();
        match odd {
            0 => (kind, vec![1; usize::from(len) + 4]),
            1 => (0x99, vec![1; 4]),
            2..6 => (0x19, vec![1; usize::from(odd - 2) * 4]),
            _ => (kind, value[16 - usize::from(len)..].to_vec()),
        }
    });
    prop::collection::vec(one, 0..4)
}

proptest! {
    #[test]
    fn tables_see_the_options_and_flows_are_for_packets_that_fare_alike(
        order in Just(FIELDS).prop_shuffle(),
        removed in prop::collection::vec(0usize..6, 0..3),
        flows in prop::collection::vec(flow(), 1..10),
        packets in prop::collection::vec(packet(), 1..12),
    ) {
        // Fields that come and go leave gaps.
        let bed = bed(&order, &[]);
        for field in removed {
            let maps = [FIELDS[field]];
            bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Delete, &maps)).unwrap();
            let spare = (40 + field as u16, 0x40 + field as u8, 4);
            bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Add, &[spare])).unwrap_or(());
            bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Add, &maps)).unwrap();
        }
        for (priority, flow) in (1..=flows.len()).rev().zip(&flows) {
            add_flow(&bed, &flow.text(priority)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        }
        let translated: Vec<_> = packets.iter().map(|options| {
            let raw: Vec<u8> = options.iter().flat_map(|(kind, value)| option(*kind, value)).collect();
            let key = tunnelled(&bed, &raw);
            let out = translate(&bed, &key);
            (key, out)
        }).collect();
        for (options, (key, out)) in packets.iter().zip(&translated) {
            match RefPacket::new(options) {
                None => {
                    prop_assert_eq!(out.error, Some(XlateError::TunnelMetadata));
                    prop_assert_eq!(&out.actions[..], &[DpAction::Drop(datapath::DropReason::TunnelOption)]);
                }
                Some(mut packet) => {
                    prop_assert_eq!(out.error, None);
                    prop_assert_eq!(outputs(&bed, out), packet.run(&flows), "{:?}", options);
                }
            }
            prop_assert!(!out.mask.0.present().has(packet::flow::BlockId::Pipeline));
            for (other_options, (other, other_out)) in packets.iter().zip(&translated) {
                if other.matches(key, &out.mask) {
                    prop_assert_eq!(&out.actions, &other_out.actions, "{:?} {:?}", options, other_options);
                }
            }
        }
    }
}

fn mask_of(out: &Translation) -> Vec<u8> {
    let all = out.mask.0.tun_metadata();
    all[..all.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1).min(255)].to_vec()
}

#[test]
fn headers_are_matched_and_only_the_bits_of_values_that_were_looked_at() {
    let bed = bed(&[(0, 1, 4), (1, 2, 4)], &["tun_metadata0=0xb/0xf,actions=output:2"]);
    let options = [option(9, &[7; 4]), option(2, &[7; 4]), option(1, &[0, 0, 0, 0x1b])].concat();
    let out = translate(&bed, &tunnelled(&bed, &options));
    assert_eq!(outputs(&bed, &out), [OfPort(2)]);
    let header = [0xff, 0xff, 0xff, 0x1f];
    let expected = [&header[..], &[0; 4], &header, &[0; 4], &header, &[0, 0, 0, 0xf]].concat();
    assert_eq!((mask_of(&out)[..24].to_vec(), out.mask.0.tun_metadata()[255]), (expected, 0xff));
    // That an option is missing.
    let without = translate(&bed, &tunnelled(&bed, &[]));
    assert_eq!((outputs(&bed, &without), without.mask.0.tun_metadata()[255]), (vec![], 0xff));
    // A packet that has come through no tunnel has no options, whatever the tables ask.
    let mut plain = tunnelled(&bed, &[]);
    plain.keep(packet::flow::Blocks::COMMON);
    let out = translate(&bed, &plain);
    assert!(!out.mask.0.present().has(packet::flow::BlockId::TunMeta0));
}

#[test]
fn a_flow_of_the_datapath_is_out_of_date_when_a_flow_for_its_options_comes() {
    let bed = bed(&[(0, 1, 4)], &["priority=1,actions=output:2", "tun_metadata0=6,actions=output:3"]);
    let key = tunnelled(&bed, &option(1, &[0, 0, 0, 5]));
    let out = translate(&bed, &key);
    assert_eq!(outputs(&bed, &out), [OfPort(2)]);
    // It holds the counters of the table, so the table tells of changes.
    out.record.valid_at.store(bed.switch.forwarding.read().generation(), SeqCst);
    let tag: FlowTag = Arc::new(out.record);
    assert!(Upcall::version_of(&*bed.switch, &tag, &key, &out.mask).is_some());
    add_flow(&bed, "priority=9,tun_metadata0=5,actions=output:4").unwrap();
    assert_eq!(Upcall::version_of(&*bed.switch, &tag, &key, &out.mask), None);
    assert_eq!(outputs(&bed, &translate(&bed, &key)), [OfPort(4)]);
}

#[test]
fn a_pipeline_goes_on_with_the_same_options_under_other_fields() {
    let flow = "actions=set_field:0x77->tun_metadata0,push:tun_metadata1[0..15],debug_recirc,resubmit(,1)";
    let bed = bed(&[(0, 1, 4), (1, 2, 24)], &[flow]);
    let key = tunnelled(&bed, &option(2, &[9; 24]));
    let out = translate(&bed, &key);
    let [DpAction::Recirc(id)] = out.actions[..] else { panic!("{:?}", out.actions) };
    let delete = parse_flow_mod(FlowModCommand::Delete, "", &NoNames).unwrap();
    bed.bridge.flow_mod(&delete).unwrap();
    let clear = table_mod(TlvCommand::Clear, &[]);
    bed.bridge.tlv_table_mod(&clear).unwrap();
    bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Add, &[(5, 9, 8), (7, 2, 24), (6, 1, 4)])).unwrap();
    let nine = "09".repeat(24);
    let flow = format!("table=1,tun_metadata6=0x77,tun_metadata7=0x{nine},actions=pop:reg0[0..15],output:reg0[0..15]");
    add_flow(&bed, &flow).unwrap();
    add_flow(&bed, "table=1,priority=1,actions=output:2").unwrap();
    let mut back = key.clone();
    back.common_mut().recirc_id = id.into();
    // It was sent to the port that was pushed, which there is not.
    let out = translate(&bed, &back);
    assert_eq!(out.actions, [DpAction::Drop(datapath::DropReason::NoSuchPort)]);
}

#[test]
fn fields_in_use_stay() {
    let bed = bed(&[(0, 1, 4), (1, 2, 4), (2, 3, 4)], &[]);
    let delete = |index: u16| bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Delete, &[(index, 0, 4)]));
    let in_use = Err(OfError::NXTTMFC_INVALID_TLV_DEL);
    add_flow(&bed, "in_port=1,actions=multipath(eth_src,50,modulo_n,1,0,tun_metadata0[0..31])").unwrap();
    add_flow(&bed, "in_port=2,actions=push:tun_metadata1[0..31],clone(move:tun_metadata2[0..31]->reg0[0..31])")
        .unwrap();
    assert_eq!([0, 1, 2].map(delete), [in_use; 3]);
    assert_eq!(bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Clear, &[])), in_use);
    add_flow(&bed, "in_port=1,actions=output:4").unwrap();
    assert_eq!([0, 1, 2].map(delete), [Ok(()), in_use, in_use]);
    add_flow(&bed, "in_port=2,actions=push:tun_metadata2[0..31]").unwrap();
    assert_eq!([1, 2].map(delete), [Ok(()), in_use]);
    // What a flow has learnt keeps a field, too.
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Delete, "", &NoNames).unwrap()).unwrap();
    assert_eq!(delete(2), Ok(()));
    bed.bridge.tlv_table_mod(&table_mod(TlvCommand::Add, &[(1, 1, 4), (2, 2, 4)])).unwrap();
    let learn = "actions=learn(table=1,tun_metadata1[0..31]=reg1,load:reg1->tun_metadata2[0..31])";
    add_flow(&bed, learn).unwrap();
    bed.receive(OfPort(2), &[2; 60]);
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Delete, "table=0", &NoNames).unwrap()).unwrap();
    assert_eq!([1, 2].map(delete), [in_use; 2]);
    let learnt = bed.bridge.flow_stats(&crate::reference::tests::all_flows()).unwrap();
    let mut text = String::new();
    openflow::text::format_match(&mut text, &learnt[0].matching, learnt[0].priority, &NoNames);
    assert_eq!((text.as_str(), learnt.len()), ("tun_metadata1=0", 1));
    assert_eq!(learnt[0].instructions.apply, parse_actions("set_field:0->tun_metadata2", &NoNames).unwrap());
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Delete, "tun_metadata1", &NoNames).unwrap()).unwrap();
    assert_eq!([1, 2].map(delete), [Ok(()); 2]);
    let unknown = parse_flow_mod(FlowModCommand::Delete, "tun_metadata1", &NoNames).unwrap();
    assert_eq!(bed.bridge.flow_mod(&unknown), Err(OfError::NXFMFC_INVALID_TLV_FIELD));
}
