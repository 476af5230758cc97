// SPDX-License-Identifier: Apache-2.0
//! Darshan logs: agreement of this reader with pydarshan on the same logs, truncation, changes of
//! every byte, and features.

use std::collections::BTreeMap;

use esker_advisor::trace::darshan::{CounterRecord, DarshanLog, DarshanModule};
use esker_advisor::trace::{TraceOperation, TraceReader, features};
use esker_base::Kind;
use serde_json::Value;

use crate::trace_files::read;

const LOGS: [(&str, &[u8]); 8] = [
    ("dxt", include_bytes!("data/darshan/dxt.darshan")),
    ("dxt_simple", include_bytes!("data/darshan/dxt_simple.darshan")),
    ("example", include_bytes!("data/darshan/example.darshan")),
    ("graph", include_bytes!("data/darshan/graph.darshan")),
    ("ior_hdf5", include_bytes!("data/darshan/ior_hdf5.darshan")),
    ("macsio", include_bytes!("data/darshan/macsio.darshan")),
    ("newest", include_bytes!("data/darshan/newest.darshan")),
    ("noposixopens", include_bytes!("data/darshan/noposixopens.darshan")),
];

fn log(name: &str) -> &'static [u8] {
    LOGS.iter().find(|(known, _)| *known == name).expect("a log").1
}

fn golden() -> BTreeMap<String, Value> {
    serde_json::from_str(include_str!("data/darshan/golden.json")).expect("JSON")
}

fn records(log: &DarshanLog<'_>, module: DarshanModule) -> Vec<CounterRecord> {
    let mut records = Vec::new();
    let all = log.for_each(module, |record| {
        records.push(record.clone());
        Ok(())
    });
    all.expect("records");
    records
}

fn near(found: f64, expected: &Value) -> bool {
    let expected = expected.as_f64().expect("a number");
    (found - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}

/// Times that both readers have. darshan-util 3.5.0 loses the last two of POSIX records of version
/// 3, since the length that it moves does not grow with the counters that it inserts.
fn times_compared(name: &str, module: DarshanModule, all: usize) -> usize {
    let is_old = matches!(name, "example" | "noposixopens") && module == DarshanModule::Posix;
    if is_old { all - 2 } else { all }
}

fn check_counters(name: &str, log: &DarshanLog<'_>, module: DarshanModule, golden: &Value) {
    let found = records(log, module);
    assert_eq!(found.len() as u64, golden["count"], "{name}");
    for (record, golden) in found.iter().zip(golden["first"].as_array().expect("a list")) {
        assert_eq!(
            (Some(record.file), Some(record.rank)),
            (golden[0].as_u64(), golden[1].as_i64())
        );
        // An identity among the counters is a positive number in JSON.
        let integer = |value: &Value| {
            value.as_i64().unwrap_or_else(|| value.as_u64().expect("an integer").cast_signed())
        };
        let counters: Vec<i64> =
            golden[2].as_array().expect("a list").iter().map(integer).collect();
        assert_eq!(record.counters, counters, "{name}");
        let times = golden[3].as_array().expect("a list");
        assert_eq!(record.times.len(), times.len());
        let times = &times[..times_compared(name, module, times.len())];
        assert!(
            record.times.iter().zip(times).all(|(found, golden)| near(*found, golden)),
            "{name}"
        );
    }
    for (column, sum) in golden["sums"].as_array().expect("a list").iter().enumerate() {
        let found = found.iter().map(|record| record.counters[column].cast_unsigned());
        assert_eq!(Some(found.fold(0, u64::wrapping_add)), sum.as_u64(), "{name}, {column}");
    }
    let seconds = golden["seconds"].as_array().expect("a list");
    let compared = times_compared(name, module, seconds.len().max(2));
    for (column, sum) in seconds.iter().enumerate().take(compared) {
        let found = found.iter().map(|record| record.times[column]).sum();
        assert!(near(found, sum), "{name}, {column}: {found} and {sum}");
    }
}

fn check_accesses(name: &str, log: &DarshanLog<'_>, golden: &Value) {
    let (trace, count) = log.write_trace(Vec::new()).expect("a trace");
    assert_eq!(count, golden["count"], "{name}");
    let (found, paths) = read(&trace).expect("a trace");
    assert_eq!(found.len() as u64, count);
    let sum = |of: fn(&esker_advisor::trace::TraceRecord) -> u64| found.iter().map(of).sum::<u64>();
    assert_eq!(sum(|record| record.bytes), golden["bytes"], "{name}");
    assert_eq!(sum(|record| record.offset), golden["offsets"], "{name}");
    let seconds = sum(|record| record.end_ns - record.begin_ns) as f64 / 1e9;
    let golden_seconds = golden["seconds"].as_f64().expect("a number");
    assert!((seconds - golden_seconds).abs() < 1e-9 * (count + 1) as f64, "{name}: {seconds}");
    assert!(found.windows(2).all(|pair| pair[0].begin_ns <= pair[1].begin_ns), "in order");
    for golden in golden["first"].as_array().expect("a list") {
        let operation =
            if golden[2] == "write" { TraceOperation::Write } else { TraceOperation::Read };
        let path = log.name(golden[0].as_u64().expect("an identity"));
        let begin_ns = (golden[5].as_f64().expect("seconds") * 1e9).round() as u64;
        let is_same = |record: &&esker_advisor::trace::TraceRecord| {
            record.operation == operation
                && u64::from(record.rank) == golden[1]
                && record.offset == golden[3]
                && record.bytes == golden[4]
                && record.begin_ns == begin_ns
                && paths[record.file.0 as usize] == path
        };
        assert_eq!(found.iter().filter(is_same).count(), 1, "{name}: {golden}");
    }
}

#[test]
fn logs_are_read_as_pydarshan_reads_them() {
    let golden = golden();
    assert_eq!(golden.len(), LOGS.len());
    for (name, bytes) in LOGS {
        let golden = &golden[name];
        let log = DarshanLog::open(bytes, name).expect(name);
        let begin_ns = golden["begin"].as_u64().expect("seconds") * 1_000_000_000;
        assert_eq!(u64::from(log.job().processes), golden["processes"], "{name}");
        assert_eq!(log.job().begin_ns / 1_000_000_000, begin_ns / 1_000_000_000, "{name}");
        // pydarshan has no room for commands as long as that of `dxt`.
        let program = golden["program"].as_str().expect("text");
        assert!(log.job().program == program || program.is_empty(), "{name}");
        for (id, path) in golden["some_names"].as_object().expect("names") {
            assert_eq!(log.name(id.parse().expect("an identity")), path.as_str().expect("text"));
        }
        let modules = [
            ("POSIX", DarshanModule::Posix),
            ("STDIO", DarshanModule::Stdio),
            ("MPI-IO", DarshanModule::MpiIo),
        ];
        for (module_name, module) in modules {
            check_counters(name, &log, module, &golden["counters"][module_name]);
        }
        let [posix, mpiio] = ["DXT_POSIX", "DXT_MPIIO"].map(|name| &golden["accesses"][name]);
        match log.has(DarshanModule::ExtendedPosix) {
            true => check_accesses(name, &log, posix),
            false if log.has(DarshanModule::ExtendedMpiIo) => check_accesses(name, &log, mpiio),
            false => {
                let error = log.write_trace(Vec::new()).expect_err("counters only");
                assert_eq!(error.kind(), Kind::NotFound);
                assert!(error.context().contains("DXT_ENABLE_IO_TRACE"), "{error}");
            }
        }
    }
}

/// Everything that the reader can read of a log.
fn read_all(bytes: &[u8]) -> esker_base::Result<()> {
    let log = DarshanLog::open(bytes, "log")?;
    log.features()?.validate()?;
    match log.write_trace(std::io::sink()) {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        written => written.map(drop),
    }
}

#[test]
fn a_log_truncated_at_any_length_is_refused() {
    for name in ["ior_hdf5", "newest", "macsio"] {
        let whole = log(name);
        read_all(whole).expect("a log");
        for length in 0..whole.len() {
            let error = read_all(&whole[..length]).expect_err("truncated");
            assert_eq!(error.kind(), Kind::Corrupt, "{name} at {length}: {error}");
            assert!(error.context().starts_with("log at byte "), "{error}");
        }
    }
}

#[test]
fn a_log_with_any_byte_changed_does_no_harm() {
    let mut bytes = log("ior_hdf5").to_vec();
    let mut refused = 0;
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff, bytes[at] ^ 1] {
            let original = std::mem::replace(&mut bytes[at], value);
            if let Err(error) = read_all(&bytes) {
                assert!(matches!(error.kind(), Kind::Corrupt | Kind::Invalid), "{error}");
                refused += 1;
            }
            bytes[at] = original;
        }
    }
    assert!(refused > bytes.len(), "{refused}");
}

#[test]
fn other_logs_are_refused_with_advice() {
    let whole = log("macsio");
    let changed = |at: usize, bytes: &[u8]| {
        let mut log = whole.to_vec();
        log[at..at + bytes.len()].copy_from_slice(bytes);
        DarshanLog::open(&log, "log").expect_err("refused")
    };
    let magic = 6_567_223_u64;
    let error = changed(8, &magic.to_be_bytes());
    assert!(error.kind() == Kind::Invalid && error.context().contains("byte order"), "{error}");
    let error = changed(16, &[1]);
    assert!(error.kind() == Kind::Invalid && error.context().contains("bzip2"), "{error}");
    let error = changed(0, b"2.06");
    assert!(error.kind() == Kind::Invalid && error.context().contains("2.06"), "{error}");
    assert_eq!(changed(8, &[0]).kind(), Kind::Corrupt);
}

/// Features from counters and from the extended trace of the same job agree where both have them.
#[test]
fn features_from_counters_are_those_of_the_trace() {
    let log = DarshanLog::open(log("ior_hdf5"), "log").expect("a log");
    let counters = log.features().expect("features");
    counters.validate().expect("consistent");
    let (trace, _) = log.write_trace(Vec::new()).expect("a trace");
    let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
    let traced = features(&reader, counters.stripe_bytes).expect("features");
    assert_eq!(counters.processes, 4);
    assert_eq!((counters.reads, counters.writes), (traced.reads, traced.writes));
    assert_eq!(
        (counters.read_bytes, counters.written_bytes),
        (traced.read_bytes, traced.written_bytes)
    );
    assert_eq!(counters.request_bytes_median, traced.request_bytes_median);
    assert_eq!(counters.small_requests, traced.small_requests);
    assert_eq!((counters.files, counters.shared_files), (traced.files, traced.shared_files));
    assert_eq!(counters.unaligned_requests, traced.unaligned_requests);
    assert!(counters.opens > 0 && counters.opens == counters.closes);
}

#[test]
fn features_of_jobs() {
    let of = |name| DarshanLog::open(log(name), name).expect(name).features().expect(name);
    let example = of("example");
    assert_eq!((example.processes, example.shared_files), (2_048, 1));
    assert_eq!(example.request_bytes_median, 128 << 20);
    assert_eq!((example.bytes(), example.opens), (2_199_023_259_968, 2_049));
    let streams = of("noposixopens");
    assert_eq!(streams.processes, 32);
}

/// A log of version 3.21 without compression: a job of two processes, no names, and these records
/// of POSIX, which have 69 counters.
fn uncompressed(records: &[[i64; 69]]) -> Vec<u8> {
    let (header, job) = (360_usize, 40 + 1_024 + 8);
    let mut posix = Vec::new();
    for (file, counters) in (1_i64..).zip(records) {
        posix.extend([file, 0].iter().chain(counters).flat_map(|word| word.to_le_bytes()));
        posix.extend([0; 17 * 8]);
    }
    let mut log = b"3.21\0\0\0\0".to_vec();
    log.extend(6_567_223_u64.to_le_bytes());
    log.extend([2, 0, 0, 0, 0, 0, 0, 0]);
    let mut regions = [[0_u64; 2]; 17];
    regions[0] = [(header + job) as u64, 0];
    regions[2] = [(header + job) as u64, posix.len() as u64];
    log.extend(regions.iter().flatten().flat_map(|word| word.to_le_bytes()));
    log.extend((0..16_u32).flat_map(|module| if module == 1 { 4_u32 } else { 0 }.to_le_bytes()));
    log.extend([0_i64, 0, 0, 2, 0].iter().flat_map(|word| word.to_le_bytes()));
    log.extend([0; 1_024]);
    log.extend(b"program\0");
    assert_eq!(log.len(), header + job);
    log.extend(posix);
    log
}

/// Symptom: counters of a damaged log overflowed the sum of strides, which panics, or in a release
/// gives another gap.
#[test]
fn the_largest_counters_are_summed() {
    let log = uncompressed(&[[i64::MAX; 69]; 3]);
    let log = DarshanLog::open(&log, "log").expect("a log");
    let found = log.features().expect("features");
    found.validate().expect("consistent");
    assert_eq!((found.reads, found.files), (u64::MAX, 3));
    let mut small = [0; 69];
    // Four reads of 100 bytes with gaps of 50.
    for (counter, value) in [(3, 4), (14, 400), (49, 50), (53, 3), (57, 100), (61, 4)] {
        small[counter] = value;
    }
    let log = uncompressed(&[small]);
    let found = DarshanLog::open(&log, "log").expect("a log").features().expect("features");
    assert_eq!((found.reads, found.request_bytes_median, found.gap_bytes_mean), (4, 100, 50));
}
