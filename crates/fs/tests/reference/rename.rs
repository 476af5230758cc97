// SPDX-License-Identifier: Apache-2.0
//! Renaming in the reference file system: `do_renameat2` and `vfs_rename`, check by check.

use esker_base::Kind;
use esker_fs::inode::FileKind;
use esker_fs::ops::RenameFlags;

use super::{EXECUTE, Reference, Result, WRITE};
use crate::operation::TargetPath;

impl Reference {
    pub(super) fn rename(
        &mut self,
        from: &TargetPath,
        to: &TargetPath,
        flags: RenameFlags,
    ) -> Result<()> {
        let old_dir = self.dir_of(from)?;
        let new_dir = self.dir_of(to)?;
        let moved = self.entry(old_dir, &from.name)?;
        let replaced = match self.entry(new_dir, &to.name) {
            Ok(number) => Some(number),
            Err(Kind::NotFound) => None,
            Err(kind) => return Err(kind),
        };
        match (flags, replaced) {
            (RenameFlags::NoReplace, Some(_)) => return Err(Kind::Exists),
            (RenameFlags::Exchange, None) => return Err(Kind::NotFound),
            _ => {}
        }
        if self.is_above(moved, new_dir) {
            return Err(Kind::Invalid);
        }
        if replaced.is_some_and(|replaced| self.is_above(replaced, old_dir)) {
            let exchange = flags == RenameFlags::Exchange;
            return Err(if exchange { Kind::Invalid } else { Kind::NotEmpty });
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        self.check_rename((old_dir, moved), (new_dir, replaced), flags)?;
        self.node(old_dir).entries.remove(&from.name);
        self.node(new_dir).entries.insert(to.name.clone(), moved);
        let now_ns = self.now_ns();
        self.node(moved).moved(now_ns);
        self.node(moved).parent = new_dir;
        match (flags, replaced) {
            (RenameFlags::Exchange, Some(other)) => {
                self.node(old_dir).entries.insert(from.name.clone(), other);
                self.node(other).moved(now_ns);
                self.node(other).parent = old_dir;
            }
            (_, Some(replaced)) => self.drop_name(replaced),
            (_, None) => {}
        }
        self.touch(old_dir);
        self.touch(new_dir);
        Ok(())
    }

    fn check_rename(
        &self,
        (old_dir, moved): (u64, u64),
        (new_dir, replaced): (u64, Option<u64>),
        flags: RenameFlags,
    ) -> Result<()> {
        let is_dir = |number: u64| self.nodes[&number].kind == FileKind::Directory;
        let exchange = flags == RenameFlags::Exchange;
        self.check_removal(old_dir, moved)?;
        match replaced {
            None => self.check(new_dir, WRITE | EXECUTE)?,
            Some(replaced) => {
                self.check_removal(new_dir, replaced)?;
                match (is_dir(moved), is_dir(replaced)) {
                    (true, false) if !exchange => return Err(Kind::NotADirectory),
                    (false, true) if !exchange => return Err(Kind::IsADirectory),
                    _ => {}
                }
            }
        }
        if old_dir != new_dir {
            // The `..` of a directory that moves to another one changes.
            if is_dir(moved) {
                self.check(moved, WRITE)?;
            }
            if let Some(other) = replaced.filter(|&other| exchange && is_dir(other)) {
                self.check(other, WRITE)?;
            }
        }
        let full = |number: u64| !self.nodes[&number].entries.is_empty();
        if !exchange && is_dir(moved) && replaced.is_some_and(full) {
            return Err(Kind::NotEmpty);
        }
        Ok(())
    }

    /// True if `ancestor` is `dir` or above it.
    fn is_above(&self, ancestor: u64, mut dir: u64) -> bool {
        while dir != ancestor {
            if dir == super::ROOT {
                return false;
            }
            dir = self.nodes[&dir].parent;
        }
        true
    }
}
