// SPDX-License-Identifier: Apache-2.0
//! Permissions: whether the session's user may look up, put and remove names in a directory.
//!
//! `stack/identity.rs` decides what mode bits allow; directory handles (`stack/dir.rs`) remember
//! the mode and owner of their directory.

use esker_base::{Error, Result};

use crate::inode::Inode;
use crate::session::{Session, exists};
use crate::stack::dir::DirNode;
use crate::stack::identity::{EXECUTE, WRITE, not_permitted};
use crate::stack::path::check_name;

impl Session {
    /// Fails unless `name` may be put into `dir`.
    #[inline]
    pub(crate) fn check_change(&self, dir: &DirNode, name: &[u8]) -> Result<()> {
        dir.check_alive()?;
        let checked = dir.check(self.namespace().identity(), WRITE | EXECUTE, name);
        checked.or_else(|denied| self.refuse(dir, name, denied))
    }

    /// Returns `Exists` instead of `denied` if `name` is taken, as kernels do: programs that create
    /// the missing directories of a path rely on it.
    #[cold]
    fn refuse(&self, dir: &DirNode, name: &[u8], denied: Error) -> Result<()> {
        dir.check(self.namespace().identity(), EXECUTE, name)?;
        if self.namespace().entry(dir, name, false)?.is_some() {
            Err(exists(name))
        } else {
            Err(denied)
        }
    }

    /// Fails unless `name` in `dir` is vacant and may be put there.
    pub(crate) fn check_vacant(&self, dir: &DirNode, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.check_change(dir, name)?;
        if self.namespace().entry(dir, name, false)?.is_some() { Err(exists(name)) } else { Ok(()) }
    }

    /// Fails unless names in `dir` may be looked up.
    pub(crate) fn check_search(&self, dir: &DirNode, name: &[u8]) -> Result<()> {
        dir.check_alive()?;
        dir.check(self.namespace().identity(), EXECUTE, name)
    }

    /// Fails unless `inode`, which is `name` in `dir`, may be removed.
    pub(crate) fn check_removal(&self, dir: &DirNode, inode: &Inode, name: &[u8]) -> Result<()> {
        dir.check(self.namespace().identity(), WRITE | EXECUTE, name)?;
        self.check_sticky(dir, inode, name)
    }

    /// Fails if the sticky bit of `dir` forbids this identity to remove `inode`.
    fn check_sticky(&self, dir: &DirNode, inode: &Inode, name: &[u8]) -> Result<()> {
        let sticky = dir.mode() & 0o1000 != 0;
        let uid = self.namespace().identity().uid;
        if sticky && uid != 0 && uid != inode.uid && uid != dir.owner().0 {
            return Err(not_permitted(name));
        }
        Ok(())
    }
}
