//! Usage: bytes and entries below a path, per directory, every file counted once.

use esker_base::{Error, Result};
use hashbrown::HashSet;

use crate::inode::FileKind;
use crate::namespace::{Follow, Namespace};
use crate::walk::{Next, Order, Step, Visit};

/// Size of a file, or of a directory with everything in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of content.
    pub bytes: u64,
    /// Number of names, including its own.
    pub entries: u64,
}

impl Usage {
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
        show: &mut dyn FnMut(&Visit, Usage) -> Result<()>,
        unreadable: &mut dyn FnMut(&Visit, Error),
    ) -> Result<()> {
        let mut counted = HashSet::new();
        // One sum for each directory on the current path.
        let mut sums: Vec<Usage> = Vec::new();
        self.traverse(start, Follow::Yes, Order::Name, &mut |step| {
            match step {
                Step::Entry(visit) if visit.inode.is_directory() => {
                    sums.push(Usage { bytes: 0, entries: 1 });
                }
                Step::Entry(visit) => {
                    let inode = visit.inode;
                    let holds = inode.kind() == Some(FileKind::File);
                    let first = inode.nlink == 1 || counted.insert(inode.id);
                    let bytes = if holds && first { inode.size } else { 0 };
                    let usage = Usage { bytes, entries: 1 };
                    show(visit, usage)?;
                    if let Some(sum) = sums.last_mut() {
                        sum.add(usage);
                    }
                }
                Step::Left(visit) => {
                    let usage = sums.pop().expect("every directory left was entered");
                    show(visit, usage)?;
                    if let Some(sum) = sums.last_mut() {
                        sum.add(usage);
                    }
                }
                Step::Unreadable(visit, error) => unreadable(visit, error),
            }
            Ok(Next::Into)
        })
    }
}
