//! Groups: lists of actions that flows share.

use std::time::Duration;

use packet::Field;

use crate::action::Action;
use crate::types::{GroupId, OfPort};

/// How a group uses its buckets (`enum ofp11_group_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum GroupType {
    /// All of them, each with its own copy.
    All = 0,
    /// One, chosen by a hash.
    Select = 1,
    /// The only one.
    Indirect = 2,
    /// The first that is live.
    FastFailover = 3,
}

impl GroupType {
    /// Every type with its name in group syntax, ovs-ofctl(8).
    pub const NAMES: &'static [(GroupType, &'static str)] = &[
        (GroupType::All, "all"),
        (GroupType::Select, "select"),
        (GroupType::Indirect, "indirect"),
        (GroupType::FastFailover, "ff"),
    ];
}

/// What a group-mod does (`enum ofp15_group_mod_command`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum GroupCommand {
    /// Add; a group of the same number is an error.
    Add = 0,
    /// Change; no group of that number is an error.
    Modify = 1,
    /// Delete.
    Delete = 2,
    /// Insert buckets (OpenFlow 1.5).
    InsertBucket = 3,
    /// Remove buckets (OpenFlow 1.5).
    RemoveBucket = 5,
    /// Add or change (OVS extension).
    AddOrModify = 0x8000,
}

/// Numbers of buckets, and the numbers that stand for others (`enum ofp15_group_bucket`).
pub mod bucket_id {
    /// Largest number of a bucket.
    pub const MAX: u32 = 0xffff_ff00;
    /// The first.
    pub const FIRST: u32 = 0xffff_fffd;
    /// The last.
    pub const LAST: u32 = 0xffff_fffe;
    /// All; in commands that concern no bucket, none.
    pub const ALL: u32 = 0xffff_ffff;
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Number; in versions before 1.5 its place in the list.
    pub id: u32,
    /// Weight (select).
    pub weight: u16,
    /// The bucket is live while this port is; ANY for none.
    pub watch_port: OfPort,
    /// The bucket is live while this group has a live bucket; ANY for none.
    pub watch_group: GroupId,
    /// Actions, run as an action set.
    pub actions: Vec<Action>,
}

/// How a select group chooses (Netronome's group property).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Selection {
    /// Name of the method, at most 15 bytes: "hash", "dp_hash"; empty for the switch's choice.
    pub method: String,
    /// Parameter of the method.
    pub param: u64,
    /// Fields to hash, with the bits that count.
    pub fields: Vec<(Field, u128)>,
}

/// A group without its number, as it is added and described.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// Type.
    pub kind: GroupType,
    /// Buckets.
    pub buckets: Vec<Bucket>,
    /// How one is chosen.
    pub selection: Selection,
}

/// A change to groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMod {
    /// What to do.
    pub command: GroupCommand,
    /// Group; ALL for all, in a deletion.
    pub group: GroupId,
    /// For insert: after which bucket; for remove: which.
    pub command_bucket: u32,
    /// The group, or the buckets to insert.
    pub spec: GroupSpec,
}

/// Description of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDesc {
    /// Group.
    pub group: GroupId,
    /// What it is.
    pub spec: GroupSpec,
}

/// Counters of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Group.
    pub group: GroupId,
    /// Flows and groups that refer to it.
    pub ref_count: u32,
    /// Packets; [`u64::MAX`] where unknown.
    pub packet_count: u64,
    /// Bytes; [`u64::MAX`] where unknown.
    pub byte_count: u64,
    /// Age; `None` before OpenFlow 1.3.
    pub duration: Option<Duration>,
    /// Packets and bytes of each bucket.
    pub buckets: Vec<(u64, u64)>,
}
