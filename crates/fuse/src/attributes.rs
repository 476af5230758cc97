// SPDX-License-Identifier: Apache-2.0
//! Attributes: converts inodes to the attributes that the kernel gets, and changes them.
//!
//! Times outside the range of timestamps (`esker_fs::inode::timestamp`) are stored as the
//! nearest time in it. The kernel has checked permissions; it leaves only the removal of set-id
//! bits when content or owner change to the file system (`HANDLE_KILLPRIV_V2`).

use std::time::UNIX_EPOCH;

use esker_fs::inode::timestamp;
use esker_fs::inode::{FileKind, Inode};
use esker_fs::ops::AttributeChanges;
use esker_fs::stack::namespace::Namespace;
use esker_fuse_ring::{AttrChanges, NewTime};
use esker_live::wire::LiveAttributes;
use fuser::{Errno, FileAttr, FileType, INodeNo};

use crate::mount_state::MountState;
use crate::node_location::NodeLocation;
use crate::nodes::KernelNode;

/// Preferred size of reads, by which programs size their buffers.
const BLOCK_BYTES: u32 = 4096;

/// The part of an inode that a listing keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedAttributes {
    pub(crate) id: u128,
    pub(crate) kind: FileKind,
    pub(crate) nlink: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    /// Bytes of content without holes.
    stored_bytes: u64,
    mtime_ns: i64,
    ctime_ns: i64,
    atime_ns: i64,
}

impl ListedAttributes {
    /// The attributes of `inode`, an inode of `namespace`.
    pub(crate) fn of(namespace: &Namespace, inode: &Inode) -> esker_base::Result<Self> {
        let attributes = Self::from(inode);
        if inode.kind() != Some(FileKind::File) {
            return Ok(attributes);
        }
        Ok(Self { stored_bytes: namespace.stored_bytes(inode)?, ..attributes })
    }
}

impl ListedAttributes {
    /// The attributes of a file of a live namespace. Its directories are not counted: one link
    /// stands for an unknown number.
    pub(crate) fn of_live(attributes: &LiveAttributes) -> Self {
        let is_directory = attributes.kind.is_shown_as_directory();
        Self {
            id: attributes.id,
            kind: attributes.kind,
            nlink: if is_directory { 1 } else { attributes.nlink },
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev,
            size: attributes.size,
            stored_bytes: attributes.size,
            mtime_ns: attributes.mtime_ns,
            ctime_ns: attributes.ctime_ns,
            atime_ns: attributes.atime_ns,
        }
    }
}

impl From<&Inode> for ListedAttributes {
    fn from(inode: &Inode) -> Self {
        Self {
            id: inode.id,
            kind: inode.kind().unwrap_or(FileKind::File),
            nlink: inode.nlink,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size,
            stored_bytes: inode.size,
            mtime_ns: inode.mtime_ns,
            ctime_ns: inode.ctime_ns,
            atime_ns: inode.atime_ns,
        }
    }
}

impl ListedAttributes {
    /// The attributes for the kernel, with inode number `number`.
    pub(crate) fn file_attr(&self, number: u64) -> FileAttr {
        FileAttr {
            ino: INodeNo(number),
            size: self.size,
            blocks: self.stored_bytes.div_ceil(512),
            atime: timestamp::system_time(self.atime_ns),
            mtime: timestamp::system_time(self.mtime_ns),
            ctime: timestamp::system_time(self.ctime_ns),
            crtime: UNIX_EPOCH,
            kind: type_of(self.kind),
            perm: (self.mode & 0o7777) as u16,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            // The protocol has 32 bits, in the kernel's own layout of 12 and 20.
            rdev: shown_device(self.rdev),
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }
}

/// The kernel's type of a kind.
pub(crate) fn type_of(kind: FileKind) -> FileType {
    match kind {
        kind if kind.is_shown_as_directory() => FileType::Directory,
        FileKind::File | FileKind::Directory | FileKind::Indexed => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// Converts a device number to the protocol's form, the kernel's 32 bits (`new_encode_dev`).
fn shown_device(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// Converts a device number from the protocol's form.
pub(crate) fn device_of(rdev: u32) -> u64 {
    let (major, minor) = ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
    rustix::fs::makedev(major, minor)
}

impl MountState {
    /// The current attributes of `node`.
    pub(crate) fn attributes(&self, node: &KernelNode) -> Result<FileAttr, Errno> {
        let inode = self.inode(node)?;
        self.attributes_with_links(node, &inode)
    }

    /// The inode of `node`; content and extended attributes may be missing.
    pub(crate) fn inode(&self, node: &KernelNode) -> Result<Inode, Errno> {
        if let Some(inode) = self.open_inode(node)? {
            return Ok(inode);
        }
        let location = node.location.lock().clone();
        let found = match &location {
            NodeLocation::Dir(dir) => self.view.namespace().stat_dir(dir),
            NodeLocation::Name(dir, name) => self.view.namespace().lookup(dir, name, false),
            NodeLocation::Key(file) => return self.key_inode(file),
            NodeLocation::Gone(inode) => return Ok((**inode).clone()),
        };
        found.map_err(|error| self.errno(&error))
    }

    /// Changes attributes of `node`; returns all of them. A change of size removes set-id bits if
    /// `drops_set_id`.
    pub(crate) fn change(
        &self,
        node: &KernelNode,
        wanted: &AttrChanges,
        drops_set_id: bool,
    ) -> Result<FileAttr, Errno> {
        let session = self.session()?;
        let now_ns = || self.now_ns();
        let time = |time: Option<NewTime>| {
            time.map(|time| match time {
                NewTime::At(seconds, nanoseconds) => {
                    timestamp::of_parts(seconds, i64::from(nanoseconds))
                }
                NewTime::Now => now_ns(),
            })
        };
        let mut changes = AttributeChanges {
            mode: wanted.mode.map(|mode| mode & 0o7777),
            uid: wanted.uid,
            gid: wanted.gid,
            size: wanted.size,
            atime_ns: time(wanted.atime),
            mtime_ns: time(wanted.mtime),
            ctime_ns: time(wanted.ctime),
        };
        if wanted.size.is_some() && drops_set_id && changes.mode.is_none() {
            changes.mode = self.mode_without_set_id(node)?;
        }
        let opened = self.open_for_change(node);
        let location = node.location.lock().clone();
        let changed = match (&opened, &location) {
            (Some(file), _) => session.file(file).setattr(&changes),
            (None, NodeLocation::Dir(dir)) => match dir.location() {
                Some((parent, name)) => session.setattr(&parent, &name, &changes),
                None => {
                    session.setattr_root(&changes).and_then(|()| session.namespace().stat_dir(dir))
                }
            },
            (None, NodeLocation::Name(dir, name)) => session.setattr(dir, name, &changes),
            (None, NodeLocation::Key(_)) => return Err(Errno::EROFS),
            (None, NodeLocation::Gone(inode)) => {
                let inode = changed_gone(inode, &changes, now_ns());
                *node.location.lock() = NodeLocation::Gone(Box::new(inode.clone()));
                Ok(inode)
            }
        };
        self.record_change();
        let inode = changed.map_err(|error| self.errno(&error))?;
        self.attributes_with_links(node, &inode)
    }

    /// Removes set-id bits from `node` after another user has changed its content. The kernel
    /// leaves that to the mount, so it is also made to read the mode again.
    pub(crate) fn drop_set_id(&self, node: &KernelNode) -> Result<(), Errno> {
        let Some(mode) = self.mode_without_set_id(node)? else { return Ok(()) };
        self.change(node, &AttrChanges { mode: Some(mode), ..AttrChanges::default() }, false)?;
        self.invalidate_attributes(node.number);
        Ok(())
    }

    /// The mode of `node` without the set-id bits that a write by another user removes; `None` if
    /// it has none of them.
    fn mode_without_set_id(&self, node: &KernelNode) -> Result<Option<u32>, Errno> {
        let mode = self.inode(node)?.mode;
        // Without group execution, set-group-id means mandatory locking and stays.
        let dropped = if mode & 0o010 != 0 { 0o6000 } else { 0o4000 };
        Ok((mode & dropped != 0).then_some(mode & !dropped))
    }
}

/// Applies `changes` to a file without names, which exists only here.
fn changed_gone(inode: &Inode, changes: &AttributeChanges, now_ns: i64) -> Inode {
    let mut inode = inode.clone();
    inode.mode = changes.mode.unwrap_or(inode.mode);
    inode.uid = changes.uid.unwrap_or(inode.uid);
    inode.gid = changes.gid.unwrap_or(inode.gid);
    inode.atime_ns = changes.atime_ns.unwrap_or(inode.atime_ns);
    inode.mtime_ns = changes.mtime_ns.unwrap_or(inode.mtime_ns);
    inode.ctime_ns = changes.ctime_ns.unwrap_or(now_ns);
    inode
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(1, 3), (8, 255), (8, 256), (0xfff, 0xf_ffff), (0, 0)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(device_of(shown_device(rdev)), rdev, "{major}:{minor}");
        }
    }
}
