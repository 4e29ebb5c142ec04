//! Arrays that may be large and are mostly not touched.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::Advice;

/// A type of which zeros are a value, and that may be forgotten without being dropped.
///
/// # Safety
/// They are, and it may.
pub unsafe trait Zero {}

/// An array of zeros, on huge pages where the system has them. What was never touched takes up addresses but
/// no memory.
pub struct Region<T: Zero> {
    start: NonNull<T>,
    count: usize,
    /// What was allocated, for giving it back.
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, as a box does.
unsafe impl<T: Zero + Send> Send for Region<T> {}
// SAFETY: as above.
unsafe impl<T: Zero + Sync> Sync for Region<T> {}

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

impl<T: Zero> Region<T> {
    /// An array of `count` elements, at least one.
    pub fn new(count: usize) -> Region<T> {
        let layout = Layout::array::<T>(count.max(1)).expect("an array is far smaller than the address space");
        let bytes = layout.size();
        // Aligned by hand: then the system's zero pages serve as they are.
        let align = if bytes >= HUGE { HUGE } else { align_of::<T>() };
        let layout = Layout::from_size_align(bytes + align, 16).expect("it is far smaller than the address space");
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let skip = base.as_ptr().addr().next_multiple_of(align) - base.as_ptr().addr();
        // SAFETY: `skip` is at most `align`, which was asked for on top.
        let start = unsafe { base.add(skip) };
        if align == HUGE {
            advise(start, bytes);
        }
        Region { start: start.cast(), count: count.max(1), base, layout }
    }

    /// All elements.
    pub fn slice(&self) -> &[T] {
        // SAFETY: `count` elements from `start` are owned, and zeros are a value of each.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }

    /// All elements, for writing.
    pub fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }

    /// Gives the memory of these elements back, as far as they fill huge pages: then they are zeros again. Others stay as
    /// they are. One system call, if any.
    pub fn release(&mut self, elements: Range<usize>) {
        let start: NonNull<[T]> = NonNull::from(&mut self.slice_mut()[elements]);
        let (first, bytes) = (start.cast::<u8>(), start.len() * size_of::<T>());
        let skipped = first.as_ptr().addr().next_multiple_of(HUGE) - first.as_ptr().addr();
        let whole = bytes.saturating_sub(skipped) & !(HUGE - 1);
        if whole > 0 {
            // SAFETY: the range lies within these elements, of which zeros are a value, and `&mut self` makes the access
            // exclusive. If the call fails they stay as they are.
            let _ = unsafe { madvise(first.add(skipped), whole, Advice::LinuxDontNeed) };
        }
    }
}

impl<T: Zero> Drop for Region<T> {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Asks for huge pages. Without them everything works, only slower.
fn advise(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the range is of memory that was just allocated; the advice changes no content.
    let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
}

/// Tells the system about a range of memory.
///
/// # Safety
/// As for madvise(2): the caller owns the range, and what the advice makes of its content is fine with it.
#[cfg(not(miri))]
unsafe fn madvise(start: NonNull<u8>, bytes: usize, advice: Advice) -> rustix::io::Result<()> {
    // SAFETY: as this function's contract has it.
    unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, advice) }
}

/// As above, for Miri, which has no system behind it.
///
/// # Safety
/// As above.
#[cfg(miri)]
unsafe fn madvise(start: NonNull<u8>, bytes: usize, advice: Advice) -> rustix::io::Result<()> {
    if advice == Advice::LinuxDontNeed {
        // SAFETY: the caller owns the range, and expects zeros.
        unsafe { start.write_bytes(0, bytes) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: zero is a number.
    unsafe impl Zero for u64 {}

    #[test]
    fn zeros_small_and_large() {
        for count in [0, 1, 7, HUGE / 8, HUGE] {
            let mut region = Region::<u64>::new(count);
            assert_eq!(region.slice().len(), count.max(1));
            assert!(region.slice().iter().all(|&n| n == 0));
            region.slice_mut().fill(1);
        }
    }

    #[test]
    fn whole_huge_pages_are_given_back() {
        const PAGE: usize = HUGE / 8;
        let mut region = Region::<u64>::new(4 * PAGE);
        region.slice_mut().fill(1);
        region.release(0..PAGE / 2);
        region.release(PAGE / 2..3 * PAGE + 1);
        let zeros = |range: Range<usize>| region.slice()[range].iter().filter(|&&n| n == 0).count();
        assert_eq!([0..PAGE, PAGE..3 * PAGE, 3 * PAGE..4 * PAGE].map(zeros), [0, 2 * PAGE, 0]);
    }
}
