// SPDX-License-Identifier: Apache-2.0
//! Files that are written in place, through the store's own file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_base::store::{MemoryStore, PosixStore};
use esker_base::{Error, Kind};
use esker_fs::file::OpenFile;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::AttributeChanges;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::tree::{Durability, TreeOptions};
use tempfile::TempDir;

use crate::hooked::{HookedStore, Request, When};

const MIB: usize = 1 << 20;

fn options(durability: Durability) -> SessionOptions {
    let tree = TreeOptions { durability, background: false, ..TreeOptions::default() };
    SessionOptions { identity: Identity::root(), tree, ..SessionOptions::default() }
}

/// A session on a store of files.
struct Subject {
    directory: TempDir,
    repository: Repository,
    session: Session,
}

impl Subject {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = PosixStore::new(directory.path()).expect("a store");
        let repository = Repository::new(Arc::new(store));
        let session = repository.begin(&[], options(Durability::Async)).expect("begin");
        Self { directory, repository, session }
    }

    /// Creates a file; returns it with the store's file that holds its bytes.
    fn begin(&self, name: &[u8]) -> (Arc<OpenFile>, File) {
        let file = self.session.create_file(self.session.root(), name, 0o755).expect("create");
        let direct = self.session.file(&file).begin_in_place().expect("begin");
        (file, direct.expect("a store of files"))
    }

    /// Returns its data logs and their sizes.
    fn logs(&self) -> Vec<(String, u64)> {
        let folder = format!("set/{}/data/", self.session.set());
        let listed = self.repository.store().list(&folder).expect("list");
        listed.into_iter().map(|log| (log.name, log.bytes)).collect()
    }

    fn findings(&self) -> usize {
        let options = VerifyOptions { data: true, ..VerifyOptions::default() };
        self.repository.verify(&options).expect("verify").findings.len()
    }

    fn mode(&self, file: &Arc<OpenFile>) -> u32 {
        self.session.file(file).stat().expect("stat").mode
    }

    fn give_mode(&self, file: &Arc<OpenFile>, mode: u32) {
        let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
        self.session.file(file).setattr(&changes).expect("setattr");
    }
}

fn content(namespace: &Namespace, path: &str) -> Vec<u8> {
    let inode = namespace.find(path, FollowLinks::No).expect("find").inode;
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    namespace.read_all(&inode, &mut take).expect("read");
    bytes
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 4_096) as u8 | 1).collect()
}

#[test]
fn what_was_synced_survives_its_writer() {
    let subject = Subject::new();
    let (file, direct) = subject.begin(b"file");
    let mut expected = noise(3 * MIB);
    direct.write_all_at(&expected, 0).expect("write");
    let sizes = [subject.session.file(&file).stat().expect("stat").size, 3 << 20];
    assert_eq!(sizes[0], sizes[1], "it is seen before it is recorded");
    subject.session.file(&file).sync().expect("sync");
    // Overwritten and truncated below the recorded size, then extended, all without a sync.
    direct.write_all_at(b"over", 7).expect("write");
    expected[7..11].copy_from_slice(b"over");
    subject.session.file(&file).truncate(2 << 20).expect("truncate");
    expected.truncate(2 * MIB);
    direct.write_all_at(b"more", 2 << 20).expect("write");
    let set = subject.session.set();
    let Subject { directory: _directory, repository, session } = subject;
    drop(session);
    let session = repository.resume(set, options(Durability::Async)).expect("resume");
    let found = content(session.namespace(), "/file");
    assert_eq!(found.len(), expected.len(), "as the cut left it");
    assert!(found == expected, "as it was written over");
    session.publish("resumed").expect("publish");
    let report = repository.verify(&VerifyOptions::default()).expect("verify");
    assert!(report.is_sound(), "{:?}", report.findings);
}

#[test]
fn a_large_file_ends_as_a_log_of_its_own_with_checksums() {
    let subject = Subject::new();
    let (file, direct) = subject.begin(b"large");
    let expected = noise(9 * MIB + 77);
    // Backwards, and then one range again.
    for at in (0..expected.len()).step_by(MIB).rev() {
        let end = expected.len().min(at + MIB);
        direct.write_all_at(&expected[at..end], at as u64).expect("write");
    }
    direct.write_all_at(&expected[5..700], 5).expect("write");
    subject.session.file(&file).end_in_place().expect("end");
    subject.session.close_file(file).expect("close");
    let set = subject.session.publish("large").expect("publish");
    let shown = subject.repository.open(&[set], Identity::root()).expect("open");
    assert!(content(&shown, "/large") == expected);
    let inode = shown.find("/large", FollowLinks::No).expect("find").inode;
    assert!(
        shown.backing_file(&inode).expect("a store that answers").is_some(),
        "as it lies there"
    );
    assert_eq!(subject.findings(), 0);
    let logs = subject.logs();
    assert_eq!(logs.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [expected.len() as u64]);
    let path = subject.directory.path().join(&logs[0].0);
    let log = File::options().write(true).open(path).expect("open");
    log.write_all_at(&[expected[6 * MIB] ^ 1], 6 << 20).expect("damage");
    assert_eq!(subject.findings(), 1, "a byte that is not what was written");
}

#[test]
fn a_small_file_ends_where_small_files_are() {
    let subject = Subject::new();
    for (name, length) in [("inline", 100), ("packed", 5_000), ("empty", 0)] {
        let (file, direct) = subject.begin(name.as_bytes());
        direct.write_all_at(&noise(length), 0).expect("write");
        subject.session.file(&file).end_in_place().expect("end");
        subject.session.close_file(file).expect("close");
    }
    assert_eq!(subject.logs().len(), 1, "the packed one");
    for (name, length) in [("inline", 100), ("packed", 5_000), ("empty", 0)] {
        assert!(
            content(subject.session.namespace(), &format!("/{name}")) == noise(length),
            "{name}"
        );
    }
}

#[test]
fn holes_stay_holes() {
    let subject = Subject::new();
    let (file, direct) = subject.begin(b"sparse");
    let (first, last) = (noise(65_536), noise(65_536));
    direct.write_all_at(&first, 0).expect("write");
    direct.write_all_at(&last, 8 << 20).expect("write");
    let seek = |at| {
        let hole = subject.session.file(&file).seek_hole(at).expect("seek");
        (hole, subject.session.file(&file).seek_data(hole).expect("seek"))
    };
    let found = (65_536, Some(8 << 20));
    assert_eq!(seek(0), found, "while it is written");
    subject.session.file(&file).end_in_place().expect("end");
    assert_eq!(seek(0), found, "and afterwards");
    subject.session.close_file(file).expect("close");
    let bytes = content(subject.session.namespace(), "/sparse");
    assert!(bytes[..65_536] == first && bytes[8 << 20..] == last);
    assert!(bytes[65_536..8 << 20].iter().all(|byte| *byte == 0));
}

#[test]
fn snapshots_show_what_was_there() {
    let subject = Subject::new();
    let (file, direct) = subject.begin(b"file");
    direct.write_all_at(&noise(2 * MIB), 0).expect("write");
    let set = subject.session.snapshot("before").expect("snapshot");
    direct.write_all_at(&vec![0; 3 * MIB], 0).expect("write");
    subject.session.file(&file).sync().expect("sync");
    let shown = subject.repository.open(&[set], Identity::root()).expect("open");
    assert!(content(&shown, "/file") == noise(2 * MIB));
    // Without a call of `end_in_place`.
    let set = subject.session.publish("after").expect("publish");
    direct.write_all_at(&noise(MIB), 0).expect("write");
    direct.set_len(5).expect("cut");
    let shown = subject.repository.open(&[set], Identity::root()).expect("open");
    assert!(content(&shown, "/file") == vec![0; 3 * MIB]);
    assert_eq!(subject.findings(), 0);
}

#[test]
fn set_id_bits_come_when_nobody_writes_any_more() {
    let subject = Subject::new();
    let cases = [
        ("nothing", true),
        ("time", true),
        ("write", false),
        ("write and time", false),
        ("own", false),
        ("mode", false),
    ];
    let mtime_ns = Some(1_000_000_000_000_000_007);
    for (case, kept) in cases {
        let (file, direct) = subject.begin(case.as_bytes());
        direct.write_all_at(b"before", 0).expect("write");
        subject.give_mode(&file, 0o6755);
        assert_eq!(subject.mode(&file), 0o755, "{case}: somebody may be writing");
        match case {
            "write" | "write and time" => direct.write_all_at(b"after", 0).expect("write"),
            "own" => {
                let changes = AttributeChanges { uid: Some(7), ..AttributeChanges::default() };
                subject.session.file(&file).setattr(&changes).expect("setattr");
            }
            "mode" => subject.give_mode(&file, 0o755),
            _ => {}
        }
        if case.contains("time") {
            let changes = AttributeChanges { mtime_ns, ..AttributeChanges::default() };
            subject.session.file(&file).setattr(&changes).expect("setattr");
        }
        assert_eq!(subject.session.file(&file).end_in_place().expect("end"), kept, "{case}");
        assert_eq!(subject.mode(&file), if kept { 0o6755 } else { 0o755 }, "{case}");
        subject.session.close_file(file).expect("close");
    }
}

#[test]
fn times_that_are_given_stay() {
    let subject = Subject::new();
    let (file, direct) = subject.begin(b"file");
    direct.write_all_at(b"bytes", 0).expect("write");
    let mtime_ns = Some(1_234_567_890_123_456_789);
    subject
        .session
        .file(&file)
        .setattr(&AttributeChanges { mtime_ns, ..AttributeChanges::default() })
        .expect("set");
    let time =
        || subject.session.namespace().find("/file", FollowLinks::No).expect("find").inode.mtime_ns;
    assert_eq!(Some(time()), mtime_ns);
    subject.session.file(&file).end_in_place().expect("end");
    subject.session.close_file(file).expect("close");
    assert_eq!(Some(time()), mtime_ns);
}

#[test]
fn what_is_removed_leaves_nothing() {
    let subject = Subject::new();
    let (file, direct) = subject.begin(b"file");
    subject.session.unlink(subject.session.root(), b"file").expect("unlink");
    direct.write_all_at(&noise(2 * MIB), 0).expect("it goes on working");
    assert_eq!(&subject.session.file(&file).read(9, 3).expect("read")[..], &noise(12)[9..]);
    subject.session.file(&file).end_in_place().expect("end");
    subject.session.close_file(file).expect("close");
    assert_eq!(subject.logs(), []);
}

#[test]
fn not_every_file_can_be_written_in_place() {
    let subject = Subject::new();
    let file = subject.session.create_file(subject.session.root(), b"full", 0o644).expect("create");
    subject.session.file(&file).write(0, b"x").expect("write");
    assert!(subject.session.file(&file).begin_in_place().expect("it is not empty").is_none());
    let (twice, _direct) = subject.begin(b"twice");
    assert!(subject.session.file(&twice).begin_in_place().expect("it has begun").is_none());
    let in_memory = Repository::new(Arc::new(MemoryStore::new()));
    for (repository, durability) in
        [(&in_memory, Durability::Async), (&subject.repository, Durability::Always)]
    {
        let session = repository.begin(&[], options(durability)).expect("begin");
        let file = session.create_file(session.root(), b"file", 0o644).expect("create");
        assert!(session.file(&file).begin_in_place().expect("asked").is_none(), "{durability:?}");
        assert!(!session.file(&file).end_in_place().expect("nothing to end"));
    }
}

/// Returns a session on a store where tests can act in the middle of requests.
fn hooked() -> (TempDir, HookedStore, Repository, Arc<Session>) {
    let directory = tempfile::tempdir().expect("a directory");
    let hooked = HookedStore::new(Arc::new(PosixStore::new(directory.path()).expect("a store")));
    let repository = Repository::new(Arc::new(hooked.clone()));
    let session = repository.begin(&[], options(Durability::Async)).expect("begin");
    (directory, hooked, repository, Arc::new(session))
}

/// Returns the content of `/file` as the next writer finds it after the process of `session` died.
fn after_death(repository: &Repository, session: &Session) -> Vec<u8> {
    // The session is not dropped, which would flush the file.
    let resumed = repository.resume(session.set(), options(Durability::Async)).expect("resume");
    content(resumed.namespace(), "/file")
}

/// Symptom: a file that was written in place and synced while a snapshot was made was empty after a
/// crash.
/// Cause: while a snapshot is made records refer to copies, so the sync did not note how much of
/// the file itself was durable; the next record, after the snapshot, refers to the file itself
/// again.
/// Fix: a sync always syncs the file and notes that.
#[test]
fn a_sync_beside_a_snapshot_lasts() {
    let (_directory, hooked, repository, session) = hooked();
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    let direct = session.file(&file).begin_in_place().expect("begin").expect("a store of files");
    let expected = noise(3 * MIB);
    direct.write_all_at(&expected, 0).expect("write");
    let (syncing, synced) = (session.clone(), file.clone());
    hooked.at(When::After, Request::Put, "ref/", move || syncing.file(&synced).sync());
    session.snapshot("snapshot").expect("snapshot");
    assert!(hooked.has_acted());
    // The record is written again, as when a descriptor is closed, and then becomes durable.
    session.file(&file).flush().expect("flush");
    let other = session.create_file(session.root(), b"other", 0o644).expect("create");
    session.file(&other).sync().expect("sync");
    assert!(after_death(&repository, &session) == expected);
}

/// Symptom: synced data of a file written in place was gone after a crash, even before the new end,
/// if the file was truncated during the sync.
/// Cause: such a sync noted nothing.
/// Fix: it is repeated.
#[test]
fn a_sync_beside_a_truncation_lasts() {
    let (_directory, hooked, repository, session) = hooked();
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    let direct = session.file(&file).begin_in_place().expect("begin").expect("a store of files");
    let expected = noise(4 * MIB);
    direct.write_all_at(&expected, 0).expect("write");
    let (cutting, cut) = (session.clone(), file.clone());
    hooked
        .at(When::Before, Request::SyncLog, "/data/", move || cutting.file(&cut).truncate(3 << 20));
    session.file(&file).sync().expect("sync");
    assert!(hooked.has_acted());
    assert!(after_death(&repository, &session) == expected[..3 * MIB]);
}

/// Symptom: sealing a file with deferred set-id bits deadlocked, and blocked all changes of files,
/// if data logs were reclaimed or the session was published at the same time.
/// Cause: the session's content lock was taken shared while already held shared; in between another
/// thread had begun to wait for it exclusively, which blocks the second acquisition.
/// Fix: it is released before the bits are set.
#[test]
fn a_file_gets_set_id_bits_while_others_wait_for_the_content_alone() {
    let Subject { directory: _directory, repository: _repository, session } = Subject::new();
    let session = Arc::new(session);
    let file = session.create_file(session.root(), b"file", 0o755).expect("create");
    let direct = session.file(&file).begin_in_place().expect("begin").expect("a store of files");
    // Large enough that the other thread runs while it is read.
    direct.write_all_at(&noise(64 * MIB), 0).expect("write");
    let changes = AttributeChanges { mode: Some(0o4755), ..AttributeChanges::default() };
    session.file(&file).setattr(&changes).expect("setattr");
    session.file(&file).sync().expect("sync");
    let is_done = Arc::new(AtomicBool::new(false));
    let (reclaiming, is_reclaimed) = (session.clone(), is_done.clone());
    let other = std::thread::spawn(move || {
        while !is_reclaimed.load(Ordering::SeqCst) {
            reclaiming.reclaim_data().expect("reclaim");
        }
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    let (ending, ended) = (session.clone(), file.clone());
    std::thread::spawn(move || sender.send(ending.file(&ended).end_in_place()));
    let has_bits = receiver.recv_timeout(Duration::from_secs(60)).expect("nobody waits for ever");
    is_done.store(true, Ordering::SeqCst);
    other.join().expect("no panic");
    assert!(has_bits.expect("end"));
    assert_eq!(session.file(&file).stat().expect("stat").mode, 0o4755);
}

/// Symptom: after a crash a small file that had been synced read as zeros.
/// Cause: a snapshot had given it a copy in the extent table. Sealing released the copy at once,
/// but the record with the new place was written only when the file was flushed. A larger file
/// could lose its copy in the same way between two operations.
/// Fix: segments are released after the record that no longer needs them.
#[test]
fn a_copy_that_a_snapshot_made_stays_until_a_record_does_without_it() {
    let Subject { directory: _directory, repository, session } = Subject::new();
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    let direct = session.file(&file).begin_in_place().expect("begin").expect("a store of files");
    let expected = noise(100_000);
    direct.write_all_at(&expected, 0).expect("write");
    session.file(&file).sync().expect("sync");
    session.snapshot("snapshot").expect("snapshot");
    session.file(&file).end_in_place().expect("end");
    let other = session.create_file(session.root(), b"other", 0o644).expect("create");
    session.file(&other).sync().expect("sync");
    assert!(after_death(&repository, &session) == expected);
}

/// Symptom: readers of an open file read zeros after it had lost its name and was sealed.
/// Cause: sealing freed the bytes of a file without a name.
/// Fix: they stay while the file is open elsewhere.
#[test]
fn a_file_without_a_name_is_read_after_its_writer_ended() {
    let subject = Subject::new();
    for length in [100_000, 3 * MIB] {
        let (file, direct) = subject.begin(b"file");
        let expected = noise(length);
        direct.write_all_at(&expected, 0).expect("write");
        let session = &subject.session;
        let reader = session.open_file(session.root(), b"file").expect("open");
        session.unlink(session.root(), b"file").expect("unlink");
        session.file(&file).end_in_place().expect("end");
        session.close_file(file).expect("close");
        session.reclaim_data().expect("reclaim");
        assert!(session.file(&reader).read(0, 4 * MIB).expect("read") == expected);
        session.close_file(reader).expect("close");
        session.reclaim_data().expect("reclaim");
        assert_eq!(subject.logs(), [], "nobody has it any more");
    }
}

/// Symptom: the last data written and synced was gone after a crash, if another sync of the same
/// file had begun earlier and ended later.
/// Cause: the sync that ended later noted the smaller size.
/// Fix: the durable size only grows, unless the file is truncated.
#[test]
fn syncs_that_overlap_last() {
    let (_directory, hooked, repository, session) = hooked();
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    let direct = session.file(&file).begin_in_place().expect("begin").expect("a store of files");
    let expected = noise(4 * MIB);
    direct.write_all_at(&expected[..MIB], 0).expect("write");
    let (other, same, all) = (session.clone(), file.clone(), expected.clone());
    hooked.at(When::After, Request::SyncLog, "/data/", move || {
        direct.write_all_at(&all, 0).expect("write");
        other.file(&same).sync()
    });
    session.file(&file).sync().expect("sync");
    assert!(hooked.has_acted());
    assert!(after_death(&repository, &session) == expected);
}

/// A file is written, truncated and read through its session while it is being sealed; nothing is
/// lost, and everything stored has the right checksum.
#[test]
fn a_file_is_used_while_it_is_sealed() {
    let subject = Subject::new();
    for round in 0..2u8 {
        let name = format!("file-{round}").into_bytes();
        let (file, direct) = subject.begin(&name);
        let mut expected = noise(10 * MIB);
        direct.write_all_at(&expected, 0).expect("write");
        drop(direct);
        let is_sealed = AtomicBool::new(false);
        let session = &subject.session;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = usize::from(round);
                // At least once, and a few times afterwards.
                for last in [false, true] {
                    while !last && !is_sealed.load(Ordering::SeqCst) || last && at % 5 != 0 {
                        at = (at + MIB + 13) % (7 * MIB);
                        let bytes = [round + 1; 5_000];
                        session.file(&file).write(at as u64, &bytes).expect("write");
                        expected[at..at + bytes.len()].copy_from_slice(&bytes);
                        if at % 11 == 0 && expected.len() > 8 * MIB {
                            expected.truncate(expected.len() - 77_777);
                            let size = expected.len() as u64;
                            session.file(&file).truncate(size).expect("truncate");
                        }
                        let read = session.file(&file).read(at as u64, 6_000).expect("read");
                        assert!(read == expected[at..at + 6_000]);
                    }
                }
            });
            session.file(&file).end_in_place().expect("end");
            is_sealed.store(true, Ordering::SeqCst);
        });
        session.close_file(file).expect("close");
        let path = format!("/file-{round}");
        assert!(content(subject.session.namespace(), &path) == expected, "{path}");
    }
    subject.session.publish("published").expect("publish");
    assert_eq!(subject.findings(), 0);
}

/// Symptom: published bytes changed. A mount whose session another process had taken over and
/// published continued to write, through the kernel, a file in place.
/// Cause: records of the published set referred to the log that the kernel still had open, and a
/// writer that knew it was fenced continued to write the store's file.
/// Fix: a writer that takes over copies such bytes to logs of its own; a fenced one refuses.
#[test]
fn a_writer_that_was_taken_over_changes_nothing_that_is_published() {
    let subject = Subject::new();
    let Subject { repository, session, .. } = &subject;
    let expected = noise(3 * MIB);
    let begin = |name: &[u8]| {
        let (file, direct) = subject.begin(name);
        direct.write_all_at(&expected, 0).expect("write");
        session.file(&file).sync().expect("sync");
        (file, direct)
    };
    // The record of one file is in a table, that of another in the log; the third has two names.
    let mut kept = vec![begin(b"in-table"), begin(b"linked")];
    session.link(session.root(), b"linked", session.root(), b"other-name").expect("link");
    session.flush().expect("flush");
    kept.push(begin(b"in-log"));
    let next = repository.resume(session.set(), options(Durability::Async)).expect("resume");
    for (_, direct) in &kept {
        direct.write_all_at(&[0; 5_000], 7).expect("the kernel asks nobody");
    }
    session.file(&kept[0].0).sync().expect_err("it was taken over");
    let refused = [
        session.file(&kept[1].0).write(0, b"late"),
        session.file(&kept[1].0).truncate(4 << 20),
        session.file(&kept[1].0).punch(0..9, true),
        session.file(&kept[1].0).allocate(0..5 << 20, false),
    ];
    for refused in refused {
        assert_eq!(refused.expect_err("it is fenced").kind(), Kind::Fenced);
    }
    let set = next.publish("published").expect("publish");
    for (_, direct) in &kept {
        direct.write_all_at(&[1; 5_000], 1 << 20).expect("the kernel asks nobody");
        direct.set_len(6).expect("nor does a truncation");
    }
    let shown = repository.open(&[set], Identity::root()).expect("open");
    for path in ["/in-table", "/linked", "/other-name", "/in-log"] {
        assert!(content(&shown, path) == expected, "{path}");
    }
    assert_eq!(subject.findings(), 0);
}

/// A writer that dies while it copies leaves the work to the next one.
#[test]
fn a_takeover_that_ends_early_is_done_by_the_next() {
    let (_directory, hooked, repository, session) = hooked();
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    let direct = session.file(&file).begin_in_place().expect("begin").expect("a store of files");
    let expected = noise(3 * MIB);
    direct.write_all_at(&expected, 0).expect("write");
    session.file(&file).sync().expect("sync");
    let set = session.set();
    let dies = || Err(Error::new(Kind::Unavailable, "the writer dies"));
    hooked.at(When::Before, Request::GetRange, "/data/", dies);
    repository.resume(set, options(Durability::Async)).expect_err("it dies");
    assert!(hooked.has_acted());
    let next = repository.resume(set, options(Durability::Async)).expect("resume");
    direct.write_all_at(&[0; 5_000], 7).expect("the kernel asks nobody");
    assert!(content(next.namespace(), "/file") == expected);
    // Copied files are not copied again.
    let logs = || repository.store().list_names(&format!("set/{set}/data/")).expect("list");
    let before = logs();
    drop(next);
    repository.resume(set, options(Durability::Async)).expect("resume");
    assert_eq!(logs(), before);
}
