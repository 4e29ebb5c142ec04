//! Unaligned loads. Every one of them is checked; where the offset is a constant and the source an
//! array, the check is gone after compilation.

/// The `N` bytes at `at`, if all of them are there.
#[inline(always)]
pub fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

/// The `N` bytes at `at` of an array that is known to be long enough.
#[inline(always)]
fn within<const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Little-endian load, so that byte `at` is the lowest.
#[inline(always)]
pub fn le16<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u16 {
    u16::from_le_bytes(within(bytes, at))
}

/// Little-endian load.
#[inline(always)]
pub fn le32<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_le_bytes(within(bytes, at))
}

/// Little-endian load.
#[inline(always)]
pub fn le64<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(within(bytes, at))
}

/// Big-endian load.
#[inline(always)]
pub fn be16<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes(within(bytes, at))
}

/// Big-endian load.
#[inline(always)]
pub fn be32<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes(within(bytes, at))
}

/// Copy of `N` bytes.
#[inline(always)]
pub fn copy<const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    within(bytes, at)
}
