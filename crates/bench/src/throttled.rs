// SPDX-License-Identifier: Apache-2.0
//! Throttled: the time that indexing adds to writing when storage is the bottleneck.
//!
//! The same records are written three times: indexed, as fast as the store accepts them; then to a
//! store limited to a share of that rate, as one plain file per rank, and indexed.
//! Source: DeltaFS thesis §5.4.2, Figure 5.17b.

use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::store::{AppendLog, ObjectInfo, ObjectWriter, SharedStore, Store};
use esker_base::{Bytes, Clock, Result};
use esker_comm::{Transport, threads};
use parking_lot::Mutex;
use serde::Serialize;

use crate::imd::{ImdWrite, imd_write};
use crate::particles::ParticleCount;
use crate::report::ResourceMeter;

/// Plain files are written to the store in pieces of this size, as tables are.
const PIECE_BYTES: usize = 1 << 20;

/// Results.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ThrottledReport {
    /// `imd_throttled`.
    pub operation: &'static str,
    /// Records per write.
    pub operations: u64,
    /// Seconds of the indexed write without a limit.
    pub free_seconds: f64,
    /// The throttled store's limit.
    pub store_bytes_per_second: f64,
    /// Seconds of the plain write to the throttled store.
    pub plain_seconds: f64,
    /// Seconds of the indexed write to the throttled store.
    pub indexed_seconds: f64,
    /// Additional time of the indexed write, in percent.
    pub added_percent: f64,
    /// Additional bytes of the indexed write, in percent.
    pub added_bytes_percent: f64,
}

impl fmt::Display for ThrottledReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records to a store of {:.0} MB/s: plain files {:.3} s, indexed {:.3} s, {:+.2} % \
             ({:+.2} % bytes); without the limit {:.3} s",
            self.operations,
            self.store_bytes_per_second / 1e6,
            self.plain_seconds,
            self.indexed_seconds,
            self.added_percent,
            self.added_bytes_percent,
            self.free_seconds,
        )
    }
}

/// Measures `work` on `store`, throttled to `share` of the rate of an unlimited indexed write.
///
/// # Errors
/// Errors of the writer.
pub fn imd_throttled(store: &SharedStore, work: &ImdWrite, share: f64) -> Result<ThrottledReport> {
    let (free, _) = imd_write(store, "throttled/free/", work)?;
    let limit = free.store_bytes_written as f64 / free.seconds * share;
    let throttled = || -> SharedStore { Arc::new(ThrottledStore::new(store.clone(), limit)) };
    let meter = ResourceMeter::start();
    write_plain(&throttled(), "throttled/plain/", work)?;
    let plain = meter.stop("plain", free.operations)?;
    let plain_bytes = free.operations * (8 + work.particles.value_bytes as u64);
    let (indexed, _) = imd_write(&throttled(), "throttled/indexed/", work)?;
    Ok(ThrottledReport {
        operation: "imd_throttled",
        operations: free.operations,
        free_seconds: free.seconds,
        store_bytes_per_second: limit,
        plain_seconds: plain.seconds,
        indexed_seconds: indexed.seconds,
        added_percent: 100.0 * (indexed.seconds / plain.seconds - 1.0),
        added_bytes_percent: 100.0
            * (indexed.store_bytes_written as f64 / plain_bytes as f64 - 1.0),
    })
}

/// Every rank writes its records to its own file, synced at the end of each epoch, while it gathers
/// the next piece.
fn write_plain(store: &SharedStore, prefix: &str, work: &ImdWrite) -> Result<()> {
    threads::run(work.particles.ranks, work.per_node, |transport| {
        let rank = transport.rank().0;
        let log = store.append_log(&format!("{prefix}{rank:08x}"))?;
        let mut value = vec![0; work.particles.value_bytes];
        for epoch in 0..work.epochs {
            write_epoch(&*log, work, (rank, epoch), &mut value)?;
            log.sync()?;
            transport.barrier()?;
        }
        Ok(())
    })?;
    Ok(())
}

fn write_epoch(
    log: &dyn AppendLog,
    work: &ImdWrite,
    (rank, epoch): (u32, u32),
    value: &mut [u8],
) -> Result<()> {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<u8>>(1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for piece in receiver {
                log.append(&piece)?;
            }
            Ok(())
        });
        let mut piece = Vec::with_capacity(PIECE_BYTES + 64);
        for number in work.particles.of_rank(rank, epoch) {
            let key = ParticleCount::key(number);
            ParticleCount::fill(key, epoch, value);
            piece.extend_from_slice(&key);
            piece.extend_from_slice(value);
            if piece.len() >= PIECE_BYTES {
                let full = std::mem::replace(&mut piece, Vec::with_capacity(PIECE_BYTES + 64));
                // If this fails, the writer failed; `join` returns its error.
                let _ = sender.send(full);
            }
        }
        let _ = sender.send(piece);
        drop(sender);
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A store that limits the rate of appends, over all logs together.
#[derive(Debug)]
struct ThrottledStore {
    inner: SharedStore,
    limit: Arc<BusyUntil>,
}

/// The time until which the store is busy.
#[derive(Debug)]
struct BusyUntil {
    bytes_per_second: f64,
    free_ns: Mutex<u64>,
}

impl BusyUntil {
    /// Runs `append` of `bytes`; it ends when these bytes, queued behind earlier ones, fit the
    /// limit.
    fn pace<T>(&self, bytes: usize, append: impl FnOnce() -> T) -> T {
        let cost_ns = (bytes as f64 / self.bytes_per_second * 1e9) as u64;
        let end_ns = {
            let mut free_ns = self.free_ns.lock();
            *free_ns = SystemClock.monotonic_ns().max(*free_ns) + cost_ns;
            *free_ns
        };
        let done = append();
        let left_ns = end_ns.saturating_sub(SystemClock.monotonic_ns());
        std::thread::sleep(Duration::from_nanos(left_ns));
        done
    }
}

impl ThrottledStore {
    fn new(inner: SharedStore, bytes_per_second: f64) -> Self {
        let limit = BusyUntil { bytes_per_second, free_ns: Mutex::default() };
        Self { inner, limit: Arc::new(limit) }
    }
}

struct ThrottledLog {
    inner: Box<dyn AppendLog>,
    limit: Arc<BusyUntil>,
}

impl AppendLog for ThrottledLog {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.limit.pace(bytes.len(), || self.inner.append(bytes))
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

impl Store for ThrottledStore {
    fn url(&self) -> String {
        self.inner.url()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.limit.pace(bytes.len(), || self.inner.put_if_absent(name, bytes))
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        self.inner.create(name)
    }

    fn size(&self, name: &str) -> Result<u64> {
        self.inner.size(name)
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.inner.get(name, bytes_max)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(name, range)
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(name, ranges)
    }

    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        let inner = self.inner.append_log(name)?;
        Ok(Box::new(ThrottledLog { inner, limit: Arc::clone(&self.limit) }))
    }

    fn open_logs_max(&self) -> usize {
        self.inner.open_logs_max()
    }

    fn sync_log(&self, name: &str) -> Result<()> {
        self.inner.sync_log(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.inner.list(prefix)
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list_names(prefix)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }
}
