// SPDX-License-Identifier: Apache-2.0
//! Seat files: regular files of a seat of a live namespace whose names are at other seats, because
//! they were moved there.
//!
//! ```text
//! seat of the directory   …/results/final → file X of seat 2, number n
//! seat 2                  [`DirId::SEAT_ROOTS`]/X.n → X, as one of its names
//! ```
//! A file never leaves its seat, so its content, its identity and programs that have it open stay as
//! they are. A rename to another seat has three steps, each synced before the next: a further name of
//! the file among the seat roots; the name at the other seat, which replaces what was there; the removal
//! of the old name. After a crash between two of them the file has both names, or one among the seat
//! roots that nothing shows.
//! Invariant: each name among the seat roots belongs to one name at another seat at most, and is removed
//! after that is, durably. So what a name stands for exists as long as the name.
//! The record of the name is that of a link, with the place as its device number. In a snapshot, whose
//! runs are those of all seats, it is a plain link, and names among the seat roots count for nothing.
//! Source: GIGA+, TR §2.3 (rename as operations of two servers, each with its own log); GlusterFS's
//! link files.

use esker_base::{Error, Kind, Result};

use crate::inode::{DirId, FileKind, Inode, NameKind, SeatFile, key};
use crate::ops::RenameFlags;
use crate::ops::remove::drop_name;
use crate::ops::rename::{changed, is_link_here};
use crate::session::{NameState, Session, exists, not_found};
use crate::stack::dir::Dir;
use crate::stack::path::{check_name, show};

/// The outcome of a new name for a file at another seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatNaming {
    /// The name stands for the file; it stood for this one of another seat before, if for any.
    Named(Option<SeatFile>),
    /// The name is one of several of the same file already, and was not changed.
    SameFile,
}

impl Session {
    /// Returns the inode of `name` in `dir`, a file that may be moved to a directory at another seat,
    /// after the checks for the removal of the name. That of a file at another seat is the record of
    /// its name.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `NotPermitted` because of a sticky bit; `CrossDevice` for anything but a
    /// regular file.
    pub fn file_to_move(&self, dir: &Dir, name: &[u8]) -> Result<Inode> {
        let _structure = self.read_structure();
        check_name(name)?;
        self.check_search(dir, name)?;
        let entry = self.namespace().entry(dir, name, false)?.ok_or_else(|| not_found(name))?;
        let inode = self.inode_of(&entry)?;
        self.check_removal(dir, &inode, name)?;
        if inode.entry != NameKind::Link && inode.kind() != Some(FileKind::File) {
            let what = "only regular files are moved between directories at different seats";
            return Err(Error::new(Kind::CrossDevice, format!("{}: {what}", show(name))));
        }
        Ok(inode)
    }

    /// Gives the file at `name` in `dir` the name of `file` among the seat roots of its seat, which is
    /// this one. Cost: no store request.
    ///
    /// # Errors
    /// `NotPermitted` unless the session is the superuser's; `Conflict` if another file is there by
    /// now; as [`Session::link`].
    pub fn name_among_seat_roots(&self, dir: &Dir, name: &[u8], file: &SeatFile) -> Result<()> {
        let linked =
            self.link(dir, name, self.namespace().seat_roots(), file.root_name().as_bytes())?;
        if linked.id == file.id {
            return Ok(());
        }
        self.unname_among_seat_roots(file)?;
        Err(changed(name))
    }

    /// Removes the name of `file` among the seat roots. Does nothing if it is gone.
    ///
    /// # Errors
    /// As [`Session::unlink`].
    pub fn unname_among_seat_roots(&self, file: &SeatFile) -> Result<()> {
        match self.unlink(self.namespace().seat_roots(), file.root_name().as_bytes()) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Fails unless the user may make `name` in `dir` a name of another file, in place of what is there
    /// if `replaces`.
    ///
    /// # Errors
    /// `Exists` unless `replaces`; `IsADirectory`, `Denied`; `NotPermitted` because of a sticky bit;
    /// `Invalid` or `TooLarge` names.
    pub fn check_replaceable(&self, dir: &Dir, name: &[u8], replaces: bool) -> Result<()> {
        let _structure = self.read_structure();
        check_name(name)?;
        self.check_search(dir, name)?;
        let current = self.namespace().entry(dir, name, false)?;
        let Some(current) = current else { return self.check_change(dir, name) };
        if !replaces {
            return Err(exists(name));
        }
        self.check_removal(dir, &self.inode_of(&current)?, name)?;
        if current.kind().is_some_and(FileKind::is_shown_as_directory) {
            return Err(Error::new(Kind::IsADirectory, format!("{}: is a directory", show(name))));
        }
        Ok(())
    }

    /// Makes `name` in `dir`, a directory of the seat `own`, a name of `file`, which has its name among
    /// the seat roots of its seat, and had `attributes`; replaces what is there, which the caller has
    /// checked ([`Session::check_replaceable`]); another name of the same file at another seat only if
    /// `replaces_same`. What survives a crash: as [`Session::rename`].
    ///
    /// # Errors
    /// `Conflict` if the name changes meanwhile; as [`Session::rename`], for the superuser.
    pub fn name_seat_file(
        &self,
        (dir, name): (&Dir, &[u8]),
        (file, attributes): (&SeatFile, &Inode),
        (own, replaces_same): (u16, bool),
    ) -> Result<SeatNaming> {
        if file.seat == own {
            let old_name = file.root_name();
            let old = (self.namespace().seat_roots(), old_name.as_bytes());
            return match self.rename(old, (dir, name), RenameFlags::Replace)? {
                Some(outcome) => {
                    Ok(SeatNaming::Named(outcome.other.and_then(|other| other.seat_file())))
                }
                None if replaces_same => self.unlink(old.0, old.1).map(|_| SeatNaming::Named(None)),
                None => Ok(SeatNaming::SameFile),
            };
        }
        let mut shown = None;
        let named = self.with_structure_locked(|| {
            self.check_search(dir, name)?;
            let replaced = self.namespace().entry(dir, name, false)?;
            match &replaced {
                Some(replaced) if replaced.seat_file() == Some(*file) => {
                    return Ok(SeatNaming::Named(None));
                }
                Some(replaced) if replaced.id == file.id && !replaces_same => {
                    return Ok(SeatNaming::SameFile);
                }
                _ => {}
            }
            let record = Inode {
                id: file.id,
                rdev: file.device(),
                mode: attributes.mode,
                uid: attributes.uid,
                gid: attributes.gid,
                size: attributes.size,
                ..Inode::new(NameKind::Link, 0, self.now_ns())
            };
            self.put_over((dir, name, replaced.as_ref()), record, &mut shown)?;
            Ok(SeatNaming::Named(replaced.and_then(|replaced| replaced.seat_file())))
        });
        self.release_shown(named, shown.as_ref())
    }

    /// Puts `record` at `name` in `dir` in place of `replaced`. `shown` gets what was replaced, with its
    /// remaining link count, once readers see that.
    fn put_over(
        &self,
        (dir, name, replaced): (&Dir, &[u8], Option<&Inode>),
        record: Inode,
        shown: &mut Option<Inode>,
    ) -> Result<()> {
        let now_ns = record.ctime_ns;
        // If the replaced file has other names, it loses one; otherwise the second key is a placeholder.
        let linked = replaced.filter(|replaced| is_link_here(replaced));
        let link_name = linked.map_or(0, |link| link.id).to_be_bytes();
        let keys = [key(dir.id(), name), key(DirId::LINKS, &link_name)];
        let below = [self.below(dir, &keys[0])?, self.below_to_change(&keys[1], linked.is_none())?];
        self.update(keys, |[own, shared], batch| {
            let state = NameState::of(own, &below[0])?;
            if state.inode.as_ref().map(|inode| inode.id) != replaced.map(|inode| inode.id) {
                return Err(changed(name));
            }
            let record = Inode { generation: state.next_generation, ..record.clone() };
            let linked_inode = match linked {
                Some(_) => NameState::of(shared, &below[1])?.inode,
                None => None,
            };
            let (is_put, other) = match linked_inode {
                Some(inode) => {
                    let inode = self.drop_link(inode, now_ns);
                    let rows = &mut [record.row(&keys[0]), inode.row(&keys[1])];
                    (batch.put(rows), Some(inode))
                }
                None => {
                    let is_put = batch.put(&mut [record.row(&keys[0])]);
                    (is_put, state.inode.map(|inode| drop_name(inode, now_ns)))
                }
            };
            *shown = other.filter(|_| is_put);
            Ok(())
        })?;
        dir.touch(now_ns);
        Ok(())
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

    fn session() -> Result<Session> {
        let options = SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
        Repository::new(Arc::new(MemoryStore::new())).begin(&[], options)
    }

    fn kind_of<T: std::fmt::Debug>(outcome: Result<T>) -> Kind {
        outcome.expect_err("it fails").kind()
    }

    #[test]
    fn a_file_keeps_its_identity_and_count_while_its_names_move() -> Result<()> {
        let session = session()?;
        let root = session.root();
        session.create(root, b"f", 0o640)?;
        let moved = session.file_to_move(root, b"f")?;
        let file = SeatFile::new(0, moved.id, 77);
        session.name_among_seat_roots(root, b"f", &file)?;
        session.unlink(root, b"f")?;
        let linked = session.namespace().linked(moved.id, false)?;
        assert_eq!((linked.nlink, linked.mode), (1, 0o640));
        // It comes back over another file, as a plain one.
        session.create(root, b"g", 0o600)?;
        assert_eq!(kind_of(session.check_replaceable(root, b"g", false)), Kind::Exists);
        session.check_replaceable(root, b"g", true)?;
        let named = session.name_seat_file((root, b"g"), (&file, &moved), (0, false))?;
        assert_eq!(named, SeatNaming::Named(None));
        let back = session.namespace().lookup(root, b"g", false)?;
        assert_eq!((back.id, back.nlink, back.seat()), (moved.id, 1, None));
        session.unname_among_seat_roots(&file)?;
        assert_eq!(session.namespace().lookup(root, b"g", false)?.nlink, 1);
        Ok(())
    }

    #[test]
    fn a_name_of_a_file_at_another_seat_is_moved_and_removed_and_nothing_else() -> Result<()> {
        let session = session()?;
        let root = session.root();
        let (one, other) = (SeatFile::new(1, 5, 1 << 40), SeatFile::new(2, 6, 2 << 40));
        let attributes = Inode { uid: 7, ..Inode::new(NameKind::Is(FileKind::File), 0o640, 1) };
        session.create(root, b"g", 0o600)?;
        session.link(root, b"g", root, b"h")?;
        let put = |file: &SeatFile, name: &[u8]| {
            session.name_seat_file((root, name), (file, &attributes), (0, false))
        };
        assert_eq!(put(&one, b"g")?, SeatNaming::Named(None));
        assert_eq!(session.namespace().lookup(root, b"h", false)?.nlink, 1);
        assert_eq!(put(&one, b"g")?, SeatNaming::Named(None));
        let further = SeatFile::new(1, 5, u64::MAX);
        assert_eq!(put(&further, b"g")?, SeatNaming::SameFile);
        let of_same = ((root, &b"g"[..]), (&further, &attributes), (0, true));
        let replaced = session.name_seat_file(of_same.0, of_same.1, of_same.2)?;
        assert_eq!(replaced, SeatNaming::Named(Some(one)));
        let of_same = ((root, &b"g"[..]), (&one, &attributes), (0, true));
        session.name_seat_file(of_same.0, of_same.1, of_same.2)?;
        let named = session.namespace().lookup(root, b"g", false)?;
        assert_eq!((named.seat_file(), named.seat(), named.uid), (Some(one), Some(1), 7));
        assert_eq!(kind_of(session.link(root, b"g", root, b"i")), Kind::CrossDevice);
        assert_eq!(kind_of(session.open_file(root, b"g")), Kind::CrossDevice);
        let changes = crate::ops::AttributeChanges { mode: Some(0), ..Default::default() };
        assert_eq!(kind_of(session.setattr(root, b"g", &changes)), Kind::CrossDevice);
        let kind = session.namespace().find(b"/g", FollowLinks::No);
        assert_eq!(kind_of(kind), Kind::CrossDevice);
        let renamed =
            session.rename((root, b"g"), (root, b"i"), RenameFlags::Replace)?.expect("it moved");
        assert_eq!((renamed.moved.seat_file(), renamed.other), (Some(one), None));
        assert_eq!(put(&other, b"i")?, SeatNaming::Named(Some(one)));
        assert_eq!(session.unlink(root, b"i")?.seat_file(), Some(other));
        assert_eq!(kind_of(session.namespace().lookup(root, b"i", false)), Kind::NotFound);
        Ok(())
    }

    #[test]
    fn directories_are_neither_moved_nor_replaced() -> Result<()> {
        let session = session()?;
        let root = session.root();
        session.mkdir(root, b"d", 0o700)?;
        assert_eq!(kind_of(session.file_to_move(root, b"d")), Kind::CrossDevice);
        assert_eq!(kind_of(session.check_replaceable(root, b"d", true)), Kind::IsADirectory);
        Ok(())
    }
}
