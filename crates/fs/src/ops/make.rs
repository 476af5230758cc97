// SPDX-License-Identifier: Apache-2.0
//! Making files on behalf of other users, for front ends whose callers' permissions have already
//! been checked, as a kernel does.

use esker_base::{Error, Kind, Result};

use super::insert::NewInode;
use crate::inode::{FileKind, Inode, NameKind};
use crate::ops::create::check_target;
use crate::session::Session;
use crate::stack::dir::Dir;

/// A file to be made for another user.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits, from which the caller has already removed those that the user may not set.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory passes on its own (set-group-id).
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

impl Session {
    /// Makes `new` at `name` in `dir`. The session's identity, which must be the superuser, stands
    /// in for a user whose permissions were checked. See [`Session::create`] for costs and for what
    /// survives a crash.
    ///
    /// # Errors
    /// As [`Session::create`] and, for symbolic links, [`Session::symlink`]; `NotPermitted` unless
    /// the session is the superuser's.
    #[inline]
    pub fn make(&self, dir: &Dir, name: &[u8], new: &NewFile) -> Result<Inode> {
        let owner = Some((new.uid, new.gid));
        let mut new = NewInode::of(self.new_for_other(new)?).owned_by(owner);
        self.insert(dir, name, &mut new)?;
        Ok(new.inode)
    }

    /// The inode that [`Session::make`] puts.
    #[inline]
    pub(super) fn new_for_other(&self, new: &NewFile) -> Result<Inode> {
        if !self.namespace().identity().is_root() {
            let context = "only a session of the superuser can make files for others";
            return Err(Error::new(Kind::NotPermitted, context));
        }
        let mut inode = Inode::new(NameKind::Is(new.kind), new.mode & 0o7777, self.now_ns());
        match new.kind {
            FileKind::Symlink => {
                check_target(new.target)?;
                inode.size = new.target.len() as u64;
                inode.content = new.target.to_vec();
            }
            FileKind::CharDevice | FileKind::BlockDevice => inode.rdev = new.rdev,
            FileKind::Indexed => {
                let context = "use `create_indexed` to make an indexed directory";
                return Err(Error::new(Kind::Invalid, context));
            }
            _ => {}
        }
        Ok(inode)
    }

    /// Makes a directory like [`Session::make`] and also returns it open. While it is open, creates
    /// in it ask no layer below, as with [`Session::mkdir`].
    ///
    /// # Errors
    /// As [`Session::make`].
    pub fn make_dir(&self, dir: &Dir, name: &[u8], new: &NewFile) -> Result<(Inode, Dir)> {
        let new = NewFile { kind: FileKind::Directory, ..*new };
        let inode = self.make(dir, name, &new)?;
        let node = self.open_made(dir, name, &inode)?;
        Ok((inode, node))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::{FaultStore, MemoryStore};
    use esker_table::tree::{Durability, TreeOptions};

    use super::*;
    use crate::ops::create::TOUCHED_MAX;
    use crate::repository::Repository;
    use crate::session::SessionOptions;
    use crate::stack::identity::Identity;

    const NEW_DIRECTORY: NewFile =
        NewFile { kind: FileKind::Directory, mode: 0o755, uid: 7, gid: 7, rdev: 0, target: &[] };

    fn options(durability: Durability) -> SessionOptions {
        let tree = TreeOptions { durability, background: false, ..TreeOptions::default() };
        SessionOptions { identity: Identity::root(), tree, ..SessionOptions::default() }
    }

    /// A session on a base that has `/old`.
    fn session() -> Result<Session> {
        let repository = Repository::new(Arc::new(MemoryStore::new()));
        let below = repository.begin(&[], options(Durability::None))?;
        below.mkdir(below.root(), b"old", 0o755)?;
        let base = below.publish("base")?;
        repository.begin(&[base], options(Durability::None))
    }

    /// Symptom: every create in a directory made through a mount asked every base.
    /// Cause: `make`, which mounts use to make directories, did not record that the directory is
    /// new, as `mkdir` does.
    /// Fix: both open it the same way, and a directory opened inside a new one is new, too.
    #[test]
    fn a_directory_that_is_made_for_others_is_known_to_be_new() -> Result<()> {
        let session = session()?;
        let root = session.root();
        let (inode, new) = session.make_dir(root, b"new", &NEW_DIRECTORY)?;
        assert!(new.is_absent_below() && (inode.uid, inode.gid) == (7, 7));
        let (inside, _) = session.make_dir(&new, b"inside", &NEW_DIRECTORY)?;
        assert!(session.namespace().open_dir(&new, b"inside", &inside)?.is_absent_below());
        let old = session.namespace().lookup(root, b"old", false)?;
        assert!(!session.namespace().open_dir(root, b"old", &old)?.is_absent_below());
        // If made again, or moved here, it may have entries in a layer below.
        session.rmdir(&new, b"inside")?;
        let (again, again_dir) = session.make_dir(&new, b"inside", &NEW_DIRECTORY)?;
        drop(again_dir);
        assert!(!session.namespace().open_dir(&new, b"inside", &again)?.is_absent_below());
        session.rename((root, b"old"), (&new, b"moved"), crate::ops::RenameFlags::Replace)?;
        let moved = session.namespace().lookup(&new, b"moved", false)?;
        assert!(!session.namespace().open_dir(&new, b"moved", &moved)?.is_absent_below());
        Ok(())
    }

    /// Symptom: a mount in which many directories were made kept a handle of each until a sync.
    /// Cause: as above; only `mkdir` bounded the number of directories with unwritten times.
    #[test]
    fn directories_made_for_others_with_lazy_times_are_bounded() -> Result<()> {
        let session = session()?;
        for number in 0..TOUCHED_MAX + 10 {
            let name = number.to_string();
            let (_, dir) = session.make_dir(session.root(), name.as_bytes(), &NEW_DIRECTORY)?;
            session.create(&dir, b"file", 0o644)?;
            assert!(session.namespace().touched_count() <= TOUCHED_MAX + 1);
        }
        Ok(())
    }

    /// Symptom: a create that found the name taken paid for a sync and a listing at `always`.
    /// Cause: its sequence number was taken before the lookup, and then waited for as if something
    /// had been put.
    /// Fix: an operation that put nothing does not wait.
    #[test]
    fn a_name_that_is_taken_costs_no_store_request() -> Result<()> {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let session = Repository::new(store.clone()).begin(&[], options(Durability::Always))?;
        session.create(session.root(), b"taken", 0o644)?;
        let before = store.operations();
        for _ in 0..10 {
            let refused = session.create(session.root(), b"taken", 0o644);
            assert_eq!(refused.expect_err("it is there").kind(), Kind::Exists);
        }
        assert_eq!(store.operations(), before);
        session.create(session.root(), b"next", 0o644)?;
        let set = session.set();
        drop(session);
        let session = Repository::new(store).resume(set, options(Durability::Always))?;
        session.namespace().lookup(session.root(), b"next", false).map(drop)
    }
}
