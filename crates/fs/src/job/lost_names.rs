// SPDX-License-Identifier: Apache-2.0
//! Lost names: a file with several names that a part changed, and of which the job's set would show
//! no name, since each part knows only its own removals. The names that the part sees are shown
//! again.

use esker_base::Result;
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::TableRuns;
use hashbrown::{HashMap, HashSet};

use super::conflict::{ConflictKind, PartConflict};
use super::find::PartFindings;
use super::part_views::PartViews;
use super::resolve::JobLayers;
use crate::inode::{DirId, FileId, INODE, Inode, NameKind, key};
use crate::stack::dir_tree::{DirTree, visit_names};
use crate::stack::layers::dir_of;

/// Returns the files with several names that parts changed, each with these parts. Cost: a look-up
/// for each record of such a file.
pub(super) fn changed_files(
    found: &PartFindings,
    layers: &JobLayers,
) -> Result<HashMap<u128, Vec<usize>>> {
    let mut changed: HashMap<u128, Vec<usize>> = HashMap::new();
    for link in &found.changed_links {
        let name = link.inode.id.to_be_bytes();
        let base = layers.record_below(&key(DirId::LINKS, &name).into())?;
        let is_changed = match base {
            Some(base) => layers.is_changed(link.part, &base, &link.inode)?,
            // Names of a new file are lost only where parts disagree about a name.
            None => !FileId(link.inode.id).is_of(layers.parts[link.part]),
        };
        if is_changed {
            changed.entry(link.inode.id).or_default().push(link.part);
        }
    }
    Ok(changed)
}

/// Returns names for those of `changed` files that have none in `tree`, in key order, and adds them
/// to `conflicts`. `joined` are the tables of the job's set.
pub(super) fn restored_names(
    changed: &HashMap<u128, Vec<usize>>,
    found: &PartFindings,
    (tree, joined): (&DirTree, &[&TableRuns]),
    views: &mut PartViews,
    conflicts: &mut Vec<PartConflict>,
) -> Result<Vec<(KeyBuffer, Inode)>> {
    let layers = views.layers();
    let mut restored = Vec::new();
    let lost: HashSet<u128> =
        changed.keys().filter(|file| tree.names_of(**file) == 0).copied().collect();
    if lost.is_empty() {
        return Ok(restored);
    }
    let mut files: Vec<(u128, Vec<KeyBuffer>)> = names_below(&lost, layers)?.into_iter().collect();
    files.sort_unstable();
    for (file, below) in files {
        let mut parts = changed[&file].clone();
        parts.sort_unstable();
        for part in parts {
            let seen = names_in(part, file, &below, found, views)?;
            // A part may have removed what it had changed.
            let Some(first) = seen.first().cloned() else { continue };
            let mut places = free(seen, tree, joined)?;
            if places.is_empty() {
                places = free(below, tree, joined)?;
                places.truncate(1);
            }
            if places.is_empty() {
                conflicts.push(conflict_at(&first, ConflictKind::SameName, part, layers)?);
            }
            for key in places {
                conflicts.push(conflict_at(&key, ConflictKind::Removed, part, layers)?);
                restored.extend(link_at(&key, part, layers)?.map(|link| (key, link)));
            }
            break;
        }
    }
    restored.sort_by(|a, b| a.0.cmp(&b.0));
    restored.dedup_by(|a, b| a.0 == b.0);
    Ok(restored)
}

/// Returns the names that `part` shows for `file`, of which the bases have the names `below`.
fn names_in(
    part: usize,
    file: u128,
    below: &[KeyBuffer],
    found: &PartFindings,
    views: &mut PartViews,
) -> Result<Vec<KeyBuffer>> {
    let own = found.links.iter().filter(|(other, _, id)| (*other, *id) == (part, file));
    let mut names: Vec<KeyBuffer> = own.map(|(_, key, _)| key.clone()).collect();
    for key in below {
        let is_of_base = views.layers().record_of_part(part, key)?.is_none();
        if is_of_base && views.shows(part, dir_of(&key.key()))? {
            names.push(key.clone());
        }
    }
    Ok(names)
}

/// Returns the conflict at a name of a file that `part` changed. If something else is shown there,
/// the part loses.
fn conflict_at(
    key: &KeyBuffer,
    kind: ConflictKind,
    part: usize,
    layers: &JobLayers,
) -> Result<PartConflict> {
    let mut others = Vec::new();
    for other in (0..layers.parts.len()).filter(|other| *other != part) {
        if layers.record_of_part(other, key)?.is_some() {
            others.push(other);
        }
    }
    Ok(match (kind, others.first()) {
        (ConflictKind::SameName, Some(&winner)) => {
            PartConflict::at(key, kind, winner, &[part], layers.parts)
        }
        _ => PartConflict::at(key, kind, part, &others, layers.parts),
    })
}

/// Returns the link at `key` that `part` sees there, or that the bases have.
fn link_at(key: &KeyBuffer, part: usize, layers: &JobLayers) -> Result<Option<Inode>> {
    let is_link = |inode: &Inode| inode.entry == NameKind::Link;
    let mut link = layers.record_of_part(part, key)?.filter(is_link);
    if link.is_none() {
        link = layers.record_below(key)?.filter(is_link);
    }
    let Some(mut link) = link else { return Ok(None) };
    for other in 0..layers.parts.len() {
        if let Some(own) = layers.record_of_part(other, key)? {
            link.generation = link.generation.max(own.next_generation());
        }
    }
    Ok(Some(link))
}

/// Returns the names that the bases have for each of `files`.
pub(super) fn names_below(
    files: &HashSet<u128>,
    layers: &JobLayers,
) -> Result<HashMap<u128, Vec<KeyBuffer>>> {
    let mut names: HashMap<u128, Vec<KeyBuffer>> =
        files.iter().map(|file| (*file, Vec::new())).collect();
    let mut found: Vec<(u128, KeyBuffer)> = Vec::new();
    let bases = layers.below.bases().iter().map(|base| &base.tables);
    for table in bases.flat_map(|tables| &tables.runs).flat_map(|run| &run.tables) {
        visit_names(table, &mut |key, id| {
            if files.contains(&id) {
                found.push((id, (*key).into()));
            }
        })?;
    }
    for (file, key) in found {
        let shown = layers.record_below(&key)?;
        if shown.is_some_and(|shown| shown.entry == NameKind::Link && shown.id == file)
            && let Some(names) = names.get_mut(&file)
        {
            names.push(key);
        }
    }
    names.values_mut().for_each(|names| {
        names.sort_unstable();
        names.dedup();
    });
    Ok(names)
}

/// Returns those of `names` at which the job's set shows nothing, in directories that it shows.
fn free(names: Vec<KeyBuffer>, tree: &DirTree, joined: &[&TableRuns]) -> Result<Vec<KeyBuffer>> {
    let mut free = Vec::new();
    for name in names {
        let key = name.key();
        if !tree.is_live(dir_of(&key)) {
            continue;
        }
        let wanted = LookupKey { digest: INODE.digest(&key), key };
        let mut row = RowBuffer::default();
        let mut is_free = true;
        for tables in joined {
            if tables.get(&wanted, true, &mut row)? {
                is_free = Inode::of_buffer(&row)?.entry == NameKind::Tombstone;
                break;
            }
        }
        if is_free {
            free.push(name);
        }
    }
    Ok(free)
}
