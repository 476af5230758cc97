// SPDX-License-Identifier: Apache-2.0
//! Snapshots and publications beside threads that write files and sync them: they contain every
//! change that a sync acknowledged before, and show only bytes that were written.
//!
//! The writers are those of a mount with `--write-back`: some write through the session, and one
//! has the store's file, as the kernel does. Each writes records of one length, syncs each, and
//! ends when it is refused.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_base::store::PosixStore;
use esker_base::{Kind, Result};
use esker_fs::file::OpenFile;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::namespace::FollowLinks;
use esker_table::manifest::SetId;

use crate::gc::options;
use crate::verify::assert_sound;

/// Kind of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterKind {
    /// Record after record at the end of the file.
    Append,
    /// Pages that a kernel has collected, at their offsets.
    Pages,
    /// The same record again and again.
    Overwrite,
    /// Record after record in the store's file.
    InPlace,
}

struct RecordWriter {
    kind: WriterKind,
    record_bytes: usize,
    name: &'static str,
    /// Number of records that were written and synced.
    acknowledged: AtomicU64,
}

/// Small files stay in memory, others have logs of their own.
const WRITERS: [(WriterKind, usize, &str); 6] = [
    (WriterKind::Append, 37, "small"),
    (WriterKind::Append, 70_001, "large"),
    (WriterKind::Pages, 4_096, "pages"),
    (WriterKind::Overwrite, 900, "small-again"),
    (WriterKind::Overwrite, 300_000, "large-again"),
    (WriterKind::InPlace, 50_003, "in-place"),
];

/// Ends all writers if a check fails.
struct FailureFlag<'a>(&'a AtomicBool);

impl Drop for FailureFlag<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

/// Returns record `number`; each of its bytes shows whether it belongs there.
fn record(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number * 31 + at as u64 / 7) as u8 | 1).collect()
}

impl RecordWriter {
    fn open(&self, session: &Session) -> (Arc<OpenFile>, Option<File>) {
        let name = self.name.as_bytes();
        let file = session.create_file(session.root(), name, 0o644).expect("create");
        let is_in_place = self.kind == WriterKind::InPlace;
        let direct = is_in_place.then(|| session.file(&file).begin_in_place().expect("begin"));
        (file, direct.map(|direct| direct.expect("a store of files")))
    }

    fn write_next(
        &self,
        session: &Session,
        (file, direct): &(Arc<OpenFile>, Option<File>),
    ) -> Result<()> {
        let number = self.acknowledged.load(Ordering::SeqCst);
        let bytes = record(number, self.record_bytes);
        let at = number * self.record_bytes as u64;
        match (self.kind, direct) {
            (WriterKind::Append, _) => drop(session.file(file).append(&bytes)?),
            (WriterKind::Pages, _) => session.file(file).write_collected_pages(at, &bytes)?,
            (WriterKind::Overwrite, _) => session.file(file).write(0, &bytes)?,
            (WriterKind::InPlace, direct) => {
                direct.as_ref().expect("it was begun").write_all_at(&bytes, at).expect("write");
            }
        }
        session.file(file).sync()?;
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Fails unless a file with `content` has the first `records` records, and nothing that was not
    /// written.
    fn check(&self, content: &[u8], records: u64, case: &str) {
        let (name, bytes) = (self.name, self.record_bytes);
        if self.kind == WriterKind::Overwrite {
            if records > 0 {
                assert_eq!(content.len(), bytes, "{case}: {name}");
                let later = records - 1..records + 10_000;
                let is_one = later.into_iter().any(|number| content == record(number, bytes));
                assert!(is_one, "{case}: {name} is no record, or one before {records}");
            }
            return;
        }
        let acknowledged = content.len() as u64 / bytes as u64;
        assert!(acknowledged >= records, "{case}: {name} has {acknowledged} of {records} records");
        for (number, found) in content.chunks(bytes).enumerate() {
            let expected = record(number as u64, bytes);
            // The kernel may be in the middle of the last one.
            let is_whole = found.len() == bytes || self.kind == WriterKind::InPlace;
            let is_last = number as u64 >= records && self.kind == WriterKind::InPlace;
            assert!(is_whole, "{case}: {name} ends in the middle of record {number}");
            assert!(is_last || found == expected, "{case}: record {number} of {name} is torn");
        }
    }
}

/// Fails unless the files of `set` have the records that were acknowledged when `records` were
/// counted.
fn check(
    repository: &Repository,
    set: SetId,
    writers: &[RecordWriter],
    records: &[u64],
    case: &str,
) {
    let found = repository.open(&[set], options().identity).expect("open");
    for (writer, records) in writers.iter().zip(records) {
        let inode = found.stat(format!("/{}", writer.name), FollowLinks::No).expect("stat");
        let mut content = Vec::new();
        let mut take = |bytes: &[u8]| {
            content.extend_from_slice(bytes);
            Ok(())
        };
        found.read_all(&inode, &mut take).expect("read");
        writer.check(&content, *records, case);
    }
}

#[test]
fn what_was_synced_before_a_publication_is_in_it_whole() {
    for (round, background) in [false, true, false, true].into_iter().enumerate() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = PosixStore::new(directory.path()).expect("a store");
        let repository = Repository::new(Arc::new(store));
        let mut options = SessionOptions { heartbeat: None, ..options() };
        options.tree.background = background;
        let session = repository.begin(&[], options).expect("begin");
        let writers = WRITERS.map(|(kind, record_bytes, name)| RecordWriter {
            kind,
            record_bytes,
            name,
            acknowledged: AtomicU64::new(0),
        });
        let counts = || writers.each_ref().map(|writer| writer.acknowledged.load(Ordering::SeqCst));
        let has_failed = AtomicBool::new(false);
        let set = std::thread::scope(|scope| {
            let _ends_writers = FailureFlag(&has_failed);
            for writer in &writers {
                let (session, has_failed) = (&session, &has_failed);
                scope.spawn(move || {
                    let _ends_others = FailureFlag(has_failed);
                    let file = writer.open(session);
                    while !has_failed.load(Ordering::SeqCst) {
                        if let Err(refused) = writer.write_next(session, &file) {
                            assert_eq!(refused.kind(), Kind::Closed, "{refused}");
                            break;
                        }
                    }
                    // A published set does not change.
                    if let Some(direct) = &file.1 {
                        direct.write_all_at(&[0; 10_000], 5).expect("write");
                    }
                });
            }
            let wait_for = |least: u64| {
                while counts().iter().any(|count| *count < least) {
                    assert!(!has_failed.load(Ordering::SeqCst), "a writer failed");
                    std::thread::yield_now();
                }
                counts()
            };
            for number in [1, 3] {
                let records = wait_for(number);
                let snapshot = session.snapshot(&format!("at-{number}")).expect("snapshot");
                let case = format!("round {round}, snapshot at {number}");
                check(&repository, snapshot, &writers, &records, &case);
            }
            wait_for(5);
            session.publish("end").expect("publish")
        });
        // A sync that succeeded beside the publication counts, too.
        check(&repository, set, &writers, &counts(), &format!("round {round}, at the end"));
        assert_sound(&repository);
    }
}
