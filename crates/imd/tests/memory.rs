// SPDX-License-Identifier: Apache-2.0
//! Memory: a rank's allocations stay under its bound for any records, counted by the allocator
//! rather than by the writer's own accounting.
//!
//! A separate binary, since one allocator serves all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_base::store::{MemoryStore, PosixStore, SharedStore};
use esker_base::{Kind, Random};
use esker_comm::{Routing, Transport, threads};
use esker_imd::{DirectoryOptions, DirectoryWriter, RecordLayout, ValueFormat};

/// Counts allocated bytes.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of threads, files and the transport.
const BESIDES_BYTES: usize = 200_000;

/// Peak allocation while `ranks` ranks append `rows` records in two epochs.
fn peak(
    format: ValueFormat,
    layout: RecordLayout,
    ranks: u32,
    memory_bytes: u64,
    rows: u64,
) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    let store: SharedStore = Arc::new(PosixStore::new(folder.path()).expect("a store"));
    let mut options = DirectoryOptions::new(1, format, layout);
    options.memory_bytes = memory_bytes;
    options.routing = Routing::ThreeHop;
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let waiting = threads::run(ranks, ranks, |transport| {
        let mut random = Random::from_seed(u64::from(transport.rank().0));
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
        let (mut key, mut value) = (vec![0; 255], vec![7; 100_000]);
        for _ in 0..2 {
            for _ in 0..rows {
                let (key_bytes, value_bytes) = match layout {
                    RecordLayout::Fixed { key_bytes, value_bytes } => {
                        (usize::from(key_bytes), value_bytes as usize)
                    }
                    RecordLayout::Variable if random.one_in(500) => (9, 40_000),
                    RecordLayout::Variable => {
                        (1 + random.below(12) as usize, random.below(9) as usize)
                    }
                };
                random.fill(&mut key[..key_bytes]);
                value[0] = key[0];
                imd.append(&key[..key_bytes], &value[..value_bytes])?;
            }
            imd.epoch_flush()?;
        }
        let waiting = imd.transport().counters().buffered_bytes_max;
        imd.finish()?;
        Ok(waiting as usize)
    });
    let waiting: usize = waiting.expect("written").into_iter().sum();
    (PEAK.load(Ordering::Relaxed) - before).saturating_sub(waiting)
}

/// A single test, since tests run concurrently.
#[test]
fn allocations_stay_under_the_bound() {
    records_that_do_not_fit_memory_are_refused();
    let fixed = |key_bytes, value_bytes| RecordLayout::Fixed { key_bytes, value_bytes };
    let layouts =
        [fixed(8, 40), fixed(1, 0), fixed(8, 0), fixed(255, 4000), RecordLayout::Variable];
    for format in ValueFormat::ALL {
        for layout in layouts {
            for (ranks, memory) in [(1, 1 << 20), (1, 4 << 20), (2, 2 << 20)] {
                let bytes = match layout {
                    RecordLayout::Fixed { key_bytes, value_bytes } => {
                        u64::from(key_bytes) + u64::from(value_bytes)
                    }
                    RecordLayout::Variable => 60,
                };
                // Twice as much as fits memory, unless that takes long.
                let rows = (2 * memory / bytes).min(300_000);
                let bound = ranks as usize * (memory as usize + BESIDES_BYTES);
                let got = peak(format, layout, ranks, memory, rows);
                assert!(
                    got <= bound,
                    "{format:?}, {layout:?}, {ranks} ranks of {memory} bytes: {got} of {bound}"
                );
            }
        }
    }
}

fn records_that_do_not_fit_memory_are_refused() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let mut options = DirectoryOptions::new(1, ValueFormat::Base, RecordLayout::Variable);
    options.memory_bytes = 4 << 20;
    threads::run(1, 1, |transport| {
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options)?;
        let error = imd.append(b"long", &vec![0; 1 << 20]).expect_err("too long");
        assert_eq!(error.kind(), Kind::TooLarge, "{error}");
        imd.append(b"shorter", &vec![0; (4 << 20) / 20])?;
        imd.epoch_flush()?;
        imd.finish()
    })
    .expect("the others are written");
    options.layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 1 << 20 };
    let refused = threads::run(1, 1, |transport| {
        DirectoryWriter::create(&store, "e/", transport, &options).map(drop)
    });
    assert_eq!(refused.expect_err("too long").kind(), Kind::Invalid);
}
