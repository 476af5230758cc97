//! Memtable: the records that a writer has not yet frozen, in shards of the key space.
//!
//! A shard is chosen by the highest bits of the key's last integer, so that within a group the
//! shards' records follow one another and a frozen memtable is read in key order by concatenation.
//! Concurrency: `tree` keeps a mutex around each shard; a frozen memtable is immutable.

mod arena;
mod chunks;
mod frozen;
mod groups;
mod shard;
mod sorted;

pub use arena::SHARD_BYTES_MAX;
pub use chunks::Chunks;
pub(crate) use frozen::collect_group;
pub use frozen::{FrozenMemtable, FrozenRows, SortedMemtable};
pub use groups::GROUP_BYTES;
pub use shard::{GroupKey, Place, Shard};

/// Bits of a key that choose its shard.
pub const SHARD_BITS: u32 = 4;
/// How many shards a memtable has: enough that a handful of threads rarely meet in one, few enough
/// that what every write touches of each stays in a core's own cache.
pub const SHARDS: usize = 1 << SHARD_BITS;

/// A well-mixed hash of a group's integers; its low half rotates the tags of the group's records.
#[inline]
#[must_use]
pub fn group_hash(group: &[u64]) -> u64 {
    groups::hash(&std::array::from_fn(|at| group.get(at).copied().unwrap_or(0)))
}

/// The shard of keys whose last integer is `order`.
#[inline]
#[must_use]
pub const fn shard_of(order: u64) -> usize {
    (order >> (64 - SHARD_BITS)) as usize
}
