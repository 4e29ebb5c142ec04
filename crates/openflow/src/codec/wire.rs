//! Reading and writing big-endian bytes. Nothing here panics, whatever the bytes are.

use std::time::Duration;

use crate::error::OfError;

/// The rest of some bytes, and the error to give when there are too few of them.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    short: OfError,
}

macro_rules! read_int {
    ($($name:ident $ty:ty)*) => {
        $(pub fn $name(&mut self) -> Result<$ty, OfError> {
            Ok(<$ty>::from_be_bytes(self.array()?))
        })*
    };
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], short: OfError) -> Reader<'a> {
        Reader { bytes, short }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The same bytes with another error.
    pub fn with(self, short: OfError) -> Reader<'a> {
        Reader { short, ..self }
    }

    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], OfError> {
        let (head, tail) = self.bytes.split_at_checked(n).ok_or(self.short)?;
        self.bytes = tail;
        Ok(head)
    }

    /// A reader of the next `n` bytes.
    pub fn sub(&mut self, n: usize) -> Result<Reader<'a>, OfError> {
        Ok(Reader { bytes: self.bytes(n)?, short: self.short })
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], OfError> {
        let (head, tail) = self.bytes.split_first_chunk().ok_or(self.short)?;
        self.bytes = tail;
        Ok(*head)
    }

    read_int! { u8 u8 u16 u16 u32 u32 u64 u64 u128 u128 }

    pub fn skip(&mut self, n: usize) -> Result<(), OfError> {
        self.bytes(n).map(|_| ())
    }

    /// `n` bytes that have to be zero.
    pub fn zeros(&mut self, n: usize, nonzero: OfError) -> Result<(), OfError> {
        if self.bytes(n)?.iter().all(|&b| b == 0) { Ok(()) } else { Err(nonzero) }
    }

    /// The remaining bytes, which have to be zero.
    pub fn rest_zeros(&mut self, nonzero: OfError) -> Result<(), OfError> {
        self.zeros(self.len(), nonzero)
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// A big-endian number of `n` bytes, at most 16.
    pub fn uint(&mut self, n: usize) -> Result<u128, OfError> {
        Ok(self.bytes(n)?.iter().fold(0, |v, &b| v << 8 | u128::from(b)))
    }

    /// A name in `n` bytes, up to the first NUL.
    pub fn name(&mut self, n: usize) -> Result<String, OfError> {
        let raw = self.bytes(n)?;
        let text = raw.split(|&b| b == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Whether all that is left is zero.
    pub fn is_zero(&self) -> bool {
        self.bytes.iter().all(|&b| b == 0)
    }

    /// There must be nothing left.
    pub fn done(&self) -> Result<(), OfError> {
        if self.is_empty() { Ok(()) } else { Err(self.short) }
    }
}

macro_rules! put_int {
    ($($name:ident $ty:ty)*) => {
        $(fn $name(&mut self, value: $ty) { self.put(&value.to_be_bytes()); })*
    };
}

/// Appending to a message.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);
    fn zeros(&mut self, n: usize);
    fn here(&self) -> usize;
    fn set_u16(&mut self, at: usize, value: u16);

    put_int! { u8 u8 u16 u16 u32 u32 u64 u64 u128 u128 }

    /// The low `n` bytes of a number.
    fn uint(&mut self, value: u128, n: usize) {
        self.put(&value.to_be_bytes()[16 - n..]);
    }

    /// A name in `n` bytes, NUL-padded and NUL-terminated, cut between characters.
    fn name(&mut self, name: &str, n: usize) {
        let mut len = name.len().min(n - 1);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        self.put(&name.as_bytes()[..len]);
        self.zeros(n - len);
    }

    /// Zeros until what began at `start` is a multiple of 8 long.
    fn pad8(&mut self, start: usize) {
        let len = self.here() - start;
        self.zeros(len.next_multiple_of(8) - len);
    }

    /// Writes the length of what began at `start` into its 16-bit member at `at`. What is too long for
    /// that makes the whole message too long, which [`encode`](super::encode) reports.
    fn close(&mut self, start: usize, at: usize) {
        let len = (self.here() - start).min(0xffff) as u16;
        self.set_u16(start + at, len);
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn zeros(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }

    fn here(&self) -> usize {
        self.len()
    }

    fn set_u16(&mut self, at: usize, value: u16) {
        self[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

/// Reads a time in seconds and nanoseconds.
pub(crate) fn pull_duration(r: &mut Reader) -> Result<Duration, OfError> {
    let (seconds, nanos) = (r.u32()?, r.u32()?);
    Ok(Duration::from_secs(seconds.into()) + Duration::from_nanos(nanos.into()))
}

/// Writes a time in seconds and nanoseconds.
pub(crate) fn put_duration(out: &mut Vec<u8>, d: Duration) {
    out.u32(d.as_secs().min(u32::MAX.into()) as u32);
    out.u32(d.subsec_nanos());
}
