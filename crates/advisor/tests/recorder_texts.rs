// SPDX-License-Identifier: Apache-2.0
//! Texts of Recorder: calls of both versions, truncation, changes of every byte, and hostile
//! numbers.
//!
//! All texts were written by hand: that of version 2 after lines that Recorder 2 printed for
//! programs of MPI-IO (llnl/UnifyFS, issues 547 and 549), that of version 3 after `recorder2text.c`
//! and `recorder-posix.c`.

use esker_advisor::trace::TraceOperation::{
    Barrier, Close, Create, Open, Read, Rename, RenameTarget, Seek, Stat, Truncate, Unlink, Write,
};
use esker_advisor::trace::recorder::{RecorderImport, is_recorder_line};
use esker_advisor::trace::{ImportSummary, TraceOperation, TraceReader, features};
use esker_base::{Kind, Result};

use crate::trace_files::read;

const OLD: &str = include_str!("data/recorder-2.txt");

pub const NEW: &str = "\
0.000001 0.000900 MPI_File_open 0 1 ( MPI_COMM_WORLD /s/a 9 [0] )
0.000100 0.000200 open 1 0 ( /s/a b 66 438 )
0.000300 0.000400 write 1 0 ( /s/a b 0x7f 100 )
0.000500 0.000600 pwrite64 1 0 ( /s/a b 0x7f 10 4096 )
0.001000 0.001100 lseek 0 0 ( /s/a b 50 0 )
0.001200 0.001300 read 0 0 ( /s/a b 0x7f 25 )
0.001400 0.001500 lseek 0 0 ( /s/a b -6 2 )
0.001600 0.001700 readv 0 0 ( /s/a b 6 2 )
0.001800 0.001900 MPI_Barrier 0 0 ( MPI_COMM_WORLD )
0.001850 0.001950 MPI_Barrier 0 0 ( 0-1 )
0.002000 0.002100 fopen 0 0 ( /s/log a )
0.002200 0.002300 fwrite 0 0 ( 0x7f 4 8 /s/log )
0.002400 0.002500 fprintf 0 0 ( /s/log 6 )
0.002600 0.002700 fclose 0 0 ( /s/log )
0.002800 0.002900 open 0 0 ( /s/plain 0 )
0.003000 0.003100 __xstat 0 0 ( 1 /s/plain 0x7f )
0.003200 0.003300 ftruncate 0 0 ( /s/a b 7 )
0.003400 0.003500 rename 0 0 ( /s/plain /s/other )
0.003600 0.003700 unlink 0 0 ( /s/other )
0.003800 0.003900 close 0 0 ( /s/a b )
0.004000 0.004100 main 0 5 ( )
0.004200 0.004300 open 0 0 ( /etc/romio-hints 0 )
";

/// Imports the texts of ranks from 0 on.
pub fn import(texts: &[&str]) -> Result<(Vec<u8>, ImportSummary)> {
    let mut import = RecorderImport::new(Vec::new(), "job", &[])?;
    for (rank, text) in (0..).zip(texts) {
        import.add_text(rank, text.as_bytes(), "text")?;
    }
    import.finish()
}

/// Operation, path, offset, bytes and result.
pub type Call = (TraceOperation, String, u64, u64, i64);

fn calls(text: &str) -> (Vec<Call>, ImportSummary) {
    let (trace, summary) = import(&[text]).expect("a text");
    let (records, _) = read(&trace).expect("a trace");
    assert!(records.is_sorted_by_key(|record| record.begin_ns));
    (calls_of(&trace), summary)
}

/// The calls of a trace.
pub fn calls_of(trace: &[u8]) -> Vec<Call> {
    let (records, paths) = read(trace).expect("a trace");
    let call = |record: &esker_advisor::trace::TraceRecord| {
        let path = paths[record.file.0 as usize].clone();
        (record.operation, path, record.offset, record.bytes, record.result)
    };
    records.iter().map(call).collect()
}

#[test]
fn calls_of_version_3_have_positions() {
    let (found, summary) = calls(NEW);
    let (file, log) = ("/s/a b", "/s/log");
    let expected = [
        (Create, file, 0, 0, 0),
        (Write, file, 0, 100, 100),
        (Write, file, 4_096, 10, 10),
        (Seek, file, 50, 0, 0),
        (Read, file, 50, 25, 25),
        (Seek, file, 4_100, 0, 0),
        (Read, file, 4_100, 6, 6),
        (Barrier, "", 0, 0, 0),
        (Create, log, 0, 0, 0),
        (Write, log, 0, 32, 32),
        (Write, log, 32, 5, 5),
        (Close, log, 0, 0, 0),
        (Open, "/s/plain", 0, 0, 0),
        (Stat, "/s/plain", 0, 0, 0),
        (Truncate, file, 7, 0, 0),
        (Rename, "/s/plain", 0, 0, 0),
        (RenameTarget, "/s/other", 0, 0, 0),
        (Unlink, "/s/other", 0, 0, 0),
        (Close, file, 0, 0, 0),
    ];
    let expected =
        expected.map(|(call, path, at, bytes, result)| (call, path.to_owned(), at, bytes, result));
    assert_eq!(found, expected);
    assert_eq!((summary.ranks, summary.transferring_ranks, summary.incomplete), (1, 1, 0));
    assert_eq!(summary.left_out_directories, [("/etc".to_owned(), 1)]);
}

#[test]
fn calls_of_version_2_are_those_of_descriptors() {
    let (found, summary) = calls(OLD);
    let path = "/scratch/job/data".to_owned();
    let expected = [
        (Create, 0, 0, 7),
        (Seek, 0, 0, 0),
        (Read, 0, 31_996, 31_996),
        (Seek, 0, 0, 0),
        (Write, 0, 31_996, 31_996),
    ];
    let expected =
        expected.map(|(call, at, bytes, result)| (call, path.clone(), at, bytes, result));
    assert_eq!(found, expected);
    // The file of hints is absent: its open is of a system file, and its read of no file.
    assert_eq!((summary.left_out, summary.incomplete), (1, 1));
}

#[test]
fn ranks_are_those_of_the_texts() {
    let (trace, summary) = import(&[NEW, "", OLD]).expect("texts");
    assert_eq!((summary.ranks, summary.transferring_ranks), (2, 2));
    let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
    assert_eq!(features(&reader, 65_536).expect("features").processes, 2);
    assert_eq!(reader.origin().source, "recorder");
    let (records, _) = read(&trace).expect("a trace");
    assert!(records.iter().any(|record| record.rank == 2));
    assert!(NEW.lines().chain(OLD.lines()).all(is_recorder_line));
}

#[test]
fn texts_cut_within_a_line_are_refused() {
    for text in [NEW, OLD] {
        for at in 0..text.len() {
            match import(&[&text[..at]]) {
                Ok(_) => assert!(at == 0 || text.as_bytes()[at - 1] == b'\n', "cut at {at}"),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt);
                    let line = text[..at].matches('\n').count() + 1;
                    assert!(error.context().contains(&format!("line {line}: ")), "{error}");
                }
            }
        }
    }
}

#[test]
fn texts_with_any_byte_changed_do_no_harm() {
    let mut refused = 0;
    for text in [NEW, OLD] {
        let mut bytes = text.as_bytes().to_vec();
        for at in 0..bytes.len() {
            let original = bytes[at];
            bytes[at] = [b' ', b'(', b'9', b'-', 0xff, b'\n', b')'][at % 7];
            let mut import = RecorderImport::new(Vec::new(), "job", &[]).expect("a writer");
            match import.add_text(0, &bytes[..], "text").and_then(|()| import.finish()) {
                Ok((trace, _)) => drop(read(&trace).expect("a trace")),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                    refused += 1;
                }
            }
            bytes[at] = original;
        }
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn numbers_of_no_file_are_refused_or_unknown() {
    let far = "0.1 0.2 pwrite 0 0 ( /s/a 0x7f 9 9223372036854775807 )\n";
    let error = import(&[far]).expect_err("too far");
    assert!(error.kind() == Kind::Corrupt && error.context().contains("line 1"), "{error}");
    for line in [
        "0.1 0.2 pwrite 0 0 ( /s/a 0x7f 9 -1 )",
        "0.1 0.2 read 0 0 ( /s/a 0x7f 99999999999999999999 )",
        "0.1 0.2 fread 0 0 ( 0x7f 4294967296 4294967296 /s/a )",
        "0.1 0.2 read 0 0 ( )",
        "0.1 0.2 rename 0 0 ( /s/a b /s/c )",
        "0.1 0.2 0 write ( 5 0x7f 10 )",
    ] {
        let (_, summary) = import(&[&format!("{line}\n")]).expect("a line");
        assert_eq!((summary.records, summary.incomplete), (0, 1), "{line}");
    }
    let long = format!("0.1 0.2 open 0 0 ( /{} 0 )\n", "a".repeat(1 << 16));
    assert_eq!(import(&[&long]).expect_err("a long line").kind(), Kind::Corrupt);
}
