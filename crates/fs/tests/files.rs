// SPDX-License-Identifier: Apache-2.0
//! Open files, compared with byte vectors: random writes, also in place, truncation, holes, copies,
//! renames and removals while they are open, with flushes, compactions, crashes, snapshots and
//! stacks in between.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use esker_base::random::Random;
use esker_base::store::{FaultStore, MemoryStore, PosixStore, SharedStore};
use esker_base::{Error, Kind};
use esker_fs::file::{BUFFER_BYTES_MAX, OpenFile};
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::SetId;
use esker_table::tree::{Compaction, Durability, TreeOptions};

use crate::campaign;
use crate::hooked::{HookedStore, Request, When};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(durability: Durability) -> SessionOptions {
    let tree = TreeOptions {
        durability,
        compaction: Compaction::Tiered,
        memory_bytes: 1 << 18,
        background: false,
        ..TreeOptions::default()
    };
    SessionOptions {
        identity: Identity::root(),
        tree,
        // Prevents beats between the requests that a test counts.
        heartbeat: None,
        ..SessionOptions::default()
    }
}

fn check(namespace: &Namespace, model: &Model, context: &str) {
    for (name, bytes) in model {
        let found = namespace.find([b"/", &name[..]].concat(), FollowLinks::No);
        let inode = found.unwrap_or_else(|error| panic!("{context}: {error}")).inode;
        assert_eq!(inode.size, bytes.len() as u64, "{context}: size of {name:?}");
        let mut read = Vec::new();
        let all = namespace.read_all(&inode, &mut |piece| {
            read.extend_from_slice(piece);
            Ok(())
        });
        all.unwrap_or_else(|error| panic!("{context}: {name:?}: {error}"));
        assert!(read == *bytes, "{context}: content of {name:?} differs");
    }
    let mut names = Vec::new();
    for entry in namespace.read_dir(namespace.root(), &Default::default(), 1_000).expect("list") {
        assert_eq!(entry.inode.size, model[&entry.name].len() as u64, "{context}: listed size");
        names.push(entry.name);
    }
    names.sort();
    assert!(names.iter().eq(model.keys()), "{context}: names");
}

/// A session under test, its open files, and their expected content.
struct Subject {
    session: Session,
    open: BTreeMap<Vec<u8>, Arc<OpenFile>>,
    /// The store's files of those that are written in place.
    in_place: BTreeMap<Vec<u8>, File>,
    model: Model,
    /// Published sets, and what they must show forever.
    snapshots: Vec<(SetId, Model)>,
}

fn pattern(random: &mut Random, length: usize) -> Vec<u8> {
    let start = random.below(251) as usize;
    (0..length).map(|at| (start + at * 7) as u8).collect()
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

impl Subject {
    fn new(session: Session, model: Model) -> Self {
        let (open, in_place) = (BTreeMap::new(), BTreeMap::new());
        Self { session, open, in_place, model, snapshots: Vec::new() }
    }

    fn file(&mut self, name: &[u8]) -> Arc<OpenFile> {
        if let Some(file) = self.open.get(name) {
            return file.clone();
        }
        let root = self.session.root().clone();
        let file = match self.model.contains_key(name) {
            true => self.session.open_file(&root, name).expect("open"),
            false => self.session.create_file(&root, name, 0o644).expect("create"),
        };
        self.model.entry(name.to_vec()).or_default();
        self.open.insert(name.to_vec(), file.clone());
        file
    }

    fn close(&mut self, name: &[u8]) {
        if let Some(file) = self.open.remove(name) {
            if self.in_place.remove(name).is_some() {
                assert!(
                    !self.session.file(&file).end_in_place().expect("end"),
                    "nobody gave set-id bits"
                );
            }
            self.session.close_file(file).expect("close");
        }
    }

    /// Writes through the session or, if `is_direct`, through the store's file if there is one.
    fn write(&mut self, name: &[u8], offset: usize, bytes: &[u8], is_direct: bool) {
        let file = self.file(name);
        match self.in_place.get(name).filter(|_| is_direct) {
            Some(direct) => direct.write_all_at(bytes, offset as u64).expect("write"),
            None => self.session.file(&file).write(offset as u64, bytes).expect("write"),
        }
        put(self.model.get_mut(name).expect("opened"), offset, bytes);
    }

    fn begin_in_place(&mut self, name: &[u8]) {
        let file = self.file(name);
        let begun = self.session.file(&file).begin_in_place().expect("begin");
        if let Some(direct) = begun {
            assert!(self.model[name].iter().all(|byte| *byte == 0), "it has bytes already");
            let before = self.in_place.insert(name.to_vec(), direct);
            assert!(before.is_none(), "it is written in place already");
        }
    }

    fn snapshot(&mut self, random: &mut Random) {
        let name = format!("snapshot{:x}", random.u128());
        let set = self.session.snapshot(&name).expect("snapshot");
        self.snapshots.push((set, self.model.clone()));
    }

    fn close_all(&mut self) {
        let names: Vec<_> = self.open.keys().cloned().collect();
        names.iter().for_each(|name| self.close(name));
    }

    fn step(&mut self, random: &mut Random) {
        let name = vec![b'a' + random.below(5) as u8];
        let other = vec![b'a' + random.below(5) as u8];
        let scale = [300, 5_000, 60_000, BUFFER_BYTES_MAX + 5_000][random.below(4) as usize];
        let offset = random.below(scale as u64) as usize;
        let length = 1 + random.below(scale as u64 / 3) as usize;
        match random.below(24) {
            0..7 => {
                let bytes = pattern(random, length);
                self.write(&name, offset, &bytes, random.below(2) == 0);
            }
            7..9 => {
                let (file, bytes) = (self.file(&name), pattern(random, length.min(2_000)));
                let model = self.model.get_mut(&name).expect("opened");
                let at = self.session.file(&file).append(&bytes).expect("append");
                assert_eq!(at, model.len() as u64);
                model.extend_from_slice(&bytes);
            }
            9 => self.truncate(&name, offset),
            10 => self.truncate(&name, 0),
            11 => self.punch(&name, offset, length, random.below(2) == 0),
            12 => self.copy(&name, &other, offset..offset + length, random.below(scale as u64)),
            13 => self.close(&name),
            14 => self.set_size(&name, offset),
            15 => self.rename(&name, &other),
            16 => self.unlink(&name),
            17 => {
                let file = self.file(&name);
                self.check_seeks(&file, &name, offset as u64);
                let read = self.session.file(&file).read(offset as u64, length).expect("read");
                let model = &self.model[&name];
                let end = model.len().min(offset + length);
                assert_eq!(&read[..], model.get(offset..end).unwrap_or_default());
            }
            18 => self.session.flush().expect("flush"),
            19..22 => self.begin_in_place(&name),
            22 if self.snapshots.len() < 6 => self.snapshot(random),
            _ => match random.below(3) {
                0 => self.session.compact().expect("compact"),
                1 => self.session.sync().expect("sync"),
                _ => {
                    let file = self.file(&name);
                    self.session.file(&file).sync().expect("sync");
                }
            },
        }
    }

    fn truncate(&mut self, name: &[u8], size: usize) {
        let file = self.file(name);
        self.session.file(&file).truncate(size as u64).expect("truncate");
        self.model.get_mut(name).expect("opened").resize(size, 0);
    }

    fn punch(&mut self, name: &[u8], offset: usize, length: usize, keeps_size: bool) {
        let (file, range) = (self.file(name), offset as u64..(offset + length) as u64);
        self.session.file(&file).punch(range, keeps_size).expect("punch");
        let model = self.model.get_mut(name).expect("opened");
        if !keeps_size && model.len() < offset + length {
            model.resize(offset + length, 0);
        }
        let end = model.len().min(offset + length);
        if offset < end {
            model[offset..end].fill(0);
        }
    }

    fn copy(&mut self, name: &[u8], other: &[u8], range: Range<usize>, to_offset: u64) {
        let (from, to) = (self.file(name), self.file(other));
        let source = range.start as u64..range.end as u64;
        let copied = self.session.file(&from).copy_range(source.clone(), &to, to_offset);
        let reached = to_offset + range.len() as u64;
        if name == other && source.start < reached && to_offset < source.end {
            assert!(copied.is_err());
            return;
        }
        let model = &self.model[name];
        let end = model.len().min(range.end);
        let bytes = model.get(range.start..end).unwrap_or_default().to_vec();
        assert_eq!(copied.expect("copy"), bytes.len() as u64);
        if !bytes.is_empty() {
            put(self.model.get_mut(other).expect("opened"), to_offset as usize, &bytes);
        }
    }

    /// Sets the size by name, whether or not the file is open.
    fn set_size(&mut self, name: &[u8], size: usize) {
        if let Some(model) = self.model.get_mut(name) {
            let changes =
                AttributeChanges { size: Some(size as u64), ..AttributeChanges::default() };
            self.session.setattr(self.session.root(), name, &changes).expect("setattr");
            model.resize(size, 0);
        }
    }

    fn rename(&mut self, name: &[u8], other: &[u8]) {
        if name == other || !self.model.contains_key(name) {
            return;
        }
        let root = self.session.root().clone();
        let replace = RenameFlags::Replace;
        self.session.rename((&root, name), (&root, other), replace).expect("rename");
        let content = self.model.remove(name).expect("there");
        self.model.insert(other.to_vec(), content);
        self.close(other);
        if let Some(file) = self.open.remove(name) {
            self.open.insert(other.to_vec(), file);
        }
        if let Some(direct) = self.in_place.remove(name) {
            self.in_place.insert(other.to_vec(), direct);
        }
    }

    fn unlink(&mut self, name: &[u8]) {
        if self.model.remove(name).is_none() {
            return;
        }
        self.session.unlink(self.session.root(), name).expect("unlink");
        if let Some(file) = self.open.get(name) {
            // It keeps working without a name.
            self.session.file(file).write(3, b"orphan").expect("write");
            assert_eq!(&self.session.file(file).read(3, 6).expect("read")[..], b"orphan");
            assert_eq!(self.session.file(file).stat().expect("stat").nlink, 0);
        }
        self.close(name);
    }

    /// Seeking reports holes only where bytes are zeros; data begins before any other byte.
    fn check_seeks(&self, file: &Arc<OpenFile>, name: &[u8], offset: u64) {
        let model = &self.model[name];
        let Ok(data) = self.session.file(file).seek_data(offset) else {
            assert!(offset >= model.len() as u64);
            return;
        };
        let data = data.unwrap_or(model.len() as u64);
        assert!(model[offset as usize..data as usize].iter().all(|byte| *byte == 0));
        let hole = self.session.file(file).seek_hole(offset).expect("before the end");
        assert!(hole >= offset && hole <= model.len() as u64);
        assert!(hole == offset || data == offset, "either data or a hole begins at once");
    }
}

fn run(seed: u64, steps: usize, store: SharedStore) {
    let mut random = Random::from_seed(seed);
    let repository = Repository::new(store.clone());
    let durability = [Durability::None, Durability::Async, Durability::Always];
    let durability = durability[random.below(3) as usize];
    let session = repository.begin(&[], options(durability)).expect("begin");
    let mut subject = Subject::new(session, Model::new());
    for step in 0..steps {
        subject.step(&mut random);
        let context = format!("seed {seed}, step {step}");
        if step % 16 == 0 {
            check(subject.session.namespace(), &subject.model, &context);
        }
        if step % 97 == 96 {
            if random.below(2) == 0 {
                subject.close_all();
            }
            let snapshots = std::mem::take(&mut subject.snapshots);
            subject = match random.below(3) {
                0 => resumed(&repository, subject, durability),
                1 => above(&repository, subject, durability, step),
                _ => squashed(&repository, subject, durability, step),
            };
            check(subject.session.namespace(), &subject.model, &context);
            for (set, model) in snapshots {
                let shown = repository.open(&[set], Identity::root()).expect("open");
                check(&shown, &model, &format!("{context}: snapshot {set}"));
            }
            let sound = repository.verify(&VerifyOptions::default()).expect("verify");
            assert!(sound.is_sound(), "{context}: {:?}", sound.findings);
        }
    }
}

/// Resumes the session after its writer has died, with everything that was synced.
fn resumed(repository: &Repository, subject: Subject, durability: Durability) -> Subject {
    let Subject { session, model, .. } = subject;
    session.sync().expect("sync");
    let set = session.set();
    drop(session);
    let session = repository.resume(set, options(durability)).expect("resume");
    Subject::new(session, model)
}

/// Publishes the session. Later writes in place do not affect the published set.
fn published(subject: Subject, step: usize) -> (SetId, Model) {
    let set = subject.session.publish(&format!("step{step}")).expect("publish");
    for direct in subject.in_place.values() {
        direct.write_all_at(b"too late", 1).expect("write");
    }
    (set, subject.model)
}

/// Returns a session on top of what the last one published.
fn above(
    repository: &Repository,
    subject: Subject,
    durability: Durability,
    step: usize,
) -> Subject {
    let (set, model) = published(subject, step);
    let session = repository.begin(&[set], options(durability)).expect("begin");
    Subject::new(session, model)
}

/// Like [`above`], on a squashed stack.
fn squashed(
    repository: &Repository,
    subject: Subject,
    durability: Durability,
    step: usize,
) -> Subject {
    let (set, model) = published(subject, step);
    let (squashed, _) = repository.squash(&[set], &Default::default()).expect("squash");
    repository.publish(squashed, &format!("squashed{step}")).expect("publish");
    let session = repository.begin(&[squashed], options(durability)).expect("begin");
    Subject::new(session, model)
}

#[test]
fn open_files_hold_what_was_written() {
    campaign::quick(0..8, |seed| run(seed, 600, Arc::new(MemoryStore::new())));
}

#[test]
fn files_that_are_written_in_place_hold_what_was_written() {
    campaign::quick(0..6, |seed| run_on_files(seed, 600));
}

/// Like [`run`], on a store of files, which allows writing in place.
fn run_on_files(seed: u64, steps: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    run(seed, steps, Arc::new(PosixStore::new(directory.path()).expect("a store")));
}

/// Returns the total bytes of all data logs of a session.
fn data_bytes(repository: &Repository, session: &Session) -> u64 {
    let objects = repository.store().list(&format!("set/{}/data/", session.set())).expect("list");
    objects.iter().map(|object| object.bytes).sum()
}

#[test]
fn compaction_gives_up_logs_that_are_overwritten() {
    const MIB: usize = 1 << 20;
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = repository.begin(&[], options(Durability::Async)).expect("begin");
    let large = session.create_file(session.root(), b"large", 0o644).expect("create");
    let mut expected = vec![0; 8 * MIB];
    for round in 0..4u8 {
        for at in (0..8 * MIB).step_by(MIB) {
            expected[at..at + MIB].fill(round + 1);
            session.file(&large).write(at as u64, &expected[at..at + MIB]).expect("write");
        }
    }
    for number in 0..64 {
        let name = format!("small{number}");
        let file = session.create_file(session.root(), name.as_bytes(), 0o644).expect("create");
        session.file(&file).write(0, &vec![number; MIB / 2]).expect("write");
        session.close_file(file).expect("close");
        if number % 8 != 0 {
            session.unlink(session.root(), name.as_bytes()).expect("unlink");
        }
    }
    let before = data_bytes(&repository, &session);
    assert!(before >= 64 * MIB as u64, "{before}");
    // Open logs stay: that of the large file, until it is closed.
    session.compact().expect("compact");
    assert_eq!(&session.file(&large).read(0, 8 * MIB).expect("read")[..], &expected[..]);
    session.close_file(large).expect("close");
    let set = session.set();
    drop(session);
    // A resumed session writes to other logs, so that all earlier ones may go.
    let session = repository.resume(set, options(Durability::Async)).expect("resume");
    session.compact().expect("compact");
    let after = data_bytes(&repository, &session);
    assert!(after <= 13 * MIB as u64, "{after} bytes for 12 MiB that are shown");
    let mut model = Model::from([(b"large".to_vec(), expected)]);
    for number in (0..64).step_by(8) {
        model.insert(format!("small{number}").into_bytes(), vec![number; MIB / 2]);
    }
    check(session.namespace(), &model, "after compaction");
    session.snapshot("snapshot").expect("snapshot");
    session.unlink(session.root(), b"large").expect("unlink");
    session.compact().expect("compact");
    assert!(data_bytes(&repository, &session) >= 12 * MIB as u64, "a snapshot shows them");
    let sound = repository.verify(&VerifyOptions::default()).expect("verify");
    assert!(sound.is_sound(), "{:?}", sound.findings);
}

/// Symptom: a file whose close failed for lack of room stayed open forever, so that its bytes were
/// not freed after its removal.
/// Fix: the next flush closes it.
#[test]
fn a_file_whose_close_found_no_room_is_given_back_by_the_next_flush() {
    let name = b"file";
    let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::new(faults.clone());
    let session = repository.begin(&[], options(Durability::Async)).expect("begin");
    let file = session.create_file(session.root(), name, 0o600).expect("create");
    session.file(&file).write(0, &vec![7; 2 * BUFFER_BYTES_MAX]).expect("write");
    session.file(&file).sync().expect("sync");
    session.create(session.root(), b"other", 0o600).expect("create");
    faults.fail_one_in(1, Kind::NoSpace);
    let is_full = |result: esker_base::Result<()>| {
        assert_eq!(result.expect_err("no room").kind(), Kind::NoSpace);
    };
    is_full(session.sync());
    // Its times change, which needs no room yet.
    session.file(&file).allocate(0..1, true).expect("allocate");
    is_full(session.close_file(file));
    faults.fail_one_in(0, Kind::NoSpace);
    session.unlink(session.root(), name).expect("unlink");
    session.compact().expect("compact");
    assert_eq!(data_bytes(&repository, &session), 0, "nothing shows what the file had");
}

/// Data synced before power loss is there, even if the store tore later writes.
#[test]
fn synced_writes_survive_power_loss_at_every_request() {
    let name = b"file";
    let mut stop = 0;
    loop {
        let inner = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 5));
        let store: SharedStore = inner.clone();
        let repository = Repository::new(store.clone());
        let session = repository.begin(&[], options(Durability::Async)).expect("begin");
        let set = session.set();
        session.sync().expect("sync");
        inner.stop_at(inner.operations() + stop, esker_base::store::FaultEffect::Partial);
        let mut synced: Option<Vec<u8>> = None;
        let mut states = Vec::new();
        let outcome: esker_base::Result<()> = (|| {
            let file = session.create_file(session.root(), name, 0o600)?;
            let mut model = Vec::new();
            for (step, offset) in [0u64, 700, 1_200_000, 5_000, 20, 2_000_000].iter().enumerate() {
                let bytes = vec![step as u8 + 1; 900];
                session.file(&file).write(*offset, &bytes)?;
                put(&mut model, *offset as usize, &bytes);
                states.push(model.clone());
                session.file(&file).sync()?;
                synced = Some(model.clone());
            }
            session.file(&file).truncate(1_000_000)?;
            model.truncate(1_000_000);
            states.push(model.clone());
            session.file(&file).sync()?;
            synced = Some(model);
            Ok(())
        })();
        let finished = outcome.is_ok();
        drop(session);
        let repository = Repository::new(inner.after_power_loss().expect("what is left"));
        let session = repository.resume(set, options(Durability::Async)).expect("resume");
        let found = session.namespace().find("/file", FollowLinks::No);
        match (&synced, found) {
            (None, Err(_)) => {}
            (synced, found) => {
                let inode = found.expect("a synced file").inode;
                let mut read = Vec::new();
                let all = session.namespace().read_all(&inode, &mut |piece| {
                    read.extend_from_slice(piece);
                    Ok(())
                });
                all.expect("readable");
                let at_least = synced.as_ref().map_or(0, |synced| {
                    states.iter().position(|state| state == synced).expect("a state")
                });
                let is_state = states.iter().skip(at_least).any(|state| *state == read);
                assert!(is_state || (synced.is_none() && read.is_empty()), "stop {stop}");
            }
        }
        let sound = repository.verify(&VerifyOptions::default()).expect("verify");
        assert!(sound.is_sound(), "stop {stop}: {:?}", sound.findings);
        if finished {
            break;
        }
        stop += 1;
    }
    assert!(stop > 15, "the workload has store requests to stop at");
}

/// Written data is visible to every later look-up, even while the file is being closed.
#[test]
fn who_looks_at_a_file_that_is_closed_sees_all_of_it() {
    let repository = Repository::new(Arc::new(MemoryStore::new()));
    let session = repository.begin(&[], options(Durability::Async)).expect("begin");
    let (root, name) = (session.root().clone(), b"file");
    session.create(&root, name, 0o644).expect("create");
    let (written, looks) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let look = || {
            while written.load(Ordering::SeqCst) < 60_000 {
                let before = written.load(Ordering::SeqCst);
                let found = session.namespace().lookup(&root, name, false).expect("look up").size;
                assert!(found >= before, "looked up {found} of {before} bytes");
                let before = written.load(Ordering::SeqCst);
                let listed =
                    session.namespace().read_dir(&root, &Default::default(), 9).expect("list");
                let found = listed[0].inode.size;
                assert!(found >= before, "listed {found} of {before} bytes");
                looks.fetch_add(1, Ordering::SeqCst);
            }
        };
        let readers = [scope.spawn(look), scope.spawn(look)];
        for round in 0..20_000 {
            // On a busy machine everything could be written before anybody reads.
            while looks.load(Ordering::SeqCst) < round / 100
                && !readers.iter().any(|reader| reader.is_finished())
            {
                std::thread::yield_now();
            }
            let file = session.open_file(&root, name).expect("open");
            let at = session.file(&file).append(b"abc").expect("append");
            written.store(at + 3, Ordering::SeqCst);
            session.close_file(file).expect("close");
        }
    });
    assert!(looks.into_inner() > 100, "nobody looked");
}

/// Symptom: writers of a file waited for all readers of it on a slow store.
/// Cause: reads held the file's lock until the store had answered.
/// Fix: the lock is held only to find where the bytes are. If the content is truncated meanwhile,
/// the read starts over, so that it shows the old content or the new, and not zeros.
#[test]
fn writers_do_not_wait_for_readers() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let hooked = HookedStore::new(Arc::new(MemoryStore::new()));
    let repository = Repository::new(Arc::new(hooked.clone()));
    let session = Arc::new(repository.begin(&[], options(Durability::Async)).expect("begin"));
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    for _ in 0..3 {
        session.file(&file).append(&vec![b'o'; 1 << 20]).expect("append");
    }
    session.file(&file).flush().expect("flush");
    let (writing, written) = (session.clone(), file.clone());
    hooked.at(When::Before, Request::GetRange, "/data/", move || {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            writing.file(&written).truncate(0).expect("truncate");
            writing.file(&written).write(0, b"new").expect("write");
            let _ = done.send(());
        });
        is_done.recv_timeout(PATIENCE).map_err(|_| Error::new(Kind::Unavailable, "it waits"))
    });
    let read = session.file(&file).read(0, 1_000).expect("nobody waits");
    assert!(hooked.has_acted());
    assert_eq!(&read[..], b"new");
}

/// Symptom: a snapshot made during a truncation, or a set resumed after a crash, showed the file
/// with its old size and zeros beyond the cut.
/// Cause: its segments were cut at once, but the record with the new size was written only when the
/// file was flushed.
/// Fix: the record comes first. Bytes beyond its end are not visible.
#[test]
fn a_file_that_is_cut_off_has_its_old_content_or_the_new() {
    let hooked = HookedStore::new(Arc::new(MemoryStore::new()));
    let repository = Repository::new(Arc::new(hooked.clone()));
    let session = Arc::new(repository.begin(&[], options(Durability::Async)).expect("begin"));
    let found = |namespace: &Namespace, path: &str| {
        let inode = namespace.stat(path, FollowLinks::No).expect("stat");
        let mut found = Vec::new();
        let take = &mut |bytes: &[u8]| {
            found.extend_from_slice(bytes);
            Ok(())
        };
        namespace.read_all(&inode, take).expect("read");
        found
    };
    for size in [0, 1 << 20] {
        let name = format!("cut-{size}");
        let file = session.create_file(session.root(), name.as_bytes(), 0o644).expect("create");
        session.file(&file).write(0, &vec![b'o'; 2 << 20]).expect("write");
        session.file(&file).flush().expect("flush");
        let (cutting, cut) = (session.clone(), file.clone());
        hooked.at(When::Before, Request::Put, "ref/", move || cutting.file(&cut).truncate(size));
        let set = session.snapshot(&name).expect("snapshot");
        assert!(hooked.has_acted());
        let shown = repository.open(&[set], Identity::root()).expect("open");
        let content = found(&shown, &format!("/{name}"));
        assert!([size as usize, 2 << 20].contains(&content.len()));
        assert!(content.iter().all(|byte| *byte == b'o'), "neither");
    }
    let other = session.create_file(session.root(), b"other", 0o644).expect("create");
    session.file(&other).sync().expect("sync");
    let resumed = repository.resume(session.set(), options(Durability::Async)).expect("resume");
    for path in ["/cut-0", "/cut-1048576"] {
        assert!(found(resumed.namespace(), path).iter().all(|byte| *byte == b'o'), "{path}");
    }
}
