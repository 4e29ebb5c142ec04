//! JSON objects that follow each other on a stream of bytes, without lengths or delimiters: the framing of
//! JSON-RPC 1.0, in OVSDB (RFC 7047 section 4) and on OVS's control sockets (ovs-appctl(8)).
//!
//! [`Framer`] finds the end of each object while bytes arrive, so that work is linear however a stream is
//! cut, and refuses what cannot become an object as soon as that is seen.

use serde_json::{Map, Value};
use thiserror::Error;

/// What a stream may send at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message.
    pub size: usize,
    /// Objects and arrays within each other; at most 127.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { size: 64 << 20, depth: 64 }
    }
}

/// A stream that cannot be read further.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A byte that begins no object or that no JSON text contains.
    #[error("byte {byte:#04x} at offset {offset} of the stream is not JSON")]
    Garbage {
        /// The byte.
        byte: u8,
        /// Bytes of the stream before it.
        offset: u64,
    },
    /// A message without end.
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
    /// Objects and arrays too deep within each other.
    #[error("objects and arrays more than {0} deep")]
    TooDeep(usize),
    /// Text that looked like an object until it was parsed.
    #[error("malformed JSON: {0}")]
    Json(String),
    /// An object that is not a message of JSON-RPC, or not one that is expected here.
    #[error("not a JSON-RPC message: {0}")]
    Message(String),
}

/// Cuts a stream of bytes into JSON objects.
#[derive(Debug)]
pub struct Framer {
    limits: Limits,
    /// Bytes that were not given out yet, and some that were.
    buffer: Vec<u8>,
    /// Bytes of the buffer that belong to objects given out.
    start: usize,
    /// Bytes of the buffer that were looked at.
    scanned: usize,
    /// Open objects and arrays at `scanned`.
    depth: usize,
    /// What kind of text `scanned` is in.
    within: Within,
    /// Bytes of the stream before the buffer.
    passed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    Structure,
    Text,
    Escape,
}

impl Default for Framer {
    fn default() -> Framer {
        Framer::new(Limits::default())
    }
}

impl Framer {
    /// One at the beginning of a stream.
    pub fn new(limits: Limits) -> Framer {
        let limits = Limits { depth: limits.depth.min(127), ..limits };
        Framer { limits, buffer: Vec::new(), start: 0, scanned: 0, depth: 0, within: Within::Structure, passed: 0 }
    }

    /// Takes bytes from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start >= self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.passed += self.start as u64;
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that wait for the rest of their object.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The next whole object, if there is one. After an error the stream is of no further use.
    pub fn next_object(&mut self) -> Result<Option<Map<String, Value>>, FrameError> {
        let Some(end) = self.find_end()? else {
            return if self.pending() > self.limits.size {
                Err(FrameError::TooLarge(self.limits.size))
            } else {
                Ok(None)
            };
        };
        let text = &self.buffer[self.start..end];
        if text.len() > self.limits.size {
            return Err(FrameError::TooLarge(self.limits.size));
        }
        let object = serde_json::from_slice(text).map_err(|e| FrameError::Json(e.to_string()))?;
        self.start = end;
        if self.start == self.buffer.len() {
            self.passed += self.start as u64;
            self.buffer.clear();
            // A connection keeps the memory of a long message no longer than the message.
            self.buffer.shrink_to(1 << 16);
            (self.start, self.scanned) = (0, 0);
        }
        Ok(Some(object))
    }

    /// Looks on from `scanned` for the end of the object that begins at `start`.
    fn find_end(&mut self) -> Result<Option<usize>, FrameError> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            let garbage = FrameError::Garbage { byte, offset: self.passed + self.scanned as u64 };
            self.scanned += 1;
            self.within = match (self.within, byte) {
                // Control characters are escaped in JSON texts.
                (Within::Text | Within::Escape, 0..=0x1f) => return Err(garbage),
                (Within::Text, b'"') => Within::Structure,
                (Within::Text, b'\\') => Within::Escape,
                (Within::Text | Within::Escape, _) => Within::Text,
                (Within::Structure, b' ' | b'\t' | b'\n' | b'\r') => {
                    if self.depth == 0 {
                        self.start = self.scanned;
                    }
                    Within::Structure
                }
                (Within::Structure, b'{') => self.open()?,
                (Within::Structure, _) if self.depth == 0 => return Err(garbage),
                (Within::Structure, b'[') => self.open()?,
                (Within::Structure, b'}' | b']') => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Some(self.scanned));
                    }
                    Within::Structure
                }
                (Within::Structure, b'"') => Within::Text,
                (Within::Structure, b'0'..=b'9' | b'a'..=b'z' | b'E' | b'+' | b'-' | b'.' | b',' | b':') => {
                    Within::Structure
                }
                (Within::Structure, _) => return Err(garbage),
            };
        }
        Ok(None)
    }

    fn open(&mut self) -> Result<Within, FrameError> {
        self.depth += 1;
        if self.depth > self.limits.depth {
            return Err(FrameError::TooDeep(self.limits.depth));
        }
        Ok(Within::Structure)
    }
}
