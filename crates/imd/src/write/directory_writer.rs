// SPDX-License-Identifier: Apache-2.0
//! Directory writer: one rank of a job that writes an indexed directory.

use std::time::Duration;

use esker_base::store::{SharedStore, put_own};
use esker_base::wire::WireInput;
use esker_base::{Error, Kind, Result};
use esker_comm::{Channel, Rank, Router, RouterOptions, Transport, router};

use super::bounds::{BoundsBalancer, WaitingRecords};
use super::directory_options::{DirectoryOptions, batch_share};
use super::local_partition::{LocalPartition, PAIR_MEMORY_BYTES};
use super::values::{LONG_POINTER_BYTES, POINTER_BYTES, ValueLog, ValuePointer};
use crate::directory::{DirectoryIndex, PartitionTotals, ROOT_BYTES_MAX};
use crate::hash::{home, key_hash};
use crate::index::head::IndexLogHead;
use crate::names;
use crate::partition::{EpochEnd, PartitionSetup, PartitionWriter};
use crate::record_layout::{RecordLayout, ValueFormat};
use crate::schema::DirectorySchema;

/// Totals that ranks send to rank 0 when they finish.
const TOTALS: Channel = Channel(0x10);

/// Maximum bytes of key and value of a record that is sent.
const MOVES_BYTES_MAX: u64 = router::RECORD_BYTES_MAX as u64 - 1;

/// Totals of one rank's part of a finished directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteSummary {
    /// Totals of this rank's partition.
    pub totals: PartitionTotals,
    /// Number of epochs.
    pub epochs: u64,
    /// Peak memory of records, tables, index and batches on this rank.
    pub memory_peak: u64,
    /// The router's counters on this rank.
    pub router: router::RouterCounters,
}

/// One rank of a job that writes an indexed directory.
///
/// A rank whose call fails is lost to the others, and their next collective call says so. Epochs
/// for which [`DirectoryWriter::epoch_flush_at`] has returned stay readable, even without
/// [`DirectoryWriter::finish`].
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use esker_base::store::{MemoryStore, SharedStore};
/// use esker_comm::{Transport, threads};
/// use esker_imd::{DirectoryOptions, DirectoryReader, DirectoryWriter, RecordLayout, ValueFormat};
///
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 4 };
/// let mut options = DirectoryOptions::new(7, ValueFormat::Base, layout);
/// options.memory_bytes = 4 << 20;
/// threads::run(4, 2, |transport| {
///     let rank = transport.rank().0;
///     let mut imd = DirectoryWriter::create(&store, "particles/", transport, &options)?;
///     for step in 0..3_u32 {
///         for id in 0..100_u64 {
///             imd.append(&(id * 4 + u64::from(rank)).to_le_bytes(), &step.to_le_bytes())?;
///         }
///         imd.epoch_flush()?;
///     }
///     imd.finish()
/// })?;
///
/// let reader = DirectoryReader::open(&store, "particles/", 0)?;
/// let found = reader.get(&42_u64.to_le_bytes())?;
/// let steps: Vec<u8> = found.values.iter().map(|value| value.bytes[0]).collect();
/// assert_eq!(steps, [0, 1, 2]);
/// # Ok::<(), esker_base::Error>(())
/// ```
#[derive(Debug)]
pub struct DirectoryWriter<T> {
    router: Router<T>,
    local: LocalPartition,
    partitions: u32,
    me: u32,
    format: ValueFormat,
    layout: RecordLayout,
    /// Maximum bytes of key and value: they must fit memory, and a message if they may have to
    /// travel.
    record_bytes_max: u64,
    /// The outgoing message, built in place.
    message: Vec<u8>,
    balancer: Option<BoundsBalancer>,
    /// True if records were appended since the last epoch.
    is_dirty: bool,
    has_failed: bool,
    store: SharedStore,
    prefix: String,
    head: IndexLogHead,
    schema: DirectorySchema,
    /// The step of each finished epoch.
    steps: Vec<u64>,
    batch_memory: u64,
    /// Memory for values, or for agreeing on bounds.
    besides_memory: u64,
}

impl<T: Transport> DirectoryWriter<T> {
    /// Creates a directory below `prefix` (empty, or ending in `/`) of `store`; collective.
    ///
    /// # Errors
    /// `Exists` if another directory has logs there, `Invalid` for impossible options, such as too
    /// little memory; those of the store.
    pub fn create(
        store: &SharedStore,
        prefix: &str,
        transport: T,
        options: &DirectoryOptions,
    ) -> Result<Self> {
        options.layout.check()?;
        options.schema.check(options.layout)?;
        let (me, partitions) = (transport.rank().0, transport.size());
        let DirectoryOptions { directory, format, layout, .. } = *options;
        let head = IndexLogHead { directory, partition: me, partitions, format, layout };
        let (batch_bytes, batch_memory) = batch_share(&transport, options)?;
        let has_auxiliary = matches!(format, ValueFormat::Lossy | ValueFormat::Static);
        let left = options.memory_bytes - batch_memory;
        let pairs_memory = if has_auxiliary { left / 4 } else { 0 };
        let is_pointer = format == ValueFormat::Pointer;
        let value_memory = if is_pointer { ValueLog::memory_bytes(left) } else { 0 };
        let by_key = format == ValueFormat::Ordered;
        let bounds_memory = if by_key { left / 8 } else { 0 };
        let setup = PartitionSetup {
            directory,
            partition: me,
            partitions: head.hash_partitions(),
            layout: head.row_layout(),
            row_order: head.row_order(),
            has_auxiliary,
            memory_bytes: left - pairs_memory - value_memory - bounds_memory,
        };
        let begins =
            (&*encoded(|out| head.encode(out)), &*encoded(|out| options.schema.encode(out)));
        let writer = PartitionWriter::create(store, prefix, setup, begins)?;
        let values = is_pointer.then(|| ValueLog::create(store, prefix, &head, value_memory));
        let fits_memory = if is_pointer { u64::MAX } else { writer.record_bytes_max() };
        let local = LocalPartition::new(writer, values.transpose()?, options, pairs_memory);
        let record_bytes = message_bytes(&head);
        let routing =
            RouterOptions { batch_bytes, record_bytes, ..RouterOptions::new(options.routing) };
        let moves = partitions > 1 && matches!(format, ValueFormat::Base | ValueFormat::Ordered);
        let balancer = by_key.then(|| BoundsBalancer::new(partitions, me, bounds_memory));
        Ok(Self {
            router: Router::new(transport, routing)?,
            local,
            partitions,
            me,
            format,
            layout,
            record_bytes_max: fits_memory.min(if moves { MOVES_BYTES_MAX } else { u64::MAX }),
            message: Vec::new(),
            balancer,
            is_dirty: false,
            has_failed: false,
            store: store.clone(),
            prefix: prefix.to_owned(),
            head,
            schema: options.schema.clone(),
            steps: Vec::new(),
            batch_memory,
            besides_memory: value_memory + bounds_memory,
        })
    }

    /// Adds `value` to the values of `key`.
    ///
    /// Nothing is durable before [`DirectoryWriter::epoch_flush`]. Readers get the values of one
    /// key and epoch in the order in which a rank appended them. Blocks only while all memory is
    /// taken.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for a record that does not fit layout, messages or memory, which
    /// changes nothing; the errors of writing and sending, and `Closed` afterwards.
    #[inline]
    pub fn append(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.layout.check_record(key, value)?;
        if (key.len() + value.len()) as u64 > self.record_bytes_max {
            return Err(too_large(value, self.record_bytes_max));
        }
        if self.has_failed {
            return Err(closed());
        }
        self.is_dirty = true;
        let hash = key_hash(key);
        let done = match self.format {
            ValueFormat::Base => {
                let to = home(hash, self.partitions).0;
                if to == self.me {
                    self.local.writer.append(hash, key, value)
                } else {
                    self.send_record(to, key, value)
                }
            }
            ValueFormat::Pointer => self.append_pointer(hash, key, value),
            ValueFormat::Lossy | ValueFormat::Static => self.append_here(hash, key, value),
            ValueFormat::Ordered => self.append_ordered(key, value),
        };
        self.has_failed |= done.is_err();
        done
    }

    fn send_record(&mut self, to: u32, key: &[u8], value: &[u8]) -> Result<()> {
        self.message.clear();
        if self.local.key_bytes.is_none() {
            self.message.push(key.len() as u8);
        }
        self.message.extend_from_slice(key);
        self.message.extend_from_slice(value);
        let local = &mut self.local;
        self.router
            .push(Rank(to), &self.message, &mut |from, message: &[u8]| local.accept(from, message))
    }

    fn append_pointer(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Result<()> {
        let values = self.local.values.as_mut().expect("the format keeps values");
        let bytes = u32::try_from(value.len()).expect("values are checked on append");
        let pointer = ValuePointer { rank: self.me, offset: values.append(value)?, bytes };
        let mut encoded = Vec::with_capacity(LONG_POINTER_BYTES);
        pointer.encode(self.local.key_bytes.is_none(), &mut encoded);
        let to = home(hash, self.partitions).0;
        if to == self.me {
            return self.local.writer.append(hash, key, &encoded);
        }
        // The receiver knows the rank.
        self.send_record(to, key, &encoded[size_of::<u32>()..])
    }

    fn append_here(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Result<()> {
        self.local.writer.append(hash, key, value)?;
        let to = Rank(home(hash, self.partitions).0);
        if to.0 == self.me {
            return self.local.accept(to, &hash.to_le_bytes());
        }
        let local = &mut self.local;
        self.router
            .push(to, &hash.to_le_bytes(), &mut |from, message: &[u8]| local.accept(from, message))
    }

    fn append_ordered(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let balancer = self.balancer.as_mut().expect("the format is ordered");
        match balancer.partition_of(key, value) {
            Some(to) if to == self.me => {
                self.local.received += 1;
                self.local.writer.append(0, key, value)
            }
            Some(to) => self.send_record(to, key, value),
            None if balancer.is_full() => self.agree_on_bounds(),
            None if balancer.is_progress_due() => self.join_agreement(),
            None => Ok(()),
        }
    }

    /// Agrees with all ranks on bounds, and sends the records that waited for them.
    fn agree_on_bounds(&mut self) -> Result<()> {
        let Some(balancer) = &mut self.balancer else { return Ok(()) };
        let (local, router) = (&mut self.local, &mut self.router);
        let mut take_in = |router: &mut Router<T>| {
            let mut sink = |from: Rank, message: &[u8]| local.accept(from, message);
            router.poll(Duration::ZERO, &mut sink).map(|messages| messages > 0)
        };
        let waiting = balancer.agree(router, &mut take_in)?;
        self.release(&waiting)
    }

    /// Takes part in an agreement on bounds if another rank has begun one, without blocking.
    fn join_agreement(&mut self) -> Result<()> {
        let balancer = self.balancer.as_mut().filter(|balancer| !balancer.has_bounds());
        let Some(balancer) = balancer else { return Ok(()) };
        match balancer.progress(self.router.transport())? {
            Some(waiting) => self.release(&waiting),
            None => Ok(()),
        }
    }

    /// Sends the records that waited for bounds.
    fn release(&mut self, waiting: &WaitingRecords) -> Result<()> {
        for (key, value) in waiting.records() {
            let balancer = self.balancer.as_ref().expect("the format is ordered");
            let to = balancer.partition(key);
            if to == self.me {
                self.local.received += 1;
                self.local.writer.append(0, key, value)?;
            } else {
                self.send_record(to, key, value)?;
            }
        }
        Ok(())
    }

    /// The transport, so that a program can exchange messages of its own on other channels between
    /// epochs.
    pub fn transport(&mut self) -> &mut T {
        self.router.transport()
    }

    /// Receives messages of other ranks, so that they need not wait for this rank's next append.
    /// Call it now and then during long computations: a rank gives up if another makes no call
    /// before the transport's deadline.
    ///
    /// # Errors
    /// Those of handling the messages.
    pub fn poll(&mut self) -> Result<()> {
        let local = &mut self.local;
        let polled = self
            .router
            .poll(Duration::ZERO, &mut |from, message: &[u8]| local.accept(from, message));
        let done = polled.and_then(|_| self.join_agreement());
        self.has_failed |= done.is_err();
        done
    }

    /// Ends an epoch whose step is one more than the last, starting at 0; else as
    /// [`DirectoryWriter::epoch_flush_at`].
    ///
    /// # Errors
    /// As [`DirectoryWriter::epoch_flush_at`].
    pub fn epoch_flush(&mut self) -> Result<()> {
        self.epoch_flush_at(self.steps.last().map_or(0, |last| last.saturating_add(1)))
    }

    /// Ends the epoch under the number `step`, which must be the same on all ranks; collective.
    /// Once it returns on any rank, all records that all ranks appended before survive power loss:
    /// each rank waits for its own writes and syncs, then for the others.
    ///
    /// # Errors
    /// `Invalid` unless `step` is greater than that of the previous epoch, which changes nothing;
    /// the errors of sending and writing, `Unavailable` naming a lost rank, and `Closed`
    /// afterwards. The epoch is then incomplete in some partitions, and readers report it as such.
    pub fn epoch_flush_at(&mut self, step: u64) -> Result<()> {
        if self.has_failed {
            return Err(closed());
        }
        if let Some(last) = self.steps.last().filter(|last| **last >= step) {
            let what = format!("step {step} after step {last}: the steps of epochs must ascend");
            return Err(Error::new(Kind::Invalid, what));
        }
        let done = self.flush(step);
        self.has_failed |= done.is_err();
        self.is_dirty = false;
        if done.is_ok() {
            self.steps.push(step);
        }
        done
    }

    fn flush(&mut self, step: u64) -> Result<()> {
        if self.balancer.as_ref().is_some_and(|balancer| !balancer.has_bounds()) {
            self.agree_on_bounds()?;
        }
        let local = &mut self.local;
        self.router.flush(&mut |from, message: &[u8]| local.accept(from, message))?;
        self.local.end_sources()?;
        if let Some(values) = &mut self.local.values {
            values.sync()?;
        }
        let value_bytes = self.local.values.as_ref().map_or(0, ValueLog::bytes);
        self.local.writer.epoch_flush(EpochEnd { step, value_bytes })?;
        self.router.transport().barrier()?;
        if let Some(balancer) = &mut self.balancer {
            // If the bounds fitted this epoch badly, they are replaced before the next.
            let received = std::mem::take(&mut self.local.received);
            balancer.end_epoch(self.router.transport(), received)?;
        }
        Ok(())
    }

    /// Finishes the directory; collective. Rank 0 writes the root object, by which readers then
    /// open it.
    ///
    /// # Errors
    /// `Invalid` if this rank appended records since its last epoch ended; otherwise as
    /// [`DirectoryWriter::epoch_flush_at`].
    pub fn finish(self) -> Result<WriteSummary> {
        self.finish_and_return().map(|(summary, _)| summary)
    }

    /// As [`DirectoryWriter::finish`]; also returns the transport.
    ///
    /// # Errors
    /// As [`DirectoryWriter::finish`].
    pub fn finish_and_return(self) -> Result<(WriteSummary, T)> {
        if self.has_failed {
            return Err(closed());
        }
        if self.is_dirty {
            let what = "records were appended since the last epoch_flush: call it before finish";
            return Err(Error::new(Kind::Invalid, what));
        }
        let written = self.local.writer.finish()?;
        let totals = PartitionTotals {
            rows: written.rows,
            tables: written.tables,
            index_bytes: written.index_bytes,
            data_bytes: written.data_bytes,
            value_bytes: self.local.values.as_ref().map_or(0, ValueLog::bytes),
            auxiliary_bytes: written.auxiliary_bytes,
        };
        let router = self.router.counters();
        let mut transport = self.router.into_transport();
        let mut message = Vec::new();
        totals.encode(&mut message);
        transport.send(Rank(0), TOTALS, message)?;
        if self.me == 0 {
            let bounds = self.balancer.map(BoundsBalancer::into_history).unwrap_or_default();
            let (head, schema, steps) = (self.head, self.schema, self.steps);
            let directory = DirectoryIndex { head, schema, steps, partitions: Vec::new(), bounds };
            let root = gather(&mut transport, directory)?;
            let root = root.encode();
            if root.len() as u64 > ROOT_BYTES_MAX {
                let what = format!(
                    "the directory's root takes {} bytes, and readers expect at most 1 GiB: write fewer \
                     epochs to one directory, or do not balance it",
                    root.len()
                );
                return Err(Error::new(Kind::TooLarge, what));
            }
            put_own(&*self.store, &names::root(&self.prefix), &root)?;
        }
        transport.barrier()?;
        let pairs = self.local.pairs_peak as u64 * PAIR_MEMORY_BYTES;
        let batches = self.batch_memory.min(router.memory_bytes_max);
        let memory_peak = written.memory_peak + batches + pairs + self.besides_memory;
        let summary = WriteSummary { totals, epochs: written.epochs, memory_peak, router };
        Ok((summary, transport))
    }
}

/// Collects the totals of all ranks' partitions in `directory`.
fn gather<T: Transport>(
    transport: &mut T,
    mut directory: DirectoryIndex,
) -> Result<DirectoryIndex> {
    let ranks = transport.size() as usize;
    directory.partitions = vec![PartitionTotals::default(); ranks];
    for _ in 0..ranks {
        let message = transport.receive_soon(&[TOTALS], "the totals of a rank")?;
        let mut input = WireInput::new(&message.bytes);
        let totals = PartitionTotals::decode(&mut input);
        let name = format!("a message of {}", message.from);
        directory.partitions[message.from.index()] = totals.map_err(|bad| bad.of(&name, 0))?;
    }
    Ok(directory)
}

/// The bytes that `encode` appends.
fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

/// Bytes of every message, if all have the same length.
fn message_bytes(head: &IndexLogHead) -> Option<u32> {
    match (head.format, head.layout) {
        (ValueFormat::Lossy | ValueFormat::Static, _) => Some(8),
        (_, RecordLayout::Variable) => None,
        (ValueFormat::Pointer, RecordLayout::Fixed { key_bytes, .. }) => {
            Some(u32::from(key_bytes) + POINTER_BYTES as u32 - 4)
        }
        (_, RecordLayout::Fixed { key_bytes, value_bytes }) => {
            Some(u32::from(key_bytes) + value_bytes)
        }
    }
}

#[cold]
fn too_large(value: &[u8], bytes_max: u64) -> Error {
    let why = if bytes_max == MOVES_BYTES_MAX { "move between ranks" } else { "fit this memory" };
    let what = format!(
        "a value of {} bytes: records that {why} have {bytes_max} at most; format pointer leaves \
         values where they are",
        value.len()
    );
    Error::new(Kind::TooLarge, what)
}

fn closed() -> Error {
    Error::new(Kind::Closed, "an earlier failure closed this rank's part of the directory")
}
