// SPDX-License-Identifier: Apache-2.0
//! Segment map: the non-overlapping segments of a memtable; a newer segment cuts older ones.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{LogPlace, Segment};

/// Approximate memory of an entry.
const ENTRY_BYTES: usize = 120;

/// Segments by file and end.
#[derive(Clone, Debug, Default)]
pub struct SegmentMap {
    entries: BTreeMap<(u128, u64), MappedSegment>,
}

/// A segment without its key.
#[derive(Clone, Copy, Debug)]
struct MappedSegment {
    offset: u64,
    seq: u64,
    place: Option<LogPlace>,
    checksum: Option<u32>,
}

fn segment((file, end): (u128, u64), entry: &MappedSegment) -> Segment {
    let MappedSegment { offset, seq, place, checksum } = *entry;
    Segment { file, offset, length: end - offset, place, checksum, seq }
}

impl SegmentMap {
    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether there are any of `file`.
    #[must_use]
    pub fn has(&self, file: u128) -> bool {
        self.entries.range((file, 0)..=(file, u64::MAX)).next().is_some()
    }

    /// Returns the files that have segments, in order.
    pub fn files(&self) -> impl Iterator<Item = u128> {
        let next = |file: u128| self.entries.range((file, 0)..).next().map(|(key, _)| key.0);
        std::iter::successors(next(0), move |file| next(file.checked_add(1)?))
    }

    /// The number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory that they take, in bytes, approximately.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.len() * ENTRY_BYTES
    }

    fn put(&mut self, segment: &Segment) {
        let Segment { offset, seq, place, checksum, .. } = *segment;
        let entry = MappedSegment { offset, seq, place, checksum };
        self.entries.insert((segment.file, segment.end()), entry);
    }

    /// Adds `new`, which is newer than all that are here; joins it to the previous segment if it
    /// continues that.
    ///
    /// # Panics
    /// If it is empty.
    pub fn insert(&mut self, mut new: Segment) {
        assert!(new.length > 0, "a segment has bytes");
        self.remove(new.file, new.offset..new.end());
        let before = (new.file, new.offset);
        if let Some(entry) = self.entries.get(&before) {
            let old = segment(before, entry);
            if old.is_followed_by(&new) {
                self.entries.remove(&before);
                new = old.joined(&new);
            }
        }
        self.put(&new);
    }

    /// Removes the parts of segments of `file` that are in `range`.
    pub fn remove(&mut self, file: u128, range: Range<u64>) {
        // None for a write at the end, which is common, and then without an allocation.
        let overlapping: Vec<Segment> = self.overlapping(file, range.start, range.end).collect();
        for old in overlapping {
            self.entries.remove(&(old.file, old.end()));
            if old.offset < range.start {
                self.put(&old.part(old.offset, range.start));
            }
            if old.end() > range.end {
                self.put(&old.part(range.end, old.end()));
            }
        }
    }

    /// Removes and returns the segments of `file`, in order.
    pub fn take_file(&mut self, file: u128) -> Vec<Segment> {
        let of_file = self.entries.range((file, 0)..=(file, u64::MAX));
        let taken: Vec<Segment> = of_file.map(|(key, entry)| segment(*key, entry)).collect();
        for segment in &taken {
            self.entries.remove(&(file, segment.end()));
        }
        taken
    }

    /// All segments in key order.
    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        self.entries.iter().map(|(key, entry)| segment(*key, entry))
    }

    /// Returns the segments of `file` that end after `start` and begin before `end`, in order.
    pub fn overlapping(&self, file: u128, start: u64, end: u64) -> impl Iterator<Item = Segment> {
        self.entries
            .range((file, start.saturating_add(1))..=(file, u64::MAX))
            .take_while(move |(_, entry)| entry.offset < end)
            .map(|(key, entry)| segment(*key, entry))
    }
}
