// SPDX-License-Identifier: Apache-2.0
//! Xattr: extended attributes, `user.*` and for a superuser also `trusted.*` and `security.*`.

use esker_base::Kind;
use esker_fs::inode::Inode;
use esker_fs::inode::xattr::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use esker_fs::ops::XattrSet;
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::{READ, WRITE};
use rustix::io::Errno;

use super::{Subject, TrappedCall, session};
use crate::listener::CallAnswer;
use crate::resolve::errno;
use crate::spooled_file::FileSource;

/// A file whose attributes are asked for or changed.
struct AttributedFile {
    view: NamespaceView,
    /// The view in which they are changed.
    changing: NamespaceView,
    inode: Inode,
    /// Its directory and its name; `None` for the root.
    place: Option<(Dir, Vec<u8>)>,
}

impl TrappedCall<'_> {
    /// getxattr and its relatives.
    pub(super) fn xattr(&self, subject: Subject) -> Result<CallAnswer, Errno> {
        let Some(file) = self.attributed(subject)? else { return Ok(CallAnswer::Continue) };
        let attribute = self.attribute()?;
        file.check(&attribute, READ)?;
        let namespace = file.view.namespace();
        let mut known = namespace.xattrs(&file.inode).map_err(|error| errno(&error))?;
        let value = known.remove(&attribute).ok_or(Errno::NODATA)?;
        self.sized(&value, 2)
    }

    /// listxattr and its relatives.
    pub(super) fn list_xattrs(&self, subject: Subject) -> Result<CallAnswer, Errno> {
        let Some(file) = self.attributed(subject)? else { return Ok(CallAnswer::Continue) };
        let namespace = file.view.namespace();
        let known = namespace.xattrs(&file.inode).map_err(|error| errno(&error))?;
        let mut names = Vec::new();
        for name in known.keys() {
            if namespace.identity().is_root() || !name.starts_with(b"trusted.") {
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        self.sized(&names, 1)
    }

    /// setxattr and its relatives.
    pub(super) fn set_xattr(&self, subject: Subject) -> Result<CallAnswer, Errno> {
        let Some(file) = self.attributed(subject)? else { return Ok(CallAnswer::Continue) };
        let attribute = self.attribute()?;
        file.check(&attribute, WRITE)?;
        let how = match self.int(4) {
            0 => XattrSet::Any,
            libc::XATTR_CREATE => XattrSet::Create,
            libc::XATTR_REPLACE => XattrSet::Replace,
            _ => return Err(Errno::INVAL),
        };
        let length = self.argument(3) as usize;
        if length > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        let value = self.caller().byte_vec(self.argument(2), length)?;
        let session = session(&file.changing)?;
        let set = match &file.place {
            Some((dir, name)) => session.set_xattr(dir, name, (&attribute, &value), how),
            None => session.set_xattr_root((&attribute, &value), how),
        };
        set.map(|()| CallAnswer::Value(0)).map_err(|error| match error.kind() {
            // Beyond the limit on a file's attributes, other file systems report a lack of space.
            Kind::TooLarge => Errno::NOSPC,
            _ => errno(&error),
        })
    }

    /// removexattr and its relatives.
    pub(super) fn remove_xattr(&self, subject: Subject) -> Result<CallAnswer, Errno> {
        let Some(file) = self.attributed(subject)? else { return Ok(CallAnswer::Continue) };
        let attribute = self.attribute()?;
        file.check(&attribute, WRITE)?;
        let session = session(&file.changing)?;
        let removed = match &file.place {
            Some((dir, name)) => session.remove_xattr(dir, name, &attribute),
            None => session.remove_xattr_root(&attribute),
        };
        removed.map(|()| CallAnswer::Value(0)).map_err(|error| errno(&error))
    }

    fn attribute(&self) -> Result<Vec<u8>, Errno> {
        self.caller().string(self.argument(1), XATTR_NAME_BYTES_MAX + 1)
    }

    /// Answers with `bytes` in the memory of argument `at`, or with their number if the next one
    /// is 0.
    fn sized(&self, bytes: &[u8], at: usize) -> Result<CallAnswer, Errno> {
        match self.argument(at + 1) as usize {
            0 => Ok(CallAnswer::Value(bytes.len() as i64)),
            size if size < bytes.len() => Err(Errno::RANGE),
            size => self.write_cut(at, bytes, size),
        }
    }

    fn attributed(&self, subject: Subject) -> Result<Option<AttributedFile>, Errno> {
        let failed = |error: esker_base::Error| errno(&error);
        Ok(Some(match subject {
            Subject::Outside => return Ok(None),
            Subject::Name(located) => {
                let inode = located.inode()?.clone();
                let place = Some((located.dir, located.name)).filter(|(_, name)| !name.is_empty());
                let view = located.view;
                AttributedFile { changing: view.clone(), view, inode, place }
            }
            Subject::File(view, file) => {
                let inode = file.stat().map_err(failed)?;
                // Only a superuser can look up a file with several names.
                let changing = self.supervisor.identities().superuser().clone();
                let place = match file.source() {
                    FileSource::Session(session, open) => {
                        Some(session.file(open).record_location().ok_or(Errno::OPNOTSUPP)?)
                    }
                    FileSource::Snapshot(_) => None,
                };
                AttributedFile { view, changing, inode, place }
            }
            Subject::Directory(view, dir) => {
                let inode = view.namespace().stat_dir(&dir).map_err(failed)?;
                AttributedFile { changing: view.clone(), view, inode, place: dir.location() }
            }
        }))
    }
}

impl AttributedFile {
    /// Fails unless the user may read or write `attribute`.
    fn check(&self, attribute: &[u8], wanted: u32) -> Result<(), Errno> {
        let identity = self.view.namespace().identity();
        let is_for_all = attribute.starts_with(b"user.") || attribute.starts_with(b"security.");
        if attribute.starts_with(b"trusted.") && !identity.is_root() {
            return Err(if wanted == READ { Errno::NODATA } else { Errno::PERM });
        }
        if !is_for_all && !attribute.starts_with(b"trusted.") {
            return Err(Errno::OPNOTSUPP);
        }
        if attribute.starts_with(b"user.") {
            identity.check(wanted, &self.inode, b"file").map_err(|error| errno(&error))?;
        } else if wanted == WRITE && !identity.is_root() {
            return Err(Errno::PERM);
        }
        Ok(())
    }
}
