//! The processor's cycle counter.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Cycles since some start; nanoseconds where the processor has no counter that runs evenly.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if *HAS_TSC.get_or_init(is_invariant) {
        // SAFETY: every x86-64 processor has the instruction RDTSC, and it touches no memory.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    nanos()
}

/// Cycles in a second.
pub fn frequency() -> u64 {
    static FREQUENCY: OnceLock<u64> = OnceLock::new();
    *FREQUENCY.get_or_init(|| {
        if !has_tsc() {
            return 1_000_000_000;
        }
        let (start, from) = (Instant::now(), cycles());
        std::thread::sleep(Duration::from_millis(20));
        let counted = (cycles() - from) as u128;
        (counted * 1_000_000_000 / start.elapsed().as_nanos().max(1)) as u64
    })
}

#[cfg(target_arch = "x86_64")]
static HAS_TSC: OnceLock<bool> = OnceLock::new();

#[cfg(target_arch = "x86_64")]
fn has_tsc() -> bool {
    *HAS_TSC.get_or_init(is_invariant)
}

#[cfg(not(target_arch = "x86_64"))]
fn has_tsc() -> bool {
    false
}

/// Bit 8 of EDX of leaf 8000_0007 (Intel SDM volume 3, section 18.17.1). Miri has neither instruction.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)]
fn is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 processor has the instruction CPUID, and it touches no memory.
    !cfg!(miri) && unsafe { __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0 }
}

fn nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
