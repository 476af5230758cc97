// SPDX-License-Identifier: Apache-2.0
//! Coalescing: merges many small ranges of one object into few read requests.
//!
//! ```text
//! ranges   [a]  [b]............................[c]
//! runs     [a gap b]                           [c]
//! ```
//! Invariants: (1) starts and ends of runs ascend, and every range is within a run; (2) a run
//! longer than [`RUN_BYTES_MAX`] is only as long as its longest range, so that gaps never cost
//! unbounded memory.

use std::ops::Range;

use bytes::Bytes;

use super::COALESCE_GAP_BYTES;
use crate::{Error, Kind, Result};

/// Maximum bytes of a coalesced run: beyond that a request is mostly transfer.
pub const RUN_BYTES_MAX: u64 = 8 << 20;

const _: () = assert!(COALESCE_GAP_BYTES <= RUN_BYTES_MAX);

/// Returns the runs that cover `ranges`, in ascending order; empty ranges need none.
#[must_use]
pub fn runs(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<&Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable_by_key(|range| (range.start, range.end));
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        if let Some(run) = runs.last_mut() {
            let near = range.start <= run.end.saturating_add(COALESCE_GAP_BYTES);
            if range.end <= run.end || (near && range.end - run.start <= RUN_BYTES_MAX) {
                run.end = run.end.max(range.end);
                continue;
            }
        }
        runs.push(range.clone());
    }
    runs
}

/// Reads `ranges` of `name` and returns them in their own order. Calls `fetch` once, for all runs
/// and the empty ranges; only the store can tell whether the object reaches as far as an empty
/// range.
pub(super) fn read(
    name: &str,
    ranges: &[Range<u64>],
    fetch: impl FnOnce(Vec<Range<u64>>) -> Result<Vec<Bytes>>,
) -> Result<Vec<Bytes>> {
    for range in ranges {
        check_range(name, range)?;
    }
    let runs = runs(ranges);
    let empty = ranges.iter().filter(|range| range.is_empty());
    let pieces = fetch(runs.iter().chain(empty).cloned().collect())?;
    let slice = |range: &Range<u64>| {
        if range.is_empty() {
            return Bytes::new();
        }
        // Ends ascend like starts: of the runs that start early enough, the last reaches furthest.
        let place = runs.partition_point(|run| run.start <= range.start) - 1;
        let skipped = range.start - runs[place].start;
        let start = usize::try_from(skipped).expect("a run was read into memory");
        let bytes = usize::try_from(range.end - range.start).expect("a run was read into memory");
        pieces[place].slice(start..start + bytes)
    };
    Ok(ranges.iter().map(slice).collect())
}

/// Checks that `range` does not end before it starts.
pub(super) fn check_range(name: &str, range: &Range<u64>) -> Result<()> {
    if range.start > range.end {
        let what = format!("{name}: the range {range:?} runs backwards");
        return Err(Error::new(Kind::Invalid, what));
    }
    Ok(())
}

/// Returns `Corrupt`: `name` has only `bytes`, fewer than `range` needs.
pub(super) fn too_short(name: &str, range: &Range<u64>, bytes: u64) -> Error {
    let what = format!("expected bytes {}..{}, the object has {bytes}", range.start, range.end);
    Error::corrupt(name, bytes, what)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant")]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    #[test]
    fn neighbours_share_a_run() {
        let gap = COALESCE_GAP_BYTES;
        assert_eq!(runs(&[0..10, 10..20]), [0..20]);
        assert_eq!(runs(&[10..20, 0..5]), [0..20]);
        assert_eq!(runs(&[0..10, 10 + gap..11 + gap]), [0..11 + gap]);
        assert_eq!(runs(&[0..10, 11 + gap..12 + gap]), [0..10, 11 + gap..12 + gap]);
        assert_eq!(runs(&[5..5]), []);
        assert_eq!(runs(&[u64::MAX - 1..u64::MAX, 0..1]), [0..1, u64::MAX - 1..u64::MAX]);
    }

    #[test]
    fn gaps_never_make_a_run_unbounded() {
        let ranges = (0..4096).map(|i| i * COALESCE_GAP_BYTES..i * COALESCE_GAP_BYTES + 1);
        let runs = runs(&ranges.collect::<Vec<_>>());
        assert!(runs.iter().all(|run| run.end - run.start <= RUN_BYTES_MAX));
        assert!(runs.len() < 64);
    }

    #[test]
    fn backwards_is_invalid() {
        #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
        let error = read("x", &[3..2], |_| Ok(Vec::new())).expect_err("backwards");
        assert_eq!(error.kind(), Kind::Invalid);
    }

    proptest! {
        #[test]
        fn every_range_gets_its_bytes(
            ranges in prop::collection::vec((0_u64..40 << 20, 0_u64..10 << 20), 0..30)
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(at, bytes)| at..at + bytes).collect();
            // A stand-in object whose every piece identifies its offset.
            static DATA: LazyLock<Bytes> =
                LazyLock::new(|| (0..50 << 20).map(|i: u32| (i >> 3) as u8).collect());
            let slice = |r: Range<u64>| DATA.slice(r.start as usize..r.end as usize);
            let fetch = |runs: Vec<Range<u64>>| Ok(runs.into_iter().map(slice).collect());
            let found = read("x", &ranges, fetch).expect("all there");
            prop_assert_eq!(found.len(), ranges.len());
            for (range, bytes) in ranges.iter().zip(found) {
                prop_assert!(bytes == slice(range.clone()));
            }
        }
    }
}
