//! One source, compiled for several levels of the processor, of which the best one is chosen at run time.
//!
//! The baseline of x86-64 has vectors of 16 bytes and no three-operand multiplication. With more, the fast path's
//! operations on lines of 64 bytes take a fraction of the instructions.

pub mod simd;

use simd::{Portable, Simd};

/// Work that is compiled for each level. `run`, and everything that it calls and that should profit, must be
/// `#[inline(always)]`.
pub trait Leveled {
    /// What the work results in.
    type Output;

    /// Runs the work.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// A level: a function that is compiled for these features of the processor. A value of its type is proof that the
/// processor has them.
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
                // SAFETY: this function is compiled with the features and is only called where the processor has
                // them.
                work.run(unsafe { crate::classify::cpu::simd::$proof::new() })
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
level!(avx2: Avx2, "avx2" "bmi1" "bmi2" "lzcnt" "popcnt");
#[cfg(target_arch = "x86_64")]
level!(avx512: Avx512, "avx512f" "avx512bw" "avx512dq" "avx512vl" "bmi1" "bmi2" "lzcnt" "popcnt");

/// Runs the work at the best level that this processor has.
#[inline(always)]
pub fn at_best<W: Leveled>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if avx512::is_supported() {
            // SAFETY: `is_supported` has said that the processor has all features of the level.
            return unsafe { avx512::run(work) };
        }
        if avx2::is_supported() {
            // SAFETY: `is_supported` has said that the processor has all features of the level.
            return unsafe { avx2::run(work) };
        }
    }
    work.run(Portable)
}

/// Runs the work at every level that this processor has, the portable one first.
#[cfg(test)]
pub fn at_every<W: Leveled>(work: impl Fn() -> W) -> Vec<W::Output> {
    let mut results = vec![work().run(Portable)];
    #[cfg(target_arch = "x86_64")]
    {
        if avx2::is_supported() {
            // SAFETY: `is_supported` has said that the processor has all features of the level.
            results.push(unsafe { avx2::run(work()) });
        }
        if avx512::is_supported() {
            // SAFETY: `is_supported` has said that the processor has all features of the level.
            results.push(unsafe { avx512::run(work()) });
        }
    }
    results
}
