//! What threads share without a lock: deferred freeing, counters, clocks; and atomics, which are the standard library's, or
//! those of loom, which tries every order of what threads do to them. With `--cfg loom` (`scripts/nightly.sh loom`) only the
//! tests named `loom` run.

pub mod clock;
pub mod counters;
pub mod rcu;
pub mod tsc;

#[cfg(not(loom))]
pub use std::sync::atomic;

#[cfg(loom)]
pub use loom::sync::atomic;

/// Lets other threads run while this one waits for them. The more often it has been called (`times`), the longer it
/// yields.
#[cfg(not(loom))]
pub fn back_off(times: u32) {
    match times {
        0..64 => std::hint::spin_loop(),
        64..1024 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// As above: loom has another thread go on, whatever the time.
#[cfg(loom)]
pub fn back_off(_times: u32) {
    loom::thread::yield_now();
}
