// SPDX-License-Identifier: Apache-2.0
//! Open directories: the directories of a server that clients use, by identity.
//!
//! A client names a directory by its identity. The server knows the path to it only while it has
//! the directory open; after that the client opens the path again. The number of open directories
//! is bounded for any behaviour of clients.

use esker_fs::inode::DirId;
use esker_fs::stack::dir::Dir;
use quick_cache::sync::Cache;

/// Maximum number of directories that are kept open for a connection, some 300 bytes each.
const DIRECTORIES_MAX: usize = 1 << 14;

/// Directories that clients may name by identity.
#[derive(Debug)]
pub(super) struct OpenDirectories {
    root: Dir,
    seat_roots: Dir,
    directories: Cache<DirId, Dir>,
}

impl OpenDirectories {
    /// Only `root` and `seat_roots` are open.
    pub fn new(root: Dir, seat_roots: Dir) -> Self {
        Self { root, seat_roots, directories: Cache::new(DIRECTORIES_MAX) }
    }

    /// Returns the directory `id`, if it is open.
    #[inline]
    pub fn get(&self, id: DirId) -> Option<Dir> {
        match id {
            DirId::ROOT => return Some(self.root.clone()),
            DirId::SEAT_ROOTS => return Some(self.seat_roots.clone()),
            _ => {}
        }
        self.directories.get(&id)
    }

    /// Keeps `dir` open.
    pub fn keep(&self, dir: &Dir) {
        if dir.id() != DirId::ROOT {
            self.directories.insert(dir.id(), dir.clone());
        }
    }
}
