// SPDX-License-Identifier: Apache-2.0
//! Sorted shard: its newest records by key, from one walk over the hash table.
//!
//! Within a group the walk visits tags in rotated order (`shard.rs`): first those that wrapped past
//! the group's rotation, then the others. Each group therefore gets two buckets; only neighbours
//! that probing displaced are left to sort.

use super::groups::salt;
use super::shard::Shard;
use crate::schema::Schema;

/// Maximum distance by which insertion moves a displaced record; beyond it, a full sort takes over.
const SHIFT_MAX: usize = 64;

/// Positions of a shard's records: groups in order of their keys, and each group's records by key.
#[derive(Debug)]
pub struct SortedShard {
    /// Positions in the shard's arena.
    pub positions: Vec<u32>,
    /// For each group, in key order: its number in the shard and the end of its positions.
    pub groups: Vec<(u32, u32)>,
}

impl SortedShard {
    /// Sorts `shard`.
    pub fn of(schema: &'static Schema, shard: &Shard) -> Self {
        let hashed = schema.hash_of.is_some();
        let keys = shard.groups.keys();
        let salts: Vec<u32> = keys.iter().map(salt).collect();
        // Two buckets per group: tags from the rotation point on, then those that wrapped.
        let bucket_of = |entry: u64| {
            let group = shard.arena.header(schema, entry as u32).group as usize;
            let tag = (entry >> 32) as u32;
            group * 2 + usize::from(hashed && tag < salts[group])
        };
        let group_count = keys.len();
        let single = group_count == 1;
        let mut entries = Vec::with_capacity(shard.rows());
        let mut buckets = Vec::with_capacity(if single { 0 } else { shard.rows() });
        let mut counts = vec![0u32; group_count * 2];
        let slots = shard.slots();
        for (at, &entry) in slots.iter().enumerate() {
            if entry == 0 {
                continue;
            }
            if let Some(&ahead) = slots.get(at + 16)
                && ahead != 0
                && !single
            {
                shard.arena.prefetch(ahead as u32);
            }
            let bucket = if single {
                usize::from(hashed && ((entry >> 32) as u32) < salts[0])
            } else {
                bucket_of(entry)
            };
            counts[bucket] += 1;
            entries.push(entry);
            if !single {
                buckets.push(bucket as u32);
            }
        }
        let mut order: Vec<u32> = (0..group_count as u32).collect();
        order.sort_unstable_by_key(|&group| keys[group as usize]);
        let mut starts = vec![0u32; group_count * 2];
        let mut groups = Vec::with_capacity(group_count);
        let mut end = 0;
        for &group in &order {
            for bucket in [group as usize * 2, group as usize * 2 + 1] {
                starts[bucket] = end;
                end += counts[bucket];
            }
            groups.push((group, end));
        }
        let mut placed = vec![0u64; entries.len()];
        for (at, &entry) in entries.iter().enumerate() {
            let bucket = if single {
                usize::from(hashed && ((entry >> 32) as u32) < salts[0])
            } else {
                buckets[at] as usize
            };
            placed[starts[bucket] as usize] = entry;
            starts[bucket] += 1;
        }
        let mut start = 0;
        for &(group, end) in &groups {
            put_right(schema, shard, salts[group as usize], &mut placed[start..end as usize]);
            start = end as usize;
        }
        Self { positions: placed.into_iter().map(|entry| entry as u32).collect(), groups }
    }
}

/// Sorts the entries of one group by key; they are nearly sorted already if keys are hashes.
fn put_right(schema: &Schema, shard: &Shard, salt: u32, entries: &mut [u64]) {
    let by_record =
        |a: &u64, b: &u64| {
            let (a, b) = (*a as u32, *b as u32);
            shard.arena.last_key_int(schema, a).cmp(&shard.arena.last_key_int(schema, b)).then_with(
                || shard.arena.key_string(schema, a).cmp(shard.arena.key_string(schema, b)),
            )
        };
    if schema.hash_of.is_none() {
        entries.sort_unstable_by(by_record);
        return;
    }
    // Undoing the rotation yields 32 bits of the hash; the records are compared only if those tie.
    let hash = |entry: u64| ((entry >> 32) as u32).wrapping_sub(salt);
    let after = |a: &u64, b: &u64| match hash(*a).cmp(&hash(*b)) {
        std::cmp::Ordering::Equal => by_record(a, b).is_gt(),
        unequal => unequal.is_gt(),
    };
    for at in 1..entries.len() {
        let entry = entries[at];
        let mut to = at;
        while to > 0 && after(&entries[to - 1], &entry) {
            if at - to == SHIFT_MAX {
                entries[to] = entry;
                entries
                    .sort_unstable_by(|a, b| hash(*a).cmp(&hash(*b)).then_with(|| by_record(a, b)));
                return;
            }
            entries[to] = entries[to - 1];
            to -= 1;
        }
        entries[to] = entry;
    }
}
