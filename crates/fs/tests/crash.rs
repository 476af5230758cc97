// SPDX-License-Identifier: Apache-2.0
//! Crashes: the world stops at every store operation of a workload. The recovered state is the
//! state after a prefix of its operations, includes everything acknowledged as durable, is sound,
//! and can be published. Single failures are tested too: nothing that they lost is acknowledged
//! later. Every other operation carries a record of requests, which survives exactly if it does.
//!
//! The reference defines the state after each operation. Times of directories are lazy (`dir.rs`),
//! so a crash may set them back, and they are not compared.

use std::sync::Arc;

use esker_base::clock::ManualClock;
use esker_base::random::Random;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::session::request_record::RequestRecord;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::Namespace;
use esker_table::manifest::SetId;
use esker_table::tree::{Compaction, Durability, TreeOptions};

use crate::campaign;
use crate::model::check_sound;
use crate::operation::{Operation, Tree, difference, without_directory_times};
use crate::random_operation::Mix;
use crate::reference::Reference;
use crate::subject;

const START_NS: u64 = 3_000_000_000_000_000_000;

/// Action between operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Sync,
    Flush,
    Compact,
    /// A flush, and the merge of all runs for which reads have paid.
    Merge,
    Snapshot,
}

/// Operations, the states to which they lead, and a store with the initial state.
struct Script {
    operations: Vec<Operation>,
    pauses: Vec<Option<Pause>>,
    /// The state before the first operation, and after each.
    states: Vec<Tree>,
    /// The published base of the session, in a store that does not change.
    base: SetId,
    store: SharedStore,
}

/// Returns operations on `reference` that succeed and change something, with the resulting states.
fn changes(
    random: &mut Random,
    count: usize,
    clock: &ManualClock,
    reference: &mut Reference,
) -> (Vec<Operation>, Vec<Tree>) {
    let mut mix = Mix::new(0);
    let mut states = vec![without_directory_times(&reference.tree())];
    let mut operations = Vec::new();
    while operations.len() < count {
        clock.set_now_ns(START_NS + operations.len() as u64);
        let operation = mix.next(random, reference);
        let mut next = reference.clone();
        if next.run(&operation).is_err() {
            continue;
        }
        let state = without_directory_times(&next.tree());
        if state != states[states.len() - 1] {
            operations.push(operation);
            states.push(state);
            *reference = next;
        }
    }
    (operations, states)
}

fn script(seed: u64, base_count: usize, count: usize) -> Script {
    let mut random = Random::from_seed(seed);
    let clock = Arc::new(ManualClock::new(START_NS));
    let mut reference = Reference::new(clock.clone());
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = Repository::with(store.clone(), 1 << 20, clock.clone());
    let session = repository.begin(&[], options(TreeOptions::default())).expect("begin");
    let (below, _) = changes(&mut random, base_count, &clock, &mut reference);
    for (step, operation) in below.iter().enumerate() {
        clock.set_now_ns(START_NS + step as u64);
        subject::run(&session, operation).expect("what the reference does");
    }
    let base = session.publish("base").expect("publish");
    let (operations, states) = changes(&mut random, count, &clock, &mut reference);
    let pauses = operations.iter().map(|_| match random.below(40) {
        0..3 => Some(Pause::Sync),
        3 => Some(Pause::Flush),
        4 => Some(Pause::Compact),
        5 => Some(Pause::Snapshot),
        6 => Some(Pause::Merge),
        _ => None,
    });
    Script { pauses: pauses.collect(), operations, states, base, store }
}

fn options(tree: TreeOptions) -> SessionOptions {
    SessionOptions {
        identity: Identity::root(),
        tree,
        // Prevents beats between the requests that a test counts.
        heartbeat: None,
        ..SessionOptions::default()
    }
}

fn tree_options(durability: Durability, compaction: Compaction) -> TreeOptions {
    TreeOptions {
        durability,
        compaction,
        memory_bytes: 1 << 17,
        background: false,
        ..TreeOptions::default()
    }
}

/// Progress of a workload.
#[derive(Debug, Default)]
struct Progress {
    set: Option<SetId>,
    /// Number of operations begun.
    begun: usize,
    /// Number of operations that returned.
    done: usize,
    /// Number of operations acknowledged as surviving power loss.
    durable: usize,
    /// Snapshots, and the number of operations before each.
    snapshots: Vec<(String, usize)>,
    publishing: bool,
    published: bool,
}

/// Runs `script` until something fails; returns the session as it is then.
fn work(
    script: &Script,
    tree: &TreeOptions,
    store: SharedStore,
    progress: &mut Progress,
) -> (Option<Session>, Result<()>) {
    let clock = Arc::new(ManualClock::new(START_NS));
    let repository = Repository::with(store, 1 << 20, clock.clone());
    let session = match repository.begin(&[script.base], options(tree.clone())) {
        Ok(session) => session,
        Err(error) => return (None, Err(error)),
    };
    progress.set = Some(session.set());
    let outcome = work_in(&session, script, &clock, tree, progress);
    (Some(session), outcome)
}

fn work_in(
    session: &Session,
    script: &Script,
    clock: &ManualClock,
    tree: &TreeOptions,
    progress: &mut Progress,
) -> Result<()> {
    let mut carrying = session.acting_as(Identity::root());
    for (step, operation) in script.operations.iter().enumerate() {
        clock.set_now_ns(START_NS + step as u64);
        progress.begun = step + 1;
        carrying.attach_request(record_of(step).as_ref())?;
        subject::try_run(&carrying, operation)?;
        progress.done = step + 1;
        if tree.durability == Durability::Always {
            progress.durable = step + 1;
        }
        match script.pauses[step] {
            None => continue,
            Some(Pause::Sync) => session.sync()?,
            Some(Pause::Flush) => session.flush()?,
            Some(Pause::Compact) => session.compact()?,
            Some(Pause::Merge) => {
                session.flush()?;
                let tree = session.namespace().layers().writer().expect("a session writes a tree");
                tree.add_read_cost(1 << 40);
                tree.merge_paid_runs()?;
            }
            Some(Pause::Snapshot) => {
                let name = format!("snapshot-{step}");
                session.snapshot(&name)?;
                progress.snapshots.push((name, step + 1));
            }
        }
        progress.durable = step + 1;
    }
    progress.publishing = true;
    session.publish("done")?;
    progress.published = true;
    progress.durable = script.operations.len();
    Ok(())
}

/// The client whose requests the operations are.
const CLIENT: u64 = 77;

/// Returns the record of requests that operation `step` carries, if it is one of those that do.
fn record_of(step: usize) -> Option<RequestRecord> {
    let content = step.to_string().into_bytes();
    step.is_multiple_of(2).then_some(RequestRecord { client: CLIENT, content })
}

/// Checks that `session`, in the state after `count` operations, has the record of the last one
/// that carried any.
fn check_record(session: &Session, count: usize) {
    let expected = (0..count).rev().find_map(record_of);
    assert_eq!(session.requests().expect("records"), Vec::from_iter(expected), "after {count}");
}

/// Returns the number of operations, in `least..=most`, after which the state equals `namespace`.
fn position(namespace: &Namespace, script: &Script, least: usize, most: usize) -> usize {
    let found = without_directory_times(&subject::tree(namespace).expect("a tree"));
    let states = &script.states[least..=most];
    match states.iter().position(|state| difference(&found, state).is_none()) {
        Some(index) => least + index,
        None => {
            let why = |state: &Tree| difference(&found, state).unwrap_or_default();
            panic!(
                "the state after no operation of {least}..={most}; nearest to the first:\n{}\n\
                 and to the last:\n{}",
                why(&script.states[least]),
                why(&script.states[most])
            );
        }
    }
}

/// Recovers `store` after a crash and checks it.
fn recover(script: &Script, tree: &TreeOptions, store: &SharedStore, progress: &Progress) {
    let clock = Arc::new(ManualClock::new(START_NS + 1_000_000));
    let repository = Repository::with(store.clone(), 1 << 20, clock);
    let open = |set: SetId| repository.open(&[set], Identity::root()).expect("open");
    for (name, step) in &progress.snapshots {
        let set = repository.resolve(name).expect("a snapshot that was made").set;
        position(&open(set), script, *step, *step);
    }
    check_sound(&repository);
    let Some(set) = progress.set else {
        position(&open(script.base), script, 0, 0);
        return;
    };
    let all = script.operations.len();
    let session = match repository.resume(set, options(tree.clone())) {
        Ok(session) => session,
        Err(error) => {
            assert!(progress.publishing && error.kind() == Kind::Invalid, "{error:?}");
            position(&open(set), script, all, all);
            if repository.resolve("done").is_err() {
                repository.publish(set, "done").expect("publish what is complete");
            }
            assert_eq!(repository.resolve("done").expect("the name").set, set);
            return;
        }
    };
    assert!(!progress.published, "a published set is complete");
    let first = position(session.namespace(), script, progress.durable, progress.begun);
    check_record(&session, first);
    drop(session);
    check_sound(&repository);
    let session = repository.resume(set, options(tree.clone())).expect("a second recovery");
    let second = position(session.namespace(), script, first, first);
    assert_eq!(first, second, "a second recovery changed something");
    check_record(&session, first);
    session.create(session.root(), b"after", 0o644).expect("create");
    session.unlink(session.root(), b"after").expect("unlink");
    session.publish("recovered").expect("publish");
    position(&open(set), script, first, first);
    check_sound(&repository);
}

/// Returns a copy of the initial store of a script, with faults.
fn faulty(script: &Script, seed: u64) -> Arc<FaultStore> {
    let copy = FaultStore::new(script.store.clone(), 0).after_process_death().expect("a copy");
    Arc::new(FaultStore::new(copy, seed))
}

fn crash_at(script: &Script, tree: &TreeOptions, stop: u64, effect: FaultEffect, seed: u64) -> u64 {
    let fault = faulty(script, seed);
    fault.stop_at(stop, effect);
    let mut progress = Progress::default();
    let (session, _) = work(script, tree, fault.clone(), &mut progress);
    // Its threads end; their further requests fail, since the world has stopped.
    drop(session);
    for image in [fault.after_power_loss(), fault.after_process_death()] {
        recover(script, tree, &image.expect("an image"), &progress);
    }
    fault.operations()
}

fn total(script: &Script, tree: &TreeOptions) -> u64 {
    let fault = faulty(script, 0);
    let mut progress = Progress::default();
    let (_, outcome) = work(script, tree, fault.clone(), &mut progress);
    outcome.expect("nothing fails");
    assert!(progress.published);
    fault.operations()
}

fn every_operation(durability: Durability, count: usize) {
    campaign::quick(1..2, |seed| {
        let script = script(seed, 30, count);
        let tree = tree_options(durability, Compaction::Tiered);
        let total = total(&script, &tree);
        println!("{durability:?}: {total} store operations");
        for stop in 1..=total {
            for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
                println!("stop {stop} {effect:?}");
                crash_at(&script, &tree, stop, effect, seed + stop);
            }
        }
    });
}

#[test]
fn a_crash_at_every_operation_leaves_a_prefix_without_a_log() {
    every_operation(Durability::None, 60);
}

#[test]
fn a_crash_at_every_operation_leaves_a_prefix_with_a_log() {
    every_operation(Durability::Async, 45);
}

#[test]
fn a_crash_at_every_operation_leaves_all_that_returned_if_always_durable() {
    every_operation(Durability::Always, 25);
}

/// Crashes at a random point of a longer workload, with random settings.
fn random_crash(seed: u64, count: usize) {
    let mut random = Random::from_seed(seed);
    let script = script(random.next_u64(), count / 3, count);
    let durabilities = [Durability::None, Durability::Async, Durability::Always];
    let compactions = [Compaction::Deferred, Compaction::Tiered, Compaction::Full];
    let tree = TreeOptions {
        background: random.one_in(2),
        ..tree_options(
            durabilities[random.below(3) as usize],
            compactions[random.below(3) as usize],
        )
    };
    let total = total(&script, &tree);
    for _ in 0..8 {
        let effect =
            [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full][random.below(3) as usize];
        crash_at(&script, &tree, 1 + random.below(total), effect, random.next_u64());
    }
}

#[test]
fn a_crash_at_a_random_point_leaves_a_prefix() {
    campaign::quick(0..10, |seed| random_crash(seed, 150));
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_a_crash_at_a_random_point_leaves_a_prefix() {
    campaign::soak(|seed| random_crash(seed, 600));
}

/// Fails one operation of the store and continues: the session reports it, and everything
/// acknowledged afterwards is there.
fn fail_at(script: &Script, tree: &TreeOptions, n: u64, effect: FaultEffect) {
    let fault = faulty(script, n);
    fault.fail_at_with(n, Kind::Unavailable, effect);
    let mut progress = Progress::default();
    let (session, outcome) = work(script, tree, fault.clone(), &mut progress);
    let Err(error) = outcome else {
        // A request whose failure does not matter, such as the deletion of a log.
        recover(script, tree, &fault.after_power_loss().expect("an image"), &progress);
        return;
    };
    let lawful = matches!(error.kind(), Kind::Unavailable | Kind::Closed | Kind::Conflict);
    assert!(lawful, "failure {n}: {error:?}");
    let Some(session) = session else {
        recover(script, tree, &fault.after_power_loss().expect("an image"), &progress);
        return;
    };
    if session.sync().is_ok() {
        progress.durable = progress.durable.max(progress.done);
    }
    let image = fault.after_power_loss().expect("an image");
    if !progress.publishing {
        recover(script, tree, &image, &progress);
        if let Ok(set) = session.publish("late") {
            let image = fault.after_power_loss().expect("an image");
            let repository = Repository::new(image);
            let namespace = repository.open(&[set], Identity::root()).expect("open");
            position(&namespace, script, progress.done, progress.begun);
            check_sound(&repository);
        }
        return;
    }
    match session.publish("late") {
        Ok(_) => progress.published = true,
        Err(_) => drop(session),
    }
    recover(script, tree, &fault.after_power_loss().expect("an image"), &progress);
}

#[test]
fn a_failure_at_every_operation_loses_nothing_that_is_acknowledged() {
    campaign::quick(2..3, |seed| {
        let script = script(seed, 30, 40);
        for durability in [Durability::None, Durability::Async, Durability::Always] {
            let tree = tree_options(durability, Compaction::Tiered);
            let total = total(&script, &tree);
            for n in 1..=total {
                for effect in [FaultEffect::None, FaultEffect::Full] {
                    println!("{durability:?} failure {n} {effect:?}");
                    fail_at(&script, &tree, n, effect);
                }
            }
        }
    });
}
