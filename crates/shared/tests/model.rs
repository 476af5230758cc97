// SPDX-License-Identifier: Apache-2.0
//! A shared file checked against bytes in memory: overlapping writes of all ranks anywhere, holes,
//! cuts, balanced load, a job that ends and continues with other numbers of ranks and servers,
//! publication.
//!
//! Every rank draws the same steps from the seed, and so knows all bytes. At the end of a round all
//! sync and wait at a barrier, and within it no two ranks write the same bytes; or they exchange
//! their writes, and then two ranks may write the same bytes.

use esker_base::{Random, Result};
use esker_shared::{RemoteReads, SharedFile, SharedOptions};

use crate::support::{Job, assert_sound, content, crowd, memory, options, repository, run, same};

const FILE_BYTES: u64 = 20_000;

#[derive(Clone, Debug)]
struct Write {
    rank: u32,
    offset: u64,
    bytes: Vec<u8>,
}

/// The writes of one round, in order. Those of different ranks overlap only if `may_overlap`: those
/// of higher ranks are then the later ones.
fn round(random: &mut Random, ranks: u32, may_overlap: bool) -> Vec<Write> {
    let mut writes: Vec<Write> = Vec::new();
    let is_strided = random.one_in(2);
    let (length, start) = (1 + random.below(400), random.below(2_000));
    for turn in 0..random.below(60) {
        let rank = u32::try_from(random.below(u64::from(ranks))).expect("a rank");
        let (offset, length) = match is_strided {
            true => (start + (turn * u64::from(ranks) + u64::from(rank)) * length, length),
            false => (random.below(FILE_BYTES), 1 + random.below(700)),
        };
        let mut bytes = vec![0; usize::try_from(length).expect("short")];
        random.fill(&mut bytes);
        let overlaps = |other: &Write| {
            other.rank != rank
                && other.offset < offset + length
                && offset < other.offset + other.bytes.len() as u64
        };
        if may_overlap || !writes.iter().any(overlaps) {
            writes.push(Write { rank, offset, bytes });
        }
    }
    if may_overlap {
        writes.sort_by_key(|write| write.rank);
    }
    writes
}

fn apply(model: &mut Vec<u8>, write: &Write) {
    let start = usize::try_from(write.offset).expect("short");
    let end = start + write.bytes.len();
    model.resize(model.len().max(end), 0);
    model[start..end].copy_from_slice(&write.bytes);
}

fn check(job: &mut Job, file: &mut SharedFile, model: &[u8], random: &mut Random) -> Result<()> {
    for _ in 0..4 {
        let offset = random.below(FILE_BYTES + 3_000);
        let length = usize::try_from(random.below(4_000)).expect("short");
        let got = job.read(file, offset, length)?;
        let start = usize::try_from(offset).expect("short").min(model.len());
        let end = model.len().min(start + length);
        same(&got, &model[start..end], &format!("{length} bytes at {offset}"));
    }
    Ok(())
}

/// One incarnation of the job: rounds of writes; then it ends abruptly, with everything synced.
fn live(
    job: &mut Job,
    mut random: Random,
    (ranks, reads): (u32, RemoteReads),
    model: &mut Vec<u8>,
) -> Result<()> {
    let mut file = job.open("/shared", Some(0o644))?;
    let me = job.segments().rank();
    let is_exchanged = random.one_in(2);
    if is_exchanged {
        job.exchange(&mut file)?;
    }
    // Each rank checks different ranges.
    let mut own = Random::from_seed(random.next_u64() ^ u64::from(me.0));
    same(&job.read(&mut file, 0, 1 << 20)?, model, "as it was left");
    job.barrier()?;
    for _ in 0..1 + random.below(5) {
        let mut seen = model.clone();
        let sent_before = job.segments().counters().sent_messages;
        for write in round(&mut random, ranks, is_exchanged) {
            apply(model, &write);
            if write.rank == me.0 {
                job.write(&mut file, write.offset, &write.bytes)?;
                apply(&mut seen, &write);
                let (offset, length) = (write.offset, write.bytes.len());
                same(&job.read(&mut file, offset, length)?, &write.bytes, "own writes are seen");
            }
        }
        if is_exchanged {
            assert_eq!(job.segments().counters().sent_messages, sent_before, "writes send nothing");
            // Rounds without a sync between: the later one wins all the same.
            job.exchange(&mut file)?;
            let before = job.segments().counters().sent_messages;
            check(job, &mut file, model, &mut own)?;
            let sent = job.segments().counters().sent_messages - before;
            assert!(sent == 0 || reads == RemoteReads::Ranks, "reads send nothing");
            if random.one_in(3) {
                job.sync(&mut file)?;
            }
        } else {
            job.sync(&mut file)?;
        }
        job.barrier()?;
        check(job, &mut file, model, &mut own)?;
        let attributes = job.stat(&mut file)?;
        assert_eq!(attributes.size, model.len() as u64);
        if random.one_in(3) {
            let size = random.below(FILE_BYTES);
            let _ = job.truncate(&mut file, size)?;
            model.resize(usize::try_from(size).expect("short"), 0);
            check(job, &mut file, model, &mut own)?;
        }
        if random.one_in(3) {
            crowd(job, file.id(), FILE_BYTES)?;
            job.barrier()?;
            check(job, &mut file, model, &mut own)?;
        }
        job.barrier()?;
    }
    // The size survives even where it is beyond the last byte.
    job.close(file)?;
    job.session().sync()
}

fn history(seed: u64, reads: RemoteReads) {
    let store = memory();
    let mut random = Random::from_seed(seed);
    let mut model = Vec::new();
    let mut jobs = Vec::new();
    for _ in 0..1 + random.below(4) {
        let ranks = 1 + u32::try_from(random.below(7)).expect("few");
        let per_node = 1 + u32::try_from(random.below(u64::from(ranks))).expect("few");
        let servers = 1 + u32::try_from(random.below(3)).expect("few");
        let slice_bytes = [1, 100, 1_000, 1 << 20][random.below(4) as usize].max(7);
        jobs.push((ranks, per_node));
        let options = SharedOptions { reads, ..options(servers, slice_bytes) };
        let steps = Random::from_seed(random.next_u64());
        let lived = run(&store, (ranks, per_node), &[], &options, |mut job| {
            let mut model = model.clone();
            live(&mut job, steps.clone(), (ranks, reads), &mut model)?;
            job.barrier()?;
            Ok(model)
        });
        let mut models = lived.unwrap_or_else(|error| panic!("seed {seed}, {jobs:?}: {error:?}"));
        model = models.swap_remove(0);
        let report = repository(&store).verify(&Default::default()).expect("verify");
        assert!(report.is_sound(), "seed {seed}: {:#?}", report.findings);
    }
    let (ranks, per_node) = (1 + u32::try_from(random.below(4)).expect("few"), 2);
    let published = run(&store, (ranks, per_node), &[], &options(1, 999), |job| {
        let (set, report) = job.publish("shared")?;
        assert!(report.is_none_or(|report| report.conflicts.is_empty()));
        Ok(set)
    });
    let set = published.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"))[0];
    let repository = repository(&store);
    assert_sound(&repository);
    same(&content(&repository, set, "/shared"), &model, &format!("seed {seed}: published"));
}

#[test]
fn every_byte_is_the_one_that_was_written_last() {
    for seed in 0..40 {
        history(seed, RemoteReads::Store);
    }
}

#[test]
fn bytes_come_from_the_ranks_that_wrote_them() {
    for seed in 100..120 {
        history(seed, RemoteReads::Ranks);
    }
}

/// For `make soak`.
#[test]
#[ignore = "long"]
fn campaign() {
    for seed in 1_000..3_000 {
        history(seed, if seed % 2 == 0 { RemoteReads::Store } else { RemoteReads::Ranks });
    }
}
