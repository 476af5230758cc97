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

use crate::inode::{DirId, FileKind, Inode, NameKind, key};
use crate::ops::NewFile;
use crate::session::{NameState, Session, exists, not_found, put};
use crate::stack::dir::Dir;
use crate::stack::path::{check_name, show};

impl Session {
    /// Makes the directory `id`, whose name is at another seat, with the attributes of `new`. Does
    /// nothing if it exists. Cost: no store request.
    ///
    /// # Errors
    /// `NotPermitted` unless the session is the superuser's; errors of the store.
    pub fn make_seat_root(&self, id: DirId, new: &NewFile) -> Result<()> {
        let new = NewFile { kind: FileKind::Directory, ..*new };
        let mut inode = self.new_for_other(&new)?;
        (inode.id, inode.uid, inode.gid) = (id.0, new.uid, new.gid);
        let _structure = self.read_structure();
        let name = id.seat_root_name();
        let key = key(DirId::SEAT_ROOTS, name.as_bytes());
        let below = self.below(self.seat_roots(), &key)?;
        self.update([key], |[own], batch| {
            let state = NameState::of(own, &below)?;
            if state.inode.is_none() {
                inode.generation = state.next_generation;
                inode.seq = batch.seq();
                put(batch, &key, &inode);
            }
            Ok(())
        })
    }

    /// Removes the empty directory `id`, whose name is at another seat. Does nothing if it is gone.
    ///
    /// # Errors
    /// `NotEmpty`; `NotPermitted` unless the session is the superuser's; errors of the store.
    pub fn remove_seat_root(&self, id: DirId) -> Result<()> {
        let name = id.seat_root_name();
        match self.rmdir(self.seat_roots(), name.as_bytes()) {
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
        self.open_dir(self.seat_roots(), name.as_bytes(), &root)
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
        if self.entry(dir, name, false)?.is_some() {
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
        let _structure = self.read_structure();
        check_name(name)?;
        self.check_change(dir, name)?;
        let key = key(dir.id(), name);
        let below = self.below(dir, &key)?;
        let mut inode = planned.clone();
        inode.id = id.0;
        inode.set_seat(seat);
        self.update([key], |[own], batch| {
            let state = NameState::of(own, &below)?;
            if state.inode.is_some() {
                return Err(exists(name));
            }
            inode.generation = state.next_generation;
            inode.seq = batch.seq();
            put(batch, &key, &inode);
            Ok(())
        })?;
        dir.touch(inode.ctime_ns);
        Ok(inode)
    }

    /// Returns the directory at another seat for which `name` in `dir` stands, and its seat, after
    /// the checks for the removal of a directory; `None` if `name` is anything else, or nothing.
    ///
    /// # Errors
    /// `Denied`; `NotPermitted` because of a sticky bit.
    pub fn seat_root_to_remove(&self, dir: &Dir, name: &[u8]) -> Result<Option<(u16, DirId)>> {
        let _structure = self.read_structure();
        self.check_search(dir, name)?;
        let Some(inode) = self.entry(dir, name, false)? else { return Ok(None) };
        let Some(seat) = inode.seat() else { return Ok(None) };
        self.check_removal(dir, &inode, name)?;
        Ok(Some((seat, inode.dir_id())))
    }

    /// Removes `name` from `dir`, which stands for the directory `id` at another seat that was
    /// removed there.
    ///
    /// # Errors
    /// `Conflict` if it stands for anything else by now; as [`Session::rmdir`].
    pub fn unname_seat_root(&self, dir: &Dir, name: &[u8], id: DirId) -> Result<()> {
        let is_it = |inode: &Inode| inode.seat().is_some() && inode.dir_id() == id;
        if !self.entry(dir, name, false)?.as_ref().is_some_and(is_it) {
            let what = format!("{}: changed while it was removed", show(name));
            return Err(Error::new(Kind::Conflict, what));
        }
        self.rmdir(dir, name).map(drop)
    }
}
