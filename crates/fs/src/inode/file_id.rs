// SPDX-License-Identifier: Apache-2.0
//! Identities of directories and files: unique to their creation, and kept when they are renamed.
//!
//! Layout: docs/format/inode.md. Digests are BLAKE3's first 128 bits.
//! Source: DESIGN §4.

use std::fmt;

use esker_table::manifest::SetId;

/// Identity of a directory: the first 128 bits of `BLAKE3(parent ‖ generation ‖ name)` of the place
/// where it was made; 0 for the root. It does not change when the directory is renamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirId(pub u128);

impl DirId {
    /// The root directory.
    pub const ROOT: Self = Self(0);
    /// Directory of inodes with several names, by file id. It cannot be listed.
    pub const LINKS: Self = Self(u128::MAX);
    /// Directory of the records of clients' requests (`request_record.rs`). No path leads to it.
    pub const REQUESTS: Self = Self(u128::MAX - 1);
    /// Directory of the directories that were adopted from other sets and have no name yet, by set
    /// (`ops/bulk_insert.rs`). No path leads to it.
    pub const ADOPTED: Self = Self(u128::MAX - 2);

    /// Returns the identity of a directory made in `parent` at `name`, which was a directory
    /// `generation` times before.
    #[must_use]
    pub fn child(parent: Self, generation: u64, name: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&parent.0.to_le_bytes());
        hasher.update(&generation.to_le_bytes());
        hasher.update(name);
        let digest = hasher.finalize();
        let first = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
        Self(u128::from_le_bytes(*first))
    }
}

impl fmt::Display for DirId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Identity of a file: the set that made it (high half) and the operation that did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u128);

impl FileId {
    /// Returns the identity of the file that operation `seq` of `set` makes.
    #[must_use]
    pub fn new(set: SetId, seq: u64) -> Self {
        Self((set.0 >> 64) << 64 | u128::from(seq))
    }

    /// Returns the identity under which a stack shows the file that the branch `set` has as `self`
    /// (`lineage.rs`): other branches may have the same file at other names, as a different file. A
    /// file that the branch itself made keeps its identity, which no other branch shows.
    #[must_use]
    pub fn of_branch(self, set: SetId) -> Self {
        if self.is_of(set) {
            return self;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0.to_le_bytes());
        hasher.update(&set.0.to_le_bytes());
        let digest = hasher.finalize();
        let first = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
        Self(u128::from_le_bytes(*first))
    }

    /// True if `set` made the file.
    #[must_use]
    pub fn is_of(self, set: SetId) -> bool {
        self.0 >> 64 == set.0 >> 64
    }

    /// Returns a 64-bit inode number for interfaces limited to that size. Numbers may collide, as
    /// any such digest of a larger identity may.
    #[must_use]
    pub fn number(self) -> u64 {
        esker_table::schema::mix((self.0 >> 64) as u64) ^ self.0 as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_ids_depend_on_parent_generation_and_name() {
        let a = DirId::child(DirId::ROOT, 0, b"a");
        assert_eq!(a, DirId::child(DirId::ROOT, 0, b"a"));
        assert_ne!(a, DirId::child(DirId::ROOT, 1, b"a"));
        assert_ne!(a, DirId::child(a, 0, b"a"));
    }
}
