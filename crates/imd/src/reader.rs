//! Reader: an indexed directory by key, from its store alone.
//!
//! | format | partitions asked for a key and an epoch |
//! |---|---|
//! | base | the key's |
//! | pointer | the key's, then the rank that has the value |
//! | lossy, static | the key's for candidates, then the ranks that may have written it |
//! | ordered | the one whose range has the key |
//!
//! Partitions are opened when they are first asked and stay open. One that cannot be read fails the
//! queries that need it, by its number; others go on.
//! Concurrency: every method may be called from several threads at once.
//! Source: DeltaFS thesis §5.2.3, §5.3.2.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Random, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::auxiliary;
use crate::block::Rows;
use crate::directory::{Directory, ROOT_BYTES_MAX};
use crate::hash::{PLACE_BITS, home, key_hash};
use crate::index::head::Head;
use crate::names;
use crate::partition::key_prefix;
use crate::read::cache::PieceCache;
use crate::read::counts::Counts;
use crate::read::lookup::{Found, Wanted, look_up};
use crate::read::partition::PartitionReader;
use crate::read::pointers;
use crate::read::scan::{TableCursor, merge};
use crate::shape::{Format, Shape};

/// Keys of one partition that are looked for together: enough that neighbours share requests, few
/// enough that their blocks fit memory.
const KEYS_AT_ONCE: usize = 256;

/// What of a hash is left of its order: hashes that agree in the rest may be in any order.
/// Partitions of one directory refine their hashes by at most 32 bits more than [`PLACE_BITS`].
const PLACES_SHIFT: u32 = 64 - PLACE_BITS;

/// Blocks that a thread scans before it takes others.
const SCAN_BLOCKS: usize = 2048;

/// An auxiliary table is read whole.
const AUXILIARY_BYTES_MAX: u64 = 8 << 30;

/// An indexed directory that is read.
#[derive(Debug)]
pub struct Reader {
    store: SharedStore,
    prefix: String,
    head: Head,
    /// What rank 0 wrote, if the directory was finished.
    directory: Option<Directory>,
    cache: Arc<PieceCache>,
    keeps_auxiliary: bool,
    /// Guards partitions that were opened.
    open: Mutex<HashMap<u32, Arc<PartitionReader>>>,
    /// Guards auxiliary tables that were read, by partition and offset.
    auxiliary: Mutex<HashMap<(u32, u64), Arc<auxiliary::Reader>>>,
}

/// A value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The epoch in which it was appended.
    pub epoch: u32,
    /// What was appended.
    pub bytes: Bytes,
}

/// What a key has.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its values by epoch, those of one rank in the order in which it appended them.
    pub values: Vec<Value>,
    /// What finding them cost.
    pub counts: Counts,
}

/// What several keys have.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The values of each key, as in [`Answer`], in the order in which keys were given.
    pub values: Vec<Vec<Value>>,
    /// What finding all of them cost.
    pub counts: Counts,
}

/// Keys to look for in one partition and some epochs.
struct Task {
    partition: u32,
    epochs: Range<u32>,
    numbers: Vec<usize>,
}

impl Reader {
    /// Opens the directory below `prefix` (empty, or ending in `/`), keeping up to `cache_bytes` of
    /// verified slots and blocks; 0 keeps none, so that each query reads anew.
    ///
    /// One read of the root object; of an unfinished directory a listing and an index log.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Corrupt` if its root is damaged.
    pub fn open(store: &SharedStore, prefix: &str, cache_bytes: u64) -> Result<Self> {
        let name = names::root(prefix);
        let directory = match store.get(&name, ROOT_BYTES_MAX) {
            Ok(bytes) => Some(Directory::decode(&bytes, &name)?),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        let cache = Arc::new(PieceCache::new(cache_bytes));
        let head = match &directory {
            Some(directory) => directory.head,
            None => Self::head_of_any(store, prefix, &cache)?,
        };
        Ok(Self {
            store: store.clone(),
            prefix: prefix.to_owned(),
            head,
            directory,
            cache,
            keeps_auxiliary: cache_bytes > 0,
            open: Mutex::default(),
            auxiliary: Mutex::default(),
        })
    }

    /// The head of an unfinished directory: of the first partition that can be read.
    fn head_of_any(store: &SharedStore, prefix: &str, cache: &Arc<PieceCache>) -> Result<Head> {
        let mut failure = None;
        for partition in names::partitions(store, prefix)? {
            let mut counts = Counts::default();
            match PartitionReader::open(store, prefix, partition, None, cache, &mut counts) {
                Ok(reader) => return Ok(*reader.head()),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| {
            Error::new(Kind::NotFound, format!("{prefix}: no indexed directory is here"))
        }))
    }

    /// What the directory is.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Its totals by partition, if it was finished.
    #[must_use]
    pub fn directory(&self) -> Option<&Directory> {
        self.directory.as_ref()
    }

    /// How many partitions it has.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.head.partitions
    }

    /// How many epochs are complete in all partitions: they have all that was appended in them.
    /// Later ones may have the records of some partitions. Free if the directory was finished, else
    /// it opens all partitions.
    ///
    /// # Errors
    /// That of the first partition that cannot be read, by its number.
    pub fn epochs_complete(&self) -> Result<u32> {
        if let Some(directory) = &self.directory {
            return Ok(directory.epochs);
        }
        let mut counts = Counts::default();
        let mut least = u32::MAX;
        for partition in 0..self.partitions() {
            least = least.min(self.partition(partition, &mut counts)?.epochs());
        }
        Ok(least)
    }

    /// How many epochs each partition has, or why that is unknown.
    pub fn epochs_by_partition(&self) -> impl Iterator<Item = (u32, Result<u32>)> + '_ {
        (0..self.partitions()).map(|partition| {
            let mut counts = Counts::default();
            (partition, self.partition(partition, &mut counts).map(|reader| reader.epochs()))
        })
    }

    /// Partition `partition`, opened.
    ///
    /// # Errors
    /// Why it cannot be read, with its number.
    pub fn partition(&self, partition: u32, counts: &mut Counts) -> Result<Arc<PartitionReader>> {
        if let Some(reader) = self.open.lock().get(&partition) {
            return Ok(Arc::clone(reader));
        }
        let totals = self.directory.as_ref().map(|all| all.partitions[partition as usize]);
        let index_bytes = totals.map(|totals| totals.index_bytes);
        let (store, prefix, cache) = (&self.store, &self.prefix, &self.cache);
        let reader = PartitionReader::open(store, prefix, partition, index_bytes, cache, counts)?;
        let expected = Head { partition, ..self.head };
        if *reader.head() != expected {
            let what = "the log of another directory";
            return Err(reader.named(Error::corrupt(&reader.log.name, 0, what)));
        }
        if self.directory.as_ref().is_some_and(|all| reader.epochs() < all.epochs) {
            let what = format!("only {} epochs are left", reader.epochs());
            return Err(reader.named(Error::corrupt(&reader.log.name, 0, what)));
        }
        let reader = Arc::new(reader);
        Ok(Arc::clone(self.open.lock().entry(partition).or_insert(reader)))
    }

    /// All values of `key`.
    ///
    /// # Errors
    /// Those of partitions that are needed and cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Answer> {
        self.get_epochs(key, 0..u32::MAX)
    }

    /// The values that `key` got in `epochs`.
    ///
    /// Cost, cold: the end of the partition's index log (or all of it if small); for each epoch a
    /// slot of the index, unless the log was read whole, and 1.01 blocks of the data log.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn get_epochs(&self, key: &[u8], epochs: Range<u32>) -> Result<Answer> {
        let Answers { mut values, counts } = self.get_many(&[key], epochs, 1)?;
        Ok(Answer { values: values.pop().unwrap_or_default(), counts })
    }

    /// The values that each of `keys` got in `epochs`, found by `threads` threads.
    ///
    /// # Errors
    /// As [`Reader::get`], for any key.
    pub fn get_many<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        epochs: Range<u32>,
        threads: usize,
    ) -> Result<Answers> {
        let mut counts = Counts::default();
        let tasks = self.tasks(keys, epochs, &mut counts)?;
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut found, mut counts) = (Vec::new(), Counts::default());
            while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.do_task(task, keys, &mut counts, &mut found)?;
            }
            Ok((found, counts))
        };
        let parts: Vec<Result<(Vec<Found>, Counts)>> = if threads <= 1 || tasks.len() <= 1 {
            vec![work()]
        } else {
            std::thread::scope(|scope| {
                let count = threads.min(tasks.len());
                let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
                let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
                joined.map(|part| part.expect("looking up does not panic")).collect()
            })
        };
        let mut all = Vec::new();
        for part in parts {
            let (found, more) = part?;
            counts += more;
            all.extend(found);
        }
        // Stable: what is of one key, epoch and partition is in order of arrival.
        all.sort_by_key(|found| (found.number, found.epoch));
        let mut values: Vec<Vec<Value>> = keys.iter().map(|_| Vec::new()).collect();
        for Found { number, epoch, value } in all {
            values[number].push(Value { epoch, bytes: value });
        }
        Ok(Answers { values, counts })
    }

    /// Which partitions are asked for which keys.
    fn tasks<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        epochs: Range<u32>,
        counts: &mut Counts,
    ) -> Result<Vec<Task>> {
        let mut wanted: Vec<(u32, u32, u32, u64, usize)> = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            let hash = key_hash(key);
            match self.head.format {
                Format::Base | Format::Pointer => {
                    let (partition, place) = home(hash, self.partitions());
                    wanted.push((partition, epochs.start, epochs.end, place, number));
                }
                Format::Ordered => {
                    for (partition, epochs) in self.ordered_partitions(key, epochs.clone()) {
                        let prefix = key_prefix(key);
                        wanted.push((partition, epochs.start, epochs.end, prefix, number));
                    }
                }
                Format::Lossy | Format::Static => {
                    let sources = self.sources(hash, epochs.clone(), counts)?;
                    let place = hash >> (64 - PLACE_BITS);
                    wanted.extend(
                        sources
                            .into_iter()
                            .map(|(partition, epoch)| (partition, epoch, epoch + 1, place, number)),
                    );
                }
            }
        }
        wanted.sort_unstable();
        let mut tasks = Vec::new();
        for group in wanted.chunk_by(|a, b| (a.0, a.1, a.2) == (b.0, b.1, b.2)) {
            let (partition, start, end, ..) = group[0];
            for part in group.chunks(KEYS_AT_ONCE) {
                let numbers = part.iter().map(|wanted| wanted.4).collect();
                tasks.push(Task { partition, epochs: start..end, numbers });
            }
        }
        Ok(tasks)
    }

    /// Where a key of an ordered directory may be, in runs of epochs with equal bounds.
    fn ordered_partitions(&self, key: &[u8], epochs: Range<u32>) -> Vec<(u32, Range<u32>)> {
        let prefix = key_prefix(key);
        let Some(directory) = &self.directory else {
            // Nobody wrote down the bounds.
            return (0..self.partitions()).map(|partition| (partition, epochs.clone())).collect();
        };
        let mut out: Vec<(u32, Range<u32>)> = Vec::new();
        for (epoch, bounds) in (0..).zip(&directory.bounds) {
            if !epochs.contains(&epoch) {
                continue;
            }
            let partition = bounds.partition(prefix);
            match out.last_mut() {
                Some((last, run)) if *last == partition && run.end == epoch => run.end += 1,
                _ => out.push((partition, epoch..epoch + 1)),
            }
        }
        out
    }

    /// The ranks that may have written a key, by epoch.
    fn sources(
        &self,
        hash: u64,
        epochs: Range<u32>,
        counts: &mut Counts,
    ) -> Result<Vec<(u32, u32)>> {
        let (partition, _) = home(hash, self.partitions());
        let reader = self.partition(partition, counts)?;
        let mut out = Vec::new();
        let mut found = Vec::new();
        for epoch in epochs.start..epochs.end.min(reader.epochs()) {
            found.clear();
            for place in &reader.epoch(epoch, counts)?.auxiliary {
                self.auxiliary(&reader, place, counts)?.candidates(hash, &mut found);
            }
            found.sort_unstable();
            found.dedup();
            // A damaged or made-up table may name ranks that there are not.
            let ranks = found.iter().filter(|&&rank| rank < self.partitions());
            out.extend(ranks.map(|&rank| (rank, epoch)));
        }
        Ok(out)
    }

    fn auxiliary(
        &self,
        reader: &PartitionReader,
        place: &Range<u64>,
        counts: &mut Counts,
    ) -> Result<Arc<auxiliary::Reader>> {
        let at = (reader.partition, place.start);
        if let Some(table) = self.auxiliary.lock().get(&at) {
            return Ok(Arc::clone(table));
        }
        let name = names::auxiliary(&self.prefix, reader.partition);
        if place.end - place.start > AUXILIARY_BYTES_MAX {
            let what = format!("an auxiliary table of {} bytes", place.end - place.start);
            return Err(reader.named(Error::corrupt(&name, place.start, what)));
        }
        let bytes = self.store.get_range(&name, place.clone());
        let bytes = bytes.map_err(|error| reader.named(error))?;
        counts.auxiliary_reads += 1;
        counts.auxiliary_bytes += bytes.len() as u64;
        let table = auxiliary::Reader::parse(bytes)
            .map_err(|damage| reader.named(damage.of(&name, place.start)))?;
        let table = Arc::new(table);
        if self.keeps_auxiliary {
            self.auxiliary.lock().insert(at, Arc::clone(&table));
        }
        Ok(table)
    }

    fn do_task<K: AsRef<[u8]>>(
        &self,
        task: &Task,
        keys: &[K],
        counts: &mut Counts,
        found: &mut Vec<Found>,
    ) -> Result<()> {
        let reader = self.partition(task.partition, counts)?;
        counts.partitions += 1;
        let partitions = self.head.hash_partitions();
        let wanted: Vec<Wanted<'_>> = task
            .numbers
            .iter()
            .map(|&number| {
                let key = keys[number].as_ref();
                let hash = key_hash(key);
                Wanted { number, key, hash, place: home(hash, partitions).1 }
            })
            .collect();
        let before = found.len();
        look_up(&reader, &wanted, task.epochs.clone(), counts, found)?;
        if self.head.format == Format::Pointer {
            let rows = found[before..].iter_mut().map(|found| &mut found.value).collect();
            self.follow(rows, counts)?;
        }
        Ok(())
    }

    /// Puts values in place of the pointers to them.
    fn follow(&self, rows: Vec<&mut Bytes>, counts: &mut Counts) -> Result<()> {
        let value_bytes = match self.head.shape {
            Shape::Fixed { value_bytes, .. } => Some(value_bytes),
            Shape::Variable => None,
        };
        let values = pointers::Values {
            store: &self.store,
            prefix: &self.prefix,
            cache: &self.cache,
            ranks: self.partitions(),
            value_bytes,
        };
        values.follow(rows, counts)
    }

    /// Hands key and value of each record of `epoch` to `visit`, in order of the key's hash (of the
    /// key if ordered) and then of arrival, until `visit` returns false.
    ///
    /// Reads each table once, in large pieces.
    ///
    /// # Errors
    /// Those of any partition, and what `visit` fails with.
    pub fn scan(
        &self,
        epoch: u32,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut batch = Batch { reader: self, rows: Vec::new(), visit: &mut visit };
        let epochs = epoch..epoch.saturating_add(1);
        let whole =
            self.walk(epochs, &mut counts, |key, value, counts| batch.push(key, value, counts))?;
        if whole {
            batch.end(&mut counts)?;
        }
        Ok(counts)
    }

    /// Hands the rows of all blocks of all epochs, in no order, to `visit`, from `threads` threads:
    /// what a query without an index does. In format pointer rows have pointers in place of values.
    ///
    /// # Errors
    /// As [`Reader::scan`].
    pub fn scan_all(&self, threads: usize, visit: impl Fn(&Rows<'_>) + Sync) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut units = Vec::new();
        for partition in 0..self.partitions() {
            let reader = self.partition(partition, &mut counts)?;
            let shape = reader.head().row_shape();
            for epoch in 0..reader.epochs() {
                let parts = Arc::clone(reader.epoch(epoch, &mut counts)?);
                for table in parts.segments.iter().flat_map(|segment| &segment.tables) {
                    let blocks = table.blocks(shape);
                    for start in (0..blocks).step_by(SCAN_BLOCKS) {
                        let end = blocks.min(start + SCAN_BLOCKS as u32);
                        units.push((Arc::clone(&reader), table.clone(), start..end));
                    }
                }
            }
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let mut counts = Counts::default();
            while let Some((reader, table, blocks)) =
                units.get(next.fetch_add(1, Ordering::Relaxed))
            {
                reader.each_block(table, blocks.clone(), &mut counts, &visit)?;
            }
            Ok(counts)
        };
        let parts: Vec<Result<Counts>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|part| part.unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        for part in parts {
            counts += part?;
        }
        Ok(counts)
    }

    /// Hands each key that got values in `epochs` to `visit`, once, in the order of
    /// [`Reader::scan`], until `visit` returns false.
    ///
    /// Reads all records of those epochs.
    ///
    /// # Errors
    /// As [`Reader::scan`].
    pub fn keys(
        &self,
        epochs: Range<u32>,
        mut visit: impl FnMut(&[u8]) -> Result<bool>,
    ) -> Result<Counts> {
        let mut counts = Counts::default();
        // Different keys whose hashes begin alike may be mixed.
        let mut seen: Vec<Bytes> = Vec::new();
        let mut last = None;
        let ordered = self.head.format == Format::Ordered;
        self.walk(epochs, &mut counts, |key, _, _| {
            let place = if ordered { 0 } else { key_hash(key) >> PLACES_SHIFT };
            if last != Some(place) || ordered && seen.last() != Some(key) {
                seen.clear();
                last = Some(place);
            }
            if seen.contains(key) {
                return Ok(true);
            }
            seen.push(key.clone());
            visit(key)
        })?;
        Ok(counts)
    }

    /// Hands the rows of `epochs` to `visit` in order; whether it never said stop.
    fn walk(
        &self,
        epochs: Range<u32>,
        counts: &mut Counts,
        mut visit: impl FnMut(&Bytes, &Bytes, &mut Counts) -> Result<bool>,
    ) -> Result<bool> {
        let mut readers = Vec::new();
        for partition in 0..self.partitions() {
            readers.push(self.partition(partition, counts)?);
        }
        counts.partitions += u64::from(self.partitions());
        let by_rank = matches!(self.head.format, Format::Lossy | Format::Static);
        // Records of lossy formats are spread over all ranks, in order in each.
        let groups = if by_rank { vec![&readers[..]] } else { readers.chunks(1).collect() };
        let mut goes_on = true;
        for group in groups {
            let mut parts = Vec::new();
            for reader in group {
                for epoch in epochs.start..epochs.end.min(reader.epochs()) {
                    parts.push((reader, reader.epoch(epoch, counts)?));
                }
            }
            let all = parts.iter().map(|part| part.1.tables()).sum();
            let mut cursors = Vec::new();
            for (reader, epoch) in parts {
                let shape = reader.head().row_shape();
                for table in epoch.segments.iter().flat_map(|segment| &segment.tables) {
                    let (number, blocks) = (cursors.len(), 0..table.blocks(shape));
                    cursors.extend(TableCursor::new(reader, table, number, all, blocks, counts)?);
                }
            }
            merge(cursors, counts, |key, value, counts| {
                goes_on = visit(key, value, counts)?;
                Ok(goes_on)
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(goes_on)
    }

    /// Keys of up to `count` records, each as likely as another, chosen by `random`. Some reads each.
    ///
    /// # Errors
    /// Those of any partition.
    pub fn sample(&self, count: usize, random: &mut Random) -> Result<Vec<Bytes>> {
        let mut counts = Counts::default();
        // Rows up to and with each table.
        let mut tables = Vec::new();
        let mut rows = 0;
        for partition in 0..self.partitions() {
            let reader = self.partition(partition, &mut counts)?;
            for epoch in 0..reader.epochs() {
                let parts = Arc::clone(reader.epoch(epoch, &mut counts)?);
                for table in parts.segments.iter().flat_map(|segment| &segment.tables) {
                    rows += u64::from(table.rows);
                    tables.push((rows, Arc::clone(&reader), table.clone()));
                }
            }
        }
        let mut keys = Vec::new();
        for _ in 0..if rows > 0 { count } else { 0 } {
            let row = random.below(rows);
            let (end, reader, table) = &tables[tables.partition_point(|table| table.0 <= row)];
            let row = table.rows - u32::try_from(end - row).expect("rows of one table");
            let shape = reader.head().row_shape();
            let place = table.place(table.block_of(row, shape), shape);
            let bodies = reader.blocks(std::slice::from_ref(&place.bytes), &mut counts)?;
            let rows = reader.rows(&bodies[0], &place)?;
            keys.push(bodies[0].slice_ref(rows.key(row - place.rows.start)));
        }
        Ok(keys)
    }

    /// Hands key and value of each record of `epoch` with a key from `low` to `high`, both included,
    /// to `visit`, in order of key and then of arrival, until `visit` returns false.
    ///
    /// Reads the blocks of the range and, at each end, up to a block of each table more.
    ///
    /// # Errors
    /// `Invalid` unless the directory is ordered; those of partitions in the range, and what `visit`
    /// fails with.
    pub fn range(
        &self,
        low: &[u8],
        high: &[u8],
        epoch: u32,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<Counts> {
        if self.head.format != Format::Ordered {
            let what = format!(
                "a range of keys needs format ordered, and this directory is {}",
                self.head.format.name()
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        let mut counts = Counts::default();
        if low > high {
            return Ok(counts);
        }
        let bounds = self.directory.as_ref().and_then(|all| all.bounds.get(epoch as usize));
        let partitions = match bounds {
            Some(bounds) => bounds.partitions(key_prefix(low), key_prefix(high)),
            None => 0..self.partitions(),
        };
        let mut goes_on = true;
        for partition in partitions {
            let reader = self.partition(partition, &mut counts)?;
            counts.partitions += 1;
            reader.range(low, high, epoch, &mut counts, |key, value, _| {
                goes_on = visit(key, value)?;
                Ok(goes_on)
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(counts)
    }
}

/// Rows of a scan that are handed on together, so that their values are fetched together.
struct Batch<'r, V> {
    reader: &'r Reader,
    rows: Vec<(Bytes, Bytes)>,
    visit: &'r mut V,
}

impl<V: FnMut(&[u8], &[u8]) -> Result<bool>> Batch<'_, V> {
    const ROWS: usize = 4096;

    fn push(&mut self, key: &Bytes, value: &Bytes, counts: &mut Counts) -> Result<bool> {
        if self.reader.head.format != Format::Pointer {
            return (self.visit)(key, value);
        }
        self.rows.push((key.clone(), value.clone()));
        if self.rows.len() < Self::ROWS { Ok(true) } else { self.end(counts) }
    }

    fn end(&mut self, counts: &mut Counts) -> Result<bool> {
        let mut rows = std::mem::take(&mut self.rows);
        self.reader.follow(rows.iter_mut().map(|row| &mut row.1).collect(), counts)?;
        for (key, value) in &rows {
            if !(self.visit)(key, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
