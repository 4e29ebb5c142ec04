//! The first step of the look-up of recirculated packets: find runs, and make the lines that the header cache is
//! looked up by.
//!
//! It does what [`scan`](super::scan::scan) does for received packets, with two differences. The line of a packet also
//! has the metadata that flows of the stage match, behind its header. And packets of a run agree in all of their
//! metadata, also where no flow of this stage matches it: their program runs once for all of them and may send them
//! to another stage.

use packet::flow::extract::VlanLimit;
use packet::flow::template::Template;
use packet::{BATCH_SIZE, Packet};

use super::places::MAX_PARTS;
use super::plan::{NO_PATTERN, Pattern, Plan};
use super::scan::{AHEAD, MaskedHeaders, Scan, copied, fitting};
use super::{bits, prefetch};
use crate::classify::cpu::simd::Simd;
use crate::pipeline::metadata::Metadata;

/// Finds runs and lines of a batch. Packets of `counted` are not in runs with packets that are not.
#[inline(always)]
pub fn rescan<S: Simd>(
    simd: S,
    plan: &Plan,
    packets: &[Packet],
    metadata: &Metadata,
    counted: u32,
    vlan_limit: VlanLimit,
    headers: &mut MaskedHeaders,
) -> Scan {
    let mut scan = Scan { leaders: 0, unusual: 0 };
    let mut pattern: Option<&Pattern> = None;
    let nothing = simd.load(&[0; 8]);
    let (mut mask, mut parse, mut salt, mut before) = (nothing, nothing, nothing, nothing);
    // The present run: its first packet, bytes and flags.
    let (mut first, mut bytes, mut flags) = (0, 0, 0);
    let (mut longest, mut places) = (0, [&NO_PATTERN.places; BATCH_SIZE]);
    let count = packets.len().min(BATCH_SIZE);
    // 1. The headers.
    'packets: for i in 0..count {
        if i + AHEAD < count {
            prefetch(packets[i + AHEAD].data().as_ptr());
        }
        let packet = &packets[i];
        let length = packet.len() as u32;
        longest = longest.max(length);
        let (line, own);
        'run: {
            // Only Ethernet frames have a template.
            let has_template = if plan.is_of_tunnel { metadata.is_out_of_tunnel(i) } else { metadata.is_ethernet(i) };
            if has_template
                && let Some(pattern) = pattern
                && let Some(bytes_of) = packet.line(pattern.at as usize)
            {
                let masked = simd.select(simd.load_bytes(bytes_of), mask, salt);
                let same = !simd.differs_at_all(masked, before);
                if (same || !simd.differs(masked, before, parse))
                    && let Some(fitting) = fitting::<false>(&pattern.layout, packet)
                {
                    if same && (counted >> i ^ counted >> first) & 1 == 0 && metadata.is_same(simd, i, first) {
                        bytes += length;
                        flags |= fitting;
                        continue 'packets;
                    }
                    (line, own) = (Some(masked), fitting);
                    places[i] = &pattern.places;
                    break 'run;
                }
            }
            pattern = Template::of(packet.data(), vlan_limit)
                .filter(|_| has_template)
                .and_then(|template| plan.pattern(template));
            if let Some(found) = pattern
                && let Some(fitting) = fitting::<false>(&found.layout, packet)
            {
                (mask, parse, salt) = (simd.load(&found.mask.0), simd.load(&found.parse.0), simd.load(&found.salt.0));
                let bytes_of = match packet.line(found.at as usize) {
                    Some(bytes) => simd.load_bytes(bytes),
                    None => simd.load_bytes(&copied(packet.data(), found.at as usize)),
                };
                (line, own) = (Some(simd.select(bytes_of, mask, salt)), fitting);
                places[i] = &found.places;
                break 'run;
            }
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
    // 2. The metadata of the leaders, of all of them one after the other: what is the same for all is done once, and no line is read
    //    soon after a part of it was written, for which the processor would have to wait.
    for (number, part) in plan.metadata.iter().enumerate().take(MAX_PARTS) {
        metadata.each_half_word(part.number.into(), bits(scan.leaders), |i, value| {
            let line: &mut [u8; 64] = zerocopy::transmute_mut!(&mut headers.lines[i].0);
            let at = usize::from(places[i][number]);
            if let Some(place) = line.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut::<4>()) {
                *place = part.written(value, u32::from_ne_bytes(*place)).to_ne_bytes();
            }
        });
    }
    scan
}

#[cfg(test)]
mod tests {
    use packet::flow::extract::extract;
    use packet::{Field, Key, Mask};
    use proptest::prelude::*;

    use super::*;
    use crate::classify::cpu::{Leveled, at_every};
    use crate::classify::frame_tests::{frame, mask};
    use crate::classify::places::NO_PLACE;
    use crate::classify::plan::Aligned;

    /// Metadata that flows may match, and some that they don't.
    const FIELDS: [Field; 6] =
        [Field::PktMark, Field::TunId, Field::TunSrc, Field::TunTtl, Field::CtMark, Field::PacketType];

    struct Rescan<'a> {
        plan: &'a Plan,
        packets: &'a [Packet],
        metadata: &'a Metadata,
        counted: u32,
    }

    /// The runs, and bytes, flags and line of each.
    type Runs = (Scan, Vec<(u32, u16, Option<[u64; 8]>)>, u32);

    impl Leveled for Rescan<'_> {
        type Output = Runs;

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Runs {
            let Rescan { plan, packets, metadata, counted } = self;
            let mut headers = MaskedHeaders { lines: [Aligned([0xee; 8]); BATCH_SIZE], ..MaskedHeaders::default() };
            let scan = rescan(simd, plan, packets, metadata, counted, VlanLimit::default(), &mut headers);
            let run = |i: usize| {
                let line = (scan.leaders >> i & 1 != 0).then_some(headers.lines[i].0);
                (headers.bytes[i], headers.flags[i], line)
            };
            (scan, bits(scan.leaders | scan.unusual).map(run).collect(), headers.longest)
        }
    }

    impl Rescan<'_> {
        /// The line and the flags of a packet, by itself.
        fn line_of(&self, i: usize) -> Option<([u64; 8], u16)> {
            let (packet, metadata) = (&self.packets[i], self.metadata);
            let fits = if self.plan.is_of_tunnel { metadata.is_out_of_tunnel(i) } else { metadata.is_ethernet(i) };
            let template = Template::of(packet.data(), VlanLimit::default()).filter(|_| fits)?;
            let pattern = self.plan.pattern(template)?;
            let flags = fitting::<true>(&pattern.layout, packet)?;
            let bytes = copied(packet.data(), pattern.at as usize);
            let words = bytes.as_chunks::<8>().0;
            let word = |k: usize| u64::from_ne_bytes(words[k]) & pattern.mask.0[k] | pattern.salt.0[k];
            let mut line: [u8; 64] = zerocopy::transmute!(std::array::from_fn::<u64, 8, _>(word));
            for (k, part) in self.plan.metadata.iter().enumerate() {
                let value = (metadata.half_word(i, part.number.into()) & part.mask).to_ne_bytes();
                let first = part.mask.to_ne_bytes().iter().position(|&bits| bits != 0).unwrap();
                if pattern.places[k] != NO_PLACE {
                    let place = &mut line[usize::from(pattern.places[k])..][..usize::from(part.len)];
                    place.copy_from_slice(&value[first..][..usize::from(part.len)]);
                }
            }
            Some((zerocopy::transmute!(line), flags))
        }

        /// What [`rescan`] does, packet by packet.
        fn plainly(&self) -> Runs {
            let (mut scan, mut runs, mut first) = (Scan { leaders: 0, unusual: 0 }, Vec::<(u32, u16, _)>::new(), 0);
            for (i, packet) in self.packets.iter().enumerate() {
                let (of_this, len) = (self.line_of(i), packet.len() as u32);
                let Some((line, flags)) = of_this else {
                    scan.unusual |= 1 << i;
                    runs.push((len, 0, None));
                    continue;
                };
                let is_counted = |i: usize| self.counted >> i & 1;
                let key = |i: usize| {
                    let mut key = Key::new();
                    self.metadata.start(i, &mut key);
                    key
                };
                match runs.last_mut() {
                    Some(run) if run.2 == Some(line) && is_counted(i) == is_counted(first) && key(i) == key(first) => {
                        run.0 += len;
                        run.1 |= flags;
                    }
                    _ => {
                        first = i;
                        scan.leaders |= 1 << i;
                        runs.push((len, flags, Some(line)));
                    }
                }
            }
            let longest = self.packets.iter().map(|packet| packet.len() as u32).max();
            (scan, runs, longest.unwrap_or(0))
        }
    }

    proptest! {
        /// At each level, runs and lines are those that each packet's own headers and metadata make.
        #[test]
        fn runs_are_those_of_each_packet_by_itself(
            frames in prop::collection::vec(any::<[u8; 8]>(), 1..4),
            values in prop::collection::vec(any::<[bool; 6]>(), 1..4),
            packets in prop::collection::vec(any::<(u8, u8, bool)>(), 1..=BATCH_SIZE),
            matched: (u16, [bool; 6]),
            later: Option<(u16, [bool; 6])>,
            of_tunnel: bool,
        ) {
            let union = |(headers, fields): (u16, [bool; 6])| {
                let mut union = mask(headers);
                let matched = FIELDS.into_iter().zip(fields).filter(|&(field, is)| is && field != Field::PacketType);
                matched.for_each(|(field, _)| union.set_exact(field));
                Mask::clone(&union)
            };
            let (union, later) = (union(matched), later.map(union));
            let plan =
                if of_tunnel { Plan::of_tunnel(7, &union, later.as_ref()) } else { Plan::of_later_stage(7, &union) };
            let (mut metadata, mut counted, mut all) = (Metadata::default(), 0, Vec::new());
            for (i, &(f, v, is_counted)) in packets.iter().enumerate() {
                let mut key = Key::new();
                let chosen = FIELDS.into_iter().zip(values[usize::from(v) % values.len()]);
                // Hardly any packet is none of Ethernet.
                chosen.filter(|&(field, is_set)| is_set && (field != Field::PacketType || v < 8))
                    .for_each(|(field, _)| key.set(field, 1));
                let packet = Packet::from_slice(&frame(frames[usize::from(f) % frames.len()]));
                extract(packet.data(), &mut key, VlanLimit::default());
                metadata.take(i, &key, 3);
                // Few changes, so that there are runs.
                counted |= u32::from(is_counted && f < 32) << i;
                all.push(packet);
            }
            let work = || Rescan { plan: &plan, packets: &all, metadata: &metadata, counted };
            let expected = work().plainly();
            for result in at_every(work) {
                prop_assert_eq!(&result, &expected);
            }
        }
    }
}
