// SPDX-License-Identifier: Apache-2.0
//! Directories: calls that list them.

use std::io::{Seek, SeekFrom};

use rustix::io::Errno;

use super::{Subject, TrappedCall};
use crate::caller::errno_of;
use crate::listener::CallAnswer;

/// Bytes that one call returns at most.
const PAGE_BYTES_MAX: usize = 1 << 20;

impl TrappedCall<'_> {
    /// getdents64.
    pub(super) fn list(&self) -> Result<CallAnswer, Errno> {
        let descriptor = self.int(0);
        let dir = match self.open_subject(descriptor)? {
            Subject::Directory(_, dir) => dir,
            _ => return Ok(CallAnswer::Continue),
        };
        // The duplicate shares the caller's offset, also where several processes share it.
        let mut real = self.caller().share_descriptor(descriptor)?;
        let offset = real.stream_position().map_err(|error| errno_of(&error))?;
        let bytes_max = PAGE_BYTES_MAX.min(self.number(2) as usize);
        // Permission was checked when it was opened.
        let namespace = self.supervisor.identities().superuser().namespace();
        let page = self.supervisor.listings().read(namespace, &dir, offset, bytes_max)?;
        self.caller().write(self.argument(1), &page.bytes)?;
        real.seek(SeekFrom::Start(page.offset)).map_err(|error| errno_of(&error))?;
        Ok(CallAnswer::Value(page.bytes.len() as i64))
    }

    /// getdents, which no program has used for decades.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn refuse_listing(&self) -> Result<CallAnswer, Errno> {
        match self.open_subject(self.int(0))? {
            Subject::Directory(..) => Err(Errno::NOSYS),
            _ => Ok(CallAnswer::Continue),
        }
    }
}
