// SPDX-License-Identifier: Apache-2.0
//! Data logs: when their bytes are durable, and after whose sync.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use esker_base::store::{FaultStore, MemoryStore, PosixStore, Store};
use esker_base::{Error, Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::gc::{options, write};
use crate::hooked::{HookedStore, Request, When};

/// Delay of a request for which another thread should wait.
const HELD_UP: Duration = Duration::from_millis(200);
/// Number of images of the store after power loss that are checked; each draws another outcome.
const IMAGES: usize = 64;
/// Limit of open files for tests with few descriptors.
const OPEN_FILES_MAX: u64 = 64;

/// Action of one of two threads on a session.
type Step = fn(&Session) -> Result<()>;

/// A session on a store that loses unsynced data.
struct Subject {
    fault: Arc<FaultStore>,
    hooked: HookedStore,
    session: Arc<Session>,
}

impl Subject {
    fn new() -> Self {
        let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let hooked = HookedStore::new(fault.clone());
        let repository = Repository::new(Arc::new(hooked.clone()));
        let session = Arc::new(repository.begin(&[], options()).expect("begin"));
        Self { fault, hooked, session }
    }

    /// While `first` syncs a data log, runs `second` on another thread, and makes that sync end
    /// with `synced`. Returns the results of both, and whether all bytes of data logs were durable
    /// when `second` returned.
    fn second_beside_first(
        &self,
        first: Step,
        second: Step,
        synced: Result<()>,
    ) -> (Result<()>, Result<()>, bool) {
        let (returned, has_returned) = mpsc::channel();
        let (session, fault) = (self.session.clone(), self.fault.clone());
        let second_thread = Arc::new(Mutex::new(None));
        let started = second_thread.clone();
        self.hooked.at(When::Before, Request::SyncLog, "/data/", move || {
            let thread = thread::spawn(move || {
                let outcome = second(&session);
                let is_durable = is_data_durable(&fault, &session);
                let _ = returned.send(());
                (outcome, is_durable)
            });
            *started.lock() = Some(thread);
            let _ = has_returned.recv_timeout(HELD_UP);
            synced
        });
        let first = first(&self.session);
        let thread = second_thread.lock().take().expect("a data log was synced");
        let (second, is_durable) = thread.join().expect("no panic");
        (first, second, is_durable)
    }
}

/// True if the data logs of `session` have all their bytes after any power loss.
fn is_data_durable(fault: &FaultStore, session: &Session) -> bool {
    let folder = format!("set/{}/data/", session.set());
    let logs = fault.list(&folder).expect("list");
    logs.iter().all(|log| {
        let expected = fault.get(&log.name, u64::MAX).expect("get");
        (0..IMAGES).all(|_| {
            let image = fault.after_power_loss().expect("an image");
            image.get(&log.name, u64::MAX).is_ok_and(|bytes| bytes == expected)
        })
    })
}

/// Symptom: after power loss, bytes of files were missing although a sync or a flush that covered
/// them had returned; tables were also committed whose records referred to such bytes.
/// Cause: a sync took the list of logs and synced them without a lock, so that the next sync found
/// nothing to do and returned while the first was still waiting for the device.
/// Fix: data logs are synced by one thread at a time (`DataLogs::sync`).
#[test]
fn a_sync_waits_for_one_that_began_before() {
    let pairs: [(Step, Step); 3] = [
        (Session::sync, Session::sync),
        (Session::flush, Session::sync),
        (Session::sync, Session::flush),
    ];
    for (number, (first, second)) in pairs.into_iter().enumerate() {
        let subject = Subject::new();
        write(&subject.session, "/file", &[b'x'; 5_000]).expect("write");
        let (first, second, is_durable) = subject.second_beside_first(first, second, Ok(()));
        first.expect("the first");
        second.expect("the second");
        assert!(is_durable, "pair {number}: bytes of a file that was synced are lost");
    }
}

/// Symptom: as above, if the sync being waited for failed.
#[test]
fn a_sync_fails_with_one_that_it_waited_for() {
    let subject = Subject::new();
    write(&subject.session, "/file", &[b'x'; 5_000]).expect("write");
    let failure = Err(Error::new(Kind::DeviceFailed, "a sync that fails"));
    let (first, second, _) = subject.second_beside_first(Session::sync, Session::sync, failure);
    assert_eq!(first.expect_err("it failed").kind(), Kind::DeviceFailed);
    let error = second.expect_err("its bytes are not durable");
    assert_eq!(error.kind(), Kind::Closed);
    assert!(error.to_string().contains("a sync that fails"), "{error}");
}

/// Symptom: a large file that was written during a sync of other data was corrupt after power loss,
/// even in a published set.
/// Cause: its log was listed for the next sync only once, when it was created; bytes appended after
/// that sync were never synced.
/// Fix: it is listed when all of its bytes are there (`DataLogs::write_large`).
#[test]
fn a_large_file_is_synced_to_its_end() {
    const BYTES: usize = 20 << 20;
    const SYNCED_AT: usize = 14 << 20;
    let subject = Subject::new();
    let session = &subject.session;
    let mut filled = 0;
    let mut fill = |buffer: &mut [u8]| {
        if filled == SYNCED_AT {
            write(session, "/other", b"something to sync").expect("write");
            session.sync().expect("sync");
        }
        let count = buffer.len().min(BYTES - filled);
        buffer[..count].fill(b'x');
        filled += count;
        Ok(count)
    };
    session.create_with(session.root(), b"large", 0o644, &mut fill).expect("write");
    session.sync().expect("sync");
    assert!(is_data_durable(&subject.fault, session));
}

/// Returns true if this process runs `test` with at most [`OPEN_FILES_MAX`] open files. Otherwise
/// runs it in another process that does, and returns false.
fn is_limited(test: &str) -> bool {
    const LIMITED: &str = "ESKER_TEST_OPEN_FILES";
    if std::env::var_os(LIMITED).is_some() {
        let limit = Rlimit { current: Some(OPEN_FILES_MAX), maximum: Some(OPEN_FILES_MAX) };
        setrlimit(Resource::Nofile, limit).expect("a lower limit");
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("the tests"));
    let output = command.args(["--exact", test]).env(LIMITED, "1").output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Symptom: with `ulimit -n 1024` the 501st file over 1 MiB could not be written ("Connection timed
/// out"), and from then on no file could be read; a retried file already existed.
/// Cause: each log of a large file kept two descriptors until the next sync, without a bound;
/// running out of them had no error kind of its own, and left a file behind.
/// Fix: the number of open logs is a share of the limit, the oldest are synced and closed first,
/// and a log has one descriptor.
#[test]
fn few_descriptors_are_enough_for_many_large_files() {
    const FILES: usize = OPEN_FILES_MAX as usize * 3 / 2;
    if !is_limited("data_logs::few_descriptors_are_enough_for_many_large_files") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let repository = Repository::new(Arc::new(PosixStore::new(directory.path()).expect("store")));
    let session = repository.begin(&[], options()).expect("begin");
    let root = session.root();
    let bytes = |number: usize| vec![number as u8; (1 << 20) + 1 + number];
    let name = |number: usize| format!("file-{number}").into_bytes();
    for round in ["one after the other", "all open at once"] {
        let mut open = Vec::new();
        for number in 0..FILES {
            let file = session.create_file(root, &name(number), 0o644).expect("create");
            let written = session.file(&file).write(0, &bytes(number));
            written.unwrap_or_else(|error| panic!("{round}, file {number}: {error}"));
            open.push(file);
            if round != "all open at once" {
                session.close_file(open.remove(0)).expect("close");
            }
        }
        for file in open {
            session.close_file(file).expect("close");
        }
        for number in 0..FILES {
            let inode =
                session.namespace().find(name(number), FollowLinks::No).expect("find").inode;
            let read = session.namespace().read(&inode, 0, usize::MAX).expect("read");
            assert!(read == bytes(number), "{round}, file {number}");
            session.unlink(root, &name(number)).expect("unlink");
        }
    }
    session.publish("published").expect("publish");
}

/// Symptom: every time a file over 1 MiB was opened, appended to and closed, the store got another
/// object.
/// Cause: a large file got a log of its own for every append.
/// Fix: small appends go to the packed log, and the last logs of closed files are appended to
/// again.
#[test]
fn appends_go_on_in_one_log() {
    let session = Subject::new().session;
    let root = session.root();
    let objects = || {
        let folder = format!("set/{}/data/", session.set());
        session.namespace().layers().source().store.list(&folder).expect("list").len()
    };
    let mut expected: Vec<Vec<u8>> = vec![vec![b'x'; 3 << 20]; 40];
    let name = |number: usize| format!("file-{number}").into_bytes();
    for (number, bytes) in expected.iter().enumerate() {
        let file = session.create_file(root, &name(number), 0o644).expect("create");
        session.file(&file).write(0, bytes).expect("write");
        session.close_file(file).expect("close");
    }
    let before = objects();
    let mut append = |number: usize, bytes: &[u8]| {
        let file = session.open_file(root, &name(number)).expect("open");
        session.file(&file).append(bytes).expect("append");
        session.close_file(file).expect("close");
        expected[number].extend_from_slice(bytes);
    };
    for round in 0..5 {
        for number in 0..40 {
            append(number, &[round; 1_000]);
        }
        append(39, &vec![round; 2 << 20]);
    }
    assert!(objects() <= before + 1, "{before} objects became {}", objects());
    for (number, expected) in expected.iter().enumerate() {
        let inode = session.namespace().find(name(number), FollowLinks::No).expect("find").inode;
        let read = session.namespace().read(&inode, 0, usize::MAX).expect("read");
        assert!(read == *expected, "file {number}");
    }
}

/// Symptom: a published file had lost bytes after power loss.
/// Cause: its writer had died before it synced them. The next writer found them in the page cache
/// and made the records that refer to them durable, but not the bytes.
/// Fix: a takeover syncs the logs to which replayed records refer.
#[test]
fn bytes_that_a_dead_writer_never_synced_are_durable_after_a_takeover() {
    let subject = Subject::new();
    let Subject { fault, session, .. } = subject;
    let (set, content) = (session.set(), [b'x'; 100_000]);
    write(&session, "/small", &content).expect("write");
    let file = session.create_file(session.root(), b"mapped", 0o644).expect("create");
    session.file(&file).write(0, &[b'y'; 3 << 20]).expect("write");
    session.file(&file).write(10, b"over").expect("write");
    session.close_file(file).expect("close");
    let store: Arc<dyn Store> = fault.clone();
    let repository = Repository::new(store);
    let logged = || {
        let logs = fault.list("").expect("list");
        logs.iter().filter(|log| log.name.contains("/wal/")).map(|log| log.bytes).sum::<u64>()
    };
    // The log is written through, but neither it nor the data is synced: its next write contains
    // all operations so far.
    let before = logged();
    for number in 0.. {
        write(&session, &format!("/later{number}"), b"").expect("write");
        if logged() > before {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    std::mem::forget(session);
    let session = repository.resume(set, options()).expect("resume");
    session.publish("taken-over").expect("publish");
    for _ in 0..IMAGES {
        let image = fault.after_power_loss().expect("an image");
        let repository = Repository::new(image);
        let set = repository.resolve("taken-over").expect("resolve").set;
        let namespace = repository.open(&[set], Identity::root()).expect("open");
        for path in ["/small", "/mapped"] {
            let inode = namespace.stat(path, FollowLinks::No).expect("it was in the log");
            namespace.read_all(&inode, &mut |_| Ok(())).expect("its bytes are there");
        }
    }
}

/// Symptom: synced operations were lost by a takeover, without an error.
/// Cause: bytes of a file had decayed after they were synced; replay took them for bytes that had
/// never reached the disk, and ended there.
/// Fix: an operation that a later chunk of the log shows to have been synced does not end a replay;
/// reading its file reports the damage.
#[test]
fn decay_of_synced_bytes_ends_no_replay() {
    for is_mapped in [false, true] {
        let Subject { fault, session, .. } = Subject::new();
        let set = session.set();
        if is_mapped {
            let file = session.create_file(session.root(), b"decayed", 0o644).expect("create");
            session.file(&file).write(100, &[b'y'; 3 << 20]).expect("write");
            session.close_file(file).expect("close");
        } else {
            write(&session, "/decayed", &[b'x'; 100_000]).expect("write");
        }
        session.sync().expect("sync");
        let logs = fault.list_names(&format!("set/{set}/data/")).expect("list");
        // Until a chunk is written, the log does not show what was synced.
        write(&session, "/later", b"").expect("write");
        session.sync().expect("sync");
        std::mem::forget(session);
        let name = format!("set/{set}/data/{}", logs[0]);
        let mut bytes = fault.get(&name, u64::MAX).expect("get").to_vec();
        bytes[50_000] ^= 1;
        fault.delete(&name).expect("delete");
        fault.put_if_absent(&name, &bytes).expect("put");
        let session = Repository::new(fault).resume(set, options()).expect("resume");
        session.namespace().stat("/later", FollowLinks::No).expect("it was synced");
        let inode = session.namespace().stat("/decayed", FollowLinks::No).expect("it was synced");
        let error =
            session.namespace().read_all(&inode, &mut |_| Ok(())).expect_err("it has decayed");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        assert!(error.to_string().contains(&name), "{error}");
    }
}

/// Symptom: a session could not be resumed on a machine with less memory than its largest file had
/// bytes.
/// Cause: replay read all bytes of a logged segment at once, and a segment may be a whole file.
/// Fix: it reads them in pieces.
#[test]
fn a_replay_reads_long_segments_in_pieces() {
    const FILE_BYTES: usize = 20 << 20;
    let Subject { fault, session, .. } = Subject::new();
    let set = session.set();
    write(&session, "/long", &vec![b'l'; FILE_BYTES]).expect("write");
    let file = session.open_file(session.root(), b"long").expect("open");
    session.file(&file).write(5, b"other").expect("write");
    session.close_file(file).expect("close");
    session.sync().expect("sync");
    std::mem::forget(session);
    let hooked = HookedStore::new(fault.after_power_loss().expect("an image"));
    let session = Repository::new(Arc::new(hooked.clone())).resume(set, options()).expect("resume");
    assert!(hooked.longest_range() <= 4 << 20, "{} bytes", hooked.longest_range());
    let inode = session.namespace().stat("/long", FollowLinks::No).expect("it was synced");
    let bytes = session.namespace().read(&inode, 0, 12).expect("read");
    assert_eq!((inode.size, &bytes[..]), (FILE_BYTES as u64, &b"lllllotherll"[..]));
}

/// Symptom: after a failed write of file data, other changes continued, and survived a crash that
/// the failed one did not.
/// Cause: only the data logs knew about the failure.
/// Fix: it stops the writer.
#[test]
fn a_failed_write_of_data_stops_the_writer() {
    let Subject { fault, session, .. } = Subject::new();
    write(&session, "/before", b"text").expect("write");
    // The data log is created, and then appended to.
    fault.fail_at(fault.operations() + 2, Kind::Unavailable);
    write(&session, "/file", &[b'x'; 100_000]).expect_err("no answer");
    let refused = write(&session, "/after", b"text").expect_err("it has stopped");
    assert_eq!(refused.kind(), Kind::Closed);
    assert!(refused.to_string().contains("resume the session"), "{refused}");
    session.namespace().stat("/before", FollowLinks::No).expect("reads go on");
}
