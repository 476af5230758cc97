// SPDX-License-Identifier: Apache-2.0
//! Manifest: lists everything that a change set consists of. Manifests are numbered snapshots; the
//! highest number rules.
//!
//! Layout: docs/format/manifest.md; `encoding.rs` is its encoder and decoder.
//! Invariants: (1) `put_if_absent` of the next number is the only commit; (2) epochs never
//! decrease; (3) within one run, tables' key ranges ascend and do not overlap.
//! Source: DeltaFS thesis §4.3 (manifest objects); DESIGN §1.3 (references carry key ranges).

mod commit;
pub(crate) mod encoding;
mod job;
mod referenced_logs;
mod set_id;
mod table_ref;

use std::collections::BTreeMap;
use std::fmt;

use esker_base::store::Store;
use esker_base::{Error, Kind, Result};

pub use encoding::{decode_manifest, encode_manifest};
pub use job::JobMembership;
pub use referenced_logs::{LogNumbers, ReferencedLogs};
pub use set_id::SetId;
pub use table_ref::TableRef;

use crate::block::BLOCK_ROWS_MAX;
use crate::object_name::{ObjectFolder, ObjectName};
use crate::set_writer::SetWriter;
use crate::table::TABLE_DATA_BYTES_MAX;

/// Maximum size of a manifest; readers refuse larger ones.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of entries of each kind that a manifest lists: bases, tables, properties and so
/// on.
const ENTRIES_MAX: usize = 1 << 22;
/// Maximum bytes of a property's name, and of its value.
const PROPERTY_BYTES_MAX: usize = 1 << 16;
/// Highest epoch. Numbers are bounded so that no sum of them overflows, and an epoch is the high
/// half of the numbers of logs and tables.
pub const EPOCH_MAX: u64 = (1 << 30) - 1;
/// Highest number of manifests, operations, logs, tables and runs, bounded as [`EPOCH_MAX`] is.
pub const NUMBER_MAX: u64 = u64::MAX >> 2;
/// Maximum records of a table, far more than its bytes can hold.
const ROWS_MAX: u64 = TABLE_DATA_BYTES_MAX * BLOCK_ROWS_MAX as u64;
const _: () = assert!(u64::MAX / ROWS_MAX > ENTRIES_MAX as u64);
const _: () = assert!((EPOCH_MAX << 32) | u32::MAX as u64 == NUMBER_MAX);

/// The state of a change set: the operations that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SetState {
    /// A writer owns it, or left it behind when it died.
    Open = 0,
    /// Complete: it takes no more changes, and other sets may build on it.
    Sealed = 1,
    /// It was open, and a collection deletes it unless somebody holds it.
    CondemnedOpen = 2,
    /// It was sealed, and a collection deletes it unless somebody holds it.
    CondemnedSealed = 3,
    /// A collection deletes it.
    Doomed = 4,
    /// A collection has deleted its tables; only data logs to which other sets refer are left.
    DataOnly = 5,
}

/// The words that commands print. To a user, a sealed set is one that can be published or is.
impl fmt::Display for SetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Sealed => "published",
            Self::CondemnedOpen => "condemnedopen",
            Self::CondemnedSealed => "condemnedpublished",
            Self::Doomed => "doomed",
            Self::DataOnly => "dataonly",
        })
    }
}

/// One snapshot of a change set: its state, its tables and the sets that it builds on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its number among the set's manifests.
    pub number: u64,
    /// Rises with every writer that takes over.
    pub epoch: u64,
    /// The operations that the set allows.
    pub state: SetState,
    /// When the set was begun, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// When this snapshot was written.
    pub written_ns: u64,
    /// Highest sequence number that tables hold; the logs continue from there.
    pub last_seq: u64,
    /// Logs with lower numbers are no longer needed.
    pub log_floor: u64,
    /// Sets on which this one builds, in order of precedence.
    pub bases: Vec<SetId>,
    /// Its tables, newest run first, each run in key order.
    pub tables: Vec<TableRef>,
    /// Objects of this set that no snapshot from this one on needs; kept for readers of older
    /// snapshots until they are collected.
    pub obsolete: Vec<u64>,
    /// Sets whose data logs its records refer to, or may refer to once tables of theirs that it
    /// shows are merged, although it does not build on them; ascending.
    pub data_sets: Vec<SetId>,
    /// Data logs of other sets to which its records refer, in order of the sets. The set needs
    /// nothing else of those sets.
    pub referenced_logs: Vec<ReferencedLogs>,
    /// Sets that were merged into this one by a squash, and those that were merged into them. The
    /// set needs none of them; they tell which snapshots it contains.
    pub merged_sets: Vec<SetId>,
    /// The job to which the set belongs.
    pub job: Option<JobMembership>,
    /// True if the set's records may refer to data logs that their writer still writes in place. A
    /// new writer copies such bytes when it takes the set over.
    pub has_unsealed_logs: bool,
    /// True if the session that wrote the set was given up: no process resumes or reopens it, and
    /// the set stays only for as long as names and other sets hold it.
    pub is_given_up: bool,
    /// True if its records identify what they name by identities that no other set has, so that
    /// another set may show its tables as its own.
    pub has_own_identities: bool,
    /// Named texts about the set, for people.
    pub properties: BTreeMap<String, String>,
    /// The process that writes it, or wrote it last.
    pub writer: Option<SetWriter>,
}

impl Manifest {
    /// Makes the first snapshot of a new set.
    #[must_use]
    pub fn new(bases: Vec<SetId>, now_ns: u64) -> Self {
        Self {
            number: 0,
            epoch: 1,
            state: SetState::Open,
            created_ns: now_ns,
            written_ns: now_ns,
            last_seq: 0,
            log_floor: 0,
            bases,
            tables: Vec::new(),
            obsolete: Vec::new(),
            data_sets: Vec::new(),
            referenced_logs: Vec::new(),
            merged_sets: Vec::new(),
            job: None,
            has_unsealed_logs: false,
            is_given_up: false,
            has_own_identities: false,
            properties: BTreeMap::new(),
            writer: None,
        }
    }

    fn object(set: SetId, number: u64) -> String {
        ObjectName::Manifest(set, number).to_string()
    }

    /// Fails with the bound that readers expect if an entry or a list is too large.
    pub(crate) fn check_bounds(&self) -> Result<(), &'static str> {
        let Self { bases, tables, obsolete, data_sets, merged_sets, properties, .. } = self;
        let sets = [bases.len(), data_sets.len(), merged_sets.len()];
        let others = [tables.len(), obsolete.len(), properties.len()];
        let numbers = [self.number, self.last_seq, self.log_floor];
        if sets.into_iter().chain(others).any(|count| count > ENTRIES_MAX) {
            return Err("at most 4,194,304 bases, tables, sets and properties each");
        }
        if properties.iter().any(|(name, value)| name.len().max(value.len()) > PROPERTY_BYTES_MAX) {
            return Err("names and values of properties of at most 64 KiB each");
        }
        if !self.writer.iter().all(SetWriter::is_within_bounds) {
            return Err("texts about the writer of at most 1 KiB each");
        }
        if self.epoch > EPOCH_MAX || numbers.into_iter().any(|number| number > NUMBER_MAX) {
            return Err("numbers that leave room for later ones");
        }
        if !tables.iter().all(TableRef::is_within_bounds) {
            return Err("tables within bounds");
        }
        referenced_logs::check_bounds(&self.referenced_logs)
    }

    /// Fails with the order that readers expect if entries are out of order.
    pub(crate) fn check_order(&self) -> Result<(), &'static str> {
        let ascend = self.tables.windows(2).all(|pair| {
            pair[0].run > pair[1].run
                || (pair[0].run == pair[1].run && pair[0].last.key() < pair[1].first.key())
        });
        if !ascend || self.tables.iter().any(|table| table.first.key() > table.last.key()) {
            return Err("tables in order of runs and keys");
        }
        if !self.data_sets.is_sorted_by(|a, b| a < b) {
            return Err("sets of data in order");
        }
        referenced_logs::check_order(&self.referenced_logs)
    }

    /// Returns the numbers of the manifests of `set`. One store request, a listing.
    fn numbers(store: &dyn Store, set: SetId) -> Result<Vec<u64>> {
        let folder = ObjectFolder::Manifests(set).to_string();
        let names = store.list_names(&folder)?;
        let number = |name: &String| match format!("{folder}{name}").parse() {
            Ok(ObjectName::Manifest(_, number)) => Some(number),
            _ => None,
        };
        Ok(names.iter().filter_map(number).collect())
    }

    /// Returns the highest number of the manifests of `set`. One store request, a listing.
    ///
    /// # Errors
    /// `NotFound` if the set has none, and errors of the store.
    pub fn newest_number(store: &dyn Store, set: SetId) -> Result<u64> {
        Self::numbers(store, set)?
            .into_iter()
            .max()
            .ok_or_else(|| Error::new(Kind::NotFound, format!("no change set {set} in the store")))
    }

    /// Loads the newest manifest of `set`. Two store requests: a listing and a read.
    ///
    /// # Errors
    /// `NotFound` if the set has none, `Corrupt`, and errors of the store.
    pub fn load(store: &dyn Store, set: SetId) -> Result<Self> {
        // A newer manifest may replace the listed one before we read it; then we list again.
        for _ in 0..8 {
            match Self::load_number(store, set, Self::newest_number(store, set)?) {
                Err(error) if error.kind() == Kind::NotFound => {}
                loaded => return loaded,
            }
        }
        Err(Error::new(Kind::Conflict, format!("the manifests of {set} keep changing; try again")))
    }

    /// Loads manifest `number` of `set`.
    pub fn load_number(store: &dyn Store, set: SetId, number: u64) -> Result<Self> {
        let name = Self::object(set, number);
        let bytes = store.get(&name, MANIFEST_BYTES_MAX)?;
        let manifest = decode_manifest(&bytes).map_err(|damage| damage.of(&name, 0))?;
        if manifest.number != number {
            return Err(Error::corrupt(&name, 0, format!("holds manifest {}", manifest.number)));
        }
        Ok(manifest)
    }
}
