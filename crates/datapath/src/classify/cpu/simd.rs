//! Operations on whole lines of 64 bytes and on the ways of a set, for each level of the processor. Tests check that
//! all levels give equal results.
//!
//! A value of a level's type is proof that the processor has the level. Only [`cpu`](super) creates such values.

use std::fmt::Debug;

use super::Leveled;

/// Eight words: a cache line.
pub type Line = [u64; 8];

/// One set of a cache: a line of sixteen words, each with a tag in its upper bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Ways(pub [u32; 16]);

/// The bits of a [`Line`] that [`Simd::differs_in_key`] compares: its first 48 and its last 4 bytes.
pub const KEY: Line = {
    let last = u64::from_ne_bytes([0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    [u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, 0, last]
};

/// Operations on lines.
pub trait Simd: Copy + Debug {
    /// A line in registers.
    type Reg: Copy;

    /// A line.
    fn load(self, line: &Line) -> Self::Reg;

    /// A line of bytes, which need not be aligned.
    fn load_bytes(self, bytes: &[u8; 64]) -> Self::Reg;

    /// Stores a line.
    fn store(self, line: Self::Reg, to: &mut Line);

    /// `a & mask | salt`.
    fn select(self, a: Self::Reg, mask: Self::Reg, salt: Self::Reg) -> Self::Reg;

    /// Whether two lines differ in a bit that `mask` has.
    fn differs(self, a: Self::Reg, b: Self::Reg, mask: Self::Reg) -> bool;

    /// Whether two lines differ.
    fn differs_at_all(self, a: Self::Reg, b: Self::Reg) -> bool;

    /// Whether two lines differ in a bit of [`KEY`].
    fn differs_in_key(self, a: Self::Reg, b: Self::Reg) -> bool;

    /// The sum over all words of the product of a word's two halves, to which the halves of `secret` were added: the
    /// hash NH (Black et al., "UMAC", 1999).
    fn nh(self, a: Self::Reg, secret: Self::Reg) -> u64;

    /// Bit i says whether way i equals `tag` in the bits of `mask`.
    fn equal_tags(self, ways: &Ways, tag: u32, mask: u32) -> u32;

    /// Runs work at this level in a function of its own, whose registers do not compete with those of the caller's
    /// loops.
    fn apart<W: Leveled>(self, work: W) -> W::Output;
}

/// Any processor.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Simd for Portable {
    type Reg = Line;

    #[inline(always)]
    fn load(self, line: &Line) -> Line {
        *line
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> Line {
        zerocopy::transmute!(*bytes)
    }

    #[inline(always)]
    fn store(self, line: Line, to: &mut Line) {
        *to = line;
    }

    #[inline(always)]
    fn select(self, a: Line, mask: Line, salt: Line) -> Line {
        let mut out = [0; 8];
        for i in 0..8 {
            out[i] = a[i] & mask[i] | salt[i];
        }
        out
    }

    #[inline(always)]
    fn differs(self, a: Line, b: Line, mask: Line) -> bool {
        let mut diff = 0;
        for i in 0..8 {
            diff |= (a[i] ^ b[i]) & mask[i];
        }
        diff != 0
    }

    #[inline(always)]
    fn differs_at_all(self, a: Line, b: Line) -> bool {
        self.differs(a, b, [u64::MAX; 8])
    }

    #[inline(always)]
    fn differs_in_key(self, a: Line, b: Line) -> bool {
        self.differs(a, b, KEY)
    }

    #[inline(always)]
    fn nh(self, a: Line, secret: Line) -> u64 {
        let mut sum = 0u64;
        for i in 0..8 {
            let low = (a[i] as u32).wrapping_add(secret[i] as u32);
            let high = ((a[i] >> 32) as u32).wrapping_add((secret[i] >> 32) as u32);
            sum = sum.wrapping_add(u64::from(low) * u64::from(high));
        }
        sum
    }

    #[inline(always)]
    fn equal_tags(self, ways: &Ways, tag: u32, mask: u32) -> u32 {
        let mut set = 0;
        for i in 0..16 {
            set |= u32::from((ways.0[i] ^ tag) & mask == 0) << i;
        }
        set
    }

    #[inline(never)]
    fn apart<W: Leveled>(self, work: W) -> W::Output {
        work.run(self)
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{KEY, Line, Simd, Ways};
    use crate::classify::cpu::{self, Leveled};

    /// The lanes of 32 bits of [`KEY`], the lowest first.
    const KEY_LANES: u16 = {
        let lanes: [u32; 16] = zerocopy::transmute!(KEY);
        let (mut set, mut i) = (0, 0);
        while i < 16 {
            assert!(lanes[i] == 0 || lanes[i] == u32::MAX, "a lane is compared whole or not at all");
            set |= (lanes[i] as u16 & 1) << i;
            i += 1;
        }
        set
    };

    /// AVX-512 F, BW, DQ and VL.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512(());

    impl Avx512 {
        /// # Safety
        /// The processor must have these instructions.
        pub unsafe fn new() -> Avx512 {
            Avx512(())
        }
    }

    // SAFETY, for every block below: `self` is proof that the processor has the instructions. Loads and stores are of
    // whole lines behind references, and use the unaligned forms.
    impl Simd for Avx512 {
        type Reg = __m512i;

        #[inline(always)]
        fn load(self, line: &Line) -> __m512i {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
        }

        #[inline(always)]
        fn load_bytes(self, bytes: &[u8; 64]) -> __m512i {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
        }

        #[inline(always)]
        fn store(self, line: __m512i, to: &mut Line) {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), line) }
        }

        #[inline(always)]
        fn select(self, a: __m512i, mask: __m512i, salt: __m512i) -> __m512i {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { _mm512_or_si512(_mm512_and_si512(a, mask), salt) }
        }

        #[inline(always)]
        fn differs(self, a: __m512i, b: __m512i, mask: __m512i) -> bool {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { _mm512_test_epi64_mask(_mm512_xor_si512(a, b), mask) != 0 }
        }

        #[inline(always)]
        fn differs_at_all(self, a: __m512i, b: __m512i) -> bool {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { _mm512_cmpneq_epi64_mask(a, b) != 0 }
        }

        #[inline(always)]
        fn differs_in_key(self, a: __m512i, b: __m512i) -> bool {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { _mm512_mask_cmpneq_epi32_mask(KEY_LANES, a, b) != 0 }
        }

        #[inline(always)]
        fn nh(self, a: __m512i, secret: __m512i) -> u64 {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe {
                let sum = _mm512_add_epi32(a, secret);
                let products = _mm512_mul_epu32(sum, _mm512_srli_epi64::<32>(sum));
                _mm512_reduce_add_epi64(products) as u64
            }
        }

        #[inline(always)]
        fn equal_tags(self, ways: &Ways, tag: u32, mask: u32) -> u32 {
            // SAFETY: `self` is proof of the instructions, and `ways` is a whole line behind a reference, aligned as
            // its type demands.
            unsafe {
                let diff =
                    _mm512_xor_si512(_mm512_load_si512((&raw const ways.0).cast()), _mm512_set1_epi32(tag as i32));
                _mm512_testn_epi32_mask(diff, _mm512_set1_epi32(mask as i32)).into()
            }
        }

        #[inline(always)]
        fn apart<W: Leveled>(self, work: W) -> W::Output {
            // SAFETY: `self` is proof that the processor has the features of this level.
            unsafe { cpu::avx512::run(work) }
        }
    }

    /// AVX2.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    impl Avx2 {
        /// # Safety
        /// The processor must have these instructions.
        pub unsafe fn new() -> Avx2 {
            Avx2(())
        }
    }

    // SAFETY: as for `Avx512`.
    impl Simd for Avx2 {
        type Reg = [__m256i; 2];

        #[inline(always)]
        fn load(self, line: &Line) -> [__m256i; 2] {
            let at: *const __m256i = line.as_ptr().cast();
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] }
        }

        #[inline(always)]
        fn load_bytes(self, bytes: &[u8; 64]) -> [__m256i; 2] {
            let at: *const __m256i = bytes.as_ptr().cast();
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] }
        }

        #[inline(always)]
        fn store(self, line: [__m256i; 2], to: &mut Line) {
            let at: *mut __m256i = to.as_mut_ptr().cast();
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe {
                _mm256_storeu_si256(at, line[0]);
                _mm256_storeu_si256(at.add(1), line[1]);
            }
        }

        #[inline(always)]
        fn select(self, a: [__m256i; 2], mask: [__m256i; 2], salt: [__m256i; 2]) -> [__m256i; 2] {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe {
                [
                    _mm256_or_si256(_mm256_and_si256(a[0], mask[0]), salt[0]),
                    _mm256_or_si256(_mm256_and_si256(a[1], mask[1]), salt[1]),
                ]
            }
        }

        #[inline(always)]
        fn differs(self, a: [__m256i; 2], b: [__m256i; 2], mask: [__m256i; 2]) -> bool {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe {
                let low = _mm256_and_si256(_mm256_xor_si256(a[0], b[0]), mask[0]);
                let high = _mm256_and_si256(_mm256_xor_si256(a[1], b[1]), mask[1]);
                let diff = _mm256_or_si256(low, high);
                _mm256_testz_si256(diff, diff) == 0
            }
        }

        #[inline(always)]
        fn differs_at_all(self, a: [__m256i; 2], b: [__m256i; 2]) -> bool {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe {
                let diff = _mm256_or_si256(_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1]));
                _mm256_testz_si256(diff, diff) == 0
            }
        }

        #[inline(always)]
        fn differs_in_key(self, a: [__m256i; 2], b: [__m256i; 2]) -> bool {
            self.differs(a, b, self.load(&KEY))
        }

        #[inline(always)]
        fn nh(self, a: [__m256i; 2], secret: [__m256i; 2]) -> u64 {
            // SAFETY: `self` is proof of the instructions, and all accesses are to whole lines behind references, as
            // above.
            unsafe {
                let low = _mm256_add_epi32(a[0], secret[0]);
                let high = _mm256_add_epi32(a[1], secret[1]);
                let low = _mm256_mul_epu32(low, _mm256_srli_epi64::<32>(low));
                let high = _mm256_mul_epu32(high, _mm256_srli_epi64::<32>(high));
                let sum = _mm256_add_epi64(low, high);
                let sum = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
                let sum = _mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum));
                _mm_cvtsi128_si64(sum) as u64
            }
        }

        #[inline(always)]
        fn equal_tags(self, ways: &Ways, tag: u32, mask: u32) -> u32 {
            let at: *const __m256i = (&raw const ways.0).cast();
            // SAFETY: `self` is proof of the instructions, and `ways` is a whole line behind a reference, aligned as
            // its type demands.
            unsafe {
                let (tag, mask) = (_mm256_set1_epi32(tag as i32), _mm256_set1_epi32(mask as i32));
                let equal = |ways: __m256i| {
                    let diff = _mm256_and_si256(_mm256_xor_si256(ways, tag), mask);
                    _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(diff, _mm256_setzero_si256()))) as u32
                };
                equal(_mm256_load_si256(at)) | equal(_mm256_load_si256(at.add(1))) << 8
            }
        }

        #[inline(always)]
        fn apart<W: Leveled>(self, work: W) -> W::Output {
            // SAFETY: `self` is proof that the processor has the features of this level.
            unsafe { cpu::avx2::run(work) }
        }
    }
}

/// Bit i of the result says whether the i-th 16-bit lane of `tags` (lowest first) equals `tag`.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub fn equal_tags(tags: [u64; 2], tag: u16) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16};
    // SAFETY: the intrinsics require SSE2 only, which every x86-64 processor has.
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

    use crate::classify::cpu::{Leveled, at_every};

    /// All operations on some operands.
    struct All {
        a: Line,
        b: Line,
        c: Line,
        ways: Ways,
        tag: u32,
        mask: u32,
    }

    impl Leveled for &All {
        type Output = (Line, [bool; 3], u64, u32);

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let [a, b, c] = [simd.load(&self.a), simd.load(&self.b), simd.load(&self.c)];
            let mut selected = [0; 8];
            simd.store(simd.select(a, b, c), &mut selected);
            let differ = [simd.differs(a, b, c), simd.differs_at_all(a, b), simd.differs_in_key(a, b)];
            (selected, differ, simd.nh(a, b), simd.equal_tags(&self.ways, self.tag, self.mask))
        }
    }

    proptest! {
        #[test]
        fn levels_are_equal(
            a in any::<Line>(), c in any::<Line>(), flips in proptest::collection::vec((0..512usize, any::<bool>()), 0..3),
            ways in any::<[u32; 16]>(), tag in any::<u32>(), slots in 0..31u32, copies in any::<u16>(), sparse in any::<bool>(),
        ) {
            let mut b = a;
            for (bit, one) in flips {
                b[bit / 64] ^= u64::from(one) << (bit % 64);
            }
            let (mut ways, mask) = (Ways(ways), u32::MAX << slots);
            (0..16).filter(|i| copies >> i & 1 != 0).for_each(|i| ways.0[i] = tag & mask | ways.0[i] & !mask);
            let c = if sparse { [0, 0, 0, c[3], 0, 0, 0, 0] } else { c };
            let all = All { a, b, c, ways, tag, mask };
            let results = at_every(|| &all);
            for result in &results {
                prop_assert_eq!(result, &results[0]);
            }
            // The portable level comes first. Its results are checked against a plain computation.
            let (selected, differ, _, equal) = results[0];
            prop_assert_eq!(selected, std::array::from_fn(|i| a[i] & b[i] | c[i]));
            prop_assert_eq!(differ[0], (0..8).any(|i| a[i] & c[i] != b[i] & c[i]));
            prop_assert_eq!(differ[1], a != b);
            prop_assert_eq!(differ[2], a[..6] != b[..6] || (a[7] ^ b[7]) >> 32 != 0);
            prop_assert_eq!(equal & u32::from(copies), u32::from(copies));
            prop_assert!((0..16).all(|i| (equal >> i & 1 != 0) == (ways.0[i] & mask == tag & mask)));
        }

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
