// SPDX-License-Identifier: Apache-2.0
//! Snapshot reference: names a snapshot to open or to build on.

use esker_base::Result;
use esker_fs::names::PublishedName;
use esker_fs::repository::Repository as SetRepository;
use esker_table::manifest::SetId;

/// A snapshot, by its published name or by the id of its change set.
///
/// Text that begins with `@` is an id, as in the `esker` command; any other text is a name. A name
/// may be given to another snapshot at any time, an id always means the same one: the ranks of a
/// job resolve a name once and pass the id on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRef {
    /// A published name.
    Name(String),
    /// The id of a change set.
    Set(SetId),
}

impl SnapshotRef {
    pub(crate) fn resolve(&self, repository: &SetRepository) -> Result<SetId> {
        match self {
            Self::Set(set) => Ok(*set),
            Self::Name(name) => match name.strip_prefix('@') {
                Some(id) => id.parse(),
                None => repository.resolve(name).map(|named| named.set),
            },
        }
    }
}

impl From<&str> for SnapshotRef {
    fn from(text: &str) -> Self {
        Self::Name(text.into())
    }
}

impl From<String> for SnapshotRef {
    fn from(text: String) -> Self {
        Self::Name(text)
    }
}

impl From<&String> for SnapshotRef {
    fn from(text: &String) -> Self {
        Self::Name(text.clone())
    }
}

impl From<SetId> for SnapshotRef {
    fn from(set: SetId) -> Self {
        Self::Set(set)
    }
}

impl From<&PublishedName> for SnapshotRef {
    fn from(named: &PublishedName) -> Self {
        Self::Set(named.set)
    }
}
