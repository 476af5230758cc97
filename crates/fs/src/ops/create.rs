// SPDX-License-Identifier: Apache-2.0
//! Creating files, directories, symbolic links and special files.

use esker_base::{Error, Kind, Result};

use super::insert::NewInode;
use crate::inode::{FileId, FileKind, Inode, NameKind};
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::path::PATH_BYTES_MAX;

/// Maximum number of directories with unwritten times; a handle of each is kept in memory.
pub(super) const TOUCHED_MAX: usize = 1 << 16;

impl Session {
    /// Creates an empty regular file `name` in `dir` with permission bits `mode`.
    ///
    /// Once this returns, the file survives as the session's durability promises. Cost: no store
    /// request unless a layer below may have the name.
    ///
    /// # Errors
    /// `Exists`, `Denied`, `NotFound` if `dir` was removed, `Invalid` or `TooLarge` names.
    #[inline]
    pub fn create(&self, dir: &Dir, name: &[u8], mode: u32) -> Result<FileId> {
        let entry = NameKind::Is(FileKind::File);
        let mut new = NewInode::of(Inode::new(entry, mode & 0o7777, self.now_ns()));
        self.insert(dir, name, &mut new)?;
        Ok(FileId(new.inode.id))
    }

    /// Creates a directory and returns it open.
    ///
    /// # Errors
    /// As [`Session::create`].
    pub fn mkdir(&self, dir: &Dir, name: &[u8], mode: u32) -> Result<Dir> {
        let entry = NameKind::Is(FileKind::Directory);
        let mut new = NewInode::of(Inode::new(entry, mode & 0o7777, self.now_ns()));
        self.insert(dir, name, &mut new)?;
        self.open_made(dir, name, &new.inode)
    }

    /// Opens the directory `inode`, which this session has just put at `name` in `dir`.
    pub(super) fn open_made(&self, dir: &Dir, name: &[u8], inode: &Inode) -> Result<Dir> {
        // A directory of generation 0 was never removed: if a layer below had entries for it, the
        // name would exist there. At later generations, a layer outside our stack's line may have
        // entries.
        let is_absent_below = inode.generation == 0;
        let node = self.namespace().node(dir, name, inode, || is_absent_below);
        if self.namespace().touched_count() > TOUCHED_MAX {
            self.write_dir_times()?;
        }
        Ok(node)
    }

    /// Creates a named pipe, a socket or a device file; `rdev` is the device number.
    ///
    /// # Errors
    /// As [`Session::create`]; `NotPermitted` for devices unless the caller is the superuser;
    /// `Invalid` for other kinds.
    pub fn mknod(
        &self,
        dir: &Dir,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
    ) -> Result<Inode> {
        let mut new = NewInode::of(self.new_node(dir, name, (kind, mode, rdev))?);
        self.insert(dir, name, &mut new)?;
        Ok(new.inode)
    }

    /// The inode that [`Session::mknod`] puts.
    pub(super) fn new_node(
        &self,
        dir: &Dir,
        name: &[u8],
        (kind, mode, rdev): (FileKind, u32, u64),
    ) -> Result<Inode> {
        match kind {
            FileKind::Fifo | FileKind::Socket | FileKind::File => {}
            FileKind::CharDevice | FileKind::BlockDevice
                if self.namespace().identity().is_root() => {}
            FileKind::CharDevice | FileKind::BlockDevice => {
                self.check_vacant(dir, name)?;
                return Err(crate::stack::identity::not_permitted(name));
            }
            FileKind::Directory | FileKind::Symlink | FileKind::Indexed => {
                return Err(Error::new(Kind::Invalid, "mknod cannot make directories or links"));
            }
        }
        let mut inode = Inode::new(NameKind::Is(kind), mode & 0o7777, self.now_ns());
        // In the record of a regular file, this column has its flags.
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            inode.rdev = rdev;
        }
        Ok(inode)
    }

    /// Creates a symbolic link to `target`, which need not exist.
    ///
    /// # Errors
    /// As [`Session::create`]; `TooLarge`, `NotFound` (if empty) or `Invalid` for targets that
    /// cannot be paths.
    pub fn symlink(&self, dir: &Dir, name: &[u8], target: &[u8]) -> Result<Inode> {
        let mut new = NewInode::of(self.new_symlink(target)?);
        self.insert(dir, name, &mut new)?;
        Ok(new.inode)
    }

    /// The inode that [`Session::symlink`] puts.
    pub(super) fn new_symlink(&self, target: &[u8]) -> Result<Inode> {
        check_target(target)?;
        let mut inode = Inode::new(NameKind::Is(FileKind::Symlink), 0o777, self.now_ns());
        inode.size = target.len() as u64;
        inode.content = target.to_vec();
        Ok(inode)
    }
}

/// Fails unless `target` is a possible target of a symbolic link.
pub(super) fn check_target(target: &[u8]) -> Result<()> {
    if target.len() >= PATH_BYTES_MAX {
        return Err(Error::new(Kind::TooLarge, "a link's target is longer than any path"));
    }
    if target.is_empty() {
        return Err(Error::new(Kind::NotFound, "a link's target is empty"));
    }
    if target.contains(&0) {
        return Err(Error::new(Kind::Invalid, "a link's target has a zero byte"));
    }
    Ok(())
}
