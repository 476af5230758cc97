// SPDX-License-Identifier: Apache-2.0
//! Session directory: an indexed directory that is written in a session's change set and then gets
//! a path in the session's tree.
//!
//! ```text
//! new → all ranks write below `prefix` (Imd) → finish → create, or append
//! adopt → the same for logs that were written elsewhere in the store
//! ```

use esker_base::store::{SharedStore, put_own};
use esker_base::{Error, Kind, Random, Result};
use esker_fs::inode::Inode;
use esker_fs::inode::indexed;
use esker_fs::session::Session;
use esker_table::manifest::SetId;

use crate::directory::{DirectoryIndex, PartitionTotals, ROOT_BYTES_MAX};
use crate::import::DumpLayout;
use crate::indexed_reader::IndexedReader;
use crate::names;
use crate::reader::DirectoryReader;
use crate::record_layout::{RecordLayout, ValueFormat};
use crate::schema::DirectorySchema;
use crate::write::DirectoryOptions;

/// Identity of an indexed directory within a session's change set.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use esker_base::Random;
/// use esker_base::store::{MemoryStore, SharedStore};
/// use esker_comm::threads;
/// use esker_fs::stack::identity::Identity;
/// use esker_fs::repository::Repository;
/// use esker_fs::session::SessionOptions;
/// use esker_imd::{DirectoryWriter, RecordLayout, SessionDirectory, ValueFormat, entry};
///
/// let store: SharedStore = Arc::new(MemoryStore::new());
/// let repository = Repository::new(store.clone());
/// let session = repository.begin(&[], SessionOptions::default())?;
/// let place = SessionDirectory::new(&session, &mut Random::from_system());
/// let layout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 4 };
/// let mut options = place.options(ValueFormat::Base, layout);
/// options.memory_bytes = 4 << 20;
/// threads::run(2, 2, |transport| {
///     let mut directory = DirectoryWriter::create(&store, &place.prefix(), transport, &options)?;
///     directory.append(b"particle", b"here")?;
///     directory.epoch_flush_at(500)?;
///     directory.finish()
/// })?;
/// place.create(&session, b"/particles", 0o755)?;
/// let set = session.publish("run")?;
///
/// let view = repository.open(&[set], Identity::of_process())?;
/// let found = entry::find(&view, b"/particles")?.expect("an indexed directory");
/// let reader = found.open(&store, 0)?;
/// assert_eq!(reader.get(b"particle")?.values.len(), 2);
/// assert_eq!(reader.steps()?, [500]);
/// # Ok::<(), esker_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionDirectory {
    /// The session's change set.
    pub set: SetId,
    /// Number of the directory, unique within the set.
    pub number: u64,
}

impl SessionDirectory {
    /// Chooses a new directory in the set of `session`.
    pub fn new(session: &Session, random: &mut Random) -> Self {
        Self { set: session.set(), number: random.next_u64() }
    }

    /// Prefix of its object names.
    #[must_use]
    pub fn prefix(&self) -> String {
        indexed::prefix(self.set, self.number)
    }

    /// Options for writing it: its id, `format` and `layout`.
    #[must_use]
    pub fn options(&self, format: ValueFormat, layout: RecordLayout) -> DirectoryOptions {
        DirectoryOptions::new(u128::from(self.number) | self.set.0 << 64, format, layout)
    }

    /// Links the finished directory into the session's tree at `path`.
    ///
    /// Once it returns, the entry survives as the session's durability promises.
    ///
    /// # Errors
    /// `NotFound` unless it is finished; as [`Session::create_indexed`].
    pub fn create(&self, session: &Session, path: &[u8], mode: u32) -> Result<Inode> {
        let bytes = self.bytes(store_of(session))?;
        let (dir, name) = session.namespace().locate(path)?;
        session.create_indexed(&dir, name, mode, self.number, bytes)
    }

    /// Appends the epochs of this finished directory to those of the indexed directory at `path` of
    /// `session`.
    ///
    /// Once it returns, they survive as the session's durability promises.
    ///
    /// # Errors
    /// `Invalid` if its records differ in kind from those at `path`, or its first step is not after
    /// the last one there; as [`Session::append_indexed`].
    pub fn append(&self, session: &Session, path: &[u8]) -> Result<Inode> {
        let store = store_of(session);
        let reader = DirectoryReader::open(store, &self.prefix(), 0)?;
        let base = AppendBase::of(session, path)?;
        base.check(reader.head().layout, reader.schema(), reader.steps()?.first().copied())?;
        let (dir, name) = session.namespace().locate(path)?;
        session.append_indexed(&dir, name, self.number, self.bytes(store)?)
    }

    /// Copies the finished directory below `prefix` of the session's store, which belongs to no
    /// namespace, so that it can be [linked](Self::create). The original stays. Returns the number
    /// of bytes copied, which survive power loss. Cost: one read and one append of all of them.
    ///
    /// # Errors
    /// `NotFound` if there is no finished directory; `Corrupt` if a log is shorter than when the
    /// directory was finished; those of the store.
    pub fn adopt(&self, session: &Session, prefix: &str) -> Result<u64> {
        let store = store_of(session);
        let (from, to) = (names::root(prefix), names::root(&self.prefix()));
        let root = store.get(&from, ROOT_BYTES_MAX).map_err(|error| match error.kind() {
            Kind::NotFound => {
                let what =
                    "no finished indexed directory is there: its ranks did not all call finish";
                Error::new(Kind::NotFound, format!("{prefix}: {what}"))
            }
            _ => error,
        })?;
        let directory = DirectoryIndex::decode(&root, &from)?;
        let mut copied = root.len() as u64;
        for (partition, totals) in (0..).zip(&directory.partitions) {
            let from = totals.logs(prefix, directory.head.format, partition);
            let to = totals.logs(&self.prefix(), directory.head.format, partition);
            for ((from, bytes), (to, _)) in from.iter().zip(&to) {
                if store.size(from)? < *bytes {
                    let what = format!("a log that had {bytes} bytes and has fewer");
                    return Err(Error::corrupt(from, *bytes, what));
                }
                indexed::copy_log(store, from, to, *bytes)?;
                copied += bytes;
            }
        }
        put_own(&**store, &to, &root)?;
        Ok(copied)
    }

    /// Bytes of all its logs.
    fn bytes(&self, store: &SharedStore) -> Result<u64> {
        let name = names::root(&self.prefix());
        let directory = DirectoryIndex::decode(&store.get(&name, ROOT_BYTES_MAX)?, &name)?;
        let mut all = PartitionTotals::default();
        directory.partitions.iter().for_each(|totals| all.add(totals));
        Ok(all.bytes())
    }
}

/// The directory that an append extends.
#[derive(Clone, Debug)]
pub struct AppendBase {
    layout: RecordLayout,
    schema: DirectorySchema,
    last_step: Option<u64>,
    epochs: u32,
}

impl AppendBase {
    /// Reads the directory at `path` of `session`.
    ///
    /// # Errors
    /// `NotADirectory` if it is not an indexed directory; as [`IndexedReader::open`].
    pub fn of(session: &Session, path: &[u8]) -> Result<Self> {
        let found =
            crate::entry::find(session.namespace(), path)?.filter(|found| found.rest.is_empty());
        let Some(entry) = found else {
            session.namespace().stat(path, esker_fs::stack::namespace::FollowLinks::Yes)?;
            let path = String::from_utf8_lossy(path).into_owned();
            return Err(Error::new(Kind::NotADirectory, format!("{path}: no indexed directory")));
        };
        let reader: IndexedReader = entry.open(store_of(session), 0)?;
        let (layout, schema) = (reader.record_layout(), reader.schema().clone());
        let (last_step, epochs) = (reader.steps()?.last().copied(), reader.epochs_complete()?);
        Ok(Self { layout, schema, last_step, epochs })
    }

    /// Number of epochs.
    #[must_use]
    pub const fn epochs(&self) -> u32 {
        self.epochs
    }

    /// The step after its last, or 0.
    #[must_use]
    pub fn next_step(&self) -> u64 {
        self.last_step.map_or(0, |last| last.saturating_add(1))
    }

    /// Gives `layout` the directory's names of key and fields, unless it has fields of its own.
    pub fn complete(&self, layout: &mut DumpLayout) {
        if layout.fields.is_empty() {
            layout.fields.clone_from(&self.schema.fields);
            layout.key_name.clone_from(&self.schema.key_name);
        }
    }

    /// Checks that records of `layout` and `schema`, in epochs from `first_step` on, can be
    /// appended.
    ///
    /// # Errors
    /// `Invalid`, naming the difference.
    pub fn check(
        &self,
        layout: RecordLayout,
        schema: &DirectorySchema,
        first_step: Option<u64>,
    ) -> Result<()> {
        let invalid = |what: String| Err(Error::new(Kind::Invalid, what));
        if layout != self.layout {
            return invalid(format!("records of {layout}, but the directory has {}", self.layout));
        }
        if *schema != self.schema {
            return invalid(format!(
                "keys or fields that differ from the directory's schema: {}",
                self.schema
            ));
        }
        match (first_step, self.last_step) {
            (Some(first), Some(last)) if first <= last => invalid(format!(
                "step {first}, but the directory has epochs up to step {last}: append later ones"
            )),
            _ => Ok(()),
        }
    }
}

fn store_of(session: &Session) -> &SharedStore {
    &session.namespace().layers().source().store
}
