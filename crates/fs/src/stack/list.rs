// SPDX-License-Identifier: Apache-2.0
//! Listing: the entries of a directory after a cursor, in order of the hash of their names.
//!
//! The cursor is the last entry seen, so it stays valid while entries come and go, and across
//! restarts. Entries added or removed during a listing may or may not be seen; all others are seen
//! exactly once.

use std::ops::ControlFlow;

use esker_base::{Error, Kind, Result};
use esker_table::block::DecodedBlock;
use esker_table::merge::RecordMerge;
use esker_table::schema::{Key, KeyBuffer};

use crate::inode::{FileKind, Inode, NameKind, column, key};
use crate::stack::dir::{Dir, DirNode};
use crate::stack::identity::READ;
use crate::stack::layers::{DirCursors, LayerIndex, dir_of};
use crate::stack::namespace::Namespace;
use crate::stack::path::{SEPARATORS, check_name, is_name_without_separators};

/// Number of the records of directories.
const DIRECTORY: u64 = NameKind::Is(FileKind::Directory).number();

/// Number of rows of the active memtable read at once.
const PAGE_ROWS: usize = 8192;

/// Position at which a listing continues: after the entry of this name, or at this hash of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DirCursor {
    /// The last entry's name; empty to continue at a hash.
    name: Vec<u8>,
    /// 0 at the start.
    hash: u64,
}

impl DirCursor {
    /// Returns the position after the entry `name`, which need not exist any more.
    #[must_use]
    pub fn after(name: &[u8]) -> Self {
        Self { name: name.to_vec(), hash: 0 }
    }

    /// Returns the position of the first entry whose name has a hash of at least `hash`.
    #[must_use]
    pub fn at_hash(hash: u64) -> Self {
        Self { name: Vec::new(), hash }
    }
}

/// An entry of a directory, while it is visited.
#[derive(Debug)]
pub struct EntryView<'a> {
    namespace: &'a Namespace,
    block: &'a DecodedBlock,
    row: usize,
    /// The layer of the record.
    layer: LayerIndex,
    /// Flush counter, read before the block.
    flushes: u64,
}

/// An entry of a directory with its attributes.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its inode, with content and extended attributes.
    pub inode: Inode,
    /// True if other names of the file may exist, whatever its link count: counts of a stack can be
    /// too low.
    pub may_have_other_names: bool,
}

/// Fails for a name in `block` that no session could have written.
#[inline]
fn check_stored_name(dir: &DirNode, name: &[u8], block: &DecodedBlock) -> Result<()> {
    match is_name_without_separators(name) && !block.has_byte(column::NAME, SEPARATORS) {
        true => Ok(()),
        false => check_strange_name(dir, name),
    }
}

/// Like [`check_stored_name`], in a block in which some name is wrong.
#[cold]
fn check_strange_name(dir: &DirNode, name: &[u8]) -> Result<()> {
    check_name(name).map_err(|error| {
        let context =
            format!("a record in directory {}: {}; run `esker verify`", dir.id(), error.context());
        Error::new(Kind::Corrupt, context)
    })
}

impl<'a> EntryView<'a> {
    /// Its name.
    #[inline]
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        self.block.string(column::NAME, self.row)
    }

    /// Hash of its name, by which entries are ordered.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.block.int(column::HASH, self.row)
    }

    /// True if it is shown as a directory, which never has several names.
    fn is_shown_as_directory(&self) -> bool {
        let entry = NameKind::of_number(self.block.int(column::ENTRY, self.row));
        matches!(entry, Some(NameKind::Is(kind)) if kind.is_shown_as_directory())
    }

    /// True if other names of the file may exist.
    fn may_have_other_names(&self) -> bool {
        self.block.int(column::ENTRY, self.row) == NameKind::Link.number()
    }

    /// Its kind. Cost: a look-up if the file has several names.
    pub fn kind(&self) -> Result<FileKind> {
        match NameKind::of_number(self.block.int(column::ENTRY, self.row)) {
            Some(NameKind::Is(kind)) => Ok(kind),
            _ => self.inode().map(|inode| inode.kind().unwrap_or(FileKind::File)),
        }
    }

    /// Its inode, with content and extended attributes. Cost: a look-up if the file has several
    /// names.
    #[inline]
    pub fn inode(&self) -> Result<Inode> {
        let entry = self.block.int(column::ENTRY, self.row);
        let is_elsewhere = entry == NameKind::Link.number()
            || entry == DIRECTORY && self.block.int(column::RDEV, self.row) != 0;
        let files = self.namespace.files();
        if !is_elsewhere
            && !self.namespace.layers().is_branch(self.layer)
            && files.is_empty()
            && files.flushes() == self.flushes
            && let Some(inode) = Inode::of_plain_block(self.block, self.row)
        {
            return inode;
        }
        self.any_inode().map(|inode| *inode)
    }

    /// Like [`EntryView::inode`], for a record that may be incomplete or differs from others in
    /// unusual columns. Boxed so that the common case stays in registers.
    #[inline(never)]
    fn any_inode(&self) -> Result<Box<Inode>> {
        let (block, row, namespace) = (self.block, self.row, self.namespace);
        let name = self.name();
        let key = Key { ints: [0, 1, 2].map(|column| block.int(column, row)), string: name };
        let mut flushes = self.flushes;
        let mut inode = Box::new(Inode::of_block(block, row)?);
        if inode.seat().is_some() && !namespace.layers().is_of_writer(&key)? {
            namespace.layers().show_at_seat(&mut inode)?;
        }
        if namespace.layers().is_branch(self.layer) {
            namespace.layers().show_branch(self.layer, dir_of(&key), &mut inode);
        }
        loop {
            if inode.entry == NameKind::Link && inode.seat().is_none() {
                *inode = namespace.linked(inode.id, true)?;
            }
            let is_file = inode.entry == NameKind::Is(FileKind::File);
            if !is_file || namespace.files().overlay(&mut inode, flushes) {
                return Ok(inode);
            }
            flushes = namespace.files().flushes();
            match namespace.record(&key, false, true)? {
                Some(current) => *inode = current,
                // It was removed in the meantime.
                None => return Ok(inode),
            }
        }
    }
}

impl Namespace {
    /// Visits the entries of `dir` after `cursor` until `visit` breaks or there are no more. `.`
    /// and `..` are not among them. Cost: the blocks of the directory, read ahead.
    ///
    /// # Errors
    /// `Denied` without permission to read `dir`; `Corrupt` at a name that no file can have; errors
    /// of `visit`.
    pub fn list(
        &self,
        dir: &Dir,
        cursor: &DirCursor,
        visit: &mut dyn FnMut(&EntryView) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        dir.check_alive()?;
        dir.check(self.identity(), READ, b"list the directory")?;
        self.list_unchecked(dir, cursor, visit)
    }

    pub(crate) fn list_unchecked(
        &self,
        dir: &DirNode,
        cursor: &DirCursor,
        visit: &mut dyn FnMut(&EntryView) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut from = match cursor.name.is_empty() {
            true => KeyBuffer { string: Vec::new(), ..key(dir.id(), b"").into() },
            false => key(dir.id(), &cursor.name).into(),
        };
        if cursor.name.is_empty() {
            from.ints[2] = cursor.hash;
        }
        loop {
            let flushes = self.files().flushes();
            let DirCursors { cursors, end, layers } = self.layers().cursors(&from.key(), PAGE_ROWS);
            let mut merge = RecordMerge::new(cursors, &from.key())?;
            while merge.advance()? {
                let (block, row) = merge.newest_record();
                if (0..2).any(|column| block.int(column, row) != from.ints[column]) {
                    break;
                }
                if end.is_some_and(|end| block.int(column::HASH, row) >= end) {
                    break;
                }
                let name = block.string(column::NAME, row);
                // The root stores its own inode under the empty name.
                if block.int(column::ENTRY, row) == 0 || name.is_empty() || name == cursor.name {
                    continue;
                }
                // Callers build paths from names, and a store may contain any bytes.
                check_stored_name(dir, name, block)?;
                let layer = match layers.is_empty() {
                    true => LayerIndex::WRITER,
                    false => layers[merge.versions()[0]],
                };
                if visit(&EntryView { namespace: self, block, row, layer, flushes })?.is_break() {
                    return Ok(());
                }
            }
            match end {
                Some(end) => {
                    from = Key { ints: [from.ints[0], from.ints[1], end], string: &[] }.into();
                }
                None => return Ok(()),
            }
        }
    }

    /// Returns up to `limit` entries of `dir` after `cursor`; fewer only at the end.
    pub fn read_dir(&self, dir: &Dir, cursor: &DirCursor, limit: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        if limit == 0 {
            return Ok(entries);
        }
        self.list(dir, cursor, &mut |entry| {
            let mut inode = entry.inode()?;
            if inode.is_directory() {
                self.overlay_times(&mut inode);
            }
            let may_have_other_names = entry.may_have_other_names();
            entries.push(DirEntry { name: entry.name().to_vec(), inode, may_have_other_names });
            let full = entries.len() == limit;
            Ok(if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(entries)
    }

    /// Returns the number of directories in `dir`; `None` if it has more than `entries_max`
    /// entries, which are then not all read. Does not require permission to read `dir`, since its
    /// link count reveals the same. Cost: as [`Namespace::list`].
    ///
    /// # Errors
    /// `NotFound` once it was removed; errors of the store.
    pub fn count_directories(&self, dir: &Dir, entries_max: u32) -> Result<Option<u32>> {
        dir.check_alive()?;
        let (mut entries, mut directories) = (0, 0);
        self.list_unchecked(dir, &DirCursor::default(), &mut |entry| {
            entries += 1;
            directories += u32::from(entry.is_shown_as_directory());
            let goes_on = entries <= entries_max;
            Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok((entries <= entries_max).then_some(directories))
    }

    /// True if `dir` has no entries.
    pub(crate) fn is_empty(&self, dir: &DirNode) -> Result<bool> {
        let mut empty = true;
        self.list_unchecked(dir, &DirCursor::default(), &mut |_| {
            empty = false;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(empty)
    }
}
