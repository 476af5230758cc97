// SPDX-License-Identifier: Apache-2.0
//! Groups of a shard: half a cache line each, found by the group's integers.
//!
//! Every write looks up its group, so the fields that a write needs are together: linear probing
//! over entries of 32 bytes.

use esker_base::word_hash::mix;

use super::GroupKey;
use crate::memory::prefetch;

const SLOTS_MIN: usize = 8;

/// The state of one group in a shard.
#[repr(align(32))]
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyGroup {
    key: GroupKey,
    /// Its number in the shard plus one; 0 for an empty slot.
    number: u32,
    /// Position of its newest record.
    pub newest: u32,
    /// Its number in the shard's log plus one; 0 if the log has not named it.
    pub logged: u32,
}

/// Bytes of a group.
pub const GROUP_BYTES: usize = size_of::<KeyGroup>();

/// The groups of a shard.
#[derive(Debug, Default)]
pub struct KeyGroups {
    slots: Vec<KeyGroup>,
    /// Integers of each group by number.
    keys: Vec<GroupKey>,
}

/// Returns a well-mixed hash of a group's integers.
#[inline]
pub fn hash(key: &GroupKey) -> u64 {
    key.iter().fold(0, |hash, int| mix(hash ^ int))
}

/// Returns the rotation of the tags of a group's records (`shard.rs`).
#[inline]
pub(crate) fn salt(key: &GroupKey) -> u32 {
    hash(key) as u32
}

impl KeyGroups {
    /// Integers of each group by number.
    pub fn keys(&self) -> &[GroupKey] {
        &self.keys
    }

    /// Memory that the groups take, in bytes.
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<KeyGroup>() + self.keys.capacity() * size_of::<GroupKey>()
    }

    /// Returns the slot of `key`, or the empty slot where it would go.
    #[inline]
    fn slot(&self, key: &GroupKey) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = (hash(key) >> 32) as usize & mask;
        while self.slots[slot].number != 0 && self.slots[slot].key != *key {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Returns the address of the slots and their number; the high half of a group's hash selects
    /// its slot.
    pub fn slots(&self) -> (*const KeyGroup, usize) {
        (self.slots.as_ptr(), self.slots.len())
    }

    /// Hints to the processor that a group of this hash is looked up soon.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(slot) = self.slots.get((hash >> 32) as usize & self.slots.len().wrapping_sub(1))
        {
            prefetch(slot);
        }
    }

    /// Returns the number and the state of `key`, if it is here.
    #[inline]
    pub fn find(&self, key: &GroupKey) -> Option<(u32, &KeyGroup)> {
        if self.keys.is_empty() {
            return None;
        }
        let group = &self.slots[self.slot(key)];
        (group.number != 0).then(|| (group.number - 1, group))
    }

    /// Returns the slot and the number of `key`; adds it if it is not here.
    #[inline]
    pub fn add(&mut self, key: &GroupKey) -> (usize, u32) {
        if self.keys.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let slot = self.slot(key);
        if self.slots[slot].number == 0 {
            self.keys.push(*key);
            let number = u32::try_from(self.keys.len()).expect("SHARD_BYTES_MAX bounds the groups");
            self.slots[slot] = KeyGroup { key: *key, number, ..KeyGroup::default() };
        }
        (slot, self.slots[slot].number - 1)
    }

    /// The group in `slot`, which [`KeyGroups::add`] returned; no group may have been added since.
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: usize) -> &mut KeyGroup {
        &mut self.slots[slot]
    }

    fn grow(&mut self) {
        let count = (self.slots.len() * 2).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![KeyGroup::default(); count]);
        for group in old.into_iter().filter(|group| group.number != 0) {
            let slot = self.slot(&group.key);
            self.slots[slot] = group;
        }
    }
}
