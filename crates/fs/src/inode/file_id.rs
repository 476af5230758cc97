// SPDX-License-Identifier: Apache-2.0
//! Identities of directories and files: unique to their creation, and kept when they are renamed.
//!
//! Layout: docs/format/inode.md. Digests are BLAKE3's first 128 bits.
//! Source: DESIGN §4.

use std::fmt;

use esker_table::manifest::{Manifest, SetId};

use super::name_hash;

/// Identity of a directory: the first 128 bits of `BLAKE3(parent ‖ generation ‖ name)` of the place
/// where it was made; 0 for the root. It does not change when the directory is renamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirId(pub u128);

/// Begins the identities of directories whose names are spread over several seats.
const SPREAD: u128 = 0x4573_6b65_7253 << SPREAD_SHIFT;
const SPREAD_SHIFT: u32 = 80;

impl DirId {
    /// The root directory.
    pub const ROOT: Self = Self(0);
    /// Directory of inodes with several names, by file id. It cannot be listed.
    pub const LINKS: Self = Self(u128::MAX);
    /// Directory of the records of clients' requests (`request_record.rs`). No path leads to it.
    pub const REQUESTS: Self = Self(u128::MAX - 1);
    /// Directory of the directories that were adopted from other sets and have no name yet, by what
    /// [`identity_root`] returns for the set (`ops/bulk_insert.rs`). No path leads to it.
    pub const ADOPTED: Self = Self(u128::MAX - 2);

    /// Directory of the seat roots: directories whose names are in directories of other seats of a
    /// live namespace, by [`DirId::seat_root_name`] (`ops/seat_root.rs`). No path leads to it.
    pub const SEAT_ROOTS: Self = Self(u128::MAX - 3);

    /// Returns the name of the seat root with this identity in [`DirId::SEAT_ROOTS`].
    #[must_use]
    pub fn seat_root_name(self) -> String {
        self.to_string()
    }

    /// Returns an identity for a directory of a live namespace whose names are spread over `parts`
    /// seats; nobody guesses `random`.
    #[must_use]
    pub fn spread(parts: u16, random: u64) -> Self {
        Self(SPREAD | u128::from(parts) << 64 | u128::from(random))
    }

    /// Returns the number of seats over which the names in the directory are spread, if it is a seat
    /// root: the same number of parts, of which seat K has part K. Other directories may have such an
    /// identity by chance.
    #[must_use]
    pub fn parts(self) -> u16 {
        if self.0 >> SPREAD_SHIFT == SPREAD >> SPREAD_SHIFT {
            ((self.0 >> 64) as u16).max(1)
        } else {
            1
        }
    }

    /// Returns the part of the directory that has `name`: a range of the hashes of names, so listings
    /// of the parts, in order, are in the order of one directory.
    #[must_use]
    pub fn part_of(self, name: &[u8]) -> u16 {
        ((u128::from(name_hash(name)) * u128::from(self.parts())) >> 64) as u16
    }

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

/// Returns the identity that stands for the root's in those of directories made there: the root's
/// own, unless the set has its own identities. Parts of a job that have them share them.
pub(crate) fn identity_root(set: SetId, manifest: &Manifest) -> DirId {
    match (manifest.has_own_identities, manifest.job) {
        (false, _) => DirId::ROOT,
        // No directory has an empty name, so none of another set has this identity.
        (true, Some(membership)) => DirId::child(DirId(membership.job), 0, b""),
        (true, None) => DirId::child(DirId(set.0), 0, b""),
    }
}

impl fmt::Display for DirId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Identity of a file: the set that made it (high half) and the operation that did; or the upper 48
/// bits of the set's id and, with the bit [`HASHED`], a hash of what asked for the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u128);

/// Set in identities that are hashes; numbers of operations are lower.
const HASHED: u128 = 1 << 63;
/// Bits of such identities that do not come from the set.
const HASH_BITS: u32 = 80;

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

    /// Returns the identity of a file of `set` that is known before an operation makes it; no other
    /// file may have the same `hash`.
    #[must_use]
    pub fn hashed(set: SetId, hash: u128) -> Self {
        Self(set.0 >> HASH_BITS << HASH_BITS | hash & ((1 << HASH_BITS) - 1) | HASHED)
    }

    /// True if `set` made the file.
    #[must_use]
    pub fn is_of(self, set: SetId) -> bool {
        let is_hashed = self.0 & HASHED != 0;
        self.0 >> 64 == set.0 >> 64 || (is_hashed && self.0 >> HASH_BITS == set.0 >> HASH_BITS)
    }

    /// Returns a 64-bit inode number for interfaces limited to that size. Numbers may collide, as
    /// any such digest of a larger identity may.
    #[must_use]
    pub fn number(self) -> u64 {
        esker_base::word_hash::mix((self.0 >> 64) as u64) ^ self.0 as u64
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

    #[test]
    fn names_are_spread_evenly_in_the_order_of_a_listing() {
        let dir = DirId::spread(5, u64::MAX);
        assert_eq!((dir.parts(), DirId::spread(0, 1).parts(), DirId::ROOT.parts()), (5, 1, 1));
        assert!(DirId::LINKS.parts() == 1 && DirId::ROOT.part_of(b"a") == 0);
        let names: Vec<String> = (0..10_000).map(|number| format!("file.{number}")).collect();
        let mut counts = [0u32; 5];
        let mut by_hash: Vec<_> = names.iter().map(|name| name_hash(name.as_bytes())).collect();
        names.iter().for_each(|name| counts[usize::from(dir.part_of(name.as_bytes()))] += 1);
        assert!(counts.iter().all(|count| (1800..2200).contains(count)), "{counts:?}");
        by_hash.sort_unstable();
        let first_of = |part: usize| by_hash[counts[..part].iter().sum::<u32>() as usize];
        for name in &names {
            let (part, hash) =
                (usize::from(dir.part_of(name.as_bytes())), name_hash(name.as_bytes()));
            assert!(hash >= first_of(part) && (part == 4 || hash < first_of(part + 1)), "{name}");
        }
    }

    #[test]
    fn files_are_of_the_set_that_made_them() {
        let (set, other) = (SetId(u128::MAX / 3), SetId(u128::MAX / 5));
        for file in [FileId::new(set, 7), FileId::hashed(set, u128::MAX), FileId::hashed(set, 0)] {
            assert!(file.is_of(set) && !file.is_of(other));
            assert_eq!(file.of_branch(set), file);
            assert_ne!(file.of_branch(other), file);
        }
        assert_ne!(FileId::hashed(set, 1), FileId::hashed(set, 1 << 79));
    }
}
