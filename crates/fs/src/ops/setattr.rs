// SPDX-License-Identifier: Apache-2.0
//! Changing attributes: mode, owner, times, size, extended attributes.

use esker_base::{Error, Kind, Result};

use crate::file::FILE_BYTES_MAX;
use crate::inode::xattr;
use crate::inode::{FileKind, Inode, NO_ID};
use crate::session::Session;
use crate::stack::dir::Dir;
use crate::stack::identity::{Identity, WRITE, not_permitted};
use crate::stack::path::show;

/// Changes of attributes; those that are `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: the file is truncated, or extended with zeros.
    pub size: Option<u64>,
    /// Access time, in nanoseconds since the Unix epoch.
    pub atime_ns: Option<i64>,
    /// Modification time.
    pub mtime_ns: Option<i64>,
    /// Time of the last change, from a kernel that keeps times of unwritten data; otherwise the
    /// current time.
    pub ctime_ns: Option<i64>,
}

/// Condition for setting an extended attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrSet {
    /// None: it may exist or not.
    #[default]
    Any,
    /// Only if it does not exist (`XATTR_CREATE`).
    Create,
    /// Only if it exists (`XATTR_REPLACE`).
    Replace,
}

impl Session {
    /// Changes attributes of `name` in `dir`.
    ///
    /// # Errors
    /// `NotFound`, `Denied`; `NotPermitted` for changes reserved to the owner or the superuser;
    /// `IsADirectory` or `Invalid` for a size of anything but a regular file.
    pub fn setattr(&self, dir: &Dir, name: &[u8], changes: &AttributeChanges) -> Result<Inode> {
        dir.check_name(name)?;
        if let Some(file) = self.open_to_change(dir, name, changes)? {
            let changed = self.file(&file).setattr(changes);
            self.close_file(file)?;
            return changed;
        }
        let _structure = self.read_structure();
        self.check_search(dir, name)?;
        let mut inode = self.update_inode(dir, name, |inode| self.apply(inode, name, changes))?;
        if inode.is_directory() {
            let node = self.namespace().node(dir, name, &inode, || false);
            node.set_attributes(&inode);
            node.overlay_times(&mut inode);
        }
        Ok(inode)
    }

    /// Changes attributes of the root directory.
    ///
    /// # Errors
    /// As [`Session::setattr`].
    pub fn setattr_root(&self, changes: &AttributeChanges) -> Result<()> {
        let _structure = self.read_structure();
        self.update_root(|inode| self.apply(inode, b"/", changes))
    }

    pub(crate) fn apply(
        &self,
        inode: &mut Inode,
        name: &[u8],
        changes: &AttributeChanges,
    ) -> Result<()> {
        let now_ns = self.now_ns();
        let identity = self.namespace().identity();
        if changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some() {
            identity.check_owner(inode, name)?;
        }
        if let Some(mode) = changes.mode {
            inode.mode = mode & 0o7777;
            if !identity.is_root() && !identity.is_member(inode.gid) {
                inode.mode &= !0o2000;
            }
        }
        self.apply_owner(inode, name, changes)?;
        if let Some(size) = changes.size {
            check_file(inode, name)?;
            identity.check(WRITE, inode, name)?;
            resize(inode, name, size)?;
            content_changed(inode, identity, now_ns);
        }
        if changes.atime_ns.is_some() || changes.mtime_ns.is_some() {
            identity.check_owner(inode, name)?;
            inode.atime_ns = changes.atime_ns.unwrap_or(inode.atime_ns);
            inode.mtime_ns = changes.mtime_ns.unwrap_or(inode.mtime_ns);
            if changes.mtime_ns.is_some()
                && inode.is_directory()
                && let Some(node) = self.namespace().open_node(inode.dir_id())
            {
                node.forget_touch();
            }
        }
        inode.ctime_ns = changes.ctime_ns.unwrap_or(now_ns);
        Ok(())
    }

    fn apply_owner(
        &self,
        inode: &mut Inode,
        name: &[u8],
        changes: &AttributeChanges,
    ) -> Result<()> {
        let identity = self.namespace().identity();
        if changes.uid == Some(NO_ID) || changes.gid == Some(NO_ID) {
            let context = format!("{}: {NO_ID} is not a user or group", show(name));
            return Err(Error::new(Kind::Invalid, context));
        }
        if !identity.is_root() {
            let gives_away = changes.uid.is_some_and(|uid| uid != inode.uid);
            let joins = changes.gid.is_some_and(|gid| gid != inode.gid && !identity.is_member(gid));
            if gives_away || joins {
                return Err(not_permitted(name));
            }
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            // A program loses its set-id bits when its owner changes.
            if changes.mode.is_none() && !inode.is_directory() {
                drop_set_id(inode, identity);
            }
            inode.uid = changes.uid.unwrap_or(inode.uid);
            inode.gid = changes.gid.unwrap_or(inode.gid);
        }
        Ok(())
    }

    /// Sets an extended attribute of `name` in `dir`.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `NotPermitted`, `TooLarge`; `Exists` or `NoAttribute` as `how`
    /// requires.
    pub fn set_xattr(
        &self,
        dir: &Dir,
        name: &[u8],
        (attribute, value): (&[u8], &[u8]),
        how: XattrSet,
    ) -> Result<()> {
        self.update_xattrs(dir, name, attribute, |xattrs| {
            insert_xattr(xattrs, (attribute, value), how)
        })
    }

    /// Sets an extended attribute of the root directory.
    ///
    /// # Errors
    /// As [`Session::set_xattr`].
    pub fn set_xattr_root(&self, (attribute, value): (&[u8], &[u8]), how: XattrSet) -> Result<()> {
        let _structure = self.read_structure();
        self.update_root(|inode| {
            self.change_xattrs(inode, b"/", attribute, |xattrs| {
                insert_xattr(xattrs, (attribute, value), how)
            })
        })
    }

    /// Removes an extended attribute of the root directory.
    ///
    /// # Errors
    /// As [`Session::remove_xattr`].
    pub fn remove_xattr_root(&self, attribute: &[u8]) -> Result<()> {
        let _structure = self.read_structure();
        self.update_root(|inode| {
            self.change_xattrs(inode, b"/", attribute, |xattrs| take_xattr(xattrs, attribute))
        })
    }

    /// Removes an extended attribute of `name` in `dir`.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `NotPermitted`, `NoAttribute`.
    pub fn remove_xattr(&self, dir: &Dir, name: &[u8], attribute: &[u8]) -> Result<()> {
        self.update_xattrs(dir, name, attribute, |xattrs| take_xattr(xattrs, attribute))
    }

    /// Fails unless the caller may change `user.` attributes: write permission on a file or
    /// directory; in addition, ownership of a directory with the sticky bit.
    fn check_user_xattr(&self, inode: &Inode, name: &[u8]) -> Result<()> {
        match inode.kind() {
            Some(FileKind::File) => {}
            Some(FileKind::Directory) if inode.mode & 0o1000 == 0 => {}
            Some(FileKind::Directory) => self.namespace().identity().check_owner(inode, name)?,
            _ => return Err(not_permitted(name)),
        }
        self.namespace().identity().check(WRITE, inode, name)
    }

    fn update_xattrs(
        &self,
        dir: &Dir,
        name: &[u8],
        attribute: &[u8],
        mut change: impl FnMut(&mut xattr::Xattrs) -> Result<()>,
    ) -> Result<()> {
        let _structure = self.read_structure();
        dir.check_name(name)?;
        self.check_search(dir, name)?;
        self.update_inode(dir, name, |inode| {
            self.change_xattrs(inode, name, attribute, &mut change)
        })?;
        Ok(())
    }

    pub(crate) fn change_xattrs(
        &self,
        inode: &mut Inode,
        name: &[u8],
        attribute: &[u8],
        mut change: impl FnMut(&mut xattr::Xattrs) -> Result<()>,
    ) -> Result<()> {
        if attribute.starts_with(b"user.") {
            self.check_user_xattr(inode, name)?;
        } else if !self.namespace().identity().is_root() {
            return Err(not_permitted(attribute));
        }
        let mut xattrs = xattr::decode(&inode.xattrs)?;
        change(&mut xattrs)?;
        inode.xattrs = xattr::encode(&xattrs)?;
        inode.ctime_ns = self.now_ns();
        Ok(())
    }
}

/// Sets an attribute among those of a file.
pub(crate) fn insert_xattr(
    xattrs: &mut xattr::Xattrs,
    (attribute, value): (&[u8], &[u8]),
    how: XattrSet,
) -> Result<()> {
    let has = xattrs.contains_key(attribute);
    match how {
        XattrSet::Create if has => {
            Err(Error::new(Kind::Exists, format!("{}: attribute exists", show(attribute))))
        }
        XattrSet::Replace if !has => Err(no_attribute(attribute)),
        _ => {
            xattrs.insert(attribute.to_vec(), value.to_vec());
            Ok(())
        }
    }
}

/// Removes an attribute from those of a file.
pub(crate) fn take_xattr(xattrs: &mut xattr::Xattrs, attribute: &[u8]) -> Result<()> {
    xattrs.remove(attribute).map(drop).ok_or_else(|| no_attribute(attribute))
}

/// Records that the content of a file was changed at `now_ns`. A write by an ordinary user drops
/// set-id bits, so the new content does not run with another user's rights.
pub(crate) fn content_changed(inode: &mut Inode, identity: &Identity, now_ns: i64) {
    if !identity.is_root() {
        drop_set_id(inode, identity);
    }
    (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
}

/// Drops set-id bits. Without group execution the set-group-id bit has another meaning; it then
/// stays for members of the group.
fn drop_set_id(inode: &mut Inode, identity: &Identity) {
    inode.mode &= !0o4000;
    let is_member = identity.is_root() || identity.is_member(inode.gid);
    if inode.mode & 0o010 != 0 || !is_member {
        inode.mode &= !0o2000;
    }
}

/// Fails for anything but a regular file.
pub(crate) fn check_file(inode: &Inode, name: &[u8]) -> Result<()> {
    crate::session::check_not_directory(inode, name)?;
    if inode.kind() != Some(FileKind::File) {
        return Err(Error::new(Kind::Invalid, format!("{}: not a regular file", show(name))));
    }
    Ok(())
}

fn no_attribute(attribute: &[u8]) -> Error {
    Error::new(Kind::NoAttribute, format!("{}: no such attribute", show(attribute)))
}

/// Truncates a file to `size`, or extends it with zeros.
pub(crate) fn resize(inode: &mut Inode, name: &[u8], size: u64) -> Result<()> {
    if size > FILE_BYTES_MAX {
        return Err(Error::new(Kind::FileTooLarge, format!("{}: {size} bytes", show(name))));
    }
    if let Some(extent) = &mut inode.extent {
        extent.length = extent.length.min(size);
        if extent.length == 0 {
            inode.extent = None;
        }
    }
    inode.content.truncate(usize::try_from(size).unwrap_or(usize::MAX));
    inode.size = size;
    Ok(())
}
