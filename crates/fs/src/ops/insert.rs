// SPDX-License-Identifier: Apache-2.0
//! Insert: the one path by which operations put a new inode at a vacant name.
//!
//! Path: the session checks the name and the directory, sets the owner, and asks the layers below.
//! Where none of them has had the name, one probe of the tree finds it vacant and puts the record.
//! Otherwise an update looks at the records first, and puts nothing if the name is taken.

use esker_base::Result;
use esker_table::schema::{Key, Row};

use crate::inode::{FileId, Inode, column, key};
use crate::session::{NameState, Session, exists, put};
use crate::stack::dir::{Dir, DirNode};
use crate::stack::layers::LowerRecords;
use crate::stack::path::check_name;

/// An inode that is to be put at a vacant name.
pub(crate) struct NewInode {
    /// The inode, complete once it was put.
    pub(crate) inode: Inode,
    /// Its user and group, unless they are those of the session's identity.
    owner: Option<(u32, u32)>,
    /// True if the caller chose its identity, which no other file has or will have.
    is_identified: bool,
}

impl NewInode {
    /// An inode of the session's user, to which the session gives an identity.
    #[inline]
    pub(crate) fn of(inode: Inode) -> Self {
        Self { inode, owner: None, is_identified: false }
    }

    /// Returns it for the user and group `owner`, if given.
    #[inline]
    pub(crate) fn owned_by(self, owner: Option<(u32, u32)>) -> Self {
        Self { owner, ..self }
    }

    /// Returns it with the identity `id`.
    pub(crate) fn identified_by(mut self, id: u128) -> Self {
        self.inode.id = id;
        Self { is_identified: true, ..self }
    }
}

impl Session {
    /// Puts `new` at `name` in `dir` if that is vacant. False if its identity was chosen and the
    /// name is that file already, by an earlier attempt.
    #[inline]
    pub(crate) fn insert(&self, dir: &Dir, name: &[u8], new: &mut NewInode) -> Result<bool> {
        let key = key(dir.id(), name);
        self.tree().prefetch(&key);
        let _structure = self.read_structure();
        self.insert_locked(dir, (name, &key), new)
    }

    /// Like [`Session::insert`], while the caller has [`Session::read_structure`]'s lock; `key` is
    /// that of the name.
    #[inline]
    pub(crate) fn insert_locked(
        &self,
        dir: &Dir,
        (name, key): (&[u8], &Key),
        new: &mut NewInode,
    ) -> Result<bool> {
        check_name(name)?;
        self.check_change(dir, name)?;
        self.own(dir, &mut new.inode, new.owner);
        let below = self.below(dir, key)?;
        self.insert_vacant(dir, (name, key), new, &below)
    }

    /// Like [`Session::insert_locked`], after all checks, given what the layers `below` have. `new`
    /// keeps its owner.
    #[inline]
    pub(crate) fn insert_vacant(
        &self,
        dir: &Dir,
        (name, key): (&[u8], &Key),
        new: &mut NewInode,
        below: &LowerRecords,
    ) -> Result<bool> {
        if below.inode.is_none() && below.next_generation == 0 && self.attached.is_none() {
            let NewInode { inode, is_identified, .. } = new;
            let is_numbered = !*is_identified && !inode.is_directory();
            if is_numbered {
                inode.id = FileId::new(self.set(), 0).0;
            } else if !*is_identified {
                inode.id = self.new_dir_id(dir, 0, name).0;
            }
            let complete = |seq, row: &mut Row| {
                if is_numbered {
                    row.ints[column::ID_LOW] = seq;
                }
            };
            let mut row = inode.row(key);
            let inserted = self.tree().insert(&mut row, complete, || self.count_created())?;
            if let Some(seq) = inserted {
                inode.seq = seq;
                inode.id |= if is_numbered { u128::from(seq) } else { 0 };
                dir.touch(inode.ctime_ns);
                return Ok(true);
            }
        }
        let is_made = self.insert_slow(dir, (name, key), new, below)?;
        if is_made {
            dir.touch(new.inode.ctime_ns);
        }
        Ok(is_made)
    }

    /// Like [`Session::insert_vacant`], where a record may exist, if only a tombstone.
    #[cold]
    fn insert_slow(
        &self,
        dir: &Dir,
        (name, key): (&[u8], &Key),
        new: &mut NewInode,
        below: &LowerRecords,
    ) -> Result<bool> {
        let NewInode { inode, is_identified, .. } = new;
        self.update([*key], |[own], batch| {
            let state = NameState::of(own, below)?;
            match state.inode {
                Some(found) if *is_identified && found.id == inode.id => return Ok(false),
                Some(_) => return Err(exists(name)),
                None => inode.generation = state.next_generation,
            }
            inode.seq = batch.seq();
            if !*is_identified {
                inode.id = match inode.is_directory() {
                    true => self.new_dir_id(dir, inode.generation, name).0,
                    false => FileId::new(self.set(), inode.seq).0,
                };
            }
            put(batch, key, inode);
            self.count_created();
            Ok(true)
        })
    }

    /// Sets the owner of a new inode in `dir`, and the attributes that a set-group-id directory
    /// passes on.
    pub(crate) fn own(&self, dir: &DirNode, inode: &mut Inode, owner: Option<(u32, u32)>) {
        let identity = self.namespace().identity();
        (inode.uid, inode.gid) = owner.unwrap_or((identity.uid, identity.gid));
        if dir.mode() & 0o2000 != 0 {
            inode.gid = dir.owner().1;
            if inode.is_directory() {
                inode.mode |= 0o2000;
            } else if inode.mode & 0o2010 == 0o2010
                && !identity.is_member(inode.gid)
                && !identity.is_root()
            {
                inode.mode &= !0o2000;
            }
        }
    }
}
