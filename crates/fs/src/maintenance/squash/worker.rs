// SPDX-License-Identifier: Apache-2.0
//! Worker of a merge: reads one key range of all layers and writes it as part of one run.
//!
//! The hot path works on stored integers and allocates nothing per record. Blocks whose keys no
//! other source has, and in which nothing changes, are copied without re-encoding.

use esker_base::Result;
use esker_base::store::SharedStore;
use esker_table::block::DecodedBlock;
use esker_table::key_ranges::{KeyRange, RANGES_MAX};
use esker_table::manifest::{SetId, TableRef};
use esker_table::merge::{LoneBlock, RecordMerge};
use esker_table::run_writer::RunWriter;
use esker_table::schema::{Key, Row};
use esker_table::tables::TableRuns;

use super::file_data::{FileData, PlacedData};
use super::segments::MappedFile;
use crate::inode::indexed::{self, IndexedPart};
use crate::inode::{DirId, Extent, FileId, FileKind, INODE, Inode, MAPPED, NameKind, column};
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::{LayerIndex, LayerStack, dir_of};

/// Tables and logs of a range are numbered from its multiple of this.
pub(super) const NUMBERS_PER_RANGE: u64 = 1 << 20;
// One more for the segments.
const _: () = assert!((RANGES_MAX as u64 + 1) * NUMBERS_PER_RANGE <= 1 << 32);

/// A name that was a directory more often than this keeps its generation without checking whether
/// it is needed, which costs a hash per generation.
const GENERATIONS_CHECKED_MAX: u64 = 16;

const TOMBSTONE: u64 = NameKind::Tombstone.number();
const FILE: u64 = NameKind::Is(FileKind::File).number();
const INDEXED: u64 = NameKind::Is(FileKind::Indexed).number();
const DIRECTORY: u64 = NameKind::Is(FileKind::Directory).number();
/// The columns of [`DirId::SEAT_ROOTS`] in a key.
const SEAT_ROOTS: [u64; 2] = [u64::MAX, DirId::SEAT_ROOTS.0 as u64];

/// Parameters of a merge.
pub(super) struct SquashJob<'a> {
    /// Store to write to.
    pub(super) store: &'a SharedStore,
    /// The set being written.
    pub(super) set: SetId,
    /// The writer's epoch.
    pub(super) epoch: u64,
    /// Number of the run being written.
    pub(super) run: u64,
    /// Its sources, in order of precedence.
    pub(super) layers: &'a [&'a TableRuns],
    /// True if nothing is below the layers, so that tombstones hide nothing.
    pub(super) bottom: bool,
    /// `None` to merge the tables of one set: all records and all data then stay as they are.
    pub(super) squash: Option<SquashPlan<'a>>,
}

impl SquashJob<'_> {
    /// True if file data is copied.
    pub(super) fn copies_data(&self) -> bool {
        self.squash.is_some_and(|squash| squash.copies_data)
    }
}

/// Knowledge about the stack when a whole stack is merged.
#[derive(Clone, Copy)]
pub(super) struct SquashPlan<'a> {
    /// Directories whose records stay, and names of files with several.
    pub(super) tree: &'a DirTree,
    /// The stack whose tables are merged.
    pub(super) stack: &'a LayerStack,
    /// True to copy file data, false to refer to it.
    pub(super) copies_data: bool,
}

/// Result of a range.
#[derive(Default)]
pub(super) struct MergedRange {
    /// Index of the range.
    pub(super) range: usize,
    /// Its tables.
    pub(super) tables: Vec<TableRef>,
    /// Counts.
    pub(super) counts: SquashCounts,
    /// Files whose content is in the extent table.
    pub(super) mapped: Vec<MappedFile>,
    /// Place of the data of its records.
    pub(super) data: PlacedData,
}

/// Statistics of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SquashCounts {
    /// Records read.
    pub read: u64,
    /// Records written.
    pub written: u64,
    /// Records shadowed by newer ones.
    pub shadowed: u64,
    /// Tombstones that no longer hid anything.
    pub tombstones: u64,
    /// Records of directories and files to which no path leads.
    pub unreachable: u64,
    /// Bytes of file data copied.
    pub data_bytes: u64,
}

impl SquashCounts {
    /// Adds `other`.
    pub(super) fn add(&mut self, other: &Self) {
        self.read += other.read;
        self.written += other.written;
        self.shadowed += other.shadowed;
        self.tombstones += other.tombstones;
        self.unreachable += other.unreachable;
        self.data_bytes += other.data_bytes;
    }
}

/// Decision about a record.
enum RecordFate {
    Kept,
    Unreachable,
    Hidden,
}

struct SquashWorker<'a> {
    job: &'a SquashJob<'a>,
    /// The last directory looked up, and whether it is live.
    dir: ([u64; 2], bool),
    data: FileData<'a>,
    counts: SquashCounts,
    mapped: Vec<MappedFile>,
}

/// Merges range number `index`.
pub(super) fn merge_range(job: &SquashJob, index: usize, range: &KeyRange) -> Result<MergedRange> {
    let first_number = (job.epoch << 32) | (index as u64 * NUMBERS_PER_RANGE);
    let mut next_table = first_number;
    let mut writer = RunWriter::new(&INODE, job.store, job.set, job.run, &mut next_table);
    let mut worker = SquashWorker {
        job,
        dir: ([0; 2], true),
        data: FileData::new(job.store, job.set, first_number, job.copies_data()),
        counts: SquashCounts::default(),
        mapped: Vec::new(),
    };
    worker.run(range, &mut writer)?;
    let SquashWorker { data, mut counts, mapped, .. } = worker;
    let data = data.finish()?;
    counts.data_bytes = data.copied_bytes;
    Ok(MergedRange { range: index, tables: writer.finish()?, counts, mapped, data })
}

impl SquashWorker<'_> {
    fn run(&mut self, range: &KeyRange, writer: &mut RunWriter) -> Result<()> {
        let (from, to) = (range.from.key(), range.end.as_ref().map(|end| end.key()));
        let (mut cursors, mut layer_of) = (Vec::new(), Vec::new());
        for (layer, tables) in self.job.layers.iter().enumerate() {
            tables.cursors(&INODE, &from, &to.unwrap_or(Key::LAST), &mut cursors);
            layer_of.resize(cursors.len(), layer);
        }
        let mut merge = RecordMerge::new(cursors, &from)?;
        while merge.advance_past(|block| {
            let passes = self.passes(block.records, layer_of[block.source], to.as_ref());
            if passes {
                self.copy_block(block, writer)?;
            }
            Ok(passes)
        })? {
            let layer = layer_of[merge.versions()[0]];
            let earlier;
            let mut row = merge.row();
            if to.is_some_and(|to| INODE.key(&row) >= to) {
                break;
            }
            let versions = merge.versions();
            self.counts.read += versions.len() as u64;
            self.counts.shadowed += versions.len() as u64 - 1;
            if self.job.squash.is_some() && versions.len() > 1 {
                keep_generation(&merge, &mut row);
            }
            match self.fate(&row) {
                RecordFate::Kept => {
                    self.counts.written += 1;
                    if let Some(squash) = self.job.squash {
                        count_names(&squash, &mut row);
                        self.move_content(&mut row, layer)?;
                        earlier = self.move_earlier_parts(&row)?;
                        if let Some(earlier) = &earlier {
                            row.strings[column::CONTENT] = earlier;
                        }
                    }
                    writer.push(&row)?;
                }
                RecordFate::Unreachable if self.is_generation_needed(&row) => {
                    self.counts.written += 1;
                    let (key, inode) = (INODE.key(&row), bare_generation(&row));
                    let mut bare = inode.row(&key);
                    INODE.store(&mut bare.ints);
                    writer.push(&bare)?;
                }
                RecordFate::Unreachable => self.counts.unreachable += 1,
                RecordFate::Hidden => self.counts.tombstones += 1,
            }
        }
        Ok(())
    }

    /// Copies a block that [`SquashWorker::passes`].
    fn copy_block(&mut self, block: &LoneBlock, writer: &mut RunWriter) -> Result<()> {
        self.refer_to_data_of(block.records);
        self.counts.read += block.records.rows() as u64;
        self.counts.written += block.records.rows() as u64;
        writer.push_block(block.encoded, block.records)
    }

    /// True if a block of `layer`, the only source of its keys, can be copied as it is.
    fn passes(&mut self, block: &DecodedBlock, layer: usize, to: Option<&Key>) -> bool {
        let last = block.rows() - 1;
        if to.is_some_and(|to| block.key(&INODE, last) >= *to) {
            return false;
        }
        if self.job.bottom && block.values(column::ENTRY).contains(&TOMBSTONE) {
            return false;
        }
        if self.job.squash.is_none() {
            return true;
        }
        let made_by = block.values(column::ID_HIGH);
        let is_of_layer =
            made_by.iter().all(|high| *high == made_by[0]) && self.is_of_layer(made_by[0], layer);
        if self.is_branch(layer) && !is_of_layer {
            return false;
        }
        if !is_zero(block, column::RDEV) || (self.job.copies_data() && has_extents(block)) {
            return false;
        }
        // Its content lists the parts of an indexed directory.
        if block.values(column::ENTRY).contains(&INDEXED) {
            return false;
        }
        let dir = |row| [block.int(0, row), block.int(1, row)];
        // Hidden directories, whose records may go, come last.
        dir(last) < SEAT_ROOTS
            && self.is_live(dir(0))
            && (dir(0) == dir(last) || (0..=last).all(|row| self.is_live(dir(row))))
    }

    /// Records the data logs to which the records of `block`, which is copied as it is, refer.
    fn refer_to_data_of(&mut self, block: &DecodedBlock) {
        let FileData::Referenced(references) = &mut self.data else { return };
        if self.job.squash.is_none() || !has_extents(block) {
            return;
        }
        for row in 0..block.rows() {
            let columns = [column::LOG_SET_HIGH, column::LOG_SET_LOW, column::LOG];
            let [high, low, log] = columns.map(|column| block.int(column, row));
            let set = SetId(u128::from(high) << 64 | u128::from(low));
            if set != SetId::default() {
                references.add(set, log);
            }
        }
    }

    #[inline]
    fn is_live(&mut self, dir: [u64; 2]) -> bool {
        if self.dir.0 != dir {
            let id = DirId(u128::from(dir[0]) << 64 | u128::from(dir[1]));
            self.dir = (dir, self.job.squash.is_none_or(|squash| squash.tree.is_live(id)));
        }
        self.dir.1
    }

    #[inline]
    fn fate(&mut self, row: &Row) -> RecordFate {
        if !self.is_live([row.ints[0], row.ints[1]]) {
            return RecordFate::Unreachable;
        }
        if row.ints[column::ENTRY] == TOMBSTONE {
            // A generation is kept: otherwise a directory made at the name could take the identity
            // of one that exists elsewhere, or whose entries do.
            let hides_nothing = self.job.bottom && row.ints[column::GENERATION] == 0;
            return if hides_nothing { RecordFate::Hidden } else { RecordFate::Kept };
        }
        // The file has its names in directories, where they are links like others.
        if row.ints[column::ENTRY] == NameKind::Link.number()
            && row.ints[..2] == SEAT_ROOTS
            && self.job.squash.is_some()
        {
            return RecordFate::Unreachable;
        }
        if let Some(squash) = self.job.squash
            && let Some(file) = linked_file(row)
            && squash.tree.names_of(file) == 0
        {
            return RecordFate::Unreachable;
        }
        RecordFate::Kept
    }

    /// True if the set of `layer` made the file with these upper bits of an identity. Such files
    /// keep their identity even in a branch.
    fn is_of_layer(&self, id_high: u64, layer: usize) -> bool {
        let set = self.job.squash.map(|squash| squash.stack.bases()[layer].set);
        set.is_some_and(|set| FileId(u128::from(id_high) << 64).is_of(set))
    }

    fn is_branch(&self, layer: usize) -> bool {
        self.job.squash.is_some_and(|squash| squash.stack.lineage().is_branch(layer))
    }

    /// True if a live directory has an identity that a directory made at the name of `row` would
    /// get unless the name keeps its generation. No path leads to the directory of `row`, but one
    /// does in another stack if a layer there has moved that directory.
    fn is_generation_needed(&self, row: &Row) -> bool {
        let Some(squash) = self.job.squash else { return false };
        let (dir, name) = (dir_of(&INODE.key(row)), row.strings[column::NAME]);
        let next = next_generation(&row.ints);
        let is_live = |generation| squash.tree.is_live(DirId::child(dir, generation, name));
        next > GENERATIONS_CHECKED_MAX || (0..next).any(is_live)
    }

    /// Gives the file of `row`, which is kept and was found in `layer`, the identity that the stack
    /// shows, and moves or registers its content.
    fn move_content(&mut self, row: &mut Row, layer: usize) -> Result<()> {
        let is_mapped = row.ints[column::ENTRY] == FILE && row.ints[column::RDEV] == MAPPED;
        if is_mapped
            || (self.is_branch(layer) && !self.is_of_layer(row.ints[column::ID_HIGH], layer))
        {
            let mut ints = row.ints;
            INODE.restore(&mut ints);
            let stored = u128::from(ints[column::ID_HIGH]) << 64 | u128::from(ints[column::ID_LOW]);
            let (mut id, mut branch) = (stored, None);
            if self.is_branch(layer)
                && let Some(squash) = self.job.squash
                && let Some(entry) = NameKind::of_number(ints[column::ENTRY])
            {
                let (dir, index) = (dir_of(&INODE.key(row)), LayerIndex::base(layer));
                id = squash.stack.shown_id(index, dir, entry, stored);
                branch = Some(index.content(stored));
                ints[column::ID_HIGH] = (id >> 64) as u64;
                ints[column::ID_LOW] = id as u64;
            }
            if is_mapped {
                self.mapped.push(MappedFile { id, size: ints[column::SIZE], branch });
            }
            INODE.store(&mut ints);
            row.ints = ints;
        }
        if has_extent(row) { self.move_data(row) } else { Ok(()) }
    }

    /// Makes `row` refer to where the new set has its data.
    fn move_data(&mut self, row: &mut Row) -> Result<()> {
        use column as c;
        let mut ints = row.ints;
        INODE.restore(&mut ints);
        let extent = Extent {
            set: SetId(u128::from(ints[c::LOG_SET_HIGH]) << 64 | u128::from(ints[c::LOG_SET_LOW])),
            log: ints[c::LOG],
            offset: ints[c::LOG_OFFSET],
            length: ints[c::LOG_LENGTH],
            written: ints[c::LOG_WRITTEN],
            checksum: ints[c::LOG_CHECKSUM] as u32,
        };
        let placed = match ints[c::ENTRY] {
            INDEXED => self.data.move_part(IndexedPart::of_extent(&extent))?.extent(),
            _ => self.data.move_extent(extent)?,
        };
        if placed == extent {
            return Ok(());
        }
        ints[c::LOG_SET_HIGH] = (placed.set.0 >> 64) as u64;
        ints[c::LOG_SET_LOW] = placed.set.0 as u64;
        ints[c::LOG] = placed.log;
        ints[c::LOG_OFFSET] = placed.offset;
        ints[c::LOG_WRITTEN] = placed.written;
        ints[c::LOG_CHECKSUM] = u64::from(placed.checksum);
        INODE.store(&mut ints);
        row.ints = ints;
        Ok(())
    }

    /// Moves the parts of an indexed directory that the content of `row` lists; returns the list of
    /// their new places.
    fn move_earlier_parts(&mut self, row: &Row) -> Result<Option<Vec<u8>>> {
        let content = row.strings[column::CONTENT];
        if row.ints[column::ENTRY] != INDEXED || content.is_empty() {
            return Ok(None);
        }
        let earlier = indexed::earlier_parts(content).map(|part| self.data.move_part(part));
        Ok(Some(indexed::list(&earlier.collect::<Result<Vec<_>>>()?)))
    }
}

/// Returns the file of `row`, a record of the links directory; `None` for other records.
fn linked_file(row: &Row) -> Option<u128> {
    if row.ints[..2] != [u64::MAX; 2] {
        return None;
    }
    <[u8; 16]>::try_from(row.strings[column::NAME]).ok().map(u128::from_be_bytes)
}

/// Gives a file with several names at least as many links as it has names. Only branches, which do
/// not know each other's names, may have counted fewer. Counts can also be too high where a tree
/// was removed as a whole, and then stay as the stack shows them; names among the seat roots, which go,
/// may have been counted.
fn count_names(squash: &SquashPlan, row: &mut Row) {
    if row.ints[column::ENTRY] != TOMBSTONE
        && let Some(file) = linked_file(row)
    {
        let names = u64::from(squash.tree.names_of(file));
        let counted = row.ints[column::NLINK];
        let is_exact = squash.stack.is_branched() || squash.tree.names_at_seat(file) > 0;
        row.ints[column::NLINK] = if is_exact { names } else { counted.max(names) };
    }
}

/// Returns a record of only the generation of `row`.
fn bare_generation(row: &Row) -> Inode {
    let mut ints = row.ints;
    INODE.restore(&mut ints);
    let (seq, ctime_ns) = (ints[column::SEQ], ints[column::CTIME].cast_signed());
    Inode { seq, ..Inode::tombstone(next_generation(&ints), ctime_ns) }
}

/// Returns the generation of a directory made after a record.
fn next_generation(ints: &[u64]) -> u64 {
    ints[column::GENERATION].saturating_add(u64::from(ints[column::ENTRY] == DIRECTORY))
}

fn has_extents(block: &DecodedBlock) -> bool {
    let columns = [column::LOG_SET_HIGH, column::LOG_SET_LOW];
    !columns.into_iter().all(|column| is_zero(block, column))
}

fn is_zero(block: &DecodedBlock, column: usize) -> bool {
    block.values(column).iter().all(|value| *value == 0)
}

fn has_extent(row: &Row) -> bool {
    row.ints[column::LOG_SET_HIGH] | row.ints[column::LOG_SET_LOW] != 0
}

/// Raises the generation of `row` so that the next directory at its name exceeds those of all
/// versions (`layers.rs`, `below`).
fn keep_generation(merge: &RecordMerge, row: &mut Row) {
    let versions = merge.versions().iter();
    let next = versions.map(|&source| next_generation(&merge.version(source).ints));
    let highest = next.max().unwrap_or(0);
    let is_directory = u64::from(row.ints[column::ENTRY] == DIRECTORY);
    row.ints[column::GENERATION] =
        row.ints[column::GENERATION].max(highest - is_directory.min(highest));
}
