// SPDX-License-Identifier: Apache-2.0
//! Segments: sequences that must survive compression, and records of runs with arbitrary numbers.

use esker_extent::{
    FilePiece, IntervalIndex, LogPlace, NestedRun, RUN, Segment, SegmentBuffer, SegmentRun,
    find_runs,
};
use esker_table::manifest::SetId;
use esker_table::schema::Row;

use crate::choices::Choices;

const FILE: u128 = 5;
const FILE_BYTES: usize = 4 << 10;
/// Records with more segments are bounded elsewhere, at a size too slow for a campaign.
const HOSTILE_SEGMENTS_MAX: u64 = 1 << 16;

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    match choices.u8() % 2 {
        0 => hostile(&mut choices),
        _ => sequences(&mut choices),
    }
}

/// Records with arbitrary numbers are refused, or are segments that are found where they are
/// listed.
fn hostile(choices: &mut Choices) {
    let mut nested_runs = Vec::new();
    let mut segments = 0;
    while !choices.rest().is_empty() && nested_runs.len() < 16 {
        let mut row = Row::default();
        for int in &mut row.ints[2..RUN.ints.len()] {
            *int = choices.u64();
        }
        row.ints[1] = FILE as u64;
        if let Ok(nested) = NestedRun::of_row(&row) {
            assert!(nested.is_possible());
            let own = nested.segments();
            if own <= HOSTILE_SEGMENTS_MAX - segments {
                segments += own;
                nested_runs.push(nested);
            }
        }
    }
    let Some(intervals) = IntervalIndex::of_disjoint(&nested_runs) else { return };
    let all = intervals.overlapping(&(0..u64::MAX));
    assert_eq!(all.len() as u64, segments);
    assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
    for segment in all.iter().step_by(7) {
        let found = intervals.find(segment.end() - 1).expect("it was listed");
        assert_eq!((found.offset, found.place), (segment.offset, segment.place));
    }
}

/// Writes of several ranks, in patterns or not, cut anywhere, overlapping or not.
fn sequences(choices: &mut Choices) {
    let mut model: Vec<Option<(u64, u64)>> = vec![None; FILE_BYTES];
    let mut buffer = SegmentBuffer::default();
    let mut at = [0u64; 4];
    let mut written = Vec::new();
    while !choices.rest().is_empty() && written.len() < 1 << 12 {
        let rank = choices.below(4);
        let length = 1 + choices.below(24) as u64;
        let step = length + choices.below(3) as u64 * length;
        let plane = choices.below(400) as u64;
        let line = 1 + choices.below(9) as u64;
        if choices.u8().is_multiple_of(3) {
            at[rank] = choices.below(FILE_BYTES) as u64;
        }
        let mut pieces = Vec::new();
        for index in 0..choices.below(40) as u64 {
            let offset = at[rank] + index % line * step + index / line * plane;
            if offset + length <= FILE_BYTES as u64 {
                let log_offset = written.len() as u64 * 32;
                pieces.push(FilePiece { offset, length, log_offset });
                written.push((rank as u64, offset, length, log_offset));
            }
        }
        let place = Some(LogPlace { set: SetId(1), log: rank as u64, offset: 0 });
        let log = Segment { place, ..Segment::hole(FILE, 0, 1) };
        for batch in pieces.chunks(1 + choices.below(12)) {
            let mut runs = Vec::new();
            find_runs(&log, batch, &mut runs);
            buffer.insert_batch(FILE, &runs);
        }
        at[rank] += step;
    }
    if written.is_empty() {
        return;
    }
    for (rank, offset, length, log_offset) in written {
        for byte in 0..length {
            model[(offset + byte) as usize] = Some((rank, log_offset + byte));
        }
    }
    let intervals = buffer.interval_index(FILE).expect("few").expect("runs");
    check(&intervals, &model);
    // And after a round trip through a table.
    let loose =
        intervals.loose_segments().iter().map(|single| NestedRun::one(SegmentRun::one(single)));
    let nested_runs: Vec<NestedRun> = intervals.nested_runs().copied().chain(loose).collect();
    let read = |nested: &NestedRun| NestedRun::of_row(&nested.row()).expect("our own");
    let again: Vec<NestedRun> = nested_runs.iter().map(read).collect();
    check(&IntervalIndex::of_disjoint(&again).expect("none overlap"), &model);
}

fn check(intervals: &IntervalIndex, model: &[Option<(u64, u64)>]) {
    let offsets: Vec<u64> = (0..model.len() as u64).collect();
    let mut found = vec![None; model.len()];
    intervals.find_batch(&offsets, &mut |at, run, index| {
        let segment = run.segment(index);
        let place = segment.place.expect("bytes are somewhere");
        found[at] = Some((place.log, place.offset + (at as u64 - segment.offset)));
    });
    assert!(found == model, "what is found is not what was written");
}
