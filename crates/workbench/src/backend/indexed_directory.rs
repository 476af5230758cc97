// SPDX-License-Identifier: Apache-2.0
//! Indexed directory: objects are records of one indexed directory, which all ranks write together.
//!
//! ```text
//! /working-set.json   the marker
//! /objects            the directory: one epoch of records
//! key                 rank, dataset and number of the object, big-endian: 4, 4 and 8 bytes
//! value               the content
//! ```
//! A create hands a record to the writer, which sends it to its partition in batches; the flush
//! ends the epoch and finishes the directory. A read gets the value of a key from the partition's
//! index and data; there is no cheaper way to learn its size, so a stat costs the same. Nothing is
//! cached. The working set is in a session of the library, like that of `esker:`. Concurrency: each
//! rank has a writer, and all share one reader.

use std::ops::RangeInclusive;
use std::sync::Arc;

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_comm::threads::ThreadTransport;
use esker_fs::session::SessionOptions;
use esker_imd::entry;
use esker_imd::{DirectoryWriter, IndexedReader, RecordLayout, SessionDirectory, ValueFormat};
use parking_lot::Mutex;

use super::library_session::LibrarySession;
use super::rank_transports::RankTransports;
use super::{Backend, BackendConnection};
use crate::options::RunOptions;
use crate::pattern::{ObjectId, WorkingSetSize};

const OBJECTS: &[u8] = b"objects";
const DIRECTORY_MODE: u32 = 0o755;

/// Memory of all writers together, as far as the bounds of a single one allow.
const MEMORY_BYTES: u64 = 1 << 30;

/// Bounds of a writer's memory.
const WRITER_MEMORY_BYTES: RangeInclusive<u64> = 16 << 20..=64 << 20;

/// Largest object: a record takes at most a twentieth of its writer's memory.
const RECORD_BYTES_MAX: u64 = 512 << 10;

/// An indexed directory in a session of a store of Esker.
#[derive(Debug)]
pub struct IndexedDirectoryBackend {
    working_set: LibrarySession,
    store: SharedStore,
    random: Mutex<Random>,
    transports: RankTransports,
    /// The directory that this run writes.
    directory: Mutex<Option<SessionDirectory>>,
    /// Opened by the first read.
    reader: Mutex<Option<Arc<IndexedReader>>>,
}

impl IndexedDirectoryBackend {
    /// Begins a session in `store` on the working set `name`, if there is one. `random` numbers the
    /// directory.
    ///
    /// # Errors
    /// As the store answers; `Invalid` for a bad name.
    pub fn open(
        store: SharedStore,
        name: &str,
        options: SessionOptions,
        clock: Arc<dyn Clock>,
        random: Random,
    ) -> Result<Self> {
        let named = (format!("indexed:{name}"), name);
        let working_set = LibrarySession::open(store.clone(), named, options, clock)?;
        let (directory, reader) = (Mutex::default(), Mutex::default());
        let (random, transports) = (Mutex::new(random), RankTransports::default());
        Ok(Self { working_set, store, random, transports, directory, reader })
    }

    /// The directory that this run writes, the same for all ranks.
    fn directory(&self) -> Result<SessionDirectory> {
        let session = self.working_set.session()?;
        let mut directory = self.directory.lock();
        let chosen = || SessionDirectory::new(&session, &mut self.random.lock());
        Ok(*directory.get_or_insert_with(chosen))
    }

    /// The reader of the finished directory.
    fn reader(&self) -> Result<Arc<IndexedReader>> {
        let mut reader = self.reader.lock();
        if let Some(reader) = &*reader {
            return Ok(reader.clone());
        }
        let session = self.working_set.session()?;
        let found = entry::find(session.namespace(), &[b"/", OBJECTS].concat())?;
        let found = found.filter(|found| found.rest.is_empty()).ok_or_else(|| {
            let what = format!("{}: the directory has not been flushed", self.target());
            Error::new(Kind::NotFound, what)
        })?;
        let opened = Arc::new(found.open(&self.store, 0)?);
        *reader = Some(opened.clone());
        Ok(opened)
    }
}

impl Backend for IndexedDirectoryBackend {
    fn target(&self) -> String {
        self.working_set.target().to_owned()
    }

    fn kind(&self) -> &'static str {
        "indexed-directory"
    }

    fn connect(&self, rank: u32, size: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        let object_bytes = u32::try_from(size.object_bytes).unwrap_or(u32::MAX);
        let (ranks, writer, reader) = (size.ranks, None, None);
        Ok(Box::new(IndexedConnection {
            backend: self,
            rank,
            ranks,
            object_bytes,
            is_added: false,
            writer,
            reader,
        }))
    }

    fn check(&self, options: &RunOptions) -> Result<()> {
        if options.size.object_bytes <= RECORD_BYTES_MAX {
            return Ok(());
        }
        let what = format!("{}: records have at most 512 KiB: use a smaller -S", self.target());
        Err(Error::new(Kind::Unsupported, what))
    }

    fn serves_processes(&self) -> bool {
        false
    }

    fn is_write_once(&self) -> bool {
        true
    }

    fn drop_caches(&self) -> Result<()> {
        self.working_set.drop_caches()
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.working_set.read_marker()
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        self.working_set.write_marker(marker)
    }

    fn clear(&self) -> Result<u64> {
        let session = self.working_set.to_clear()?;
        let objects = match self.reader() {
            Ok(reader) => {
                let objects = reader.totals().rows;
                session.unlink(session.root(), OBJECTS)?;
                objects
            }
            Err(error) if error.kind() == Kind::NotFound => 0,
            Err(error) => return Err(error),
        };
        *self.reader.lock() = None;
        self.working_set.remove_marker()?;
        Ok(objects)
    }

    fn finish(&self, keep: bool) -> Result<()> {
        self.working_set.finish(keep)
    }
}

struct IndexedConnection<'a> {
    backend: &'a IndexedDirectoryBackend,
    rank: u32,
    ranks: u32,
    object_bytes: u32,
    /// True once the rank was added: a rank writes one directory.
    is_added: bool,
    /// Exists from [`BackendConnection::add_rank`] to the flush.
    writer: Option<DirectoryWriter<ThreadTransport>>,
    /// Set by the first read.
    reader: Option<Arc<IndexedReader>>,
}

fn key_of(object: ObjectId) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&object.dataset.rank.to_be_bytes());
    key[4..8].copy_from_slice(&object.dataset.number.to_be_bytes());
    key[8..].copy_from_slice(&object.number.to_be_bytes());
    key
}

impl IndexedConnection<'_> {
    /// Passes the content of `object` to `take`.
    fn get<T>(&mut self, object: ObjectId, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let reader = match &self.reader {
            Some(reader) => reader,
            None => self.reader.insert(self.backend.reader()?),
        };
        let answer = reader.get(&key_of(object))?;
        match &answer.values[..] {
            [value] => Ok(take(&value.bytes)),
            [] => {
                let what = format!("{}: {object}", self.backend.target());
                Err(Error::new(Kind::NotFound, what))
            }
            values => {
                let what =
                    format!("{}: {object} has {} values", self.backend.target(), values.len());
                Err(Error::new(Kind::Corrupt, what))
            }
        }
    }

    fn not_writing(&self) -> Error {
        let what = "the directory is finished, or the rank has not been added";
        Error::new(Kind::Closed, format!("{}: {what}", self.backend.target()))
    }
}

impl BackendConnection for IndexedConnection<'_> {
    fn add_rank(&mut self, _: u32) -> Result<()> {
        if std::mem::replace(&mut self.is_added, true) {
            return Ok(());
        }
        let transport = self.backend.transports.take(self.rank, self.ranks)?;
        let directory = self.backend.directory()?;
        let layout = RecordLayout::Fixed { key_bytes: 16, value_bytes: self.object_bytes };
        let mut options = directory.options(ValueFormat::Base, layout);
        let (least, most) = WRITER_MEMORY_BYTES.into_inner();
        options.memory_bytes = (MEMORY_BYTES / u64::from(self.ranks)).clamp(least, most);
        let store = &self.backend.store;
        let writer = DirectoryWriter::create(store, &directory.prefix(), transport, &options)?;
        self.writer = Some(writer);
        Ok(())
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        match &mut self.writer {
            Some(writer) => writer.append(&key_of(object), content),
            None => Err(self.not_writing()),
        }
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        self.get(object, |content| content.len() as u64)
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        self.get(object, |found| {
            content.clear();
            content.extend_from_slice(found);
        })
    }

    fn flush(&mut self) -> Result<()> {
        let mut writer = self.writer.take().ok_or_else(|| self.not_writing())?;
        writer.epoch_flush()?;
        let (_, transport) = writer.finish_and_return()?;
        transport.finish();
        if self.rank == 0 {
            let session = self.backend.working_set.session()?;
            let path = [b"/", OBJECTS].concat();
            self.backend.directory()?.create(&session, &path, DIRECTORY_MODE)?;
        }
        Ok(())
    }
}
