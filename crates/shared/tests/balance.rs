// SPDX-License-Identifier: Apache-2.0
//! Uneven load is spread automatically; even load costs nothing.

use std::collections::BTreeMap;

use esker_base::{Random, Result};
use esker_comm::Rank;
use esker_shared::{SharedFile, SliceMap};

use crate::support::{Job, assert_sound, content, crowd, memory, options, repository, run, same};

const RANKS: u32 = 4;
const SLICE_BYTES: u64 = 2_000;
const SLICES: u64 = 64;
/// Bytes of a write. Every second piece is left out, so that each write is a segment of its own.
const PIECE: u64 = 4;

/// The slices of `file` that have the same server as the first.
fn hot(map: &SliceMap, file: u128) -> Vec<u64> {
    let slices = (0..SLICES).map(|slice| slice * SLICE_BYTES);
    slices.filter(|start| map.owner(file, *start) == map.owner(file, 0)).collect()
}

/// The number of `slices` that each server owns.
fn shares(map: &SliceMap, file: u128, slices: &[u64]) -> BTreeMap<Rank, usize> {
    let mut shares: BTreeMap<Rank, usize> = map.servers().iter().map(|own| (*own, 0)).collect();
    slices.iter().for_each(|start| *shares.entry(map.owner(file, *start)).or_default() += 1);
    shares
}

/// Every rank writes its pieces of `slices`, in its own order, and syncs; the writes of all ranks
/// are applied to `model`.
fn write(
    job: &mut Job,
    file: &mut SharedFile,
    slices: &[u64],
    turn: u64,
    model: &mut [u8],
) -> Result<()> {
    let me = u64::from(job.segments().rank().0);
    let mut own = Vec::new();
    for (place, start) in (0..).zip(slices) {
        for piece in 0..SLICE_BYTES / (2 * PIECE) {
            let offset = start + piece * 2 * PIECE;
            let rank = (place + piece) % u64::from(RANKS);
            let bytes: [u8; PIECE as usize] =
                std::array::from_fn(|at| (turn * 59 + rank * 31 + offset + at as u64) as u8);
            let at = usize::try_from(offset).expect("short");
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            if rank == me {
                own.push((offset, bytes));
            }
        }
    }
    let mut random = Random::from_seed(me + turn * 100);
    own.sort_by_cached_key(|_| random.next_u64());
    own.iter().try_for_each(|(offset, bytes)| job.write(file, *offset, bytes))?;
    job.sync(file)
}

#[test]
fn slices_of_a_server_that_gets_all_writes_are_spread_by_themselves() {
    let store = memory();
    let bytes = usize::try_from(SLICES * SLICE_BYTES).expect("short");
    let done = run(&store, (RANKS, 1), &[], &options(1, SLICE_BYTES), |mut job| {
        let mut file = job.open("/f", Some(0o644))?;
        let id = file.id();
        let mut model = vec![0; bytes];
        let first = job.segments().map().clone();
        let hot = hot(&first, id);
        let mut turns = 0;
        while *job.segments().map() == first {
            turns += 1;
            assert!(turns < 40, "{} slices of one server never move", hot.len());
            write(&mut job, &mut file, &hot, turns, &mut model)?;
            job.barrier()?;
        }
        let got = job.read(&mut file, 0, bytes)?;
        same(&got, &model[..got.len()], &format!("after {turns} turns"));
        // No rank may write bytes that others still read.
        job.segments().barrier()?;
        let shares = shares(job.segments().map(), id, &hot);
        let (most, mean) = (shares.values().max(), hot.len().div_ceil(RANKS as usize));
        assert!(most <= Some(&(mean + 1)), "{shares:?} of {}", hot.len());
        // Continue: load is now even, and nothing moves.
        let second = job.segments().map().clone();
        for turn in 50..90 {
            write(&mut job, &mut file, &hot, turn, &mut model)?;
            job.barrier()?;
        }
        let got = job.read(&mut file, 0, bytes)?;
        same(&got, &model[..got.len()], "in the end");
        assert!(*job.segments().map() == second, "what is even moved");
        job.segments().barrier()?;
        job.close(file)?;
        Ok((job.publish("spread")?.0, got))
    });
    let (set, got) = done.expect("job").swap_remove(0);
    let repository = repository(&store);
    assert_sound(&repository);
    same(&content(&repository, set, "/f"), &got, "published");
}

/// In these cases a barrier costs only a reduction along the log-ring.
#[test]
fn load_that_is_even_or_little_moves_nothing_and_costs_no_message_more() {
    for ranks in [1_u32, 2, 3, 7, 16] {
        let store = memory();
        let bound = u64::from(u32::BITS - (ranks - 1).leading_zeros());
        let done = run(&store, (ranks, 1), &[], &options(1, 100), |mut job| {
            let mut file = job.open("/f", Some(0o644))?;
            if job.segments().rank() == Rank(0) {
                job.write(&mut file, 0, &[7; 20_000])?;
            }
            job.sync(&mut file)?;
            job.barrier()?;
            let map = job.segments().map().clone();
            // Much load on all, and slightly more on one.
            let all: Vec<u64> = (0..20_000).step_by(25).collect();
            for _ in 0..10 {
                let _ = job.segments().get_segments(file.id(), &all)?;
            }
            let few = vec![0; 3_000 / ranks as usize];
            let _ = job.segments().get_segments(file.id(), &few)?;
            job.segments().barrier()?;
            let before = job.segments().counters();
            job.barrier()?;
            let after = job.segments().counters();
            assert!(after.sent_messages - before.sent_messages <= bound);
            assert!(after.received_messages - before.received_messages <= bound);
            assert!(*job.segments().map() == map);
            // Without this barrier, look-ups below could reach a server before all ranks have
            // counted.
            job.segments().barrier()?;
            crowd(&mut job, file.id(), 20_000)?;
            job.barrier()?;
            assert_eq!(*job.segments().map() != map, ranks > 1, "{ranks} ranks");
            job.close(file).map(drop)
        });
        done.unwrap_or_else(|error| panic!("{ranks} ranks: {error:?}"));
    }
}
