// SPDX-License-Identifier: Apache-2.0
//! The store's own file that holds the bytes of a file while it is written in place.
//!
//! Concurrency: share freely. Concurrent reads and writes behave as the kernel defines for any
//! file.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::SystemTime;

use esker_base::{Error, Result};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::inode::Inode;
use crate::inode::timestamp;

/// A data log's file, open for reading and writing.
#[derive(Debug)]
pub(super) struct DirectFile {
    /// Number of the log.
    log: u64,
    file: File,
}

impl DirectFile {
    pub(super) fn new(log: u64, file: File) -> Self {
        Self { log, file }
    }

    fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: impl Into<io::Error>) -> Error {
        Error::io(error.into(), format!("data log {:x}, written in place", self.log))
    }

    /// Returns the current length in bytes.
    pub(super) fn bytes(&self) -> Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    /// Returns how many bytes the store's file system has allocated for it.
    pub(super) fn stored_bytes(&self) -> Result<u64> {
        self.metadata().map(|metadata| metadata.blocks().saturating_mul(512))
    }

    /// Returns when it was last written.
    pub(super) fn written_at(&self) -> Result<SystemTime> {
        self.metadata()?.modified().map_err(|error| self.failed(error))
    }

    pub(super) fn set_written_at(&self, at: SystemTime) -> Result<()> {
        self.file.set_modified(at).map_err(|error| self.failed(error))
    }

    /// Puts its size and times into `inode`.
    pub(super) fn overlay(&self, inode: &mut Inode) {
        let Ok(metadata) = self.metadata() else { return };
        inode.size = metadata.len();
        inode.mtime_ns = timestamp::of_parts(metadata.mtime(), metadata.mtime_nsec());
        inode.ctime_ns = inode.ctime_ns.max(inode.mtime_ns);
    }

    /// Returns up to `bytes_max` bytes from `offset`.
    pub(super) fn read(&self, offset: u64, bytes_max: usize) -> Result<Vec<u8>> {
        let there = self.bytes()?.saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(bytes_max).min(bytes_max)];
        let count = self.read_into(offset, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Fills `bytes` from `offset`, up to the end of the file; returns the number of bytes read.
    pub(super) fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
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

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| self.failed(error))
    }

    pub(super) fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|error| self.failed(error))
    }

    /// Reserves room for `range` and extends the file to its end unless `keeps_size`.
    pub(super) fn allocate(&self, range: &Range<u64>, keeps_size: bool) -> Result<()> {
        let flags = if keeps_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        match fallocate(&self.file, flags, range.start, range.end - range.start) {
            // Where the store cannot reserve room, nothing is reserved.
            Err(Errno::OPNOTSUPP) if keeps_size || range.end <= self.bytes()? => Ok(()),
            Err(Errno::OPNOTSUPP) => self.set_bytes(range.end),
            done => done.map_err(|errno| self.failed(errno)),
        }
    }

    /// Makes `range` read as zeros and extends the file to its end unless `keeps_size`.
    pub(super) fn punch(&self, range: &Range<u64>, keeps_size: bool) -> Result<()> {
        if !keeps_size && range.end > self.bytes()? {
            self.set_bytes(range.end)?;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, range.start, range.end - range.start)
            .map_err(|errno| self.failed(errno))
    }

    /// Returns where data, or a hole, begins at or after `offset`; the file's end if there is no
    /// data.
    pub(super) fn seek(&self, offset: u64, wants_data: bool) -> Result<u64> {
        let from = if wants_data { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        match seek(&self.file, from) {
            Err(Errno::NXIO) => self.bytes(),
            found => found.map_err(|errno| self.failed(errno)),
        }
    }
}
