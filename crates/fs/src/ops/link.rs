// SPDX-License-Identifier: Apache-2.0
//! Hard links: the second name moves the inode to the links directory, where every name finds it.

use esker_base::{Error, Kind, Result};

use crate::inode::{DirId, Inode, NameKind, key};
use crate::session::{NameState, Session, check_not_directory, exists, not_found, put};
use crate::stack::dir::Dir;
use crate::stack::path::{check_name, show};

/// Maximum number of names of a file, as on most file systems.
pub const LINKS_MAX: u32 = 1 << 20;

impl Session {
    /// Makes `name` in `dir` another name of the file `old_name` in `old_dir`.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `Denied`; `IsADirectory` for a directory; `TooManyLinks` over
    /// `LINKS_MAX` names; `CrossDevice` for a file at another seat of a live namespace.
    pub fn link(&self, old_dir: &Dir, old_name: &[u8], dir: &Dir, name: &[u8]) -> Result<Inode> {
        self.flush_before_naming(old_dir, old_name)?;
        let mut flushes = self.namespace().files().flushes();
        let mut inode = self.add_name((old_dir, old_name), (dir, name))?;
        // Never wait for a file while holding the structure lock: the thread that has the file may
        // be waiting for that lock.
        while !self.namespace().files().overlay(&mut inode, flushes) {
            flushes = self.namespace().files().flushes();
            inode = self.namespace().linked(inode.id, false)?;
        }
        Ok(inode)
    }

    fn add_name(
        &self,
        (old_dir, old_name): (&Dir, &[u8]),
        (dir, name): (&Dir, &[u8]),
    ) -> Result<Inode> {
        let _structure = self.read_structure();
        check_name(name)?;
        old_dir.check_name(old_name)?;
        self.check_search(old_dir, old_name)?;
        loop {
            let current = self.namespace().entry(old_dir, old_name, false)?;
            let current = current.ok_or_else(|| not_found(old_name))?;
            self.check_vacant(dir, name)?;
            check_not_directory(&current, old_name)?;
            if current.seat().is_some() {
                let what = format!("{}: it is at another seat", show(old_name));
                return Err(Error::new(Kind::CrossDevice, what));
            }
            if let Some(inode) = self.try_link((old_dir, old_name), (dir, name), current.id)? {
                dir.touch(inode.ctime_ns);
                return Ok(inode);
            }
            // The old name now stands for another file: look it up again.
        }
    }

    fn try_link(
        &self,
        (old_dir, old_name): (&Dir, &[u8]),
        (dir, name): (&Dir, &[u8]),
        id: u128,
    ) -> Result<Option<Inode>> {
        if old_dir.id() == DirId::LINKS {
            return self.link_again(id, dir, name).map(Some);
        }
        let link_name = id.to_be_bytes();
        let keys =
            [key(old_dir.id(), old_name), key(dir.id(), name), key(DirId::LINKS, &link_name)];
        let below = [
            self.below_to_change(&keys[0], old_dir.is_absent_below())?,
            self.below(dir, &keys[1])?,
            self.below_to_change(&keys[2], false)?,
        ];
        let (now_ns, mut is_shown) = (self.now_ns(), false);
        let linked = self.update(keys, |[old, new, shared], batch| {
            let old_state = NameState::of(old, &below[0])?;
            let old = old_state.inode.ok_or_else(|| not_found(old_name))?;
            let new = NameState::of(new, &below[1])?;
            if new.inode.is_some() {
                return Err(exists(name));
            }
            if old.id != id {
                return Ok(None);
            }
            let mut inode = match old.entry {
                NameKind::Link => {
                    NameState::of(shared, &below[2])?.inode.ok_or_else(|| not_found(old_name))?
                }
                _ => old.clone(),
            };
            count_name(&mut inode, now_ns)?;
            let old_link = link_to(id, old_state.next_generation, now_ns);
            let new_link = link_to(id, new.next_generation, now_ns);
            let mut rows = [old_link.row(&keys[0]), new_link.row(&keys[1]), inode.row(&keys[2])];
            is_shown = batch.put(&mut rows);
            Ok(Some(inode))
        });
        // Also if it could not be made durable: the old name may be removed.
        if is_shown {
            self.namespace().files().linked(id);
        }
        linked
    }

    /// Makes the vacant `name` in `dir` a name of the file `id`, whose inode is in the links
    /// directory, without counting it there.
    ///
    /// # Errors
    /// `Exists`, `Denied`.
    pub(crate) fn put_uncounted_link(&self, id: u128, dir: &Dir, name: &[u8]) -> Result<()> {
        let _structure = self.read_structure();
        self.check_vacant(dir, name)?;
        let key = key(dir.id(), name);
        let below = self.below(dir, &key)?;
        let now_ns = self.now_ns();
        self.tree().update([key], None, |[own], batch| {
            let state = NameState::of(own, &below)?;
            if state.inode.is_some() {
                return Err(exists(name));
            }
            put(batch, &key, &link_to(id, state.next_generation, now_ns));
            Ok(())
        })?;
        dir.touch(now_ns);
        Ok(())
    }

    /// Adds a name to a file whose inode is already in the links directory.
    fn link_again(&self, id: u128, dir: &Dir, name: &[u8]) -> Result<Inode> {
        let link_name = id.to_be_bytes();
        let keys = [key(dir.id(), name), key(DirId::LINKS, &link_name)];
        let below = [self.below(dir, &keys[0])?, self.below_to_change(&keys[1], false)?];
        let now_ns = self.now_ns();
        self.update(keys, |[new, shared], batch| {
            let new = NameState::of(new, &below[0])?;
            if new.inode.is_some() {
                return Err(exists(name));
            }
            let shared = NameState::of(shared, &below[1])?.inode;
            // A file without names cannot be given another.
            let mut inode =
                shared.filter(|inode| inode.nlink > 0).ok_or_else(|| not_found(name))?;
            count_name(&mut inode, now_ns)?;
            let link = link_to(id, new.next_generation, now_ns);
            batch.put(&mut [link.row(&keys[0]), inode.row(&keys[1])]);
            Ok(inode)
        })
    }
}

/// Counts one more name of `inode`.
fn count_name(inode: &mut Inode, now_ns: i64) -> Result<()> {
    if inode.nlink >= LINKS_MAX {
        return Err(Error::new(Kind::TooManyLinks, format!("a file has {LINKS_MAX} names")));
    }
    inode.nlink += 1;
    inode.ctime_ns = now_ns;
    Ok(())
}

/// Returns the record of a name of the file `id`.
fn link_to(id: u128, generation: u64, now_ns: i64) -> Inode {
    let mut link = Inode::new(NameKind::Link, 0, now_ns);
    (link.id, link.generation) = (id, generation);
    link
}
