// SPDX-License-Identifier: Apache-2.0
//! Access: calls that ask for permissions, and those that read symbolic links.

use esker_fs::inode::FileKind;
use rustix::io::Errno;

use super::{Subject, TrappedCall};
use crate::listener::CallAnswer;
use crate::resolve::errno;

impl TrappedCall<'_> {
    /// access, faccessat, faccessat2: of the path in argument `at`, for `wanted` permissions.
    pub(super) fn access(
        &self,
        descriptor: i32,
        at: usize,
        wanted: i32,
        flags: i32,
    ) -> Result<CallAnswer, Errno> {
        let (view, inode) = match self.subject_at(descriptor, at, flags)? {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::Name(located) => (located.view.clone(), self.inode(&located)?),
            Subject::File(view, file) => (view, file.stat().map_err(|error| errno(&error))?),
            Subject::Directory(view, dir) => {
                let inode = view.namespace().stat_dir(&dir).map_err(|error| errno(&error))?;
                (view, inode)
            }
        };
        // Bits of access(2) are those of modes.
        let wanted = (wanted & 7) as u32;
        let checked = if flags & libc::AT_EACCESS != 0 {
            view.namespace().identity().check(wanted, &inode, b"file")
        } else {
            let real = self.supervisor.identities().real_of(self.caller())?;
            real.check(wanted, &inode, b"file")
        };
        checked.map_err(|error| errno(&error))?;
        if wanted as i32 & libc::W_OK != 0 && view.session().is_none() {
            return Err(Errno::ROFS);
        }
        Ok(CallAnswer::Value(0))
    }

    /// readlink, readlinkat: of the path in argument `at`, to the memory at the next one.
    pub(super) fn read_link(&self, descriptor: i32, at: usize) -> Result<CallAnswer, Errno> {
        let bytes_max = match self.int(at + 2) {
            size if size <= 0 => return Err(Errno::INVAL),
            size => size as usize,
        };
        let target = match self.subject(descriptor, at, false)? {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::Name(located) => {
                let inode = located.inode()?;
                if inode.kind() != Some(FileKind::Symlink) {
                    return Err(Errno::INVAL);
                }
                inode.content.clone()
            }
            Subject::File(..) | Subject::Directory(..) => return Err(Errno::INVAL),
        };
        self.write_cut(at + 1, &target, bytes_max)
    }
}
