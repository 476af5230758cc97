// SPDX-License-Identifier: Apache-2.0
//! Sessions on an S3 server behind a proxy that injects faults: every request of every operation,
//! with every kind of fault. The store retries requests until their outcome is known, so each
//! operation succeeds; nothing that was acknowledged is lost, and a race for a name has one winner.
//! Results are checked without the proxy, after the session has died.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::SharedStore;
use esker_fs::job::JobId;
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::maintenance::verify::{VerifyOptions, VerifyTargets};
use esker_fs::names::IfTaken;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::{FollowLinks, Namespace};
use esker_fs::traversal::export::ExportOptions;
use esker_fs::traversal::import::ImportOptions;
use esker_fs::traversal::tally::TransferTally;
use esker_table::manifest::{Manifest, SetId};
use esker_table::tree::{Durability, TreeOptions};

use crate::faulty_proxy::{Fault, FaultyProxy};
use crate::gc::{eager, later, repository, write};
use crate::s3_server::S3Server;

/// More than two pieces of a log.
const LARGE_BYTES: usize = 9 << 20;
/// Too much for an inode.
const STORED_BYTES: usize = 100_000;

/// One run of an operation, in a store shared by all runs of it.
struct HarmedRun<'a> {
    /// The store behind the proxy, which injects nothing until `begin_harm`.
    harmed: &'a Repository,
    /// The same store, reached directly.
    direct: &'a Repository,
    store: &'a SharedStore,
    base: SetId,
    /// Unique to this run.
    name: String,
    begin_harm: &'a (dyn Fn() + Sync),
}

type HarmedOperation = fn(&HarmedRun<'_>);

const OPERATIONS: &[(&str, HarmedOperation)] = &[
    ("begin", begin),
    ("write", write_files),
    ("sync", sync),
    ("snapshot", snapshot),
    ("publish", publish),
    ("race to publish", race_to_publish),
    ("resume", resume),
    ("rename", rename),
    ("delete and undelete", delete_and_undelete),
    ("publish a job", publish_job),
    ("compact", compact),
    ("squash", squash),
    ("squash with its data", squash_with_data),
    ("reclaim", reclaim),
    ("export", export),
    ("verify", verify),
    ("gc", gc),
];

fn options(durability: Durability) -> SessionOptions {
    let tree = TreeOptions {
        durability,
        background: false,
        memory_bytes: 1 << 22,
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

fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed + at / 4_096) as u8).collect()
}

#[track_caller]
fn check(shown: &Namespace, path: &str, expected: &[u8]) {
    let inode = shown.stat(path, FollowLinks::No).expect("stat");
    let found = shown.read(&inode, 0, 2 * LARGE_BYTES).expect("read");
    assert!(found == expected, "{path}: {} bytes, or others, of {}", found.len(), expected.len());
}

impl HarmedRun<'_> {
    fn session(&self, durability: Durability) -> Session {
        self.harmed.begin(&[self.base], options(durability)).expect("begin")
    }

    /// Returns the session as another process finds it after this one has died.
    fn resumed(&self, session: Session) -> Session {
        let set = session.set();
        // Nothing of it reaches the store any more.
        std::mem::forget(session);
        self.direct.resume(set, options(Durability::Async)).expect("resume")
    }

    /// Publishes a snapshot with a file in a data log under the run's name, without faults.
    fn published(&self) -> SetId {
        let session = self.direct.begin(&[self.base], options(Durability::Async)).expect("begin");
        write(&session, "/stored", &content(1, STORED_BYTES)).expect("write");
        session.publish(&self.name).expect("publish")
    }

    fn shown(&self, set: SetId) -> Namespace {
        self.direct.open(&[set], Identity::root()).expect("open")
    }
}

fn begin(run: &HarmedRun<'_>) {
    (run.begin_harm)();
    let session = run.harmed.begin(&[run.base], options(Durability::Async)).expect("begin");
    check(session.namespace(), "/base", &[b'x'; 1000]);
}

fn write_files(run: &HarmedRun<'_>) {
    let session = run.session(Durability::Always);
    (run.begin_harm)();
    write(&session, "/large", &content(1, LARGE_BYTES)).expect("write");
    write(&session, "/small", b"small").expect("write");
    let resumed = run.resumed(session);
    check(resumed.namespace(), "/large", &content(1, LARGE_BYTES));
    check(resumed.namespace(), "/small", b"small");
}

fn sync(run: &HarmedRun<'_>) {
    let session = run.session(Durability::Async);
    write(&session, "/small", b"small").expect("write");
    (run.begin_harm)();
    session.sync().expect("sync");
    check(run.resumed(session).namespace(), "/small", b"small");
}

fn snapshot(run: &HarmedRun<'_>) {
    let session = run.session(Durability::Async);
    write(&session, "/small", b"small").expect("write");
    (run.begin_harm)();
    let set = session.snapshot(&run.name).expect("snapshot");
    assert_eq!(run.direct.resolve(&run.name).expect("a name").set, set);
    check(&run.shown(set), "/small", b"small");
    write(&session, "/later", b"later").expect("the session goes on");
    session.sync().expect("sync");
    check(run.resumed(session).namespace(), "/later", b"later");
}

fn publish(run: &HarmedRun<'_>) {
    let session = run.session(Durability::Async);
    write(&session, "/small", b"small").expect("write");
    (run.begin_harm)();
    let set = session.publish(&run.name).expect("publish");
    assert_eq!(run.direct.resolve(&run.name).expect("a name").set, set);
    check(&run.shown(set), "/small", b"small");
}

/// Two sessions publish one name at once.
fn race_to_publish(run: &HarmedRun<'_>) {
    let ours = run.session(Durability::Async);
    let theirs = run.direct.begin(&[run.base], options(Durability::Async)).expect("begin");
    write(&ours, "/small", b"ours").expect("write");
    write(&theirs, "/small", b"theirs").expect("write");
    (run.begin_harm)();
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| theirs.publish(&run.name));
        (ours.publish(&run.name), theirs.join().expect("no panic"))
    });
    let (winner, error, bytes) = match (ours, theirs) {
        (Ok(set), Err(error)) => (set, error, &b"ours"[..]),
        (Err(error), Ok(set)) => (set, error, &b"theirs"[..]),
        outcome => panic!("one wins: {outcome:?}"),
    };
    assert_eq!(error.kind(), Kind::Exists, "{error}");
    assert_eq!(run.direct.resolve(&run.name).expect("a name").set, winner);
    check(&run.shown(winner), "/small", bytes);
}

fn resume(run: &HarmedRun<'_>) {
    let session = run.session(Durability::Async);
    write(&session, "/small", b"small").expect("write");
    session.sync().expect("sync");
    let set = session.set();
    std::mem::forget(session);
    (run.begin_harm)();
    let session = run.harmed.resume(set, options(Durability::Async)).expect("resume");
    check(session.namespace(), "/small", b"small");
    write(&session, "/later", b"later").expect("write");
    session.sync().expect("sync");
    let resumed = run.resumed(session);
    check(resumed.namespace(), "/small", b"small");
    check(resumed.namespace(), "/later", b"later");
}

fn rename(run: &HarmedRun<'_>) {
    let set = run.published();
    (run.begin_harm)();
    let new = format!("{}-renamed", run.name);
    assert_eq!(run.harmed.rename(&run.name, &new, IfTaken::Refuse).expect("rename"), set);
    assert_eq!(run.direct.resolve(&new).expect("a name").set, set);
    let error = run.direct.resolve(&run.name).expect_err("it has another name");
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
}

fn delete_and_undelete(run: &HarmedRun<'_>) {
    let set = run.published();
    (run.begin_harm)();
    run.harmed.delete(&run.name).expect("delete");
    let error = run.direct.resolve(&run.name).expect_err("it is deleted");
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    run.harmed.undelete(&run.name).expect("undelete");
    assert_eq!(run.direct.resolve(&run.name).expect("a name").set, set);
    check(&run.shown(set), "/stored", &content(1, STORED_BYTES));
}

fn publish_job(run: &HarmedRun<'_>) {
    let job = JobId::random();
    let parts: Vec<SetId> = (0..2)
        .map(|rank| {
            let options = options(Durability::Async);
            let part = run.direct.begin_part(job, rank, &[run.base], options).expect("begin");
            write(&part, &format!("/rank{rank}"), &content(rank as usize, 5_000)).expect("write");
            part.complete().expect("complete")
        })
        .collect();
    (run.begin_harm)();
    let report = run.harmed.publish_job(&parts, &run.name).expect("publish");
    assert_eq!((report.parts, report.conflicts.len()), (2, 0), "{report:?}");
    assert_eq!(run.direct.resolve(&run.name).expect("a name").set, report.set);
    for rank in 0..2 {
        check(&run.shown(report.set), &format!("/rank{rank}"), &content(rank, 5_000));
    }
}

fn compact(run: &HarmedRun<'_>) {
    let session = run.direct.begin(&[run.base], options(Durability::Async)).expect("begin");
    for number in 0..3 {
        write(&session, &format!("/{number}"), &content(number, 100)).expect("write");
        session.flush().expect("flush");
    }
    let set = session.publish(&run.name).expect("publish");
    (run.begin_harm)();
    run.harmed.compact(&run.name).expect("compact");
    let manifest = Manifest::load(&**run.store, set).expect("load");
    assert_eq!(manifest.tables.len(), 1, "{:?}", manifest.tables);
    for number in 0..3 {
        check(&run.shown(set), &format!("/{number}"), &content(number, 100));
    }
}

fn squash(run: &HarmedRun<'_>) {
    squash_as(run, &SquashOptions::default());
}

fn squash_with_data(run: &HarmedRun<'_>) {
    squash_as(run, &SquashOptions { copy_data: true, ..SquashOptions::default() });
}

fn squash_as(run: &HarmedRun<'_>, options: &SquashOptions) {
    let source = run.published();
    (run.begin_harm)();
    let (set, _) = run.harmed.squash(&[source], options).expect("squash");
    let squashed = format!("{}-squashed", run.name);
    run.harmed.publish(set, &squashed).expect("publish");
    assert_eq!(run.direct.resolve(&squashed).expect("a name").set, set);
    check(&run.shown(set), "/stored", &content(1, STORED_BYTES));
    check(&run.shown(set), "/base", &[b'x'; 1000]);
}

fn reclaim(run: &HarmedRun<'_>) {
    let session = run.session(Durability::Async);
    write(&session, "/kept", &content(1, 100_000)).expect("write");
    write(&session, "/removed", &content(2, 900_000)).expect("write");
    session.unlink(session.root(), b"removed").expect("unlink");
    let set = session.set();
    session.sync().expect("sync");
    drop(session);
    // The log of a writer that is gone does not grow.
    let session = run.harmed.resume(set, options(Durability::Async)).expect("resume");
    (run.begin_harm)();
    assert!(session.reclaim_data().expect("reclaim") >= 900_000);
    check(session.namespace(), "/kept", &content(1, 100_000));
    session.sync().expect("sync");
    check(run.resumed(session).namespace(), "/kept", &content(1, 100_000));
}

fn export(run: &HarmedRun<'_>) {
    let set = run.published();
    let directory = tempfile::tempdir().expect("temporary directory");
    let target = directory.path().join("exported");
    (run.begin_harm)();
    let (shown, tally) = (run.harmed.open(&[set], Identity::root()), TransferTally::default());
    let shown = shown.expect("open");
    shown.export(b"/", &target, &ExportOptions::default(), &tally).expect("export");
    assert_eq!(tally.counts().problems, 0, "{:?}", tally.take_problems());
    let exported = std::fs::read(target.join("stored")).expect("read");
    assert!(exported == content(1, STORED_BYTES), "{} bytes, or others", exported.len());
}

fn verify(run: &HarmedRun<'_>) {
    let set = run.published();
    (run.begin_harm)();
    let targets = VerifyTargets::Sets(vec![set]);
    let options = VerifyOptions { targets, ..VerifyOptions::default() };
    let report = run.harmed.verify(&options).expect("verify");
    assert!(report.is_sound() && report.findings.is_empty(), "{:?}", report.findings);
}

fn gc(run: &HarmedRun<'_>) {
    let session = run.direct.begin(&[run.base], options(Durability::Async)).expect("begin");
    write(&session, "/large", &content(1, 2 << 20)).expect("write");
    let set = session.publish(&run.name).expect("publish");
    drop(session);
    run.direct.delete(&run.name).expect("delete");
    (run.begin_harm)();
    let report = later(run.store).gc(&eager()).expect("collect");
    assert_eq!(report.problems, [""; 0]);
    let error = run.direct.open(&[set], Identity::root()).expect_err("it is gone");
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    check(&run.shown(run.base), "/base", &[b'x'; 1000]);
}

/// Runs every operation with the faults that `chosen` selects by the numbers of the operation, the
/// request and the fault.
fn run_all(chosen: impl Fn(usize, usize, usize) -> bool + Sync) {
    let Some(server) = S3Server::start() else { return };
    std::thread::scope(|scope| {
        for (index, (what, operation)) in OPERATIONS.iter().enumerate() {
            let (server, chosen) = (&server, &chosen);
            scope.spawn(move || {
                let proxy = FaultyProxy::start(server.address());
                let prefix = format!("fs/{index}");
                let store: SharedStore = Arc::new(server.store_by(proxy.address(), &prefix));
                let harmed = repository(&store);
                let direct = repository(&(Arc::new(server.store(&prefix)) as SharedStore));
                let base = super::gc::publish(&direct, &[], "base").expect("publish");
                let run = |name: &str, begin_harm: &(dyn Fn() + Sync)| {
                    let (harmed, direct, store, name) = (&harmed, &direct, &store, name.to_owned());
                    operation(&HarmedRun { harmed, direct, store, base, name, begin_harm });
                };
                run("well", &|| proxy.reset());
                let requests = usize::try_from(proxy.requests()).expect("a few");
                println!("{what}: {requests} requests");
                for number in 1..=requests {
                    let faults = Fault::ALL.into_iter().enumerate();
                    for (_, fault) in faults.filter(|(fault, _)| chosen(index, number, *fault)) {
                        println!("{what}: request {number} of {requests}, {fault:?}");
                        let name = format!("{number}-{fault:?}");
                        run(&name, &|| proxy.harm(number as u64, fault));
                        proxy.reset();
                    }
                }
                let report = direct.verify(&VerifyOptions::default()).expect("verify");
                assert!(report.is_sound(), "{what}: {:?}", report.findings);
            });
        }
    });
}

/// One fault for each request; every operation begins with a different fault.
#[test]
fn operations_bear_a_fault_of_each_request() {
    run_all(|operation, number, fault| (operation + number) % Fault::ALL.len() == fault);
}

#[test]
#[ignore = "a campaign: make soak"]
fn operations_bear_every_fault_of_each_request() {
    run_all(|_, _, _| true);
}

/// Symptom: an import at durability `always` was acknowledged while the end of a large file was
/// only in memory.
/// Cause: the file's log was listed as unsynced once, and another thread's sync removed it from the
/// list while the file was still being written.
#[test]
fn an_import_at_always_has_every_byte_of_its_files_in_the_store() {
    let Some(server) = S3Server::start() else { return };
    let source = tempfile::tempdir().expect("temporary directory");
    for number in 0..4 {
        let directory = source.path().join(format!("{number}"));
        std::fs::create_dir(&directory).expect("mkdir");
        std::fs::write(directory.join("large"), content(number, LARGE_BYTES)).expect("write");
        for small in 0..20 {
            std::fs::write(directory.join(format!("{small}")), content(small, 100)).expect("write");
        }
    }
    for seed in 0..3 {
        let proxy = FaultyProxy::start(server.address());
        let prefix = format!("import/{seed}");
        let harmed: SharedStore = Arc::new(server.store_by(proxy.address(), &prefix));
        let direct: SharedStore = Arc::new(server.store(&prefix));
        let session = repository(&harmed).begin(&[], options(Durability::Always)).expect("begin");
        proxy.harm_at_random(seed, 6);
        let import = ImportOptions { threads: 4, ..ImportOptions::default() };
        let tally = TransferTally::default();
        session.import(source.path(), session.root(), &import, &tally).expect("import");
        let set = session.set();
        std::mem::forget(session);
        let resumed = repository(&direct).resume(set, options(Durability::Async)).expect("resume");
        for number in 0..4 {
            check(resumed.namespace(), &format!("/{number}/large"), &content(number, LARGE_BYTES));
            for small in 0..20 {
                check(resumed.namespace(), &format!("/{number}/{small}"), &content(small, 100));
            }
        }
    }
}
