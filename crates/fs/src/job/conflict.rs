// SPDX-License-Identifier: Apache-2.0
//! Conflicts between changes of a job's parts: their kinds, and the paths at which they are.

use esker_table::manifest::SetId;
use esker_table::schema::KeyBuffer;

use super::find::PartFindings;
use crate::inode::DirId;
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::dir_of;

/// Kind of a conflict between changes of several parts to one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// They made different files or directories at the name, or replaced it differently.
    SameName,
    /// They changed the same file or directory in different ways.
    SameFile,
    /// One removed what another changed.
    Removed,
    /// One moved the directory that another changed; it is at its new place with the entries of
    /// both.
    Moved,
    /// They moved the directory to different places; it is at one of them.
    MovedTwice,
    /// They left one file of a base at several names; at this name it is now a separate file.
    SeveralNames,
    /// They moved directories into each other, or into one that another removed: no path leads
    /// there.
    Unreachable,
}

/// A name with conflicting changes, and how the conflict was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartConflict {
    /// The kind of the conflict.
    pub kind: ConflictKind,
    /// The path, if one leads to the directory that contains the name.
    pub path: Option<Vec<u8>>,
    /// The directory that contains the name.
    pub dir: DirId,
    /// The name; the file id for a file with several names.
    pub name: Vec<u8>,
    /// The part whose change is shown.
    pub winner: SetId,
    /// The parts whose changes of the name are not shown.
    pub losers: Vec<SetId>,
}

impl PartConflict {
    /// Returns the conflict at `key`, without its path. `winner` and `losers` are indices in
    /// `parts`.
    pub(super) fn at(
        key: &KeyBuffer,
        kind: ConflictKind,
        winner: usize,
        losers: &[usize],
        parts: &[SetId],
    ) -> Self {
        Self {
            kind,
            path: None,
            dir: dir_of(&key.key()),
            name: key.string.clone(),
            winner: parts[winner],
            losers: losers.iter().map(|loser| parts[*loser]).collect(),
        }
    }
}

/// Adds to `conflicts` the directories that parts moved and to which no path leads in `tree`, that
/// of the job's set; and paths to all.
pub(super) fn complete_conflicts(
    conflicts: &mut Vec<PartConflict>,
    found: &PartFindings,
    tree: &DirTree,
    parts: &[SetId],
) {
    let lost = found.moved_dirs().into_iter().filter(|moved| !tree.is_live(moved.inode.dir_id()));
    conflicts.extend(lost.map(|moved| {
        PartConflict::at(&moved.key, ConflictKind::Unreachable, moved.part, &[], parts)
    }));
    for conflict in conflicts {
        if conflict.dir != DirId::LINKS && tree.is_live(conflict.dir) {
            conflict.path = tree.path(conflict.dir, &conflict.name);
        }
    }
}
