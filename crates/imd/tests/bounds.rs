// SPDX-License-Identifier: Apache-2.0
//! Partition bounds, on which the ranks of an ordered directory agree while they write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_base::store::{MemoryStore, SharedStore};
use esker_comm::{NodeMap, Transport, threads};
use esker_imd::{DirectoryOptions, DirectoryReader, DirectoryWriter, RecordLayout, ValueFormat};

const RECORDS: u64 = 3_000;

/// Symptom: a rank that had appended its share of memory gave up at the deadline while others still
/// computed, and the job failed.
/// Cause: the agreement on bounds began only when all ranks were full or ended the epoch.
/// Fix: a full rank has rank 0 call the others for their samples, and they answer in any append or
/// poll.
#[test]
fn a_rank_that_is_full_waits_for_a_call_of_the_others_and_no_longer() {
    for early in 0..3 {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let mut options = DirectoryOptions::new(
            1,
            ValueFormat::Ordered,
            RecordLayout::Fixed { key_bytes: 8, value_bytes: 40 },
        );
        options.memory_bytes = 1 << 20;
        let is_through = AtomicBool::new(false);
        let patient = threads::ThreadOptions {
            deadline: Duration::from_secs(30),
            ..threads::ThreadOptions::default()
        };
        let nodes = NodeMap::even(3, 2).expect("three ranks");
        let done = threads::run_with(nodes, &patient, |transport| {
            let rank = transport.rank().0;
            let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
            let key = |number: u64| (number * 3 + u64::from(rank)).to_be_bytes();
            // The other ranks have a few records that wait for bounds too.
            let records = if rank == early { RECORDS } else { 3 };
            for number in 0..records {
                imd.append(&key(number), &[rank as u8; 40])?;
            }
            if rank == early {
                is_through.store(true, Ordering::SeqCst);
            }
            while !is_through.load(Ordering::SeqCst) {
                imd.poll()?;
                std::thread::yield_now();
            }
            for number in records..RECORDS {
                imd.append(&key(number), &[rank as u8; 40])?;
            }
            imd.epoch_flush()?;
            imd.finish()
        });
        done.unwrap_or_else(|error| panic!("rank {early} is early: {error}"));
        let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
        let (mut found, mut last) = (0, Vec::new());
        let visit = |key: &[u8], _: &[u8]| {
            assert!(last.as_slice() < key, "in order and once");
            (found, last) = (found + 1, key.to_vec());
            Ok(true)
        };
        reader.range(&[0; 8], &[0xff; 8], 0, visit).expect("a range");
        assert_eq!(found, 3 * RECORDS);
    }
}
