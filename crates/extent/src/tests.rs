// SPDX-License-Identifier: Apache-2.0
//! Segments compared with the bytes of a small file, each of which records its log and offset.

use esker_base::wire::WireInput;
use proptest::prelude::*;

use super::log_run_builder::RunPart;
use super::*;

/// The content of a file of 64 bytes: for each byte its log and the offset in it.
type Bytes = Vec<Option<(u64, u64)>>;

const FILE: u128 = 7 << 64 | 9;

fn log_place(log: u64, offset: u64) -> Option<LogPlace> {
    Some(LogPlace { set: SetId(1), log, offset })
}

fn write(bytes: &mut Bytes, segment: &Segment) {
    for at in segment.offset..segment.end() {
        bytes[at as usize] =
            segment.place.map(|place| (place.log, place.offset + at - segment.offset));
    }
}

fn content<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Bytes {
    let mut bytes = vec![None; 64];
    let mut end = 0;
    for segment in segments {
        assert!(segment.offset >= end, "in order and not overlapping");
        end = segment.end();
        write(&mut bytes, segment);
    }
    bytes
}

fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let one = (0u64..60, 1u64..20, 0u64..4, 0u64..100);
    prop::collection::vec(one, 1..40).prop_map(|all| {
        let segment = |(seq, (offset, length, log, at)): (usize, (u64, u64, u64, u64))| Segment {
            file: FILE,
            offset,
            length: length.min(64 - offset),
            place: (log > 0).then_some(()).and_then(|()| log_place(log, at)),
            checksum: (log > 1).then_some(at as u32),
            seq: seq as u64,
        };
        all.into_iter().enumerate().map(segment).collect()
    })
}

fn map_of(segments: &[Segment]) -> SegmentMap {
    let mut map = SegmentMap::default();
    segments.iter().for_each(|segment| map.insert(*segment));
    map
}

/// Symptom: a listing of a hostile file took time in proportion to the square of its lines.
/// Cause: at each period in which a line began or ended, the visit went through all phases.
/// Fix: the visit examines only phases that change. Before, this file took 2^34 steps.
#[test]
fn lines_that_begin_and_end_one_by_one_are_visited_in_linear_time() {
    const LINES: u64 = 1 << 17;
    const COUNT: u64 = 16;
    let stride = 2 * LINES;
    let line = |number: u64| {
        let first = Segment {
            place: log_place(number, 0),
            ..Segment::hole(FILE, number * stride + 2 * number, 1)
        };
        SegmentRun { first, count: COUNT, stride, log_stride: 1 }
    };
    let lines: Vec<SegmentRun> = (0..LINES).map(line).collect();
    let intervals = IntervalIndex::of_apart(&lines).expect("they are apart");
    assert!(intervals.loose_segments().is_empty());
    let (mut count, mut end) = (0, 0);
    intervals
        .for_each(&mut |segment: &Segment| {
            assert!(segment.offset >= end && segment.length == 1);
            (count, end) = (count + 1, segment.end());
            Ok::<(), ()>(())
        })
        .expect("all");
    assert_eq!(count, COUNT * LINES);
    for line in lines.iter().step_by(1_000) {
        let last = line.segment(COUNT - 1);
        assert_eq!(intervals.overlapping(&(last.offset..last.end())), [last]);
    }
}

proptest! {
    #[test]
    fn a_map_shows_the_newest_bytes(all in segments()) {
        let mut bytes = vec![None; 64];
        all.iter().for_each(|segment| write(&mut bytes, segment));
        let map = map_of(&all);
        let kept: Vec<Segment> = map.iter().collect();
        prop_assert_eq!(content(&kept), bytes);
    }

    #[test]
    fn overlays_and_merges_of_sources_show_the_newest_bytes(
        all in segments(),
        cuts in (0usize..40, 0usize..40),
        range in (0u64..64, 0u64..64),
    ) {
        let mut bytes = vec![None; 64];
        all.iter().for_each(|segment| write(&mut bytes, segment));
        let (low, high) = (cuts.0.min(cuts.1).min(all.len()), cuts.0.max(cuts.1).min(all.len()));
        // Newest first.
        let maps = [map_of(&all[high..]), map_of(&all[low..high]), map_of(&all[..low])];

        let merged = {
            let mut merge = SegmentMerge::of_lists(maps.iter().map(|map| map.iter().collect()).collect()).expect("merge");
            let mut merged = Vec::new();
            while let Some(segment) = merge.read().expect("our own segments") {
                merged.push(segment);
            }
            merged
        };
        prop_assert_eq!(content(&merged), bytes.clone());
        prop_assert!(merged.windows(2).all(|pair| !pair[0].is_followed_by(&pair[1])));

        let (start, end) = (range.0.min(range.1), range.0.max(range.1));
        let mut overlay = SegmentOverlay::new(FILE, start..end);
        for map in &maps {
            overlay.add(map.overlapping(FILE, start, end));
        }
        let pieces = overlay.pieces();
        prop_assert!(pieces.iter().all(|piece| piece.offset >= start && piece.end() <= end));
        let expected: Bytes = (0..64).map(|at| {
            if (start..end).contains(&at) { bytes[at as usize] } else { None }
        }).collect();
        prop_assert_eq!(content(pieces), expected);
        let covered: u64 = pieces.iter().map(|piece| piece.length).sum();
        prop_assert_eq!(overlay.is_covered(), covered == end - start);
    }

    #[test]
    fn segments_round_trip_through_the_log(all in segments()) {
        let mut log = SegmentLog::default();
        for (seq, operation) in all.chunks(3).enumerate() {
            let runs: Vec<_> = operation.iter().map(|segment| SegmentRun::one(*segment)).collect();
            log.add(seq as u64 * 2 + 5, &runs);
        }
        let encoded = log.pending().clone();
        let mut reader = SegmentLog::default();
        let mut decoded = Vec::new();
        let mut input = WireInput::new(&encoded);
        let mut operation = Vec::new();
        while input.left() > 0 {
            reader.decode(&mut input, &mut operation).expect("our own");
            decoded.extend(operation.iter().map(|run: &SegmentRun| run.first));
        }
        let expected: Vec<Segment> = all.iter().enumerate().map(|(at, segment)| {
            Segment { seq: (at / 3) as u64 * 2 + 5, ..*segment }
        }).collect();
        prop_assert_eq!(decoded, expected);
        for cut in 0..encoded.len() {
            let mut reader = SegmentLog::default();
            let mut input = WireInput::new(&encoded[..cut]);
            while input.left() > 0 && reader.decode(&mut input, &mut operation).is_ok() {}
        }
    }
}

#[test]
fn rows_round_trip_and_impossible_ones_are_refused() {
    let segment = Segment {
        file: FILE,
        offset: 5,
        length: 7,
        place: log_place(3, 11),
        checksum: Some(0),
        seq: 13,
    };
    assert_eq!(Segment::of_row(&segment.row()).expect("our own"), segment);
    let hole = Segment::hole(FILE, 5, u64::MAX - 5);
    assert_eq!(Segment::of_row(&hole.row()).expect("our own"), hole);
    for (column, value) in [
        (column::CHECKSUM, 2 << 32),
        (column::LENGTH, 0),
        (column::LENGTH, 13),
        (column::LOG_OFFSET, u64::MAX),
    ] {
        let mut row = segment.row();
        row.ints[column] = value;
        assert_eq!(Segment::of_row(&row).expect_err("impossible").kind(), Kind::Corrupt);
    }
}

fn runs() -> impl Strategy<Value = Vec<SegmentRun>> {
    let one = (0u64..40, 1u64..6, 1u64..7, 0u64..8, 1u64..4, 0u64..50, 0u64..9);
    prop::collection::vec(one, 1..14).prop_map(|all| {
        let run = |(seq, (offset, length, count, gap, log, at, log_gap))| {
            let (offset, length, count): (u64, u64, u64) = (offset, length, count);
            let stride = length + gap;
            let count = count.min((64 - offset).saturating_sub(length) / stride + 1);
            let (place, seq) = (log_place(log, at), seq as u64);
            let first = Segment { file: FILE, offset, length, place, checksum: None, seq };
            SegmentRun { first, count, stride, log_stride: length + log_gap }
        };
        all.into_iter().enumerate().map(run).collect()
    })
}

/// Runs of ranks that take turns: phases of one stride, each in several batches.
fn turns() -> impl Strategy<Value = Vec<SegmentRun>> {
    let pattern = (1u64..4, 1u64..5, 0u64..3, prop::collection::vec((0u64..5, 1u64..4), 1..12));
    pattern.prop_map(|(length, ranks, gap, batches)| {
        let stride = ranks * length + gap;
        let mut written = Vec::new();
        let mut done = vec![0u64; ranks as usize];
        for (seq, (rank, count)) in batches.into_iter().enumerate() {
            let rank = rank % ranks;
            let start = done[rank as usize];
            let offset = start * stride + rank * length;
            let end = offset + (count - 1) * stride + length;
            if end <= 64 {
                done[rank as usize] += count;
                let place = log_place(rank + 1, start * length);
                let seq = seq as u64;
                let first = Segment { file: FILE, offset, length, place, checksum: None, seq };
                written.push(SegmentRun { first, count, stride, log_stride: length });
            }
        }
        written
    })
}

fn check_interval_index(written: &[SegmentRun], range: (u64, u64)) {
    let mut bytes = vec![None; 64];
    for segment in written.iter().flat_map(SegmentRun::segments) {
        write(&mut bytes, &segment);
    }
    let mut buffer = SegmentBuffer::default();
    buffer.insert_batch(FILE, written);
    let intervals = buffer.interval_index(FILE).expect("few").expect("runs");
    if let Some(apart) = IntervalIndex::of_apart(written) {
        assert_eq!(content(&apart.overlapping(&(0..64))), bytes);
    }
    let mut chunked = Vec::new();
    while let Some(chunk) = Some(intervals.chunk(chunked.last().map_or(0, Segment::end), 3))
        .filter(|chunk| !chunk.is_empty())
    {
        chunked.extend(chunk);
    }
    assert_eq!(content(&chunked), bytes);
    assert_eq!(content(&intervals.overlapping(&(0..64))), bytes);
    let (start, end) = (range.0.min(range.1), range.0.max(range.1));
    let mut overlay = SegmentOverlay::new(FILE, start..end);
    overlay.add(intervals.overlapping(&(start..end)).into_iter());
    let expected: Bytes = (0..64)
        .map(|at| if (start..end).contains(&at) { bytes[at as usize] } else { None })
        .collect();
    assert_eq!(content(overlay.pieces()), expected);
    let offsets: Vec<u64> = (0..64).chain((0..64).rev()).chain((0..64).step_by(3)).collect();
    let mut found = vec![None; offsets.len()];
    intervals.find_batch(&offsets, &mut |at, run, index| found[at] = Some(run.segment(index)));
    for (&offset, batched) in offsets.iter().zip(found) {
        let segment = intervals.find(offset);
        assert_eq!(segment, batched);
        let at = segment.and_then(|segment| Some((segment.place?, offset - segment.offset)));
        let at = at.map(|(place, within)| (place.log, place.offset + within));
        assert_eq!(at, bytes[offset as usize], "offset {offset}");
    }
    for run in written {
        let nested = NestedRun::one(*run);
        assert_eq!(NestedRun::of_row(&nested.row()).expect("our own"), nested);
    }
}

proptest! {
    #[test]
    fn an_interval_index_shows_the_newest_bytes(written in runs(), range in (0u64..64, 0u64..64)) {
        check_interval_index(&written, range);
    }

    #[test]
    fn ranks_that_take_turns_are_told_apart(written in turns(), range in (0u64..64, 0u64..64)) {
        check_interval_index(&written, range);
        let segments: Vec<Segment> = written.iter().flat_map(SegmentRun::segments).collect();
        let piece = |segment: &Segment| FilePiece {
            offset: segment.offset,
            length: segment.length,
            log_offset: segment.place.map_or(0, |place| place.offset),
        };
        let pieces: Vec<FilePiece> = segments.iter().map(piece).collect();
        let log = Segment { place: log_place(1, 0), ..Segment::hole(FILE, 0, 1) };
        let mut found = Vec::new();
        find_runs(&log, &pieces, &mut found);
        let again: Vec<Segment> = found.iter().flat_map(SegmentRun::segments).collect();
        let again: Vec<FilePiece> = again.iter().map(piece).collect();
        prop_assert_eq!(again, pieces);
    }
}

/// Lines of the boxes of a file's cube, plane by plane, as ranks write them, in batches of `cut`.
fn boxes(side: u64, across: u64, cut: usize) -> Vec<(u64, Vec<FilePiece>)> {
    let bounds = |cell: u64| (cell * side / across, (cell + 1) * side / across);
    let mut batches = Vec::new();
    for rank in 0..across * across {
        let ((x, x_end), (y, y_end)) = (bounds(rank % across), bounds(rank / across));
        let (mut pieces, mut log_offset) = (Vec::new(), 0);
        for (z, y) in (0..side).flat_map(|z| (y..y_end).map(move |y| (z, y))) {
            let (offset, length) = ((z * side + y) * side + x, x_end - x);
            pieces.push(FilePiece { offset, length, log_offset });
            log_offset += length;
        }
        batches.extend(pieces.chunks(cut).map(|batch| (rank, batch.to_vec())));
    }
    batches
}

/// However batches cut lines and planes, there are few records, and every byte is found.
#[test]
fn boxes_of_ranks_are_nested_runs() {
    for (side, across, cut) in [(24, 2, 7), (25, 3, 16), (20, 4, 1), (33, 2, 1_024), (32, 2, 5)] {
        let mut batches = boxes(side, across, cut);
        let mut random = esker_base::Random::from_seed(side);
        // Each rank's batches in order, the ranks interleaved at random.
        batches.sort_by_cached_key(|_| random.below(1 << 30));
        let log_offset_of = |batch: &(u64, Vec<FilePiece>)| batch.1[0].log_offset;
        let mut in_order = batches.clone();
        in_order.sort_by_key(|batch| (batch.0, log_offset_of(batch)));
        let mut of_rank: Vec<_> = (0..across * across)
            .map(|rank| in_order.iter().filter(move |batch| batch.0 == rank))
            .collect();
        let mut buffer = SegmentBuffer::default();
        for (rank, _) in &batches {
            let (_, pieces) = of_rank[*rank as usize].next().expect("as many");
            let log = Segment { place: log_place(*rank, 0), ..Segment::hole(FILE, 0, 1) };
            let mut runs = Vec::new();
            find_runs(&log, pieces, &mut runs);
            buffer.insert_batch(FILE, &runs);
        }
        let intervals = buffer.interval_index(FILE).expect("few").expect("runs");
        let context = format!("{side} {across} {cut}");
        assert!(
            intervals.loose_segments().is_empty(),
            "{context}: {}",
            intervals.loose_segments().len()
        );
        // One for each rank, or two if a box begins in a batch's last line.
        let nested_runs: Vec<NestedRun> = intervals.nested_runs().copied().collect();
        assert!(
            nested_runs.len() as u64 <= 2 * across * across,
            "{context}: {}",
            nested_runs.len()
        );
        let again = IntervalIndex::of_disjoint(&nested_runs).expect("they are apart");
        let mut end = 0;
        let mut visit = |run: &SegmentRun, index| {
            let segment = run.segment(index);
            assert_eq!(segment.offset, end, "{context}");
            end = segment.end();
            Ok::<(), ()>(())
        };
        again.visit(&(0..u64::MAX), &mut visit).expect("all");
        assert_eq!(end, side * side * side);
        for (rank, pieces) in &batches {
            let offsets: Vec<u64> = pieces.iter().map(|piece| piece.offset).collect();
            let mut found = vec![None; offsets.len()];
            again.find_batch(&offsets, &mut |at, run, index| found[at] = Some(run.segment(index)));
            for (piece, found) in pieces.iter().zip(found) {
                let found = found.expect("it is there");
                assert_eq!(found.place, log_place(*rank, piece.log_offset), "{context}");
                assert_eq!((found.offset, found.length), (piece.offset, piece.length));
                assert_eq!(again.find(piece.offset + piece.length - 1), Some(found));
            }
        }
        for nested in nested_runs {
            assert_eq!(NestedRun::of_row(&nested.row()).expect("our own"), nested);
        }
    }
}

proptest! {
    /// A builder yields any segments in the order in which they were added.
    #[test]
    fn builders_keep_the_order(
        all in prop::collection::vec((0u64..30, 1u64..3, 1u64..7, 0u64..3, 0u64..40, 0u64..4), 1..30),
        steps in prop::collection::vec((0u64..4, 1u64..5), 0..10),
    ) {
        let mut written = Vec::new();
        let mut push = |offset, length, count, gap, at, log_gap, checksum| {
            let count = if checksum { 1 } else { count };
            let checksum = checksum.then_some(7);
            let place = log_place(1, at);
            let first = Segment { file: FILE, offset, length, place, checksum, seq: 0 };
            written.push(SegmentRun {
                first, count, stride: length + gap, log_stride: length + log_gap,
            });
        };
        for (offset, length, count, gap, at, what) in all {
            push(offset, length, count, gap, at, what / 2, what == 3);
        }
        // And some that continue.
        let mut at = 100;
        for (pause, count) in steps {
            at += pause;
            push(at * 4, 2, count, 2, at * 2, 0, false);
            at += count;
        }
        let mut builder = LogRunBuilder::new(FILE, Some((SetId(1), 1)));
        written.iter().for_each(|run| builder.push(run));
        let expected: Vec<Segment> = written.iter().flat_map(SegmentRun::segments).collect();
        let kept: Vec<Segment> = builder.segments().collect();
        prop_assert_eq!(kept, expected);
    }
}

/// Symptom: a panic where overflow is checked, else a record that readers refuse. Cause: the next
/// segment was computed modulo 2^64, so a run continued past the end of its file. Fix: such a
/// segment is not the next.
#[test]
fn runs_do_not_go_on_past_the_end_of_a_file() {
    let one = |offset: u64, log_offset: u64| Segment {
        file: FILE,
        offset,
        length: 4,
        place: log_place(1, log_offset),
        checksum: None,
        seq: 1,
    };
    let run = SegmentRun { count: 2, stride: 5, log_stride: 4, first: one(u64::MAX - 9, 100) };
    assert!(run.is_possible());
    let far = 4u64.wrapping_sub(10);
    let ends: [&[SegmentRun]; 3] = [
        &[run, SegmentRun::one(one(0, 108))],
        &[far, u64::MAX - 4, 0, 5].map(|offset| SegmentRun::one(one(offset, offset / 2))),
        &[0, 5, 10, 15].map(|at: u64| SegmentRun::one(one(at, at.wrapping_sub(14)))),
    ];
    for runs in ends {
        let mut builder = LogRunBuilder::new(FILE, Some((SetId(1), 1)));
        let possible: Vec<_> = runs.iter().filter(|run| run.is_possible()).collect();
        possible.iter().for_each(|run| builder.push(run));
        builder.close();
        let given: Vec<Segment> = possible.iter().flat_map(|run| run.segments()).collect();
        let kept: Vec<_> = builder.segments().map(|one| (one.offset, one.place)).collect();
        assert_eq!(kept, given.iter().map(|one| (one.offset, one.place)).collect::<Vec<_>>());
        for part in builder.parts() {
            assert!(!matches!(part, RunPart::Nested(nested) if !nested.is_possible()));
        }
    }
    let pieces = [u64::MAX - 14, u64::MAX - 9, u64::MAX - 4, 0, 5].map(|offset| FilePiece {
        offset,
        length: 4,
        log_offset: 0,
    });
    let mut found = Vec::new();
    find_runs(&one(0, 0), &pieces, &mut found);
    assert!(found.iter().all(SegmentRun::is_possible));
}

#[test]
fn strides_are_segments_in_several_dimensions() {
    let first = Segment {
        file: FILE,
        offset: 7,
        length: 3,
        place: log_place(1, 5),
        checksum: None,
        seq: 1,
    };
    let dimension = |count, stride, log_stride| StrideDimension { count, stride, log_stride };
    let dimensions = vec![dimension(4, 10, 3), dimension(3, 100, 12), dimension(2, 1_000, 36)];
    let strides = StridedSegments { first, dimensions };
    assert_eq!((strides.is_possible(), strides.segments()), (true, Some(24)));
    let runs = strides.runs();
    let all: Vec<_> = runs.iter().flat_map(|run| run.segments()).collect();
    let (mut expected, mut log_offset) = (Vec::new(), 5);
    for (plane, line, point) in
        (0..2).flat_map(|z| (0..3).flat_map(move |y| (0..4).map(move |x| (z, y, x))))
    {
        let offset = 7 + plane * 1_000 + line * 100 + point * 10;
        expected.push(Segment { offset, place: log_place(1, log_offset), ..first });
        log_offset += 3;
    }
    assert_eq!((runs.len(), all), (6, expected));
    let alone = StridedSegments { first, dimensions: vec![] };
    assert_eq!(alone.runs(), [SegmentRun::one(first)]);
    let long = StridedSegments { first, dimensions: vec![dimension(3 << 20, 3, 3)] };
    assert_eq!(long.runs().iter().map(|run| run.count).collect::<Vec<_>>(), [1 << 20; 3]);
    for impossible in [
        vec![dimension(0, 10, 3)],
        vec![dimension(4, 2, 3)],
        vec![dimension(4, 10, 3), dimension(0, 100, 12)],
        vec![dimension(4, 10, 3), dimension(1 << 21, 100, 12)],
        vec![dimension(4, 10, 3), dimension(2, u64::MAX - 7, 12)],
        vec![dimension(4, 10, 3), dimension(2, 100, u64::MAX - 7)],
        vec![dimension(2, 10, 3), dimension(1 << 40, 1, 1), dimension(1 << 40, 1, 1)],
    ] {
        assert!(
            !StridedSegments { first, dimensions: impossible.clone() }.is_possible(),
            "{impossible:?}"
        );
    }
    let checked = Segment { checksum: Some(1), ..first };
    assert!(
        !StridedSegments { first: checked, dimensions: vec![dimension(2, 10, 3)] }.is_possible()
    );
}

/// Symptom: all segments of a run but the first were lost. Cause: a run with a checksum was
/// accepted, and kept as one segment. Fix: it is not a run.
#[test]
fn runs_have_no_checksums() {
    let first = Segment {
        file: FILE,
        offset: 0,
        length: 4,
        place: log_place(1, 0),
        checksum: Some(7),
        seq: 1,
    };
    assert!(SegmentRun::one(first).is_possible());
    assert!(!SegmentRun { count: 2, stride: 4, log_stride: 4, first }.is_possible());
}

/// Symptom: a decoded message changed when it was sent on. Cause: a run of one was decoded with
/// strides, which no encoder writes. Fix: it is refused.
#[test]
fn runs_of_one_are_no_runs_in_a_log() {
    let first = Segment {
        file: FILE,
        offset: 0,
        length: 4,
        place: log_place(1, 0),
        checksum: None,
        seq: 0,
    };
    let run = SegmentRun { count: 2, stride: 9, log_stride: 4, first };
    let mut bytes = SegmentLog::encode_batch(&[run]);
    assert_eq!(SegmentLog::decode_batch(&bytes).expect("our own"), [run]);
    // The bytes before it: number, runs, flags, file, offset and length.
    let count = 1 + 1 + 1 + 16 + 1 + 1;
    assert_eq!(bytes[count], 2);
    for hostile in [0, 1] {
        bytes[count] = hostile;
        assert!(SegmentLog::decode_batch(&bytes).is_err());
    }
}

/// Symptom: segments of the file with the highest number were not written. Cause: files were
/// visited up to an exclusive bound. Fix: the bound is inclusive.
#[test]
fn the_last_of_all_files_is_written() {
    let mut buffer = SegmentBuffer::default();
    let runs: Vec<SegmentRun> = (0..200_000u64)
        .map(|at| {
            let (offset, log_offset) = (at * 100 + esker_base::word_hash::mix(at) % 90, at * 10);
            let (place, checksum) = (log_place(1, log_offset), None);
            let segment = Segment { file: u128::MAX, offset, length: 9, place, checksum, seq: 1 };
            SegmentRun::one(segment)
        })
        .collect();
    buffer.insert_batch(u128::MAX, &runs);
    let tables = buffer.for_tables().expect("few enough");
    let mut rows = 0;
    tables
        .rows(&mut |_| {
            rows += 1;
            Ok(())
        })
        .expect("no failure");
    let in_runs: u64 = tables
        .runs
        .iter()
        .flat_map(|intervals| intervals.nested_runs())
        .map(NestedRun::segments)
        .sum();
    let loose: usize = tables.runs.iter().map(|intervals| intervals.loose_segments().len()).sum();
    assert_eq!(rows + in_runs + loose as u64, 200_000);
    assert!(rows > 0, "single segments are rows");
}
