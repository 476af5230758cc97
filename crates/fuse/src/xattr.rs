// SPDX-License-Identifier: Apache-2.0
//! Extended attributes: `user.*` for every user with write permission, `trusted.*` and `security.*`
//! for the superuser, as the kernel checks; no others. The kernel refuses access control lists
//! (`system.posix_acl_*`), since nothing here would enforce them.
//!
//! The root has one more, unlisted: [`STATUS`], through which commands find a running mount.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::Kind;
use esker_fs::file::OpenFile;
use esker_fs::ops::XattrSet;
use esker_fs::stack::dir::Dir;
use fuser::Errno;

use crate::control::STATUS;
use crate::mount_state::MountState;
use crate::node_location::NodeLocation;
use crate::node_table::ROOT;
use crate::nodes::KernelNode;

/// `setxattr`'s flags.
const CREATE: i32 = 1;
const REPLACE: i32 = 2;
/// Prefix of names visible only to the superuser.
const TRUSTED: &[u8] = b"trusted.";

/// The object whose extended attributes a request changes.
enum XattrOwner {
    Root,
    /// A name in a directory.
    Name(Dir, Vec<u8>),
    /// A file without names that is open.
    OpenFile(Arc<OpenFile>),
}

impl MountState {
    /// All attributes of `node`.
    fn xattrs(&self, node: &KernelNode) -> Result<esker_fs::inode::xattr::Xattrs, Errno> {
        let location = node.location.lock().clone();
        let inode = match &location {
            NodeLocation::Dir(dir) => self.view.namespace().stat_dir(dir),
            NodeLocation::Name(dir, name) => self.view.namespace().lookup(dir, name, true),
            NodeLocation::Key(_) => return Ok(esker_fs::inode::xattr::Xattrs::new()),
            NodeLocation::Gone(inode) => {
                Ok(self.open_inode(node)?.unwrap_or_else(|| (**inode).clone()))
            }
        };
        let xattrs = inode.and_then(|inode| self.view.namespace().xattrs(&inode));
        xattrs.map_err(|error| self.errno(&error))
    }

    /// The value of an attribute.
    pub(crate) fn xattr(&self, number: u64, attribute: &[u8]) -> Result<Vec<u8>, Errno> {
        if number == ROOT && attribute == STATUS.as_bytes() {
            return Ok(self.status.clone());
        }
        if !is_stored(attribute) {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.node(number)?;
        if self.has_no_xattrs(&node) {
            return Err(Errno::ENODATA);
        }
        self.xattrs(&node)?.remove(attribute).ok_or(Errno::ENODATA)
    }

    /// The names of all attributes, each followed by a zero byte; those of [`TRUSTED`] only for a
    /// superuser, who alone can read them.
    pub(crate) fn xattr_names(&self, number: u64, is_superuser: bool) -> Result<Vec<u8>, Errno> {
        let mut names = Vec::new();
        for name in self.xattrs(&*self.node(number)?)?.keys() {
            if !is_superuser && name.starts_with(TRUSTED) {
                continue;
            }
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }

    pub(crate) fn set_xattr(
        &self,
        number: u64,
        attribute: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<(), Errno> {
        let how = xattr_condition(attribute, flags)?;
        let session = self.session()?;
        let node = self.node(number)?;
        node.is_known_without_xattrs.store(false, Ordering::Relaxed);
        let change = (attribute, value);
        let set = match self.xattr_owner(&node)? {
            XattrOwner::Root => session.set_xattr_root(change, how),
            XattrOwner::Name(dir, name) => session.set_xattr(&dir, &name, change, how),
            XattrOwner::OpenFile(file) => session.file(&file).set_xattr(change, how),
        };
        self.record_change();
        set.map_err(|error| match error.kind() {
            // Beyond the limit on a file's attributes, other file systems report a lack of space.
            Kind::TooLarge => Errno::ENOSPC,
            _ => self.errno(&error),
        })
    }

    pub(crate) fn remove_xattr(&self, number: u64, attribute: &[u8]) -> Result<(), Errno> {
        if !is_stored(attribute) {
            return Err(Errno::EOPNOTSUPP);
        }
        let session = self.session()?;
        let removed = match self.xattr_owner(&*self.node(number)?)? {
            XattrOwner::Root => session.remove_xattr_root(attribute),
            XattrOwner::Name(dir, name) => session.remove_xattr(&dir, &name, attribute),
            XattrOwner::OpenFile(file) => session.file(&file).remove_xattr(attribute),
        };
        self.record_change();
        removed.map_err(|error| self.errno(&error))
    }

    /// The owner of the extended attributes of `node`.
    fn xattr_owner(&self, node: &KernelNode) -> Result<XattrOwner, Errno> {
        let location = node.location.lock().clone();
        match location {
            NodeLocation::Dir(dir) => Ok(dir
                .location()
                .map_or(XattrOwner::Root, |(parent, name)| XattrOwner::Name(parent, name))),
            NodeLocation::Name(dir, name) => Ok(XattrOwner::Name(dir, name.into())),
            NodeLocation::Key(_) => Err(Errno::EROFS),
            NodeLocation::Gone(_) => {
                self.open_for_change(node).map(XattrOwner::OpenFile).ok_or(Errno::ENOENT)
            }
        }
    }
}

/// The condition of a `setxattr` of `attribute` with `flags`.
pub(crate) fn xattr_condition(attribute: &[u8], flags: i32) -> Result<XattrSet, Errno> {
    if !is_stored(attribute) {
        return Err(Errno::EOPNOTSUPP);
    }
    match flags {
        0 => Ok(XattrSet::Any),
        CREATE => Ok(XattrSet::Create),
        REPLACE => Ok(XattrSet::Replace),
        _ => Err(Errno::EINVAL),
    }
}

pub(crate) fn is_stored(attribute: &[u8]) -> bool {
    [&b"user."[..], TRUSTED, b"security."].iter().any(|prefix| attribute.starts_with(prefix))
}
