// SPDX-License-Identifier: Apache-2.0
//! Memtable: the records that a writer has not yet frozen, in shards of the key space.
//!
//! The highest bits of the key's last integer choose the shard, so that within a group the records
//! of one shard come before those of the next, and a frozen memtable is read in key order by
//! concatenation.
//! Concurrency: `tree` keeps a mutex around each shard; a frozen memtable is immutable.

mod arena;
mod arena_pool;
mod frozen;
mod groups;
mod shard;
mod sorted;

pub use arena::SHARD_BYTES_MAX;
pub use arena_pool::ArenaPool;
pub(crate) use frozen::collect_group;
pub use frozen::{FrozenMemtable, FrozenRows, SortedMemtable};
pub use groups::GROUP_BYTES;
pub use shard::{GroupKey, KeyProbe, Shard};

/// Bits of a key that choose its shard.
pub const SHARD_BITS: u32 = 4;
/// Number of shards of a memtable: enough that a handful of threads rarely contend for one, few
/// enough that the state of each that every write touches stays in a core's own cache.
pub const SHARDS: usize = 1 << SHARD_BITS;

/// Returns a well-mixed hash of a group's integers; its low half rotates the tags of the group's
/// records.
#[inline]
#[must_use]
pub(crate) fn group_hash(group: &[u64]) -> u64 {
    groups::hash(&std::array::from_fn(|at| group.get(at).copied().unwrap_or(0)))
}

/// Returns the shard of keys whose last integer is `order`.
#[inline]
#[must_use]
pub(crate) const fn shard_of(order: u64) -> usize {
    (order >> (64 - SHARD_BITS)) as usize
}
