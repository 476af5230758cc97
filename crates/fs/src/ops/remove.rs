// SPDX-License-Identifier: Apache-2.0
//! Removing names: files, empty directories, whole trees.

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;

use crate::inode::{DirId, FileId, FileKind, Inode, NameKind, key};
use crate::session::{NameState, Session, check_not_directory, not_found, put};
use crate::stack::dir::{Dir, DirNode};
use crate::stack::path::{check_name, show};

impl Session {
    /// Removes the file `name` from `dir`; its content goes with its last name. Returns the inode
    /// with its remaining link count.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `NotPermitted` because of a sticky bit; `IsADirectory` for a
    /// directory.
    pub fn unlink(&self, dir: &Dir, name: &[u8]) -> Result<Inode> {
        let mut shown = None;
        let removed = self.remove_name(dir, name, &mut shown);
        self.release_shown(removed, shown.as_ref())?;
        Ok(shown.expect("readers see a removal that succeeded"))
    }

    /// Returns the outcome `changed` of an operation by which `inode` lost a name, after releasing
    /// the content of `inode` if that name was the last. An operation that is in memory and could
    /// not be made durable has an `inode`, too: readers and open files see it.
    pub(super) fn release_shown<T>(&self, changed: Result<T>, inode: Option<&Inode>) -> Result<T> {
        let released = inode.map_or(Ok(()), |inode| self.release_removed(inode));
        // The first failure is the cause of the other.
        let changed = changed?;
        released.map(|()| changed)
    }

    /// Releases the content of `inode`, which has just lost a name, if that name was the last.
    fn release_removed(&self, inode: &Inode) -> Result<()> {
        let is_gone = inode.nlink == 0 && inode.kind() == Some(FileKind::File);
        if is_gone { self.remove_file(inode) } else { Ok(()) }
    }

    /// Removes the name. `shown` gets the inode it stood for, with its remaining link count, once
    /// readers see the removal.
    fn remove_name(&self, dir: &Dir, name: &[u8], shown: &mut Option<Inode>) -> Result<()> {
        let _structure = self.read_structure();
        check_name(name)?;
        self.check_search(dir, name)?;
        let name_key = key(dir.id(), name);
        let below = self.below(dir, &name_key)?;
        let now_ns = self.now_ns();
        loop {
            // A link must be removed together with a decrement of its inode's count, and only the
            // link names that inode's key.
            let link = self.update([name_key], |[own], batch| {
                let state = NameState::of(own, &below)?;
                let inode = state.inode.ok_or_else(|| not_found(name))?;
                if inode.entry == NameKind::Link && inode.seat().is_none() {
                    return Ok(Some(inode.id));
                }
                self.check_removal(dir, &inode, name)?;
                check_not_directory(&inode, name)?;
                let tombstone = Inode::tombstone(state.next_generation, now_ns);
                *shown = put(batch, &name_key, &tombstone).then(|| drop_name(inode, now_ns));
                Ok(None)
            })?;
            let is_removed = match link {
                Some(id) => self.unlink_one_of(dir, name, (id, now_ns), shown)?,
                None => true,
            };
            if is_removed {
                dir.touch(now_ns);
                return Ok(());
            }
        }
    }

    /// Removes one name of a file that has several; false if the name now stands for another file.
    /// `shown` is as for [`Session::remove_name`].
    fn unlink_one_of(
        &self,
        dir: &Dir,
        name: &[u8],
        (id, now_ns): (u128, i64),
        shown: &mut Option<Inode>,
    ) -> Result<bool> {
        let link_name = id.to_be_bytes();
        let keys = [key(dir.id(), name), key(DirId::LINKS, &link_name)];
        let below = [self.below(dir, &keys[0])?, self.below_to_change(&keys[1], false)?];
        self.update(keys, |[own, shared], batch| {
            let state = NameState::of(own, &below[0])?;
            let link = state.inode.ok_or_else(|| not_found(name))?;
            if link.entry != NameKind::Link || link.id != id {
                return Ok(false);
            }
            let inode = NameState::of(shared, &below[1])?.inode.ok_or_else(|| not_found(name))?;
            self.check_removal(dir, &inode, name)?;
            let tombstone = Inode::tombstone(state.next_generation, now_ns);
            let inode = self.drop_link(inode, now_ns);
            let is_put = batch.put(&mut [tombstone.row(&keys[0]), inode.row(&keys[1])]);
            *shown = is_put.then_some(inode);
            Ok(true)
        })
    }

    /// Removes the empty directory `name` from `dir`. Returns its inode, which has no links any
    /// more.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `NotADirectory`, `NotEmpty`; `NotPermitted` because of a sticky bit.
    pub fn rmdir(&self, dir: &Dir, name: &[u8]) -> Result<Inode> {
        let check = |node: &Dir| {
            if self.namespace().is_empty(node)? {
                return Ok(());
            }
            Err(Error::new(Kind::NotEmpty, format!("{}: directory not empty", show(name))))
        };
        // Open directories inside it were removed or moved earlier.
        self.remove_dir(dir, name, check, |node| node.set_removed())
    }

    /// Removes the directory `name` from `dir` with everything in it, in one step for a tree of any
    /// size. The name's generation rises, so its records become unreachable; squash drops them.
    /// Files in it that also have names elsewhere keep those, with unchanged link counts.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Denied`; `NotPermitted` unless the caller is the directory's
    /// owner or the superuser, since permissions within the tree are not checked.
    pub fn remove_tree(&self, dir: &Dir, name: &[u8]) -> Result<()> {
        let check = |node: &Dir| {
            let inode = self.namespace().stat_dir(node)?;
            self.namespace().identity().check_owner(&inode, name)
        };
        self.remove_dir(dir, name, check, |node| self.mark_tree_removed(node)).map(drop)
    }

    /// Removes the directory `name` from `dir` if `check` allows it; `mark` marks handles as
    /// removed.
    fn remove_dir(
        &self,
        dir: &Dir,
        name: &[u8],
        check: impl FnOnce(&Dir) -> Result<()>,
        mark: impl FnOnce(&Dir),
    ) -> Result<Inode> {
        check_name(name)?;
        self.with_structure_locked(|| {
            self.check_search(dir, name)?;
            let mut inode =
                self.namespace().entry(dir, name, true)?.ok_or_else(|| not_found(name))?;
            self.check_removal(dir, &self.inode_of(&inode)?, name)?;
            let node = self.namespace().open_dir(dir, name, &inode)?;
            check(&node)?;
            let key = key(dir.id(), name);
            let below = self.below(dir, &key)?;
            let now_ns = self.now_ns();
            let removed = self.update([key], |[own], batch| {
                let state = NameState::of(own, &below)?;
                put(batch, &key, &Inode::tombstone(state.next_generation, now_ns));
                Ok(())
            });
            // A removal that is in memory and could not be made durable is shown, too.
            if removed.is_ok() || matches!(self.namespace().entry(dir, name, true), Ok(None)) {
                node.overlay_times(&mut inode);
                mark(&node);
            }
            removed?;
            dir.touch(now_ns);
            Ok(drop_name(inode, now_ns))
        })
    }

    /// Like [`drop_name`], for a file with several names. Branches count names independently, so
    /// the sum may be too low: an inherited count never falls to zero.
    pub(super) fn drop_link(&self, inode: Inode, now_ns: i64) -> Inode {
        let mut inode = drop_name(inode, now_ns);
        let is_exact =
            !self.namespace().layers().is_branched() || FileId(inode.id).is_of(self.set());
        inode.nlink = inode.nlink.max(u32::from(!is_exact));
        inode
    }

    /// Marks every open directory within `node` as removed. Cost: one visit of each open directory
    /// and of each directory above one.
    fn mark_tree_removed(&self, node: &DirNode) {
        let mut is_within: HashMap<DirId, bool> = HashMap::from_iter([(node.id(), true)]);
        for open in self.namespace().open_nodes() {
            let (mut path, mut above, mut found) = (Vec::new(), Some(open.clone()), false);
            while let Some(dir) = above {
                if let Some(known) = is_within.get(&dir.id()) {
                    found = *known;
                    break;
                }
                path.push(dir.id());
                above = dir.parent();
            }
            is_within.extend(path.into_iter().map(|id| (id, found)));
            if found {
                open.set_removed();
            }
        }
    }
}

/// Returns an inode after it lost a name. A file that had several names keeps its inode after the
/// last is removed, since a set merged with this one may have given the file another name; only a
/// squash drops it.
pub(crate) fn drop_name(mut inode: Inode, now_ns: i64) -> Inode {
    inode.nlink = inode.nlink.saturating_sub(1);
    inode.ctime_ns = now_ns;
    inode
}
