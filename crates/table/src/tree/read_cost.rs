// SPDX-License-Identifier: Apache-2.0
//! Read cost: the cost that point reads pay for searching several runs of tables instead of one,
//! and the merge of runs that this cost pays for.
//!
//! A read that searches n tables pays for n − 1 of them. Once reads have paid as much as a merge
//! costs, the merge is due (ski rental): for any later reads and writes, reads and merges together
//! cost at most twice as much as with the best choice of merges. A merge of some neighbouring runs
//! costs less than a merge of all, and saves less: it is due when the part of the cost that it
//! saves has paid for it. Small new runs are therefore merged soon, and large ones only after many
//! reads.
//! Source: LevelDB's compaction after seeks (`allowed_seeks` in its `version_edit.h`), in which one
//! seek pays for 16 KiB; Karlin et al. 1988, "Competitive Snoopy Caching", for the bound.
//! Concurrency: counters; readers touch them once in [`READS_PER_SAMPLE`] reads of a shard.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::tables::SortedRun;

/// One in this many reads of each shard is counted, and stands for all of them.
const READS_PER_SAMPLE: u32 = 64;
/// Time to search one more table in vain while the block cache holds a fraction of the tables: 0.5
/// to 0.8 µs a read with 6 and 7 runs (docs/design/0008-caches-and-filters.md).
const SEARCH_NS: u64 = 120;
/// Time to merge one record: 7.4 s for 40 million of 6 runs (ibid.).
const MERGED_RECORD_NS: u64 = 190;
/// The number of runs, from the newest on, whose merges are compared: hostile manifests list
/// millions.
const RUNS_MAX: usize = 64;
/// Number of records whose merge takes as long as the fixed cost of a merge, two durable objects.
const RECORDS_PER_MERGE: u64 = 1 << 14;

/// The cost that reads have paid, and the price of the cheapest merge.
#[derive(Debug)]
pub(super) struct ReadCost {
    /// Tables that reads searched beyond the first, since runs were last merged.
    searches: CachePadded<AtomicU64>,
    /// The number of searches that pays for the cheapest merge.
    price: AtomicU64,
}

/// Counts the reads of a shard that its active memtable did not answer.
#[derive(Debug, Default)]
pub(super) struct ReadSampler(u32);

impl ReadSampler {
    /// Counts a read; returns true if it stands for [`READS_PER_SAMPLE`] reads.
    #[inline]
    pub(super) fn is_sampled(&mut self) -> bool {
        self.0 = self.0.wrapping_add(1);
        self.0.is_multiple_of(READS_PER_SAMPLE)
    }
}

impl ReadCost {
    /// Makes a cost of which nothing is paid; readers search `runs`.
    pub(super) fn new(runs: &[SortedRun]) -> Self {
        let price = AtomicU64::new(price_of_cheapest(runs));
        Self { searches: CachePadded::default(), price }
    }

    /// Adds a sampled read that searched `tables` tables. Returns true if a merge has just become
    /// due.
    pub(super) fn add_sample(&self, tables: usize) -> bool {
        self.add_searches(tables.saturating_sub(1) as u64 * u64::from(READS_PER_SAMPLE))
    }

    /// Adds searches; returns true if a merge has just become due.
    pub(super) fn add_searches(&self, searches: u64) -> bool {
        let before = self.searches.fetch_add(searches, Ordering::Relaxed);
        let price = self.price.load(Ordering::Relaxed);
        before < price && before.saturating_add(searches) >= price
    }

    /// Returns whether reads have paid for a merge.
    pub(super) fn is_paid(&self) -> bool {
        self.searches.load(Ordering::Relaxed) >= self.price.load(Ordering::Relaxed)
    }

    /// The widest window of `runs`, the newest first, whose merge reads have paid for.
    pub(super) fn paid_window(&self, runs: &[SortedRun]) -> Option<Range<usize>> {
        let searches = self.searches.load(Ordering::Relaxed);
        let paid = windows(runs).filter(|(_, price)| searches >= *price);
        paid.max_by_key(|(window, price)| (window.len(), u64::MAX - price))
            .map(|(window, _)| window)
    }

    /// Records that readers search `runs` from now on.
    pub(super) fn set_runs(&self, runs: &[SortedRun]) {
        self.price.store(price_of_cheapest(runs), Ordering::Relaxed);
    }

    /// Resets the paid cost, which is spent.
    pub(super) fn reset(&self) {
        self.searches.store(0, Ordering::Relaxed);
    }
}

fn price_of_cheapest(runs: &[SortedRun]) -> u64 {
    windows(runs).map(|(_, price)| price).min().unwrap_or(u64::MAX)
}

/// Windows of at least two neighbouring runs, and the number of searches that pays for the merge of
/// each. If there are many runs, compares only the newest [`RUNS_MAX`].
fn windows(runs: &[SortedRun]) -> impl Iterator<Item = (Range<usize>, u64)> {
    let records: Vec<u64> = runs.iter().take(RUNS_MAX).map(SortedRun::rows).collect();
    let compared = records.len();
    let window = move |start: usize| {
        let mut sum = 0u64;
        let sums = records[start..].iter().map(|records| {
            sum = sum.saturating_add(*records);
            sum
        });
        let sums: Vec<u64> = sums.collect();
        let merged = (2..).zip(sums.into_iter().skip(1));
        merged.map(move |(merged, sum)| (start..start + merged, price(sum, merged, runs.len())))
    };
    (0..compared).flat_map(window)
}

/// The number of searches that pays for a merge of `records` records, those of `merged` of `runs`
/// runs: the merge saves `merged - 1` of `runs - 1` searches.
fn price(records: u64, merged: usize, runs: usize) -> u64 {
    let merge_ns =
        u128::from(records.saturating_add(RECORDS_PER_MERGE)) * u128::from(MERGED_RECORD_NS);
    let price = merge_ns * (runs as u128 - 1) / (merged as u128 - 1) / u128::from(SEARCH_NS);
    u64::try_from(price).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::MemoryStore;

    use super::*;
    use crate::manifest::{SetId, TableRef};
    use crate::schema::record::RECORD;
    use crate::tables::{TableRuns, TableSource};

    fn runs(rows: &[u64]) -> Vec<SortedRun> {
        let reference = |(at, rows): (usize, &u64)| TableRef {
            set: SetId(1),
            number: at as u64,
            schema: RECORD.id,
            run: u64::from(u32::MAX) - at as u64,
            bytes: 1,
            tail_bytes: 1,
            rows: *rows,
            seq_max: 1,
            first: Default::default(),
            last: Default::default(),
        };
        let references: Vec<TableRef> = rows.iter().enumerate().map(reference).collect();
        let source = TableSource::new(Arc::new(MemoryStore::new()), 0);
        TableRuns::new(&references, &RECORD, &source).runs
    }

    #[test]
    fn a_merge_is_due_when_searches_cost_as_much() {
        const MILLION: u64 = 1_000_000;
        let runs = runs(&[MILLION, MILLION]);
        let cost = ReadCost::new(&runs);
        let price = (2 * MILLION + RECORDS_PER_MERGE) * MERGED_RECORD_NS / SEARCH_NS;
        assert!(!cost.add_searches(price - 1) && !cost.is_paid());
        assert_eq!(cost.paid_window(&runs), None);
        assert!(cost.add_searches(1), "it is due now");
        assert!(cost.is_paid() && !cost.add_searches(1), "it was due before");
        assert_eq!(cost.paid_window(&runs), Some(0..2));
        cost.reset();
        assert!(!cost.is_paid() && cost.paid_window(&runs).is_none());
    }

    #[test]
    fn one_run_is_never_merged() {
        for rows in [&[][..], &[7][..]] {
            let runs = runs(rows);
            let cost = ReadCost::new(&runs);
            assert!(!cost.add_searches(u64::MAX / 2) && !cost.is_paid());
            assert_eq!(cost.paid_window(&runs), None);
        }
    }

    #[test]
    fn small_runs_are_merged_long_before_a_large_one() {
        let runs = runs(&[100, 100, 100, 40_000_000]);
        let cost = ReadCost::new(&runs);
        cost.add_searches(100_000);
        assert_eq!(cost.paid_window(&runs), Some(0..3));
        cost.add_searches(70_000_000);
        assert_eq!(cost.paid_window(&runs), Some(0..4), "the widest that is paid for");
    }

    #[test]
    fn of_many_runs_the_newest_are_merged() {
        let runs = runs(&[1; 100_000]);
        let cost = ReadCost::new(&runs);
        assert!(!cost.is_paid());
        cost.add_searches(u64::MAX / 2);
        assert_eq!(cost.paid_window(&runs), Some(0..RUNS_MAX));
    }

    #[test]
    fn a_read_that_searches_one_table_pays_nothing() {
        let cost = ReadCost::new(&runs(&[1, 1]));
        (0..100_000).for_each(|_| assert!(!cost.add_sample(1) && !cost.add_sample(0)));
        assert!(!cost.is_paid());
        let mut sampler = ReadSampler::default();
        let sampled = (0..6_400).filter(|_| sampler.is_sampled()).count();
        assert_eq!(sampled as u32 * READS_PER_SAMPLE, 6_400);
    }
}
