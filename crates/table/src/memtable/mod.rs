//! Memtable: the records that a writer has not yet frozen, in shards of the key space.
//!
//! A shard is chosen by the highest bits of the key's last integer, so that within a group the
//! shards' records follow one another and a frozen memtable is read in key order by concatenation.
//! Concurrency: `tree` keeps a mutex around each shard; a frozen memtable is immutable.

mod arena;
mod frozen;
mod groups;
mod shard;
mod sorted;

pub use arena::{ROW_TEXT_BYTES_MAX, SHARD_BYTES_MAX};
pub(crate) use frozen::collect_group;
pub use frozen::{FrozenMemtable, FrozenRows};
pub use shard::{GroupKey, Place, Shard};

/// Bits of a key that choose its shard.
pub const SHARD_BITS: u32 = 4;
/// How many shards a memtable has: enough that a handful of threads rarely meet in one, few enough
/// that what every write touches of each stays in a core's own cache.
pub const SHARDS: usize = 1 << SHARD_BITS;

/// The shard of keys whose last integer is `order`.
#[inline]
#[must_use]
pub const fn shard_of(order: u64) -> usize {
    (order >> (64 - SHARD_BITS)) as usize
}

/// Asks the kernel for large pages under `memory`, which is read at random: with small ones most
/// reads would miss the translation buffer as well as the cache.
pub(crate) fn advise_huge_pages<T>(memory: &[T]) {
    const PAGE_BYTES: usize = 4096;
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let (start, bytes) = (memory.as_ptr() as usize, size_of_val(memory));
    let from = start.next_multiple_of(PAGE_BYTES);
    let to = (start + bytes) / PAGE_BYTES * PAGE_BYTES;
    if to < from + HUGE_PAGE_BYTES {
        return;
    }
    // SAFETY: the range lies within `memory`; the advice changes how it is mapped, not what it
    // holds. A kernel without large pages refuses, which is no loss.
    let _ = unsafe {
        rustix::mm::madvise(from as *mut _, to - from, rustix::mm::Advice::LinuxHugepage)
    };
}

/// Hints the processor that the line at `address` is read soon.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
