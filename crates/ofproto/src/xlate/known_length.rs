//! What a translation knows about the length of a packet that it does not see.

/// What is known about the length of the datapath's packet: it is longer than `over` and at most `most`.
#[derive(Clone, Copy)]
pub(super) struct KnownLength {
    over: u32,
    most: u32,
}

impl KnownLength {
    /// Nothing.
    pub const UNKNOWN: KnownLength = KnownLength { over: 0, most: u32::MAX };

    /// Whether the packet is longer than `size`, if that follows.
    pub fn is_longer(self, size: u16) -> Option<bool> {
        let size = u32::from(size);
        if self.over >= size { Some(true) } else { (self.most <= size).then_some(false) }
    }

    /// With the answer to whether it is longer than `size`.
    pub fn with(self, size: u16, longer: bool) -> KnownLength {
        let size = u32::from(size);
        if longer {
            KnownLength { over: self.over.max(size), ..self }
        } else {
            KnownLength { most: self.most.min(size), ..self }
        }
    }
}
