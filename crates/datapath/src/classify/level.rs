//! One source, compiled for several levels of the processor, the best of which is chosen when it runs.
//!
//! The baseline of x86-64 has vectors of 16 bytes and no three-operand multiplication. What the fast path
//! does to lines of 64 bytes takes a fraction of the instructions on processors that have more.

use super::simd::{Portable, Simd};

/// Work that is compiled for each level. `run` has to be `#[inline(always)]`, and so has what it calls, as
/// far as it is to profit.
pub trait Leveled {
    /// What the work results in.
    type Output;

    /// Does the work.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
macro_rules! has {
    ($($feature:tt)*) => { true $(&& std::arch::is_x86_feature_detected!($feature))* };
}

/// Does the work with the best instructions that this processor has.
#[inline(always)]
pub fn at_best<W: Leveled>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if has!("avx512f" "avx512bw" "avx512dq" "avx512vl" "bmi1" "bmi2" "lzcnt" "popcnt") {
            // SAFETY: the processor has all of the features.
            return unsafe { avx512(work) };
        }
        if has!("avx2" "bmi1" "bmi2" "lzcnt" "popcnt") {
            // SAFETY: the processor has all of the features.
            return unsafe { avx2(work) };
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
        if has!("avx2" "bmi1" "bmi2" "lzcnt" "popcnt") {
            // SAFETY: the processor has all of the features.
            results.push(unsafe { avx2(work()) });
        }
        if has!("avx512f" "avx512bw" "avx512dq" "avx512vl" "bmi1" "bmi2" "lzcnt" "popcnt") {
            // SAFETY: the processor has all of the features.
            results.push(unsafe { avx512(work()) });
        }
    }
    results
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
fn avx512<W: Leveled>(work: W) -> W::Output {
    // SAFETY: this function has them.
    work.run(unsafe { super::simd::Avx512::new() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn avx2<W: Leveled>(work: W) -> W::Output {
    // SAFETY: this function has them.
    work.run(unsafe { super::simd::Avx2::new() })
}
