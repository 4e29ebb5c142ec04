//! The first step of the look-up of received packets: find runs, and make the lines that the header cache is looked
//! up by.
//!
//! Nothing is parsed. The first bytes of each frame are masked with the pattern of its template and compared with
//! those of the frame before. Where they are equal, no flow of the port tells the two frames apart, and the packet
//! joins the run of the one before. The first packet of a run is its leader. The leader's masked bytes are its line.

use packet::flow::extract::VlanLimit;
use packet::flow::template::{Layout, Template};
use packet::{BATCH_SIZE, Packet};

use super::plan::{Aligned, Pattern, Plan};
use super::{bits, prefetch};
use crate::classify::cpu::simd::Simd;

/// How many packets ahead the first cache line of a frame is prefetched.
pub(super) const AHEAD: usize = 4;

/// Masked headers, lengths and TCP flags of the frames of a batch.
#[repr(C)]
pub struct MaskedHeaders {
    /// The lines of the leaders.
    pub lines: [Aligned; BATCH_SIZE],
    /// Bytes of all frames of a run, at the index of its first packet.
    pub bytes: [u32; BATCH_SIZE],
    /// TCP flags of all packets of a run, at the index of its first packet; not for packets with unusual headers.
    pub flags: [u16; BATCH_SIZE],
    /// Bytes of the longest frame.
    pub longest: u32,
}

impl Default for MaskedHeaders {
    fn default() -> MaskedHeaders {
        MaskedHeaders {
            lines: [Aligned([0; 8]); BATCH_SIZE],
            bytes: [0; BATCH_SIZE],
            flags: [0; BATCH_SIZE],
            longest: 0,
        }
    }
}

impl MaskedHeaders {
    /// Bytes and TCP flags of these packets, or runs, together.
    #[inline(always)]
    pub fn sums(&self, those: u32) -> (u32, u16) {
        let count = those.trailing_ones() as usize;
        let (mut bytes, mut flags) = (0, 0);
        for (own, own_flags) in self.bytes[..count].iter().zip(&self.flags[..count]) {
            bytes += own;
            flags |= own_flags;
        }
        // What is left without the lowest ones.
        for i in bits(those & those.wrapping_add(1)) {
            bytes += self.bytes[i];
            flags |= self.flags[i];
        }
        (bytes, flags)
    }
}

/// The runs of a batch: sets of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The first packets of runs with usual headers.
    pub leaders: u32,
    /// Packets with unusual headers: without a template, or with one for which the port has no pattern. Each is looked
    /// up by itself, by its key or by a line that is made of it.
    pub unusual: u32,
}

/// Finds runs and lines of a batch.
#[inline(always)]
pub fn scan<S: Simd>(
    simd: S,
    plan: &Plan,
    packets: &[Packet],
    vlan_limit: VlanLimit,
    headers: &mut MaskedHeaders,
) -> Scan {
    let mut scan = Scan { leaders: 0, unusual: 0 };
    let mut pattern: Option<&Pattern> = None;
    let nothing = simd.load(&[0; 8]);
    let (mut mask, mut parse, mut salt, mut before) = (nothing, nothing, nothing, nothing);
    // The present run: its first packet, bytes and flags.
    let (mut first, mut bytes, mut flags) = (0, 0, 0);
    let mut longest = 0;
    let count = packets.len().min(BATCH_SIZE);
    'packets: for i in 0..count {
        if i + AHEAD < count {
            prefetch(packets[i + AHEAD].data().as_ptr());
        }
        let packet = &packets[i];
        let length = packet.len() as u32;
        longest = longest.max(length);
        let (line, own);
        'run: {
            // 1. The pattern of the packet before, ...
            if let Some(pattern) = pattern
                && let Some(bytes_of) = packet.line(pattern.at as usize)
            {
                let masked = simd.select(simd.load_bytes(bytes_of), mask, salt);
                let same = !simd.differs_at_all(masked, before);
                if (same || !simd.differs(masked, before, parse))
                    && let Some(fitting) = fitting::<false>(&pattern.layout, packet)
                {
                    if same {
                        bytes += length;
                        flags |= fitting;
                        continue 'packets;
                    }
                    (line, own) = (Some(masked), fitting);
                    break 'run;
                }
            }
            // 2. or that of the packet's own template.
            pattern = Template::of(packet.data(), vlan_limit).and_then(|template| plan.pattern(template));
            if let Some(found) = pattern
                && let Some(fitting) = fitting::<false>(&found.layout, packet)
            {
                (mask, parse, salt) = (simd.load(&found.mask.0), simd.load(&found.parse.0), simd.load(&found.salt.0));
                let bytes_of = match packet.line(found.at as usize) {
                    Some(bytes) => simd.load_bytes(bytes),
                    None => simd.load_bytes(&copied(packet.data(), found.at as usize)),
                };
                (line, own) = (Some(simd.select(bytes_of, mask, salt)), fitting);
                break 'run;
            }
            // 3. Neither: the packet has unusual headers, and the next one starts a new run.
            pattern = None;
            (line, own) = (None, 0);
        }
        match line {
            Some(line) => {
                scan.leaders |= 1 << i;
                simd.store(line, &mut headers.lines[i].0);
                before = line;
            }
            None => scan.unusual |= 1 << i,
        }
        // Without a run before, this is overwritten immediately.
        (headers.bytes[first], headers.flags[first]) = (bytes, flags);
        (first, bytes, flags) = (i, length, own);
    }
    (headers.bytes[first], headers.flags[first]) = (bytes, flags);
    headers.longest = longest;
    scan
}

/// The TCP flags of a packet with the layout's template, or `None` if its length fields are wrong. `VARIED`: the next
/// packet may have any other template, so there is no branch that depends on the layout.
#[inline(always)]
pub fn fitting<const VARIED: bool>(layout: &Layout, packet: &Packet) -> Option<u16> {
    let (fits, flags) = fits_with_flags::<VARIED>(layout, packet);
    fits.then_some(flags)
}

/// As [`fitting`], without a branch for the result. The flags are zero where a packet does not fit.
#[inline(always)]
pub(super) fn fits_with_flags<const VARIED: bool>(layout: &Layout, packet: &Packet) -> (bool, u16) {
    let frame = packet.data();
    let size = frame.len() as u32;
    if size < layout.min_frame {
        return (false, 0);
    }
    // SAFETY: the frame has at least `min_frame` bytes, which was checked above. Every offset of a layout is at least
    // two bytes below that.
    let at = |at: u32| unsafe { word(frame, at) };
    let length = at(layout.length);
    if !VARIED && layout.is_plain {
        return (layout.fits_without_tcp(size, length), 0);
    }
    let tcp = at(layout.tcp) & layout.tcp_mask;
    let fits = layout.is_right(at(layout.check_at)) & layout.fits(size, length, tcp);
    (fits, tcp & 0x0fff & u16::from(fits).wrapping_neg())
}

/// # Safety
/// The frame has two bytes at `at`.
#[inline(always)]
unsafe fn word(frame: &[u8], at: u32) -> u16 {
    debug_assert!(at as usize + 2 <= frame.len());
    // SAFETY: the caller guarantees that the frame has two bytes at `at`, and the read may be unaligned.
    u16::from_be(unsafe { frame.as_ptr().add(at as usize).cast::<u16>().read_unaligned() })
}

/// The 64 bytes from `at` on of a frame that ends before them, filled up with zeros.
#[cold]
pub(super) fn copied(frame: &[u8], at: usize) -> [u8; 64] {
    let mut line = [0; 64];
    let there = &frame[at.min(frame.len())..];
    let count = there.len().min(64);
    line[..count].copy_from_slice(&there[..count]);
    line
}
