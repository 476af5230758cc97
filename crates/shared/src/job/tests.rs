// SPDX-License-Identifier: Apache-2.0
//! The store stops while the segments of a server are compacted and ranks continue writing:
//! afterwards every synced byte is there, and no byte of a write that was not begun.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use esker_base::Random;
use esker_base::clock::SystemClock;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_comm::threads::{self, ThreadTransport};
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::stack::identity::Identity;
use esker_table::tree::TreeOptions;

use super::*;
use crate::file::SharedFile;
use crate::migrate::tree;

const ID: JobId = JobId(3);
const RANKS: u32 = 3;
/// Written by all ranks in turn; of different lengths, so that they do not form runs.
const PIECES: u64 = 60;
const PIECE_BYTES_MAX: u64 = 12;
/// Each round leaves a run of segments to compact.
const ROUNDS_BEFORE: u64 = 3;

type Job<'a> = SharedJob<&'a mut ThreadTransport>;

/// By rank: the last round that it began to write, and the last that it has synced.
#[derive(Debug, Default)]
struct Told {
    begun: [AtomicU64; RANKS as usize],
    synced: [AtomicU64; RANKS as usize],
    /// True if the compaction failed.
    is_interrupted: AtomicBool,
}

/// Runs `work` as `ranks` ranks of one node, of which the first has all segments.
fn run<R: Send>(
    store: &SharedStore,
    ranks: u32,
    work: impl Fn(Job) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let repository = Repository::with(store.clone(), 1 << 20, Arc::new(SystemClock));
    let tree = TreeOptions { background: false, ..TreeOptions::default() };
    let session = SessionOptions { identity: Identity::root(), tree, ..SessionOptions::default() };
    let options = SharedOptions { slice_bytes: 1_000, session, ..SharedOptions::default() };
    threads::run(ranks, ranks, |transport| {
        work(SharedJob::begin(transport, &repository, ID, &[], &options)?)
    })
}

fn length(piece: u64) -> u64 {
    5 + piece * 7 % (PIECE_BYTES_MAX - 5)
}

/// Rewrites all pieces of this rank, in random order, and syncs.
fn write(job: &mut Job, file: &mut SharedFile, round: u64, told: &Told) -> Result<()> {
    let me = job.segments().rank();
    told.begun[me.index()].store(round, Ordering::SeqCst);
    let own = (0..PIECES).filter(|piece| piece % u64::from(RANKS) == u64::from(me.0));
    let mut own: Vec<u64> = own.collect();
    let mut random = Random::from_seed(round * 10 + u64::from(me.0));
    own.sort_by_cached_key(|_| random.next_u64());
    for piece in own {
        let bytes = [round as u8; PIECE_BYTES_MAX as usize];
        job.write(file, piece * PIECE_BYTES_MAX, &bytes[..length(piece) as usize])?;
    }
    job.sync(file)?;
    told.synced[me.index()].store(round, Ordering::SeqCst);
    Ok(())
}

/// Writes and compacts at the same time. The store stops at operation `stop` of the compaction.
/// Returns the number of operations until both were done.
fn compact_and_write(
    faulty: &FaultStore,
    store: &SharedStore,
    rounds_meanwhile: u64,
    stop: Option<(u64, FaultEffect)>,
    told: &Told,
) -> Result<u64> {
    let is_over = AtomicBool::new(false);
    let counts = run(store, RANKS, |mut job| {
        let mut file = job.open("/f", Some(0o644))?;
        for round in 1..=ROUNDS_BEFORE {
            write(&mut job, &mut file, round, told)?;
            job.segments.barrier()?;
            if let Some(index) = &job.index {
                tree(index).flush()?;
            }
        }
        let (index, before) = (job.index.clone(), faulty.operations());
        if let Some((stop, effect)) = stop.filter(|_| index.is_some()) {
            faulty.stop_at(before + stop, effect);
        }
        job.segments.barrier()?;
        let count = std::thread::scope(|scope| {
            let compact = || {
                let done = index.as_ref().map_or(Ok(()), |index| tree(index).compact());
                told.is_interrupted.fetch_or(done.is_err(), Ordering::SeqCst);
                let count = faulty.operations() - before;
                is_over.fetch_or(index.is_some(), Ordering::SeqCst);
                done.map(|()| count)
            };
            let compaction = scope.spawn(compact);
            let mut round = ROUNDS_BEFORE;
            while !is_over.load(Ordering::SeqCst) {
                if round < ROUNDS_BEFORE + rounds_meanwhile {
                    round += 1;
                    write(&mut job, &mut file, round, told)?;
                }
                job.segments.serve(Duration::from_millis(1))?;
            }
            compaction.join().expect("it does not panic")
        })?;
        write(&mut job, &mut file, ROUNDS_BEFORE + rounds_meanwhile + 1, told)?;
        job.segments.barrier()?;
        Ok(count)
    });
    Ok(counts?[0])
}

/// Checks what the next job finds.
fn check(store: &SharedStore, told: &Told, what: &str) {
    let read = run(store, 2, |mut job| {
        let mut file = job.open("/f", None)?;
        let bytes = job.read(&mut file, 0, 1 << 20)?;
        job.segments.barrier()?;
        job.close(file)?;
        Ok(bytes)
    });
    let bytes = read.unwrap_or_else(|error| panic!("{what}: {error:?}")).swap_remove(0);
    for piece in 0..PIECES {
        let rank = (piece % u64::from(RANKS)) as usize;
        let possible =
            told.synced[rank].load(Ordering::SeqCst)..=told.begun[rank].load(Ordering::SeqCst);
        for at in piece * PIECE_BYTES_MAX..piece * PIECE_BYTES_MAX + length(piece) {
            let byte = bytes.get(at as usize).copied().unwrap_or(0);
            assert!(possible.contains(&byte.into()), "{what}: byte {at} is of {byte}: {told:?}");
        }
    }
    let repository = Repository::with(store.clone(), 1 << 20, Arc::new(SystemClock));
    let report = repository.verify(&VerifyOptions::default()).expect("verify");
    assert!(report.is_sound(), "{what}: {:#?}", report.findings);
}

/// Crashes at every operation from the start of a compaction to its end, with `rounds_meanwhile`
/// rounds of writes at the same time. Returns how often the compaction failed, and the number of
/// crashes.
fn crash_everywhere(rounds_meanwhile: u64) -> (u64, u64) {
    let faulty = |seed| {
        let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), seed));
        let store: SharedStore = faulty.clone();
        (faulty, store)
    };
    let (store, shared) = faulty(0);
    let told = Told::default();
    let count = compact_and_write(&store, &shared, rounds_meanwhile, None, &told);
    let count = count.expect("no fault");
    check(&shared, &told, "without a crash");
    let effects = [FaultEffect::None, FaultEffect::Partial, FaultEffect::Full];
    let mut interrupted = 0;
    for stop in 1..=count {
        let (store, shared) = faulty(stop);
        let told = Told::default();
        let at = Some((stop, effects[(stop % 3) as usize]));
        let lived = compact_and_write(&store, &shared, rounds_meanwhile, at, &told);
        assert!(lived.is_ok() || store.is_stopped(), "{lived:?}");
        interrupted += u64::from(told.is_interrupted.load(Ordering::SeqCst));
        for (how, image) in
            [("death", store.after_process_death()), ("power loss", store.after_power_loss())]
        {
            let what = format!("{how} at operation {stop} of {count}");
            check(&image.expect("an image"), &told, &what);
        }
    }
    println!("{rounds_meanwhile} rounds meanwhile: {interrupted} of {count} interrupted it");
    (interrupted, count)
}

#[test]
fn what_was_synced_survives_a_crash_anywhere_in_a_compaction_of_segments() {
    // No rank writes, so these are operations of the compaction, the last of which comes when it
    // can no longer fail.
    let (interrupted, count) = crash_everywhere(0);
    assert!(interrupted + 1 >= count && interrupted > 5, "{interrupted} of {count}");
    for rounds_meanwhile in [1, 3] {
        let (interrupted, count) = crash_everywhere(rounds_meanwhile);
        assert!(interrupted > 3, "{interrupted} of {count}");
    }
}
