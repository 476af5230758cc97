// SPDX-License-Identifier: Apache-2.0
//! Finding: the values of keys, from the partitions and epochs that may have some.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use esker_base::{Error, Result};

use super::counts::QueryCounts;
use super::lookup::{FoundValue, WantedKey, lookup_keys};
use super::lost;
use super::partition::PartitionReader;
use super::pointers;
use super::share::share;
use crate::auxiliary;
use crate::hash::{PLACE_BITS, home, key_hash};
use crate::names;
use crate::partition::key_prefix;
use crate::reader::{DirectoryReader, IndexedValue, KeyAnswer, KeyAnswers};
use crate::record_layout::{RecordLayout, ValueFormat};

/// Keys of one partition looked up together: enough that neighbours share requests, few enough that
/// their blocks fit memory.
const KEYS_AT_ONCE: usize = 256;

/// Maximum bytes of an auxiliary table, which is read whole.
const AUXILIARY_BYTES_MAX: u64 = 8 << 30;

/// Keys to look up in one partition and some epochs.
struct PartitionLookup {
    partition: u32,
    epochs: Range<u32>,
    numbers: Vec<usize>,
}

impl DirectoryReader {
    /// All values of `key` in complete epochs ([`DirectoryReader::epochs_complete`]).
    ///
    /// # Errors
    /// Those of needed partitions that cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<KeyAnswer> {
        self.get_epochs(key, 0..u32::MAX)
    }

    /// The values of `key` in those of `epochs` that are complete.
    ///
    /// Cost, cold: the end of the partition's index log (or all of it if small); for each epoch one
    /// slot of the index, unless the log was read whole, and 1.01 blocks of the data log.
    ///
    /// # Errors
    /// As [`DirectoryReader::get`].
    pub fn get_epochs(&self, key: &[u8], epochs: Range<u32>) -> Result<KeyAnswer> {
        let KeyAnswers { mut values, counts } = self.get_many(&[key], epochs, 1)?;
        Ok(KeyAnswer { values: values.pop().unwrap_or_default(), counts })
    }

    /// The values of each of `keys` in those of `epochs` that are complete, found by `threads`
    /// threads.
    ///
    /// # Errors
    /// As [`DirectoryReader::get`], for any key.
    pub fn get_many<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        epochs: Range<u32>,
        threads: usize,
    ) -> Result<KeyAnswers> {
        let mut counts = QueryCounts::default();
        let epochs = self.within_complete(epochs)?;
        let tasks = self.tasks(keys, epochs, &mut counts)?;
        let parts = share(&tasks, threads, |task, part: &mut (Vec<FoundValue>, QueryCounts)| {
            self.do_task(task, keys, &mut part.1, &mut part.0)
        })?;
        let mut all = Vec::new();
        for (found, more) in parts {
            counts += more;
            all.extend(found);
        }
        // Stable: values of one key, epoch and partition stay in order of arrival.
        all.sort_by_key(|found| (found.number, found.epoch));
        let mut values: Vec<Vec<IndexedValue>> = keys.iter().map(|_| Vec::new()).collect();
        for FoundValue { number, epoch, value } in all {
            values[number].push(IndexedValue { epoch, bytes: value });
        }
        Ok(KeyAnswers { values, counts })
    }

    /// The partitions to query, each with its keys.
    fn tasks<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        epochs: Range<u32>,
        counts: &mut QueryCounts,
    ) -> Result<Vec<PartitionLookup>> {
        let mut wanted: Vec<(u32, u32, u32, u64, usize)> = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            let hash = key_hash(key);
            match self.head.format {
                ValueFormat::Base | ValueFormat::Pointer => {
                    let (partition, place) = home(hash, self.partitions());
                    wanted.push((partition, epochs.start, epochs.end, place, number));
                }
                ValueFormat::Ordered => {
                    for (partition, epochs) in self.ordered_partitions(key, epochs.clone()) {
                        let prefix = key_prefix(key);
                        wanted.push((partition, epochs.start, epochs.end, prefix, number));
                    }
                }
                ValueFormat::Lossy | ValueFormat::Static => {
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
                tasks.push(PartitionLookup { partition, epochs: start..end, numbers });
            }
        }
        Ok(tasks)
    }

    /// The partitions that may have a key of an ordered directory, by runs of epochs with equal
    /// bounds.
    fn ordered_partitions(&self, key: &[u8], epochs: Range<u32>) -> Vec<(u32, Range<u32>)> {
        let prefix = key_prefix(key);
        let Some(directory) = &self.directory else {
            // An unfinished directory has no recorded bounds.
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
        counts: &mut QueryCounts,
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
            // A damaged or malicious table may name ranks that do not exist.
            let ranks = found.iter().filter(|&&rank| rank < self.partitions());
            out.extend(ranks.map(|&rank| (rank, epoch)));
        }
        Ok(out)
    }

    fn auxiliary(
        &self,
        reader: &PartitionReader,
        place: &Range<u64>,
        counts: &mut QueryCounts,
    ) -> Result<Arc<auxiliary::AuxiliaryTable>> {
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
        let bytes = bytes.map_err(|error| reader.named(lost(&name, error)))?;
        counts.auxiliary_reads += 1;
        counts.auxiliary_bytes += bytes.len() as u64;
        let table = Arc::new(reader.parse_auxiliary(&bytes, place.start, &name)?);
        if self.keeps_auxiliary {
            self.auxiliary.lock().insert(at, Arc::clone(&table));
        }
        Ok(table)
    }

    fn do_task<K: AsRef<[u8]>>(
        &self,
        task: &PartitionLookup,
        keys: &[K],
        counts: &mut QueryCounts,
        found: &mut Vec<FoundValue>,
    ) -> Result<()> {
        let reader = self.partition(task.partition, counts)?;
        counts.partitions += 1;
        let partitions = self.head.hash_partitions();
        let wanted: Vec<WantedKey<'_>> = task
            .numbers
            .iter()
            .map(|&number| {
                let key = keys[number].as_ref();
                let hash = key_hash(key);
                WantedKey { number, key, hash, place: home(hash, partitions).1 }
            })
            .collect();
        let before = found.len();
        lookup_keys(&reader, &wanted, task.epochs.clone(), counts, found)?;
        if self.head.format == ValueFormat::Pointer {
            let rows = found[before..].iter_mut().map(|found| &mut found.value).collect();
            self.follow(rows, counts)?;
        }
        Ok(())
    }

    /// Replaces pointers with the values they point to.
    pub(crate) fn follow(&self, rows: Vec<&mut Bytes>, counts: &mut QueryCounts) -> Result<()> {
        let value_bytes = match self.head.layout {
            RecordLayout::Fixed { value_bytes, .. } => Some(value_bytes),
            RecordLayout::Variable => None,
        };
        let values = pointers::ValueLogs {
            store: &self.store,
            prefix: &self.prefix,
            directory: self.head.directory,
            cache: &self.cache,
            ranks: self.partitions(),
            value_bytes,
        };
        values.follow(rows, counts)
    }
}
