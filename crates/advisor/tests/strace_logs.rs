// SPDX-License-Identifier: Apache-2.0
//! Logs of strace: real ones of dd, tar, Python, SQLite and a shell, cut at every line, and with
//! every byte changed. `data/*.strace` were written by strace 6.1, without the start of
//! interpreters.

use std::collections::BTreeMap;

use esker_advisor::trace::strace::{StraceOptions, import_strace};
use esker_advisor::trace::{ImportSummary, TraceOperation, TraceReader, TraceRecord, features};
use esker_base::Kind;

use crate::trace_files::read;

const LOGS: [(&str, &str); 5] = [
    ("dd", include_str!("data/dd.strace")),
    ("tar", include_str!("data/tar.strace")),
    ("python", include_str!("data/python.strace")),
    ("sqlite", include_str!("data/sqlite.strace")),
    ("cp", include_str!("data/cp.strace")),
];

fn log(name: &str) -> &'static str {
    LOGS.iter().find(|(known, _)| *known == name).expect("a log").1
}

/// A call, as tests compare it.
type Call = (TraceOperation, u64, u64, i64);

/// The trace of a log, of the files below `/tmp/app`.
fn import(log: &str) -> esker_base::Result<(Vec<u8>, ImportSummary)> {
    let options = StraceOptions { paths: vec![b"/tmp/app".to_vec()] };
    import_strace(log.as_bytes(), "log", Vec::new(), &options)
}

/// The calls on each file, without its directory.
fn calls(log: &str) -> (BTreeMap<String, Vec<Call>>, Vec<TraceRecord>, ImportSummary) {
    let (trace, summary) = import(log).expect("a log");
    let (records, paths) = read(&trace).expect("a trace");
    let mut calls: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for record in &records {
        let path = paths[record.file.0 as usize].trim_start_matches("/tmp/app").to_owned();
        let call = (record.operation, record.offset, record.bytes, record.result);
        calls.entry(path).or_default().push(call);
    }
    assert_eq!(summary.records, records.len() as u64);
    let begins = records.windows(2).all(|pair| pair[0].begin_ns <= pair[1].begin_ns);
    assert!(begins, "records are in the order of their beginnings");
    (calls, records, summary)
}

use TraceOperation::{Close, Create, Link, Open, Read, Rename, RenameTarget, Seek, Sync, Truncate};
use TraceOperation::{List, MakeDirectory, SetAttributes, Stat, Unlink, Write};

#[test]
fn dd_writes_four_blocks_through_a_duplicate() {
    let (calls, records, summary) = calls(log("dd"));
    let block = 65_536;
    let mut expected = vec![(Create, 0, 0, 3), (Close, 0, 0, 0)];
    expected.extend((0..4).map(|index| (Write, index * block, block, block as i64)));
    expected.extend([(Sync, 0, 0, 0), (Close, 0, 0, 0)]);
    assert_eq!(calls["/out.bin"], expected);
    assert_eq!((summary.ranks, summary.incomplete), (1, 0));
    assert!(records.iter().all(|record| record.end_ns > record.begin_ns));
}

#[test]
fn tar_reads_small_files_whole() {
    let (calls, ..) = calls(log("tar"));
    assert!(calls["/d/a"].contains(&(Read, 0, 2, 2)), "{:?}", calls["/d/a"]);
    assert!(calls["/d/b"].contains(&(Read, 0, 3, 3)), "{:?}", calls["/d/b"]);
    assert!(calls["/d"].iter().any(|call| call.0 == List));
    assert!(calls["/t.tar"].contains(&(Write, 0, 10_240, 10_240)), "{:?}", calls["/t.tar"]);
}

/// Threads, calls that overlap, vectors, seeks, duplicates, a child that inherits a position, and
/// appending.
#[test]
fn python_uses_every_kind_of_position() {
    let (calls, records, summary) = calls(log("python"));
    for file in ["/f1", "/f2"] {
        let of_file = &calls[file];
        let transfers: Vec<_> = of_file.iter().filter(|call| call.0.is_transfer()).collect();
        let mut expected = Vec::new();
        expected.extend((0..8).map(|index| (Write, index * 8_192, 4_096, 4_096)));
        expected.extend((0..4).map(|index| (Read, index * 4_096, 4_096, 4_096)));
        // writev at the beginning, since pwrite moves no position; read after the seek to 100.
        expected.extend([(Write, 0, 30, 30), (Read, 100, 50, 50), (Read, 64, 40, 40)]);
        // Through the duplicate, at the position of the original, after it was closed.
        expected.push((Write, 150, 5, 5));
        assert_eq!(transfers, expected.iter().collect::<Vec<_>>(), "{file}");
        for call in [(Seek, 100, 0, 100), (Sync, 0, 0, 0), (Truncate, 5_000, 0, 0)] {
            assert!(of_file.contains(&call), "{file}: {call:?}");
        }
        let closes = of_file.iter().filter(|call| call.0 == Close).count();
        assert_eq!(closes, 2, "the file and its duplicate");
    }
    // 100 bytes of the parent, 50 of the child, 10 of the parent again: one open file.
    let writes: Vec<_> = calls["/shared"].iter().filter(|call| call.0 == Write).copied().collect();
    assert_eq!(writes, [(Write, 0, 100, 100), (Write, 100, 50, 50), (Write, 150, 10, 10)]);
    let shared = records.iter().filter(|record| record.operation == Write && record.bytes <= 100);
    let of_child: Vec<_> = shared.filter(|record| record.rank == 1).collect();
    assert_eq!(of_child.len(), 1);
    assert_ne!(of_child[0].process, records[0].process);
    assert_eq!(summary.ranks, 2, "threads are no ranks");
    let threads: std::collections::BTreeSet<_> =
        records.iter().map(|record| record.thread).collect();
    assert_eq!(threads.len(), 5);
    assert_eq!(calls["/log"].iter().filter(|call| call.0 == Write).count(), 2);
    assert!(calls["/log"].contains(&(Write, 3, 3, 3)), "appended: {:?}", calls["/log"]);
    assert_eq!(calls["/absent"], [(Open, 0, 0, -2)]);
    assert!(calls["/f0"].contains(&(Rename, 0, 0, 0)) && calls["/f2"].contains(&(Unlink, 0, 0, 0)));
    assert_eq!(calls["/dir/f"], [(RenameTarget, 0, 0, 0)]);
    assert_eq!(calls["/dir"], [(MakeDirectory, 0, 0, 0)]);
    assert!(calls["/f1"].iter().any(|call| call.0 == Stat));
    assert!(calls["/f1"].iter().any(|call| call.0 == SetAttributes));
    assert_eq!(calls["/ln"], [(Link, 0, 0, 0)]);
}

#[test]
fn sqlite_writes_its_journal_at_offsets() {
    let (calls, ..) = calls(log("sqlite"));
    let journal = &calls["/db-journal"];
    assert!(journal.contains(&(Write, 4_620, 4_096, 4_096)), "{journal:?}");
    assert!(journal.contains(&(Unlink, 0, 0, 0)));
    let writes: Vec<_> = calls["/db"].iter().filter(|call| call.0 == Write).collect();
    assert!(writes.iter().all(|call| call.1 % 4_096 == 0 && call.2 == 4_096), "{writes:?}");
}

#[test]
fn a_shell_starts_processes_that_copy() {
    let (calls, records, summary) = calls(log("cp"));
    let size = 262_144;
    let copied = &calls["/copy.bin"];
    let written: u64 = copied.iter().filter(|call| call.0 == Write).map(|call| call.3 as u64).sum();
    assert_eq!(written, size, "{copied:?}");
    // `cat d/a d/b > both`: the descriptor is the shell's, inherited by the child.
    let both: Vec<_> = calls["/both"].iter().filter(|call| call.0 == Write && call.3 > 0).collect();
    assert_eq!(both.iter().map(|call| (call.1, call.3)).collect::<Vec<_>>(), [(0, 2), (2, 3)]);
    assert!(calls["/both"].contains(&(Rename, 0, 0, 0)));
    assert!(calls["/d/c"].contains(&(RenameTarget, 0, 0, 0)));
    assert!(summary.ranks >= 5, "{summary:?}");
    assert!(records.iter().map(|record| record.rank).max() < Some(summary.ranks));
}

#[test]
fn features_of_a_log() {
    let (trace, _) = import(log("python")).expect("a log");
    let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
    let found = features(&reader, 65_536).expect("features");
    found.validate().expect("consistent");
    assert_eq!((found.processes, found.request_bytes_median), (2, 4_096));
    assert_eq!((found.files, found.shared_files), (5, 1));
}

#[test]
fn a_log_cut_at_any_line_is_imported_so_far() {
    for (name, log) in LOGS {
        let mut before = 0;
        for (at, _) in log.match_indices('\n') {
            let cut = &log[..=at];
            let records = match import(cut) {
                Ok((trace, summary)) => {
                    read(&trace).expect("a trace");
                    summary.records
                }
                Err(error) => panic!("{name} cut at byte {at}: {error}"),
            };
            assert!(records >= before, "{name} cut at byte {at}: {records} after {before}");
            before = records;
        }
    }
}

#[test]
fn a_log_cut_within_a_line_is_refused() {
    let log = log("dd");
    let line = log.find('\n').expect("lines") + 1;
    for at in line + 1..line + log[line..].find('\n').expect("lines") {
        let error = import(&log[..at]).expect_err("cut");
        assert_eq!(error.kind(), Kind::Corrupt);
        let place = format!("log at byte {line}: line 2: ");
        assert!(error.context().starts_with(&place), "{error}");
    }
    assert_eq!(import("").expect_err("empty").kind(), Kind::Corrupt);
    assert_eq!(import("hello\n").expect_err("other").kind(), Kind::Corrupt);
}

#[test]
fn a_log_with_any_byte_changed_does_no_harm() {
    let log = log("python");
    let (mut bytes, mut refused) = (log.as_bytes().to_vec(), 0);
    for at in 0..bytes.len() {
        let original = bytes[at];
        bytes[at] = [b'<', b'"', b'9', b'(', 0xff, b'\n', b')'][at % 7];
        let options = StraceOptions::default();
        match import_strace(&bytes[..], "log", Vec::new(), &options) {
            Ok((trace, _)) => {
                let whole = at % 16 == 0;
                assert!(!whole || read(&trace).is_ok());
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                refused += 1;
            }
        }
        bytes[at] = original;
    }
    assert!(refused > bytes.len() / 10, "{refused}");
}

/// Symptom: offsets of a trace wrap. Cause: a log claims a seek to the end of all numbers and a
/// read there. Fix: such calls are refused with their line.
#[test]
fn offsets_beyond_every_file_are_refused() {
    let log = "1 5.1 lseek(3</a>, 0, SEEK_SET) = 9223372036854775807 <0.1>\n\
               1 5.2 write(3</a>, \"\"..., 9) = 9 <0.1>\n";
    let error = import_strace(log.as_bytes(), "log", Vec::new(), &StraceOptions::default());
    let error = error.expect_err("too far");
    assert!(error.kind() == Kind::Corrupt && error.context().contains("line 2"), "{error}");
}

/// Symptom: a path that matches nothing gave an empty trace without a word, and a trace of a whole
/// log had the shared libraries of the program.
#[test]
fn what_is_left_out_is_counted_and_named() {
    let bytes = log("python").as_bytes();
    let nothing = StraceOptions { paths: vec![b"/scratch".to_vec()] };
    let (_, summary) = import_strace(bytes, "log", Vec::new(), &nothing).expect("a log");
    assert_eq!((summary.records, summary.ranks), (0, 0));
    let directories = &summary.left_out_directories;
    assert!(directories.iter().any(|(path, _)| path == "/tmp/app"), "{directories:?}");
    assert!(summary.left_out >= directories.iter().map(|(_, calls)| calls).sum());
    let lines = "1 5.1 read(3</usr/lib/libm.so.6>, \"\"..., 832) = 832 <0.1>\n\
                 1 5.2 read(3</etc/passwd>, \"\"..., 9) = 9 <0.1>\n\
                 1 5.3 read(3</home/u/x.so>, \"\"..., 9) = 9 <0.1>\n\
                 2 5.4 write(4</data/out>, \"\"..., 7) = 7 <0.1>\n\
                 3 5.5 close(4</data/out>) = 0 <0.1>\n";
    let default = StraceOptions::default();
    let (trace, summary) =
        import_strace(lines.as_bytes(), "log", Vec::new(), &default).expect("a log");
    assert_eq!((summary.records, summary.left_out), (2, 3));
    // Symptom: the import counted processes without records, while advice counts those that
    // transfer bytes.
    assert_eq!((summary.ranks, summary.transferring_ranks), (2, 1));
    let (records, _) = read(&trace).expect("a trace");
    assert_eq!(records.iter().map(|record| record.rank).collect::<Vec<_>>(), [0, 1]);
    let all = StraceOptions { paths: vec![b"/".to_vec()] };
    let (_, summary) = import_strace(lines.as_bytes(), "log", Vec::new(), &all).expect("a log");
    assert_eq!((summary.records, summary.ranks, summary.left_out), (5, 3, 0));
}

/// Symptom: a directory grew with each change to one in it, until its path was refused.
#[test]
fn a_directory_that_is_too_deep_is_unknown() {
    let mut log = String::new();
    for line in 0..40 {
        let name = "d".repeat(1_000);
        log += &format!("1 5.{line:02} chdir(\"{name}\") = 0 <0.1>\n");
    }
    log += "1 6.1 mkdir(\"x\", 0777) = 0 <0.1>\n";
    let options = StraceOptions::default();
    let (trace, summary) =
        import_strace(log.as_bytes(), "log", Vec::new(), &options).expect("a log");
    assert_eq!(summary.records, 1);
    let (_, paths) = read(&trace).expect("a trace");
    assert!(paths[1].ends_with('x') && paths[1].len() < 16_384, "{}", paths[1].len());
}

/// Symptom: a call that lost its place because too many others overtook it was neither in the trace
/// nor in the summary.
#[test]
fn a_call_that_is_given_up_is_counted() {
    let mut log = "1 5.1 read(3</a>, <unfinished ...>\n".to_owned();
    for _ in 0..(1 << 18) + 8 {
        log += "2 5.2 fsync(4</b>) = 0 <0.1>\n";
    }
    log += "1 5.3 <... read resumed>\"\"..., 9) = 9 <0.1>\n";
    let options = StraceOptions::default();
    let (_, summary) = import_strace(log.as_bytes(), "log", Vec::new(), &options).expect("a log");
    assert_eq!((summary.records, summary.incomplete), ((1 << 18) + 8, 1));
}

/// Symptom: appending was known only from the open, so positions were wrong after it was changed.
#[test]
fn appending_ends_and_begins_by_fcntl() {
    let log = "\
7 1.000000 openat(AT_FDCWD, \"/tmp/app/a\", O_RDWR|O_CREAT|O_APPEND, 0644) = 3</tmp/app/a> <0.000010>
7 1.000100 write(3</tmp/app/a>, \"\"..., 1000) = 1000 <0.000010>
7 1.000200 fcntl(3</tmp/app/a>, F_SETFL, O_RDONLY|O_LARGEFILE) = 0 <0.000010>
7 1.000300 lseek(3</tmp/app/a>, 100, SEEK_SET) = 100 <0.000010>
7 1.000400 write(3</tmp/app/a>, \"\"..., 50) = 50 <0.000010>
7 1.000500 fcntl(3</tmp/app/a>, F_SETFL, O_RDONLY|O_APPEND|O_LARGEFILE) = 0 <0.000010>
7 1.000600 lseek(3</tmp/app/a>, 0, SEEK_SET) = 0 <0.000010>
7 1.000700 write(3</tmp/app/a>, \"\"..., 7) = 7 <0.000010>
";
    let (calls, ..) = calls(log);
    let writes = calls["/a"].iter().filter(|call| call.0 == Write);
    let writes: Vec<_> = writes.map(|(_, offset, bytes, _)| (*offset, *bytes)).collect();
    assert_eq!(writes, [(0, 1_000), (100, 50), (1_000, 7)]);
}
