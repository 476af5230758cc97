// SPDX-License-Identifier: Apache-2.0
//! Making files whose identity the caller chose, so that a repeated request finds its own file and
//! no other.

use esker_base::{Error, Kind, Result};

use super::insert::NewInode;
use crate::inode::{FileId, FileKind, Inode, NameKind};
use crate::ops::NewFile;
use crate::session::Session;
use crate::stack::dir::Dir;

impl Session {
    /// Creates an empty regular file like [`Session::create`], with the identity `id`, which the
    /// caller ensures no other file has or will have. Succeeds if `name` is that file already:
    /// then it was created by an earlier attempt. Cost: as [`Session::create`].
    ///
    /// # Errors
    /// As [`Session::create`].
    pub fn create_identified(&self, dir: &Dir, name: &[u8], mode: u32, id: FileId) -> Result<()> {
        let entry = NameKind::Is(FileKind::File);
        let inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        self.insert(dir, name, &mut NewInode::of(inode).identified_by(id.0)).map(drop)
    }

    /// Makes `new`, which is no directory, like [`Session::create_identified`]. A session of the
    /// superuser makes it as [`Session::make`], for the user and the group that it names; others
    /// as [`Session::mknod`] and [`Session::symlink`]. Returns the inode at the name.
    ///
    /// # Errors
    /// As these; `Invalid` for directories.
    pub fn make_identified(
        &self,
        dir: &Dir,
        name: &[u8],
        new: &NewFile,
        id: FileId,
    ) -> Result<Inode> {
        let is_root = self.namespace().identity().is_root();
        let inode = match new.kind {
            FileKind::Directory => {
                let context = "the identity of a directory depends on its place alone";
                return Err(Error::new(Kind::Invalid, context));
            }
            _ if is_root => self.new_for_other(new)?,
            FileKind::Symlink => self.new_symlink(new.target)?,
            kind => self.new_node(dir, name, (kind, new.mode, new.rdev))?,
        };
        let owner = is_root.then_some((new.uid, new.gid));
        let mut new = NewInode::of(inode).owned_by(owner).identified_by(id.0);
        match self.insert(dir, name, &mut new)? {
            true => Ok(new.inode),
            false => self.namespace().lookup(dir, name, true),
        }
    }
}
