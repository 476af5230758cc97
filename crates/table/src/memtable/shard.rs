// SPDX-License-Identifier: Apache-2.0
//! Shard: the records of one part of the key space, found by a hash table over an arena.
//!
//! Slots hold `tag << 32 | position`, with linear probing from the slot that the tag's high bits
//! name. The table doubles when it is 11 to 13 sixteenths full. Shards fill alike, so each has a
//! threshold of its own, and they double in turn. If the last integer of a key is a hash, the tag
//! is its high bits, rotated by a number derived from the group. A walk over the slots then visits
//! each group's records nearly in key order, and sorting a shard takes little more than one pass
//! (`sorted.rs`).
//! Concurrency: one owner at a time; the tree keeps a mutex around each shard.

use std::sync::Arc;

use esker_base::word_hash::mix;

use super::arena::{Arena, RecordHeader};
use super::arena_pool::ArenaPool;
use super::groups::{KeyGroup, KeyGroups, hash, salt};
use super::{SHARD_BITS, SHARDS};
use crate::memory::{ZeroedArray, prefetch};
use crate::schema::{KEY_INTS_MAX, Key, Row, Schema};

const SLOTS_MIN: usize = 256;
/// Used slots, of [`LOAD_PARTS`], at which shard 0 doubles; each further shard doubles one part
/// later.
const LOAD_MIN: usize = 88;
const LOAD_PARTS: usize = 128;
const _: () = assert!((LOAD_MIN + SHARDS) * 16 <= LOAD_PARTS * 13);

/// Integers that name a group, padded with 0.
pub type GroupKey = [u64; KEY_INTS_MAX - 1];

/// Records of one part of the key space.
#[derive(Debug)]
pub struct Shard {
    schema: &'static Schema,
    chunks: Arc<ArenaPool>,
    /// See [`LOAD_MIN`].
    load_max: usize,
    slots: ZeroedArray<u64>,
    rows: usize,
    /// Number of rows for which there are slots.
    rows_max: usize,
    pub(super) arena: Arena,
    pub(super) groups: KeyGroups,
    bytes: usize,
}

/// The slot of a key, whether it is present or not.
#[derive(Clone, Copy, Debug)]
pub struct KeyProbe {
    group: u32,
    group_slot: usize,
    tag: u32,
    slot: usize,
    /// Position of the record, or 0.
    position: u32,
}

impl KeyProbe {
    /// Returns whether there is a record.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.position != 0
    }
}

impl Shard {
    /// Makes the empty shard `number`, which takes its memory from `chunks`.
    pub fn new(schema: &'static Schema, number: usize, chunks: Arc<ArenaPool>) -> Self {
        Self {
            schema,
            load_max: LOAD_MIN + number,
            slots: ZeroedArray::default(),
            rows: 0,
            rows_max: 0,
            arena: Arena::new(chunks.clone()),
            chunks,
            groups: KeyGroups::default(),
            bytes: 0,
        }
    }

    /// The number of records, not counting overwritten ones.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Memory that the shard takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.groups.bytes()
    }

    pub(super) fn slots(&self) -> &[u64] {
        &self.slots
    }

    /// Tags of the records, nearly in ascending order.
    pub fn tags(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(|&&entry| entry != 0).map(|entry| (entry >> 32) as u32)
    }

    #[inline]
    fn group_key(&self, key: &Key) -> GroupKey {
        std::array::from_fn(|at| if at < self.schema.group_ints { key.ints[at] } else { 0 })
    }

    /// The state of the group of the key of `probe`, which was found just before.
    pub(crate) fn group_mut(&mut self, probe: &KeyProbe) -> &mut KeyGroup {
        self.groups.at_mut(probe.group_slot)
    }

    /// The tag of a key: nearly in the order of the group's keys, if that is a hash.
    pub(super) fn tag(&self, salt: u32, order: u64, string: &[u8]) -> u32 {
        if self.schema.hash_of.is_some() {
            return ((order << SHARD_BITS >> 32) as u32).wrapping_add(salt);
        }
        let spread = mix(order ^ u64::from(salt));
        let tail = if string.is_empty() { 0 } else { xxhash_rust::xxh3::xxh3_64(string) };
        (mix(spread ^ tail) >> 32) as u32
    }

    fn first_slot(&self, tag: u32) -> usize {
        // The number of slots is a power of two of at least SLOTS_MIN.
        (tag >> (32 - self.slots.len().trailing_zeros())) as usize
    }

    /// Hints to the processor that `key` is looked up soon. Prefetches its group and its slot
    /// together, which are otherwise read one after the other. Returns the key's tag.
    #[inline]
    pub fn prefetch(&self, key: &Key) -> u32 {
        let hash = hash(&self.group_key(key));
        self.groups.prefetch(hash);
        let tag = self.tag(hash as u32, self.schema.last_key_int(&key.ints), key.string);
        if !self.slots.is_empty() {
            prefetch(&raw const self.slots[self.first_slot(tag)]);
        }
        tag
    }

    /// Returns the address of the slots and their number.
    pub(crate) fn slots_address(&self) -> (*const u64, usize) {
        (self.slots.as_ptr(), self.slots.len())
    }

    /// Returns the address of the groups and the number that there is room for. Each takes
    /// [`super::GROUP_BYTES`].
    pub(crate) fn groups_address(&self) -> (*const u8, usize) {
        let (groups, count) = self.groups.slots();
        (groups.cast(), count)
    }

    /// Puts a record in stored form unless its key is present here, or elsewhere according to
    /// `is_elsewhere`, which gets its tag. Returns its probe if it was put.
    ///
    /// The record is written before the key is looked up: that gives a prefetch that was started
    /// earlier time to finish.
    #[inline]
    pub fn insert(
        &mut self,
        key: &Key,
        row: &Row,
        is_elsewhere: impl FnOnce(u32) -> bool,
    ) -> Option<KeyProbe> {
        if self.rows == self.rows_max {
            self.grow();
        }
        let group_key = self.group_key(key);
        let (group_slot, group) = self.groups.add(&group_key);
        let order = self.schema.last_key_int(&key.ints);
        let previous = self.groups.at_mut(group_slot).newest;
        let header = RecordHeader { group, previous };
        let (position, allocated) = self.arena.push(self.schema, header, row);
        self.bytes += allocated;
        let tag = self.tag(salt(&group_key), order, key.string);
        let (slot, taken) = self.probe(group, tag, order, key.string);
        if taken != 0 || is_elsewhere(tag) {
            self.arena.pop(position);
            return None;
        }
        self.groups.at_mut(group_slot).newest = position;
        self.slots[slot] = u64::from(tag) << 32 | u64::from(position);
        self.rows += 1;
        Some(KeyProbe { group, group_slot, tag, slot, position })
    }

    /// Returns the position of `key`, if it is here.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<u32> {
        if self.rows == 0 {
            return None;
        }
        let group_key = self.group_key(key);
        let (group, _) = self.groups.find(&group_key)?;
        let order = self.schema.last_key_int(&key.ints);
        let tag = self.tag(salt(&group_key), order, key.string);
        let (_, position) = self.probe(group, tag, order, key.string);
        (position != 0).then_some(position)
    }

    /// Returns the probe of `key`, and makes room for it if it is absent.
    #[inline]
    pub(crate) fn locate_key(&mut self, key: &Key) -> KeyProbe {
        if self.rows == self.rows_max {
            self.grow();
        }
        let group_key = self.group_key(key);
        let (group_slot, group) = self.groups.add(&group_key);
        let order = self.schema.last_key_int(&key.ints);
        let tag = self.tag(salt(&group_key), order, key.string);
        let (slot, position) = self.probe(group, tag, order, key.string);
        KeyProbe { group, group_slot, tag, slot, position }
    }

    /// Returns the slot of a key, and its position or 0.
    #[inline]
    fn probe(&self, group: u32, tag: u32, order: u64, string: &[u8]) -> (usize, u32) {
        let mut slot = self.first_slot(tag);
        loop {
            let entry = self.slots[slot];
            if entry == 0 {
                return (slot, 0);
            }
            if (entry >> 32) as u32 == tag {
                let position = entry as u32;
                // Equal strings have equal hashes; other orders are compared.
                if self.arena.header(self.schema, position).group == group
                    && (self.schema.hash_of.is_some()
                        || self.arena.last_key_int(self.schema, position) == order)
                    && self.arena.key_string(self.schema, position) == string
                {
                    return (slot, position);
                }
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    #[cold]
    fn grow(&mut self) {
        let count = (self.slots.len() * 2).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, self.chunks.take_slots(count));
        self.bytes += (count - old.len()) * 8;
        for &entry in old.iter().filter(|&&entry| entry != 0) {
            let mut slot = self.first_slot((entry >> 32) as u32);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (count - 1);
            }
            self.slots[slot] = entry;
        }
        self.rows_max = count * self.load_max / LOAD_PARTS;
        self.chunks.outgrow(old);
    }

    /// Returns the record at `probe`, in stored form, if there is one.
    pub fn at(&self, probe: &KeyProbe) -> Option<Row<'_>> {
        (probe.position != 0).then(|| self.row(probe.position))
    }

    /// Puts a record in stored form at `probe`, which was found for its key just before.
    pub fn put(&mut self, probe: &KeyProbe, row: &Row) {
        if probe.is_taken() {
            self.arena.supersede(probe.position);
        }
        let group = self.groups.at_mut(probe.group_slot);
        let header = RecordHeader { group: probe.group, previous: group.newest };
        let (position, allocated) = self.arena.push(self.schema, header, row);
        group.newest = position;
        self.slots[probe.slot] = u64::from(probe.tag) << 32 | u64::from(position);
        self.rows += usize::from(probe.position == 0);
        self.bytes += allocated;
    }

    /// The record at `position`, in stored form.
    #[inline(always)]
    pub fn row(&self, position: u32) -> Row<'_> {
        let (mut row, group) = self.arena.row(self.schema, position);
        let group = self.groups.keys()[group as usize];
        for (at, int) in group.iter().enumerate() {
            if at < self.schema.group_ints {
                row.ints[at] = *int;
            }
        }
        row
    }

    /// Returns the positions of the newest records of `group` with an order of at least `from`, by
    /// key.
    pub(crate) fn group_positions(&self, group: &GroupKey, from: u64) -> Vec<u32> {
        let Some((_, group)) = self.groups.find(group) else {
            return Vec::new();
        };
        let mut keyed: Vec<(u64, u32)> = Vec::new();
        let mut position = group.newest;
        while position != 0 {
            if !self.arena.is_superseded(position) {
                let order = self.arena.last_key_int(self.schema, position);
                if order >= from {
                    keyed.push((order, position));
                }
            }
            position = self.arena.header(self.schema, position).previous;
        }
        let string = |position: u32| self.arena.key_string(self.schema, position);
        keyed.sort_unstable_by(|(a_order, a), (b_order, b)| {
            a_order.cmp(b_order).then_with(|| string(*a).cmp(string(*b)))
        });
        keyed.into_iter().map(|(_, position)| position).collect()
    }
}
