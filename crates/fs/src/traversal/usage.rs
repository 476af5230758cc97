// SPDX-License-Identifier: Apache-2.0
//! Usage: bytes and entries below a path, per directory, every file counted once.

use esker_base::{Error, Result};
use hashbrown::HashSet;

use crate::inode::FileKind;
use crate::stack::namespace::{FollowLinks, Namespace};
use crate::traversal::walk::{VisitedEntry, WalkNext, WalkOrder, WalkStep};

/// Size of a file, or of a directory with everything in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// Bytes of content.
    pub bytes: u64,
    /// Number of names, including its own.
    pub entries: u64,
}

impl TreeUsage {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.entries += other.entries;
    }
}

impl Namespace {
    /// Passes the usage of every entry at and below `start` to `show`, directories after their
    /// entries. A file with several names counts where it is found first. Directories that cannot
    /// be read go to `unreadable`.
    ///
    /// # Errors
    /// As [`Namespace::traverse`].
    pub fn usage(
        &self,
        start: &[u8],
        show: &mut dyn FnMut(&VisitedEntry, TreeUsage) -> Result<()>,
        unreadable: &mut dyn FnMut(&VisitedEntry, Error),
    ) -> Result<()> {
        let mut counted = HashSet::new();
        // One sum for each directory on the current path.
        let mut sums: Vec<TreeUsage> = Vec::new();
        self.traverse(start, FollowLinks::Yes, WalkOrder::Name, &mut |step| {
            match step {
                WalkStep::Entry(visit) if visit.inode.is_directory() => {
                    sums.push(TreeUsage { bytes: 0, entries: 1 });
                }
                WalkStep::Entry(visit) => {
                    let inode = visit.inode;
                    let holds = inode.kind() == Some(FileKind::File);
                    let first = !visit.may_have_other_names || counted.insert(inode.id);
                    let bytes = if holds && first { inode.size } else { 0 };
                    let usage = TreeUsage { bytes, entries: 1 };
                    show(visit, usage)?;
                    if let Some(sum) = sums.last_mut() {
                        sum.add(usage);
                    }
                }
                WalkStep::Left(visit) => {
                    let usage = sums.pop().expect("every directory left was entered");
                    show(visit, usage)?;
                    if let Some(sum) = sums.last_mut() {
                        sum.add(usage);
                    }
                }
                WalkStep::Unreadable(visit, error) => unreadable(visit, error),
            }
            Ok(WalkNext::Into)
        })
    }
}
