//! A connection's bundles: messages that wait until they are committed together (OpenFlow 1.4 section 6.8).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openflow::bundle::{BundleControlKind, BundleFlags};
use openflow::codec::{self, DecodeOptions, error_message};
use openflow::{Body, BundleAdd, BundleControl, Message, OfError, Version};
use packet::Time;

use super::{GROUP_MOD, Session};
use crate::bridge::Bundled;
use crate::connection::budget::Charge;

/// Bytes that the bundles of a connection can hold: some six million flows of OVN, which sends all its flows in one bundle, and
/// sends them again without end where that is refused. All connections together have a limit of their own ([`Switch`](crate::Switch)).
pub(super) const MAX_BYTES: usize = 1 << 30;

/// Most bundles of a connection: Antrea opens one for each of the changes that it makes at a time, and OVS knows no limit.
const MAX_BUNDLES: usize = 65_536;

/// What a bundle takes beside its messages, about.
const BUNDLE_BYTES: usize = 384;

/// How much is kept of the message that has opened a bundle.
const QUOTED: usize = 64;

/// What a message takes beside its bytes, about: its place in the list that the commit goes through.
const MESSAGE_BYTES: usize = 32;

/// Bytes that are allocated at first for the messages of a bundle, where the first one needs no more.
const FIRST_CHUNK: usize = 512;

/// Bytes that are allocated at a time for messages of a bundle that has many; the longest one fits.
const CHUNK: usize = 64 << 10;

/// The bundles of a connection.
///
/// A message is checked when it is received, and kept in encoded form: decoded, a short message can take forty times
/// the memory. The commit decodes them again, one after the other.
pub(super) struct Bundles {
    open: BTreeMap<u32, Bundle>,
    /// Their numbers by when they were used, so that what is due is found without a look at all.
    by_use: BTreeSet<(Time, u32)>,
    /// What all of them take.
    memory: Charge,
}

struct Bundle {
    flags: BundleFlags,
    closed: bool,
    used: Time,
    /// The beginning of the message that has opened it.
    opened_by: Vec<u8>,
    /// The messages as they came, one behind the other. Many small allocations that stay, among those that decoding
    /// makes and frees, would leave the heap in pieces several times their size.
    chunks: Vec<Vec<u8>>,
    /// What the chunks and the messages are charged.
    charged: usize,
}

impl Bundle {
    /// The length of the chunk that a message of this length needs, where the last one has no room.
    fn new_chunk(&self, len: usize) -> Option<usize> {
        let fits = self.chunks.last().is_some_and(|chunk| chunk.capacity() - chunk.len() >= len);
        (!fits).then(|| self.charged.clamp(FIRST_CHUNK, CHUNK).max(len))
    }

    /// What a message of this length takes: its place in the list, and a chunk where the last one has no room.
    fn bytes_for(&self, len: usize) -> usize {
        MESSAGE_BYTES + self.new_chunk(len).unwrap_or(0)
    }

    fn push(&mut self, message: &[u8]) {
        self.charged += self.bytes_for(message.len());
        if let Some(len) = self.new_chunk(message.len()) {
            self.chunks.push(Vec::with_capacity(len));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.extend_from_slice(message);
        }
    }

    /// The messages, in the order in which they came.
    fn messages(&self) -> Vec<&[u8]> {
        let mut messages = Vec::new();
        for chunk in &self.chunks {
            let mut rest = &chunk[..];
            while let Ok(Some(len)) = codec::frame_len(rest)
                && let Some((message, tail)) = rest.split_at_checked(len)
            {
                messages.push(message);
                rest = tail;
            }
        }
        messages
    }
}

impl Bundles {
    pub fn new(memory: Charge) -> Bundles {
        Bundles { open: BTreeMap::new(), by_use: BTreeSet::new(), memory }
    }

    fn remove(&mut self, id: u32) -> Option<Bundle> {
        let bundle = self.open.remove(&id)?;
        self.by_use.remove(&(bundle.used, id));
        self.memory.shrink(BUNDLE_BYTES + bundle.charged);
        Some(bundle)
    }

    /// Discards bundles that have not been used for long. Returns the beginnings of the messages that had opened them.
    fn expire(&mut self, now: Time, idle: Duration) -> Vec<Vec<u8>> {
        let mut expired = Vec::new();
        while let Some(&(used, id)) = self.by_use.first()
            && now.since(used) >= idle
            && let Some(bundle) = self.remove(id)
        {
            expired.push(bundle.opened_by);
        }
        expired
    }

    /// When the next one expires that is not used until then.
    pub fn next_expiry(&self, idle: Duration) -> Option<Time> {
        self.by_use.first().map(|&(used, _)| used + idle)
    }

    /// A bundle that is there has been used.
    fn touch(&mut self, id: u32, now: Time) {
        if let Some(bundle) = self.open.get_mut(&id).filter(|bundle| bundle.used != now) {
            self.by_use.remove(&(bundle.used, id));
            bundle.used = now;
            self.by_use.insert((now, id));
        }
    }

    /// The bundle with this number, which is opened if it is not there.
    fn begin(
        &mut self,
        id: u32,
        flags: BundleFlags,
        now: Time,
        opened_by: impl FnOnce() -> Vec<u8>,
    ) -> Result<&mut Bundle, OfError> {
        if !self.open.contains_key(&id) && (self.open.len() >= MAX_BUNDLES || !self.grow(BUNDLE_BYTES)) {
            return Err(OfError::OFPBFC_OUT_OF_BUNDLES);
        }
        Ok(self.open.entry(id).or_insert_with(|| {
            self.by_use.insert((now, id));
            Bundle { flags, closed: false, used: now, opened_by: opened_by(), chunks: Vec::new(), charged: 0 }
        }))
    }

    /// Takes so many bytes for a bundle, if this connection and all together may have them.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        self.memory.bytes() + bytes <= MAX_BYTES && self.memory.grow(bytes)
    }

    /// A bundle that a control message is about; one that contradicts it is discarded.
    fn find(&mut self, control: &BundleControl) -> Result<&mut Bundle, OfError> {
        let bundle = self.open.get(&control.bundle).ok_or(OfError::OFPBFC_BAD_ID)?;
        if bundle.flags != control.flags {
            self.remove(control.bundle);
            return Err(OfError::OFPBFC_BAD_FLAGS);
        }
        self.open.get_mut(&control.bundle).ok_or(OfError::OFPBFC_BAD_ID)
    }
}

impl Session {
    /// A bundle control message, and its answer.
    pub(super) fn control_bundle(
        &mut self,
        version: Version,
        xid: u32,
        control: BundleControl,
    ) -> Result<Body, OfError> {
        use BundleControlKind::*;
        let now = self.last_heard;
        let kind = match control.kind {
            OpenRequest => {
                if self.bundles.remove(control.bundle).is_some() {
                    return Err(OfError::OFPBFC_BAD_ID);
                }
                self.bundles
                    .begin(control.bundle, control.flags, now, || quote(version, xid, Body::BundleControl(control)))?;
                OpenReply
            }
            CloseRequest => {
                let bundle = self.bundles.find(&control)?;
                if bundle.closed {
                    self.bundles.remove(control.bundle);
                    return Err(OfError::OFPBFC_BUNDLE_CLOSED);
                }
                bundle.closed = true;
                self.bundles.touch(control.bundle, now);
                CloseReply
            }
            CommitRequest => {
                self.bundles.find(&control)?;
                self.commit_bundle(control.bundle)?;
                CommitReply
            }
            DiscardRequest => {
                self.bundles.remove(control.bundle).ok_or(OfError::OFPBFC_BAD_ID)?;
                DiscardReply
            }
            OpenReply | CloseReply | CommitReply | DiscardReply => return Err(OfError::OFPBFC_BAD_TYPE),
        };
        // Replies have no flags, as in OVS.
        Ok(Body::BundleControl(BundleControl { kind, flags: BundleFlags::empty(), ..control }))
    }

    /// Discards bundles that have not been used for long, and tells the peer.
    pub(super) fn expire_bundles(&mut self, now: Time) {
        let version = self.version.unwrap_or(Version::V1_4);
        for opened_by in self.bundles.expire(now, self.bridge.bundle_idle()) {
            self.send(&error_message(version, codec::xid(&opened_by), OfError::OFPBFC_TIMEOUT, &opened_by));
        }
    }

    /// A message for a bundle, which is opened if it is not there.
    pub(super) fn add_to_bundle(&mut self, version: Version, add: BundleAdd) -> Result<(), OfError> {
        let now = self.last_heard;
        decode(&add.message, self.options)?.check()?;
        debug_assert_eq!(add.message.first(), Some(&version.wire()));
        let xid = codec::xid(&add.message);
        let quoted = || quote(version, xid, Body::BundleAdd(add.clone()));
        let bundle = self.bundles.begin(add.bundle, add.flags, now, quoted)?;
        let problem = match () {
            () if bundle.closed => Some(OfError::OFPBFC_BUNDLE_CLOSED),
            () if bundle.flags != add.flags => Some(OfError::OFPBFC_BAD_FLAGS),
            () => None,
        };
        if let Some(problem) = problem {
            self.bundles.remove(add.bundle);
            return Err(problem);
        }
        let bytes = bundle.bytes_for(add.message.len());
        self.bundles.touch(add.bundle, now);
        if !self.bundles.grow(bytes) {
            return Err(OfError::OFPBFC_MSG_TOO_MANY);
        }
        let bundle = self.bundles.open.get_mut(&add.bundle).ok_or(OfError::OFPBFC_BAD_ID)?;
        bundle.push(&add.message);
        Ok(())
    }

    /// Tells the other connections of the changes of groups that have been committed.
    fn forward_bundled(&self, messages: &[&[u8]]) {
        for bytes in messages {
            if codec::is_group_mod(bytes) {
                self.forward(Some(GROUP_MOD), bytes);
            }
        }
    }

    fn commit_bundle(&mut self, id: u32) -> Result<(), OfError> {
        let Some(bundle) = self.bundles.remove(id) else { return Err(OfError::OFPBFC_BAD_ID) };
        let options = self.options;
        let messages = bundle.messages();
        let mut commands = Vec::new();
        let committed = self.bridge.commit(&messages, |message| {
            let change = decode(message, options)?;
            if let Bundled::Flow(flow) = &change {
                commands.push(flow.command);
            }
            Ok(change)
        });
        let Err((failed, error)) = committed else {
            commands.into_iter().for_each(|command| self.flow_mods.add(command, self.last_heard));
            self.forward_bundled(&messages);
            return Ok(());
        };
        let bytes = messages[failed];
        let xid = codec::xid(bytes);
        let version = self.version.unwrap_or(Version::V1_4);
        self.send(&error_message(version, xid, error, bytes));
        Err(OfError::OFPBFC_MSG_FAILED)
    }
}

/// The beginning of a message, which an error about it quotes.
fn quote(version: Version, xid: u32, body: Body) -> Vec<u8> {
    let mut bytes = codec::encode(&Message::new(version, xid, body), DecodeOptions::default()).unwrap_or_default();
    bytes.truncate(QUOTED);
    bytes
}

fn decode(bytes: &[u8], options: DecodeOptions) -> Result<Bundled, OfError> {
    match codec::decode(bytes, options).map_err(|e| e.error)?.body {
        Body::FlowMod(change) => Ok(Bundled::Flow(change)),
        Body::GroupMod(change) => Ok(Bundled::Group(change)),
        Body::PortMod(change) => Ok(Bundled::Port(change)),
        Body::PacketOut(packet) => Ok(Bundled::Packet(packet)),
        _ => Err(OfError::OFPBFC_MSG_UNSUP),
    }
}
