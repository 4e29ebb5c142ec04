//! Arrays that may be large and mostly stay untouched.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::Advice;

/// A type for which all-zero bytes are a valid value, and whose values need not be dropped.
///
/// # Safety
/// All-zero bytes must be a valid value of the type, and it must be sound to free its memory without dropping it.
pub unsafe trait Zero {}

#[cfg(test)]
// SAFETY: zero is a valid `u64`, which has no drop code.
unsafe impl Zero for u64 {}

/// An array that starts as zeros, on huge pages where the system has them. Untouched parts take up address space but
/// no memory.
pub struct Region<T: Zero> {
    start: NonNull<T>,
    count: usize,
    /// The allocation, for freeing it.
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a region owns its elements as a `Box<[T]>` does, so it can be sent if they can.
unsafe impl<T: Zero + Send> Send for Region<T> {}
// SAFETY: a shared region gives out only shared references to its elements, so it can be shared if they can.
unsafe impl<T: Zero + Sync> Sync for Region<T> {}

/// Bytes of a huge page. Miri has no pages, and takes minutes to look at each byte of a real one.
const HUGE: usize = if cfg!(miri) { 4 << 10 } else { 2 << 20 };

impl<T: Zero> Region<T> {
    /// An array of `count` elements, at least one.
    pub fn new(count: usize) -> Region<T> {
        let layout = Layout::array::<T>(count.max(1)).expect("an array is far smaller than the address space");
        let bytes = layout.size();
        // Aligned by hand, since an allocation with a large alignment would be zeroed explicitly.
        let align = if bytes >= HUGE { HUGE } else { align_of::<T>() };
        let layout = Layout::from_size_align(bytes + align, 16).expect("it is far smaller than the address space");
        // SAFETY: the layout's size is not zero, since there is at least one element.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let skip = base.as_ptr().addr().next_multiple_of(align) - base.as_ptr().addr();
        // SAFETY: `skip` is at most `align`, and the allocation is `align` bytes longer than the elements, so the
        // result is within it.
        let start = unsafe { base.add(skip) };
        if align == HUGE {
            advise(start, bytes);
        }
        Region { start: start.cast(), count: count.max(1), base, layout }
    }

    /// All elements.
    pub fn slice(&self) -> &[T] {
        // SAFETY: the region owns `count` elements from `start` on, which are zeros or were written since, and zeros
        // are a valid value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }

    /// All elements, for writing.
    pub fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: the region owns `count` valid elements from `start` on, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }

    /// Returns the memory of these elements to the system, as far as they fill whole huge pages, which become zeros
    /// again. Other elements are left as they are. At most one system call.
    pub fn release(&mut self, elements: Range<usize>) {
        let start: NonNull<[T]> = NonNull::from(&mut self.slice_mut()[elements]);
        let (first, bytes) = (start.cast::<u8>(), start.len() * size_of::<T>());
        let skipped = first.as_ptr().addr().next_multiple_of(HUGE) - first.as_ptr().addr();
        let whole = bytes.saturating_sub(skipped) & !(HUGE - 1);
        if whole > 0 {
            // SAFETY: the range lies within the elements of this region, for which zeros are a valid value, and `&mut
            // self` makes the access exclusive. If the call fails, the elements stay as they are.
            let _ = unsafe { madvise(first.add(skipped), whole, Advice::LinuxDontNeed) };
        }
    }
}

impl<T: Zero> Drop for Region<T> {
    fn drop(&mut self) {
        // SAFETY: `new` allocated `base` with this layout, and it is freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Asks for huge pages. Without them everything works, only slower.
fn advise(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the range is within memory that was just allocated, and this advice does not change its content.
    let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
}

/// Advises the system about a range of memory.
///
/// # Safety
/// The caller must own the range, and what the advice does to its content (madvise(2)) must be valid for its type.
#[cfg(not(miri))]
unsafe fn madvise(start: NonNull<u8>, bytes: usize, advice: Advice) -> rustix::io::Result<()> {
    // SAFETY: the caller guarantees that it owns the range and that the effect of the advice on its content is valid.
    unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, advice) }
}

/// As above, for Miri, which cannot make the system call.
///
/// # Safety
/// As for the function above.
#[cfg(miri)]
unsafe fn madvise(start: NonNull<u8>, bytes: usize, advice: Advice) -> rustix::io::Result<()> {
    if advice == Advice::LinuxDontNeed {
        // SAFETY: the caller owns the range, and zeros are what the advice makes of it.
        unsafe { start.write_bytes(0, bytes) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
