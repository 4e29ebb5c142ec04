//! One source, compiled for several levels of the processor, the best of which is chosen when it runs.
//!
//! The baseline of x86-64 has vectors of 16 bytes and no three-operand multiplication. What the fast path
//! does to lines of 64 bytes takes a fraction of the instructions on processors that have more.

pub mod simd;

use simd::{Portable, Simd};

/// Work that is compiled for each level. `run` has to be `#[inline(always)]`, and so has what it calls, as
/// far as it is to profit.
pub trait Leveled {
    /// What the work results in.
    type Output;

    /// Does the work.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// A level: work that is compiled for these features of the processor, of which a value of the type is proof.
#[cfg(target_arch = "x86_64")]
macro_rules! level {
    ($name:ident: $proof:ident, $($feature:tt)*) => {
        pub(super) mod $name {
            use super::Leveled;

            /// Whether this processor has all of the features.
            #[inline(always)]
            pub fn is_supported() -> bool {
                true $(&& std::arch::is_x86_feature_detected!($feature))*
            }

            #[inline(never)]
            #[target_feature($(enable = $feature),*)]
            pub fn run<W: Leveled>(work: W) -> W::Output {
                // SAFETY: this function has them.
                work.run(unsafe { crate::classify::cpu::simd::$proof::new() })
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
level!(avx2: Avx2, "avx2" "bmi1" "bmi2" "lzcnt" "popcnt");
#[cfg(target_arch = "x86_64")]
level!(avx512: Avx512, "avx512f" "avx512bw" "avx512dq" "avx512vl" "bmi1" "bmi2" "lzcnt" "popcnt");

/// Does the work with the best instructions that this processor has.
#[inline(always)]
pub fn at_best<W: Leveled>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if avx512::is_supported() {
            // SAFETY: the processor has all of the features.
            return unsafe { avx512::run(work) };
        }
        if avx2::is_supported() {
            // SAFETY: the processor has all of the features.
            return unsafe { avx2::run(work) };
        }
    }
    work.run(Portable)
}

/// Does the work with each set of instructions that this processor has, the portable one first.
#[cfg(test)]
pub fn at_every<W: Leveled>(work: impl Fn() -> W) -> Vec<W::Output> {
    let mut results = vec![work().run(Portable)];
    #[cfg(target_arch = "x86_64")]
    {
        if avx2::is_supported() {
            // SAFETY: the processor has all of the features.
            results.push(unsafe { avx2::run(work()) });
        }
        if avx512::is_supported() {
            // SAFETY: the processor has all of the features.
            results.push(unsafe { avx512::run(work()) });
        }
    }
    results
}
