// SPDX-License-Identifier: Apache-2.0
//! File data in a squash: it stays in its data logs, to which the new set refers, or it is copied
//! into the set's own logs.

use esker_base::Result;
use esker_base::store::SharedStore;
use esker_extent::LogPlace;
use esker_table::manifest::{LogNumbers, ReferencedLogs, SetId};
use hashbrown::HashMap;

use super::copy::DataCopy;
use crate::inode::Extent;
use crate::inode::indexed::{self, IndexedPart};

/// Data logs of other sets to which records refer.
#[derive(Debug, Default)]
pub(super) struct LogReferences {
    by_set: HashMap<SetId, LogNumbers>,
    /// The last one added: neighbours are usually in one log.
    last: Option<(SetId, u64)>,
}

impl LogReferences {
    /// Adds `log` of `set`.
    #[inline]
    pub(super) fn add(&mut self, set: SetId, log: u64) {
        if self.last != Some((set, log)) {
            self.last = Some((set, log));
            self.by_set.entry(set).or_default().insert(log);
        }
    }

    /// Adds all of `other`.
    pub(super) fn extend(&mut self, other: Self) {
        for (set, numbers) in other.by_set {
            self.by_set.entry(set).or_default().extend(&numbers);
        }
    }

    /// Returns all of them, sorted by set.
    pub(super) fn sorted(self) -> Vec<ReferencedLogs> {
        let by_set = self.by_set.into_iter();
        let mut all: Vec<_> =
            by_set.map(|(set, numbers)| ReferencedLogs { set, numbers }).collect();
        all.sort_unstable_by_key(|logs| logs.set);
        all
    }
}

/// A worker's treatment of the file data of the records that it keeps.
pub(super) enum FileData<'a> {
    /// It stays where it is.
    Referenced(LogReferences),
    /// It is copied.
    Copied(DataCopy<'a>),
}

/// Place of the file data of a worker's records.
#[derive(Debug, Default)]
pub(super) struct PlacedData {
    /// Logs of other sets.
    pub(super) references: LogReferences,
    /// Number of bytes copied.
    pub(super) copied_bytes: u64,
}

impl<'a> FileData<'a> {
    /// Copies to logs of `set`, numbered from `first_log`, if `copies`; otherwise keeps references.
    pub(super) fn new(store: &'a SharedStore, set: SetId, first_log: u64, copies: bool) -> Self {
        match copies {
            true => Self::Copied(DataCopy::new(store, set, first_log)),
            false => Self::Referenced(LogReferences::default()),
        }
    }

    /// Returns the place at which the new set has the bytes of `extent`.
    pub(super) fn move_extent(&mut self, extent: Extent) -> Result<Extent> {
        match self {
            Self::Copied(copy) => copy.copy_extent(extent),
            Self::Referenced(references) => {
                references.add(extent.set, extent.log);
                Ok(extent)
            }
        }
    }

    /// Returns the place at which the new set has `part` of an indexed directory.
    pub(super) fn move_part(&mut self, part: IndexedPart) -> Result<IndexedPart> {
        match self {
            Self::Copied(copy) => {
                let (placed, bytes) = indexed::copy(copy.store, &part, copy.set)?;
                copy.copied_bytes += bytes;
                Ok(placed)
            }
            Self::Referenced(references) => {
                references.add(part.set, part.number);
                Ok(part)
            }
        }
    }

    /// Returns the place at which the new set has the `length` bytes at `place`.
    pub(super) fn move_bytes(
        &mut self,
        place: LogPlace,
        length: u64,
        checksum: Option<u32>,
    ) -> Result<LogPlace> {
        match self {
            Self::Copied(copy) => copy.copy_bytes(place, length, checksum),
            Self::Referenced(references) => {
                references.add(place.set, place.log);
                Ok(place)
            }
        }
    }

    /// Finishes copying; everything copied is durable once this returns.
    pub(super) fn finish(self) -> Result<PlacedData> {
        Ok(match self {
            Self::Copied(copy) => {
                PlacedData { copied_bytes: copy.finish()?, ..PlacedData::default() }
            }
            Self::Referenced(references) => PlacedData { references, copied_bytes: 0 },
        })
    }
}
