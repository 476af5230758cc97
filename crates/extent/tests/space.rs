// SPDX-License-Identifier: Apache-2.0
//! A store that is full for a while, from each operation of a workload on: changes are refused
//! whole, nothing acknowledged is lost, and once there is room the same tree continues. Also with a
//! crash while the store is full.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_base::clock::ManualClock;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::{Kind, Random, Result};
use esker_extent::{LogPlace, Segment, TreeExtents};
use esker_table::manifest::Manifest;
use esker_table::tree::{Durability, Tree, TreeOptions, TreeSetup};

use crate::records::{SET, create, get, options, put, resume, scan, setup};

const LEVELS: [Durability; 3] = [Durability::None, Durability::Async, Durability::Always];
/// Length of each segment of these tests; segments begin at multiples of it.
const SEGMENT_BYTES: u64 = 10;
const FILES: u128 = 3;
/// Longer than any step waits before it is retried.
const LATER: Duration = Duration::from_secs(3_600);

/// Keys with their values, and files and offsets with the places of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    places: BTreeMap<(u128, u64), u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Segment(u128, u64, u64),
    Sync,
    Flush,
    Compact,
    Retain,
}

/// The steps of a test: random records, or records that shrink so well that they stay in memory as
/// compressed runs.
fn workload(structured: bool) -> Vec<Step> {
    let mut random = Random::from_seed(11);
    let mut steps = Vec::new();
    for number in 0..if structured { 24_000 } else { 1_300 } {
        if structured {
            let key = format!("key{:08}", number % 16_000).into_bytes();
            steps.push(Step::Put(key, b"value".to_vec()));
        } else if number % 7 == 3 {
            let file = 1 + u128::from(random.below(FILES as u64));
            steps.push(Step::Segment(file, SEGMENT_BYTES * random.below(400), number * 1_000));
        } else {
            let mut value = vec![0; 100 + random.below(400) as usize];
            random.fill(&mut value);
            steps.push(Step::Put(format!("{}", random.below(500)).into_bytes(), value));
        }
        match number {
            150 | 1_250 => steps.push(Step::Sync),
            100 | 300 | 800 => steps.push(Step::Flush),
            600 => steps.push(Step::Compact),
            900 => steps.push(Step::Retain),
            _ => {}
        }
    }
    steps
}

impl Step {
    fn run(&self, tree: &Tree) -> Result<()> {
        match self {
            Self::Put(key, value) => put(tree, key, value).map(drop),
            &Self::Segment(file, offset, at) => {
                let place = Some(LogPlace { set: SET, log: 1, offset: at });
                let segment =
                    Segment { file, offset, length: SEGMENT_BYTES, place, checksum: None, seq: 0 };
                TreeExtents::of(tree).put_segments(&mut [segment]).map(drop)
            }
            Self::Sync => tree.sync(),
            Self::Flush => tree.flush(),
            Self::Compact => tree.compact(),
            Self::Retain => TreeExtents::of(tree).retain_segments(&mut |run, kept| kept.push(*run)),
        }
    }

    fn apply(&self, state: &mut State) {
        match self {
            Self::Put(key, value) => drop(state.records.insert(key.clone(), value.clone())),
            Self::Segment(file, offset, at) => {
                state.places.insert((*file, *offset), *at);
            }
            _ => {}
        }
    }

    /// Returns whether the tree shows `state` where the step would change it.
    fn shows(&self, tree: &Tree, state: &State) -> bool {
        match self {
            Self::Put(key, _) => get(tree, key).expect("get").as_ref() == state.records.get(key),
            Self::Segment(file, offset, _) => {
                let range = *offset..offset + SEGMENT_BYTES;
                let found = TreeExtents::of(tree).segments_within(*file, range).expect("segments");
                let place = found.first().and_then(|piece| Some(piece.place?.offset));
                place == state.places.get(&(*file, *offset)).copied()
            }
            _ => true,
        }
    }
}

fn state_of(tree: &Tree) -> State {
    let records = scan(tree, &[0], 1_000).expect("scan").into_iter().collect();
    let mut places = BTreeMap::new();
    for file in 1..=FILES {
        for piece in TreeExtents::of(tree).segments_within(file, 0..u64::MAX).expect("segments") {
            let Some(place) = piece.place else { continue };
            for at in (0..piece.length).step_by(SEGMENT_BYTES as usize) {
                places.insert((file, piece.offset + at), place.offset + at);
            }
        }
    }
    State { records, places }
}

/// Asserts that all tables and logs are in the manifest, except for the logs in use.
fn assert_nothing_left_over(store: &SharedStore, logs_max: usize, context: &str) {
    let manifest = Manifest::load(&**store, SET).expect("manifest");
    let known: BTreeSet<u64> = manifest
        .tables
        .iter()
        .map(|table| table.number)
        .chain(manifest.obsolete.iter().copied())
        .collect();
    let names = |folder: &str| store.list_names(&format!("set/{SET}/{folder}/")).expect("list");
    for name in names("table") {
        let number = u64::from_str_radix(&name, 16).expect("a number");
        assert!(known.contains(&number), "{context}: table {name} is in no manifest");
    }
    let logs = names("wal");
    assert!(logs.len() <= logs_max, "{context}: {logs:?}");
}

struct Subject {
    store: Arc<FaultStore>,
    memory: SharedStore,
    clock: Arc<ManualClock>,
    options: TreeOptions,
    tree: Tree,
}

fn subject(durability: Durability, background: bool, memory_bytes: usize) -> Subject {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let store = Arc::new(FaultStore::new(memory.clone(), 5));
    let clock = Arc::new(ManualClock::new(1));
    let options = TreeOptions { memory_bytes, ..options(durability, background) };
    let shared: SharedStore = store.clone();
    let setup = TreeSetup { clock: clock.clone(), ..setup(&shared, options.clone()) };
    let tree = Tree::create(setup, SET, Manifest::new(vec![], 0)).expect("create");
    Subject { store, memory, clock, options, tree }
}

/// Does all steps; from operation `from` on the store is full until `refusals` steps were refused.
/// Returns the number of refusals.
fn go_on_after(subject: &Subject, steps: &[Step], from: u64, refusals: usize) -> usize {
    let Subject { store, clock, tree, options, .. } = subject;
    let always = options.durability == Durability::Always;
    // A thread may have started to retry before there was room.
    let refusals_max = if options.background { refusals + 3 } else { refusals };
    let (mut state, mut refused) = (State::default(), 0);
    // A step that began before the clock advanced seems to have taken long, and then waits even
    // longer.
    let mut later = LATER;
    store.fill_at(from, FaultEffect::None);
    for (at, step) in steps.iter().enumerate() {
        while let Err(error) = step.run(tree) {
            assert_eq!(error.kind(), Kind::NoSpace, "step {at}, full from {from}: {error}");
            assert!(refused < refusals_max, "step {at}, full from {from}: there is room");
            if !always {
                assert!(step.shows(tree, &state), "step {at}, full from {from}: refused, and done");
            }
            refused += 1;
            if refused % 2 == 0 {
                clock.advance(LATER);
            }
            if refused >= refusals {
                store.make_room();
                later *= 8;
                clock.advance(later);
            }
        }
        step.apply(&mut state);
    }
    store.make_room();
    tree.flush().expect("there is room");
    assert!(state_of(tree) == state, "full from {from}");
    refused
}

fn check_reopened(subject: Subject, steps: &[Step], context: &str) {
    let Subject { memory, tree, .. } = subject;
    drop(tree);
    let mut state = State::default();
    steps.iter().for_each(|step| step.apply(&mut state));
    let tree = resume(&memory, options(Durability::None, false)).expect("resume");
    assert!(state_of(&tree) == state, "{context}: after reopening");
}

/// Fills the store from every `stride`-th operation of the workload on, at each level with its
/// stride. There must be at least `runs_min` runs, and more than `refused_min` refusals per run.
fn check_each(
    levels: &[(Durability, usize)],
    of: impl Fn(Durability) -> Subject,
    steps: &[Step],
    (runs_min, refused_min): (usize, usize),
) {
    for &(durability, stride) in levels {
        let dry = of(durability);
        assert_eq!(go_on_after(&dry, steps, u64::MAX, 0), 0);
        let operations = dry.store.operations();
        let (mut runs, mut refused) = (0, 0);
        for from in (2..=operations).step_by(stride) {
            let subject = of(durability);
            let context = format!("{durability:?}, full from {from} of {operations}");
            refused += go_on_after(&subject, steps, from, 1 + from as usize % 9);
            assert_nothing_left_over(&subject.memory, 1, &context);
            check_reopened(subject, steps, &context);
            runs += 1;
        }
        let counted = format!("{durability:?}: {refused} refusals in {runs} runs");
        println!("{counted}");
        assert!(runs >= runs_min && refused > refused_min * runs, "{counted}");
    }
}

#[test]
fn a_tree_goes_on_once_a_full_store_has_room() {
    // Every change of the last level is an operation or two; a sample of them suffices.
    let levels = [(Durability::None, 1), (Durability::Async, 1), (Durability::Always, 41)];
    let of = |durability| subject(durability, false, 1 << 17);
    check_each(&levels, of, &workload(false), (41, 2));
}

#[test]
fn a_tree_with_a_thread_goes_on_once_a_full_store_has_room() {
    let levels = [(Durability::None, 13), (Durability::Async, 13), (Durability::Always, 211)];
    let of = |durability| subject(durability, true, 1 << 18);
    check_each(&levels, of, &workload(false), (5, 1));
}

#[test]
fn compressed_runs_wait_in_memory_for_room() {
    let levels = [(Durability::None, 5), (Durability::Async, 5)];
    let of = |durability| subject(durability, false, 1 << 20);
    check_each(&levels, of, &workload(true), (6, 1));
}

/// Does steps until some were refused, or one failed otherwise. Returns the number of steps done,
/// and the number that must survive.
fn run_until_refused(subject: &Subject, steps: &[Step], refusals: usize) -> (usize, usize) {
    let (mut refused, mut durable) = (0, 0);
    for (at, step) in steps.iter().enumerate() {
        while let Err(error) = step.run(&subject.tree) {
            refused += 1;
            subject.clock.advance(LATER);
            if refused >= refusals || error.kind() != Kind::NoSpace {
                return (at, durable);
            }
        }
        let always = subject.options.durability == Durability::Always;
        if always || matches!(step, Step::Sync | Step::Flush | Step::Compact | Step::Retain) {
            durable = at + 1;
        }
    }
    (steps.len(), durable)
}

#[test]
fn a_crash_of_a_full_store_loses_nothing_that_was_durable() {
    let steps = workload(false);
    for durability in LEVELS {
        let dry = subject(durability, false, 1 << 17);
        run_until_refused(&dry, &steps, 1);
        let operations = dry.store.operations();
        let stride = 1 + operations as usize / 60;
        for from in (2..=operations).step_by(stride) {
            for effect in [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full] {
                let subject = subject(durability, false, 1 << 17);
                subject.store.fill_at(from, effect);
                let (done, durable) = run_until_refused(&subject, &steps, 1 + from as usize % 5);
                let images =
                    [subject.store.after_process_death(), subject.store.after_power_loss()];
                drop(subject);
                for image in images {
                    let image = image.expect("an image");
                    let tree = resume(&image, options(durability, false)).expect("resume");
                    let found = state_of(&tree);
                    let mut state = State::default();
                    steps[..durable].iter().for_each(|step| step.apply(&mut state));
                    // A refused change may already have been on its way.
                    let is_prefix = state == found
                        || steps[durable..].iter().take(done + 1 - durable).any(|step| {
                            step.apply(&mut state);
                            state == found
                        });
                    assert!(is_prefix, "{durability:?}, {effect:?}, full from {from}");
                }
            }
        }
    }
}

#[test]
fn a_full_store_is_not_tried_at_each_change() {
    let steps = workload(false);
    let subject = subject(Durability::None, false, 1 << 17);
    let Subject { store, clock, tree, .. } = &subject;
    store.fill_at(1, FaultEffect::None);
    let mut puts = steps.iter().filter(|step| matches!(step, Step::Put(..)));
    let refused = puts.find(|step| step.run(tree).is_err()).expect("memory is bounded");
    let before = store.operations();
    for step in puts {
        assert_eq!(step.run(tree).expect_err("full").kind(), Kind::NoSpace);
    }
    assert_eq!(store.operations(), before, "nothing is due");
    clock.advance(LATER);
    for _ in 0..100 {
        assert_eq!(refused.run(tree).expect_err("full").kind(), Kind::NoSpace);
    }
    let tried = store.operations() - before;
    assert!((1..10).contains(&tried), "{tried} operations for one attempt");
}

/// Symptom: a change was refused although space had been freed. Cause: a stalled flush waited for
/// its next attempt to become due, and changes that filled the memory meanwhile failed because the
/// store was full. Fix: the store reports its free space, and enough of it makes the attempt due.
#[test]
fn no_change_is_refused_once_there_is_room_whenever_the_next_attempt_is_due() {
    for durability in [Durability::None, Durability::Async] {
        let subject = subject(durability, false, 1 << 17);
        let Subject { store, tree, .. } = &subject;
        store.fill_at(store.operations() + 1, FaultEffect::None);
        let steps = workload(false);
        let mut puts = steps.iter().filter(|step| matches!(step, Step::Put(..)));
        assert!(puts.any(|step| step.run(tree).is_err()), "memory is bounded");
        store.make_room();
        // The clock stands still, so nothing becomes due.
        for step in puts {
            step.run(tree).expect("there is room");
        }
        tree.flush().expect("there is room");
    }
}

#[test]
fn a_thread_writes_what_waits_once_there_is_room_though_nobody_asks() {
    let memory: SharedStore = Arc::new(MemoryStore::new());
    let store = Arc::new(FaultStore::new(memory, 5));
    let shared: SharedStore = store.clone();
    let tree = create(&shared, options(Durability::None, true)).expect("create");
    store.fill_at(1, FaultEffect::None);
    let puts = workload(false).into_iter().filter(|step| matches!(step, Step::Put(..)));
    let refused = puts.into_iter().find_map(|step| step.run(&tree).err());
    assert_eq!(refused.expect("memory is bounded").kind(), Kind::NoSpace);
    store.make_room();
    let is_written = (0..3_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        tree.statistics().tables > 0
    });
    assert!(is_written, "after half a minute");
}

/// Threads put their own keys while the store fills up and empties; their changes survive a power
/// loss.
#[test]
fn threads_lose_nothing_while_a_store_fills_up_and_empties() {
    const THREADS: u64 = 4;
    const PUTS: u64 = 2_000;
    for (durability, background) in
        [(Durability::Async, true), (Durability::Async, false), (Durability::None, true)]
    {
        let subject = subject(durability, background, 1 << 18);
        let Subject { store, clock, tree, .. } = &subject;
        let (running, refused) = (AtomicU64::new(THREADS), AtomicU64::new(0));
        let write = |thread: u64| {
            let mut random = Random::from_seed(thread);
            for number in 0..PUTS {
                let mut value = [0; 60];
                random.fill(&mut value);
                let key = format!("{thread}/{number}");
                while let Err(error) = put(tree, key.as_bytes(), &value) {
                    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                    refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            running.fetch_sub(1, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            let write = &write;
            (0..THREADS).for_each(|thread| drop(scope.spawn(move || write(thread))));
            let mut random = Random::from_seed(9);
            while running.load(Ordering::Relaxed) > 0 {
                store.fill_at(0, FaultEffect::None);
                std::thread::sleep(Duration::from_micros(random.below(3_000)));
                store.make_room();
                clock.advance(LATER);
                std::thread::sleep(Duration::from_micros(random.below(3_000)));
            }
        });
        assert!(refused.load(Ordering::Relaxed) > 0, "it was never full");
        tree.sync().expect("there is room");
        let image = store.after_power_loss().expect("an image");
        let tree = resume(&image, options(durability, false)).expect("resume");
        let found = state_of(&tree).records;
        assert_eq!(found.len() as u64, THREADS * PUTS, "{durability:?}");
        for thread in 0..THREADS {
            let mut random = Random::from_seed(thread);
            for number in 0..PUTS {
                let mut value = [0; 60];
                random.fill(&mut value);
                assert_eq!(found[format!("{thread}/{number}").as_bytes()], value);
            }
        }
    }
}
