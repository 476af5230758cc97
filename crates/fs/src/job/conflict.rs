// SPDX-License-Identifier: Apache-2.0
//! Conflicts between changes of a job's parts: their kinds, and the paths at which they are.

use esker_table::manifest::SetId;
use esker_table::schema::KeyBuffer;
use hashbrown::{HashMap, HashSet};

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

/// The conflicts of a job, one for each name.
#[derive(Default)]
pub(super) struct ConflictList {
    all: Vec<PartConflict>,
    /// Index of the conflict at a key.
    at: HashMap<KeyBuffer, usize>,
}

impl ConflictList {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a conflict at `key`; `winner` and `losers` are indices in `parts`. If the name has one,
    /// both become one: the winner is that of the last decision, and all others lose.
    pub(super) fn report(
        &mut self,
        kind: ConflictKind,
        key: &KeyBuffer,
        (winner, losers): (usize, &[usize]),
        parts: &[SetId],
    ) {
        let losers = losers.iter().map(|loser| parts[*loser]);
        if let Some(&at) = self.at.get(key) {
            let known = &mut self.all[at];
            // That the file is another one now says more than why.
            if kind == ConflictKind::SeveralNames {
                known.kind = kind;
            }
            known.winner = parts[winner];
            known.losers.extend(losers);
            return;
        }
        self.at.insert(key.clone(), self.all.len());
        self.all.push(PartConflict {
            kind,
            path: None,
            dir: dir_of(&key.key()),
            name: key.string.clone(),
            winner: parts[winner],
            losers: losers.collect(),
        });
    }

    /// Adds a conflict at `key` in which `loser` lost; if the name has one already, `loser` also lost
    /// that, and its winner stays.
    pub(super) fn report_loser(
        &mut self,
        kind: ConflictKind,
        key: &KeyBuffer,
        (winner, loser): (usize, usize),
        parts: &[SetId],
    ) {
        match self.at.get(key) {
            Some(&at) => self.all[at].losers.push(parts[loser]),
            None => self.report(kind, key, (winner, &[loser]), parts),
        }
    }

    /// Adds the directories that parts moved and to which no path leads in `tree`, that of the
    /// job's set; and paths to all.
    pub(super) fn add_paths(&mut self, found: &PartFindings, tree: &DirTree, parts: &[SetId]) {
        for moved in found.moved_dirs() {
            if !tree.is_live(moved.inode.dir_id()) {
                let both = (moved.part, moved.part);
                self.report_loser(ConflictKind::Unreachable, &moved.key, both, parts);
            }
        }
        for conflict in &mut self.all {
            if conflict.dir != DirId::LINKS && tree.is_live(conflict.dir) {
                conflict.path = tree.path(conflict.dir, &conflict.name);
            }
        }
    }

    /// Returns the conflicts, with each loser once.
    pub(super) fn into_vec(mut self) -> Vec<PartConflict> {
        for conflict in &mut self.all {
            let mut seen: HashSet<SetId> = HashSet::from([conflict.winner]);
            conflict.losers.retain(|loser| seen.insert(*loser));
        }
        self.all
    }
}
