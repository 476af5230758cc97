// SPDX-License-Identifier: Apache-2.0
//! Seat roots: the directories of a seat of a live namespace whose names are at other seats.
//!
//! ```text
//! seat of the parent   …/results/run-7 → a directory at seat 2, with identity d
//! seat 2               [`DirId::SEAT_ROOTS`]/d → its attributes; names in it; directories below it
//! ```
//! The server of the parent's seat makes such a directory in two steps: the root at the other seat,
//! durably, then its name. It removes one in the opposite order of visibility: the root, if it is
//! empty, then the name. A crash between the two leaves either a root without a name, which nothing
//! shows, or the name of a directory that is gone: an empty one, in which nothing can be made and
//! which can be removed.
//! In a snapshot the sets of all seats are one, and a name in a base shows the attributes of its root
//! (`LayerStack::show_seat_root`), as a plain directory: a session on top of the snapshot, and a live
//! namespace that begins with it, have one directory like any other.
//! Invariant: only the own set of a seat has names of directories at other seats.
//! Source: GIGA+, TR §2.1 (a server decides alone about the directories that it has); placement as
//! IndexFS, thesis §2.1 (each new directory on a server chosen for it).

use esker_base::{Error, Kind, Result};
use esker_table::schema::RowBuffer;

use super::insert::NewInode;
use crate::inode::{DirId, FileKind, Inode, NameKind, key};
use crate::ops::NewFile;
use crate::session::{Session, exists, not_found};
use crate::stack::dir::Dir;
use crate::stack::path::{check_name, show};

impl Session {
    /// Makes the directory `id`, whose name is at another seat, with the attributes of `new`. Does
    /// nothing if it exists. One that was removed can be made again; it is then usable where it was
    /// open. Cost: no store request.
    ///
    /// # Errors
    /// `NotPermitted` unless the session is the superuser's; errors of the store.
    pub fn make_seat_root(&self, id: DirId, new: &NewFile) -> Result<()> {
        let new = NewFile { kind: FileKind::Directory, ..*new };
        let (inode, owner) = (self.new_for_other(&new)?, Some((new.uid, new.gid)));
        let mut new = NewInode::of(inode).owned_by(owner).identified_by(id.0);
        let name = id.seat_root_name();
        self.insert(self.namespace().seat_roots(), name.as_bytes(), &mut new)?;
        self.open_seat_root(id)?.set_made();
        Ok(())
    }

    /// Removes the empty directory `id`, whose name is at another seat. Does nothing if it is gone.
    ///
    /// # Errors
    /// `NotEmpty`; `NotPermitted` unless the session is the superuser's; errors of the store.
    pub fn remove_seat_root(&self, id: DirId) -> Result<()> {
        let name = id.seat_root_name();
        match self.rmdir(self.namespace().seat_roots(), name.as_bytes()) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Opens the directory `id`, whose name is at another seat. Those of bases have names there.
    ///
    /// # Errors
    /// `NotFound` once it was removed.
    pub fn open_seat_root(&self, id: DirId) -> Result<Dir> {
        let name = id.seat_root_name();
        let (key, mut row) = (key(DirId::SEAT_ROOTS, name.as_bytes()), RowBuffer::default());
        let is_own = self.tree().get(&key, false, &mut row)?;
        let inode = is_own.then(|| Inode::of_buffer(&row)).transpose()?;
        let root = inode.filter(Inode::is_directory).ok_or_else(|| not_found(name.as_bytes()))?;
        self.namespace().open_dir(self.namespace().seat_roots(), name.as_bytes(), &root)
    }

    /// Returns the attributes that a directory made as `name` in `dir` with permission bits `mode`
    /// would have, for the user and group `owner` if given.
    ///
    /// # Errors
    /// `Exists`, `Denied`; `Invalid` or `TooLarge` names.
    pub fn plan_directory(
        &self,
        dir: &Dir,
        name: &[u8],
        mode: u32,
        owner: Option<(u32, u32)>,
    ) -> Result<Inode> {
        let _structure = self.read_structure();
        check_name(name)?;
        self.check_change(dir, name)?;
        if self.namespace().entry(dir, name, false)?.is_some() {
            return Err(exists(name));
        }
        let mut inode = Inode::new(NameKind::Is(FileKind::Directory), mode & 0o7777, self.now_ns());
        self.own(dir, &mut inode, owner);
        Ok(inode)
    }

    /// Makes `name` in `dir` the name of the directory `id` at `seat`, which was made there with the
    /// attributes of `planned` ([`Session::plan_directory`]). Returns the inode. What survives a
    /// crash: as [`Session::mkdir`].
    ///
    /// # Errors
    /// As [`Session::mkdir`].
    pub fn name_seat_root(
        &self,
        dir: &Dir,
        name: &[u8],
        (seat, id): (u16, DirId),
        planned: &Inode,
    ) -> Result<Inode> {
        let mut inode = planned.clone();
        inode.set_seat(seat);
        let owner = Some((planned.uid, planned.gid));
        let mut new = NewInode::of(inode).owned_by(owner).identified_by(id.0);
        match self.insert(dir, name, &mut new)? {
            true => Ok(new.inode),
            false => self.namespace().lookup(dir, name, false),
        }
    }

    /// Returns the directory at another seat for which `name` in `dir` stands, and its seat, after
    /// the checks for the removal of a directory; `None` if `name` is anything else, or nothing.
    ///
    /// # Errors
    /// `Denied`; `NotPermitted` because of a sticky bit.
    pub fn seat_root_to_remove(&self, dir: &Dir, name: &[u8]) -> Result<Option<(u16, DirId)>> {
        let _structure = self.read_structure();
        self.check_search(dir, name)?;
        let Some(inode) = self.namespace().entry(dir, name, false)? else { return Ok(None) };
        let Some(seat) = inode.seat().filter(|_| inode.is_directory()) else { return Ok(None) };
        self.check_removal(dir, &inode, name)?;
        Ok(Some((seat, inode.dir_id())))
    }

    /// Removes `name` from `dir`, which stands for the directory `id` at another seat that was
    /// removed there.
    ///
    /// # Errors
    /// `Conflict` if it stands for anything else by now; as [`Session::rmdir`].
    pub fn unname_seat_root(&self, dir: &Dir, name: &[u8], id: DirId) -> Result<()> {
        let is_it =
            |inode: &Inode| inode.is_directory() && inode.seat().is_some() && inode.dir_id() == id;
        if !self.namespace().entry(dir, name, false)?.as_ref().is_some_and(is_it) {
            let what = format!("{}: changed while it was removed", show(name));
            return Err(Error::new(Kind::Conflict, what));
        }
        self.rmdir(dir, name).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::MemoryStore;

    use super::*;
    use crate::repository::Repository;
    use crate::session::SessionOptions;
    use crate::stack::identity::Identity;
    use crate::stack::namespace::FollowLinks;

    const NEW: NewFile =
        NewFile { kind: FileKind::Directory, mode: 0o750, uid: 7, gid: 8, rdev: 0, target: &[] };

    fn session() -> Result<Session> {
        let options = SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
        Repository::new(Arc::new(MemoryStore::new())).begin(&[], options)
    }

    /// Symptom: the time of the root changed when a directory was made or removed whose name is at
    /// another seat. Cause: the directory of seat roots has no record, so its times were written to
    /// that of the root. Fix: no list keeps directories without records when they are touched.
    #[test]
    fn seat_roots_come_and_go_without_a_trace_in_the_root() -> Result<()> {
        let session = session()?;
        session.flush()?;
        let before = session.namespace().stat(b"/", FollowLinks::No)?;
        std::thread::sleep(std::time::Duration::from_millis(2));
        let id = DirId(77);
        session.make_seat_root(id, &NEW)?;
        session.make_seat_root(id, &NEW)?;
        let dir = session.open_seat_root(id)?;
        assert_eq!((dir.mode(), dir.owner()), (0o750, (7, 8)));
        session.create(&dir, b"f", 0o644)?;
        assert_eq!(session.remove_seat_root(id).expect_err("in use").kind(), Kind::NotEmpty);
        session.unlink(&dir, b"f")?;
        session.remove_seat_root(id)?;
        session.remove_seat_root(id)?;
        assert_eq!(session.open_seat_root(id).expect_err("gone").kind(), Kind::NotFound);
        assert_eq!(session.create(&dir, b"f", 0o644).expect_err("gone").kind(), Kind::NotFound);
        // Made again, it is usable where it is open.
        session.make_seat_root(id, &NEW)?;
        session.create(&dir, b"f", 0o644)?;
        session.unlink(&dir, b"f")?;
        session.remove_seat_root(id)?;
        session.flush()?;
        assert_eq!(session.namespace().stat(b"/", FollowLinks::No)?, before);
        Ok(())
    }

    #[test]
    fn a_name_of_a_directory_at_another_seat_is_changed_there_only() -> Result<()> {
        let session = session()?;
        let (root, id) = (session.root(), DirId(77));
        let planned = session.plan_directory(root, b"far", 0o700, Some((7, 8)))?;
        let named = session.name_seat_root(root, b"far", (3, id), &planned)?;
        assert_eq!((named.seat(), named.uid, named.dir_id()), (Some(3), 7, id));
        assert_eq!(session.seat_root_to_remove(root, b"far")?, Some((3, id)));
        let changes = crate::ops::AttributeChanges { mode: Some(0), ..Default::default() };
        let refused = session.setattr(root, b"far", &changes).expect_err("at another seat");
        assert_eq!(refused.kind(), Kind::CrossDevice);
        let across =
            session.namespace().find(b"/far/f", FollowLinks::No).expect_err("at another seat");
        assert_eq!(across.kind(), Kind::CrossDevice);
        let other = session.unname_seat_root(root, b"far", DirId(78)).expect_err("another one");
        assert_eq!(other.kind(), Kind::Conflict);
        session.unname_seat_root(root, b"far", id)?;
        assert_eq!(session.seat_root_to_remove(root, b"far")?, None);
        Ok(())
    }
}
