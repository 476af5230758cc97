// SPDX-License-Identifier: Apache-2.0
//! Sync: content that a program has synced survives power loss.

use rustix::io::Errno;

use super::{Subject, TrappedCall};
use crate::listener::CallAnswer;
use crate::resolve::errno;

impl TrappedCall<'_> {
    /// fsync, fdatasync and syncfs: the call `number`.
    pub(super) fn sync_descriptor(&self, number: i64) -> Result<CallAnswer, Errno> {
        match self.open_subject(self.int(0))? {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::File(_, file) if number != libc::SYS_syncfs => {
                file.write_back().map_err(|error| errno(&error))?;
            }
            Subject::Directory(..) if number != libc::SYS_syncfs => {}
            _ => {
                let written = self.supervisor.spool().write_back_all();
                written.map_err(|error| errno(&error))?;
            }
        }
        self.sync_session()?;
        Ok(CallAnswer::Value(0))
    }

    /// sync: of this namespace, and then of all file systems.
    pub(super) fn sync_all(&self) -> Result<CallAnswer, Errno> {
        let written = self.supervisor.spool().write_back_all();
        written.map_err(|error| errno(&error))?;
        self.sync_session()?;
        Ok(CallAnswer::Continue)
    }

    fn sync_session(&self) -> Result<(), Errno> {
        let superuser = self.supervisor.identities().superuser();
        let synced = superuser.session().map_or(Ok(()), |session| session.sync());
        synced.map_err(|error| errno(&error))
    }
}
