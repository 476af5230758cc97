// SPDX-License-Identifier: Apache-2.0
//! Names of files with several names: those that the bases show, and those that parts made.

use esker_base::Result;
use esker_table::schema::KeyBuffer;
use hashbrown::{HashMap, HashSet};

use super::find::PartFindings;
use super::part_views::PartViews;
use super::resolve::JobLayers;
use crate::inode::NameKind;
use crate::stack::dir_tree::visit_names;
use crate::stack::layers::dir_of;

/// The names of some files.
pub(super) struct FileNames {
    /// By file, the names that the bases show, in key order.
    below: HashMap<u128, Vec<KeyBuffer>>,
    /// By part and file, the names that the part made or changed.
    own: HashMap<(usize, u128), Vec<KeyBuffer>>,
}

impl FileNames {
    /// Finds the names of `files`. Cost: a scan of the names of links and directories of the bases,
    /// and a look-up for each name that is found.
    pub(super) fn of(
        files: &HashSet<u128>,
        found: &PartFindings,
        layers: &JobLayers,
    ) -> Result<Self> {
        let (mut below, mut own) = (HashMap::new(), HashMap::new());
        if files.is_empty() {
            return Ok(Self { below, own });
        }
        let mut names: Vec<(u128, KeyBuffer)> = Vec::new();
        let bases = layers.below.bases().iter().map(|base| &base.tables);
        for table in bases.flat_map(|tables| &tables.runs).flat_map(|run| &run.tables) {
            visit_names(table, &mut |key, id| {
                if files.contains(&id) {
                    names.push((id, (*key).into()));
                }
            })?;
        }
        names.sort_unstable();
        names.dedup();
        for (file, key) in names {
            let shown = layers.record_below(&key)?;
            if shown.is_some_and(|shown| shown.entry == NameKind::Link && shown.id == file) {
                below.entry(file).or_insert_with(Vec::new).push(key);
            }
        }
        for (part, key, file) in found.links.iter().filter(|(.., file)| files.contains(file)) {
            own.entry((*part, *file)).or_insert_with(Vec::new).push(key.clone());
        }
        Ok(Self { below, own })
    }

    /// The names of `file` that the bases show.
    pub(super) fn below(&self, file: u128) -> &[KeyBuffer] {
        self.below.get(&file).map_or(&[], Vec::as_slice)
    }

    /// Returns the names of `file` that `part` shows.
    pub(super) fn seen(
        &self,
        part: usize,
        file: u128,
        views: &mut PartViews,
    ) -> Result<Vec<KeyBuffer>> {
        let mut names = self.own.get(&(part, file)).cloned().unwrap_or_default();
        for key in self.below(file) {
            let is_of_base = views.layers().record_of_part(part, key)?.is_none();
            if is_of_base && views.shows(part, dir_of(&key.key()))? {
                names.push(key.clone());
            }
        }
        Ok(names)
    }
}
