// SPDX-License-Identifier: Apache-2.0
//! Operation: the kinds of calls whose latencies are recorded apart.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of call to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Create a new object with its content.
    Create,
    /// Look up the attributes of an object.
    Stat,
    /// Read the content of an object.
    Read,
    /// Delete an object.
    Delete,
    /// Make a dataset.
    Mkdir,
    /// Remove an empty dataset.
    Rmdir,
    /// List the names in a dataset.
    List,
    /// List the names in a dataset, with attributes.
    ListAttributes,
    /// Rename an object within its dataset.
    Rename,
    /// Create an object that another rank has created first.
    CreateLost,
    /// Make the objects that a rank has created visible to all ranks.
    Flush,
}

impl Operation {
    /// All operations, in the order in which reports show them.
    pub const ALL: [Self; 11] = [
        Self::Create,
        Self::Stat,
        Self::Read,
        Self::Delete,
        Self::Mkdir,
        Self::Rmdir,
        Self::List,
        Self::ListAttributes,
        Self::Rename,
        Self::CreateLost,
        Self::Flush,
    ];

    /// The position in [`Operation::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in results and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Delete => "delete",
            Self::Mkdir => "mkdir",
            Self::Rmdir => "rmdir",
            Self::List => "list",
            Self::ListAttributes => "list-attributes",
            Self::Rename => "rename",
            Self::CreateLost => "create-lost",
            Self::Flush => "flush",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
