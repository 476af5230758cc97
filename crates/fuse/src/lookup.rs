//! Look-up: resolves names to nodes.

use std::sync::Arc;

use esker_base::Kind;
use esker_fs::dir::Dir;
use esker_fs::inode::{FileKind, Inode};
use fuser::{Errno, FileAttr};

use crate::front::Front;
use crate::nodes::Node;
use crate::place::Place;

impl Front {
    /// The attributes for the kernel of `name` in `parent`; `None` if there is no such entry.
    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<FileAttr>, Errno> {
        let parent = self.node(parent)?;
        if parent.kind == FileKind::Indexed {
            return self.look_up_key(&parent, name);
        }
        let dir = self.dir(&parent)?;
        match self.view.lookup(&dir, name, false) {
            Ok(inode) => Ok(Some(self.tell(&dir, name, &inode)?)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(self.errno(&error)),
        }
    }

    /// The attributes for the kernel of `inode`, found as `name` in `dir`.
    pub(crate) fn tell(&self, dir: &Dir, name: &[u8], inode: &Inode) -> Result<FileAttr, Errno> {
        let node = self.remember(dir, name, inode)?;
        self.shown(&node, inode).inspect_err(|_| self.forget(node.number, 1))
    }

    /// The node of `inode`, found as `name` in `dir`, with one more kernel look-up.
    pub(crate) fn remember(
        &self,
        dir: &Dir,
        name: &[u8],
        inode: &Inode,
    ) -> Result<Arc<Node>, Errno> {
        if inode.is_directory() {
            let opened =
                self.view.open_dir(dir, name, inode).map_err(|error| self.errno(&error))?;
            return Ok(self.nodes.remember(inode, || Place::Dir(opened)));
        }
        Ok(self.nodes.remember(inode, || match inode.nlink {
            0 | 1 => Place::Name(dir.clone(), name.into()),
            _ => self.link_place(inode),
        }))
    }

    /// The location of a file with several names.
    pub(crate) fn link_place(&self, inode: &Inode) -> Place {
        Place::Name(self.view.links().clone(), inode.id.to_be_bytes().into())
    }

    /// The node with inode number `number`.
    pub(crate) fn node(&self, number: u64) -> Result<Arc<Node>, Errno> {
        self.nodes.get(number).ok_or(Errno::ESTALE)
    }

    /// The handle of a directory.
    pub(crate) fn dir(&self, node: &Node) -> Result<Dir, Errno> {
        match &*node.place.lock() {
            Place::Dir(dir) => Ok(dir.clone()),
            // Keys exist only together with their directory.
            Place::Name(..) if node.kind == FileKind::Indexed => Err(Errno::EROFS),
            Place::Name(..) | Place::Key(_) => Err(Errno::ENOTDIR),
            Place::Gone(inode) if inode.is_directory() => Err(Errno::ENOENT),
            Place::Gone(_) => Err(Errno::ENOTDIR),
        }
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self, number: u64) -> Result<Vec<u8>, Errno> {
        let node = self.node(number)?;
        let place = node.place.lock().clone();
        match &place {
            Place::Name(dir, name) => {
                let found = self.view.lookup(dir, name, true);
                found.map(|inode| inode.content).map_err(|error| self.errno(&error))
            }
            Place::Gone(inode) => Ok(inode.content.clone()),
            Place::Dir(_) | Place::Key(_) => Err(Errno::EINVAL),
        }
    }
}
