// SPDX-License-Identifier: Apache-2.0
//! Golden bytes: the encoders still write exactly the bytes that docs/format shows.

use esker_extent::{LogPlace, Segment, SegmentLog, SegmentRun};
use esker_table::internals::{ChunkOrigin, LogBlock};
use esker_table::{LOG_MAGIC, LogId};

use crate::golden_document::assert_documented;
use crate::records::SET;

const FIRST_CHUNK: ChunkOrigin =
    ChunkOrigin { log: LogId { set: SET, number: 1 << 32 }, offset: LOG_MAGIC.len() as u64 };

#[test]
fn log_of_segments() {
    let log_place = |offset| Some(LogPlace { set: SET, log: 1 << 32, offset });
    let segment = |offset, length, place, checksum| Segment {
        file: 7,
        offset,
        length,
        place,
        checksum,
        seq: 0,
    };
    let mut segments = SegmentLog::default();
    segments.add(1, &[SegmentRun::one(segment(0, 1 << 20, log_place(0), Some(0x1234_5678)))]);
    let second = segment(1 << 20, 1 << 20, log_place(1 << 20), Some(0x9ABC_DEF0));
    segments.add(2, &[SegmentRun::one(second)]);
    segments.add(3, &[SegmentRun::one(segment(4_096, 8_192, None, None))]);
    let first = segment(8 << 20, 4_096, log_place(2 << 20), None);
    segments.add(4, &[SegmentRun { first, count: 256, stride: 16_384, log_stride: 4_096 }]);
    let mut chunk = LogBlock::default();
    chunk.take_family(segments.pending());
    assert_documented("wal.md", "segments", chunk.seal(&FIRST_CHUNK, 0));
}
