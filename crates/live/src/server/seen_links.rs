// SPDX-License-Identifier: Apache-2.0
//! Seen links: the files with several names that a client has seen at one of them.
//!
//! The client may reach such a file by its identity after that name is gone. Identities can be
//! guessed, so the identity of a file that the client has never seen reaches nothing.

use esker_fs::inode::Inode;
use quick_cache::sync::Cache;

/// Maximum number of files that are remembered for a connection.
const SEEN_MAX: usize = 1 << 14;

/// Files with several names that a client has seen at one of them.
#[derive(Debug)]
pub(super) struct SeenLinks(Cache<u128, ()>);

impl SeenLinks {
    /// The client has seen nothing.
    pub fn new() -> Self {
        Self(Cache::new(SEEN_MAX))
    }

    /// Remembers `inode`, which the client may see at a name, if it has further ones.
    #[inline]
    pub fn add(&self, inode: &Inode) {
        if inode.nlink > 1 && !inode.is_directory() {
            self.0.insert(inode.id, ());
        }
    }

    /// True if the client has seen the file `id`.
    pub fn has(&self, id: u128) -> bool {
        self.0.get(&id).is_some()
    }
}
