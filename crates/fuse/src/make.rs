// SPDX-License-Identifier: Apache-2.0
//! Make: creates files of every kind, and further names.

use esker_fs::inode::FileKind;
use esker_fs::ops::NewFile;
use fuser::{Errno, FileAttr};

use crate::attributes::device_of;
use crate::failed_change::ChangedName;
use crate::link_count::SubdirCount;
use crate::mount_state::MountState;
use crate::node_location::NodeLocation;

/// Bits of a mode that encode the file type.
const TYPE_BITS: u32 = 0o170_000;

/// A file to create, as the kernel requests it.
pub(crate) struct CreateRequest<'a> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    pub(crate) target: &'a [u8],
}

/// The user on whose behalf a file is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl CreateRequest<'_> {
    pub(crate) fn new(kind: FileKind, mode: u32) -> Self {
        CreateRequest { kind, mode, rdev: 0, target: &[] }
    }

    /// From a `mknod` request, by the type bits of its mode.
    pub(crate) fn node(mode: u32, rdev: u32) -> Result<Self, Errno> {
        let kind = match mode & TYPE_BITS {
            0o100_000 | 0 => FileKind::File,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self { kind, mode, rdev, target: &[] })
    }

    /// Completes it with the user `caller`. The kernel has applied the umask.
    pub(crate) fn by(&self, caller: Caller) -> NewFile<'_> {
        NewFile {
            kind: self.kind,
            mode: self.mode & 0o7777,
            uid: caller.uid,
            gid: caller.gid,
            rdev: device_of(self.rdev),
            target: self.target,
        }
    }
}

impl MountState {
    /// Creates `asked` at `name` in `parent`; returns its attributes for the kernel.
    pub(crate) fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        asked: &CreateRequest,
    ) -> Result<FileAttr, Errno> {
        let session = self.session()?;
        let parent = self.node(parent)?;
        let dir = self.dir(&parent)?;
        let is_directory = asked.kind == FileKind::Directory;
        let mut count = is_directory.then(|| parent.directories.lock());
        let made = match is_directory {
            // Keep it open until the kernel knows it, so that it stays known to be new.
            true => session
                .make_dir(&dir, name, &asked.by(caller))
                .map(|(inode, dir)| (inode, Some(dir))),
            false => session.make(&dir, name, &asked.by(caller)).map(|inode| (inode, None)),
        };
        self.record_change();
        if let (Some(count), Ok(_)) = (&mut count, &made) {
            count.change(1);
        }
        drop(count);
        let changed = ChangedName { parent: &parent, dir: &dir, name };
        let (inode, _opened) = made.map_err(|error| self.failed_change(&error, &[changed]))?;
        let node = self.intern_entry(&dir, name, &inode)?;
        if is_directory {
            // The kernel allows no look-up of it before this answer.
            *node.directories.lock() = SubdirCount::Counted(0);
        }
        self.attributes_with_links(&node, &inode)
    }

    /// Adds `name` in `parent` as a name of the file `number`; returns the attributes for the
    /// kernel.
    pub(crate) fn link(&self, number: u64, parent: u64, name: &[u8]) -> Result<FileAttr, Errno> {
        let session = self.session()?;
        let node = self.node(number)?;
        let parent = self.node(parent)?;
        let dir = self.dir(&parent)?;
        let location = node.location.lock().clone();
        let (old_dir, old_name) = match location {
            // The directory of links holds inodes, not names: the file system finds any remaining
            // name.
            NodeLocation::Name(old_dir, old_name) => (old_dir, old_name),
            NodeLocation::Gone(_) => return Err(Errno::ENOENT),
            NodeLocation::Dir(_) | NodeLocation::Key(_) => return Err(Errno::EPERM),
        };
        let linked = session.link(&old_dir, &old_name, &dir, name);
        self.record_change();
        let changed = ChangedName { parent: &parent, dir: &dir, name };
        let inode = linked.map_err(|error| self.failed_change(&error, &[changed]))?;
        let node = self.nodes.intern(&inode, || self.link_location(&inode));
        *node.location.lock() = self.link_location(&inode);
        self.attributes_with_links(&node, &inode)
    }
}
