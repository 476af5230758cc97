// SPDX-License-Identifier: Apache-2.0
//! Metadata: the attributes of a file at one moment.

use std::time::SystemTime;

use esker_base::{Error, Kind, Result};
use esker_fs::inode::timestamp;
use esker_fs::inode::xattr::{self, Xattrs};
use esker_fs::inode::{FileKind, Inode};

/// The attributes of a file when they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    inode: Inode,
}

impl Metadata {
    pub(crate) fn new(inode: Inode) -> Self {
        Self { inode }
    }

    /// The kind of file.
    ///
    /// # Errors
    /// `Corrupt` for a record that no session writes.
    pub fn kind(&self) -> Result<FileKind> {
        self.inode
            .kind()
            .ok_or_else(|| Error::new(Kind::Corrupt, "a file without a kind; run `esker verify`"))
    }

    /// True for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.inode.kind() == Some(FileKind::File)
    }

    /// True for a directory; false for an indexed one.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.inode.is_directory()
    }

    /// True for a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.inode.kind() == Some(FileKind::Symlink)
    }

    /// True for an indexed directory.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.inode.kind() == Some(FileKind::Indexed)
    }

    /// Bytes of content.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "as in std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.inode.size
    }

    /// Permission bits, with set-id and sticky bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.inode.mode
    }

    /// The owner's number.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.inode.uid
    }

    /// The group's number.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.inode.gid
    }

    /// Number of names; 1 for a directory.
    #[must_use]
    pub fn links(&self) -> u32 {
        self.inode.nlink
    }

    /// Identity of the file, which all its names share and no other file of the tree has.
    #[must_use]
    pub fn file_id(&self) -> u128 {
        self.inode.id
    }

    /// Time of the last change of the content. A directory's time is written to the store at the
    /// next sync.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        timestamp::system_time(self.inode.mtime_ns)
    }

    /// Time of the last change of content or attributes.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        timestamp::system_time(self.inode.ctime_ns)
    }

    /// Time of the last access, which only explicit changes and creation record.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        timestamp::system_time(self.inode.atime_ns)
    }

    /// The extended attributes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn xattrs(&self) -> Result<Xattrs> {
        xattr::decode(&self.inode.xattrs)
    }
}
