// SPDX-License-Identifier: Apache-2.0
//! Describe: a rank's writes as descriptors, strides of as many dimensions as necessary.

use esker_extent::{FilePiece, Segment, StrideDimension, StridedSegments, find_runs};

/// Describes `pieces`, whose bytes are in order in the log of `log`, by few descriptors.
pub(super) fn describe(log: &Segment, pieces: &[FilePiece]) -> Vec<StridedSegments> {
    let mut runs = Vec::new();
    find_runs(log, pieces, &mut runs);
    let dimensions = |count, stride, log_stride| match count {
        1 => Vec::new(),
        _ => vec![StrideDimension { count, stride, log_stride }],
    };
    let mut all: Vec<StridedSegments> = runs
        .iter()
        .map(|run| StridedSegments {
            first: run.first,
            dimensions: dimensions(run.count, run.stride, run.log_stride),
        })
        .collect();
    loop {
        let joined = join(&all);
        if joined.len() == all.len() {
            return all;
        }
        all = joined;
    }
}

/// Joins neighbours that are alike and equally spaced into one, with one more dimension.
fn join(all: &[StridedSegments]) -> Vec<StridedSegments> {
    let mut joined = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let mut strides = all[at].clone();
        let distance = |index: usize| distance(all.get(index)?, all.get(index + 1)?);
        let mut count = 1;
        if let Some((stride, log_stride)) = distance(at) {
            count +=
                (at..).take_while(|index| distance(*index) == Some((stride, log_stride))).count();
            strides.dimensions.push(StrideDimension { count: count as u64, stride, log_stride });
        }
        joined.push(strides);
        at += count;
    }
    joined
}

/// Distance from `first` to `later`, in file and log, if they are alike.
fn distance(first: &StridedSegments, later: &StridedSegments) -> Option<(u64, u64)> {
    let (from, to) = (first.first.place?, later.first.place?);
    let is_alike = (first.first.length, &first.dimensions)
        == (later.first.length, &later.dimensions)
        && (from.set, from.log) == (to.set, to.log);
    let stride = later.first.offset.checked_sub(first.first.offset)?;
    let log_stride = to.offset.checked_sub(from.offset)?;
    is_alike.then_some((stride, log_stride))
}

#[cfg(test)]
mod tests {
    use esker_table::manifest::SetId;

    use super::super::pattern::{PatternSize, WritePattern};
    use super::super::{described, log_of};
    use super::*;

    #[test]
    fn descriptors_say_what_the_batches_do() {
        let patterns = [WritePattern::Strided(10), WritePattern::Tile(10), WritePattern::Btio(24)];
        for pattern in patterns.into_iter().chain([WritePattern::Random(10)]) {
            let segments = 24 * 24 * 4 * 8;
            let size = PatternSize { pattern, clients: 16, segments, batch: 100, shuffled: false };
            let batches = size.batches().expect("a possible size");
            let all = described(SetId(9), &batches);
            let mut said: Vec<Segment> = all
                .iter()
                .inspect(|strides| assert!(strides.is_possible()))
                .flat_map(|strides| strides.runs().into_iter().flat_map(|run| run.segments()))
                .collect();
            let mut written: Vec<Segment> = batches
                .iter()
                .flat_map(|batch| batch.pieces.iter().map(|piece| (batch.client, *piece)))
                .map(|(client, FilePiece { offset, length, log_offset })| {
                    let log = log_of(SetId(9), client);
                    let mut place = log.place.expect("a log");
                    place.offset = log_offset;
                    Segment { offset, length, place: Some(place), ..log }
                })
                .collect();
            said.sort_unstable_by_key(|segment| segment.offset);
            written.sort_unstable_by_key(|segment| segment.offset);
            assert_eq!(said, written, "{pattern:?}");
            match pattern {
                // One per rank, or at most one per cell of a rank in each step.
                WritePattern::Strided(_) | WritePattern::Tile(_) => assert_eq!(all.len(), 16),
                WritePattern::Btio(_) => assert!(all.len() <= 16 * 4 * 8, "{}", all.len()),
                WritePattern::Random(_) => assert!(all.len() > 1_000),
            }
        }
    }
}
