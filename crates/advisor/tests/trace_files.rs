// SPDX-License-Identifier: Apache-2.0
//! Trace files: round trips, truncation at every length, a change of every byte, golden bytes,
//! other readers and writers, and features.

use std::process::Command;

use esker_advisor::trace::{
    ColumnSelection, TraceBatch, TraceFile, TraceOperation, TraceOrigin, TraceReader, TraceRecord,
    TraceWriter, features,
};
use esker_base::{Kind, Random};

pub fn origin() -> TraceOrigin {
    let (program, source) = ("tests".to_owned(), "synthetic".to_owned());
    TraceOrigin { program, source, epoch_ns: 1_700_000_000_000_000_000 }
}

/// Writes a trace with `write`.
pub fn trace(write: impl FnOnce(&mut TraceWriter<Vec<u8>>)) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), "trace", origin()).expect("memory takes it");
    write(&mut writer);
    writer.finish().expect("memory takes it")
}

/// The records and the paths of a trace.
pub fn read(bytes: &[u8]) -> esker_base::Result<(Vec<TraceRecord>, Vec<String>)> {
    let reader = TraceReader::open(bytes, "trace")?;
    let mut records = Vec::new();
    reader.for_each(ColumnSelection::All, |batch| {
        records.extend(batch.records());
        Ok(())
    })?;
    let files = (0..reader.paths()).map(|file| {
        let file = u32::try_from(file).expect("few paths");
        reader.path(TraceFile(file)).to_owned()
    });
    let files = files.collect();
    Ok((records, files))
}

fn record(random: &mut Random) -> TraceRecord {
    let operation = TraceOperation::of_number(random.below(18) as u8).expect("known");
    let begin_ns = random.next_u64() >> 1;
    TraceRecord {
        rank: random.next_u64() as u32,
        process: random.next_u64() as u32,
        thread: random.next_u64() as u32,
        offset: random.next_u64() >> 2,
        bytes: random.below(1 << 40),
        begin_ns,
        end_ns: begin_ns + random.below(1 << 30),
        result: random.next_u64().cast_signed(),
        ..TraceRecord::new(0, operation)
    }
}

fn random_trace(rows: usize, files: u64) -> (Vec<TraceRecord>, Vec<u8>) {
    let mut random = Random::from_seed(7);
    let mut records = Vec::new();
    let bytes = trace(|writer| {
        for _ in 0..rows {
            let path = format!("/scratch/ü/{}", random.below(files));
            let mut record = record(&mut random);
            record.file = writer.file(path.as_bytes()).expect("a path");
            writer.push(&record).expect("a record");
            records.push(record);
        }
    });
    (records, bytes)
}

#[test]
fn records_and_paths_come_back() {
    let (records, bytes) = random_trace(150_000, 20_000);
    let (found, paths) = read(&bytes).expect("a trace");
    assert!(found == records, "all records, in order");
    assert_eq!(paths[0], "");
    assert!(paths.len() > 15_000 && paths[1..].iter().all(|path| path.starts_with("/scratch/ü/")));
    let reader = TraceReader::open(&bytes[..], "trace").expect("a trace");
    assert_eq!((reader.batches(), reader.origin()), (3, &origin()));
    assert_eq!(read(&trace(|_| {})).expect("an empty trace"), (vec![], vec![String::new()]));
}

#[test]
fn a_part_of_the_columns_is_read() {
    let (records, bytes) = random_trace(100, 3);
    let reader = TraceReader::open(&bytes[..], "trace").expect("a trace");
    let mut batch = TraceBatch::default();
    reader.read_batch(0, ColumnSelection::Accesses, &mut batch).expect("a batch");
    assert!(batch.process.is_empty() && batch.thread.is_empty());
    for (found, record) in batch.records().zip(&records) {
        assert_eq!(found, TraceRecord { process: 0, thread: 0, ..*record });
    }
}

#[test]
fn a_trace_truncated_at_any_length_is_refused() {
    let (_, bytes) = random_trace(20, 3);
    for length in 0..bytes.len() {
        let error = read(&bytes[..length]).expect_err("truncated");
        assert_eq!(error.kind(), Kind::Corrupt, "at {length}: {error}");
        assert!(error.context().starts_with("trace at byte "), "{error}");
    }
}

/// A change is refused with its place, or changes a value; nothing panics.
#[test]
fn a_trace_with_any_byte_changed_is_refused_or_read() {
    let (records, bytes) = random_trace(20, 3);
    let mut refused = 0;
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x80] {
            let mut changed = bytes.clone();
            changed[at] = value;
            match read(&changed) {
                Ok((found, _)) => assert!(found.len() == records.len() || found.is_empty()),
                Err(error) => {
                    assert!(matches!(error.kind(), Kind::Corrupt | Kind::Invalid), "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > bytes.len(), "{refused} of {} changes are refused", 5 * bytes.len());
}

/// The example of docs/format/advisor-trace.md. The file is readable for any version of the writer;
/// that the writer makes the same may end with another release of `flatbuffers`, which orders
/// metadata.
#[test]
fn golden_bytes() {
    let golden = include_str!("data/golden_trace.hex");
    let digits: Vec<u8> = golden.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("digits")
    };
    let golden: Vec<u8> = digits.chunks(2).map(byte).collect();
    let record = TraceRecord {
        process: 7,
        thread: 9,
        file: TraceFile(1),
        offset: 4_096,
        bytes: 16,
        begin_ns: 5,
        end_ns: 11,
        result: 16,
        ..TraceRecord::new(1, TraceOperation::Read)
    };
    let bytes = trace(|writer| {
        assert_eq!(writer.file(b"/a").expect("a path"), record.file);
        writer.push(&record).expect("a record");
    });
    let hex = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines: Vec<String> = bytes.chunks(32).map(hex).collect();
    assert!(bytes == golden, "the format changed: raise its version\n{}", lines.join("\n"));
    let expected = (vec![record], vec![String::new(), "/a".to_owned()]);
    assert_eq!(read(&golden).expect("a trace"), expected);
}

#[test]
fn records_that_no_reader_accepts_are_refused() {
    trace(|writer| {
        let good = TraceRecord::new(0, TraceOperation::Read);
        let bad = [
            TraceRecord { file: TraceFile(1), ..good },
            TraceRecord { begin_ns: 1, ..good },
            TraceRecord { offset: u64::MAX, bytes: 1, ..good },
            TraceRecord { offset: 1 << 63, ..good },
        ];
        for record in bad {
            assert_eq!(writer.push(&record).expect_err("invalid").kind(), Kind::Invalid);
        }
        let long = vec![b'a'; 20_000];
        assert_eq!(writer.file(&long).expect_err("long").kind(), Kind::TooLarge);
        writer.push(&good).expect("good");
    });
}

/// pyarrow reads traces, and its rewritten ones are read.
const REWRITE: &str = r#"
import sys
import pyarrow as pa
with pa.ipc.open_file(sys.argv[1]) as file:
    table = file.read_all()
table.validate(full=True)
assert table.schema.metadata[b"format"] == b"esker-trace"
columns = ["rank", "process", "thread", "operation", "file", "offset", "bytes", "begin_ns", "end_ns", "result"]
assert table.column_names == columns, table.column_names
print(table.num_rows, sum(table.column("rank").to_pylist()), table.column("file")[-1].as_py())
with pa.ipc.new_file(sys.argv[2], table.schema) as writer:
    writer.write_table(table.unify_dictionaries(), max_chunksize=40_000)
with pa.ipc.new_file(sys.argv[3], table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
    writer.write_table(table.unify_dictionaries(), max_chunksize=40_000)
"#;

#[test]
fn traces_are_arrow_files() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import pyarrow"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} has no pyarrow; PYTHON names another interpreter");
        return;
    }
    let (records, bytes) = random_trace(150_000, 20_000);
    let directory = tempfile::tempdir().expect("a directory");
    let [ours, theirs, compressed] =
        ["a.arrow", "b.arrow", "c.arrow"].map(|name| directory.path().join(name));
    std::fs::write(&ours, &bytes).expect("written");
    let files = [&ours, &theirs, &compressed];
    let output = Command::new(&python).args(["-c", REWRITE]).args(files).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reader = TraceReader::open(&bytes[..], "trace").expect("a trace");
    let last = records.last().expect("some");
    let sum: u64 = records.iter().map(|record| u64::from(record.rank)).sum();
    let expected = format!("{} {sum} {}\n", records.len(), reader.path(last.file));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let rewritten = std::fs::read(&theirs).expect("read");
    let (found, _) = read(&rewritten).expect("a trace that another library wrote");
    assert!(found.len() == records.len());
    let same = |(a, b): (&TraceRecord, &TraceRecord)| TraceRecord { file: b.file, ..*a } == *b;
    assert!(found.iter().zip(&records).all(same));
    let error = read(&std::fs::read(&compressed).expect("read")).expect_err("compressed");
    assert!(error.context().contains("without compression"), "{error}");
}

#[test]
fn features_are_those_of_the_records() {
    let kib = 1 << 10;
    let bytes = trace(|writer| {
        let shared = writer.file(b"/d/shared").expect("a path");
        let own = writer.file(b"/d/own").expect("a path");
        let mut push = |rank, operation, file, offset, bytes, result| {
            let record = TraceRecord { file, offset, bytes, ..TraceRecord::new(rank, operation) };
            let record = TraceRecord { begin_ns: 10, end_ns: 1_010, result, ..record };
            writer.push(&record).expect("a record");
        };
        for rank in 0..2 {
            push(rank, TraceOperation::Create, shared, 0, 0, 3);
            // Contiguous, then a gap of 64 KiB, then one back by 192 KiB and 8 bytes.
            for offset in [0, 64 * kib, 192 * kib, 64 * kib - 8] {
                push(rank, TraceOperation::Read, shared, offset, 64 * kib, 64 * kib as i64);
            }
            push(rank, TraceOperation::Close, shared, 0, 0, 0);
        }
        push(0, TraceOperation::Open, own, 0, 0, 4);
        push(0, TraceOperation::Write, own, 0, 16, 16);
        // A read at the end of the file, and one that fails, move nothing.
        push(0, TraceOperation::Read, own, 16, 4_096, 0);
        push(0, TraceOperation::Read, own, 16, 4_096, -5);
        push(0, TraceOperation::Stat, own, 0, 0, 0);
        push(2, TraceOperation::Unlink, own, 0, 0, 0);
    });
    let reader = TraceReader::open(&bytes[..], "trace").expect("a trace");
    let found = features(&reader, 64 * kib).expect("features");
    found.validate().expect("consistent");
    let expected = esker_advisor::features::TraceFeatures {
        processes: 2,
        reads: 8,
        writes: 1,
        read_bytes: 512 * kib,
        written_bytes: 16,
        request_bytes_median: 64 * kib,
        small_requests: 1,
        stripe_bytes: 64 * kib,
        unaligned_requests: 2,
        unaligned_bytes_median: 64 * kib - 8,
        contiguous_requests: 2,
        following_requests: 6,
        gap_bytes_mean: (64 * kib + 192 * kib + 8) / 2,
        opens: 3,
        closes: 2,
        creates: 2,
        other_metadata: 2,
        files: 2,
        shared_files: 1,
        files_in_directory_max: 2,
        io_seconds: 11e-6,
    };
    assert_eq!(found, expected);
}

/// Symptom: a footer that named one batch or one dictionary a million times made a small file into
/// billions of records, or paths that fill the memory.
/// Fix: messages must follow each other.
#[test]
fn a_batch_that_comes_twice_is_refused() {
    let rows = 70_000;
    let (_, mut bytes) = random_trace(rows, 3);
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside the file"))
    };
    // Two blocks of a message's position, its metadata and its body, one after the other.
    let is_pair = |at: &usize| {
        let words: Vec<u64> = (0..6).map(|index| word(&bytes, at + 8 * index)).collect();
        let end = words[0].checked_add(words[1]).and_then(|end| end.checked_add(words[2]));
        words[0] > 0 && words[1] > 0 && words[1] == words[4] && end == Some(words[3])
    };
    let end = bytes.len();
    let pair = (end - 2_000..end - 64).find(is_pair).expect("two batches");
    bytes.copy_within(pair..pair + 24, pair + 24);
    let error = read(&bytes).expect_err("one batch twice");
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.context().contains("before the end of that at"), "{error}");
}
