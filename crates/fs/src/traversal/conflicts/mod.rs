// SPDX-License-Identifier: Apache-2.0
//! Conflicts: files that several bases of a composition changed independently. The stack shows the
//! version of the base that comes first, and hides the others.
//!
//! Two bases conflict at a name if each has a record of it in a set on which the other does not
//! build, and the records differ. A third base that builds on both has decided between them.
//!
//! The search does not read sets on which all bases build. It merges the records of the others in
//! order, and skips blocks of names that only one set has. It looks up paths for a batch of
//! conflicts at a time, level by level, so memory is bounded by the batch, the number of bases, and the
//! directories that only some bases have, not by the number of files.
//!
//! If one base removed a directory as a whole and another changed only its entries, no name has
//! records of both: `removed_dirs.rs` finds these conflicts. The name of a file with several names
//! is only a link: its version is that of the inode in the links directory, which two bases may
//! also have changed without a record of any name. Directories that bases moved to different places, or
//! into each other, are found by `moved_dirs.rs`.

mod moved_dirs;
mod newest;
mod removed_dirs;

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::merge::RecordMerge;
use esker_table::schema::{Key, KeyBuffer, RowBuffer};
use hashbrown::{HashMap, HashSet};

use crate::inode::{DirId, FileKind, INODE, Inode, NameKind};
use crate::repository::Repository;
use crate::stack::dir_tree::visit_names;
use crate::stack::identity::Identity;
use crate::stack::layers::{LayerStack, dir_of, load_stack};
use crate::stack::namespace::Namespace;
use crate::traversal::diff::{DiffAspect, NamespaceDiff};

/// Number of conflicts whose paths are looked up together.
const BATCH: usize = 4096;
/// Upper bound of the number of components of a path, from `PATH_BYTES_MAX`.
const DEPTH_MAX: usize = crate::stack::path::PATH_BYTES_MAX / 2;

/// One base's version of a name.
#[derive(Clone, Debug)]
pub struct ConflictingVersion {
    /// Index of the base.
    pub base: usize,
    /// Its inode; `None` if the base removed the name. All names of a file with several have the
    /// same one; without links, if the base removed all of them.
    pub inode: Option<Inode>,
    /// True if the name is one of several of its file.
    pub is_link: bool,
    /// When the file was modified or removed, as a timestamp.
    pub changed_ns: i64,
}

impl ConflictingVersion {
    /// Returns the version of `base`, shown as `namespace`, that `record` under `key` describes.
    fn of_record(base: usize, namespace: &Namespace, key: &Key, record: Inode) -> Result<Self> {
        let is_link = record.entry == NameKind::Link;
        let inode = if is_link { namespace.linked(record.id, true)? } else { record };
        let is_removal =
            inode.entry == NameKind::Tombstone || (dir_of(key) == DirId::LINKS && inode.nlink == 0);
        let changed_ns = if is_removal { inode.ctime_ns } else { inode.mtime_ns };
        let inode = (inode.entry != NameKind::Tombstone).then_some(inode);
        Ok(Self { base, inode, is_link, changed_ns })
    }

    /// True if the base removed the file, or its last name.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        self.inode.as_ref().is_none_or(|inode| inode.nlink == 0)
    }

    /// Returns the file's identity if the name is one of several.
    fn linked_file(&self) -> Option<u128> {
        self.inode.as_ref().filter(|_| self.is_link).map(|inode| inode.id)
    }
}

/// A conflict of directories that differ in more than their attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryConflict {
    /// One base removed the directory while another changed its entries.
    Removed,
    /// Bases moved directories to different places. The stack shows this one at all of them, or within
    /// itself.
    Moved {
        /// Its paths in the composed stack, at most 16; none if no path leads there.
        paths: Vec<Vec<u8>>,
        /// True if it is below itself, so walks do not enter it again.
        is_in_itself: bool,
    },
}

/// A name for which several bases have different versions.
#[derive(Clone, Debug)]
pub struct BaseConflict {
    /// Its path in the composed stack; `None` if no path leads there.
    pub path: Option<Vec<u8>>,
    /// The last component of its path; for a file with several names, its identity if no path was
    /// found.
    pub name: Vec<u8>,
    /// True for a file with several names; the path is one of them.
    pub is_linked: bool,
    /// How a directory differs, if not by its attributes.
    pub directory: Option<DirectoryConflict>,
    /// The versions, with the one that the stack shows first.
    pub versions: Vec<ConflictingVersion>,
    /// Differences of the first two, if both have an inode.
    pub aspects: Vec<DiffAspect>,
}

/// Bases that are composed into one stack.
#[derive(Debug)]
pub struct ComposedBases {
    /// Each base alone.
    bases: Vec<Namespace>,
    /// All of them together.
    composed: Namespace,
}

impl ComposedBases {
    /// Opens `bases`, of which earlier ones win, each alone and together. Cost: as
    /// [`Repository::open`] for each of them.
    pub fn open(repository: &Repository, bases: &[SetId]) -> Result<Self> {
        let open = |bases: &[SetId]| {
            let stack = load_stack(repository.source(), bases)?;
            let layers = LayerStack::new(repository.source().clone(), stack, None);
            // Content is compared regardless of read permission.
            Namespace::new(layers, Identity::root())
        };
        let composed = open(bases)?;
        let bases = bases.iter().map(|base| open(&[*base])).collect::<Result<Vec<_>>>()?;
        Ok(Self { bases, composed })
    }

    /// Passes all conflicts to `show`. Cost: a read of the tables of the sets on which not all
    /// bases build, and of a file's content only if nothing else tells whether it differs; for the
    /// paths of each batch of conflicts, a read of the directories' records per level; and one of all
    /// directories' records if a base has directories that another does not show there.
    ///
    /// # Errors
    /// `Corrupt`, errors of the store, and errors of `show`.
    pub fn find_conflicts(
        &self,
        show: &mut dyn FnMut(&Self, BaseConflict) -> Result<()>,
    ) -> Result<()> {
        self.search(show, &mut HashSet::new())
    }

    /// Like [`ComposedBases::find_conflicts`]. Adds the files with several names that bases changed
    /// independently to `linked`, even if all of them have the same content and attributes.
    fn search(
        &self,
        show: &mut dyn FnMut(&Self, BaseConflict) -> Result<()>,
        linked: &mut HashSet<u128>,
    ) -> Result<()> {
        let memberships = self.memberships();
        let layers = self.composed.layers().bases();
        // Pairs of sets each of which some base has without the other.
        let is_apart: Vec<Vec<bool>> = layers
            .iter()
            .map(|one| {
                let one = &memberships[&one.set];
                let is_apart =
                    |other: &HashSet<usize>| !one.is_subset(other) && !other.is_subset(one);
                layers.iter().map(|other| is_apart(&memberships[&other.set])).collect()
            })
            .collect();
        let (mut cursors, mut layer_of) = (Vec::new(), Vec::new());
        for (index, layer) in layers.iter().enumerate() {
            if is_apart[index].contains(&true) {
                layer.tables.cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
                layer_of.resize(cursors.len(), index);
            }
        }
        let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
        let mut batch = Vec::new();
        while merge.advance_past(|_| Ok(true))? {
            let found: Vec<usize> = merge.versions().iter().map(|at| layer_of[*at]).collect();
            if found.iter().any(|one| found.iter().any(|other| is_apart[*one][*other])) {
                let key: KeyBuffer = merge.key().into();
                linked.extend(linked_file(&key.key()));
                if let Some(conflict) = self.conflict_at(&key.key(), &memberships)? {
                    batch.push((key, conflict));
                }
            }
            if batch.len() == BATCH {
                self.show_batch(std::mem::take(&mut batch), show)?;
            }
        }
        self.show_batch(batch, show)?;
        let inside = self.conflicts_in_removed_dirs(&is_apart, &memberships)?;
        self.show_batch(inside, show)?;
        let moved = self.conflicts_of_moved_dirs(&is_apart, &memberships)?;
        moved.into_iter().try_for_each(|conflict| show(self, conflict))
    }

    /// Returns, by set, the bases to which it belongs.
    fn memberships(&self) -> HashMap<SetId, HashSet<usize>> {
        let mut memberships: HashMap<SetId, HashSet<usize>> = HashMap::new();
        for (base, namespace) in self.bases.iter().enumerate() {
            for layer in namespace.layers().bases() {
                memberships.entry(layer.set).or_default().insert(base);
            }
        }
        memberships
    }

    /// Returns the versions of `key` that bases made independently, if they differ.
    fn conflict_at(
        &self,
        key: &Key,
        memberships: &HashMap<SetId, HashSet<usize>>,
    ) -> Result<Option<BaseConflict>> {
        let mut found: Vec<(SetId, ConflictingVersion)> = Vec::new();
        for (base, namespace) in self.bases.iter().enumerate() {
            let Some((set, record)) = record(namespace, key)? else { continue };
            found.push((set, ConflictingVersion::of_record(base, namespace, key, record)?));
        }
        // A base that builds on a set and shows another's record decided between them.
        let is_replaced = |(set, _): &(SetId, ConflictingVersion)| {
            let bases = &memberships[set];
            found.iter().any(|(other, version)| other != set && bases.contains(&version.base))
        };
        let replaced: HashSet<SetId> =
            found.iter().filter(|found| is_replaced(found)).map(|(set, _)| *set).collect();
        let mut seen = replaced;
        found.retain(|(set, _)| seen.insert(*set));
        let shown = record(&self.composed, key)?.map(|(set, _)| set);
        found.sort_by_key(|(set, version)| (Some(*set) != shown, version.base));
        let Some((_, first)) = found.first().cloned() else { return Ok(None) };
        let (mut versions, mut aspects) = (vec![first.clone()], Vec::new());
        for (_, other) in found.into_iter().skip(1) {
            if let Some(differing) = self.compare(key, &first, &other)? {
                if versions.len() == 1 {
                    aspects = differing;
                }
                versions.push(other);
            }
        }
        let name = key.string.to_vec();
        let is_linked = dir_of(key) == DirId::LINKS;
        let conflict =
            BaseConflict { path: None, name, is_linked, directory: None, versions, aspects };
        Ok((conflict.versions.len() > 1).then_some(conflict))
    }

    /// Returns how two versions differ; `None` if they do not.
    fn compare(
        &self,
        key: &Key,
        first: &ConflictingVersion,
        other: &ConflictingVersion,
    ) -> Result<Option<Vec<DiffAspect>>> {
        let (Some(old), Some(new)) = (&first.inode, &other.inode) else {
            // The names themselves show whether a file has any left.
            let differs = first.inode.is_some() != other.inode.is_some();
            return Ok((differs && dir_of(key) != DirId::LINKS).then(Vec::new));
        };
        let has_link = first.is_link || other.is_link;
        if has_link && first.linked_file() == other.linked_file() {
            // The links directory has the versions of the file itself.
            return Ok(None);
        }
        if old.is_directory() && new.is_directory() && old.dir_id() != new.dir_id() {
            // One base has replaced the directory: only one of the two has its entries shown.
            return Ok(Some(Vec::new()));
        }
        let diff =
            NamespaceDiff { before: &self.bases[first.base], after: &self.bases[other.base] };
        let aspects = diff.aspects(old, new)?;
        Ok((has_link || !aspects.is_empty()).then_some(aspects))
    }

    /// Passes `batch` to `show`, with paths.
    fn show_batch(
        &self,
        batch: Vec<(KeyBuffer, BaseConflict)>,
        show: &mut dyn FnMut(&Self, BaseConflict) -> Result<()>,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut wanted: HashSet<u128> = HashSet::new();
        for (key, _) in &batch {
            let key = key.key();
            wanted.insert(dir_of(&key).0);
            wanted.extend(linked_file(&key));
        }
        let names = find_names(&self.composed, wanted, 1)?;
        for (key, mut conflict) in batch {
            let key = key.key();
            let linked = linked_file(&key);
            if let Some((_, name)) = linked.and_then(|file| first_name(&names, file)) {
                conflict.name.clone_from(name);
            }
            conflict.path = match linked {
                Some(file) => path_of_id(&names, file),
                None => path_of(&names, dir_of(&key), key.string),
            };
            show(self, conflict)?;
        }
        Ok(())
    }
}

/// A name, with its directory.
type NameInDir = (DirId, Vec<u8>);
/// The names of a directory, or of a file with several names, by identity.
type NamesById = HashMap<u128, Vec<NameInDir>>;

/// Returns at most `names_max` names in `namespace` for each `wanted` directory and file with several
/// names, and for all directories above them. Those that have no name are not in the map.
fn find_names(
    namespace: &Namespace,
    mut wanted: HashSet<u128>,
    names_max: usize,
) -> Result<NamesById> {
    let mut names = NamesById::new();
    for _ in 0..DEPTH_MAX {
        wanted.retain(|id| ![DirId::ROOT.0, DirId::LINKS.0].contains(id));
        if wanted.is_empty() {
            break;
        }
        let mut candidates: Vec<(u128, KeyBuffer)> = Vec::new();
        let layers = namespace.layers().bases().iter();
        for table in layers.flat_map(|layer| &layer.tables.runs).flat_map(|run| &run.tables) {
            visit_names(table, &mut |key, id| {
                if wanted.contains(&id) {
                    candidates.push((id, (*key).into()));
                }
            })?;
        }
        let mut above = HashSet::new();
        for (id, key) in candidates {
            let key = key.key();
            // Another layer may override it.
            let shown = record(namespace, &key)?.map(|(_, inode)| inode);
            let is_shown = shown.is_some_and(|inode| {
                inode.id == id
                    && matches!(inode.entry, NameKind::Link | NameKind::Is(FileKind::Directory))
            });
            if !is_shown {
                continue;
            }
            let (named, name) = (names.entry(id).or_default(), (dir_of(&key), key.string.to_vec()));
            // Several tables may have a record of one name.
            if named.len() < names_max && !named.contains(&name) {
                above.insert(name.0.0);
                named.push(name);
            }
        }
        above.retain(|id| !names.contains_key(id));
        wanted = above;
    }
    Ok(names)
}

fn first_name(names: &NamesById, id: u128) -> Option<&NameInDir> {
    names.get(&id)?.first()
}

/// Returns the path of `name` in `dir`, if `names` lead from the root to there.
fn path_of(names: &NamesById, mut dir: DirId, name: &[u8]) -> Option<Vec<u8>> {
    let mut parts = vec![name];
    while dir != DirId::ROOT && parts.len() < DEPTH_MAX {
        let (parent, name) = first_name(names, dir.0)?;
        parts.push(name);
        dir = *parent;
    }
    let parts = parts.iter().rev().flat_map(|part| [&b"/"[..], part]);
    (dir == DirId::ROOT).then(|| parts.collect::<Vec<_>>().concat())
}

/// Returns the path of the first of the `names` of a directory, or of a file with several names.
fn path_of_id(names: &NamesById, id: u128) -> Option<Vec<u8>> {
    let (dir, name) = first_name(names, id)?;
    path_of(names, *dir, name)
}

/// Returns the file described by the record under `key` in the links directory.
fn linked_file(key: &Key) -> Option<u128> {
    let id = <[u8; 16]>::try_from(key.string).ok()?;
    (dir_of(key) == DirId::LINKS).then(|| u128::from_be_bytes(id))
}

/// Returns the record of `key` that `namespace` shows, even a tombstone, and its set.
fn record(namespace: &Namespace, key: &Key) -> Result<Option<(SetId, Inode)>> {
    let (layers, mut row) = (namespace.layers(), RowBuffer::default());
    let Some(layer) = layers.get(key, false, true, &mut row)? else { return Ok(None) };
    let Some(set) = layers.set_of(layer) else { return Ok(None) };
    Ok(Some((set, layers.inode(layer, dir_of(key), &row)?)))
}
