//! Appends numbers in network byte order.

/// Appends numbers in network byte order.
pub trait Put {
    /// Appends bytes as they are.
    fn put(&mut self, bytes: &[u8]);

    /// Appends 8 bits.
    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Appends 16 bits.
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    /// Appends 32 bits.
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    /// Appends 64 bits.
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Overwrites 16 bits at `at`, which have been appended before.
pub fn set_u16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Overwrites 32 bits at `at`, which have been appended before.
pub fn set_u32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
