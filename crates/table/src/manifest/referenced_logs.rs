// SPDX-License-Identifier: Apache-2.0
//! Referenced logs: the data logs of another set to which the records of a set refer.
//!
//! Layout: docs/format/manifest.md. This file is its only encoder and decoder.
//! A squash refers to many logs, and writers number theirs consecutively, so ranges of numbers are
//! compact in memory and in the manifest.
//! Invariant: ranges ascend, and at least one number is missing between any two.

use std::collections::BTreeMap;

use esker_base::wire::{WireDamage, WireInput, put_varint};

use super::{ENTRIES_MAX, SetId};

/// Maximum number of ranges. If there are more, neighbours are joined: the numbers between them
/// then count as referred to, which may keep a log too long but never loses one.
const RANGES_MAX: usize = 1 << 16;
const _: () = assert!(RANGES_MAX <= ENTRIES_MAX);

/// Logs of one set to which the records of another refer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferencedLogs {
    /// The set in whose folder they are.
    pub set: SetId,
    /// Their numbers.
    pub numbers: LogNumbers,
}

/// Numbers of logs, as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogNumbers {
    /// The last number of each range, keyed by its first.
    ranges: BTreeMap<u64, u64>,
}

impl LogNumbers {
    /// Adds `number`.
    pub fn insert(&mut self, number: u64) {
        self.insert_range(number, number);
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: &Self) {
        for (first, last) in &other.ranges {
            self.insert_range(*first, *last);
        }
    }

    /// Returns whether `number` is among them.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    /// Returns whether there are none.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn insert_range(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        if let Some((before, end)) = self.ranges.range(..=first).next_back() {
            if last <= *end {
                return;
            }
            if end.checked_add(1).is_none_or(|next| first <= next) {
                first = *before;
            }
        }
        let reach = last.saturating_add(1);
        while let Some((at, end)) = self.ranges.range(first..=reach).next_back() {
            last = last.max(*end);
            let at = *at;
            self.ranges.remove(&at);
        }
        self.ranges.insert(first, last);
        let mut gap = 1;
        while self.ranges.len() > RANGES_MAX {
            self.close_gaps(gap);
            gap *= 2;
        }
    }

    /// Joins ranges between which at most `gap_max` numbers are missing.
    fn close_gaps(&mut self, gap_max: u64) {
        let mut joined: BTreeMap<u64, u64> = BTreeMap::new();
        for (first, last) in std::mem::take(&mut self.ranges) {
            match joined.last_entry() {
                Some(mut before) if first - *before.get() - 1 <= gap_max => {
                    *before.get_mut() = last
                }
                _ => drop(joined.insert(first, last)),
            }
        }
        self.ranges = joined;
    }
}

/// Fails with the bound that readers expect if there are too many.
pub(super) fn check_bounds(all: &[ReferencedLogs]) -> Result<(), &'static str> {
    let ranges: usize = all.iter().map(|logs| logs.numbers.ranges.len()).sum();
    if ranges > ENTRIES_MAX {
        return Err("at most 4,194,304 ranges of data logs");
    }
    Ok(())
}

/// Fails with the order that readers expect if entries are out of order.
pub(super) fn check_order(all: &[ReferencedLogs]) -> Result<(), &'static str> {
    if !all.is_sorted_by(|a, b| a.set < b.set) || all.iter().any(|logs| logs.numbers.is_empty()) {
        return Err("data logs of other sets in order");
    }
    Ok(())
}

pub(super) fn encode(all: &[ReferencedLogs], out: &mut Vec<u8>) {
    put_varint(out, all.len() as u64);
    for logs in all {
        out.extend_from_slice(&logs.set.0.to_le_bytes());
        put_varint(out, logs.numbers.ranges.len() as u64);
        // The lowest number at which the next range may begin.
        let mut from = 0;
        for (first, last) in &logs.numbers.ranges {
            put_varint(out, first - from);
            put_varint(out, last - first);
            from = last.saturating_add(2);
        }
    }
}

pub(super) fn decode(input: &mut WireInput) -> Result<Vec<ReferencedLogs>, WireDamage> {
    let (mut all, mut ranges_left) = (Vec::new(), ENTRIES_MAX);
    for _ in 0..input.varint_max(ENTRIES_MAX, "a number of sets whose data logs are referred to")? {
        let set = SetId(input.u128()?);
        let mut numbers = LogNumbers::default();
        let mut from = Some(0u64);
        let ranges_max = RANGES_MAX.min(ranges_left);
        for _ in 0..input.varint_max(ranges_max, "a number of ranges of data logs")? {
            ranges_left -= 1;
            let (gap, more) = (input.varint()?, input.varint()?);
            let first = from.and_then(|from| from.checked_add(gap));
            let last = first.and_then(|first| first.checked_add(more));
            let (Some(first), Some(last)) = (first, last) else {
                return Err(input.damage("ranges of data logs in order"));
            };
            numbers.ranges.insert(first, last);
            from = last.checked_add(2);
        }
        all.push(ReferencedLogs { set, numbers });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use esker_base::Random;

    use super::*;

    fn ranges(numbers: &LogNumbers) -> Vec<(u64, u64)> {
        numbers.ranges.iter().map(|(first, last)| (*first, *last)).collect()
    }

    #[test]
    fn numbers_next_to_each_other_are_one_range() {
        let mut numbers = LogNumbers::default();
        for number in [5, 7, 6, 1, u64::MAX, 0, 5, u64::MAX - 1] {
            numbers.insert(number);
        }
        assert_eq!(ranges(&numbers), [(0, 1), (5, 7), (u64::MAX - 1, u64::MAX)]);
        let mut other = LogNumbers::default();
        [2, 3, 4, 9].into_iter().for_each(|number| other.insert(number));
        other.extend(&numbers);
        assert_eq!(ranges(&other), [(0, 7), (9, 9), (u64::MAX - 1, u64::MAX)]);
    }

    #[test]
    fn numbers_are_those_of_a_set() {
        for seed in 0..50 {
            let mut random = Random::from_seed(seed);
            let (mut numbers, mut expected) = (LogNumbers::default(), BTreeSet::new());
            for _ in 0..200 {
                let first = random.below(300);
                let last = first + random.below(4);
                numbers.insert_range(first, last);
                expected.extend(first..=last);
                for number in 0..310 {
                    assert_eq!(numbers.contains(number), expected.contains(&number), "{seed}");
                }
            }
            let sorted = ranges(&numbers);
            assert!(sorted.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{sorted:?}");
        }
    }

    #[test]
    fn too_many_ranges_become_fewer_and_lose_none() {
        let mut numbers = LogNumbers::default();
        let count = RANGES_MAX as u64 + 100;
        (0..count).for_each(|number| numbers.insert(number * 10));
        assert!(numbers.ranges.len() <= RANGES_MAX);
        assert!((0..count).all(|number| numbers.contains(number * 10)));
    }
}
