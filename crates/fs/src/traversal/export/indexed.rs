// SPDX-License-Identifier: Apache-2.0
//! Indexed directories: exported as a directory with a file for each key, or as one file.
//!
//! Only `esker-imd` can read their content, so the caller supplies it; this file creates the
//! entries and sets their attributes, like the export of all other files.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};

use xxhash_rust::xxh3::Xxh3Default;

use super::attributes::{FileHandle, failure};
use super::{ExportJob, ExportRun, destination, earlier};
use crate::inode::indexed::{IndexedPart, parts_of};
use crate::inode::{FileKind, Inode, NameKind};

/// Takes a piece of an indexed directory: the name of a key, and bytes.
pub type TakePiece<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Passes the content of the directory that consists of the given parts to a function, piece by
/// piece: the name of a key with the bytes of its values, or an empty name with the next bytes of
/// the one file.
pub type IndexedContent =
    Arc<dyn Fn(&SharedStore, &[IndexedPart], &mut TakePiece<'_>) -> Result<()> + Send + Sync>;

/// Form in which indexed directories are exported.
#[derive(Clone)]
pub enum IndexedForm {
    /// As a directory with a file for each key, which contains its values back to back.
    Files(IndexedContent),
    /// As a file with this suffix, unless it is exported alone.
    OneFile(&'static str, IndexedContent),
}

impl IndexedForm {
    /// Returns the suffix of an indexed directory's name if it is exported with other entries.
    pub(super) const fn suffix(&self) -> &'static str {
        match self {
            Self::Files(_) => "",
            Self::OneFile(suffix, _) => suffix,
        }
    }

    /// Adds this form to a digest.
    pub(super) fn digest(&self, hasher: &mut Xxh3Default) {
        hasher.update(match self {
            Self::Files(_) => b"//files",
            Self::OneFile(..) => b"//one",
        });
        hasher.update(self.suffix().as_bytes());
    }
}

impl fmt::Debug for IndexedForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(_) => f.write_str("Files"),
            Self::OneFile(suffix, _) => write!(f, "OneFile({suffix:?})"),
        }
    }
}

impl ExportRun<'_> {
    /// Exports the indexed directory of `job`.
    pub(super) fn indexed(&self, job: &ExportJob) -> Result<()> {
        match self.form {
            Some(IndexedForm::Files(content)) => self.indexed_files(job, content),
            Some(IndexedForm::OneFile(_, content)) => self.indexed_file(job, content),
            None => {
                let what =
                    "an indexed directory can be exported only in a form, and none was given";
                Err(Error::new(Kind::Invalid, what))
            }
        }
    }

    fn indexed_files(&self, job: &ExportJob, content: &IndexedContent) -> Result<()> {
        let kinds = (self.is_single, self.is_resumed);
        let opened = destination::make_directory(&job.dir, &job.name, &job.inode, kinds)?;
        self.tally.directory();
        self.keep_outermost(opened.locked);
        let (dir, mut names) = (opened.handle, opened.names);
        self.each_piece(job, content, &mut |name, bytes| {
            names.claim(name);
            let named = |error: Error| error.within(String::from_utf8_lossy(name));
            self.key_file(&dir, name, bytes, &file_inode(&job.inode, bytes.len())).map_err(named)
        })?;
        if let Some(name) = names.first() {
            let path = self.partial_path(&job.path.join(name));
            self.failure.lock().get_or_insert(earlier::foreign().within(path.display()));
            return Ok(());
        }
        self.give(FileHandle::Open(dir.as_fd()), &job.inode)
    }

    /// Makes the file of a key.
    fn key_file(&self, dir: &OwnedFd, name: &[u8], bytes: &[u8], inode: &Inode) -> Result<()> {
        if self.is_resumed && self.take_up(dir, name, inode)? {
            return Ok(());
        }
        let mut file = File::from(destination::create(dir, name)?);
        file.write_all(bytes).map_err(|error| failure(error, "write"))?;
        self.tally.bytes(bytes.len());
        self.tally.file();
        self.give(FileHandle::Open(file.as_fd()), inode)
    }

    fn indexed_file(&self, job: &ExportJob, content: &IndexedContent) -> Result<()> {
        let earlier = self.lock_earlier(job)?;
        if self.is_resumed {
            earlier::remove(&job.dir, &job.name)?;
        }
        let mut file = File::from(destination::create(&job.dir, &job.name)?);
        self.lock_new(file.as_fd(), job)?;
        drop(earlier);
        let mut size = 0;
        let written = self.each_piece(job, content, &mut |_, bytes| {
            self.tally.bytes(bytes.len());
            size += bytes.len();
            file.write_all(bytes).map_err(|error| failure(error, "write"))
        });
        written.inspect_err(|_| self.remove_part(job))?;
        self.tally.file();
        self.give(FileHandle::Open(file.as_fd()), &file_inode(&job.inode, size))
    }

    /// Passes the content of the directory of `job` to `take`.
    fn each_piece(
        &self,
        job: &ExportJob,
        content: &IndexedContent,
        take: &mut TakePiece<'_>,
    ) -> Result<()> {
        let store = &self.namespace.layers().source().store;
        let mut is_local = false;
        let given = content(store, &parts_of(&job.inode), &mut |name, bytes| {
            take(name, bytes).inspect_err(|_| is_local = true)
        });
        given.inspect_err(|error| {
            if !is_local {
                self.count_unavailable(error);
            }
        })
    }
}

/// True if an indexed directory that is exported alone, in `form`, becomes a directory.
pub(super) fn becomes_directory(inode: &Inode, form: Option<&IndexedForm>) -> bool {
    inode.kind() == Some(FileKind::Indexed) && matches!(form, Some(IndexedForm::Files(_)))
}

/// Returns the inode of a file of `bytes` bytes with content of the indexed directory `inode`.
fn file_inode(inode: &Inode, bytes: usize) -> Inode {
    let (mode, size) = (inode.mode & 0o666, bytes as u64);
    Inode { entry: NameKind::Is(FileKind::File), mode, size, ..inode.clone() }
}
