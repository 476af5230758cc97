// SPDX-License-Identifier: Apache-2.0
//! Files of which parts together removed all names, while one of them changed the file.
//!
//! Each part counts only its own removals, so the job's set could have the changed file and no name
//! for it. The names that the changing part sees are shown then.
//! Cost: for each file with several names that parts changed and removed names of, a look-up in
//! each part for each name; if there is one, a scan of the names of directories and links of the
//! bases.

use esker_base::Result;
use esker_table::schema::KeyBuffer;
use hashbrown::{HashMap, HashSet};

use super::conflict::{ConflictKind, PartConflict};
use super::find::{PartFindings, PartVersion};
use super::resolve::{JobLayers, is_same_but_times};
use super::withdrawn::WithdrawnRecords;
use crate::inode::{DirId, Inode, NameKind};
use crate::stack::dir_tree::{DirTree, visit_names};
use crate::stack::layers::dir_of;

/// A file with several names that parts changed, and of which parts removed names.
struct ContestedFile {
    /// The first part that changed it.
    changed_by: usize,
    /// The names that the bases show.
    names: HashSet<KeyBuffer>,
}

/// Adds to `withdrawn` removals of names of files that another part changed and of which no name
/// would be left. Returns the conflicts.
pub(super) fn keep_names_of_changed_files(
    withdrawn: &mut WithdrawnRecords,
    found: &PartFindings,
    layers: &JobLayers,
) -> Result<Vec<PartConflict>> {
    let mut files = contested_files(found, layers)?;
    // A name that a part made is shown, unless the part removed a directory above it.
    let mut shown: HashMap<usize, DirTree> = HashMap::new();
    for (part, key, file) in &found.links {
        if !files.contains_key(file) {
            continue;
        }
        if !shown.contains_key(part) {
            shown.insert(*part, layers.tree_of_part(*part)?);
        }
        if shown[part].is_live(dir_of(&key.key())) {
            files.remove(file);
        }
    }
    if files.is_empty() {
        return Ok(Vec::new());
    }
    find_names(&mut files, layers)?;
    let mut conflicts = Vec::new();
    let mut files: Vec<(u128, ContestedFile)> = files.into_iter().collect();
    files.sort_unstable_by_key(|(file, _)| *file);
    for (_, ContestedFile { changed_by, names }) in files {
        let mut names: Vec<KeyBuffer> = names.into_iter().collect();
        names.sort_unstable();
        let mut removals: Vec<(KeyBuffer, Vec<usize>)> = Vec::new();
        let mut is_named = false;
        for key in names {
            let mut removed_by = Vec::new();
            for part in 0..layers.parts.len() {
                if !withdrawn.contains(&key, part) && layers.record_of_part(part, &key)?.is_some() {
                    removed_by.push(part);
                }
            }
            is_named |= removed_by.is_empty();
            if !removed_by.contains(&changed_by) {
                removals.push((key, removed_by));
            }
        }
        for (key, removed_by) in removals.into_iter().filter(|_| !is_named) {
            conflicts.push(PartConflict::at(
                &key,
                ConflictKind::Removed,
                changed_by,
                &removed_by,
                layers.parts,
            ));
            removed_by.into_iter().for_each(|part| withdrawn.add(key.clone(), part, changed_by));
        }
    }
    Ok(conflicts)
}

/// Returns the files of bases that a part changed and of which another part removed names.
fn contested_files(
    found: &PartFindings,
    layers: &JobLayers,
) -> Result<HashMap<u128, ContestedFile>> {
    let mut files = HashMap::new();
    for (key, versions) in found.shared.iter().filter(|(key, _)| dir_of(&key.key()) == DirId::LINKS)
    {
        let Some(base) = layers.record_below(key)? else { continue };
        let is_change = |version: &&PartVersion| {
            let inode = &version.inode;
            let counted = Inode { nlink: inode.nlink, ..base.clone() };
            inode.entry != NameKind::Tombstone && !is_same_but_times(&counted, inode)
        };
        let Some(change) = versions.iter().find(is_change) else { continue };
        let is_removal =
            |version: &PartVersion| version.part != change.part && version.inode.nlink < base.nlink;
        if versions.iter().any(is_removal) {
            let file = ContestedFile { changed_by: change.part, names: HashSet::new() };
            files.insert(base.id, file);
        }
    }
    Ok(files)
}

/// Adds the names that the bases show.
fn find_names(files: &mut HashMap<u128, ContestedFile>, layers: &JobLayers) -> Result<()> {
    let mut names: Vec<(u128, KeyBuffer)> = Vec::new();
    let bases = layers.below.bases().iter().map(|base| &base.tables);
    for table in bases.flat_map(|tables| &tables.runs).flat_map(|run| &run.tables) {
        visit_names(table, &mut |key, id| {
            if files.contains_key(&id) {
                names.push((id, (*key).into()));
            }
        })?;
    }
    let tree = layers.tree_below()?;
    names.retain(|(_, key)| tree.is_live(dir_of(&key.key())));
    for (file, key) in names {
        let shown = layers.record_below(&key)?;
        if shown.is_some_and(|shown| shown.entry == NameKind::Link && shown.id == file)
            && let Some(file) = files.get_mut(&file)
        {
            file.names.insert(key);
        }
    }
    Ok(())
}
