// SPDX-License-Identifier: Apache-2.0
//! Renaming files and whole trees, in one step.
//!
//! A directory keeps its identity when it moves, so its entries stay as they are. The name that it
//! leaves keeps a tombstone with the next generation, so that a directory made there later is a
//! different one.

use esker_base::{Error, Kind, Result};

use crate::inode::{DirId, Inode, NameKind, key};
use crate::ops::remove::drop_name;
use crate::session::{NameState, Session, exists, not_found};
use crate::stack::dir::Dir;
use crate::stack::path::{check_name, show};

/// Treatment of a name that is taken, by a rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameFlags {
    /// The target is replaced.
    #[default]
    Replace,
    /// The rename fails (`RENAME_NOREPLACE`).
    NoReplace,
    /// Source and target are swapped (`RENAME_EXCHANGE`).
    Exchange,
}

/// The changes that a rename has made.
#[derive(Clone, Debug)]
pub struct RenameOutcome {
    /// The record that moved; for a file with several names, the record of the name.
    pub moved: Inode,
    /// The previous entry of the target: with [`RenameFlags::Exchange`] the record that moved the
    /// other way, otherwise the replaced inode with its remaining link count.
    pub other: Option<Inode>,
}

impl Session {
    /// Renames `old_name` in `old_dir` to `name` in `dir`. Other threads see it under exactly one
    /// of the two names. Returns the changes, or `None` if both are names of one file.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `NotPermitted` because of a sticky bit; `Exists` with
    /// [`RenameFlags::NoReplace`]; `NotEmpty`, `IsADirectory` or `NotADirectory` if the target
    /// cannot be replaced; `Invalid` if a directory would move into itself.
    pub fn rename(
        &self,
        (old_dir, old_name): (&Dir, &[u8]),
        (dir, name): (&Dir, &[u8]),
        flags: RenameFlags,
    ) -> Result<Option<RenameOutcome>> {
        check_name(old_name)?;
        check_name(name)?;
        self.flush_before_naming(old_dir, old_name)?;
        if flags == RenameFlags::Exchange {
            self.flush_before_naming(dir, name)?;
        }
        let mut shown = None;
        // The source may turn out to be a directory once it is looked up, so exclude other
        // operations.
        let renamed = self.with_structure_locked(|| {
            self.check_search(old_dir, old_name)?;
            self.check_search(dir, name)?;
            let moved = self
                .namespace()
                .entry(old_dir, old_name, true)?
                .ok_or_else(|| not_found(old_name))?;
            let replaced = self.namespace().entry(dir, name, true)?;
            match (flags, &replaced) {
                (RenameFlags::NoReplace, Some(_)) => return Err(exists(name)),
                (RenameFlags::Exchange, None) => return Err(not_found(name)),
                _ => {}
            }
            check_loop((old_dir, old_name, &moved), (dir, name, replaced.as_ref()), flags)?;
            if replaced.as_ref().is_some_and(|replaced| replaced.id == moved.id) {
                return Ok(None);
            }
            self.check_rename((old_dir, old_name, &moved), (dir, name, replaced.as_ref()), flags)?;
            match (flags, replaced) {
                (RenameFlags::Exchange, Some(other)) => {
                    self.exchange((old_dir, old_name, moved), (dir, name, other))
                }
                (_, replaced) => {
                    let to = (dir, name, replaced);
                    self.move_over((old_dir, old_name, moved), to, &mut shown)
                }
            }
            .map(Some)
        });
        self.release_shown(renamed, shown.as_ref())
    }

    /// Fails unless permissions and kinds allow the rename. Checks run in the kernel's order, so
    /// that of several errors programs get the one they expect.
    fn check_rename(
        &self,
        (old_dir, old_name, moved): (&Dir, &[u8], &Inode),
        (dir, name, replaced): (&Dir, &[u8], Option<&Inode>),
        flags: RenameFlags,
    ) -> Result<()> {
        let is_exchange = flags == RenameFlags::Exchange;
        self.check_removal(old_dir, &self.inode_of(moved)?, old_name)?;
        let Some(replaced) = replaced else {
            self.check_change(dir, name)?;
            return self.check_parent_changes(moved, old_dir, old_name, dir);
        };
        self.check_removal(dir, &self.inode_of(replaced)?, name)?;
        let error = |kind, what| Err(Error::new(kind, format!("{}: {what}", show(name))));
        match (moved.is_directory(), replaced.is_directory()) {
            (true, false) if !is_exchange => return error(Kind::NotADirectory, "not a directory"),
            (false, true) if !is_exchange => return error(Kind::IsADirectory, "is a directory"),
            _ => {}
        }
        self.check_parent_changes(moved, old_dir, old_name, dir)?;
        if is_exchange {
            return self.check_parent_changes(replaced, dir, name, old_dir);
        }
        if replaced.is_directory()
            && !self.namespace().is_empty(&*self.namespace().open_dir(dir, name, replaced)?)?
        {
            return error(Kind::NotEmpty, "directory not empty");
        }
        Ok(())
    }

    /// Fails if `moved` is a directory whose `..` may not change.
    fn check_parent_changes(&self, moved: &Inode, from: &Dir, name: &[u8], to: &Dir) -> Result<()> {
        if moved.is_directory() && from.id() != to.id() {
            self.namespace().identity().check(crate::stack::identity::WRITE, moved, name)?;
        }
        Ok(())
    }

    /// Returns the inode behind an entry.
    pub(super) fn inode_of(&self, entry: &Inode) -> Result<Inode> {
        match entry.entry {
            NameKind::Link if entry.seat().is_none() => self.namespace().linked(entry.id, false),
            _ => Ok(entry.clone()),
        }
    }

    /// Moves a name over another, if there is one. `shown` gets the replaced inode, with its
    /// remaining link count, once readers see that it is replaced.
    fn move_over(
        &self,
        (old_dir, old_name, moved): (&Dir, &[u8], Inode),
        (dir, name, replaced): (&Dir, &[u8], Option<Inode>),
        shown: &mut Option<Inode>,
    ) -> Result<RenameOutcome> {
        let now_ns = self.now_ns();
        // If the replaced file has other names, it loses one; otherwise the third key is a
        // placeholder.
        let linked = replaced.as_ref().filter(|replaced| is_link_here(replaced));
        let link_name = linked.map_or(0, |link| link.id).to_be_bytes();
        let keys =
            [key(old_dir.id(), old_name), key(dir.id(), name), key(DirId::LINKS, &link_name)];
        let below = [
            self.below_to_change(&keys[0], old_dir.is_absent_below())?,
            self.below(dir, &keys[1])?,
            self.below_to_change(&keys[2], linked.is_none())?,
        ];
        let updated = self.update(keys, |[old, new, shared], batch| {
            let old = NameState::of(old, &below[0])?;
            let new = NameState::of(new, &below[1])?;
            let Some(current) = old.inode.filter(|inode| inode.id == moved.id) else {
                return Err(changed(old_name));
            };
            if new.inode.as_ref().map(|inode| inode.id) != replaced.as_ref().map(|inode| inode.id) {
                return Err(changed(name));
            }
            let tombstone = Inode::tombstone(old.next_generation, now_ns);
            let target = arrived(current, new.next_generation, now_ns);
            let first = tombstone.row(&keys[0]);
            let second = target.row(&keys[1]);
            let (is_put, other) = match (linked.is_some(), NameState::of(shared, &below[2])?.inode)
            {
                (true, Some(inode)) => {
                    let inode = self.drop_link(inode, now_ns);
                    (batch.put(&mut [first, second, inode.row(&keys[2])]), Some(inode))
                }
                _ => {
                    let other = new.inode.map(|inode| drop_name(inode, now_ns));
                    (batch.put(&mut [first, second]), other)
                }
            };
            *shown = other.clone().filter(|_| is_put);
            Ok((target, other))
        });
        let is_shown = updated.is_ok() || self.shows(dir, name, &moved);
        let gone = replaced.as_ref().filter(|replaced| is_shown && replaced.is_directory());
        let gone =
            gone.map(|replaced| self.namespace().open_dir(dir, name, replaced)).transpose()?;
        gone.iter().for_each(|node| node.set_removed());
        if is_shown {
            self.follow(&moved, old_dir, dir, name);
        }
        let (moved, mut other) = updated?;
        if let (Some(node), Some(replaced)) = (gone, &mut other) {
            node.overlay_times(replaced);
        }
        old_dir.touch(now_ns);
        dir.touch(now_ns);
        Ok(RenameOutcome { moved, other })
    }

    fn exchange(
        &self,
        (old_dir, old_name, one): (&Dir, &[u8], Inode),
        (dir, name, other): (&Dir, &[u8], Inode),
    ) -> Result<RenameOutcome> {
        let now_ns = self.now_ns();
        let keys = [key(old_dir.id(), old_name), key(dir.id(), name)];
        let below = [
            self.below_to_change(&keys[0], old_dir.is_absent_below())?,
            self.below_to_change(&keys[1], dir.is_absent_below())?,
        ];
        let updated = self.update(keys, |[old, new], batch| {
            let (old, new) = (NameState::of(old, &below[0])?, NameState::of(new, &below[1])?);
            let Some(first) = old.inode.filter(|inode| inode.id == one.id) else {
                return Err(changed(old_name));
            };
            let Some(second) = new.inode.filter(|inode| inode.id == other.id) else {
                return Err(changed(name));
            };
            let to_new = arrived(first, new.next_generation, now_ns);
            let to_old = arrived(second, old.next_generation, now_ns);
            batch.put(&mut [to_old.row(&keys[0]), to_new.row(&keys[1])]);
            Ok((to_new, to_old))
        });
        if updated.is_ok() || self.shows(dir, name, &one) {
            self.follow(&one, old_dir, dir, name);
            self.follow(&other, dir, old_dir, old_name);
        }
        let (to_new, to_old) = updated?;
        old_dir.touch(now_ns);
        dir.touch(now_ns);
        Ok(RenameOutcome { moved: to_new, other: Some(to_old) })
    }

    /// Returns whether readers find `inode` as `name` in `dir`. They may find it even after a
    /// failed change, which is in memory and could only not be made durable. Returns false if the
    /// record cannot be read.
    fn shows(&self, dir: &Dir, name: &[u8], inode: &Inode) -> bool {
        let found = self.namespace().entry(dir, name, true).ok().flatten();
        found.is_some_and(|found| found.id == inode.id)
    }

    /// Updates the recorded place of an open file or directory that moved.
    fn follow(&self, moved: &Inode, from: &Dir, dir: &Dir, name: &[u8]) {
        if moved.seat().is_some() {
            // Its place is that of its root, also if this seat has that.
            return;
        }
        if moved.is_directory() {
            let node = self.namespace().node(from, name, moved, || false);
            node.set_location(dir.clone(), name.to_vec());
        } else if moved.entry != NameKind::Link {
            self.namespace().files().moved(moved.id, dir, name);
        }
    }
}

/// Fails if a directory would move into itself, or replace one of its ancestors.
fn check_loop(
    (old_dir, old_name, moved): (&Dir, &[u8], &Inode),
    (dir, name, replaced): (&Dir, &[u8], Option<&Inode>),
    flags: RenameFlags,
) -> Result<()> {
    let into_itself = |name: &[u8]| {
        let context = format!("{}: a directory cannot move into itself", show(name));
        Err(Error::new(Kind::Invalid, context))
    };
    if moved.is_directory() && dir.is_within(moved.dir_id()) {
        return into_itself(old_name);
    }
    match replaced {
        Some(replaced) if replaced.is_directory() && old_dir.is_within(replaced.dir_id()) => {
            if flags == RenameFlags::Exchange {
                return into_itself(name);
            }
            Err(Error::new(Kind::NotEmpty, format!("{}: directory not empty", show(name))))
        }
        _ => Ok(()),
    }
}

/// True for one of several names of a file whose inode is in the links directory of this seat.
pub(super) fn is_link_here(inode: &Inode) -> bool {
    inode.entry == NameKind::Link && inode.seat().is_none()
}

/// Returns `inode` as it appears at its new name, whose next directory gets `generation`.
fn arrived(mut inode: Inode, generation: u64, now_ns: i64) -> Inode {
    inode.generation = generation;
    inode.ctime_ns = now_ns;
    inode
}

/// Returns the error for losing a race against another change.
pub(super) fn changed(name: &[u8]) -> Error {
    Error::new(Kind::Conflict, format!("{}: changed while it was renamed; retry", show(name)))
}
