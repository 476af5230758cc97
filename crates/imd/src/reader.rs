//! Reader: an indexed directory by key, from its store alone.
//!
//! | format | partitions asked for a key and an epoch |
//! |---|---|
//! | base | the key's |
//! | pointer | the key's, then the rank that has the value |
//! | lossy, static | the key's for candidates, then the ranks that may have written it |
//! | ordered | the one whose range has the key |
//!
//! Here it is opened; `read/find.rs` finds keys, `read/whole.rs` lists what there is. Partitions are
//! opened when they are first asked and stay open. One that cannot be read fails the
//! queries that need it, by its number; others go on.
//! Of a directory that was not finished readers see the epochs that are complete in all partitions,
//! and nothing of later ones: after a crash some ranks have lost their part of those. A query then
//! needs all partitions, to know which epochs that are.
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
use crate::directory::{Directory, ROOT_BYTES_MAX};
use crate::index::head::Head;
use crate::names;
use crate::read::cache::PieceCache;
use crate::read::counts::Counts;
use crate::read::partition::PartitionReader;
use crate::schema::{DirectorySchema, KeyNames};

/// An indexed directory that is read.
#[derive(Debug)]
pub struct Reader {
    pub(crate) store: SharedStore,
    pub(crate) prefix: String,
    pub(crate) head: Head,
    schema: DirectorySchema,
    /// What rank 0 wrote, if the directory was finished.
    pub(crate) directory: Option<Directory>,
    pub(crate) cache: Arc<PieceCache>,
    pub(crate) keeps_auxiliary: bool,
    /// How many epochs are complete in all partitions, once that is known.
    complete: OnceLock<u32>,
    /// Guards partitions that were opened.
    open: Mutex<HashMap<u32, Arc<PartitionReader>>>,
    /// Guards auxiliary tables that were read, by partition and offset.
    pub(crate) auxiliary: Mutex<HashMap<(u32, u64), Arc<auxiliary::Reader>>>,
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

    /// The head and schema of an unfinished directory: of the first partition that can be read.
    fn head_of_any(
        store: &SharedStore,
        prefix: &str,
        cache: &Arc<PieceCache>,
    ) -> Result<(Head, DirectorySchema)> {
        let mut failure = None;
        for partition in names::partitions(store, prefix)? {
            let mut counts = Counts::default();
            let opened =
                PartitionReader::open(store, prefix, partition, None, None, cache, &mut counts);
            let read = opened.and_then(|part| Ok((*part.head(), part.log.schema(&mut counts)?)));
            match read {
                Ok(read) => return Ok(read),
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

    /// What its keys and values are.
    #[must_use]
    pub fn schema(&self) -> &DirectorySchema {
        &self.schema
    }

    /// How its keys are named.
    #[must_use]
    pub fn key_names(&self) -> KeyNames {
        KeyNames::new(self.schema.key_type, self.head.shape)
    }

    /// The step of each epoch that is complete, ascending. Cost: as [`Reader::epochs_complete`].
    ///
    /// # Errors
    /// As [`Reader::epochs_complete`].
    pub fn steps(&self) -> Result<Vec<u64>> {
        if let Some(directory) = &self.directory {
            return Ok(directory.steps.clone());
        }
        let mut counts = Counts::default();
        let epochs = self.epochs_complete()?;
        let part = self.partition(0, &mut counts)?;
        (0..epochs).map(|epoch| Ok(part.epoch(epoch, &mut counts)?.step)).collect()
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

    /// How many epochs are complete in all partitions: they have all that was appended in them, and
    /// are what readers see. Free if the directory was finished; else the first call, or query, opens
    /// all partitions.
    ///
    /// # Errors
    /// That of the first partition that cannot be read, by its number.
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

    /// How many later epochs some partitions have, of which readers see nothing, since others lack
    /// their part: 0 if the directory was finished. Cost: as [`Reader::epochs_complete`].
    ///
    /// # Errors
    /// As [`Reader::epochs_complete`].
    pub fn epochs_incomplete(&self) -> Result<u32> {
        if self.directory.is_some() {
            return Ok(0);
        }
        let most = self.partition_epochs()?.into_iter().max().unwrap_or(0);
        Ok(most - self.epochs_complete()?)
    }

    /// How many epochs each partition has.
    fn partition_epochs(&self) -> Result<Vec<u32>> {
        let mut counts = Counts::default();
        let epochs = |partition| Ok(self.partition(partition, &mut counts)?.epochs());
        (0..self.partitions()).map(epochs).collect()
    }

    /// Those of `epochs` that are complete.
    pub(crate) fn within_complete(&self, epochs: Range<u32>) -> Result<Range<u32>> {
        let end = epochs.end.min(self.epochs_complete()?);
        Ok(epochs.start.min(end)..end)
    }

    /// Partition `partition`, opened.
    ///
    /// # Errors
    /// Why it cannot be read, with its number; `Invalid` if there is none of that number.
    pub fn partition(&self, partition: u32, counts: &mut Counts) -> Result<Arc<PartitionReader>> {
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
        let expected = Head { partition, ..self.head };
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
