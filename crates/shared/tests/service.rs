// SPDX-License-Identifier: Apache-2.0
//! The segment service checked against a map in memory.

use std::collections::BTreeMap;

use esker_base::{Kind, Random, Result};
use esker_comm::Transport;
use esker_extent::{LogPlace, Segment, SegmentRun, StrideDimension, StridedSegments};
use esker_shared::SegmentService;
use esker_table::manifest::SetId;

use crate::support::{memory, options, run};

const FILE: u128 = 5 << 64 | 77;
const LOGS: SetId = SetId(4);

fn segment(file: u128, offset: u64, length: u64, log: u64, at: u64) -> Segment {
    let place = Some(LogPlace { set: LOGS, log, offset: at });
    Segment { file, offset, length, place, checksum: None, seq: 0 }
}

/// By offset of a file: the location of its byte.
type Bytes = BTreeMap<u64, (u64, u64)>;

fn put(bytes: &mut Bytes, segment: &Segment) {
    for at in 0..segment.length {
        match segment.place {
            Some(place) => drop(bytes.insert(segment.offset + at, (place.log, place.offset + at))),
            None => drop(bytes.remove(&(segment.offset + at))),
        }
    }
}

fn bytes_of(segments: &[Segment]) -> Bytes {
    let mut bytes = Bytes::new();
    segments.iter().for_each(|segment| put(&mut bytes, segment));
    bytes
}

fn check_look_ups<T: Transport>(
    service: &mut SegmentService<T>,
    wanted: &Bytes,
    random: &mut Random,
) -> Result<()> {
    let offsets: Vec<u64> = (0..200).map(|_| random.below(12_000)).collect();
    let found = service.get_segments(FILE, &offsets)?;
    for (offset, found) in offsets.iter().zip(&found) {
        let byte = found.and_then(|segment| {
            let place = segment.place?;
            Some((place.log, place.offset + (offset - segment.offset)))
        });
        assert_eq!(byte, wanted.get(offset).copied(), "offset {offset}");
    }
    Ok(())
}

#[test]
fn segments_are_found_by_every_rank_however_they_are_asked_for() {
    for seed in 0..12 {
        let (ranks, per_node, servers) = [(5, 2, 1), (4, 4, 3), (1, 1, 1)][seed as usize % 3];
        let store = memory();
        let slice_bytes = [64, 1_000, 1 << 20][seed as usize % 2];
        let done =
            run(&store, (ranks, per_node), &[], &options(servers, slice_bytes), |mut job| {
                let service = job.segments();
                let me = service.rank();
                let mut wanted = Bytes::new();
                let mut random = Random::from_seed(seed);
                for _ in 0..5 {
                    // One rank after another, so that the order is known.
                    for rank in 0..ranks {
                        let (mut batch, mut log_offset) = (Vec::new(), random.below(1 << 20));
                        for _ in 0..random.below(40) {
                            let (offset, length) = (random.below(9_000), 1 + random.below(300));
                            let log = u64::from(rank);
                            batch.push(segment(FILE, offset, length, log, log_offset));
                            log_offset += length;
                        }
                        let (length, count) = (1 + random.below(90), 1 + random.below(50));
                        let stride = length * (1 + random.below(4));
                        let first = segment(FILE, random.below(500), length, 100, log_offset);
                        let run = SegmentRun { first, count, stride, log_stride: length };
                        let hole = Segment::hole(FILE, random.below(9_000), 1 + random.below(900));
                        batch.iter().for_each(|segment| put(&mut wanted, segment));
                        run.segments().for_each(|segment| put(&mut wanted, &segment));
                        put(&mut wanted, &hole);
                        if rank == me.0 {
                            let first = service.put_segments(&batch)?;
                            let second = service.put_runs(&[run])?;
                            let third = service.put_segments(&[hole])?;
                            // In any order: each was sent in its own order.
                            service.wait(third)?;
                            service.wait(first)?;
                            service.wait(second)?;
                        }
                        service.barrier()?;
                    }
                    let range = service.get_range(FILE, 0..40_000)?;
                    assert!(bytes_of(&range) == wanted, "seed {seed}");
                    let mut at = 0;
                    for piece in &range {
                        assert_eq!(piece.offset, at, "no gaps");
                        at = piece.end();
                    }
                    assert_eq!(at, 40_000);
                    check_look_ups(service, &wanted, &mut random)?;
                    assert_eq!(service.locate(FILE, 100_000)?, None);
                    let end = wanted.last_key_value().map_or(0, |(last, _)| last + 1);
                    assert_eq!(service.end(FILE)?, end);
                    service.barrier()?;
                }
                Ok(())
            });
        done.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
    }
}

/// Boxes of an array of 30 by 20 by 10 cells of 4 bytes, as ranks of BTIO have them.
#[test]
fn boxes_of_an_array_are_put_as_one_descriptor_each() {
    let store = memory();
    let done = run(&store, (3, 1), &[], &options(1, 777), |mut job| {
        let service = job.segments();
        let me = service.rank().0;
        let cell = |x: u64, y: u64, z: u64| ((z * 20 + y) * 30 + x) * 4;
        let mut wanted = Bytes::new();
        for rank in 0..3_u64 {
            // 10 by 20 by 10 cells, line by line in the rank's log.
            let first = segment(FILE, cell(rank * 10, 0, 0), 40, rank, 500);
            let lines = StrideDimension { count: 20, stride: cell(0, 1, 0), log_stride: 40 };
            let planes = StrideDimension { count: 10, stride: cell(0, 0, 1), log_stride: 20 * 40 };
            let cube = StridedSegments { first, dimensions: vec![lines, planes] };
            for (line, (z, y)) in (0..10).flat_map(|z| (0..20).map(move |y| (z, y))).enumerate() {
                let at = 500 + line as u64 * 40;
                put(&mut wanted, &segment(FILE, cell(rank * 10, y, z), 40, rank, at));
            }
            if rank == u64::from(me) {
                let ticket = service.put_strides(&cube)?;
                service.wait(ticket)?;
            }
            let endless = StrideDimension { count: u64::MAX, ..planes };
            let endless = StridedSegments { dimensions: vec![lines, endless], ..cube };
            let refused = service.put_strides(&endless).map(drop);
            assert_eq!(refused.expect_err("it has no end").kind(), Kind::Invalid);
        }
        service.barrier()?;
        let all = service.get_range(FILE, 0..cell(0, 0, 10))?;
        assert_eq!(bytes_of(&all), wanted);
        assert_eq!(wanted.len(), 30 * 20 * 10 * 4);
        service.barrier()
    });
    done.expect("job");
}

#[test]
fn a_snapshot_stays_as_it_was_and_is_listed_in_chunks() {
    let store = memory();
    let done = run(&store, (3, 1), &[], &options(1, 100), |mut job| {
        let service = job.segments();
        let me = service.rank();
        let own: Vec<Segment> = (0..50)
            .map(|turn| segment(FILE, (turn * 3 + u64::from(me.0)) * 10, 10, 1, turn * 10))
            .collect();
        let ticket = service.put_segments(&own)?;
        service.wait(ticket)?;
        service.barrier()?;
        let snapshot = service.snapshot(FILE)?;
        service.barrier()?;
        let freed = if me.0 == 1 { service.remove(FILE)? } else { Vec::new() };
        assert_eq!(freed.iter().map(|segment| segment.length).sum::<u64>() == 1_500, me.0 == 1);
        service.barrier()?;
        assert_eq!((service.end(FILE)?, snapshot.end()), (0, 1_500));
        assert!(service.get_range(FILE, 0..2_000)?.iter().all(|piece| piece.place.is_none()));
        let (mut from, mut listed) = (0, 0);
        loop {
            let chunk = snapshot.chunk(from, 7)?;
            let Some(last) = chunk.last() else { break };
            assert!(chunk.len() <= 7 && chunk[0].offset == from);
            (from, listed) = (last.end(), listed + chunk.len());
        }
        assert_eq!((from, listed), (1_500, 150));
        service.barrier()
    });
    done.expect("job");
}

#[test]
fn log_ranges_lead_back_to_files() {
    let store = memory();
    let done = run(&store, (2, 1), &[], &options(1, 50), |mut job| {
        let service = job.segments();
        if service.rank().0 == 0 {
            let run = SegmentRun {
                first: segment(FILE, 0, 20, 3, 100),
                count: 10,
                stride: 60,
                log_stride: 20,
            };
            let ticket = service.put_runs(&[run])?;
            service.wait(ticket)?;
            let ticket = service.put_segments(&[segment(FILE + 1, 5, 30, 3, 300)])?;
            service.wait(ticket)?;
        }
        service.barrier()?;
        let mut found = service.holders(LOGS, 3, 130..310)?;
        found.sort_by_key(|segment| segment.place.map(|place| place.offset));
        let mut log_offset = 130;
        for segment in &found {
            let place = segment.place.expect("a place");
            assert_eq!(place.offset, log_offset);
            log_offset += segment.length;
            let expected = match place.offset.checked_sub(300) {
                Some(at) => (FILE + 1, 5 + at),
                None => (FILE, (place.offset - 100) / 20 * 60 + (place.offset - 100) % 20),
            };
            assert_eq!((segment.file, segment.offset), expected);
        }
        assert_eq!(log_offset, 310);
        assert!(service.holders(LOGS, 2, 0..1_000)?.is_empty());
        service.barrier()
    });
    done.expect("job");
}

#[test]
fn thousands_of_puts_that_nobody_waits_for_keep_memory_bounded() {
    let store = memory();
    let done = run(&store, (3, 1), &[], &options(1, 1 << 12), |mut job| {
        let service = job.segments();
        let me = u64::from(service.rank().0);
        // All ranks send to all at once.
        for batch in 0..300_u64 {
            let offset = |turn: u64| ((batch * 64 + turn) * 3 + me) * 100;
            let batch: Vec<Segment> = (0..64)
                .map(|turn| segment(FILE, offset(turn), 100, me, (batch * 64 + turn) * 100))
                .collect();
            let _ = service.put_segments(&batch)?;
        }
        service.drain()?;
        service.barrier()?;
        let snapshot = service.snapshot(FILE)?;
        assert_eq!(snapshot.end(), 300 * 64 * 300);
        service.barrier()?;
        let counters = service.counters();
        assert!(counters.buffered_bytes_max < 8 << 20, "{counters:?}");
        Ok(())
    });
    done.expect("job");
}

/// Symptom: an owner answered a range with all its segments at once, however many.
/// Fix: it answers with some, and the caller asks again for the rest.
#[test]
fn ranges_of_more_segments_than_an_answer_has_come_in_turns() {
    const COUNT: u64 = 150_000;
    let store = memory();
    let done = run(&store, (2, 1), &[], &options(1, 1 << 16), |mut job| {
        let service = job.segments();
        let is_first = service.rank().0 == 0;
        // Lengths and locations that do not form a run.
        let mut random = Random::from_seed(5);
        let (mut all, mut offset) = (Vec::new(), 0);
        for number in 0..COUNT {
            let length = 1 + random.below(7);
            all.push(segment(FILE, offset, length, 3, number * 100 + random.below(50)));
            offset += length + random.below(3);
        }
        if is_first {
            let _ = service.put_segments(&all)?;
            service.drain()?;
        }
        service.barrier()?;
        let bytes: u64 = all.iter().map(|segment| segment.length).sum();
        let sum = |found: &[Segment]| {
            let placed = found.iter().filter(|segment| segment.place.is_some());
            placed.map(|segment| segment.length).sum::<u64>()
        };
        // One more far away, so that scan steps become long and find little.
        let far = segment(FILE, 1 << 50, 5, 3, 1 << 40);
        if !is_first {
            let ticket = service.put_segments(&[far])?;
            service.wait(ticket)?;
        }
        service.barrier()?;
        for to in [offset, u64::MAX] {
            let found = service.get_range(FILE, 0..to)?;
            assert_eq!(sum(&found), bytes + if to == offset { 0 } else { 5 });
            let placed = found.iter().filter(|segment| segment.place.is_some());
            let cut = COUNT..COUNT + 500;
            assert!(cut.contains(&(placed.count() as u64)), "segments are whole within slices");
        }
        let crowd = service.holders(LOGS, 3, 0..COUNT * 100 + 100);
        assert_eq!(crowd.expect_err("too many").kind(), Kind::TooLarge);
        assert!(sum(&service.holders(LOGS, 3, 5_000..90_000)?) > 1_000);
        service.barrier()?;
        if is_first {
            assert_eq!(sum(&service.truncate(FILE, 1_000)?), bytes + 5 - sum(&all_below(&all)));
            let mut left = service.get_range(FILE, 0..u64::MAX)?;
            left.retain(|piece| piece.place.is_some());
            assert_eq!(bytes_of(&left), bytes_of(&all_below(&all)));
        }
        service.barrier()
    });
    done.expect("job");
}

/// The part of `all` below byte 1,000.
fn all_below(all: &[Segment]) -> Vec<Segment> {
    let below = all.iter().filter(|segment| segment.offset < 1_000);
    below.map(|segment| segment.part(segment.offset, segment.end().min(1_000))).collect()
}

#[test]
fn what_no_owner_could_have_is_refused() {
    let store = memory();
    let done = run(&store, (2, 1), &[], &options(1, 50), |mut job| {
        let service = job.segments();
        let impossible = Segment { length: 0, ..segment(FILE, 3, 1, 1, 1) };
        let refused = service.put_segments(&[impossible]).map(drop);
        assert_eq!(refused.expect_err("it has no bytes").kind(), Kind::Invalid);
        let lookup = service.locate(FILE, u64::MAX);
        assert_eq!(lookup.expect_err("no byte is there").kind(), Kind::Invalid);
        service.barrier()
    });
    done.expect("job");
}

#[test]
fn of_writes_at_the_same_time_all_readers_see_the_same() {
    let store = memory();
    let done = run(&store, (4, 1), &[], &options(1, 1_000), |mut job| {
        let mut file = job.open("/same", Some(0o644))?;
        let me = job.segments().rank().0;
        job.write(&mut file, 0, &[1 + me as u8; 10_000])?;
        job.sync(&mut file)?;
        job.barrier()?;
        let bytes = job.read(&mut file, 0, 10_000)?;
        // Each slice is whole, and from one of the ranks.
        for slice in bytes.chunks(1_000) {
            assert!((1..=4).contains(&slice[0]) && slice.iter().all(|byte| *byte == slice[0]));
        }
        job.barrier()?;
        Ok(bytes)
    });
    let seen = done.expect("job");
    assert!(seen.iter().all(|bytes| *bytes == seen[0]));
}
