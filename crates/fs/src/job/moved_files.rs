// SPDX-License-Identifier: Apache-2.0
//! Moved files: directories that parts moved, and files of bases that parts have at some name.

use hashbrown::{HashMap, HashSet};

use super::find::PartFindings;
use super::same_file::InheritedFile;
use crate::inode::DirId;
use crate::stack::layers::dir_of;

/// Moved directories and files, by identity.
#[derive(Debug, Default)]
pub(super) struct MovedFiles {
    dirs: HashMap<u128, Vec<usize>>,
    /// Files of bases of which a part has a name or a record.
    files: HashSet<(usize, u128)>,
}

impl MovedFiles {
    pub(super) fn of(found: &PartFindings) -> Self {
        let mut moved = Self::default();
        for own in &found.moved {
            moved.dirs.entry(own.inode.id).or_default().push(own.part);
        }
        let is_name = |own: &&InheritedFile| own.is_seen && dir_of(&own.key.key()) != DirId::LINKS;
        let inherited = found.inherited.iter().filter(is_name);
        moved.files.extend(inherited.map(|own| (own.part, own.file)));
        moved.files.extend(found.links.iter().map(|(part, _, file)| (*part, *file)));
        moved
    }

    /// True if `part` moved the directory `id`.
    pub(super) fn has(&self, part: usize, id: u128) -> bool {
        self.dirs.get(&id).is_some_and(|parts| parts.contains(&part))
    }

    /// Returns the first part that moved the directory `id`.
    pub(super) fn mover(&self, id: u128) -> Option<usize> {
        self.dirs.get(&id)?.iter().min().copied()
    }

    /// True if `part` has the file `id` of a base at some name that it shows.
    pub(super) fn has_file(&self, part: usize, id: u128) -> bool {
        self.files.contains(&(part, id))
    }
}
