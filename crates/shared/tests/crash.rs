// SPDX-License-Identifier: Apache-2.0
//! Crashes of jobs that share a file. The store stops at any operation; at power loss unsynced data
//! is lost or torn; and the job continues with other ranks and servers. Every synced byte must be
//! there; every other byte is the old one or one that was written over it.
//!
//! A write takes effect at some time between its start and the moment when all ranks see it: the
//! next sync of its rank, or the end of the call if that says so. It is durable once its rank has
//! synced. A write of a byte may therefore show unless a durable one certainly came after it; the
//! old byte may show unless one of the writes is durable.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use esker_base::store::{FaultEffect, FaultStore, SharedStore};
use esker_base::{Kind, Random, Result};
use esker_comm::Rank;
use esker_shared::{RemoteReads, SharedFile, SharedOptions};

use crate::campaign;
use crate::support::{
    Job, assert_sound, content, crowd, memory, options, repository, run, same, session,
};

/// All writes end before this offset.
const FILE_BYTES: usize = 12_000;
const NEVER: u64 = u64::MAX;

/// One rank's change to a range of the file.
#[derive(Clone, Debug)]
struct Write {
    rank: u32,
    range: Range<usize>,
    /// Determines its bytes; 0 makes a hole.
    number: u64,
    begun: u64,
    /// Latest time at which all ranks saw it.
    seen: u64,
    is_durable: bool,
}

impl Write {
    fn byte(&self, at: usize) -> u8 {
        let mixed = self.number * 31 + (at - self.range.start) as u64 * 7;
        if self.number == 0 { 0 } else { (mixed % 251) as u8 + 1 }
    }
}

/// The changes of all ranks, and the contents that the file may have.
#[derive(Debug)]
struct Story {
    /// By byte: possible values before `writes`.
    before: Vec<BTreeSet<u8>>,
    writes: Vec<Write>,
    number: u64,
}

impl Story {
    /// The bytes that may be at `at`: for live ranks, or after a crash.
    fn possible(&self, at: usize, alive: bool) -> BTreeSet<u8> {
        let own = self.writes.iter().enumerate().filter(|(_, write)| write.range.contains(&at));
        let own: Vec<(usize, &Write)> = own.collect();
        let is_certain = |write: &Write| if alive { write.seen != NEVER } else { write.is_durable };
        let is_over = |place: usize, write: &Write| {
            own.iter().any(|(later, other)| {
                let same_rank = other.rank == write.rank && *later > place;
                is_certain(other) && (same_rank || write.seen < other.begun)
            })
        };
        let left = own.iter().filter(|(place, write)| !is_over(*place, write));
        let mut possible: BTreeSet<u8> = left.map(|(_, write)| write.byte(at)).collect();
        if !own.iter().any(|(_, write)| is_certain(write)) {
            possible.extend(&self.before[at]);
        }
        possible
    }

    fn check(&self, got: &[u8], alive: bool, what: &str) {
        for at in 0..FILE_BYTES.max(got.len()) {
            let byte = got.get(at).copied().unwrap_or(0);
            let possible =
                if at < FILE_BYTES { self.possible(at, alive) } else { BTreeSet::from([0]) };
            if !possible.contains(&byte) {
                let own: Vec<&Write> =
                    self.writes.iter().filter(|write| write.range.contains(&at)).collect();
                panic!("{what}: byte {at} is {byte}, not one of {possible:?}: {own:#?}");
            }
        }
    }

    /// Makes the bytes that were read the content from now on.
    fn replace_content(&mut self, got: &[u8]) {
        self.writes.clear();
        let byte = |at: usize| BTreeSet::from([got.get(at).copied().unwrap_or(0)]);
        self.before = (0..FILE_BYTES).map(byte).collect();
    }
}

/// A story that all ranks write, with a clock that orders their calls.
struct Told {
    story: Mutex<Story>,
    clock: AtomicU64,
}

impl Told {
    fn new() -> Self {
        let before = vec![BTreeSet::from([0]); FILE_BYTES];
        let story = Mutex::new(Story { before, writes: Vec::new(), number: 0 });
        Self { story, clock: AtomicU64::new(1) }
    }

    fn story(&self) -> MutexGuard<'_, Story> {
        self.story.lock().expect("no rank has panicked")
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Begins a write of bytes, or of a hole.
    fn begin(&self, rank: u32, range: Range<usize>, is_hole: bool) -> Write {
        let mut story = self.story();
        story.number += 1;
        let number = if is_hole { 0 } else { story.number };
        let begun = self.now();
        let write = Write { rank, range, number, begun, seen: NEVER, is_durable: false };
        story.writes.push(write.clone());
        write
    }

    /// Records that all ranks see the writes of `rank` so far.
    fn seen(&self, rank: u32, is_durable: bool) {
        let now = self.now();
        let mut story = self.story();
        for write in story.writes.iter_mut().filter(|write| write.rank == rank) {
            write.seen = write.seen.min(now);
            write.is_durable |= is_durable;
        }
    }
}

/// One rank that writes, cuts and reads until the store fails.
struct Life<'a, 'j> {
    job: &'a mut Job<'j>,
    file: SharedFile,
    told: &'a Told,
    me: u32,
}

impl Life<'_, '_> {
    fn write(&mut self, offset: usize, length: usize) -> Result<()> {
        let range = offset..(offset + length).min(FILE_BYTES);
        let write = self.told.begin(self.me, range.clone(), false);
        let bytes: Vec<u8> = range.clone().map(|at| write.byte(at)).collect();
        self.job.write(&mut self.file, range.start as u64, &bytes)
    }

    fn sync(&mut self) -> Result<()> {
        self.job.sync(&mut self.file)?;
        self.told.seen(self.me, true);
        Ok(())
    }

    /// Makes a hole, which all see once it is made, and which the next sync makes durable.
    fn punch(&mut self, range: Range<usize>) -> Result<()> {
        // Unsent writes of this rank would arrive after the hole.
        self.sync()?;
        self.told.begin(self.me, range.clone(), true);
        let range = range.start as u64..range.end as u64;
        self.job.segments().punch(self.file.id(), range)?;
        self.told.seen(self.me, false);
        Ok(())
    }

    fn truncate(&mut self, size: usize, syncs: bool) -> Result<()> {
        if syncs {
            self.sync()?;
        }
        self.job.barrier()?;
        if self.me == 0 {
            self.told.begin(0, size..FILE_BYTES, true);
        }
        let _ = self.job.truncate(&mut self.file, size as u64)?;
        // All earlier writes were sent, and are beneath it.
        if self.me == 0 {
            self.told.seen(0, false);
        }
        self.job.barrier()
    }

    /// Checks that every rank reads the same, and only possible bytes.
    fn check(&mut self, what: &str) -> Result<Vec<u8>> {
        self.sync()?;
        self.job.barrier()?;
        let got = self.job.read(&mut self.file, 0, 2 * FILE_BYTES)?;
        self.told.story().check(&got, true, what);
        self.job.barrier()?;
        Ok(got.to_vec())
    }

    /// The operations of this rank between two barriers.
    fn work(&mut self, own: &mut Random) -> Result<()> {
        let below = |random: &mut Random, bound: usize| random.below(bound as u64) as usize;
        for _ in 0..own.below(12) {
            match own.below(10) {
                0 => self.sync()?,
                1 => {
                    let start = below(own, FILE_BYTES);
                    self.punch(start..(start + 1 + below(own, 2_000)).min(FILE_BYTES))?;
                }
                2 => {
                    // A stride, which is sent as a run.
                    let (start, length) = (below(own, FILE_BYTES / 2), 1 + below(own, 90));
                    let step = length + below(own, 200);
                    for turn in 0..below(own, 30) {
                        if start + turn * step < FILE_BYTES {
                            self.write(start + turn * step, length)?;
                        }
                    }
                }
                3 => {
                    let offset = below(own, FILE_BYTES);
                    let _ = self.job.read(&mut self.file, offset as u64, 500)?;
                }
                _ => self.write(below(own, FILE_BYTES), 1 + below(own, 900))?,
            }
        }
        Ok(())
    }
}

/// One incarnation of the job on one rank.
fn live(mut job: Job, told: &Told, steps: &Random, what: &str) -> Result<()> {
    let me = job.segments().rank().0;
    let file = job.open("/shared", Some(0o644))?;
    let mut life = Life { job: &mut job, file, told, me };
    let got = life.check_what_was_left(what)?;
    if me == 0 {
        told.story().replace_content(&got);
    }
    life.job.barrier()?;
    let mut all = steps.clone();
    let mut own = Random::from_seed(all.next_u64() ^ u64::from(me));
    for _ in 0..1 + all.below(4) {
        life.work(&mut own)?;
        match all.below(6) {
            0 => life.truncate(all.below(FILE_BYTES as u64) as usize, all.one_in(2))?,
            1 => {
                crowd(life.job, life.file.id(), FILE_BYTES as u64)?;
                life.job.barrier()?;
            }
            2 => drop(life.job.stat(&mut life.file)?),
            3 => life.job.barrier()?,
            _ => drop(life.check(what)?),
        }
    }
    // Not closed: some ranks have synced.
    life.work(&mut own)?;
    life.job.barrier()
}

impl Life<'_, '_> {
    /// Checks the content that the last incarnation left, which must be the same at all ranks.
    fn check_what_was_left(&mut self, what: &str) -> Result<Vec<u8>> {
        let got = self.job.read(&mut self.file, 0, 2 * FILE_BYTES)?;
        self.told.story().check(&got, false, &format!("{what}: as it was left"));
        self.job.barrier()?;
        Ok(got.to_vec())
    }
}

/// Draws the numbers of ranks, nodes and servers, and the length of slices.
fn draw_setup(random: &mut Random, reads: RemoteReads) -> ((u32, u32), SharedOptions) {
    let ranks = 1 + random.below(5) as u32;
    let per_node = 1 + random.below(u64::from(ranks)) as u32;
    let slice_bytes = [100, 1_000, 1 << 20][random.below(3) as usize];
    let servers = 1 + random.below(3) as u32;
    ((ranks, per_node), SharedOptions { reads, ..options(servers, slice_bytes) })
}

/// The store as another machine, or only another process, finds it after the stop.
fn found_after(store: &FaultStore, random: &mut Random) -> SharedStore {
    let image =
        if random.one_in(2) { store.after_power_loss() } else { store.after_process_death() };
    image.expect("an image")
}

fn history(seed: u64) {
    let mut random = Random::from_seed(seed);
    let mut store = memory();
    let told = Told::new();
    for life in 0..1 + random.below(4) {
        let reads = if random.one_in(3) { RemoteReads::Ranks } else { RemoteReads::Store };
        let (ranks, options) = draw_setup(&mut random, reads);
        let faulty = Arc::new(FaultStore::new(store.clone(), random.next_u64()));
        // Early operations are in the opening of parts and the migration of segments.
        let most = [100, 300, 1_000][random.below(3) as usize];
        let stop = 1 + random.below(most);
        let effects = [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full];
        faulty.stop_at(stop, effects[random.below(3) as usize]);
        let steps = Random::from_seed(random.next_u64());
        let what = format!("life {life} of {ranks:?}, stopped at {stop}");
        let shared: SharedStore = faulty.clone();
        let lived = run(&shared, ranks, &[], &options, |job| live(job, &told, &steps, &what));
        if let Err(error) = lived {
            assert!(faulty.is_stopped(), "{what}: {error:?}");
        }
        store = found_after(&faulty, &mut random);
    }
    let (ranks, options) = draw_setup(&mut random, RemoteReads::Store);
    let published = run(&store, ranks, &[], &options, |mut job| {
        let (me, file) = (job.segments().rank().0, job.open("/shared", Some(0o644))?);
        let mut life = Life { job: &mut job, file, told: &told, me };
        let got = life.check_what_was_left("in the end")?;
        let file = life.file;
        job.close(file)?;
        Ok((job.publish("shared")?.0, got))
    });
    let (set, got) = published.unwrap_or_else(|error| panic!("{error:?}")).swap_remove(0);
    let repository = repository(&store);
    assert_sound(&repository);
    same(&content(&repository, set, "/shared"), &got, "published");
}

#[test]
fn what_was_synced_survives_and_nothing_appears_that_was_not_written() {
    campaign::quick(0..60, history);
}

/// A copy of a store.
fn copy_of(store: &SharedStore) -> SharedStore {
    FaultStore::new(store.clone(), 0).after_process_death().expect("a copy")
}

/// A store with a job that ended without publishing, and the content of its file.
fn left_behind() -> (SharedStore, Vec<u8>) {
    let store = memory();
    let byte = |rank: u32, at: usize| (rank as usize * 50 + at * 7 % 49 + 1) as u8;
    let mut content = vec![0; 8_000];
    for (at, own) in content.iter_mut().enumerate() {
        *own = byte((at / 40 % 4) as u32, at);
    }
    let lived = run(&store, (4, 2), &[], &options(2, 100), |mut job| {
        let mut file = job.open("/shared", Some(0o644))?;
        let me = job.segments().rank().0;
        for turn in 0..content.len() / 160 {
            let start = turn * 160 + me as usize * 40;
            // Not all at once, so that some segments do not form runs.
            let cut = start + if turn % 3 == 0 { 17 } else { 40 };
            job.write(&mut file, start as u64, &content[start..cut])?;
            job.write(&mut file, cut as u64, &content[cut..start + 40])?;
        }
        job.sync(&mut file)?;
        job.barrier()
    });
    lived.expect("no fault");
    (store, content)
}

/// Continues with other ranks and servers, so that segments move; then loads one server, so that
/// they move again at the next barrier.
fn go_on(store: &SharedStore, content: &[u8]) -> Result<bool> {
    let moved = run(store, (3, 1), &[], &options(1, 70), |mut job| {
        let mut file = job.open("/shared", None)?;
        same(&job.read(&mut file, 0, 10_000)?, content, "as it was left");
        let map = job.segments().map().clone();
        crowd(&mut job, file.id(), content.len() as u64)?;
        job.barrier()?;
        let moved = *job.segments().map() != map;
        same(&job.read(&mut file, 0, 10_000)?, content, "after segments moved");
        job.barrier()?;
        job.close(file)?;
        Ok(moved)
    });
    moved.map(|moved| moved[0])
}

/// No rank writes, so the content must stay, wherever the store stops.
#[test]
fn segments_that_move_are_there_wherever_the_world_stops() {
    let (store, content) = left_behind();
    let count = {
        let faulty = Arc::new(FaultStore::new(copy_of(&store), 1));
        let shared: SharedStore = faulty.clone();
        assert!(go_on(&shared, &content).expect("no fault"), "the load was even");
        faulty.operations()
    };
    let effects = [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full];
    for stop in 1..=count {
        let faulty = Arc::new(FaultStore::new(copy_of(&store), stop));
        faulty.stop_at(stop, effects[(stop % 3) as usize]);
        let shared: SharedStore = faulty.clone();
        drop(go_on(&shared, &content));
        for (how, image) in
            [("death", faulty.after_process_death()), ("power loss", faulty.after_power_loss())]
        {
            let what = format!("{how} at operation {stop} of {count}");
            let image = image.expect("an image");
            let done = run(&image, (2, 2), &[], &options(2, 1_000), |mut job| {
                let mut file = job.open("/shared", None)?;
                same(&job.read(&mut file, 0, 10_000)?, &content, &what);
                job.barrier()?;
                job.close(file).map(drop)
            });
            done.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        }
    }
    println!("{count} operations");
}

/// Writes and syncs, repeatedly if that fails, while one operation of the store fails. Returns
/// whether the second rank finally got the confirmation that all its writes are durable, and
/// whether the job was published.
fn persist(
    store: &FaultStore,
    shared: &SharedStore,
    fail: Option<(u64, Kind, FaultEffect)>,
) -> [bool; 2] {
    let (synced, published) = (AtomicU64::new(0), AtomicU64::new(0));
    let done = run(shared, (2, 1), &[], &options(1, 1_000), |mut job| {
        let mut file = job.open("/shared", Some(0o644))?;
        job.barrier()?;
        let me = job.segments().rank().0;
        if me == 1 {
            if let Some((after, kind, effect)) = fail {
                store.fail_at_with(store.operations() + after, kind, effect);
            }
            for turn in 0..8 {
                job.write(&mut file, turn * 700, &[1 + turn as u8; 700])?;
                for _ in 0..3 {
                    if job.sync(&mut file).is_ok() {
                        synced.store(turn + 1, Ordering::SeqCst);
                        break;
                    }
                }
            }
        }
        job.barrier()?;
        job.close(file)?;
        job.publish("shared")?;
        published.store(1, Ordering::SeqCst);
        Ok(())
    });
    drop(done);
    [synced.into_inner() == 8, published.into_inner() == 1]
}

/// Symptom: a sync that failed, for example for lack of space, succeeded when it was repeated, and
/// the data to be synced was lost; a job was published without it.
/// Cause: segments were dropped once they were sent, and owners that had failed to sync were not
/// asked again.
/// Fix: see [`esker_shared::SegmentService::drain`].
#[test]
fn a_sync_that_is_tried_again_after_a_failure_never_lies() {
    let count = {
        let faulty = Arc::new(FaultStore::new(memory(), 1));
        let shared: SharedStore = faulty.clone();
        assert_eq!(persist(&faulty, &shared, None), [true, true]);
        faulty.operations()
    };
    let (mut told, mut all) = (0, 0);
    for after in 1..=count {
        for (kind, effect) in
            [(Kind::NoSpace, FaultEffect::None), (Kind::Unavailable, FaultEffect::Partial)]
        {
            let faulty = Arc::new(FaultStore::new(memory(), after));
            let shared: SharedStore = faulty.clone();
            let [synced, published] = persist(&faulty, &shared, Some((after, kind, effect)));
            let what = format!("{kind:?} {effect:?} at operation {after} of {count}");
            let wanted: Vec<u8> = (0..8).flat_map(|turn| [1 + turn as u8; 700]).collect();
            let image = faulty.after_power_loss().expect("an image");
            if published {
                all += 1;
                let repository = repository(&image);
                let set = repository.resolve("shared").expect(&what).set;
                same(&content(&repository, set, "/shared"), &wanted, &what);
            } else if synced {
                told += 1;
                let read = run(&image, (2, 2), &[], &options(2, 500), |mut job| {
                    let mut file = job.open("/shared", None)?;
                    let got = job.read(&mut file, 0, 10_000)?;
                    same(&got, &wanted, &what);
                    job.barrier()
                });
                // Some parts may be complete: the job must then be published.
                if let Err(error) = read {
                    assert_eq!(error.kind(), Kind::Invalid, "{what}: {error:?}");
                }
            }
        }
    }
    println!(
        "of {} failures {told} were told of all that it is durable, {all} published",
        2 * count
    );
    assert!(told > 0 && all > 0, "{told} and {all}");
}

/// The content goes from the file's record to the owners, and an owner without space is asked
/// again.
#[test]
fn a_file_that_cannot_be_opened_stays_as_it_was() {
    let base: SharedStore = memory();
    let old: Vec<u8> = (0..70_000).map(|at| (at % 249) as u8).collect();
    let names = [("/small", 100), ("/packed", 5_000), ("/mapped", 70_000)];
    let session = repository(&base).begin(&[], session()).expect("begin");
    for (name, length) in names {
        let file =
            session.create_file(session.root(), &name.as_bytes()[1..], 0o644).expect("create");
        session.file(&file).write(0, &old[..length]).expect("write");
        if name == "/mapped" {
            session.file(&file).flush().expect("flush");
            session.file(&file).write(100, &old[100..length]).expect("write");
        }
        session.close_file(file).expect("close");
    }
    let set = session.publish("base").expect("publish");
    let (mut failed, mut opened) = (0, 0);
    for after in 1..40 {
        for (name, length) in names {
            let faulty = Arc::new(FaultStore::new(copy_of(&base), after));
            let shared: SharedStore = faulty.clone();
            let could = run(&shared, (2, 1), &[set], &options(1, 1_000), |mut job| {
                if job.segments().rank() == Rank(0) {
                    faulty.fail_at_with(
                        faulty.operations() + after,
                        Kind::NoSpace,
                        FaultEffect::None,
                    );
                }
                job.barrier()?;
                let file = job.open(name, None);
                let could = file.is_ok();
                if let Ok(file) = file {
                    job.close(file)?;
                }
                job.publish("shared")?;
                Ok(could)
            });
            let what = format!("{name} without room at operation {after}");
            // Without space it need not be published, but a published set must be whole.
            let Ok(could) = could else { continue };
            (failed, opened) = (failed + usize::from(!could[0]), opened + usize::from(could[0]));
            let repository = repository(&shared);
            let set = repository.resolve("shared").expect(&what).set;
            same(&content(&repository, set, name), &old[..length], &what);
        }
    }
    println!("{failed} could not be opened, {opened} could");
    assert!(failed > 0 && opened > 0, "{failed} and {opened}");
}

/// For `make soak`.
#[test]
#[ignore = "long"]
fn campaign_of_crashes() {
    campaign::soak(history);
}
