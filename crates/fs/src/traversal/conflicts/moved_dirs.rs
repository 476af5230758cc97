// SPDX-License-Identifier: Apache-2.0
//! Directories that bases moved to different places, or into each other.
//!
//! A base that moves a directory has a record of it at the new name and a tombstone at the old one.
//! Another base that moves the same directory has records of other names, so both new names are shown.
//! If one base moves `a` into `b` and another `b` into `a`, each is within the other in the stack, and
//! may have no path from the root at all. No name then has records of both bases, so this module
//! follows the directories that a set names where another base does not show them.
//! Directories that bases made independently at one path are one directory.
//! Cost: two reads of the directories' records of the sets on which not all bases build, and a look-up in
//! each base for each of them. Only if a base does not show one of them there, 32 bytes for each such
//! directory and a read of all directories' records, and if some have several names, one more per level.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::schema::{Key, KeyBuffer};
use esker_table::tables::TableHandle;
use hashbrown::{HashMap, HashSet};

use super::{
    BaseConflict, ComposedBases, ConflictingVersion, DEPTH_MAX, DirectoryConflict, NamesById,
    find_names, record,
};
use crate::inode::{DirId, FileKind, INODE, NameKind};
use crate::stack::dir_tree::visit_dirs;
use crate::stack::layers::BaseSet;

/// The most names of a directory that are followed, and of paths that are reported.
const NAMES_MAX: usize = 16;
/// The most names that are followed from one directory to the root; only hostile sets have more.
const STEPS_MAX: usize = 65_536;

impl ComposedBases {
    /// Returns the conflicts at directories that bases moved and that the stack shows at several
    /// paths or within themselves. `is_apart[a][b]` is true if each of the two layers is in a base
    /// that lacks the other one.
    pub(super) fn conflicts_of_moved_dirs(
        &self,
        is_apart: &[Vec<bool>],
        memberships: &HashMap<SetId, HashSet<usize>>,
    ) -> Result<Vec<BaseConflict>> {
        let moved = self.moved_dirs(is_apart, memberships)?;
        if moved.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: HashSet<u128> = moved.keys().copied().collect();
        let names = find_names(&self.composed, wanted.clone(), NAMES_MAX)?;
        let of_bases: Vec<NamesById> = self
            .bases
            .iter()
            .map(|base| find_names(base, wanted.clone(), NAMES_MAX))
            .collect::<Result<_>>()?;
        let mut found = Vec::new();
        for (dir, movers) in moved {
            let found_paths = PathSearch::of(&names, dir);
            // A directory below one at two paths is at two paths itself, but under one name.
            let is_moved = found_paths.is_in_itself || found_paths.names > 1;
            if !is_moved {
                continue;
            }
            // A base may show it so by itself.
            let is_of_one_base = of_bases.iter().any(|names| {
                let alone = PathSearch::of(names, dir);
                (alone.is_in_itself, alone.names) == (found_paths.is_in_itself, found_paths.names)
            });
            if is_of_one_base {
                continue;
            }
            let versions = self.versions_of_moved(dir, &movers, &of_bases)?;
            let (mut paths, is_in_itself) = (found_paths.paths, found_paths.is_in_itself);
            paths.sort_unstable();
            let path = paths.first().cloned();
            let at = path.as_deref().or_else(|| versions.iter().find_map(|(_, at)| at.as_deref()));
            let name = at.and_then(|path| path.rsplit(|byte| *byte == b'/').next());
            let conflict = BaseConflict {
                name: name.unwrap_or_default().to_vec(),
                path,
                is_linked: false,
                directory: Some(DirectoryConflict::Moved { paths, is_in_itself }),
                versions: versions.into_iter().map(|(version, _)| version).collect(),
                aspects: Vec::new(),
            };
            if conflict.versions.len() > usize::from(!is_in_itself) {
                found.push(conflict);
            }
        }
        found.sort_by(|a, b| (&a.path, &a.name).cmp(&(&b.path, &b.name)));
        Ok(found)
    }

    /// Returns the directories that an independent layer names where a base that lacks it does not
    /// show them, and that have another name in some layer, with the bases that have the first.
    fn moved_dirs(
        &self,
        is_apart: &[Vec<bool>],
        memberships: &HashMap<SetId, HashSet<usize>>,
    ) -> Result<BTreeMap<u128, BTreeSet<usize>>> {
        // Most of them are new, and have no other name.
        let mut unshared: HashMap<u128, u64> = HashMap::new();
        self.visit_unshared_dirs(is_apart, memberships, &|_| true, &mut |key, id, _| {
            unshared.entry(id).or_insert_with(|| INODE.digest(key));
        })?;
        let (mut renamed, mut moved) = (HashSet::new(), BTreeMap::<_, BTreeSet<usize>>::new());
        if unshared.is_empty() {
            return Ok(moved);
        }
        for table in self.composed.layers().bases().iter().flat_map(|layer| tables_of(layer)) {
            visit_dirs(table, &mut |key, id| {
                if unshared.get(&id).is_some_and(|name| *name != INODE.digest(key)) {
                    renamed.insert(id);
                }
            })?;
        }
        let is_renamed = |id: &u128| renamed.contains(id);
        self.visit_unshared_dirs(is_apart, memberships, &is_renamed, &mut |_, id, movers| {
            moved.entry(id).or_default().extend(movers);
        })?;
        Ok(moved)
    }

    /// Visits the `wanted` directories that an independent layer names where a base that lacks it does
    /// not show them, with the bases that have the layer.
    fn visit_unshared_dirs(
        &self,
        is_apart: &[Vec<bool>],
        memberships: &HashMap<SetId, HashSet<usize>>,
        wanted: &dyn Fn(&u128) -> bool,
        visit: &mut dyn FnMut(&Key, u128, &HashSet<usize>),
    ) -> Result<()> {
        let layers = self.composed.layers().bases().iter().zip(is_apart);
        for (layer, _) in layers.filter(|(_, is_apart)| is_apart.contains(&true)) {
            let members = &memberships[&layer.set];
            for table in tables_of(layer) {
                let mut named: Vec<(u128, KeyBuffer)> = Vec::new();
                visit_dirs(table, &mut |key, id| {
                    if wanted(&id) {
                        named.push((id, (*key).into()));
                    }
                })?;
                for (id, key) in named {
                    let mut others = (0..self.bases.len()).filter(|base| !members.contains(base));
                    let is_shared = |base: usize| -> Result<bool> {
                        let shown = record(&self.bases[base], &key.key())?;
                        Ok(shown.is_some_and(|(_, inode)| inode.id == id))
                    };
                    if others.try_fold(false, |found, base| Ok(found || !is_shared(base)?))? {
                        visit(&key.key(), id, members);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the versions of `dir` in the bases that moved it, each with its path there; bases that
    /// show it at the same path have one version.
    fn versions_of_moved(
        &self,
        dir: u128,
        movers: &BTreeSet<usize>,
        of_bases: &[NamesById],
    ) -> Result<Vec<(ConflictingVersion, Option<Vec<u8>>)>> {
        let mut versions: Vec<(ConflictingVersion, Option<Vec<u8>>)> = Vec::new();
        for base in movers.iter().copied() {
            let names = &of_bases[base];
            let Some((parent, name)) = names.get(&dir).and_then(|names| names.first()) else {
                continue;
            };
            let key = crate::inode::key(*parent, name);
            let Some((_, inode)) = record(&self.bases[base], &key)? else { continue };
            let is_directory = inode.entry == NameKind::Is(FileKind::Directory);
            let path = PathSearch::of(names, dir).paths.into_iter().min();
            if is_directory && !versions.iter().any(|(_, at)| *at == path) {
                let namespace = &self.bases[base];
                versions.push((ConflictingVersion::of_record(base, namespace, &key, inode)?, path));
            }
        }
        Ok(versions)
    }
}

fn tables_of(layer: &BaseSet) -> impl Iterator<Item = &Arc<TableHandle>> {
    layer.tables.runs.iter().flat_map(|run| &run.tables)
}

/// The paths from the root to a directory, which may have several names.
#[derive(Debug, Default)]
struct FoundPaths {
    /// At most [`NAMES_MAX`].
    paths: Vec<Vec<u8>>,
    /// The number of its names to which a path leads.
    names: usize,
    is_in_itself: bool,
}

/// A search for the paths of a directory.
struct PathSearch<'a> {
    names: &'a NamesById,
    /// The directories from the one searched for up to the one being visited, with their names.
    chain: Vec<(u128, &'a [u8])>,
    steps: usize,
    found: FoundPaths,
}

impl<'a> PathSearch<'a> {
    fn of(names: &'a NamesById, dir: u128) -> FoundPaths {
        let mut search = Self { names, chain: Vec::new(), steps: 0, found: FoundPaths::default() };
        search.visit(dir);
        search.found
    }

    fn visit(&mut self, dir: u128) {
        for (parent, name) in self.names.get(&dir).into_iter().flatten() {
            self.steps += 1;
            let has_enough = self.steps > STEPS_MAX || self.found.paths.len() >= NAMES_MAX;
            if has_enough || self.chain.len() >= DEPTH_MAX {
                return;
            }
            let before = self.found.paths.len();
            self.chain.push((dir, name));
            if *parent == DirId::ROOT {
                let parts = self.chain.iter().rev().flat_map(|(_, name)| [&b"/"[..], name]);
                self.found.paths.push(parts.collect::<Vec<_>>().concat());
            } else if self.chain.iter().any(|(below, _)| *below == parent.0) {
                self.found.is_in_itself |= self.chain[0].0 == parent.0;
            } else {
                self.visit(parent.0);
            }
            self.chain.pop();
            let is_own_name = self.chain.is_empty();
            self.found.names += usize::from(is_own_name && self.found.paths.len() > before);
        }
    }
}
