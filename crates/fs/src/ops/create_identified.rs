// SPDX-License-Identifier: Apache-2.0
//! Making files whose identity the caller chose, so that a repeated request finds its own file and
//! no other.

use esker_base::{Error, Kind, Result};

use crate::inode::{FileId, FileKind, Inode, NameKind, key};
use crate::ops::NewFile;
use crate::session::{NameState, Session, exists, put};
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
        let mut inode = Inode::new(entry, mode & 0o7777, self.now_ns());
        inode.id = id.0;
        self.insert_identified(dir, name, inode, None).map(drop)
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
        let mut inode = match new.kind {
            FileKind::Directory => {
                let context = "the identity of a directory depends on its place alone";
                return Err(Error::new(Kind::Invalid, context));
            }
            _ if is_root => self.new_for_other(new)?,
            FileKind::Symlink => self.new_symlink(new.target)?,
            kind => self.new_node(dir, name, (kind, new.mode, new.rdev))?,
        };
        inode.id = id.0;
        let owner = is_root.then_some((new.uid, new.gid));
        match self.insert_identified(dir, name, inode, owner)? {
            Some(inode) => Ok(inode),
            None => self.namespace().lookup(dir, name, true),
        }
    }

    /// Puts `inode`, which has its identity, at `name` in `dir`, for the user and group `owner` if
    /// given. Returns it; `None` if the name is that file already.
    pub(super) fn insert_identified(
        &self,
        dir: &Dir,
        name: &[u8],
        mut inode: Inode,
        owner: Option<(u32, u32)>,
    ) -> Result<Option<Inode>> {
        let key = key(dir.id(), name);
        self.tree().prefetch(&key);
        let _structure = self.read_structure();
        crate::stack::path::check_name(name)?;
        self.check_change(dir, name)?;
        self.own(dir, &mut inode, owner);
        let below = self.below(dir, &key)?;
        let is_new = below.inode.is_none() && below.next_generation == 0;
        if is_new
            && self.attached.is_none()
            && let Some(seq) = self.tree().insert(&mut inode.row(&key), |_, _| ())?
        {
            inode.seq = seq;
            dir.touch(inode.ctime_ns);
            return Ok(Some(inode));
        }
        let is_made = self.update([key], |[own], batch| {
            let state = NameState::of(own, &below)?;
            match state.inode {
                Some(found) if found.id == inode.id => return Ok(false),
                Some(_) => return Err(exists(name)),
                None => inode.generation = state.next_generation,
            }
            inode.seq = batch.seq();
            put(batch, &key, &inode);
            Ok(true)
        })?;
        if is_made {
            dir.touch(inode.ctime_ns);
        }
        Ok(is_made.then_some(inode))
    }
}
