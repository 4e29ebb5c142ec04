//! Groups: changes, descriptions, counters (OpenFlow 1.1 section A.3.4.2, 1.5 section 7.3.4.3). OpenFlow 1.0
//! has them as Nicira's extension, in the form of 1.5.

use std::collections::HashSet;

use super::action::{self, Within};
use super::oxm::{self, FieldUse};
use super::prop;
use super::wire::{Put, Reader, pull_duration, put_duration};
use crate::error::OfError::{self, *};
use crate::group::*;
use crate::types::{GroupId, OfPort, Version};

/// OFPGBPT15_*: properties of a bucket.
mod bucket_kind {
    pub const WEIGHT: u16 = 0;
    pub const WATCH_PORT: u16 = 1;
    pub const WATCH_GROUP: u16 = 2;
}

const EXPERIMENTER: u16 = 0xffff;
/// Netronome's experimenter id and NTRT_SELECTION_METHOD.
const SELECTION_METHOD: [u32; 2] = [0x0000_154d, 1];
/// The same with the id that OVS took for Netronome's at first, which it still reads.
const OLD_SELECTION_METHOD: [u32; 2] = [0x0000_1540, 1];
const METHOD_LEN: usize = 16;

/// Bytes before the buckets in struct ofp15_group_desc_stats, and where among them the length of these is.
const DESC_HEAD: usize = 16;
const LEN_IN_DESC: usize = 8;

/// Bytes that an entry of a reply takes at most, whatever the headers before it.
const MOST_IN_REPLY: usize = super::MAX_LEN - 64;

/// Whether a version has the form of OpenFlow 1.5.
fn new_form(version: Version) -> bool {
    version == Version::V1_0 || version >= Version::V1_5
}

fn kind(n: u8) -> Option<GroupType> {
    GroupType::NAMES.iter().map(|&(kind, _)| kind).find(|&kind| kind as u8 == n)
}

/// Reads the body of a group-mod.
pub(super) fn pull_mod(r: &mut Reader, version: Version) -> Result<GroupMod, OfError> {
    let (number, kind_number) = (r.u16()?, r.u8()?);
    r.skip(1)?;
    let group = GroupId(r.u32()?);
    let command = command(number, version)?;
    let kind = match kind(kind_number) {
        Some(kind) => kind,
        // A deletion's type is of no meaning.
        None if command == GroupCommand::Delete => GroupType::All,
        None => return Err(OFPGMFC_BAD_TYPE),
    };
    let mut command_bucket = bucket_id::ALL;
    let mut spec = GroupSpec { kind, buckets: Vec::new(), selection: Selection::default() };
    if new_form(version) {
        let len = r.u16()?.into();
        r.skip(2)?;
        command_bucket = r.u32()?;
        let buckets = r.with(OFPGMFC_BAD_BUCKET).sub(len)?;
        r.skip(len)?;
        spec.buckets = pull_buckets(buckets, version, kind)?;
        spec.selection = pull_properties(r)?;
        // A selection is for groups that select, and is given with them.
        let selects = matches!(command, GroupCommand::Add | GroupCommand::Modify | GroupCommand::AddOrModify);
        let may_select = selects && kind == GroupType::Select;
        if !may_select && !spec.selection.method.is_empty() {
            return Err(OFPBPC_BAD_VALUE);
        }
    } else {
        spec.buckets = pull_buckets(r.sub(r.len())?, version, kind)?;
    }
    let change = GroupMod { command, group, command_bucket, spec };
    check_mod(version, &change)?;
    Ok(change)
}

fn command(n: u16, version: Version) -> Result<GroupCommand, OfError> {
    use GroupCommand::*;
    let command = [Add, Modify, Delete, InsertBucket, RemoveBucket, AddOrModify].into_iter().find(|&c| c as u16 == n);
    match command {
        Some(InsertBucket | RemoveBucket) if !new_form(version) => Err(OFPGMFC_BAD_COMMAND),
        Some(command) => Ok(command),
        None => Err(OFPGMFC_BAD_COMMAND),
    }
}

/// What makes no sense in a group-mod, whatever groups there are (section 7.4.4 of OpenFlow 1.3, 7.5.4.7 of 1.5).
fn check_mod(version: Version, g: &GroupMod) -> Result<(), OfError> {
    use GroupCommand::*;
    let special = matches!(g.command_bucket, bucket_id::FIRST | bucket_id::LAST) || g.command_bucket <= bucket_id::MAX;
    match g.command {
        InsertBucket if !special => return Err(OFPGMFC_BAD_BUCKET),
        RemoveBucket if !special && g.command_bucket != bucket_id::ALL => return Err(OFPGMFC_BAD_BUCKET),
        RemoveBucket if !g.spec.buckets.is_empty() => return Err(OFPGMFC_BAD_BUCKET),
        Add | Modify | AddOrModify | Delete if g.command_bucket != bucket_id::ALL => return Err(OFPGMFC_BAD_BUCKET),
        // Section 7.3.4.2 of OpenFlow 1.3.5.
        Delete if version >= Version::V1_3 && !g.spec.buckets.is_empty() => return Err(OFPGMFC_INVALID_GROUP),
        _ => {}
    }
    let indirect = g.spec.kind == GroupType::Indirect;
    if indirect && g.command != Delete && g.command != RemoveBucket && g.spec.buckets.len() != 1 {
        return Err(OFPGMFC_INVALID_GROUP);
    }
    for bucket in &g.spec.buckets {
        if bucket.weight != 0 && g.spec.kind != GroupType::Select && g.command != InsertBucket {
            return Err(OFPGMFC_INVALID_GROUP);
        }
        let watched = bucket.watch_port != OfPort::ANY || bucket.watch_group != GroupId::ANY;
        match g.spec.kind {
            GroupType::FastFailover if !watched => return Err(OFPGMFC_INVALID_GROUP),
            GroupType::All | GroupType::Indirect if watched => return Err(OFPGMFC_WATCH_UNSUPPORTED),
            _ => {}
        }
    }
    Ok(())
}

fn pull_buckets(mut r: Reader, version: Version, kind: GroupType) -> Result<Vec<Bucket>, OfError> {
    let mut out: Vec<Bucket> = Vec::new();
    let mut ids = HashSet::new();
    while !r.is_empty() {
        let bucket = if new_form(version) {
            pull_bucket15(&mut r, version, kind)?
        } else {
            pull_bucket11(&mut r, version, out.len() as u32)?
        };
        if !ids.insert(bucket.id) {
            return Err(OFPGMFC_BUCKET_EXISTS);
        }
        out.push(bucket);
    }
    Ok(out)
}

fn pull_bucket11(r: &mut Reader, version: Version, id: u32) -> Result<Bucket, OfError> {
    let mut body = pull_sized(r)?;
    body.skip(2)?;
    let (weight, watch_port, watch_group) = (body.u16()?, watch_port(body.u32()?)?, GroupId(body.u32()?));
    body.skip(4)?;
    let actions = action::pull_actions(body, version, Within::Set)?;
    Ok(Bucket { id, weight, watch_port, watch_group, actions })
}

/// The bytes of a bucket, which begin with their number.
fn pull_sized<'a>(r: &mut Reader<'a>) -> Result<Reader<'a>, OfError> {
    let mut rest = r.with(OFPGMFC_BAD_BUCKET);
    let mut head = rest;
    let len = usize::from(head.u16()?);
    if len % 8 != 0 {
        return Err(OFPGMFC_BAD_BUCKET);
    }
    let body = rest.sub(len)?;
    r.skip(len)?;
    Ok(body)
}

fn watch_port(n: u32) -> Result<OfPort, OfError> {
    OfPort(n).to_u16().map(|_| OfPort(n)).ok_or(OFPGMFC_BAD_WATCH)
}

fn pull_bucket15(r: &mut Reader, version: Version, kind: GroupType) -> Result<Bucket, OfError> {
    let mut body = pull_sized(r)?;
    body.skip(2)?;
    let (actions_len, id) = (usize::from(body.u16()?), body.u32()?);
    if id > bucket_id::MAX {
        return Err(OFPGMFC_BAD_BUCKET);
    }
    let actions = action::pull_actions(body.sub(actions_len)?, version, Within::Set)?;
    // Without a weight, a bucket of a select group counts as one.
    let weight = u16::from(kind == GroupType::Select);
    let mut bucket = Bucket { id, weight, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions };
    while !body.is_empty() {
        let (kind, v) = prop::pull(&mut body)?;
        let mut v = v.with(OFPBPC_BAD_LEN);
        match kind {
            bucket_kind::WEIGHT => bucket.weight = v.u16()?,
            bucket_kind::WATCH_PORT => bucket.watch_port = watch_port(v.u32()?)?,
            bucket_kind::WATCH_GROUP => bucket.watch_group = GroupId(v.u32()?),
            EXPERIMENTER => return Err(OFPBPC_BAD_EXPERIMENTER),
            _ => return Err(OFPBPC_BAD_TYPE),
        }
    }
    Ok(bucket)
}

/// The properties of a group: how it chooses.
fn pull_properties(r: &mut Reader) -> Result<Selection, OfError> {
    let mut selection = Selection::default();
    while !r.is_empty() {
        let (kind, v) = prop::pull(r)?;
        let mut v = v.with(OFPBPC_BAD_LEN);
        if kind != EXPERIMENTER {
            return Err(OFPBPC_BAD_TYPE);
        }
        match [v.u32()?, v.u32()?] {
            SELECTION_METHOD | OLD_SELECTION_METHOD => selection = pull_selection(&mut v)?,
            [experimenter, _] if ![SELECTION_METHOD[0], OLD_SELECTION_METHOD[0]].contains(&experimenter) => {
                return Err(OFPBPC_BAD_EXPERIMENTER);
            }
            _ => return Err(OFPBPC_BAD_EXP_TYPE),
        }
    }
    Ok(selection)
}

fn pull_selection(v: &mut Reader) -> Result<Selection, OfError> {
    v.skip(4)?;
    let mut name = v.sub(METHOD_LEN)?;
    let method = name.name(METHOD_LEN)?;
    if method.len() == METHOD_LEN || !matches!(method.as_str(), "hash" | "dp_hash") {
        return Err(OFPBPC_BAD_VALUE);
    }
    let mut selection = Selection { method, param: v.u64()?, fields: Vec::new() };
    if !v.is_empty() && selection.method != "hash" {
        return Err(OFPBPC_BAD_VALUE);
    }
    while !v.is_empty() {
        let header = oxm::pull_header(v)?;
        let field = oxm::header_field(header, FieldUse::Match)?;
        let entry = oxm::pull_payload(v, header, field, FieldUse::Match)?;
        if selection.fields.iter().any(|&(other, _)| other == entry.field) {
            return Err(OFPBMC_DUP_FIELD);
        }
        selection.fields.push((entry.field, entry.value));
    }
    Ok(selection)
}

/// Writes the body of a group-mod.
pub(super) fn put_mod(out: &mut Vec<u8>, version: Version, g: &GroupMod) {
    out.u16(g.command as u16);
    out.put(&[g.spec.kind as u8, 0]);
    out.u32(g.group.0);
    if !new_form(version) {
        return g.spec.buckets.iter().for_each(|b| put_bucket(out, version, g.spec.kind, b));
    }
    let len_at = out.here();
    out.zeros(4);
    out.u32(g.command_bucket);
    put_spec15(out, version, len_at, &g.spec, usize::MAX);
}

/// Buckets, the length of which goes to `len_at`, and properties: as many buckets as have room in `room` bytes, beside the properties.
fn put_spec15(out: &mut Vec<u8>, version: Version, len_at: usize, spec: &GroupSpec, room: usize) {
    let mut properties = Vec::new();
    if !spec.selection.method.is_empty() {
        let mut value = Vec::new();
        SELECTION_METHOD.into_iter().for_each(|n| value.u32(n));
        value.zeros(4);
        value.name(&spec.selection.method, METHOD_LEN);
        value.u64(spec.selection.param);
        for &(field, mask) in &spec.selection.fields {
            oxm::put_entry(&mut value, version, field, mask, u128::MAX);
        }
        prop::put(&mut properties, EXPERIMENTER, &value);
    }
    let start = out.here();
    put_buckets(out, version, spec, room.saturating_sub(properties.len()));
    let len = (out.here() - start).min(0xffff) as u16;
    out.set_u16(len_at, len);
    out.put(&properties);
}

/// As many buckets as have room in `room` bytes.
fn put_buckets(out: &mut Vec<u8>, version: Version, spec: &GroupSpec, room: usize) {
    let start = out.here();
    for bucket in &spec.buckets {
        let at = out.here();
        put_bucket(out, version, spec.kind, bucket);
        if out.here() - start > room {
            return out.truncate(at);
        }
    }
}

/// How long the entry of a group in OFPMP_GROUP_DESC is, in OpenFlow 1.5.
pub(super) fn desc_len(spec: &GroupSpec) -> usize {
    let mut out = vec![0; DESC_HEAD];
    put_spec15(&mut out, Version::V1_5, LEN_IN_DESC, spec, usize::MAX);
    out.len()
}

fn put_bucket(out: &mut Vec<u8>, version: Version, kind: GroupType, b: &Bucket) {
    let start = out.here();
    if !new_form(version) {
        out.u16(0);
        out.u16(b.weight);
        out.u32(b.watch_port.0);
        out.u32(b.watch_group.0);
        out.zeros(4);
        action::put_actions(out, version, &b.actions);
        return out.close(start, 0);
    }
    out.zeros(4);
    out.u32(b.id);
    let actions = out.here();
    action::put_actions(out, version, &b.actions);
    let len = (out.here() - actions).min(0xffff) as u16;
    out.set_u16(start + 2, len);
    if kind == GroupType::Select {
        let [high, low] = b.weight.to_be_bytes();
        prop::put(out, bucket_kind::WEIGHT, &[high, low, 0, 0]);
    }
    if b.watch_port != OfPort::ANY {
        prop::put(out, bucket_kind::WATCH_PORT, &b.watch_port.0.to_be_bytes());
    }
    if b.watch_group != GroupId::ANY {
        prop::put(out, bucket_kind::WATCH_GROUP, &b.watch_group.0.to_be_bytes());
    }
    out.close(start, 0);
}

/// Reads an entry of OFPMP_GROUP_DESC.
pub(super) fn pull_desc(r: &mut Reader, version: Version) -> Result<GroupDesc, OfError> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(2)?;
    let kind = kind(r.u8()?).ok_or(OFPGMFC_BAD_TYPE)?;
    r.skip(1)?;
    let group = GroupId(r.u32()?);
    let mut spec = GroupSpec { kind, buckets: Vec::new(), selection: Selection::default() };
    if new_form(version) {
        let len = r.u16()?.into();
        r.skip(6)?;
        spec.buckets = pull_buckets(r.sub(len)?, version, kind)?;
        spec.selection = pull_properties(&mut r)?;
    } else {
        spec.buckets = pull_buckets(r.sub(r.len())?, version, kind)?;
    }
    Ok(GroupDesc { group, spec })
}

/// Writes an entry of OFPMP_GROUP_DESC. A group that has grown beyond what an entry can tell of is described as far as there is room.
pub(super) fn put_desc(out: &mut Vec<u8>, version: Version, g: &GroupDesc) {
    let start = out.here();
    out.u16(0);
    out.put(&[g.spec.kind as u8, 0]);
    out.u32(g.group.0);
    if new_form(version) {
        let len_at = out.here();
        out.zeros(8);
        put_spec15(out, version, len_at, &g.spec, MOST_IN_REPLY);
    } else {
        put_buckets(out, version, &g.spec, MOST_IN_REPLY);
    }
    out.close(start, 0);
}

/// Whether a version's counters say how old a group is. Nicira's extension of OpenFlow 1.0 has the form of 1.3.
fn has_age(version: Version) -> bool {
    version >= Version::V1_3 || version == Version::V1_0
}

/// Reads an entry of OFPMP_GROUP.
pub(super) fn pull_stats(r: &mut Reader, version: Version) -> Result<GroupStats, OfError> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(4)?;
    let (group, ref_count) = (GroupId(r.u32()?), r.u32()?);
    r.skip(4)?;
    let (packet_count, byte_count) = (r.u64()?, r.u64()?);
    let duration = if has_age(version) { Some(pull_duration(&mut r)?) } else { None };
    let mut buckets = Vec::new();
    while !r.is_empty() {
        buckets.push((r.u64()?, r.u64()?));
    }
    Ok(GroupStats { group, ref_count, packet_count, byte_count, duration, buckets })
}

/// Writes an entry of OFPMP_GROUP, with the counters of as many buckets as there is room for.
pub(super) fn put_stats(out: &mut Vec<u8>, version: Version, g: &GroupStats) {
    let start = out.here();
    out.zeros(4);
    out.u32(g.group.0);
    out.u32(g.ref_count);
    out.zeros(4);
    out.u64(g.packet_count);
    out.u64(g.byte_count);
    if has_age(version) {
        put_duration(out, g.duration.unwrap_or_default());
    }
    for &(packets, bytes) in g.buckets.iter().take((MOST_IN_REPLY - (out.here() - start)) / 16) {
        out.u64(packets);
        out.u64(bytes);
    }
    out.close(start, 0);
}
