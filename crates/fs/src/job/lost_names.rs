// SPDX-License-Identifier: Apache-2.0
//! Lost names: a file with several names that a part changed, and of which the job's set would show
//! no name, since each part knows only its own removals. The names that the part sees are shown
//! again.

use std::collections::BTreeSet;

use esker_base::Result;
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::TableRuns;
use hashbrown::HashMap;

use super::conflict::{ConflictKind, ConflictList};
use super::file_names::FileNames;
use super::find::PartFindings;
use super::part_views::PartViews;
use super::resolve::JobLayers;
use crate::inode::{DirId, FileId, INODE, Inode, NameKind, key};
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::dir_of;

/// Files with several names that parts changed, each with these parts, in order.
pub(super) type ChangedFiles = HashMap<u128, Vec<usize>>;

/// Returns the files with several names that parts changed. Cost: a look-up for each record of such
/// a file.
pub(super) fn changed_files(found: &PartFindings, layers: &JobLayers) -> Result<ChangedFiles> {
    let mut changed = ChangedFiles::new();
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
    changed.values_mut().for_each(|parts| parts.sort_unstable());
    Ok(changed)
}

/// Returns names for those of `changed` files that have none in `tree`, in key order, and adds them
/// to `conflicts`. `joined` are the tables of the job's set and its bases.
pub(super) fn restored_names(
    changed: &ChangedFiles,
    found: &PartFindings,
    (tree, joined): (&DirTree, &[&TableRuns]),
    views: &mut PartViews,
    conflicts: &mut ConflictList,
) -> Result<Vec<(KeyBuffer, Inode)>> {
    let layers = views.layers();
    let lost = changed.keys().filter(|file| tree.names_of(**file) == 0).copied();
    let lost: BTreeSet<u128> = lost.collect();
    let names = FileNames::of(&lost.iter().copied().collect(), found, layers)?;
    let mut restored = Vec::new();
    for file in lost {
        for &part in &changed[&file] {
            let seen = names.seen(part, file, views)?;
            // A part may have removed what it had changed.
            let Some(first) = seen.first().cloned() else { continue };
            let mut places = free(seen, tree, joined)?;
            if places.is_empty() {
                places = free(names.below(file).to_vec(), tree, joined)?;
                places.truncate(1);
            }
            if places.is_empty()
                && let Some(winner) = others_at(&first, part, layers)?.first()
            {
                let kind = ConflictKind::SameName;
                conflicts.report_loser(kind, &first, (*winner, part), layers.parts);
            }
            for key in places {
                let losers = others_at(&key, part, layers)?;
                conflicts.report(ConflictKind::Removed, &key, (part, &losers), layers.parts);
                restored.extend(link_at(&key, part, layers)?.map(|link| (key, link)));
            }
            break;
        }
    }
    restored.sort_by(|a, b| a.0.cmp(&b.0));
    restored.dedup_by(|a, b| a.0 == b.0);
    Ok(restored)
}

/// Returns the parts except `part` that have a record at `key`.
fn others_at(key: &KeyBuffer, part: usize, layers: &JobLayers) -> Result<Vec<usize>> {
    let mut others = Vec::new();
    for other in (0..layers.parts.len()).filter(|other| *other != part) {
        if layers.record_of_part(other, key)?.is_some() {
            others.push(other);
        }
    }
    Ok(others)
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
