// SPDX-License-Identifier: Apache-2.0
//! Stat: calls that read the attributes of files and of the file system.

use esker_fs::inode::{FileKind, Inode};
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::dir::Dir;
use rustix::io::Errno;

use super::{Subject, TrappedCall};
use crate::attributes::{FileAttributes, bytes_of};
use crate::caller::{errno_of, last_errno};
use crate::listener::CallAnswer;
use crate::resolve::{Located, errno};
use crate::spooled_file::SpooledFile;

/// Type of the shown file system in statfs(2), "ESKR"; that of ext4 is 0xef53.
const FILE_SYSTEM: i64 = 0x4553_4b52;

impl TrappedCall<'_> {
    /// stat, lstat, newfstatat: of the path in argument `at`, to the memory at argument `to`.
    pub(super) fn stat_at(
        &self,
        descriptor: i32,
        at: usize,
        to: usize,
        flags: i32,
    ) -> Result<CallAnswer, Errno> {
        let subject = self.subject_at(descriptor, at, flags)?;
        self.answer_stat(&subject, to)
    }

    /// fstat.
    pub(super) fn stat_descriptor(&self) -> Result<CallAnswer, Errno> {
        self.answer_stat(&self.open_subject(self.int(0))?, 1)
    }

    fn answer_stat(&self, subject: &Subject, to: usize) -> Result<CallAnswer, Errno> {
        match self.attributes(subject)? {
            Some(attributes) => self.write(to, &attributes.stat()),
            None => Ok(CallAnswer::Continue),
        }
    }

    /// statx.
    pub(super) fn statx(&self) -> Result<CallAnswer, Errno> {
        match self.attributes(&self.subject_at(self.int(0), 1, self.int(2))?)? {
            Some(attributes) => self.write(4, &attributes.statx()),
            None => Ok(CallAnswer::Continue),
        }
    }

    /// The attributes of a subject; `None` if it is outside of the namespace.
    fn attributes(&self, subject: &Subject) -> Result<Option<FileAttributes>, Errno> {
        Ok(match subject {
            Subject::Outside => None,
            Subject::Name(located) => Some(self.attributes_of_name(located)?),
            Subject::File(_, file) => Some(attributes_of_file(file)?),
            Subject::Directory(view, dir) => Some(attributes_of_directory(view, dir)?),
        })
    }

    fn attributes_of_name(&self, located: &Located) -> Result<FileAttributes, Errno> {
        let inode = located.inode()?;
        if inode.kind() != Some(FileKind::File) {
            return Ok(attributes_of_fixed(inode));
        }
        if let Some(file) = self.supervisor.spool().file(inode.id) {
            return attributes_of_file(&file);
        }
        let stored = located.view.namespace().stored_bytes(inode).map_err(|error| errno(&error))?;
        Ok(FileAttributes::new(inode, stored))
    }

    /// statfs, fstatfs: shows the free space of the spool's file system.
    pub(super) fn statfs(&self, subject: Subject) -> Result<CallAnswer, Errno> {
        if matches!(subject, Subject::Outside) {
            return Ok(CallAnswer::Continue);
        }
        if let Subject::Name(located) = &subject {
            located.inode()?;
        }
        let place = self.supervisor.skeleton().root();
        let file = std::fs::File::open(place).map_err(|error| errno_of(&error))?;
        // SAFETY: zeros are a value of this type.
        let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `statfs` has the size of its type.
        if unsafe { libc::fstatfs(std::os::fd::AsRawFd::as_raw_fd(&file), &raw mut statfs) } != 0 {
            return Err(last_errno());
        }
        statfs.f_type = FILE_SYSTEM;
        self.write(1, &bytes_of(&statfs))
    }
}

fn attributes_of_file(file: &SpooledFile) -> Result<FileAttributes, Errno> {
    let inode = file.stat().map_err(|error| errno(&error))?;
    let stored = file.stored_bytes().map_err(|error| errno(&error))?;
    Ok(FileAttributes::new(&inode, stored.min(inode.size)))
}

fn attributes_of_directory(view: &NamespaceView, dir: &Dir) -> Result<FileAttributes, Errno> {
    let inode = view.namespace().stat_dir(dir).map_err(|error| errno(&error))?;
    Ok(attributes_of_fixed(&inode))
}

/// The attributes of anything but a regular file.
fn attributes_of_fixed(inode: &Inode) -> FileAttributes {
    FileAttributes::new(inode, inode.size)
}
