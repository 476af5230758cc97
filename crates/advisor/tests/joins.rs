// SPDX-License-Identifier: Apache-2.0
//! Joins: traces of several nodes become one.

use crate::trace_files::read;
use esker_advisor::trace::{
    TraceOperation, TraceOrigin, TraceReader, TraceRecord, TraceWriter, join_traces,
};

/// A trace that begins at `epoch_ns` and has calls (rank, operation, path, beginning).
fn trace(epoch_ns: u64, calls: &[(u32, TraceOperation, &[u8], u64)]) -> Vec<u8> {
    let origin = TraceOrigin { epoch_ns, ..TraceOrigin::default() };
    let mut writer = TraceWriter::new(Vec::new(), "trace", origin).expect("memory");
    for (rank, operation, path, begin_ns) in calls {
        let file = writer.file(path).expect("a path");
        let (begin_ns, end_ns) = (*begin_ns, begin_ns + 5);
        let record = TraceRecord {
            file,
            bytes: 8,
            begin_ns,
            end_ns,
            result: 8,
            ..TraceRecord::new(*rank, *operation)
        };
        writer.push(&record).expect("a record");
    }
    writer.finish().expect("memory")
}

/// Ranks, paths and beginnings of the joined records.
fn joined(traces: &[Vec<u8>]) -> Vec<(u32, String, u64)> {
    let open = |bytes| TraceReader::open(bytes, "trace").expect("a trace");
    let readers: Vec<_> = traces.iter().map(|bytes| open(&bytes[..])).collect();
    let (bytes, summary) = join_traces(&readers, &[], Vec::new()).expect("traces");
    let (records, paths) = read(&bytes).expect("a trace");
    assert_eq!(summary.records, records.len() as u64);
    let of = |record: &TraceRecord| {
        (record.rank, paths[record.file.0 as usize].clone(), record.begin_ns)
    };
    records.iter().map(of).collect()
}

#[test]
fn ranks_keep_their_numbers_and_times_their_distance() {
    use TraceOperation::{Open, Read};
    // The second node has the same file, a helper with the first one's number, and names of any bytes.
    let first = trace(2_000, &[(0, Open, b"/a", 1), (0, Read, b"/a", 10), (1, Open, b"/b", 20)]);
    let second = trace(1_500, &[(1, Read, b"/a", 7), (0, Open, b"/\xff\\x41", 8)]);
    let found = joined(&[first.clone(), second]);
    let expected =
        [(0, "/a", 501), (0, "/a", 510), (2, "/b", 520), (1, "/a", 7), (3, "/\\xff\\x5cx41", 8)];
    assert_eq!(found, expected.map(|(rank, path, ns)| (rank, path.to_owned(), ns)));
    // A trace of unknown beginning begins with the others.
    let unknown = trace(0, &[(0, Read, b"/a", 3)]);
    assert_eq!(joined(&[first, unknown])[3], (2, "/a".to_owned(), 3));
}

#[test]
fn paths_select_records() {
    use TraceOperation::{Open, Read};
    let first = trace(0, &[(0, Open, b"/a/x", 1), (1, Read, b"/b", 2)]);
    let reader = TraceReader::open(&first[..], "trace").expect("a trace");
    let (bytes, summary) = join_traces(&[reader], &[b"/b".to_vec()], Vec::new()).expect("a trace");
    let (records, paths) = read(&bytes).expect("a trace");
    assert_eq!((records.len(), &*paths[records[0].file.0 as usize]), (1, "/b"));
    assert_eq!((summary.ranks, summary.left_out), (1, 1));
    assert_eq!(summary.left_out_directories, [("/a".to_owned(), 1)]);
}
