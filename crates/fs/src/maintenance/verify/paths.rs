// SPDX-License-Identifier: Apache-2.0
//! Paths: checks that the directories of each stack form a tree, and that its links find their
//! files.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::{Kind, Result};
use esker_table::manifest::{SetId, SetState};
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::TableRuns;
use hashbrown::HashMap;

use super::generations;
use super::identities::{self, InheritedFiles, StackOfTables};
use super::{Finding, LimitedFindings, Severity, Verification};
use crate::inode::{DirId, FileKind, INODE, NameKind, column, key};
use crate::stack::dir_tree::{Dentry, DirTree};
use crate::stack::lineage::StackLineage;

/// Numbers of records other than tombstones, by set and directory.
pub(super) type DirsOfSets = BTreeMap<SetId, HashMap<DirId, u64>>;

/// Content of tables, by the sets that show them.
pub(super) struct SeenRecords {
    pub(super) dirs: DirsOfSets,
    pub(super) inherited: BTreeMap<SetId, InheritedFiles>,
    /// Names that are or were directories.
    pub(super) were_directories: BTreeMap<SetId, Vec<Arc<Vec<KeyBuffer>>>>,
}

impl Verification<'_> {
    /// Checks the tree that each root's stack shows.
    pub(super) fn check_paths(&mut self, seen: &SeenRecords) -> Result<()> {
        for root in self.roots.clone() {
            let Some(stack) = self.stack(root) else {
                continue;
            };
            let layers: Vec<TableRuns> = stack
                .iter()
                .map(|set| TableRuns::new(&self.manifests[set].tables, &INODE, &self.source))
                .collect();
            let layers: Vec<&TableRuns> = layers.iter().collect();
            let checked = self.check_stack(root, (&stack, &layers), seen);
            if let Err(error) = checked {
                if !matches!(error.kind(), Kind::Corrupt | Kind::NotFound) {
                    return Err(error);
                }
                // The damage itself was found with its table.
                let finding = Finding::new(
                    Severity::Warning,
                    format!("set {root}"),
                    "a stack whose tree can be checked",
                    error.to_string(),
                );
                self.find(finding);
            }
        }
        Ok(())
    }

    /// Returns the sets of a stack in order of priority; `None` if one of them cannot be read,
    /// which has already been found.
    pub(super) fn stack(&self, root: SetId) -> Option<Vec<SetId>> {
        let bases_of = |set| self.manifests.get(&set).map(|own| own.bases.clone()).ok_or(());
        crate::stack::layers::topological_order(&[root], bases_of).ok()
    }

    fn check_stack(
        &mut self,
        root: SetId,
        (stack, layers): (&[SetId], &[&TableRuns]),
        seen: &SeenRecords,
    ) -> Result<()> {
        let object = format!("set {root}");
        let bases = stack.iter().map(|set| (*set, &self.manifests[set].bases[..]));
        let bases: Vec<(SetId, &[SetId])> = bases.collect();
        let counts_are_exact = !StackLineage::of(&bases).is_branched();
        let tree = DirTree::of(layers, self.options.threads)?;
        self.report.directories += tree.directories() as u64;
        let mut limited = LimitedFindings::new();
        self.check_shape(root, &tree, &mut limited);
        // The set of one seat of a live namespace lacks files of the others.
        let is_open = self.manifests[&root].state == SetState::Open;
        check_links((&object, counts_are_exact, is_open), &tree, layers, &mut limited)?;
        let tables = StackOfTables { sets: &bases, layers, tree: &tree };
        let mut files = InheritedFiles::default();
        stack.iter().filter_map(|set| seen.inherited.get(set)).for_each(|own| files.extend(own));
        identities::check(&object, &tables, files, &mut limited)?;
        let names = stack.iter().filter_map(|set| seen.were_directories.get(set));
        let mut names: Vec<&KeyBuffer> = names.flatten().flat_map(|names| names.iter()).collect();
        names.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        names.dedup();
        generations::check((&object, self.options.threads), &tables, &names, &mut limited)?;
        self.report.findings.extend(limited.finish(&object));
        let unreachable =
            |(dir, _): &(&DirId, &u64)| !tree.is_live(**dir) && !tree.is_below_seat_root(**dir);
        let own = seen.dirs.get(&root).into_iter().flatten();
        let lost: Vec<_> = own.filter(unreachable).collect();
        if let Some((dir, _)) = lost.first() {
            let records: u64 = lost.iter().map(|(_, count)| **count).sum();
            let got = format!("{records} of {} directories, such as {dir}", lost.len());
            let expected = "no records that no path leads to";
            self.find(Finding::new(Severity::Information, object, expected, got));
        }
        Ok(())
    }

    /// Checks that one path leads to each directory, unless it was removed.
    fn check_shape(&self, root: SetId, tree: &DirTree, limited: &mut LimitedFindings) {
        let object = format!("set {root}");
        let name = self.shown_name(root);
        let shown = |dentry: &Dentry| {
            let path = tree.path(dentry.parent, &dentry.name)?;
            Some(format!("{name}:{}", String::from_utf8_lossy(&path)))
        };
        for double in &tree.doubles {
            let first = match tree.location(double.id) {
                Some(dentry) => shown(dentry),
                None => Some(format!("{name}:/")),
            };
            let is_loop = tree.is_within(double.parent, double.id);
            let got = if is_loop { "one that is in itself" } else { "several" };
            let expected = format!("one path to directory {}", double.id);
            let mut finding = Finding::new(Severity::Error, &*object, expected, got);
            finding.paths = first.into_iter().chain(shown(double)).collect();
            finding.paths.sort_unstable();
            limited.push(finding);
        }
        for dentries in &tree.loops {
            let names = dentries.iter().map(|dentry| String::from_utf8_lossy(&dentry.name));
            let names: Vec<_> = names.collect();
            let expected = format!("a path to directory {}", dentries[0].id);
            let got = format!("a loop in {name}, to which no path leads: {}", names.join("/"));
            // Whoever composed or joined the sets may know of it.
            limited.push(Finding::new(Severity::Warning, &*object, expected, got));
        }
    }
}

/// Checks that every link has its inode, and that inodes count their names: no fewer than there are
/// if counts are exact, which they are unless branches counted independently.
fn check_links(
    (object, counts_are_exact, is_open): (&str, bool, bool),
    tree: &DirTree,
    layers: &[&TableRuns],
    limited: &mut LimitedFindings,
) -> Result<()> {
    let mut row = RowBuffer::default();
    for (file, names) in tree.linked_files() {
        let name = file.to_be_bytes();
        let key = key(DirId::LINKS, &name);
        let wanted = LookupKey { digest: INODE.digest(&key), key };
        let mut found = None;
        for tables in layers {
            if tables.get(&wanted, false, &mut row)? {
                found = Some((row.ints[column::ENTRY], row.ints[column::NLINK]));
                break;
            }
        }
        let expected = format!("an inode of file {file:032x}, which has {names} names");
        match found.map(|(entry, nlink)| (NameKind::of_number(entry), nlink)) {
            Some((Some(NameKind::Is(kind)), nlink)) if kind != FileKind::Directory => {
                let counted = u64::from(names)..=u64::from(names + tree.names_at_seat(file));
                if !counted.contains(&nlink) {
                    // Removing a whole tree does not lower the counts of files with names
                    // elsewhere.
                    let got = format!("{nlink} counted");
                    let is_harmless = nlink > u64::from(names) || !counts_are_exact;
                    let severity =
                        if is_harmless { Severity::Information } else { Severity::Warning };
                    limited.push(Finding::new(severity, object, expected, got));
                }
            }
            Some(_) => {
                limited.push(Finding::new(Severity::Error, object, expected, "something else"));
            }
            None if is_open && tree.is_seat_file(file) => {}
            None => limited.push(Finding::new(Severity::Error, object, expected, "none")),
        }
    }
    Ok(())
}
