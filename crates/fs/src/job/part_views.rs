// SPDX-License-Identifier: Apache-2.0
//! Views of parts: which directories a part shows. A part that removed a directory at once has
//! records in it that its writer does not see any more.
//!
//! A directory is looked for from below: at the names under which the part has it and, unless the
//! part has something else there, at the name under which the bases show it.
//! Cost: for each part that is asked for, a scan of its records of directories; once, a scan of the
//! directories of the bases; a look-up for each directory of the bases above the one in question.

use esker_base::Result;
use esker_table::merge::RecordMerge;
use esker_table::schema::{Key, KeyBuffer};
use hashbrown::HashMap;

use super::find::{DIRECTORY, inode_of, is_of_files};
use super::resolve::JobLayers;
use crate::inode::{DirId, INODE, column, key};
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::dir_of;

/// The views of a job's parts.
pub(super) struct PartViews<'a> {
    layers: &'a JobLayers<'a>,
    /// The directories of the bases, once they were needed.
    below: Option<DirTree>,
    /// By part, the directories that contain each directory of which it has a record.
    parents: HashMap<usize, HashMap<DirId, Vec<DirId>>>,
    /// Answers so far.
    known: HashMap<(usize, DirId), bool>,
}

impl<'a> PartViews<'a> {
    pub(super) fn new(layers: &'a JobLayers<'a>) -> Self {
        Self { layers, below: None, parents: HashMap::new(), known: HashMap::new() }
    }

    pub(super) fn layers(&self) -> &'a JobLayers<'a> {
        self.layers
    }

    /// The directories that the bases show.
    pub(super) fn below(&mut self) -> Result<&DirTree> {
        if self.below.is_none() {
            self.below = Some(self.layers.tree_below()?);
        }
        Ok(self.below.as_ref().expect("it was just made"))
    }

    /// True if `part` shows the directory `dir`.
    pub(super) fn shows(&mut self, part: usize, dir: DirId) -> Result<bool> {
        if dir == DirId::ROOT || dir == DirId::LINKS {
            return Ok(true);
        }
        if let Some(known) = self.known.get(&(part, dir)) {
            return Ok(*known);
        }
        // A loop leads nowhere.
        self.known.insert((part, dir), false);
        let is_shown = self.find(part, dir)?;
        self.known.insert((part, dir), is_shown);
        Ok(is_shown)
    }

    fn find(&mut self, part: usize, dir: DirId) -> Result<bool> {
        if !self.parents.contains_key(&part) {
            let parents = parents_in(part, self.layers)?;
            self.parents.insert(part, parents);
        }
        let own = self.parents[&part].get(&dir).cloned().unwrap_or_default();
        for parent in own {
            if self.shows(part, parent)? {
                return Ok(true);
            }
        }
        let Some(dentry) = self.below()?.location(dir) else { return Ok(false) };
        let (parent, name) = (dentry.parent, KeyBuffer::from(key(dentry.parent, &dentry.name)));
        Ok(self.layers.record_of_part(part, &name)?.is_none() && self.shows(part, parent)?)
    }
}

/// Returns the directories that contain each directory of which `part` has a record.
fn parents_in(part: usize, layers: &JobLayers) -> Result<HashMap<DirId, Vec<DirId>>> {
    let mut parents: HashMap<DirId, Vec<DirId>> = HashMap::new();
    let mut cursors = Vec::new();
    layers.tables[part].cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
    let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
    while merge.advance_past(|block| Ok(is_of_files(block.records)))? {
        let row = merge.row();
        // The root's own record has the empty name.
        if row.ints[column::ENTRY] == DIRECTORY && !merge.key().string.is_empty() {
            let inode = inode_of(&row)?;
            parents.entry(inode.dir_id()).or_default().push(dir_of(&merge.key()));
        }
    }
    Ok(parents)
}
