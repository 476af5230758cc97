// SPDX-License-Identifier: Apache-2.0
//! Prefetch targets: addresses of a shard's hash tables and filters, so that a write can prefetch
//! the memory that it will read before it locks the shard.
//!
//! A target may be stale, which costs only time: a prefetch does not fault. Every write to a large
//! memtable misses the cache a few times; started early, the misses overlap with independent work.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use super::LiveShard;
use crate::memory::prefetch;
use crate::memtable::{GROUP_BYTES, SHARD_BITS};
use crate::presence::line_of;

const LINE_BYTES: usize = 64;

/// The recent addresses of the tables of one shard.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(super) struct PrefetchTargets {
    slots: AtomicPtr<u64>,
    slots_log: AtomicU32,
    lines: [(AtomicPtr<u8>, AtomicUsize); 2],
    groups: AtomicPtr<u8>,
    group_count: AtomicUsize,
}

impl PrefetchTargets {
    /// Sets the targets to the current tables of `shard`.
    pub(super) fn set(&self, shard: &LiveShard) {
        let (slots, count) = shard.rows.slots_address();
        self.slots.store(slots.cast_mut(), Ordering::Relaxed);
        self.slots_log.store(count.checked_ilog2().unwrap_or(0), Ordering::Relaxed);
        for ((own, own_count), (lines, count)) in
            self.lines.iter().zip(shard.history.presence().lines_addresses())
        {
            own.store(lines.cast_mut(), Ordering::Relaxed);
            own_count.store(count, Ordering::Relaxed);
        }
        let (groups, count) = shard.rows.groups_address();
        self.groups.store(groups.cast_mut(), Ordering::Relaxed);
        self.group_count.store(count, Ordering::Relaxed);
    }

    /// Prefetches the slot of a key with hash `order` in a group of hash `group`, the group, and
    /// the key's lines of the presence filters.
    #[inline]
    pub(super) fn prefetch(&self, order: u64, group: u64) {
        let count = self.group_count.load(Ordering::Relaxed);
        let slot = (group >> 32) as usize & count.wrapping_sub(1);
        prefetch(self.groups.load(Ordering::Relaxed).wrapping_add(slot * GROUP_BYTES));
        let tag = ((order << SHARD_BITS >> 32) as u32).wrapping_add(group as u32);
        let log = self.slots_log.load(Ordering::Relaxed);
        let slot = tag.checked_shr(32 - log).unwrap_or(0) as usize;
        prefetch(self.slots.load(Ordering::Relaxed).wrapping_add(slot));
        for (lines, count) in &self.lines {
            let line = line_of(tag, count.load(Ordering::Relaxed));
            prefetch(lines.load(Ordering::Relaxed).wrapping_add(line * LINE_BYTES));
        }
    }
}
