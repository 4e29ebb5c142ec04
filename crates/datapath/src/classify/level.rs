//! One source, compiled for several levels of the processor, the best of which is chosen when it runs.
//!
//! The baseline of x86-64 has vectors of 16 bytes and no three-operand multiplication. What the fast path
//! does to key blocks of 64 bytes takes a fraction of the instructions on processors that have more.

/// Work that is compiled for each level. `run` has to be `#[inline(always)]`, and so has what it calls, as
/// far as it is to profit.
pub trait Leveled {
    /// What the work results in.
    type Output;

    /// Does the work.
    fn run(self) -> Self::Output;
}

/// Does the work with the best instructions that this processor has.
#[inline(always)]
pub fn at_best<W: Leveled>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! has {
            ($($feature:tt)*) => { true $(&& std::arch::is_x86_feature_detected!($feature))* };
        }
        if has!("avx512f" "avx512bw" "avx512dq" "avx512vl" "bmi1" "bmi2" "lzcnt" "popcnt") {
            // SAFETY: the processor has all of the features.
            return unsafe { avx512(work) };
        }
        if has!("avx2" "bmi1" "bmi2" "lzcnt" "popcnt") {
            // SAFETY: the processor has all of the features.
            return unsafe { avx2(work) };
        }
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
fn avx512<W: Leveled>(work: W) -> W::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn avx2<W: Leveled>(work: W) -> W::Output {
    work.run()
}
