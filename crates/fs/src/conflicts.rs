// SPDX-License-Identifier: Apache-2.0
//! Conflicts: files that several bases of a composition changed independently. The stack shows the
//! version of the base that comes first, and hides the others.
//!
//! Two bases conflict at a name if each has a record of it in a set on which the other does not
//! build, and the records differ. A third base that builds on both has decided between them. Sets
//! on which all bases build are not read. The records of the others are merged in order; blocks of
//! names that only one set has are skipped. Paths are looked up for a batch of conflicts at a time,
//! level by level, so memory is bounded by the batch and the number of bases, not by the number of
//! files or directories.
//! If one base removed a directory as a whole and another changed only its entries, no name has records
//! of both: `removed_dirs.rs` finds these conflicts.

mod removed_dirs;

use esker_base::{Error, Kind, Result};
use esker_table::manifest::SetId;
use esker_table::merge::RecordMerge;
use esker_table::schema::{Key, KeyBuffer, RowBuffer};
use hashbrown::{HashMap, HashSet};

use crate::diff::{DiffAspect, NamespaceDiff};
use crate::dir::Dir;
use crate::dir_tree::visit_names;
use crate::identity::Identity;
use crate::inode::{DirId, FileKind, INODE, Inode, NameKind};
use crate::layers::{LayerStack, dir_of, load_stack};
use crate::namespace::Namespace;
use crate::repository::Repository;
use crate::session::Session;

/// Number of conflicts whose paths are looked up together.
const BATCH: usize = 4096;
/// Upper bound of the number of components of a path, from `PATH_BYTES_MAX`.
const DEPTH_MAX: usize = crate::path::PATH_BYTES_MAX / 2;

/// One base's version of a name.
#[derive(Clone, Debug)]
pub struct ConflictingVersion {
    /// Index of the base.
    pub base: usize,
    /// Its inode; `None` if the base removed it.
    pub inode: Option<Inode>,
    /// When the file was modified or removed, as a timestamp.
    pub changed_ns: i64,
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
    /// True for a directory that one base removed while another changed its entries.
    pub is_in_removed_dir: bool,
    /// The versions, with the one that the stack shows first.
    pub versions: Vec<ConflictingVersion>,
    /// How the first two differ, if both have an inode.
    pub aspects: Vec<DiffAspect>,
}

impl BaseConflict {
    /// Returns the version that was changed last; among several, the one that comes first.
    #[must_use]
    pub fn newest(&self) -> &ConflictingVersion {
        let newest = self.versions.iter().rev().max_by_key(|version| version.changed_ns);
        newest.expect("a conflict has versions")
    }
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
    /// paths of each batch of conflicts, a read of the directories' records per level.
    ///
    /// # Errors
    /// `Corrupt`, errors of the store, and errors of `show`.
    pub fn find_conflicts(
        &self,
        show: &mut dyn FnMut(&Self, BaseConflict) -> Result<()>,
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
        let mut more = merge.advance()?;
        while more {
            if merge.lone_block().is_some() {
                more = merge.skip_block()?;
                continue;
            }
            let found: Vec<usize> = merge.versions().iter().map(|at| layer_of[*at]).collect();
            if found.iter().any(|one| found.iter().any(|other| is_apart[*one][*other])) {
                let key: KeyBuffer = merge.key().into();
                if let Some(conflict) = self.conflict_at(&key.key(), &memberships)? {
                    batch.push((key, conflict));
                }
            }
            if batch.len() == BATCH {
                self.show_batch(std::mem::take(&mut batch), show)?;
            }
            more = merge.advance()?;
        }
        self.show_batch(batch, show)?;
        let inside = self.conflicts_in_removed_dirs(&is_apart, &memberships)?;
        self.show_batch(inside, show)
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
            let Some((set, inode)) = record(namespace, key)? else { continue };
            let is_removed = inode.entry == NameKind::Tombstone;
            let changed_ns = if is_removed { inode.ctime_ns } else { inode.mtime_ns };
            let inode = (!is_removed).then_some(inode);
            found.push((set, ConflictingVersion { base, inode, changed_ns }));
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
        let is_in_removed_dir = false;
        let conflict =
            BaseConflict { path: None, name, is_linked, is_in_removed_dir, versions, aspects };
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
        if old.entry == NameKind::Link || new.entry == NameKind::Link {
            let is_same = (old.entry, old.id) == (new.entry, new.id);
            return Ok((!is_same).then(Vec::new));
        }
        if old.is_directory() && new.is_directory() && old.dir_id() != new.dir_id() {
            // One base has replaced the directory: only one of the two has its entries shown.
            return Ok(Some(Vec::new()));
        }
        let diff =
            NamespaceDiff { before: &self.bases[first.base], after: &self.bases[other.base] };
        let aspects = diff.aspects(old, new)?;
        Ok((!aspects.is_empty()).then_some(aspects))
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
        let places = self.find_places(wanted)?;
        for (key, mut conflict) in batch {
            let key = key.key();
            let (mut dir, mut parts) = (dir_of(&key), vec![key.string.to_vec()]);
            if let Some((parent, name)) = linked_file(&key).and_then(|file| places.get(&file)) {
                (dir, parts) = (*parent, vec![name.clone()]);
                conflict.name.clone_from(name);
            }
            while dir != DirId::ROOT && parts.len() < DEPTH_MAX {
                let Some((parent, name)) = places.get(&dir.0) else { break };
                parts.push(name.clone());
                dir = *parent;
            }
            if dir == DirId::ROOT {
                let parts = parts.iter().rev().flat_map(|part| [&b"/"[..], part]);
                conflict.path = Some(parts.collect::<Vec<_>>().concat());
            }
            show(self, conflict)?;
        }
        Ok(())
    }

    /// Returns a name in the composed stack for each `wanted` directory and file with several
    /// names, and for all directories above them.
    fn find_places(&self, mut wanted: HashSet<u128>) -> Result<HashMap<u128, (DirId, Vec<u8>)>> {
        let mut places: HashMap<u128, (DirId, Vec<u8>)> = HashMap::new();
        for _ in 0..DEPTH_MAX {
            wanted.retain(|id| ![DirId::ROOT.0, DirId::LINKS.0].contains(id));
            if wanted.is_empty() {
                break;
            }
            let mut candidates: Vec<(u128, KeyBuffer)> = Vec::new();
            let layers = self.composed.layers().bases().iter();
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
                let shown = record(&self.composed, &key)?.map(|(_, inode)| inode);
                let is_shown = shown.is_some_and(|inode| {
                    inode.id == id
                        && matches!(inode.entry, NameKind::Link | NameKind::Is(FileKind::Directory))
                });
                if is_shown && !places.contains_key(&id) {
                    let parent = dir_of(&key);
                    places.insert(id, (parent, key.string.to_vec()));
                    above.insert(parent.0);
                }
            }
            above.retain(|id| !places.contains_key(id));
            wanted = above;
        }
        Ok(places)
    }
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

/// Why the newest version of what is at `path` cannot be shown.
fn no_newest(path: &[u8], why: &str) -> Error {
    let what = format!(
        "{}: its newest version cannot be shown, since {why}: decide by the order of the bases",
        crate::path::show(path)
    );
    Error::new(Kind::Conflict, what)
}

impl Session {
    /// Makes this session, which was begun on the bases of `composition`, show the newest version
    /// of `conflict`: copies its content, or gives a directory its attributes. Returns false if
    /// nothing changes: the stack already shows that version, or no path leads to it.
    ///
    /// # Errors
    /// `Conflict` if the session cannot show that version: of a directory that one base removed or
    /// replaced, and of a file with several names. As [`Session::unlink`] and
    /// [`Session::create_with`].
    pub fn show_newest(
        &self,
        composition: &ComposedBases,
        conflict: &BaseConflict,
    ) -> Result<bool> {
        let newest = conflict.newest();
        let Some(path) = &conflict.path else { return Ok(false) };
        if conflict.is_in_removed_dir {
            let what = "one base removed the directory, and another changed something in it";
            return Err(no_newest(path, what));
        }
        if newest.base == conflict.versions[0].base {
            return Ok(false);
        }
        let kind_of = |version: &ConflictingVersion| {
            version.inode.as_ref().map(|inode| (inode.kind(), inode.id))
        };
        let (newest_kind, shown_kind) = (kind_of(newest), kind_of(&conflict.versions[0]));
        let is_directory = |kind: Option<(Option<FileKind>, u128)>| {
            matches!(kind, Some((Some(FileKind::Directory), _)))
        };
        let has_link = |kind: Option<(Option<FileKind>, u128)>| matches!(kind, Some((None, _)));
        if conflict.is_linked || has_link(newest_kind) || has_link(shown_kind) {
            return Err(no_newest(path, "the file has several names"));
        }
        let (dir, name) = self.locate(path)?;
        if let (Some(inode), true) =
            (&newest.inode, newest_kind == shown_kind && is_directory(newest_kind))
        {
            return self.adopt_attributes(Some((&dir, name)), inode).map(|()| true);
        }
        if is_directory(newest_kind) || is_directory(shown_kind) {
            return Err(no_newest(path, "in one of the bases it is a directory"));
        }
        match self.unlink(&dir, name) {
            Err(error) if error.kind() == Kind::NotFound => {}
            removed => drop(removed?),
        }
        if let Some(inode) = &newest.inode {
            self.adopt_version(&dir, name, &composition.bases[newest.base], inode)?;
        }
        Ok(true)
    }

    /// Puts a copy of `inode`, as `from` shows it, at `name` in `dir`.
    fn adopt_version(&self, dir: &Dir, name: &[u8], from: &Namespace, inode: &Inode) -> Result<()> {
        let is_file = inode.kind() == Some(FileKind::File);
        let mut copy = Inode { generation: 0, nlink: 1, branch: None, ..inode.clone() };
        if !is_file {
            return self.adopt(dir, name, copy, None).map(drop);
        }
        (copy.mapped, copy.extent, copy.content) = (false, None, Vec::new());
        let mut offset = 0;
        let fill = &mut |buffer: &mut [u8]| {
            let bytes = from.read(inode, offset, buffer.len())?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            offset += bytes.len() as u64;
            Ok(bytes.len())
        };
        self.adopt(dir, name, copy, Some(fill)).map(drop)
    }
}
