// SPDX-License-Identifier: Apache-2.0
//! Indexed reader: reads all parts of an indexed directory together, by key.
//!
//! One job wrote or appended each part, with its own partitions and format. A part's epochs follow
//! those of the parts before it.
//! Invariants: all parts have records of one layout and one schema; only the last may be
//! unfinished.
//! Concurrency: every method may be called from several threads at once.

use std::ops::Range;

use bytes::Bytes;
use esker_base::store::SharedStore;
use esker_base::{Error, Random, Result};
use hashbrown::HashMap;

use crate::directory::PartitionTotals;
use crate::names;
use crate::read::counts::QueryCounts;
use crate::reader::{DirectoryReader, IndexedValue, KeyAnswer, KeyAnswers};
use crate::record_layout::RecordLayout;
use crate::schema::{DirectorySchema, KeyNames};

/// Keys looked up together in the earlier parts.
const KEYS_AT_ONCE: usize = 4096;

/// An indexed directory with all its parts.
#[derive(Debug)]
pub struct IndexedReader {
    parts: Vec<ReaderPart>,
}

/// One part.
#[derive(Debug)]
struct ReaderPart {
    reader: DirectoryReader,
    /// Directory-wide number of its first epoch.
    first_epoch: u32,
}

impl ReaderPart {
    /// Maps directory-wide `epochs` to the epoch numbers of this part; some may not exist.
    fn own(&self, epochs: &Range<u32>) -> Range<u32> {
        let own = |epoch: u32| epoch.saturating_sub(self.first_epoch);
        own(epochs.start)..own(epochs.end)
    }
}

impl IndexedReader {
    /// Opens the parts below `prefixes`, the oldest first, caching up to `cache_bytes` of what it
    /// reads ([`DirectoryReader::open`]).
    ///
    /// # Errors
    /// As [`DirectoryReader::open`]; `Corrupt` if the parts' records differ in layout or schema.
    pub fn open(store: &SharedStore, prefixes: &[String], cache_bytes: u64) -> Result<Self> {
        let share = cache_bytes / prefixes.len().max(1) as u64;
        let mut parts: Vec<ReaderPart> = Vec::new();
        let mut first_epoch = 0_u32;
        for (number, prefix) in prefixes.iter().enumerate() {
            let reader = DirectoryReader::open(store, prefix, share)?;
            if let Some(first) = parts.first().map(|part| &part.reader)
                && (first.head().layout, first.schema()) != (reader.head().layout, reader.schema())
            {
                let what = "a part with records of another kind than those of the parts before it";
                return Err(Error::corrupt(&names::root(prefix), 0, what));
            }
            let is_last = number + 1 == prefixes.len();
            // An unfinished part must open all its partitions to know; only its queries do that.
            let epochs = if is_last { 0 } else { reader.epochs_complete()? };
            parts.push(ReaderPart { reader, first_epoch });
            first_epoch = first_epoch.saturating_add(epochs);
        }
        assert!(!parts.is_empty(), "a directory has at least one part");
        Ok(Self { parts })
    }

    /// The parts, oldest first.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &DirectoryReader> + ExactSizeIterator {
        self.parts.iter().map(|part| &part.reader)
    }

    fn first(&self) -> &DirectoryReader {
        &self.parts[0].reader
    }

    /// The schema of keys and values.
    #[must_use]
    pub fn schema(&self) -> &DirectorySchema {
        self.first().schema()
    }

    /// The layout of the records.
    #[must_use]
    pub fn record_layout(&self) -> RecordLayout {
        self.first().head().layout
    }

    /// The naming scheme of the keys.
    #[must_use]
    pub fn key_names(&self) -> KeyNames {
        self.first().key_names()
    }

    /// Totals over all finished parts.
    #[must_use]
    pub fn totals(&self) -> PartitionTotals {
        let mut totals = PartitionTotals::default();
        let directories = self.parts().filter_map(DirectoryReader::directory);
        directories.flat_map(|all| &all.partitions).for_each(|part| totals.add(part));
        totals
    }

    /// Number of complete epochs ([`DirectoryReader::epochs_complete`]).
    ///
    /// # Errors
    /// As [`DirectoryReader::epochs_complete`].
    pub fn epochs_complete(&self) -> Result<u32> {
        let last = self.parts.last().expect("a directory has at least one part");
        Ok(last.first_epoch.saturating_add(last.reader.epochs_complete()?))
    }

    /// The step of each complete epoch, ascending.
    ///
    /// # Errors
    /// As [`DirectoryReader::steps`].
    pub fn steps(&self) -> Result<Vec<u64>> {
        let mut steps = Vec::new();
        for reader in self.parts() {
            steps.extend(reader.steps()?);
        }
        Ok(steps)
    }

    /// All values of `key` ([`DirectoryReader::get`]).
    ///
    /// # Errors
    /// As [`DirectoryReader::get`].
    pub fn get(&self, key: &[u8]) -> Result<KeyAnswer> {
        let KeyAnswers { mut values, counts } = self.get_many(&[key], 0..u32::MAX, 1)?;
        Ok(KeyAnswer { values: values.pop().unwrap_or_default(), counts })
    }

    /// The values of each of `keys` in `epochs`, found by `threads` threads
    /// ([`DirectoryReader::get_many`]). Queries every part.
    ///
    /// # Errors
    /// As [`DirectoryReader::get_many`].
    pub fn get_many<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        epochs: Range<u32>,
        threads: usize,
    ) -> Result<KeyAnswers> {
        let mut all =
            KeyAnswers { values: vec![Vec::new(); keys.len()], counts: QueryCounts::default() };
        for part in &self.parts {
            let own = part.own(&epochs);
            if own.is_empty() {
                continue;
            }
            let found = part.reader.get_many(keys, own, threads)?;
            all.counts += found.counts;
            for (values, found) in all.values.iter_mut().zip(found.values) {
                let moved = found.into_iter().map(|value| IndexedValue {
                    epoch: value.epoch + part.first_epoch,
                    bytes: value.bytes,
                });
                values.extend(moved);
            }
        }
        Ok(all)
    }

    /// The part that holds `epoch`, and the epoch's number there; the last part if `epoch` does not
    /// exist.
    fn part_of(&self, epoch: u32) -> (&DirectoryReader, u32) {
        let after = self.parts.partition_point(|part| part.first_epoch <= epoch);
        let part = &self.parts[after - 1];
        (&part.reader, epoch - part.first_epoch)
    }

    /// As [`DirectoryReader::scan`].
    ///
    /// # Errors
    /// As [`DirectoryReader::scan`].
    pub fn scan(
        &self,
        epoch: u32,
        visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<QueryCounts> {
        let (reader, epoch) = self.part_of(epoch);
        reader.scan(epoch, visit)
    }

    /// As [`DirectoryReader::range`], on the part that holds `epoch`, which must be ordered.
    ///
    /// # Errors
    /// As [`DirectoryReader::range`].
    pub fn range(
        &self,
        low: &[u8],
        high: &[u8],
        epoch: u32,
        visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<QueryCounts> {
        let (reader, epoch) = self.part_of(epoch);
        reader.range(low, high, epoch, visit)
    }

    /// Keys of about `count` records, chosen uniformly ([`DirectoryReader::sample`]).
    ///
    /// # Errors
    /// As [`DirectoryReader::sample`].
    pub fn sample(&self, count: usize, random: &mut Random) -> Result<Vec<Bytes>> {
        let rows = |reader: &DirectoryReader| {
            let partitions = reader.directory().map(|all| &all.partitions);
            partitions.into_iter().flatten().map(|part| part.rows).sum::<u64>().max(1)
        };
        let all: u64 = self.parts().map(rows).sum();
        let mut keys = Vec::new();
        for reader in self.parts() {
            let share = (count as u64).saturating_mul(rows(reader)).div_ceil(all);
            let share = usize::try_from(share).unwrap_or(usize::MAX).min(count - keys.len());
            keys.extend(reader.sample(share, random)?);
        }
        Ok(keys)
    }

    /// Calls `visit` once for each key, in the order of each part ([`DirectoryReader::keys`]),
    /// until `visit` returns false. Reads all records and looks up the keys of later parts in the
    /// earlier ones.
    ///
    /// # Errors
    /// As [`DirectoryReader::keys`].
    pub fn keys(&self, mut visit: impl FnMut(&[u8]) -> Result<bool>) -> Result<()> {
        for (number, part) in self.parts.iter().enumerate() {
            let earlier = &self.parts[..number];
            let mut batch = Vec::new();
            let mut goes_on = true;
            part.reader.keys(0..u32::MAX, |key| {
                if earlier.is_empty() {
                    goes_on = visit(key)?;
                } else {
                    batch.push(key.to_vec());
                    if batch.len() == KEYS_AT_ONCE {
                        goes_on = visit_new(earlier, &mut batch, &mut visit)?;
                    }
                }
                Ok(goes_on)
            })?;
            if !goes_on || !visit_new(earlier, &mut batch, &mut visit)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// All keys, each with the total bytes of its values; `None` if there are more than `keys_max`.
    /// Reads all records, or stops once it has found more keys.
    ///
    /// # Errors
    /// As [`DirectoryReader::keys`].
    pub fn list(&self, keys_max: usize) -> Result<Option<Vec<(Bytes, u64)>>> {
        let mut keys: Vec<(Bytes, u64)> = Vec::new();
        let mut numbers: HashMap<Bytes, usize> = HashMap::new();
        for reader in self.parts() {
            reader.value_sizes(0..u32::MAX, |key, bytes| {
                let number = *numbers.entry(key.clone()).or_insert_with(|| {
                    keys.push((key.clone(), 0));
                    keys.len() - 1
                });
                keys[number].1 += bytes;
                Ok(keys.len() <= keys_max)
            })?;
            if keys.len() > keys_max {
                return Ok(None);
            }
        }
        Ok(Some(keys))
    }
}

/// Passes the keys of `batch` that no part of `earlier` has to `visit`, and empties `batch`.
/// Returns false if `visit` stopped.
fn visit_new(
    earlier: &[ReaderPart],
    batch: &mut Vec<Vec<u8>>,
    visit: &mut impl FnMut(&[u8]) -> Result<bool>,
) -> Result<bool> {
    let mut is_known = vec![false; batch.len()];
    for part in earlier {
        let found = part.reader.get_many(batch, 0..u32::MAX, 1)?;
        for (is_known, values) in is_known.iter_mut().zip(found.values) {
            *is_known |= !values.is_empty();
        }
    }
    for (key, is_known) in batch.drain(..).zip(is_known) {
        if !is_known && !visit(&key)? {
            return Ok(false);
        }
    }
    Ok(true)
}
