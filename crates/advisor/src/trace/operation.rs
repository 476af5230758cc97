// SPDX-License-Identifier: Apache-2.0
//! Operation: the kind of a traced call. Invariant: numbers and names are those of
//! docs/format/advisor-trace.md and never change.

use std::fmt;

/// A kind of call. The number is the byte in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TraceOperation {
    /// Opens a file that must exist.
    Open = 0,
    /// Opens a file and makes it if it is absent.
    Create = 1,
    /// Closes a file.
    Close = 2,
    /// Reads `bytes` at `offset`.
    Read = 3,
    /// Writes `bytes` at `offset`.
    Write = 4,
    /// Moves the position of an open file to `offset`.
    Seek = 5,
    /// Reads the attributes of a file.
    Stat = 6,
    /// Makes a file durable.
    Sync = 7,
    /// Changes the size of a file to `offset`, or allocates `bytes` there.
    Truncate = 8,
    /// Removes a name.
    Unlink = 9,
    /// Makes a directory.
    MakeDirectory = 10,
    /// Removes a directory.
    RemoveDirectory = 11,
    /// Renames the file; the record after it has the new name.
    Rename = 12,
    /// The new name of the [`TraceOperation::Rename`] before it; no call of its own.
    RenameTarget = 13,
    /// Lists a directory.
    List = 14,
    /// Makes a symbolic or a hard link.
    Link = 15,
    /// Changes the attributes of a file.
    SetAttributes = 16,
    /// Waits for all ranks.
    Barrier = 17,
}

impl TraceOperation {
    /// All operations, by number.
    pub const ALL: [Self; 18] = [
        Self::Open,
        Self::Create,
        Self::Close,
        Self::Read,
        Self::Write,
        Self::Seek,
        Self::Stat,
        Self::Sync,
        Self::Truncate,
        Self::Unlink,
        Self::MakeDirectory,
        Self::RemoveDirectory,
        Self::Rename,
        Self::RenameTarget,
        Self::List,
        Self::Link,
        Self::SetAttributes,
        Self::Barrier,
    ];

    /// The operation of a byte in a trace.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The byte in a trace.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The word in pages and in the metadata of a trace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Close => "close",
            Self::Read => "read",
            Self::Write => "write",
            Self::Seek => "seek",
            Self::Stat => "stat",
            Self::Sync => "sync",
            Self::Truncate => "truncate",
            Self::Unlink => "unlink",
            Self::MakeDirectory => "mkdir",
            Self::RemoveDirectory => "rmdir",
            Self::Rename => "rename",
            Self::RenameTarget => "rename-target",
            Self::List => "list",
            Self::Link => "link",
            Self::SetAttributes => "set-attributes",
            Self::Barrier => "barrier",
        }
    }

    /// True if the call moves bytes of a file.
    #[must_use]
    pub const fn is_transfer(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// True for the metadata operations of the paper's Table 1: open, close and create.
    #[must_use]
    pub const fn is_open_close(self) -> bool {
        matches!(self, Self::Open | Self::Create | Self::Close)
    }
}

impl fmt::Display for TraceOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (index, operation) in TraceOperation::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(operation.number()), index);
            assert_eq!(TraceOperation::of_number(operation.number()), Some(operation));
        }
        let names: BTreeSet<_> = TraceOperation::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), TraceOperation::ALL.len());
        assert_eq!(TraceOperation::of_number(18), None);
    }
}
