// SPDX-License-Identifier: Apache-2.0
//! Layers: the stacked change sets of a namespace; the first one with a record of a name decides.
//! The writer's own tree, if there is one, is on top.
//!
//! Source: DeltaFS thesis §4.3 (search from the root of the stack; a record or tombstone ends it).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use esker_base::store::concurrent;
use esker_base::{Error, Kind, Result};
use esker_extent::{SegmentOverlay, SegmentTables, TreeExtents};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::merge::RecordCursor;
use esker_table::schema::{Key, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::{TableRuns, TableSource};
use esker_table::tree::Tree;
use hashbrown::{HashMap, HashSet};

use crate::inode::{BranchContent, DirId, FileId, FileKind, INODE, Inode, NameKind};
use crate::names;
use crate::retention::condemn;
use crate::stack::lineage::StackLineage;

/// Maximum number of change sets in a stack; squash deeper ones.
pub const LAYERS_MAX: usize = 4096;

/// A complete change set as a layer.
#[derive(Debug)]
pub struct BaseSet {
    /// Identity of the set.
    pub set: SetId,
    /// Its newest manifest when it was opened.
    pub manifest: Manifest,
    /// Its tables of inodes.
    pub tables: TableRuns,
    /// Its tables of segments.
    pub segments: SegmentTables,
}

/// The records of a name in the layers below a writer.
#[derive(Debug, Default)]
pub(crate) struct LowerRecords {
    /// The topmost record, if any.
    pub(crate) inode: Option<Inode>,
    /// The generation of a directory made at the name.
    pub(crate) next_generation: u64,
}

/// The layer of a namespace that decides a key: the writer's tree, or a base by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerIndex(u32);

impl LayerIndex {
    /// The writer's own tree.
    pub(crate) const WRITER: Self = Self(u32::MAX);

    /// Returns the base with this index.
    pub(crate) fn base(index: usize) -> Self {
        Self(u32::try_from(index).expect("a stack has few layers"))
    }

    /// Returns the content that the file has as `file` in this base.
    pub(crate) fn content(self, file: u128) -> BranchContent {
        BranchContent { layer: self.0, file }
    }
}

/// Cursors over the records of a directory.
pub(crate) struct DirCursors {
    /// The cursors, those of the layer that decides first.
    pub(crate) cursors: Vec<RecordCursor>,
    /// The hash at which the writer's cursors end and are incomplete.
    pub(crate) end: Option<u64>,
    /// The layer of each; empty in a chain, where it does not matter.
    pub(crate) layers: Vec<LayerIndex>,
}

/// The layers of a namespace.
#[derive(Debug)]
pub struct LayerStack {
    writer: Option<Tree>,
    bases: Vec<Arc<BaseSet>>,
    source: TableSource,
    lineage: StackLineage,
}

/// Returns `roots` and everything they build on, each set once: before all sets on which it builds,
/// and otherwise in order of priority, depth first. A set therefore always shadows its bases, even
/// if a base is reachable earlier by another path. Sets on a cycle, and those only reachable
/// through it, are left out. Calls `bases_of` once for each set.
pub(crate) fn topological_order<E>(
    roots: &[SetId],
    mut bases_of: impl FnMut(SetId) -> Result<Vec<SetId>, E>,
) -> Result<Vec<SetId>, E> {
    // Sets in the order of the search, with their bases.
    let mut visited: Vec<(SetId, Vec<SetId>)> = Vec::new();
    let mut positions = HashMap::new();
    // How many sets of the stack build on each.
    let mut above: HashMap<SetId, usize> = HashMap::new();
    let mut waiting: Vec<SetId> = roots.iter().rev().copied().collect();
    while let Some(set) = waiting.pop() {
        if positions.contains_key(&set) {
            continue;
        }
        positions.insert(set, visited.len());
        let bases = bases_of(set)?;
        bases.iter().for_each(|base| *above.entry(*base).or_default() += 1);
        waiting.extend(bases.iter().rev());
        visited.push((set, bases));
    }
    let is_free = |position: &usize| !above.contains_key(&visited[*position].0);
    let mut free: BinaryHeap<Reverse<usize>> =
        (0..visited.len()).filter(is_free).map(Reverse).collect();
    let mut order = Vec::with_capacity(visited.len());
    while let Some(Reverse(position)) = free.pop() {
        let (set, bases) = &visited[position];
        order.push(*set);
        for base in bases {
            let left = above.get_mut(base).expect("counted above");
            *left -= 1;
            if *left == 0 {
                free.push(Reverse(positions[base]));
            }
        }
    }
    Ok(order)
}

/// Loads `roots` and everything they build on, in [`topological_order`]. Cost: two store requests
/// per set; on a far store, concurrently for sets at the same height of the stack.
///
/// # Errors
/// `NotFound` or `Invalid` if a set is gone or not complete; `TooLarge` over [`LAYERS_MAX`].
pub(crate) fn load_stack(source: &TableSource, roots: &[SetId]) -> Result<Vec<Arc<BaseSet>>> {
    load_stack_expecting(source, roots, &HashMap::new())
}

/// Like [`load_stack`], for sets whose newest manifests recently had the numbers `expected`.
pub(crate) fn load_stack_expecting(
    source: &TableSource,
    roots: &[SetId],
    expected: &HashMap<SetId, u64>,
) -> Result<Vec<Arc<BaseSet>>> {
    let mut loaded: HashMap<SetId, Arc<BaseSet>> = HashMap::new();
    let mut waiting = roots.to_vec();
    while !waiting.is_empty() {
        let mut visited = HashSet::new();
        waiting.retain(|set| !loaded.contains_key(set) && visited.insert(*set));
        if loaded.len() + waiting.len() > LAYERS_MAX {
            let context = format!("a stack of over {LAYERS_MAX} change sets; squash some first");
            return Err(Error::new(Kind::TooLarge, context));
        }
        let load = |set: &SetId| load_base(source, *set, expected.get(set).copied());
        let bases = concurrent::try_map(&*source.store, &waiting, load)?;
        waiting = bases.iter().flat_map(|base| &base.manifest.bases).copied().collect();
        loaded.extend(bases.into_iter().map(|base| (base.set, base)));
    }
    let order =
        topological_order(roots, |set| Ok::<_, Error>(loaded[&set].manifest.bases.clone()))?;
    if order.len() < loaded.len() {
        let context = "change sets build on each other in a cycle; run `esker verify`";
        return Err(Error::new(Kind::Corrupt, context));
    }
    Ok(order.iter().filter_map(|set| loaded.remove(set)).collect())
}

/// Loads a complete set.
fn load_base(source: &TableSource, set: SetId, expected: Option<u64>) -> Result<Arc<BaseSet>> {
    let manifest = condemn::load_live_expecting(&*source.store, set, expected)?;
    if manifest.state != SetState::Sealed {
        let name = names::spare_name("session", set);
        let context = format!(
            "@{set} is an open session; publish it first, as with `esker publish @{set} {name}`"
        );
        return Err(Error::new(Kind::Invalid, context));
    }
    let tables = TableRuns::new(&manifest.tables, &INODE, source);
    let segments = SegmentTables::new(&manifest.tables, source);
    Ok(Arc::new(BaseSet { set, manifest, tables, segments }))
}

impl LayerStack {
    /// Stacks `writer` on `bases`.
    pub(crate) fn new(source: TableSource, bases: Vec<Arc<BaseSet>>, writer: Option<Tree>) -> Self {
        let layers: Vec<(SetId, &[SetId])> =
            bases.iter().map(|base| (base.set, &base.manifest.bases[..])).collect();
        let lineage = StackLineage::of(&layers);
        Self { writer, bases, source, lineage }
    }

    /// True if some bases do not build on each other, so that one file may be found under several
    /// names, and be a different file under each.
    #[must_use]
    pub fn is_branched(&self) -> bool {
        self.lineage.is_branched()
    }

    /// Returns which bases build on which.
    pub(crate) fn lineage(&self) -> &StackLineage {
        &self.lineage
    }

    /// True if files found in `layer` are shown as of that layer.
    #[inline]
    pub(crate) fn is_branch(&self, layer: LayerIndex) -> bool {
        layer != LayerIndex::WRITER && self.lineage.is_branch(layer.0 as usize)
    }

    /// Decodes the inode of a record of `dir` that was found in `layer`.
    #[inline]
    pub(crate) fn inode(&self, layer: LayerIndex, dir: DirId, row: &RowBuffer) -> Result<Inode> {
        let mut inode = Inode::of_buffer(row)?;
        if inode.seat().is_some() && layer != LayerIndex::WRITER {
            self.show_at_seat(&mut inode)?;
        }
        if self.is_branch(layer) {
            self.show_branch(layer, dir, &mut inode);
        }
        Ok(inode)
    }

    /// True if the writer has a record for `key`.
    pub(crate) fn is_of_writer(&self, key: &Key) -> Result<bool> {
        match &self.writer {
            Some(tree) => tree.get(key, false, &mut RowBuffer::default()),
            None => Ok(false),
        }
    }

    /// Gives `inode`, a name of a directory or file that was at another seat of a live namespace when a
    /// snapshot of it was taken, what the stack has for it: a directory the attributes of that seat's
    /// record, a file its inode in the links directory, as any file with several names. A directory
    /// without a record is shown empty: its server died while it removed it.
    #[cold]
    pub(crate) fn show_at_seat(&self, inode: &mut Inode) -> Result<()> {
        inode.rdev = 0;
        if !inode.is_directory() {
            return Ok(());
        }
        let name = inode.dir_id().seat_root_name();
        let key = crate::inode::key(DirId::SEAT_ROOTS, name.as_bytes());
        let wanted = LookupKey { digest: INODE.digest(&key), key };
        let mut row = RowBuffer::default();
        for base in &self.bases {
            if base.tables.get(&wanted, true, &mut row)? {
                let root = Inode::of_buffer(&row)?;
                if root.is_directory() {
                    // The generation belongs to the name.
                    *inode = Inode { generation: inode.generation, rdev: 0, ..root };
                }
                break;
            }
        }
        Ok(())
    }

    /// Converts `inode`, the record of a name in `dir` of the branch `layer`, to the inode that the
    /// stack shows.
    #[cold]
    pub(crate) fn show_branch(&self, layer: LayerIndex, dir: DirId, inode: &mut Inode) {
        inode.branch = inode.mapped.then(|| Box::new(layer.content(inode.id)));
        inode.id = self.shown_id(layer, dir, inode.entry, inode.id);
    }

    /// Returns the identity under which the stack shows the file that the branch `layer` has as
    /// `id` in `dir`. A file with several names keeps its own: the links directory has one record
    /// for it, to which names in all branches refer. So does a directory, whose entries are merged.
    pub(crate) fn shown_id(
        &self,
        layer: LayerIndex,
        dir: DirId,
        entry: NameKind,
        id: u128,
    ) -> u128 {
        let is_kept = match entry {
            NameKind::Tombstone | NameKind::Link | NameKind::Is(FileKind::Directory) => true,
            NameKind::Is(_) => dir == DirId::LINKS,
        };
        match self.bases.get(layer.0 as usize) {
            Some(base) if !is_kept => FileId(id).of_branch(base.set).0,
            _ => id,
        }
    }

    /// Returns the set of `layer`; `None` for the writer's.
    pub(crate) fn set_of(&self, layer: LayerIndex) -> Option<SetId> {
        self.bases.get(layer.0 as usize).map(|base| base.set)
    }

    /// Returns the tree that takes writes, if there is one.
    #[must_use]
    pub fn writer(&self) -> Option<&Tree> {
        self.writer.as_ref()
    }

    /// Returns the layers below the writer.
    #[must_use]
    pub fn bases(&self) -> &[Arc<BaseSet>] {
        &self.bases
    }

    /// Returns the source of tables.
    #[must_use]
    pub fn source(&self) -> &TableSource {
        &self.source
    }

    /// Reads the record that decides `key` and returns its layer; `None` if there is none. Reads
    /// strings only if `with_strings`. With `is_absent_below`, skips the layers below, which cannot
    /// have the key.
    #[inline]
    pub(crate) fn get(
        &self,
        key: &Key,
        is_absent_below: bool,
        with_strings: bool,
        out: &mut RowBuffer,
    ) -> Result<Option<LayerIndex>> {
        if let Some(tree) = &self.writer
            && tree.get(key, with_strings, out)?
        {
            return Ok(Some(LayerIndex::WRITER));
        }
        if is_absent_below || self.bases.is_empty() {
            return Ok(None);
        }
        let wanted = LookupKey { digest: INODE.digest(key), key: *key };
        for (index, base) in self.bases.iter().enumerate() {
            if base.tables.get(&wanted, with_strings, out)? {
                return Ok(Some(LayerIndex::base(index)));
            }
        }
        Ok(None)
    }

    /// Looks up the root directory's record, to bring its tables into memory.
    pub(crate) fn warm_root(&self) -> Result<()> {
        let key = crate::inode::key(DirId::ROOT, b"");
        self.get(&key, false, true, &mut RowBuffer::default()).map(drop)
    }

    /// Returns the records that the layers below the writer have for `key`. Reads all of them,
    /// because the next generation of a directory must exceed the generations in all layers.
    pub(crate) fn below(&self, key: &Key, is_absent_below: bool) -> Result<LowerRecords> {
        let mut below = LowerRecords::default();
        if is_absent_below || self.bases.is_empty() {
            return Ok(below);
        }
        let wanted = LookupKey { digest: INODE.digest(key), key: *key };
        let mut row = RowBuffer::default();
        for (index, base) in self.bases.iter().enumerate() {
            if base.tables.get(&wanted, true, &mut row)? {
                let inode = self.inode(LayerIndex::base(index), dir_of(key), &row)?;
                below.next_generation = below.next_generation.max(inode.next_generation());
                below.inode.get_or_insert(inode);
            }
        }
        Ok(below)
    }

    /// Returns the segments of `range` of the file `inode`, under the identity that the file has in
    /// the extent table. Cost: about a block read for each run of segments, in all layers over
    /// which the content is spread, until the range is covered.
    pub(crate) fn segments(&self, inode: &Inode, range: Range<u64>) -> Result<SegmentOverlay> {
        if let Some(content) = &inode.branch {
            return self.branch_segments(content, range);
        }
        let mut overlay = SegmentOverlay::new(inode.id, range);
        if let Some(tree) = &self.writer {
            TreeExtents::of(tree).read_segments(&mut overlay)?;
        }
        for base in &self.bases {
            overlay.add_tables(&base.segments)?;
        }
        Ok(overlay)
    }

    /// Like [`LayerStack::segments`], for content as of a branch.
    pub(crate) fn branch_segments(
        &self,
        content: &BranchContent,
        range: Range<u64>,
    ) -> Result<SegmentOverlay> {
        let mut overlay = SegmentOverlay::new(content.file, range);
        for index in self.lineage.closure(content.layer as usize) {
            if overlay.is_covered() {
                break;
            }
            overlay.add_tables(&self.bases[index].segments)?;
        }
        Ok(overlay)
    }

    /// Returns cursors over the records of a directory, starting at the key `from`.
    pub(crate) fn cursors(&self, from: &Key, limit: usize) -> DirCursors {
        let (mut cursors, end) = match &self.writer {
            Some(tree) => {
                let own = tree.group_cursors(from, limit);
                (own.cursors, own.end)
            }
            None => (Vec::new(), None),
        };
        let to = INODE.group_last(from);
        let mut layers = Vec::new();
        if self.is_branched() {
            layers.resize(cursors.len(), LayerIndex::WRITER);
        }
        for (index, base) in self.bases.iter().enumerate() {
            base.tables.cursors(&INODE, from, &to, &mut cursors);
            if self.is_branched() {
                layers.resize(cursors.len(), LayerIndex::base(index));
            }
        }
        DirCursors { cursors, end, layers }
    }
}

/// Returns the directory of `key`.
pub(crate) fn dir_of(key: &Key) -> DirId {
    DirId(u128::from(key.ints[0]) << 64 | u128::from(key.ints[1]))
}
