//! Data logs: when their bytes are durable, and for whom.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use esker_base::store::{FaultStore, MemoryStore, Store};
use esker_base::{Error, Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use parking_lot::Mutex;

use crate::gc::{options, write};
use crate::hooked::{HookedStore, Request, When};

/// How long a request is held up for a thread that is expected to wait for it.
const HELD_UP: Duration = Duration::from_millis(200);
/// Images of the store after power loss that are looked at: each draws another outcome.
const IMAGES: usize = 64;

/// What one of two threads does with a session.
type Step = fn(&Session) -> Result<()>;

/// A session on a store that loses what was not synced.
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

    /// While the first thread of `first` syncs a data log, another does `second`, and the sync of
    /// the first ends as `synced`. Returns what the second one returned, and whether all bytes of
    /// data logs were durable then.
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

/// Whether the data logs of `session` have all their bytes after any power loss.
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

/// Symptom: a sync or a flush returned, and after power loss the bytes of files that it covered were
/// not there; also tables were committed whose records referred to such bytes.
/// Cause: a sync took the list of logs to sync and synced them without a lock, so that the next one
/// found nothing to do and returned while the first was still waiting for the device.
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

/// Symptom: as above, where the sync that was waited for failed.
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

/// Symptom: a large file that was written while something else was synced was corrupt after power
/// loss, also in a set that was published.
/// Cause: its log was listed for the next sync once, when it was begun; after that sync nobody knew
/// that it had more bytes.
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
