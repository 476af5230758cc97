// SPDX-License-Identifier: Apache-2.0
//! Indexed directories: naming a finished one, or appending it to one that already has a name.

use esker_base::{Error, Kind, Result};

use super::insert::NewInode;
use crate::file::FILE_BYTES_MAX;
use crate::inode::indexed::{self, IndexedPart, PARTS_MAX};
use crate::inode::{FileKind, Inode, NameKind};
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::identity::WRITE;
use crate::stack::path::show;

impl Session {
    /// Creates the entry `name` in `dir` for the indexed directory `number` of `size` bytes, which
    /// was finished under [`indexed::prefix`] of this session's set and that number.
    ///
    /// Once this returns, the entry survives as the session's durability promises. Cost: one read.
    ///
    /// # Errors
    /// `NotFound` if no directory of that number was finished; as [`Session::create`].
    pub fn create_indexed(
        &self,
        dir: &Dir,
        name: &[u8],
        mode: u32,
        number: u64,
        size: u64,
    ) -> Result<Inode> {
        let part = self.finished_part(number)?;
        let entry = NameKind::Is(FileKind::Indexed);
        let mut inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        inode.size = size;
        inode.extent = Some(part.extent());
        let mut new = NewInode::of(inode);
        self.insert(dir, name, &mut new)?;
        Ok(new.inode)
    }

    /// Appends the directory `number` of `size` bytes, finished as for [`Session::create_indexed`],
    /// to the indexed directory `name` in `dir`, whose epochs precede the new ones. The caller has
    /// checked that both have the same kind of records.
    ///
    /// Once this returns, the change survives as the session's durability promises. Cost: one read.
    ///
    /// # Errors
    /// `NotFound` if no directory of that number was finished; `NotADirectory` if `name` is not an
    /// indexed directory; `TooLarge` if it has [`PARTS_MAX`] parts; as [`Session::setattr`].
    pub fn append_indexed(&self, dir: &Dir, name: &[u8], number: u64, size: u64) -> Result<Inode> {
        let part = self.finished_part(number)?;
        dir.check_name(name)?;
        let _structure = self.read_structure();
        self.check_search(dir, name)?;
        self.update_inode(dir, name, |inode| {
            self.namespace().identity().check(WRITE, inode, name)?;
            let parts = indexed::parts_of(inode);
            let refused =
                |kind, what: &str| Err(Error::new(kind, format!("{}: {what}", show(name))));
            if parts.is_empty() {
                return refused(Kind::NotADirectory, "no indexed directory");
            }
            if parts.len() >= PARTS_MAX {
                let what = format!(
                    "it was appended to {} times, which is the maximum: write a new one",
                    PARTS_MAX - 1
                );
                return refused(Kind::TooLarge, &what);
            }
            inode.content = indexed::list(&parts);
            inode.extent = Some(part.extent());
            // The content of a record must not exceed its size.
            let bytes = inode.size.saturating_add(size).max(inode.content.len() as u64);
            inode.size = bytes.min(FILE_BYTES_MAX);
            inode.mtime_ns = self.now_ns();
            inode.ctime_ns = inode.mtime_ns;
            Ok(())
        })
    }

    /// Returns the directory `number` of this session's set; fails if it was not finished.
    fn finished_part(&self, number: u64) -> Result<IndexedPart> {
        let set = self.set();
        let root = indexed::root(set, number);
        let bytes = self.namespace().layers().source().store.get(&root, indexed::ROOT_BYTES_MAX)?;
        Ok(IndexedPart { set, number, checksum: indexed::checksum(&bytes) })
    }
}
