// SPDX-License-Identifier: Apache-2.0
//! Reader: reads an indexed directory by key, from the store alone.
//!
//! | format | partitions queried for a key and an epoch |
//! |---|---|
//! | base | the key's |
//! | pointer | the key's, then the rank that has the value |
//! | lossy, static | the key's for candidates, then the ranks that may have written it |
//! | ordered | the one whose range has the key |
//!
//! This file opens a directory; `read/find.rs` finds keys, and `read/whole.rs` lists the contents.
//! Partitions are opened on first use and stay open. A partition that cannot be read fails the
//! queries that need it, and the error gives its number; other queries continue. In an unfinished
//! directory readers see only the epochs that are complete in all partitions: after a crash some
//! ranks have lost their part of later ones. A query then needs all partitions, to know which
//! epochs are complete.
//! Concurrency: every method may be called from several threads at once.
//! Source: DeltaFS thesis §5.2.3, §5.3.2.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::auxiliary;
use crate::directory::{DirectoryIndex, ROOT_BYTES_MAX};
use crate::index::head::IndexLogHead;
use crate::names;
use crate::read::cache::PieceCache;
use crate::read::counts::QueryCounts;
use crate::read::partition::PartitionReader;
use crate::schema::{DirectorySchema, KeyNames};

/// An indexed directory that is open for reading.
#[derive(Debug)]
pub struct DirectoryReader {
    pub(crate) store: SharedStore,
    pub(crate) prefix: String,
    pub(crate) head: IndexLogHead,
    schema: DirectorySchema,
    /// The root object, if the directory was finished.
    pub(crate) directory: Option<DirectoryIndex>,
    pub(crate) cache: Arc<PieceCache>,
    pub(crate) keeps_auxiliary: bool,
    /// Number of epochs that are complete in all partitions, once known.
    complete: OnceLock<u32>,
    /// Guards the open partitions.
    open: Mutex<HashMap<u32, Arc<PartitionReader>>>,
    /// Guards the auxiliary tables read so far, by partition and offset.
    pub(crate) auxiliary: Mutex<HashMap<(u32, u64), Arc<auxiliary::AuxiliaryTable>>>,
}

/// A value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedValue {
    /// The epoch in which a writer appended it.
    pub epoch: u32,
    /// The appended bytes.
    pub bytes: Bytes,
}

/// The values of one key.
#[derive(Clone, Debug, Default)]
pub struct KeyAnswer {
    /// The values by epoch; those of one rank are in the order in which it appended them.
    pub values: Vec<IndexedValue>,
    /// Cost of the query.
    pub counts: QueryCounts,
}

/// The values of several keys.
#[derive(Clone, Debug, Default)]
pub struct KeyAnswers {
    /// The values of each key, as in [`KeyAnswer`], in the order of the given keys.
    pub values: Vec<Vec<IndexedValue>>,
    /// Cost of the whole query.
    pub counts: QueryCounts,
}

impl DirectoryReader {
    /// Opens the directory below `prefix` (empty, or ending in `/`), caching up to `cache_bytes` of
    /// verified slots and blocks; with 0 each query reads afresh.
    ///
    /// Cost: one read of the root object; for an unfinished directory a listing and an index log.
    ///
    /// # Errors
    /// `NotFound` if there is no directory, `Corrupt` if its root object is damaged.
    pub fn open(store: &SharedStore, prefix: &str, cache_bytes: u64) -> Result<Self> {
        let name = names::root(prefix);
        let directory = match store.get(&name, ROOT_BYTES_MAX) {
            Ok(bytes) => Some(DirectoryIndex::decode(&bytes, &name)?),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        let cache = Arc::new(PieceCache::new(cache_bytes));
        let (head, schema) = match &directory {
            Some(directory) => (directory.head, directory.schema.clone()),
            None => Self::head_of_any(store, prefix, &cache)?,
        };
        Ok(Self {
            store: store.clone(),
            prefix: prefix.to_owned(),
            head,
            schema,
            directory,
            cache,
            keeps_auxiliary: cache_bytes > 0,
            complete: OnceLock::new(),
            open: Mutex::default(),
            auxiliary: Mutex::default(),
        })
    }

    /// The head and schema of an unfinished directory, from the first partition that can be read.
    fn head_of_any(
        store: &SharedStore,
        prefix: &str,
        cache: &Arc<PieceCache>,
    ) -> Result<(IndexLogHead, DirectorySchema)> {
        let mut failure = None;
        for partition in names::partitions(store, prefix)? {
            let mut counts = QueryCounts::default();
            let opened =
                PartitionReader::open(store, prefix, partition, None, None, cache, &mut counts);
            let read = opened.and_then(|part| Ok((*part.head(), part.log.schema(&mut counts)?)));
            match read {
                Ok(read) => return Ok(read),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| {
            Error::new(Kind::NotFound, format!("{prefix}: no indexed directory here"))
        }))
    }

    /// The directory's identity, format and layout.
    #[must_use]
    pub fn head(&self) -> &IndexLogHead {
        &self.head
    }

    /// The schema of keys and values.
    #[must_use]
    pub fn schema(&self) -> &DirectorySchema {
        &self.schema
    }

    /// The naming scheme of the keys.
    #[must_use]
    pub fn key_names(&self) -> KeyNames {
        KeyNames::new(self.schema.key_type, self.head.layout)
    }

    /// The step of each complete epoch, ascending. Cost: as [`DirectoryReader::epochs_complete`].
    ///
    /// # Errors
    /// As [`DirectoryReader::epochs_complete`].
    pub fn steps(&self) -> Result<Vec<u64>> {
        if let Some(directory) = &self.directory {
            return Ok(directory.steps.clone());
        }
        let mut counts = QueryCounts::default();
        let epochs = self.epochs_complete()?;
        let part = self.partition(0, &mut counts)?;
        (0..epochs).map(|epoch| Ok(part.epoch(epoch, &mut counts)?.step)).collect()
    }

    /// The root object, with the totals of each partition, if the directory was finished.
    #[must_use]
    pub fn directory(&self) -> Option<&DirectoryIndex> {
        self.directory.as_ref()
    }

    /// Number of partitions.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.head.partitions
    }

    /// Number of epochs that are complete in all partitions. These have everything appended in
    /// them, and readers see only these. Free if the directory was finished; otherwise the first
    /// call or query opens all partitions.
    ///
    /// # Errors
    /// The error of the first partition that cannot be read, with its number.
    pub fn epochs_complete(&self) -> Result<u32> {
        if let Some(directory) = &self.directory {
            return Ok(directory.epochs());
        }
        if let Some(complete) = self.complete.get() {
            return Ok(*complete);
        }
        let least = self.partition_epochs()?.into_iter().min().unwrap_or(0);
        Ok(*self.complete.get_or_init(|| least))
    }

    /// Number of later epochs that some partitions have and others lack, so readers see none of
    /// them; 0 if the directory was finished. Cost: as [`DirectoryReader::epochs_complete`].
    ///
    /// # Errors
    /// As [`DirectoryReader::epochs_complete`].
    pub fn epochs_incomplete(&self) -> Result<u32> {
        if self.directory.is_some() {
            return Ok(0);
        }
        let most = self.partition_epochs()?.into_iter().max().unwrap_or(0);
        Ok(most - self.epochs_complete()?)
    }

    /// Number of epochs of each partition.
    fn partition_epochs(&self) -> Result<Vec<u32>> {
        let mut counts = QueryCounts::default();
        let epochs = |partition| Ok(self.partition(partition, &mut counts)?.epochs());
        (0..self.partitions()).map(epochs).collect()
    }

    /// Limits `epochs` to the complete ones.
    pub(crate) fn within_complete(&self, epochs: Range<u32>) -> Result<Range<u32>> {
        let end = epochs.end.min(self.epochs_complete()?);
        Ok(epochs.start.min(end)..end)
    }

    /// Opens partition `partition`, or returns it if it is open.
    ///
    /// # Errors
    /// `Invalid` if there is no such partition; otherwise the cause of the failure, with its
    /// number.
    pub fn partition(
        &self,
        partition: u32,
        counts: &mut QueryCounts,
    ) -> Result<Arc<PartitionReader>> {
        if let Some(reader) = self.open.lock().get(&partition) {
            return Ok(Arc::clone(reader));
        }
        let count = self.partitions();
        if partition >= count {
            let what = format!("partition {partition} of a directory with {count}");
            return Err(Error::new(Kind::Invalid, what));
        }
        let totals = self.directory.as_ref().map(|all| all.partitions[partition as usize]);
        let index_bytes = totals.map(|totals| totals.index_bytes);
        let (store, prefix, cache) = (&self.store, &self.prefix, &self.cache);
        let directory = Some(self.head.directory);
        let reader =
            PartitionReader::open(store, prefix, partition, directory, index_bytes, cache, counts)?;
        let expected = IndexLogHead { partition, ..self.head };
        if *reader.head() != expected {
            let what = "the log of another directory";
            return Err(reader.named(Error::corrupt(&reader.log.name, 0, what)));
        }
        if self.directory.as_ref().is_some_and(|all| reader.epochs() < all.epochs()) {
            let what = format!("only {} epochs are left", reader.epochs());
            return Err(reader.named(Error::corrupt(&reader.log.name, 0, what)));
        }
        let reader = Arc::new(reader);
        Ok(Arc::clone(self.open.lock().entry(partition).or_insert(reader)))
    }
}
