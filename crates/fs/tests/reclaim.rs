// SPDX-License-Identifier: Apache-2.0
//! Reclaiming data logs concurrently with users of their bytes: snapshots, names that move, open
//! files.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::SetId;
use parking_lot::Mutex;

use crate::gc::{options, write};
use crate::hooked::{HookedStore, Request, When};
use crate::interrupted_store::Interrupted;

/// Delay of a request for which another thread should wait.
const HELD_UP: Duration = Duration::from_millis(200);
const FILE_BYTES: usize = 100_000;

/// A session whose only data log has the bytes of `/file`, of `/other`, and more that nothing
/// shows.
struct Subject {
    store: SharedStore,
    hooked: HookedStore,
    session: Arc<Session>,
}

impl Subject {
    fn new() -> Self {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let hooked = HookedStore::new(store.clone());
        let repository = Repository::new(Arc::new(hooked.clone()));
        let session = repository.begin(&[], options()).expect("begin");
        write(&session, "/file", &[b'f'; FILE_BYTES]).expect("write");
        write(&session, "/other", &[b'o'; FILE_BYTES]).expect("write");
        write(&session, "/removed", &[b'r'; 5 * FILE_BYTES]).expect("write");
        session.unlink(session.root(), b"removed").expect("unlink");
        session.flush().expect("flush");
        let set = session.set();
        drop(session);
        // The log of a writer that is gone does not grow.
        let session = Arc::new(repository.resume(set, options()).expect("resume"));
        Self { store, hooked, session }
    }

    fn logs(&self) -> Vec<String> {
        logs_of(&self.store, self.session.set())
    }

    /// Runs `act` after the tables were searched for what the log shows and before the first bytes
    /// move.
    fn while_bytes_move(&self, act: impl FnOnce(&Session) -> Result<()> + Send + 'static) {
        let session = self.session.clone();
        self.hooked.at(When::Before, Request::GetRange, "/data/", move || act(&session));
    }

    /// Like [`Subject::while_bytes_move`], for an `act` on another thread, which may have to wait
    /// until the log is reclaimed. The caller joins the thread.
    fn beside_request<T: Send + 'static>(
        &self,
        (when, request, part_of_name): (When, Request, &str),
        act: impl FnOnce(&Session) -> T + Send + 'static,
    ) -> Arc<Mutex<Option<JoinHandle<T>>>> {
        let session = self.session.clone();
        let started = Arc::new(Mutex::new(None));
        let starting = started.clone();
        self.hooked.at(when, request, part_of_name, move || {
            *starting.lock() = Some(spawn_beside(move || act(&session)));
            Ok(())
        });
        started
    }

    /// Reclaims the log; the action runs meanwhile.
    fn reclaim(&self) {
        self.session.reclaim_data().expect("reclaim");
        assert!(self.hooked.has_acted());
    }

    /// Returns the session as another process resumes it.
    fn resumed(&self) -> Session {
        self.session.flush().expect("flush");
        Repository::new(self.store.clone()).resume(self.session.set(), options()).expect("resume")
    }
}

/// Runs `act` on another thread, and returns once it has ended or probably waits.
fn spawn_beside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        let outcome = act();
        let _ = done.send(());
        outcome
    });
    let _ = is_done.recv_timeout(HELD_UP);
    thread
}

fn logs_of(store: &SharedStore, set: SetId) -> Vec<String> {
    let folder = format!("set/{set}/data/");
    store.list(&folder).expect("list").into_iter().map(|log| log.name).collect()
}

fn join<T>(thread: &Mutex<Option<JoinHandle<T>>>) -> T {
    let thread = thread.lock().take().expect("the request came");
    thread.join().expect("no panic")
}

fn content(namespace: &Namespace, path: &str) -> Vec<u8> {
    let inode = namespace.find(path, FollowLinks::No).expect("find").inode;
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    namespace.read_all(&inode, &mut take).unwrap_or_else(|error| panic!("{path}: {error}"));
    bytes
}

fn is_filled(namespace: &Namespace, path: &str, byte: u8) -> bool {
    content(namespace, path) == vec![byte; FILE_BYTES]
}

fn open(store: &SharedStore, set: SetId) -> Namespace {
    Repository::new(store.clone()).open(&[set], Identity::root()).expect("open")
}

#[test]
fn a_log_that_is_mostly_overwritten_goes() {
    let subject = Subject::new();
    let before = subject.logs();
    assert!(subject.session.reclaim_data().expect("reclaim") >= 7 * FILE_BYTES as u64);
    assert!(!subject.logs().contains(&before[0]), "{before:?}");
    let resumed = subject.resumed();
    assert!(
        is_filled(resumed.namespace(), "/file", b'f')
            && is_filled(resumed.namespace(), "/other", b'o')
    );
}

/// Symptom: a snapshot made during a reclaim of data logs showed files whose bytes were gone.
/// Cause: the reclaim looked for the snapshot's marker before it was put, and the snapshot listed
/// its tables before the records in them were changed.
/// Fix: a snapshot puts its marker while no data logs are being reclaimed.
#[test]
fn a_snapshot_keeps_its_bytes() {
    let subject = Subject::new();
    let prefix = format!("ref/{}/", subject.session.set());
    let request = (When::After, Request::ListNames, &prefix[..]);
    let thread = subject.beside_request(request, |session| session.snapshot("snapshot"));
    subject.reclaim();
    let snapshot = join(&thread).expect("snapshot");
    // While the snapshot is made, nothing is deleted; once it is complete, only what it does not show.
    subject.session.reclaim_data().expect("reclaim");
    let shown = open(&subject.store, snapshot);
    assert!(is_filled(&shown, "/file", b'f') && is_filled(&shown, "/other", b'o'));
}

/// Symptom: readers of a published set could no longer read its files once the publishing session
/// was compacted.
/// Cause: only snapshots were checked, not whether the set itself was published.
/// Fix: the data logs of a published set stay.
#[test]
fn a_published_set_keeps_its_bytes() {
    let subject = Subject::new();
    let set = subject.session.publish("published").expect("publish");
    let shown = open(&subject.store, set);
    assert_eq!(subject.session.reclaim_data().expect("reclaim"), 0);
    assert!(is_filled(&shown, "/file", b'f') && is_filled(&shown, "/other", b'o'));
}

/// Symptom: files that were renamed, exchanged or linked during a reclaim of data logs lost their
/// bytes, or the reclaim failed with `NotFound`.
/// Cause: their records were found at one name, but had moved to another when they were to be
/// changed; the log was then deleted although the record at the other name showed it.
/// Fix: logs are deleted only if no record in the compacted tables shows them.
#[test]
fn names_that_move_keep_their_bytes() {
    type Step = fn(&Session) -> Result<()>;
    // Name, action, and the resulting files.
    type Case = (&'static str, Step, &'static [(&'static str, u8)]);
    let steps: [Case; 5] = [
        (
            "link",
            |session| {
                let root = session.root();
                session.link(root, b"file", root, b"new").map(drop)
            },
            &[("/file", b'f'), ("/new", b'f'), ("/other", b'o')],
        ),
        (
            "exchange",
            |session| {
                let root = session.root();
                session.rename((root, b"file"), (root, b"other"), RenameFlags::Exchange).map(drop)
            },
            &[("/file", b'o'), ("/other", b'f')],
        ),
        (
            "rename",
            |session| {
                let root = session.root();
                for (from, to) in [(&b"file"[..], b"else"), (&b"other"[..], b"tail")] {
                    session.rename((root, from), (root, to), RenameFlags::Replace)?;
                }
                Ok(())
            },
            &[("/else", b'f'), ("/tail", b'o')],
        ),
        (
            "rename and create anew",
            |session| {
                let root = session.root();
                for (from, to) in [(&b"file"[..], b"else"), (&b"other"[..], b"tail")] {
                    session.rename((root, from), (root, to), RenameFlags::Replace)?;
                    session.create(root, from, 0o644)?;
                }
                Ok(())
            },
            &[("/else", b'f'), ("/tail", b'o')],
        ),
        (
            "unlink",
            |session| session.unlink(session.root(), b"file").map(drop),
            &[("/other", b'o')],
        ),
    ];
    for (what, step, expected) in steps {
        let subject = Subject::new();
        subject.while_bytes_move(step);
        subject.reclaim();
        let resumed = subject.resumed();
        for (path, byte) in expected {
            assert!(is_filled(resumed.namespace(), path, *byte), "{what}: {path}");
        }
    }
}

/// Symptom: a file that was open when its last name was removed could not be read after a
/// compaction.
/// Cause: its bytes counted as garbage, since no record has them.
/// Fix: logs that open files show stay until these are closed.
#[test]
fn open_files_without_a_name_keep_their_bytes() {
    let subject = Subject::new();
    let (session, root) = (&subject.session, subject.session.root());
    let early = session.open_file(root, b"file").expect("open");
    let late = session.open_file(root, b"other").expect("open");
    session.unlink(root, b"file").expect("unlink");
    subject.while_bytes_move(|session| session.unlink(session.root(), b"other").map(drop));
    subject.reclaim();
    for (file, byte) in [(&early, b'f'), (&late, b'o')] {
        let read = session.file(file).read(0, FILE_BYTES).expect("read");
        assert!(read == vec![byte; FILE_BYTES]);
        session.file(file).write(10, b"written").expect("write");
        let read = session.file(file).read(0, 20).expect("read");
        assert_eq!(&read[10..17], b"written");
    }
    for file in [early, late] {
        session.close_file(file).expect("close");
    }
    let before = subject.logs();
    assert!(session.reclaim_data().expect("reclaim") > 0);
    assert!(!subject.logs().contains(&before[0]));
}

/// Damaged bytes are detected when they move, instead of getting a new checksum.
#[test]
fn damage_does_not_move() {
    let subject = Subject::new();
    let name = subject.logs().remove(0);
    let mut bytes = subject.store.get(&name, u64::MAX).expect("get").to_vec();
    bytes[FILE_BYTES / 2] ^= 1;
    subject.store.delete(&name).expect("delete");
    subject.store.put_if_absent(&name, &bytes).expect("put");
    let error = subject.session.reclaim_data().expect_err("damage");
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains(&name), "{error}");
    assert_eq!(subject.logs()[0], name);
}

/// Symptom: damage of a segment that moves in several parts got new checksums.
/// Cause: the parts of a segment have no checksum to compare.
/// Fix: the whole segment is verified before its parts move.
#[test]
fn damage_of_a_long_segment_does_not_move() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::new(store.clone());
    let session = repository.begin(&[], options()).expect("begin");
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    for (offset, length) in [(0, 6 << 20), (7 << 20, 13 << 20)] {
        session.file(&file).write(offset, &vec![b'f'; length]).expect("write");
    }
    session.file(&file).truncate(7 << 20).expect("truncate");
    session.close_file(file).expect("close");
    session.flush().expect("flush");
    let set = session.set();
    drop(session);
    let session = repository.resume(set, options()).expect("resume");
    let logs = store.list(&format!("set/{set}/data/")).expect("list");
    for log in logs {
        let mut bytes = store.get(&log.name, u64::MAX).expect("get").to_vec();
        bytes[3 << 20] ^= 1;
        store.delete(&log.name).expect("delete");
        store.put_if_absent(&log.name, &bytes).expect("put");
    }
    assert_eq!(session.reclaim_data().expect_err("damage").kind(), Kind::Corrupt);
}

/// Symptom: the bytes of a large file removed during a reclaim of data logs took room forever.
/// Cause: its segments were released, and then put again for their new place.
/// Fix: releasing segments waits until the logs are reclaimed.
#[test]
fn what_is_removed_meanwhile_stays_removed() {
    for at in 0.. {
        let Subject { store, session, .. } = Subject::new();
        let set = session.set();
        drop(session);
        let interrupted = Interrupted::idle(store.clone(), at);
        // Without a cache, each look at a table is a request.
        let repository =
            Repository::with(interrupted.clone() as SharedStore, 0, Arc::new(SystemClock));
        let session = Arc::new(repository.resume(set, options()).expect("resume"));
        let file = session.open_file(session.root(), b"file").expect("open");
        session.file(&file).write(0, b"mapped").expect("write");
        session.close_file(file).expect("close");
        let (remover, thread) = (session.clone(), Arc::new(Mutex::new(None)));
        let started = thread.clone();
        let remove = move || {
            let unlink = move || remover.unlink(remover.root(), b"file").map(drop);
            *started.lock() = Some(spawn_beside(unlink));
        };
        interrupted.begin(Box::new(|_| true), Box::new(remove));
        session.reclaim_data().expect("reclaim");
        if !interrupted.has_happened() {
            break;
        }
        join(&thread).expect("unlink");
        session.unlink(session.root(), b"other").expect("unlink");
        session.flush().expect("flush");
        drop(session);
        let resumed = Repository::new(store.clone()).resume(set, options()).expect("resume");
        resumed.reclaim_data().expect("reclaim");
        assert_eq!(logs_of(&store, set), [""; 0], "nothing is left to show, at request {at}");
    }
}

/// Symptom: files of a session were gone after its former writer, which had been taken over,
/// reclaimed data logs.
/// Cause: the former writer's tables do not show the new writer's logs.
/// Fix: a writer does not delete logs of a higher epoch.
#[test]
fn a_writer_that_was_taken_over_keeps_the_new_writers_logs() {
    for at in 0.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = Repository::new(store.clone());
        let base = plain.begin(&[], options()).expect("begin").publish("base").expect("publish");
        let interrupted = Interrupted::idle(store, at);
        // It has no tables, so that no commit discovers the other writer.
        let former = Repository::new(interrupted.clone() as SharedStore);
        let former = former.begin(&[base], options()).expect("begin");
        let set = former.set();
        let take_over = move || {
            let new = plain.resume(set, options()).expect("resume");
            write(&new, "/file", &[b'n'; FILE_BYTES]).expect("write");
            new.flush().expect("flush");
        };
        let plain = Repository::new(interrupted.clone() as SharedStore);
        interrupted.begin(Box::new(|_| true), Box::new(take_over));
        let reclaimed = former.reclaim_data();
        if !interrupted.has_happened() {
            reclaimed.expect("nobody is there");
            break;
        }
        let again = plain.resume(set, options()).expect("resume");
        let inode = again.namespace().stat("/file", FollowLinks::No).expect("stat");
        let mut bytes = 0;
        let read = again.namespace().read_all(&inode, &mut |piece| {
            bytes += piece.len();
            Ok(())
        });
        read.unwrap_or_else(|error| panic!("at {at}: its bytes are there: {error}"));
        assert_eq!(bytes, FILE_BYTES);
    }
}

/// Symptom: reading a file that it had just written failed with `NotFound` for a writer that had been
/// taken over and had not noticed.
/// Cause: the new writer deletes the logs of changes that the takeover lost.
/// Fix: a writer whose log is missing asks whether it is fenced.
#[test]
fn a_writer_that_was_taken_over_learns_it_from_a_lost_log() {
    for is_patched in [false, true] {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = Repository::new(store.clone());
        let former = repository.begin(&[], options()).expect("begin");
        former.flush().expect("flush");
        write(&former, "/file", &[b'f'; FILE_BYTES]).expect("write");
        if is_patched {
            let file = former.open_file(former.root(), b"file").expect("open");
            former.file(&file).write(7, b"patched").expect("write");
            former.close_file(file).expect("close");
        }
        let inode = former.namespace().stat("/file", FollowLinks::No).expect("stat");
        let whole = || -> Result<usize> {
            let mut bytes = 0;
            former.namespace().read_all(&inode, &mut |piece| {
                bytes += piece.len();
                Ok(())
            })?;
            Ok(bytes)
        };
        assert_eq!(whole().expect("its own file"), FILE_BYTES);

        let new = repository.resume(former.set(), options()).expect("resume");
        new.flush().expect("flush");
        assert!(new.reclaim_data().expect("reclaim") > 0, "the lost changes have no bytes");
        let error = whole().expect_err("the log is gone");
        assert_eq!(error.kind(), Kind::Fenced, "{error:?}");
        let error = former.namespace().read(&inode, 0, 1).expect_err("the log is gone");
        assert_eq!(error.kind(), Kind::Fenced, "{error:?}");
        let error = write(&former, "/other", b"o").expect_err("it knows");
        assert_eq!(error.kind(), Kind::Fenced, "{error:?}");
    }
}

/// Symptom: a session that had just been taken over failed with `Exists` at its first file.
/// Cause: its data logs were numbered by an epoch read before another writer claimed that epoch,
/// and collided with the other's logs.
/// Fix: they are numbered by the epoch that the session itself has claimed.
#[test]
fn writers_that_take_over_at_once_number_their_logs_apart() {
    for at in 0.. {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = Repository::new(store.clone());
        let former = plain.begin(&[], options()).expect("begin");
        write(&former, "/former", &[b'0'; FILE_BYTES]).expect("write");
        former.flush().expect("flush");
        let set = former.set();
        let other = Arc::new(Mutex::new(None));
        let taken = other.clone();
        let take_over = Box::new(move || {
            let session = plain.resume(set, options()).expect("resume");
            write(&session, "/first", &[b'1'; FILE_BYTES]).expect("write");
            *taken.lock() = Some(session);
        });
        let interrupted = Interrupted::new(store, at, take_over);
        let repository = Repository::new(interrupted.clone() as SharedStore);
        if let Ok(session) = repository.resume(set, options()) {
            let written = write(&session, "/second", &[b'2'; FILE_BYTES]);
            let kind = written.and_then(|()| session.flush()).map_err(|error| error.kind());
            assert!(matches!(kind, Ok(()) | Err(Kind::Fenced)), "at {at}: {kind:?}");
        }
        if other.lock().is_none() {
            break;
        }
    }
}

/// Symptom: a reader that had looked up a file got `NotFound` if the session reclaimed the data log
/// of its record before the read.
/// Cause: an inode does not know its name, so it could not be looked up again; only open files and
/// parts of files could.
/// Fix: readers that find the log missing search the session's records for the file.
#[test]
fn an_inode_that_was_looked_up_before_its_log_went_is_still_read() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let session = Repository::new(store).begin(&[], options()).expect("begin");
    write(&session, "/kept", &[b'k'; 900]).expect("write");
    write(&session, "/other", &[b'o'; 900]).expect("write");
    write(&session, "/lost", &vec![b'l'; 2 << 20]).expect("write");
    session.flush().expect("flush");
    let inodes = ["/kept", "/other"]
        .map(|path| session.namespace().stat(path, FollowLinks::No).expect("stat"));
    session.unlink(session.root(), b"lost").expect("unlink");
    assert!(session.reclaim_data().expect("reclaim") > 0);
    // Both its name and its place have changed.
    let root = session.root().clone();
    session.rename((&root, b"other"), (&root, b"moved"), RenameFlags::Replace).expect("rename");
    session.flush().expect("flush");
    for (inode, byte) in inodes.iter().zip(*b"ko") {
        assert_eq!(session.namespace().read(inode, 100, 50).expect("read")[..], [byte; 50]);
        let mut bytes = Vec::new();
        let take = &mut |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        session.namespace().read_all(inode, take).expect("read all");
        assert_eq!(bytes, [byte; 900]);
    }
    session.unlink(&root, b"kept").expect("unlink");
    session.flush().expect("flush");
    assert_eq!(
        session.namespace().read(&inodes[0], 0, 1).expect_err("removed").kind(),
        Kind::NotFound
    );
}
