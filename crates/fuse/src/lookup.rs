// SPDX-License-Identifier: Apache-2.0
//! Look-up: resolves names to nodes.

use std::sync::Arc;

use esker_base::Kind;
use esker_fs::inode::{DirId, FileKind, Inode};
use esker_fs::stack::dir::Dir;
use fuser::{Errno, FileAttr};

use crate::mount_state::MountState;
use crate::node_location::NodeLocation;
use crate::nodes::KernelNode;

impl MountState {
    /// The attributes for the kernel of `name` in `parent`; `None` if there is no such entry.
    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<FileAttr>, Errno> {
        let parent = self.node(parent)?;
        if parent.kind == FileKind::Indexed {
            return self.lookup_key(&parent, name);
        }
        let dir = self.dir(&parent)?;
        match self.view.namespace().lookup(&dir, name, false) {
            Ok(inode) => Ok(Some(self.reply_attributes(&dir, name, &inode)?)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(self.errno(&error)),
        }
    }

    /// The attributes for the kernel of `inode`, found as `name` in `dir`.
    pub(crate) fn reply_attributes(
        &self,
        dir: &Dir,
        name: &[u8],
        inode: &Inode,
    ) -> Result<FileAttr, Errno> {
        let node = self.intern_entry(dir, name, inode)?;
        self.attributes_with_links(&node, inode).inspect_err(|_| self.forget(node.number, 1))
    }

    /// The node of `inode`, found as `name` in `dir`, with one more kernel look-up.
    pub(crate) fn intern_entry(
        &self,
        dir: &Dir,
        name: &[u8],
        inode: &Inode,
    ) -> Result<Arc<KernelNode>, Errno> {
        if inode.is_directory() {
            let opened = self
                .view
                .namespace()
                .open_dir(dir, name, inode)
                .map_err(|error| self.errno(&error))?;
            return Ok(self.nodes.intern(inode, || NodeLocation::Dir(opened)));
        }
        let node = self.nodes.intern(inode, || match inode.nlink {
            0 | 1 => NodeLocation::Name(dir.clone(), name.into()),
            _ => self.link_location(inode),
        });
        if inode.nlink <= 1 {
            self.check_location(&node, (dir, name));
        }
        Ok(node)
    }

    /// Makes operations on `node`, which was found as `name` in `dir`, reach the file by its place
    /// among the files with several names if it was known under another name: compositions can count
    /// too few names of a file.
    pub(crate) fn check_location(&self, node: &KernelNode, (dir, name): (&Dir, &[u8])) {
        let mut location = node.location.lock();
        let is_elsewhere = match &*location {
            NodeLocation::Name(known, at) => {
                known.id() != DirId::LINKS && (known.id(), &**at) != (dir.id(), name)
            }
            _ => false,
        };
        if !is_elsewhere {
            return;
        }
        // A name that was listed before a rename stands for the same file, which is no link.
        let links = self.view.namespace().links();
        if let Ok(inode) = self.view.namespace().lookup(links, &node.id.to_be_bytes(), false) {
            *location = self.link_location(&inode);
        }
    }

    /// The location of a file with several names.
    pub(crate) fn link_location(&self, inode: &Inode) -> NodeLocation {
        NodeLocation::Name(self.view.namespace().links().clone(), inode.id.to_be_bytes().into())
    }

    /// The node with inode number `number`.
    pub(crate) fn node(&self, number: u64) -> Result<Arc<KernelNode>, Errno> {
        self.nodes.get(number).ok_or(Errno::ESTALE)
    }

    /// The handle of a directory.
    pub(crate) fn dir(&self, node: &KernelNode) -> Result<Dir, Errno> {
        match &*node.location.lock() {
            NodeLocation::Dir(dir) => Ok(dir.clone()),
            // Keys exist only together with their directory.
            NodeLocation::Name(..) if node.kind == FileKind::Indexed => Err(Errno::EROFS),
            NodeLocation::Name(..) | NodeLocation::Key(_) => Err(Errno::ENOTDIR),
            NodeLocation::Gone(inode) if inode.is_directory() => Err(Errno::ENOENT),
            NodeLocation::Gone(_) => Err(Errno::ENOTDIR),
        }
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self, number: u64) -> Result<Vec<u8>, Errno> {
        let node = self.node(number)?;
        let location = node.location.lock().clone();
        match &location {
            NodeLocation::Name(dir, name) => {
                let found = self.view.namespace().lookup(dir, name, true);
                found.map(|inode| inode.content).map_err(|error| self.errno(&error))
            }
            NodeLocation::Gone(inode) => Ok(inode.content.clone()),
            NodeLocation::Dir(_) | NodeLocation::Key(_) => Err(Errno::EINVAL),
        }
    }
}
