// SPDX-License-Identifier: Apache-2.0
//! Trace source: the bytes of a trace, read at any position: a file, or memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes that are read at positions. Shared by any number of readers.
pub trait TraceSource {
    /// The number of bytes.
    ///
    /// # Errors
    /// As the file system answers.
    fn length(&self) -> std::io::Result<u64>;

    /// Fills `buffer` from `position` on.
    ///
    /// # Errors
    /// `UnexpectedEof` if there are fewer bytes; else as the file system answers.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> std::io::Result<()>;
}

impl TraceSource for File {
    fn length(&self) -> std::io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> std::io::Result<()> {
        self.read_exact_at(buffer, position)
    }
}

impl TraceSource for &[u8] {
    fn length(&self) -> std::io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> std::io::Result<()> {
        let from = usize::try_from(position).ok().and_then(|position| self.get(position..));
        let found = from.and_then(|from| from.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
