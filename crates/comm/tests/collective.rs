// SPDX-License-Identifier: Apache-2.0
//! Collectives among ranks that are threads, for many numbers of ranks, roots, nodes and delegates.

use std::sync::atomic::{AtomicU32, Ordering};

use esker_base::{Error, Kind, Result};
use esker_comm::collective::{CollectiveOptions, Collectives, Delegates, Reduction, Topology};
use esker_comm::threads::run;
use esker_comm::{Rank, Transport};

const WAYS: [(Delegates, Topology); 5] = [
    (Delegates::All, Topology::LogRing),
    (Delegates::All, Topology::Star),
    (Delegates::PerNode(1), Topology::LogRing),
    (Delegates::PerNode(2), Topology::LogRing),
    (Delegates::PerNode(1), Topology::Star),
];

fn check(transport: &mut dyn Transport, options: CollectiveOptions) -> Result<()> {
    let (me, size) = (transport.rank(), transport.size());
    let mut collectives = Collectives::new(transport, options);
    for round in 0..3 {
        let root = Rank((round * 7) % size);
        let value = u64::from(me.0) + 1;
        let n = u64::from(size);
        assert_eq!(collectives.all_reduce_u64(root, value, Reduction::Max)?, n);
        assert_eq!(collectives.all_reduce_u64(root, value, Reduction::Min)?, 1);
        assert_eq!(collectives.all_reduce_u64(root, value, Reduction::Sum)?, n * (n + 1) / 2);
        let bits = (1..=n).fold(0, |bits, value| bits | value);
        assert_eq!(collectives.all_reduce_u64(root, value, Reduction::Or)?, bits);
        // A custom function: the set of ranks, which grows, at the root alone.
        let mut join = |into: &mut Vec<u8>, other: &[u8]| into.extend_from_slice(other);
        let all = collectives.reduce(root, me.0.to_le_bytes().to_vec(), &mut join)?;
        assert_eq!(all.is_some(), me == root);
        if let Some(all) = all {
            let mut ranks: Vec<u32> = all
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
                .collect();
            ranks.sort_unstable();
            assert_eq!(ranks, (0..size).collect::<Vec<_>>());
        }
        let said = collectives.broadcast(root, format!("by {me}").into_bytes())?;
        assert_eq!(said, format!("by {root}").into_bytes());
    }
    Ok(())
}

#[test]
fn all_ranks_learn_the_result() {
    for (delegates, topology) in WAYS {
        for size in (1..=20).chain([33, 64, 100]) {
            let options = CollectiveOptions { delegates, topology, ..Default::default() };
            run(size, 5, |transport| check(transport, options)).unwrap();
        }
    }
}

/// Checks the transport's counters, not the tree's claim.
#[test]
fn nobody_sends_or_receives_more_than_log_n() {
    for size in (1..=40_u32).chain([127, 128, 129, 300]) {
        let options = CollectiveOptions { delegates: Delegates::All, ..Default::default() };
        let most = u64::from(size.next_power_of_two().trailing_zeros());
        run(size, 4, |transport| {
            let root = Rank(size / 3);
            let mut collectives = Collectives::new(&mut *transport, options);
            let before = collectives.transport().counters();
            let mut keep = |into: &mut Vec<u8>, other: &[u8]| {
                if other > &into[..] {
                    *into = other.to_vec();
                }
            };
            collectives.reduce(root, vec![1; 8], &mut keep)?;
            let between = collectives.transport().counters();
            collectives.broadcast(root, vec![2; 8])?;
            let after = collectives.transport().counters();
            // Some broadcasts of other ranks may already be among the messages received before.
            assert!(between.sent_messages - before.sent_messages <= most.min(1));
            assert!(after.sent_messages - between.sent_messages <= most);
            assert!(after.received_messages - before.received_messages <= most + 1);
            if collectives.transport().rank() == root {
                assert_eq!(between.received_messages - before.received_messages, most);
                assert_eq!(after.sent_messages - between.sent_messages, most);
            }
            Ok(())
        })
        .unwrap();
    }
}

/// By the transport's counters, no rank sends or receives more than ⌈log2 n⌉ messages of a barrier,
/// and all ranks together send 2 (n - 1).
#[test]
fn nobody_sends_or_receives_more_than_log_n_at_a_barrier() {
    for size in 1..=300_u32 {
        let most = u64::from(size.next_power_of_two().trailing_zeros());
        let sent = run(size, 4, |transport| {
            // There is no second barrier whose messages could come early.
            transport.barrier()?;
            let counters = transport.counters();
            let (sent, received) = (counters.sent_messages, counters.received_messages);
            let me = transport.rank();
            assert!(sent <= most && received <= most, "{me} of {size}: {sent} and {received}");
            if me == Rank(0) {
                assert_eq!((sent, received), (most, most));
            }
            Ok(sent)
        });
        assert_eq!(sent.unwrap().iter().sum::<u64>(), 2 * (u64::from(size) - 1));
    }
}

/// Ranks at the ends of the tree run ahead of those in the middle, by at most one barrier.
#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for size in [2_u32, 3, 5, 8, 13, 31] {
        let come = AtomicU32::new(0);
        run(size, 4, |transport| {
            for turn in 0..200 {
                if transport.rank().0 % 3 == turn % 3 {
                    std::thread::yield_now();
                }
                come.fetch_add(1, Ordering::SeqCst);
                transport.barrier()?;
                let now = come.load(Ordering::SeqCst);
                assert!((size * (turn + 1)..=size * (turn + 2)).contains(&now), "{now}");
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Only reductions, so that nothing but the window holds back ranks other than the root.
#[test]
fn ranks_that_run_ahead_are_held_back() {
    run(9, 3, |transport| {
        let mut collectives = Collectives::new(transport, CollectiveOptions::default());
        for number in 0..1000_u64 {
            let mut add = |into: &mut Vec<u8>, _: &[u8]| into[0] = into[0].wrapping_add(1);
            let sum = collectives.reduce(Rank(number as u32 % 9), vec![1], &mut add)?;
            // A delegate's value stands for those of its clients, so this counts merges, not
            // values.
            assert!(sum.is_none_or(|sum| sum.len() == 1));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_thousand_ranks_agree() {
    run(1024, 16, |transport| {
        let mut collectives = Collectives::new(transport, CollectiveOptions::default());
        let me = collectives.transport().rank();
        let sum = collectives.all_reduce_u64(Rank(77), me.0.into(), Reduction::Sum)?;
        assert_eq!(sum, 1023 * 1024 / 2);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_lost_rank_ends_a_collective() {
    let error = run(6, 2, |transport| {
        if transport.rank() == Rank(3) {
            return Err(Error::new(Kind::Invalid, "bad input"));
        }
        let mut collectives = Collectives::new(transport, CollectiveOptions::default());
        let error = collectives.all_reduce_u64(Rank(0), 1, Reduction::Sum).unwrap_err();
        assert!(error.to_string().contains("rank 3"), "{error}");
        let again = collectives.all_reduce_u64(Rank(0), 1, Reduction::Sum).unwrap_err();
        assert_eq!(again.kind(), Kind::Closed);
        Err::<(), _>(error)
    })
    .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}
