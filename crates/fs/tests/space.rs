// SPDX-License-Identifier: Apache-2.0
//! Sessions on a store that is temporarily full, starting at each operation of a workload. Programs
//! that retry find everything as it should be, nothing is left over, and synced data survives a
//! crash while the store is full.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::{ManualClock, SystemClock};
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Clock, Kind, Random, Result};
use esker_fs::file::OpenFile;
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_table::manifest::Manifest;
use esker_table::object_name::ObjectFolder;
use esker_table::tree::{Compaction, Durability, TreeOptions};

use crate::gc::{eager, later};
use crate::model::check_sound;

/// Longer than any wait of a session before a retry.
const LATER: Duration = Duration::from_secs(3_600);
/// Length to which names are padded, so that a few hundred fill the memory.
const NAME_BYTES: usize = 200;

/// Files and their content.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

enum Step {
    Empty(Vec<u8>),
    Make(Vec<u8>, Vec<u8>),
    Write(Vec<u8>, usize, Vec<u8>),
    Rename(Vec<u8>, Vec<u8>),
    Unlink(Vec<u8>),
    Sync,
    Flush,
    Compact,
}

fn options(durability: Durability) -> SessionOptions {
    let tree = TreeOptions {
        durability,
        compaction: Compaction::Full,
        memory_bytes: 1 << 19,
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

fn name(number: u64) -> Vec<u8> {
    let mut name = format!("{number:08}").into_bytes();
    name.resize(NAME_BYTES, b'x');
    name
}

fn workload() -> Vec<Step> {
    let mut random = Random::from_seed(3);
    let mut steps = Vec::new();
    let bytes = |random: &mut Random, count: u64| {
        let mut bytes = vec![0; 1 + random.below(count) as usize];
        random.fill(&mut bytes);
        bytes
    };
    for number in 0..900 {
        steps.push(Step::Empty(name(number)));
        if number % 30 == 0 {
            steps.push(Step::Make(name(number / 2), bytes(&mut random, 5_000)));
        }
        if number % 50 == 7 {
            let at = random.below(20_000) as usize;
            steps.push(Step::Write(name(number / 9), at, bytes(&mut random, 3_000)));
        }
        match number {
            n if n % 100 == 40 => steps.push(Step::Rename(name(n - 1), name(n))),
            n if n % 100 == 80 => steps.push(Step::Unlink(name(n))),
            120 | 620 => steps.push(Step::Sync),
            200 | 500 => steps.push(Step::Flush),
            700 => steps.push(Step::Compact),
            _ => {}
        }
    }
    steps
}

/// Accepts `kind`, in case a refused step was already done in part.
fn unless(done: Result<()>, kind: Kind) -> Result<()> {
    done.or_else(|error| if error.kind() == kind { Ok(()) } else { Err(error) })
}

impl Step {
    fn run(&self, session: &Session) -> Result<()> {
        let root = session.root().clone();
        let is_there = |name: &[u8]| session.namespace().lookup(&root, name, false).is_ok();
        match self {
            Self::Empty(name) => unless(session.create(&root, name, 0o644).map(drop), Kind::Exists),
            Self::Make(name, bytes) => {
                let mut rest = &bytes[..];
                let mut source = |buffer: &mut [u8]| {
                    let count = rest.len().min(buffer.len());
                    buffer[..count].copy_from_slice(&rest[..count]);
                    rest = &rest[count..];
                    Ok(count)
                };
                if is_there(name) {
                    session.rewrite(&root, name, &mut source).map(drop)
                } else {
                    session.create_with(&root, name, 0o644, &mut source).map(drop)
                }
            }
            Self::Write(name, offset, bytes) => {
                let file = match is_there(name) {
                    true => session.open_file(&root, name)?,
                    false => session.create_file(&root, name, 0o644)?,
                };
                let written = session.file(&file).write(*offset as u64, bytes);
                let synced = written.and_then(|()| session.file(&file).sync());
                session.close_file(file).and(synced)
            }
            Self::Rename(from, to) => {
                let renamed =
                    session.rename((&root, from), (&root, to), RenameFlags::Replace).map(drop);
                if is_there(to) { unless(renamed, Kind::NotFound) } else { renamed }
            }
            Self::Unlink(name) => unless(session.unlink(&root, name).map(drop), Kind::NotFound),
            Self::Sync => session.sync(),
            Self::Flush => session.flush(),
            Self::Compact => session.compact(),
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Self::Empty(name) => drop(model.entry(name.clone()).or_default()),
            Self::Make(name, bytes) => drop(model.insert(name.clone(), bytes.clone())),
            Self::Write(name, offset, bytes) => {
                let file = model.entry(name.clone()).or_default();
                file.resize(file.len().max(offset + bytes.len()), 0);
                file[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Self::Rename(from, to) => {
                let file = model.remove(from).expect("it was made");
                model.insert(to.clone(), file);
            }
            Self::Unlink(name) => drop(model.remove(name)),
            Self::Sync | Self::Flush | Self::Compact => {}
        }
    }

    /// Returns the names that the step changes.
    fn names(&self) -> Vec<&Vec<u8>> {
        match self {
            Self::Empty(name)
            | Self::Make(name, _)
            | Self::Write(name, ..)
            | Self::Unlink(name) => vec![name],
            Self::Rename(from, to) => vec![from, to],
            Self::Sync | Self::Flush | Self::Compact => vec![],
        }
    }
}

fn content(namespace: &Namespace, name: &[u8]) -> Result<Vec<u8>> {
    let inode = namespace.find([b"/", name].concat(), FollowLinks::No)?.inode;
    let mut bytes = Vec::new();
    namespace.read_all(&inode, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

fn check(namespace: &Namespace, model: &Model, context: &str) {
    let listed = namespace.read_dir(namespace.root(), &Default::default(), 10_000).expect("list");
    let names: BTreeSet<Vec<u8>> = listed.into_iter().map(|entry| entry.name).collect();
    assert!(names.iter().eq(model.keys()), "{context}: names");
    for (name, bytes) in model {
        let found = content(namespace, name).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(found == *bytes, "{context}: content");
    }
}

struct Run {
    store: Arc<FaultStore>,
    memory: SharedStore,
    clock: Arc<ManualClock>,
    repository: Repository,
    session: Session,
}

fn begin(durability: Durability) -> Run {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let store = Arc::new(FaultStore::new(memory.clone(), 5));
    let clock = Arc::new(ManualClock::new(SystemClock.now_ns()));
    let repository = Repository::with(store.clone(), 1 << 20, clock.clone());
    let session = repository.begin(&[], options(durability)).expect("begin");
    Run { store, memory, clock, repository, session }
}

impl Run {
    /// Repeats `act` until it is not refused; makes room after `refusals` refusals in total.
    fn insist(
        &self,
        refused: &mut usize,
        refusals: usize,
        mut act: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        while let Err(error) = act() {
            if error.kind() != Kind::NoSpace || *refused >= refusals {
                return Err(error);
            }
            *refused += 1;
            self.clock.advance(LATER);
            if *refused == refusals {
                self.store.make_room();
            }
        }
        Ok(())
    }
}

/// Runs all steps, publishes, collects garbage; returns the number of operations and of refused
/// steps.
fn go_on_after(durability: Durability, steps: &[Step], from: u64, refusals: usize) -> (u64, usize) {
    let run = begin(durability);
    let context = format!("{durability:?}, full from {from}");
    run.store.fill_at(from, FaultEffect::None);
    let (mut model, mut refused) = (Model::new(), 0);
    for step in steps {
        let done = run.insist(&mut refused, refusals, || step.run(&run.session));
        done.unwrap_or_else(|error| panic!("{context}: {error:?}"));
        step.apply(&mut model);
    }
    check(run.session.namespace(), &model, &context);
    let set = run.session.set();
    let published = run.insist(&mut refused, refusals, || run.session.publish("name").map(drop));
    published.unwrap_or_else(|error| panic!("{context}: {error:?}"));
    let operations = run.store.operations();
    run.store.make_room();
    check_sound(&run.repository);
    drop(run.session);
    let later = later(&run.memory);
    let collected = later.gc(&eager()).expect("gc");
    assert!(collected.problems.is_empty() && collected.sets.is_empty(), "{context}");
    let shown = Manifest::load(&*run.memory, set).expect("manifest").tables;
    let shown: BTreeSet<String> = shown.iter().map(|table| table.name()).collect();
    for object in run.memory.list(&format!("set/{set}/")).expect("list") {
        let is_known = shown.contains(&object.name)
            || object.name.starts_with(&ObjectFolder::Manifests(set).to_string())
            || object.name.contains("/data/");
        assert!(is_known, "{context}: {} is left", object.name);
    }
    assert_eq!(later.gc(&eager()).expect("gc").objects, 0, "{context}: data is left");
    let namespace = later.open(&[set], Identity::root()).expect("open");
    check(&namespace, &model, &context);
    check_sound(&later);
    (operations, refused)
}

#[test]
fn a_session_goes_on_once_a_full_store_has_room() {
    let steps = workload();
    for durability in [Durability::None, Durability::Async, Durability::Always] {
        let (operations, _) = go_on_after(durability, &steps, u64::MAX, 0);
        let begun = begin(durability).store.operations();
        // At durability `always` every change takes an operation or two: sample them.
        let stride = if durability == Durability::Always { 127 } else { 7 };
        let (mut runs, mut refused) = (0, 0);
        for from in (begun + 1..=operations).step_by(stride) {
            refused += go_on_after(durability, &steps, from, 1 + from as usize % 5).1;
            runs += 1;
        }
        println!("{durability:?}: {refused} refusals in {runs} runs, of {operations} operations");
        assert!(refused > runs && runs > 20, "{refused} refusals in {runs} runs");
    }
}

/// Data synced and not changed since is there, regardless of the effects of refused requests.
#[test]
fn a_session_that_dies_on_a_full_store_loses_nothing_that_was_synced() {
    let steps = workload();
    for durability in [Durability::None, Durability::Async, Durability::Always] {
        for (from, effect) in (20..1_000)
            .step_by(90)
            .zip([FaultEffect::None, FaultEffect::Partial, FaultEffect::Full].into_iter().cycle())
        {
            let run = begin(durability);
            run.store.fill_at(from, effect);
            let (mut model, mut synced, mut changed) =
                (Model::new(), Model::new(), BTreeSet::new());
            let mut refused = 0;
            for step in &steps {
                changed.extend(step.names());
                if run.insist(&mut refused, 3, || step.run(&run.session)).is_err() {
                    break;
                }
                if refused == 3 {
                    run.store.fill_at(0, effect);
                }
                step.apply(&mut model);
                if matches!(step, Step::Sync | Step::Flush | Step::Compact) {
                    (synced, changed) = (model.clone(), BTreeSet::new());
                }
            }
            let set = run.session.set();
            let images = [run.store.after_process_death(), run.store.after_power_loss()];
            drop(run);
            for image in images {
                let repository = Repository::new(image.expect("an image"));
                let session = repository.resume(set, options(durability)).expect("resume");
                for (name, bytes) in synced.iter().filter(|(name, _)| !changed.contains(name)) {
                    assert!(content(session.namespace(), name).expect("it was synced") == *bytes);
                }
                session.create(session.root(), b"later", 0o644).expect("create");
                session.publish("name").expect("publish");
                check_sound(&repository);
            }
        }
    }
}

/// Symptom: directories in which files had been made kept their old times for good, if a flush
/// found no room for the new ones.
/// Cause: a flush takes the list of such directories, and put none of them back.
/// Fix: it puts back those whose times it did not write.
#[test]
fn times_of_directories_are_written_once_there_is_room() {
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let repository = Repository::new(store.clone());
    let mut options = options(Durability::Async);
    options.tree.log_interval = None;
    let session = repository.begin(&[], options).expect("begin");
    let paths = ["/a", "/b", "/c"];
    for path in paths {
        session.mkdir(session.root(), &path.as_bytes()[1..], 0o755).expect("mkdir");
    }
    let file = session.create_file(session.root(), b"file", 0o644).expect("create");
    session.flush().expect("flush");
    let dirs = paths.map(|path| session.namespace().dir(path).expect("dir"));
    // Later than the directories were made, by a clock that ticks every few milliseconds.
    std::thread::sleep(Duration::from_millis(20));
    dirs.iter().for_each(|dir| drop(session.mkdir(dir, b"inner", 0o755).expect("mkdir")));
    store.fill_at(1, FaultEffect::None);
    assert_eq!(session.file(&file).sync().expect_err("full").kind(), Kind::NoSpace);
    assert_eq!(session.flush().expect_err("full").kind(), Kind::NoSpace);
    store.make_room();
    session.close_file(file).expect("close");
    let times = |namespace: &Namespace| {
        paths.map(|path| namespace.stat(path, FollowLinks::No).expect("stat").mtime_ns)
    };
    let shown = times(session.namespace());
    let set = session.publish("published").expect("publish");
    assert_eq!(times(&repository.open(&[set], Identity::root()).expect("open")), shown);
}

/// Symptom: a truncation that failed with `NoSpace` emptied the file, once there was room again.
/// Cause: the open file was changed before its record, and stayed so when that failed.
/// Fix: what fails leaves the open file as it was.
#[test]
fn a_truncation_that_finds_no_room_changes_nothing() {
    let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let store: SharedStore = faults.clone();
    let session = Repository::new(store.clone()).begin(&[], crate::gc::options()).expect("begin");
    let root = session.root().clone();
    let content = |bytes: usize| vec![7; bytes];
    let files = [("inline", 48, 0), ("small", 300_000, 0), ("large", 3 << 20, 100_000)];
    for (name, bytes, _) in files {
        crate::gc::write(&session, &format!("/{name}"), &content(bytes)).expect("write");
    }
    session.sync().expect("sync");
    faults.fill_at(faults.operations() + 1, FaultEffect::None);
    let touch = |mode| AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
    let is_full = (0..10_000).any(|mode| {
        let changed =
            session.setattr(&root, b"inline", &touch(mode % 0o777)).and_then(|_| session.sync());
        changed.is_err_and(|error| error.kind() == Kind::NoSpace)
    });
    assert!(is_full, "the store is never full");
    let mut open = Vec::new();
    for (name, bytes, shorter) in files {
        let file = session.open_file(&root, name.as_bytes()).expect("open");
        let cut = AttributeChanges { size: Some(shorter), ..AttributeChanges::default() };
        let failed = session.file(&file).setattr(&cut).map(drop).expect_err("no room");
        assert_eq!(failed.kind(), Kind::NoSpace, "{name}");
        assert_eq!(session.file(&file).stat().expect("stat").size, bytes as u64, "{name}");
        let read = session.file(&file).read(0, 4 << 20).expect("read");
        assert!(read == content(bytes)[..], "{name}");
        open.push(file);
    }
    faults.make_room();
    std::thread::sleep(Duration::from_millis(20));
    for file in open {
        session.close_file(file).expect("close");
    }
    let set = session.publish("cut").expect("publish");
    let shown = Repository::new(store).open(&[set], Identity::root()).expect("open");
    for (name, bytes, _) in files {
        let inode = shown.stat(format!("/{name}"), FollowLinks::No).expect("stat");
        assert!(shown.read(&inode, 0, 4 << 20).expect("read") == content(bytes)[..], "{name}");
    }
}

/// Fills the store of `session`, so that small files stay in memory when they are closed. Of open
/// files only `synced` is flushed.
fn fill(session: &Session, faults: &FaultStore, synced: &Arc<OpenFile>) {
    faults.fill_at(faults.operations() + 1, FaultEffect::None);
    let root = session.root().clone();
    let touch = |mode| AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
    let is_full = (0..10_000).any(|mode| {
        let changed = session.setattr(&root, b"old", &touch(mode % 0o777));
        let changed = changed.and_then(|_| session.file(synced).sync());
        changed.is_err_and(|error| error.kind() == Kind::NoSpace)
    });
    assert!(is_full, "the store is never full");
}

/// Symptom: a file that was closed while the store was full stayed in memory once there was room
/// again. After syncs of other files, and a rename over a file that had been synced, a crash left
/// an empty file.
/// Cause: only a flush of the whole session wrote such files, and a rename wrote none.
/// Fix: each sync writes them first, mounts also as soon as there is room, and a file that gets a
/// name is written before.
#[test]
fn files_closed_in_a_full_store_survive_with_what_comes_after() {
    for renames in [false, true] {
        let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let store: SharedStore = faults.clone();
        let repository = Repository::new(store.clone());
        let session = repository.begin(&[], crate::gc::options()).expect("begin");
        let root = session.root().clone();
        crate::gc::write(&session, "/old", b"old content").expect("write");
        let other = session.create_file(&root, b"other", 0o644).expect("create");
        let file = session.create_file(&root, b"new", 0o644).expect("create");
        session.file(&file).write(0, &[7; 200_000]).expect("write");
        session.sync().expect("sync");
        session.file(&file).write(0, &[8; 200_000]).expect("write");
        fill(&session, &faults, &other);
        assert_eq!(session.close_file(file).expect_err("full").kind(), Kind::NoSpace);
        faults.make_room();
        std::thread::sleep(Duration::from_millis(20));
        if renames {
            session.rename((&root, b"new"), (&root, b"old"), RenameFlags::Replace).expect("rename");
        }
        session.file(&other).sync().expect("sync");
        let resumed = Repository::new(store.clone()).resume(session.set(), crate::gc::options());
        let resumed = resumed.expect("resume");
        let path = if renames { "/old" } else { "/new" };
        let inode = resumed.namespace().stat(path, FollowLinks::No).expect("stat");
        let read = resumed.namespace().read(&inode, 0, 1 << 20).expect("read");
        assert!(read == [8; 200_000][..], "{} bytes", read.len());
    }
}

/// Symptom: a hole beyond the end that found no room made the file longer.
/// Cause: the open file was changed before the segments of the hole were put.
/// Fix: the open file gets its size back.
#[test]
fn a_hole_that_finds_no_room_changes_nothing() {
    for size in [100, 2 << 20] {
        let faults = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let session =
            Repository::new(faults.clone()).begin(&[], crate::gc::options()).expect("begin");
        let root = session.root().clone();
        crate::gc::write(&session, "/old", b"old content").expect("write");
        let file = session.create_file(&root, b"file", 0o644).expect("create");
        session.file(&file).write(0, &vec![7; size]).expect("write");
        session.sync().expect("sync");
        fill(&session, &faults, &file);
        let end = size as u64 + (1 << 20);
        let failed = session.file(&file).punch(10..end, false).expect_err("full");
        assert_eq!(failed.kind(), Kind::NoSpace);
        assert_eq!(session.file(&file).stat().expect("stat").size, size as u64);
        faults.make_room();
        std::thread::sleep(Duration::from_millis(20));
        session.file(&file).write(0, b"77").expect("write");
        assert_eq!(session.file(&file).stat().expect("stat").size, size as u64);
        session.close_file(file).expect("close");
        let inode = session.namespace().stat("/file", FollowLinks::No).expect("stat");
        assert_eq!(inode.size, size as u64);
    }
}

/// Symptom: after a crash a file was empty that had been renamed over another one while it was open,
/// so that the content of both was lost.
/// Cause: the log had the rename, but nothing of the file.
/// Fix: a rename writes the file first.
#[test]
fn files_renamed_while_they_are_open_survive_with_their_names() {
    for bytes in [48, 300_000] {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = Repository::new(store.clone());
        let session = repository.begin(&[], crate::gc::options()).expect("begin");
        let root = session.root().clone();
        crate::gc::write(&session, "/old", b"old content").expect("write");
        let file = session.create_file(&root, b"new", 0o644).expect("create");
        session.file(&file).write(0, &vec![8; bytes]).expect("write");
        session.rename((&root, b"new"), (&root, b"old"), RenameFlags::Replace).expect("rename");
        let second = session.create_file(&root, b"second", 0o644).expect("create");
        session.file(&second).write(0, b"second content").expect("write");
        session.create(&root, b"third", 0o644).expect("create");
        let third = (&root, &b"third"[..]);
        session.rename(third, (&root, b"second"), RenameFlags::Exchange).expect("exchange");
        // A sync of the session would write all open files.
        let other = session.create_file(&root, b"other", 0o644).expect("create");
        session.file(&other).sync().expect("sync");
        let resumed = Repository::new(store).resume(session.set(), crate::gc::options());
        let resumed = resumed.expect("resume");
        let inode = resumed.namespace().stat("/old", FollowLinks::No).expect("stat");
        let read = resumed.namespace().read(&inode, 0, 1 << 20).expect("read");
        assert!(read == vec![8; bytes][..], "{} of {bytes} bytes", read.len());
        let inode = resumed.namespace().stat("/third", FollowLinks::No).expect("stat");
        assert_eq!(inode.size, 14);
    }
}
