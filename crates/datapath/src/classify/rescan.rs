//! The first step of the look-up of recirculated packets: find runs, and make the lines that the header cache is
//! looked up by.
//!
//! It does what [`scan`](super::scan::scan) does for received packets, with two differences. The line of a packet also
//! has the metadata that flows of the stage match, behind its header. And packets of a run agree in all of their
//! metadata, also where no flow of this stage matches it: their program runs once for all of them and may send them
//! to another stage.

use packet::flow::extract::VlanLimit;
use packet::flow::template::{Template, WINDOW_WORDS};
use packet::{BATCH_SIZE, Packet};

use super::plan::{Aligned, Pattern, Plan};
use super::prefetch;
use super::scan::{AHEAD, MaskedHeaders, Scan, copied, fitting};
use crate::pipeline::metadata::Metadata;

/// Finds runs and lines of a batch. Packets of `counted` are not in runs with packets that are not.
pub fn rescan(
    plan: &Plan,
    packets: &[Packet],
    metadata: &Metadata,
    counted: u32,
    vlan_limit: VlanLimit,
    headers: &mut MaskedHeaders,
) -> Scan {
    let mut scan = Scan { leaders: 0, unusual: 0 };
    // The line of the packet before, if it has a pattern, and the start of the present run.
    let mut before = Aligned([0; 8]);
    let mut first = 0;
    headers.longest = 0;
    let count = packets.len().min(BATCH_SIZE);
    for i in 0..count {
        if i + AHEAD < count {
            prefetch(packets[i + AHEAD].data().as_ptr());
        }
        let packet = &packets[i];
        let length = packet.len() as u32;
        headers.longest = headers.longest.max(length);
        // Only Ethernet frames have a template.
        let template = Template::of(packet.data(), vlan_limit).filter(|_| metadata.is_ethernet(i));
        let pattern = template.and_then(|template| plan.pattern(template));
        let Some((pattern, flags)) = pattern.and_then(|p| Some((p, fitting::<true>(&p.layout, packet)?))) else {
            scan.unusual |= 1 << i;
            (headers.bytes[i], headers.flags[i]) = (length, 0);
            before = Aligned([0; 8]);
            continue;
        };
        let line = line(plan, pattern, packet, i, metadata);
        if line.0 == before.0
            && metadata.is_same(i, i - 1)
            && counted >> (i - 1) & 3 != 1
            && counted >> (i - 1) & 3 != 2
        {
            headers.bytes[first] += length;
            headers.flags[first] |= flags;
            continue;
        }
        scan.leaders |= 1 << i;
        (first, before) = (i, line);
        (headers.lines[i], headers.bytes[i], headers.flags[i]) = (line, length, flags);
    }
    scan
}

/// The line of a packet. It is never all zeros, since its origin is not zero.
#[inline(always)]
fn line(plan: &Plan, pattern: &Pattern, packet: &Packet, i: usize, metadata: &Metadata) -> Aligned {
    let at = pattern.at as usize;
    let mut line = Aligned(pattern.salt.0);
    let own;
    let bytes = match packet.line(at) {
        Some(bytes) => bytes,
        None => {
            own = copied(packet.data(), at);
            &own
        }
    };
    let (words, _) = bytes.as_chunks::<8>();
    for ((word, bytes), mask) in line.0.iter_mut().zip(words).zip(&pattern.mask.0).take(WINDOW_WORDS) {
        *word |= u64::from_ne_bytes(*bytes) & mask;
    }
    if !plan.metadata.is_empty() {
        let bytes: &mut [u8; 64] = zerocopy::transmute_mut!(&mut line.0);
        let (parts, _) = bytes[usize::from(pattern.metadata_at)..].as_chunks_mut::<4>();
        for (part, bits) in parts.iter_mut().zip(&plan.metadata) {
            *part = (metadata.half_word(i, bits.number.into()) & bits.mask).to_ne_bytes();
        }
    }
    line
}
