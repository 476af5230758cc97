// SPDX-License-Identifier: Apache-2.0
//! Key ranges: the input of each worker of a merge, with about the same number of blocks each.

use esker_base::Result;

use crate::schema::{Key, KeyBuffer};
use crate::tables::TableRuns;

/// Minimum number of blocks per range: fewer would make tables needlessly small.
const RANGE_BLOCKS_MIN: usize = 128;
/// Approximate number of blocks whose first keys are candidates for bounds.
const SAMPLES: usize = 8192;
/// Ranges per thread, so that a slow range does not delay the end.
const RANGES_PER_THREAD: usize = 4;
/// Maximum number of ranges for which numbers of tables and logs leave room.
pub const RANGES_MAX: usize = 4095;

/// Keys from `from` up to `end`, exclusive.
#[derive(Clone, Debug)]
pub struct KeyRange {
    /// Its first key.
    pub from: KeyBuffer,
    /// The first key of the next range; `None` for the last.
    pub end: Option<KeyBuffer>,
}

/// Splits the keys of `layers` for `threads` threads. Cost: with several threads, the tail of every
/// table that is not open.
///
/// # Errors
/// `Corrupt`, and errors of the store.
pub fn split_keys(layers: &[&TableRuns], threads: usize) -> Result<Vec<KeyRange>> {
    let handles = || layers.iter().flat_map(|tables| &tables.runs).flat_map(|run| &run.tables);
    let mut blocks = 0;
    if threads > 1 {
        for handle in handles() {
            blocks += handle.open()?.index().blocks();
        }
    }
    let wanted = if threads > 1 { threads * RANGES_PER_THREAD } else { 1 };
    let ranges = wanted.min(blocks / RANGE_BLOCKS_MIN).clamp(1, RANGES_MAX);
    let mut samples: Vec<KeyBuffer> = Vec::new();
    if ranges > 1 {
        let stride = (blocks / SAMPLES).max(1);
        for handle in handles() {
            let index = handle.open()?.index();
            let firsts = (0..index.blocks()).step_by(stride).map(|block| index.first(block));
            samples.extend(firsts.filter(|first| handle.reference.shows(&first.key())));
        }
        samples.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        samples.dedup();
    }
    let mut bounds: Vec<KeyBuffer> = (1..ranges)
        .filter_map(|range| samples.get(range * samples.len() / ranges).cloned())
        .filter(|bound| bound.key() > Key::FIRST)
        .collect();
    bounds.dedup();
    let mut split = Vec::with_capacity(bounds.len() + 1);
    let mut from = KeyBuffer::from(Key::FIRST);
    for bound in bounds {
        split.push(KeyRange { from, end: Some(bound.clone()) });
        from = bound;
    }
    split.push(KeyRange { from, end: None });
    Ok(split)
}
