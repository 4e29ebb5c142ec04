//! What a thread that handles DPDK's frames has for itself: a number that DPDK knows it by, which gives it
//! a share of each mempool that needs no lock, and mbufs that it is about to give back.
//!
//! Released mbufs are gathered and given back together, since one call for each would cost more than
//! the work. At most [`GATHERED`] wait, until the thread polls a DPDK queue again, or ends.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use dpdk_sys::rte_mbuf;

/// The most mbufs that a thread keeps before it gives them back.
pub const GATHERED: usize = 32;

thread_local! {
    static KNOWN: Cell<bool> = const { Cell::new(false) };
    /// As DPDK has it; here so that it is found without a call.
    static LCORE: Cell<u32> = const { Cell::new(dpdk_sys::LCORE_ID_ANY) };
    static GIVING_BACK: RefCell<GivingBack> = const { RefCell::new(GivingBack(ArrayVec::new_const())) };
    /// Made when the thread is registered, to end that with the thread.
    static REGISTRATION: RefCell<Option<Registration>> = const { RefCell::new(None) };
}

/// Makes DPDK know this thread, once. To be called before a burst; costs a look when it is done.
#[inline(always)]
pub fn attach() {
    if !KNOWN.get() {
        register();
    }
}

/// This thread's number; `LCORE_ID_ANY` where DPDK does not know it.
#[inline(always)]
pub fn lcore() -> u32 {
    LCORE.get()
}

#[cold]
fn register() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    KNOWN.set(true);
    // SAFETY: callers handle mbufs, so EAL is initialised.
    LCORE.set(unsafe { dpdk_sys::weir_lcore_id() });
    if LCORE.get() != dpdk_sys::LCORE_ID_ANY {
        return;
    }
    // Mbufs are to be given back while the thread is still registered: what is made first is dropped last.
    REGISTRATION.with_borrow_mut(|registration| {
        // SAFETY: as above; the thread is not registered yet.
        if unsafe { dpdk_sys::rte_thread_register() } == 0 {
            // SAFETY: as above.
            LCORE.set(unsafe { dpdk_sys::weir_lcore_id() });
            *registration = Some(Registration);
        } else if !TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!(target: "dpdk", "DPDK max threads count has been reached; further threads share mempools by locks");
        }
    });
    GIVING_BACK.with_borrow(|_| {});
}

struct Registration;

impl Drop for Registration {
    fn drop(&mut self) {
        // Another thread may get the number now.
        LCORE.set(dpdk_sys::LCORE_ID_ANY);
        // SAFETY: made by the same thread when it was registered.
        unsafe { dpdk_sys::rte_thread_unregister() }
    }
}

struct GivingBack(ArrayVec<*mut rte_mbuf, GATHERED>);

impl GivingBack {
    fn flush(&mut self) {
        // SAFETY: `give_back` put them here, and its callers gave them up.
        unsafe { give_back_all(&mut self.0) };
        self.0.clear();
    }
}

impl Drop for GivingBack {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Gives an mbuf back to its mempool, soon.
///
/// # Safety
/// The caller owns it, and gives it up.
#[inline]
pub unsafe fn give_back(mbuf: *mut rte_mbuf) {
    let gathered = GIVING_BACK.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        waiting.0.push(mbuf);
        if waiting.0.is_full() {
            waiting.flush();
        }
    });
    if gathered.is_err() {
        // The thread is ending.
        // SAFETY: the caller owns the mbuf and gives it up (contract of this function).
        unsafe { dpdk_sys::weir_pktmbuf_free(mbuf) };
    }
}

/// Gives mbufs back to their mempools at once.
///
/// # Safety
/// The caller owns them, and gives them up.
#[inline(always)]
pub unsafe fn give_back_all(mbufs: &mut [*mut rte_mbuf]) {
    // SAFETY: the caller owns the mbufs and gives them up (contract of this function). The number is this thread's.
    unsafe { dpdk_sys::weir_pktmbuf_free_bulk(mbufs.as_mut_ptr(), mbufs.len() as u32, lcore()) };
}

/// Gives back what waits.
#[inline]
pub fn flush() {
    // Without the list, the thread is ending, and nothing waits.
    let _ = GIVING_BACK.try_with(|waiting| {
        let mut waiting = waiting.borrow_mut();
        if !waiting.0.is_empty() {
            waiting.flush();
        }
    });
}
