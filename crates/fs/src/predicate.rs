//! Predicate: what a search asks of an entry.

use std::ops::RangeInclusive;

use crate::glob::Glob;
use crate::inode::FileKind;
use crate::walk::Visit;

/// A condition on one entry.
#[derive(Clone, Debug)]
pub enum Predicate {
    /// The last component of its path fits.
    Name(Glob),
    /// Its path from the root on fits.
    Path(Glob),
    /// It is of one of these kinds.
    Kind(Vec<FileKind>),
    /// Its size in bytes is in the range.
    Size(RangeInclusive<u64>),
    /// It was last modified in the range of timestamps.
    Modified(RangeInclusive<i64>),
    /// Its owner.
    Owner(u32),
    /// Its group.
    Group(u32),
}

impl Predicate {
    /// Whether the entry of `visit` meets the condition. No store request.
    #[must_use]
    pub fn holds(&self, visit: &Visit) -> bool {
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
