// SPDX-License-Identifier: Apache-2.0
//! Zeroed arrays on huge pages, for memory that is read at random.
//!
//! With small pages, most random reads into hundreds of megabytes miss the TLB as well as the
//! cache, and every 4 KiB costs a page fault on first touch. Arrays of at least one huge page are
//! mapped at its alignment, and the kernel is asked to back them with huge pages; smaller ones come
//! from the allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const HUGE_PAGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;
/// Bytes of a line of the processor's cache.
const LINE_BYTES: usize = 64;

/// Types for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes must be a valid value, and the type must not need dropping.
pub unsafe trait Zeroable {}

// SAFETY: integers.
unsafe impl Zeroable for u8 {}
// SAFETY: integers.
unsafe impl Zeroable for u64 {}
// SAFETY: integers.
unsafe impl Zeroable for AtomicU64 {}

/// An array of `T`, all zero at first.
pub struct ZeroedArray<T: Zeroable> {
    start: NonNull<T>,
    count: usize,
    /// The mapping that holds the array, unless it comes from the allocator.
    mapping: Option<(NonNull<u8>, usize)>,
}

// SAFETY: the array owns its memory.
unsafe impl<T: Zeroable + Send> Send for ZeroedArray<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Zeroable + Sync> Sync for ZeroedArray<T> {}

impl<T: Zeroable> ZeroedArray<T> {
    /// Makes an array of `count` zeros.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let layout = Layout::array::<T>(count).expect("callers bound their arrays");
        if layout.size() == 0 {
            return Self { start: NonNull::dangling(), count, mapping: None };
        }
        if layout.size() >= HUGE_PAGE_BYTES
            && let Some(mapped) = Self::map(count, layout.size())
        {
            return mapped;
        }
        // SAFETY: the size is not 0.
        let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, count, mapping: None }
    }

    /// Makes an array of `count` zeros whose pages have all been touched.
    #[must_use]
    pub fn written(count: usize) -> Self {
        let array = Self::new(count);
        let start = array.start.as_ptr().cast::<u8>();
        for offset in (0..count * size_of::<T>()).step_by(PAGE_BYTES) {
            // SAFETY: the byte is within the array, which is not shared yet, and stays zero.
            unsafe { start.add(offset).write_volatile(0) };
        }
        array
    }

    fn map(count: usize, bytes: usize) -> Option<Self> {
        // One page more, so that an aligned start is inside.
        let mapped_bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)? + HUGE_PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping aliases nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, protection, flags) }
            .ok()?;
        let base = NonNull::new(base.cast::<u8>())?;
        let skip = base.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skip` is less than the page that was added.
        let start = unsafe { base.as_ptr().add(skip) };
        // SAFETY: the range is within the mapping. A kernel without huge pages refuses the advice,
        // which does no harm.
        let _ = unsafe { madvise(start.cast(), mapped_bytes - skip, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast::<T>())?;
        Some(Self { start, count, mapping: Some((base, mapped_bytes)) })
    }
}

impl<T: Zeroable> Drop for ZeroedArray<T> {
    fn drop(&mut self) {
        let layout = Layout::array::<T>(self.count).expect("checked when it was made");
        match self.mapping {
            // SAFETY: the mapping is ours and nothing borrows from it any more.
            Some((base, bytes)) => drop(unsafe { munmap(base.as_ptr().cast(), bytes) }),
            None if layout.size() == 0 => {}
            // SAFETY: allocated in `new` with this layout.
            None => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
        }
    }
}

impl<T: Zeroable> Default for ZeroedArray<T> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<T: Zeroable> Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `count` initialised values (zero or written since) start there.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: Zeroable> DerefMut for ZeroedArray<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl<T: Zeroable> fmt::Debug for ZeroedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZeroedArray").field("count", &self.count).finish()
    }
}

/// Hints to the processor that the line at `address` is read soon. Any address is allowed.
#[inline]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, even at an invalid address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Begins to fetch all of a value's own bytes.
#[inline]
pub(crate) fn prefetch_value<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>()).step_by(LINE_BYTES).for_each(|at| prefetch(start.wrapping_add(at)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_all_sizes_are_zero_and_hold_what_is_written() {
        for count in [0, 1, 1_000, HUGE_PAGE_BYTES / 8, HUGE_PAGE_BYTES / 8 + 1, 1 << 20] {
            for mut array in [ZeroedArray::<u64>::new(count), ZeroedArray::written(count)] {
                assert!(array.len() == count && array.iter().all(|&value| value == 0));
                for (index, value) in array.iter_mut().enumerate() {
                    *value = index as u64;
                }
                assert!(array.iter().enumerate().all(|(index, &value)| value == index as u64));
            }
        }
    }
}
