// SPDX-License-Identifier: Apache-2.0
//! Adopting external files: inodes that keep the owner, times and attributes of their source.
//!
//! Ordinary operations give a new file the caller's identity and the current time. An import has
//! both from its source and writes them in the one record that it needs anyway.

use esker_base::Result;

use super::insert::NewInode;
use crate::inode::{Inode, key};
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::path::check_name;

/// Reads the next bytes of a file into a buffer and returns their count; 0 at the end.
pub(crate) type FillBuffer<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<usize>;

impl Session {
    /// Puts `inode` at the vacant `name` in `dir`, keeping its owner and times. For a regular file,
    /// `fill` reads the content as in [`Session::create_with`]. The caller has checked that the
    /// identity may give the inode that owner.
    ///
    /// # Errors
    /// As [`Session::create_with`].
    pub(crate) fn adopt(
        &self,
        dir: &Dir,
        name: &[u8],
        mut inode: Inode,
        fill: Option<FillBuffer>,
    ) -> Result<Inode> {
        check_name(name)?;
        self.check_change(dir, name)?;
        let key = key(dir.id(), name);
        self.tree().prefetch(&key);
        let below = self.below(dir, &key)?;
        let _content = self.pin_data_logs();
        if let Some(fill) = fill {
            // Size beyond the content is a hole at the end.
            let size_min = inode.size;
            self.store_content(fill)?.put_in(&mut inode);
            inode.size = inode.size.max(size_min);
        }
        let _structure = self.read_structure();
        dir.check_alive()?;
        let mut new = NewInode::of(inode);
        self.insert_vacant(dir, (name, &key), &mut new, &below)?;
        dir.touch(self.now_ns());
        Ok(new.inode)
    }

    /// Gives the directory `name` in `dir`, or the root if `None`, all attributes of `inode`.
    ///
    /// # Errors
    /// `NotPermitted` unless the caller is its owner or the superuser.
    pub(crate) fn adopt_attributes(
        &self,
        place: Option<(&Dir, &[u8])>,
        inode: &Inode,
    ) -> Result<()> {
        let _structure = self.read_structure();
        let change = |own: &mut Inode| {
            self.namespace().identity().check_owner(own, place.map_or(b"/", |(_, name)| name))?;
            (own.mode, own.uid, own.gid) = (inode.mode, inode.uid, inode.gid);
            (own.mtime_ns, own.atime_ns) = (inode.mtime_ns, inode.atime_ns);
            own.ctime_ns = inode.ctime_ns;
            own.xattrs.clone_from(&inode.xattrs);
            if let Some(node) = self.namespace().open_node(own.dir_id()) {
                node.forget_touch();
            }
            Ok(())
        };
        let Some((dir, name)) = place else {
            return self.update_root(change);
        };
        let amended = self.update_inode(dir, name, change)?;
        self.namespace().node(dir, name, &amended, || false).set_attributes(&amended);
        Ok(())
    }
}
