// SPDX-License-Identifier: Apache-2.0
//! Indexed directories: records of a job by key, written by all its ranks and read by one process.

use std::ops::{Range, RangeInclusive};
use std::path::Path;

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_comm::Transport;
use esker_imd::{
    DirectoryOptions, DirectorySchema, DirectoryWriter, IndexedReader, IndexedValue, RecordLayout,
    SessionDirectory, ValueFormat, entry,
};

use crate::dir::{Dir, bytes};
use crate::tree_handle::TreeHandle;

/// An indexed directory that ranks write, before it has a path.
///
/// One rank drafts it in its session. Threads share the draft; a rank that is another process makes
/// its own with [`Job::draft_indexed`](crate::Job::draft_indexed) from [`IndexedDraft::directory`],
/// whose two numbers it was sent. All ranks make a writer with equal options, and after
/// [`DirectoryWriter::finish`] the first one calls
/// [`Session::create_indexed`](crate::Session::create_indexed).
///
/// An epoch survives power loss, and can be read, once `epoch_flush_at` has returned at all ranks,
/// even if the job dies later.
///
/// # Examples
/// ```
/// use esker::{RecordLayout, Repository, Transport, ValueFormat, threads};
///
/// let repository = Repository::create("memory:")?;
/// let session = repository.session().begin()?;
/// let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 4 };
/// let mut draft = session.draft_indexed(ValueFormat::Base, layout);
/// draft.options.memory_bytes = 4 << 20;
/// threads::run(4, 2, |transport| {
///     let rank = u64::from(transport.rank().0);
///     let mut particles = draft.writer(transport)?;
///     for step in [0, 500] {
///         for particle in 0..100_u64 {
///             particles.append(&(particle * 4 + rank).to_be_bytes(), &f32::to_le_bytes(0.5))?;
///         }
///         particles.epoch_flush_at(step)?;
///     }
///     particles.finish()
/// })?;
/// session.create_indexed("/particles", &draft)?;
/// session.publish("run")?;
///
/// let particles = repository.snapshot("run")?.open_indexed("/particles", 1 << 20)?;
/// assert_eq!(particles.steps()?, [0, 500]);
/// assert_eq!(particles.get(&42_u64.to_be_bytes())?.len(), 2);
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexedDraft {
    store: SharedStore,
    directory: SessionDirectory,
    /// Routing, memory and schema, which may be changed before the first writer is made; the same
    /// at all ranks.
    pub options: DirectoryOptions,
}

impl IndexedDraft {
    pub(crate) fn new(
        store: SharedStore,
        directory: SessionDirectory,
        format: ValueFormat,
        layout: RecordLayout,
    ) -> Self {
        let options = directory.options(format, layout);
        Self { store, directory, options }
    }

    /// The session's change set and the number of the directory in it.
    #[must_use]
    pub fn directory(&self) -> SessionDirectory {
        self.directory
    }

    /// Returns the writer of this rank. Collective.
    ///
    /// # Errors
    /// `Exists` if the draft has been written; `Invalid` for options that contradict each other.
    pub fn writer<T: Transport>(&self, transport: T) -> Result<DirectoryWriter<T>> {
        DirectoryWriter::create(&self.store, &self.directory.prefix(), transport, &self.options)
    }
}

/// An indexed directory that is open for reading. It keeps its snapshot open; several threads may
/// read.
///
/// A look-up needs some reads, for any number of records: the key's slot of each epoch, and the
/// block that has the value. The cache keeps what was read.
#[derive(Debug)]
pub struct IndexedDir {
    /// Keeps the snapshot from being collected.
    _tree: TreeHandle,
    reader: IndexedReader,
}

impl IndexedDir {
    pub(crate) fn open(dir: &Dir, path: &Path, cache_bytes: u64) -> Result<Self> {
        let layers = dir.tree.layers();
        let absolute = dir.path()?.join(path);
        let found = entry::find(layers, bytes(&absolute))?.filter(|entry| entry.rest.is_empty());
        let Some(found) = found else {
            dir.metadata(path)?;
            let what = format!("{}: not an indexed directory", path.display());
            return Err(Error::new(Kind::NotADirectory, what));
        };
        let reader = found.open(&layers.layers().source().store, cache_bytes)?;
        Ok(Self { _tree: dir.tree.clone(), reader })
    }

    /// Returns all values of `key`, by epoch; none if no record has it.
    ///
    /// # Errors
    /// `Corrupt`; errors of the store.
    pub fn get(&self, key: &[u8]) -> Result<Vec<IndexedValue>> {
        self.reader.get(key).map(|answer| answer.values)
    }

    /// Returns the values of each of `keys` in `epochs`, found by `threads` threads.
    ///
    /// # Errors
    /// As [`IndexedDir::get`].
    pub fn get_many<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        epochs: Range<u32>,
        threads: usize,
    ) -> Result<Vec<Vec<IndexedValue>>> {
        self.reader.get_many(keys, epochs, threads).map(|answers| answers.values)
    }

    /// Passes key and value of each record of `epoch` to `visit`, until it returns false.
    ///
    /// # Errors
    /// As [`IndexedDir::get`]; errors of `visit`.
    pub fn scan(&self, epoch: u32, visit: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        self.reader.scan(epoch, visit).map(drop)
    }

    /// Passes the records of `epoch` with a key in `keys` to `visit`, in order of key and then of
    /// arrival, until it returns false. For directories of [`ValueFormat::Ordered`].
    ///
    /// # Errors
    /// `Invalid` for other formats; as [`IndexedDir::scan`].
    pub fn range(
        &self,
        keys: RangeInclusive<&[u8]>,
        epoch: u32,
        visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.reader.range(keys.start(), keys.end(), epoch, visit).map(drop)
    }

    /// Passes every key to `visit`, once, until it returns false. Reads all records.
    ///
    /// # Errors
    /// As [`IndexedDir::scan`].
    pub fn keys(&self, visit: impl FnMut(&[u8]) -> Result<bool>) -> Result<()> {
        self.reader.keys(visit)
    }

    /// The step of each complete epoch, ascending.
    ///
    /// # Errors
    /// As [`IndexedDir::get`].
    pub fn steps(&self) -> Result<Vec<u64>> {
        self.reader.steps()
    }

    /// The names and types of keys and values.
    #[must_use]
    pub fn schema(&self) -> &DirectorySchema {
        self.reader.schema()
    }

    /// Sizes of keys and values.
    #[must_use]
    pub fn record_layout(&self) -> RecordLayout {
        self.reader.record_layout()
    }
}
