// SPDX-License-Identifier: Apache-2.0
//! Rate of the feature pass: 100 M records of a trace in a file become features in 10 seconds.
//!
//! ```text
//! cargo test --release -p esker-advisor --test main -- --ignored --nocapture feature_rate
//! ```
//! The file is in `TMPDIR`, and in the page cache when it is read, if that has room for it. Ranks
//! take turns, so that every record is of another rank than the one before, and each rank has
//! several files open: the pass looks up its state for each record.

use std::fs::File;
use std::io::BufWriter;

use esker_advisor::trace::{
    TraceFile, TraceOperation, TraceReader, TraceRecord, TraceWriter, features,
};
use esker_base::Random;
use esker_base::clock::{Clock, SystemClock};

use crate::trace_files::origin;

const RECORDS: u64 = 100_000_000;
const SECONDS_MAX: f64 = 10.0;

const RANKS: u64 = 256;
const FILES: u64 = 1_000;

/// One in this many calls of a rank is of metadata.
const METADATA_EVERY: u64 = 16;

/// Writes the trace, and returns the bytes that its calls transfer.
fn write_trace(file: &File) -> u64 {
    let output = BufWriter::with_capacity(1 << 20, file);
    let mut writer = TraceWriter::new(output, "trace", origin()).expect("a file");
    let path = |file: u64| format!("/scratch/job/part-{file}");
    let files: Vec<TraceFile> =
        (0..FILES).map(|file| writer.file(path(file).as_bytes()).expect("a path")).collect();
    let mut random = Random::from_seed(9);
    let (mut positions, mut transferred) = ([0; RANKS as usize], 0);
    for number in 0..RECORDS {
        let (rank, call) = (number % RANKS, number / RANKS);
        let file = files[((rank * 7 + random.below(4)) % FILES) as usize];
        let position = &mut positions[rank as usize];
        let begin_ns = call * 100_000 + rank;
        let operation = match call % METADATA_EVERY {
            0 => TraceOperation::Stat,
            call if call % 3 == 0 => TraceOperation::Write,
            _ => TraceOperation::Read,
        };
        let bytes = if operation.is_transfer() { 4_096 << random.below(5) } else { 0 };
        let offset = if bytes == 0 { 0 } else { *position };
        *position += bytes + 512 * random.below(2);
        transferred += bytes;
        let record = TraceRecord::new(rank as u32, operation);
        let (end_ns, result) = (begin_ns + 20_000 + random.below(9_999), bytes as i64);
        let record = TraceRecord { file, offset, bytes, begin_ns, end_ns, result, ..record };
        writer.push(&record).expect("the disk has room");
    }
    writer.finish().expect("the disk has room");
    transferred
}

#[test]
#[ignore = "writes several gigabytes; for a release build on a quiet machine"]
fn feature_rate_of_a_hundred_million_records() {
    let file = tempfile::tempfile().expect("a file");
    let transferred = write_trace(&file);
    let bytes = file.metadata().expect("known").len();
    let begin_ns = SystemClock.monotonic_ns();
    let reader = TraceReader::open(file, "trace").expect("a trace");
    let found = features(&reader, 65_536).expect("features");
    let seconds = (SystemClock.monotonic_ns() - begin_ns) as f64 / 1e9;
    eprintln!("{RECORDS} records, {:.1} GB: {seconds:.2} s", bytes as f64 / 1e9);
    assert_eq!(found.requests() + found.other_metadata, RECORDS);
    assert_eq!((found.bytes(), u64::from(found.processes)), (transferred, RANKS));
    assert!(seconds < SECONDS_MAX, "{seconds:.2} s");
}
