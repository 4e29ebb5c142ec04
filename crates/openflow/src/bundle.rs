//! Bundles: messages that take effect together (OpenFlow 1.4 section 6.8; in 1.3 an extension of ONF).

/// What a bundle control message asks or answers (`enum ofp14_bundle_ctrl_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[allow(missing_docs, reason = "named as in the specification")]
pub enum BundleControlKind {
    OpenRequest = 0,
    OpenReply = 1,
    CloseRequest = 2,
    CloseReply = 3,
    CommitRequest = 4,
    CommitReply = 5,
    DiscardRequest = 6,
    DiscardReply = 7,
}

impl BundleControlKind {
    /// Every kind, by number.
    pub const ALL: [BundleControlKind; 8] = {
        use BundleControlKind::*;
        [OpenRequest, OpenReply, CloseRequest, CloseReply, CommitRequest, CommitReply, DiscardRequest, DiscardReply]
    };
}

bitflags::bitflags! {
    /// Flags of a bundle (`enum ofp14_bundle_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct BundleFlags: u16 {
        /// All packets see either none of the changes or all.
        const ATOMIC = 1;
        /// In the order in which the messages were added.
        const ORDERED = 1 << 1;
    }
}

/// A bundle control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleControl {
    /// Bundle, by the controller's number.
    pub bundle: u32,
    /// What is asked or answered.
    pub kind: BundleControlKind,
    /// Flags; unknown bits are kept.
    pub flags: BundleFlags,
}

/// A message for a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleAdd {
    /// Bundle.
    pub bundle: u32,
    /// Flags.
    pub flags: BundleFlags,
    /// The message, with its header and as long as that says.
    pub message: Vec<u8>,
}
