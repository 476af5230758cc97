//! Indexed directories: giving a finished one its name, or adding it to one that has a name.

use esker_base::{Error, Kind, Result};

use crate::dir::Dir;
use crate::file::FILE_BYTES_MAX;
use crate::identity::WRITE;
use crate::indexed::{self, IndexedPart, PARTS_MAX};
use crate::inode::{Entry, FileKind, Inode};
use crate::path::show;
use crate::session::Session;

impl Session {
    /// Creates the entry `name` in `dir` for the indexed directory `number`, which was finished below
    /// [`indexed::prefix`] of this session's set and number, and has `size` bytes.
    ///
    /// Survives what the session's durability promises once it returns. Cost: one read.
    ///
    /// # Errors
    /// `NotFound` if there is no finished directory of that number; as [`Session::create`].
    pub fn create_indexed(
        &self,
        dir: &Dir,
        name: &[u8],
        mode: u32,
        number: u64,
        size: u64,
    ) -> Result<Inode> {
        let part = self.finished_part(number)?;
        let entry = Entry::Is(FileKind::Indexed);
        let mut inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        inode.size = size;
        inode.extent = Some(part.extent());
        self.insert(dir, name, &mut inode)?;
        Ok(inode)
    }

    /// Adds the directory `number`, which was finished as for [`Session::create_indexed`] and has
    /// `size` bytes, to the indexed directory `name` in `dir`, whose epochs go in front of its own.
    /// The caller has made sure that both have records of one kind.
    ///
    /// Survives what the session's durability promises once it returns. Cost: one read.
    ///
    /// # Errors
    /// `NotFound` if there is no finished directory of that number; `NotADirectory` if `name` is no
    /// indexed one; `TooLarge` if it has [`PARTS_MAX`] parts; as [`Session::setattr`].
    pub fn append_indexed(&self, dir: &Dir, name: &[u8], number: u64, size: u64) -> Result<Inode> {
        let part = self.finished_part(number)?;
        dir.check_name(name)?;
        let _shape = self.shape();
        self.check_search(dir, name)?;
        self.amend(dir, name, |inode| {
            self.identity().check(WRITE, inode, name)?;
            let parts = indexed::parts_of(inode);
            let refused = |kind, what: &str| Err(Error::new(kind, format!("{}: {what}", show(name))));
            if parts.is_empty() {
                return refused(Kind::NotADirectory, "no indexed directory");
            }
            if parts.len() >= PARTS_MAX {
                let what = format!(
                    "it was appended to {} times, which is all that an entry takes: write a new one",
                    PARTS_MAX - 1
                );
                return refused(Kind::TooLarge, &what);
            }
            inode.content = indexed::list(&parts);
            inode.extent = Some(part.extent());
            // A record's content is never larger than its size.
            let bytes = inode.size.saturating_add(size).max(inode.content.len() as u64);
            inode.size = bytes.min(FILE_BYTES_MAX);
            inode.mtime_ns = self.now_ns();
            inode.ctime_ns = inode.mtime_ns;
            Ok(())
        })
    }

    /// The directory `number` in this session's set, if it was finished.
    fn finished_part(&self, number: u64) -> Result<IndexedPart> {
        let set = self.set();
        let root = indexed::root(set, number);
        let bytes = self.layers().source().store.get(&root, indexed::ROOT_BYTES_MAX)?;
        Ok(IndexedPart { set, number, checksum: indexed::checksum(&bytes) })
    }
}
