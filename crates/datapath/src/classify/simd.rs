//! Comparisons of several values at once, each with a scalar twin that the tests hold it against.

/// Bit i of the result says whether the i-th 16-bit lane of `tags` (lowest first) equals `tag`.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub fn equal_tags(tags: [u64; 2], tag: u16) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16};
    // SSE2, which every x86-64 processor has.
    // SAFETY: the intrinsics need nothing else.
    #[allow(unused_unsafe)]
    unsafe {
        let equal = _mm_cmpeq_epi16(_mm_set_epi64x(tags[1] as i64, tags[0] as i64), _mm_set1_epi16(tag as i16));
        (_mm_movemask_epi8(_mm_packs_epi16(equal, equal)) & 0xff) as u32
    }
}

/// Bit i of the result says whether the i-th 16-bit lane of `tags` (lowest first) equals `tag`.
#[cfg(not(target_arch = "x86_64"))]
pub use equal_tags_scalar as equal_tags;

/// [`equal_tags`], one lane after the other.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
pub fn equal_tags_scalar(tags: [u64; 2], tag: u16) -> u32 {
    (0..8).fold(0, |set, lane| set | u32::from((tags[lane / 4] >> (lane % 4 * 16)) as u16 == tag) << lane)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn simd_equals_scalar(lanes in any::<[u16; 8]>(), tag in any::<u16>(), copies in any::<u8>()) {
            let tags = std::array::from_fn(|word| {
                (0..4).fold(0, |n, lane| {
                    let at = word * 4 + lane;
                    n | u64::from(if copies >> at & 1 != 0 { tag } else { lanes[at] }) << (lane * 16)
                })
            });
            prop_assert_eq!(equal_tags(tags, tag), equal_tags_scalar(tags, tag));
            prop_assert_eq!(equal_tags(tags, tag) & u32::from(copies), u32::from(copies));
        }
    }
}
