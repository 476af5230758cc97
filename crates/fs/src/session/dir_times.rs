// SPDX-License-Identifier: Apache-2.0
//! Times of directories: kept with their handles (`stack/dir.rs`), written to their records when the
//! session syncs, flushes or completes.
//!
//! Invariant: a touched directory stays in the namespace's list until its times are in its record,
//! also if a write fails.

use esker_base::Result;

use crate::inode::Inode;
use crate::session::Session;
use crate::stack::dir::Dir;

impl Session {
    /// Writes back cached metadata: changes of open files, and times of directories.
    pub(crate) fn write_back_metadata(&self) -> Result<()> {
        self.flush_files()?;
        self.write_dir_times()
    }

    /// Writes the times of directories to their records.
    pub(crate) fn write_dir_times(&self) -> Result<()> {
        let mut touched = self.namespace().take_touched();
        while let Some(node) = touched.last() {
            if let Err(error) = self.write_times_of(node) {
                // They are kept for the next attempt, for example if there was no room.
                self.namespace().touched_still(touched);
                return Err(error);
            }
            touched.pop();
        }
        Ok(())
    }

    fn write_times_of(&self, node: &Dir) -> Result<()> {
        let _structure = self.read_structure();
        if node.is_removed() || !node.is_touched() {
            return Ok(());
        }
        let mut written_ns = 0;
        let touch = |inode: &mut Inode| {
            written_ns = node.overlay_times(inode);
            Ok(())
        };
        match node.location() {
            // A directory in a tree that was removed as a whole has no record any more.
            Some((parent, name)) => drop(self.update_inode_if_present(&parent, &name, touch)?),
            None => self.update_root(touch)?,
        }
        node.times_written(written_ns);
        Ok(())
    }
}
