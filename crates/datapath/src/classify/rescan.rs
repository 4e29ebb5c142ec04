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
use super::scan::{AHEAD, MaskedHeaders, Scan, copied, fitting};
use super::{bits, prefetch};
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
    let (mut usual, mut metadata_at) = (0u32, [0; BATCH_SIZE]);
    headers.longest = 0;
    let count = packets.len().min(BATCH_SIZE);
    // 1. The headers.
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
        match pattern.and_then(|p| Some((p, fitting::<true>(&p.layout, packet)?))) {
            Some((pattern, flags)) => {
                usual |= 1 << i;
                metadata_at[i] = pattern.metadata_at;
                headers.lines[i] = line(pattern, packet);
                (headers.bytes[i], headers.flags[i]) = (length, flags);
            }
            None => {
                scan.unusual |= 1 << i;
                (headers.bytes[i], headers.flags[i]) = (length, 0);
            }
        }
    }
    // 2. The metadata, of all packets one after the other: what is the same for all is done once, and no line is read soon after a
    //    part of it was written, for which the processor would have to wait.
    for part in &plan.metadata {
        metadata.each_half_word(part.number.into(), bits(usual), |i, value| {
            let line: &mut [u8; 64] = zerocopy::transmute_mut!(&mut headers.lines[i].0);
            let at = usize::from(metadata_at[i]);
            if let Some(place) = line[at..].first_chunk_mut::<4>() {
                *place = (value & part.mask).to_ne_bytes();
            }
            metadata_at[i] += 4;
        });
    }
    // 3. The runs. `first`: the start of the present one.
    let mut first = 0;
    for i in bits(usual) {
        let follows = i > 0 && usual >> (i - 1) & 1 != 0;
        if follows
            && headers.lines[i].0 == headers.lines[first].0
            && metadata.is_same(i, first)
            && counted >> (i - 1) & 3 != 1
            && counted >> (i - 1) & 3 != 2
        {
            headers.bytes[first] += headers.bytes[i];
            headers.flags[first] |= headers.flags[i];
            continue;
        }
        scan.leaders |= 1 << i;
        first = i;
    }
    scan
}

/// The line of a packet, without metadata. It is never all zeros, since its origin is not zero.
#[inline(always)]
fn line(pattern: &Pattern, packet: &Packet) -> Aligned {
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
    line
}
