// SPDX-License-Identifier: Apache-2.0
//! Predicate: a search condition.

use std::ops::RangeInclusive;

use crate::inode::FileKind;
use crate::traversal::glob::Glob;
use crate::traversal::walk::VisitedEntry;

/// A condition on one entry.
#[derive(Clone, Debug)]
pub enum Predicate {
    /// The last component of its path matches.
    Name(Glob),
    /// Its path from the root matches.
    Path(Glob),
    /// It has one of these kinds.
    Kind(Vec<FileKind>),
    /// Its size in bytes is in the range.
    Size(RangeInclusive<u64>),
    /// Its modification time is in the range of timestamps.
    Modified(RangeInclusive<i64>),
    /// It has this owner.
    Owner(u32),
    /// It has this group.
    Group(u32),
}

impl Predicate {
    /// True if the entry of `visit` meets the condition. Cost: no store request.
    #[must_use]
    pub fn holds(&self, visit: &VisitedEntry) -> bool {
        let inode = visit.inode;
        match self {
            Self::Name(glob) => glob.matches(visit.name()),
            Self::Path(glob) => glob.matches(visit.path),
            Self::Kind(kinds) => inode.kind().is_some_and(|kind| kinds.contains(&kind)),
            Self::Size(range) => range.contains(&inode.size),
            Self::Modified(range) => range.contains(&inode.mtime_ns),
            Self::Owner(uid) => inode.uid == *uid,
            Self::Group(gid) => inode.gid == *gid,
        }
    }
}
