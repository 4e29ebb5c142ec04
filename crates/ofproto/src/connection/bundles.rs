//! A connection's bundles: messages that wait until they are committed together (OpenFlow 1.4 section 6.8).

use std::collections::BTreeMap;
use std::time::Duration;

use openflow::bundle::{BundleControlKind, BundleFlags};
use openflow::codec::{self, DecodeOptions, error_message};
use openflow::{Body, BundleAdd, BundleControl, OfError, Version};
use packet::Time;

use super::Session;
use crate::bridge::Bundled;

/// A bundle that nothing has been added to for this long goes.
const IDLE: Duration = Duration::from_secs(10);

/// Bytes of messages that the bundles of a connection can hold.
const MAX_BYTES: usize = 64 << 20;

/// The bundles of a connection.
#[derive(Default)]
pub(super) struct Bundles {
    open: BTreeMap<u32, Bundle>,
    bytes: usize,
}

struct Bundle {
    flags: BundleFlags,
    closed: bool,
    used: Time,
    messages: Vec<Bundled>,
    /// The messages as they came, to quote one that fails.
    raw: Vec<Vec<u8>>,
}

impl Bundles {
    fn remove(&mut self, id: u32) -> Option<Bundle> {
        let bundle = self.open.remove(&id)?;
        self.bytes -= bundle.raw.iter().map(Vec::len).sum::<usize>();
        Some(bundle)
    }

    /// Forgets bundles that have been forgotten.
    pub fn expire(&mut self, now: Time) {
        let idle: Vec<u32> = self.open.iter().filter(|(_, b)| now.since(b.used) >= IDLE).map(|(&id, _)| id).collect();
        idle.into_iter().for_each(|id| drop(self.remove(id)));
    }

    fn begin(&mut self, id: u32, flags: BundleFlags, now: Time) -> &mut Bundle {
        let new = Bundle { flags, closed: false, used: now, messages: Vec::new(), raw: Vec::new() };
        self.open.entry(id).or_insert(new)
    }

    /// A bundle that a control message is about; one that contradicts it goes.
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
    pub(super) fn control_bundle(&mut self, control: BundleControl) -> Result<Body, OfError> {
        use BundleControlKind::*;
        let now = self.last_heard;
        let kind = match control.kind {
            OpenRequest => {
                if self.bundles.remove(control.bundle).is_some() {
                    return Err(OfError::OFPBFC_BAD_ID);
                }
                self.bundles.begin(control.bundle, control.flags, now);
                OpenReply
            }
            CloseRequest => {
                let bundle = self.bundles.find(&control)?;
                if bundle.closed {
                    self.bundles.remove(control.bundle);
                    return Err(OfError::OFPBFC_BUNDLE_CLOSED);
                }
                bundle.closed = true;
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

    /// A message for a bundle, which is opened if it is not there.
    pub(super) fn add_to_bundle(&mut self, version: Version, add: BundleAdd) -> Result<(), OfError> {
        let now = self.last_heard;
        let message = decode(&add.message, self.options)?;
        message.check()?;
        if self.bundles.bytes + add.message.len() > MAX_BYTES {
            return Err(OfError::OFPBFC_MSG_TOO_MANY);
        }
        debug_assert_eq!(add.message.first(), Some(&version.wire()));
        let bundle = self.bundles.begin(add.bundle, add.flags, now);
        let problem = match () {
            () if bundle.closed => Some(OfError::OFPBFC_BUNDLE_CLOSED),
            () if bundle.flags != add.flags => Some(OfError::OFPBFC_BAD_FLAGS),
            () => None,
        };
        if let Some(problem) = problem {
            self.bundles.remove(add.bundle);
            return Err(problem);
        }
        bundle.used = now;
        bundle.messages.push(message);
        let len = add.message.len();
        bundle.raw.push(add.message);
        self.bundles.bytes += len;
        Ok(())
    }

    fn commit_bundle(&mut self, id: u32) -> Result<(), OfError> {
        let Some(bundle) = self.bundles.remove(id) else { return Err(OfError::OFPBFC_BAD_ID) };
        let Err((failed, error)) = self.bridge.commit(&bundle.messages) else { return Ok(()) };
        let bytes = &bundle.raw[failed];
        let xid = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let version = self.version.unwrap_or(Version::V1_4);
        self.send(&error_message(version, xid, error, bytes));
        Err(OfError::OFPBFC_MSG_FAILED)
    }
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
