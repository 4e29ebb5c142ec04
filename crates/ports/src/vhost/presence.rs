//! Who is in a guest's rings at this moment.
//!
//! Before librte_vhost frees a guest, nobody may use it any more. Workers say so with two plain stores to
//! a line of their own for each burst, which is all that the fast path pays. Whoever takes the guest away
//! first takes its number away, then issues a barrier on behalf of every thread (membarrier(2)), and then
//! waits until each [`Presence`] has been seen absent: one that enters after the barrier finds no number.
//!
//! Sharing between threads: a presence is written by the worker that has the queue, and read by whoever
//! takes the guest away.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// Whether one queue's worker is in the guest's rings.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Presence(AtomicBool);

impl Presence {
    /// Enters, and leaves when what it returns is dropped. What `enter` is followed by may look at the
    /// guest's number.
    #[inline(always)]
    pub fn enter(&self) -> Inside<'_> {
        self.0.store(true, Ordering::Relaxed);
        match has_membarrier() {
            // The barrier that `wait_until_absent` issues for this thread orders the store before what
            // follows; the compiler has to keep to it too.
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
        Inside(self)
    }

    fn is_inside(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// See [`Presence::enter`].
pub struct Inside<'a>(&'a Presence);

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

/// Returns when nobody who saw what held before the call is inside any more.
pub fn wait_until_absent<'a>(all: impl Iterator<Item = &'a Presence>) {
    fence(Ordering::SeqCst);
    if has_membarrier() {
        membarrier(PRIVATE_EXPEDITED);
    }
    for presence in all {
        // A burst takes microseconds, unless its worker is not running.
        while presence.is_inside() {
            std::thread::yield_now();
        }
    }
}

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` of linux/membarrier.h.
const PRIVATE_EXPEDITED: i32 = 1 << 3;
/// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`.
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Whether the kernel can issue barriers for other threads; some sandboxes forbid it.
#[inline(always)]
fn has_membarrier() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

fn membarrier(command: i32) -> bool {
    // SAFETY: membarrier(2) touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI32;

    /// A thread goes in and out and looks at a number; after the number was taken away and everybody was
    /// waited for, nobody is inside with the old one.
    #[test]
    fn nobody_is_inside_with_what_was_taken_away() {
        let (presence, number) = (Arc::new(Presence::default()), Arc::new(AtomicI32::new(0)));
        let using = Arc::new(AtomicI32::new(-1));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (presence, number, using, stop) = (presence.clone(), number.clone(), using.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _inside = presence.enter();
                    let seen = number.load(Ordering::Acquire);
                    if seen >= 0 {
                        using.store(seen, Ordering::SeqCst);
                        std::hint::spin_loop();
                        using.store(-1, Ordering::SeqCst);
                    }
                }
            })
        };
        for next in 1..2000 {
            number.store(-1, Ordering::SeqCst);
            wait_until_absent(std::iter::once(&*presence));
            assert_eq!(using.load(Ordering::SeqCst), -1);
            number.store(next, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
}
