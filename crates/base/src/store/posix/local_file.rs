// SPDX-License-Identifier: Apache-2.0
//! Local file: the file of an append log that its owner writes directly, at any offset.
//!
//! Concurrency: share freely. Concurrent reads and writes behave as the kernel defines for any
//! file.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::{Error, Result};

/// The file of an append log, open for reading and writing.
#[derive(Debug)]
pub struct LocalFile {
    /// The log's name, for errors.
    name: String,
    file: File,
}

/// The size and times of a [`LocalFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFileStatus {
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes that the file system has allocated for it.
    pub stored_bytes: u64,
    /// When it was last written.
    pub written_at: SystemTime,
    /// The same, in seconds since the Unix epoch, negative before it, and nanoseconds after that.
    pub written: (i64, i64),
}

impl LocalFile {
    /// Makes the file of the log `name` of `file`, open for reading and writing.
    #[must_use]
    pub fn new(name: &str, file: File) -> Self {
        Self { name: name.into(), file }
    }

    fn failed(&self, error: impl Into<io::Error>) -> Error {
        Error::io(error.into(), format!("{}, written in place", self.name))
    }

    fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(|error| self.failed(error))
    }

    /// Returns the file itself, for another writer: the kernel, or a process. One descriptor.
    ///
    /// # Errors
    /// `TooManyOpenFiles`.
    pub fn try_clone(&self) -> Result<File> {
        self.file.try_clone().map_err(|error| self.failed(error))
    }

    /// Returns its length in bytes.
    ///
    /// # Errors
    /// Those of the file system, as of all methods.
    pub fn bytes(&self) -> Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    /// Returns its size and times.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn status(&self) -> Result<LocalFileStatus> {
        let metadata = self.metadata()?;
        Ok(LocalFileStatus {
            bytes: metadata.len(),
            stored_bytes: metadata.blocks().saturating_mul(512),
            written_at: metadata.modified().map_err(|error| self.failed(error))?,
            written: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }

    /// Sets the time of the last write.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn set_written_at(&self, at: SystemTime) -> Result<()> {
        self.file.set_modified(at).map_err(|error| self.failed(error))
    }

    /// Returns up to `bytes_max` bytes from `offset`.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn read(&self, offset: u64, bytes_max: usize) -> Result<Vec<u8>> {
        let there = self.bytes()?.saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(bytes_max).min(bytes_max)];
        let count = self.read_into(offset, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Fills `bytes` from `offset`, up to the end of the file; returns the number of bytes read.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(filled)
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| self.failed(error))
    }

    /// Truncates or extends it to `bytes`.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|error| self.failed(error))
    }

    /// Reserves room for `range` and extends the file to its end unless `keeps_size`.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn allocate(&self, range: &Range<u64>, keeps_size: bool) -> Result<()> {
        let flags = if keeps_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        match fallocate(&self.file, flags, range.start, range.end - range.start) {
            // Where the file system cannot reserve room, nothing is reserved.
            Err(Errno::OPNOTSUPP) if keeps_size || range.end <= self.bytes()? => Ok(()),
            Err(Errno::OPNOTSUPP) => self.set_bytes(range.end),
            done => done.map_err(|errno| self.failed(errno)),
        }
    }

    /// Makes `range` read as zeros and extends the file to its end unless `keeps_size`.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn punch(&self, range: &Range<u64>, keeps_size: bool) -> Result<()> {
        if !keeps_size && range.end > self.bytes()? {
            self.set_bytes(range.end)?;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, range.start, range.end - range.start)
            .map_err(|errno| self.failed(errno))
    }

    /// Returns where data, or a hole, begins at or after `offset`; the file's end if there is no
    /// data.
    ///
    /// # Errors
    /// As [`LocalFile::bytes`].
    pub fn seek(&self, offset: u64, wants_data: bool) -> Result<u64> {
        let from = if wants_data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        match seek(&self.file, from) {
            Err(Errno::NXIO) => self.bytes(),
            found => found.map_err(|errno| self.failed(errno)),
        }
    }
}
