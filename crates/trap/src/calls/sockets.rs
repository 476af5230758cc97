// SPDX-License-Identifier: Apache-2.0
//! Sockets: those with a name in the namespace, which the kernel binds and connects in the
//! skeleton.

use std::sync::Arc;

use esker_base::Kind;
use esker_fs::inode::FileKind;
use esker_fs::session::Session;
use rustix::io::Errno;

use super::{Subject, TrappedCall, session};
use crate::caller::errno_of;
use crate::listener::CallAnswer;
use crate::resolve::errno;

/// Bytes of the family in `struct sockaddr_un`, before the path.
const FAMILY_BYTES: usize = 2;
/// Bytes of a path in `struct sockaddr_un`.
const SOCKET_PATH_BYTES: usize = 108;

impl TrappedCall<'_> {
    /// bind: gives a socket a name.
    pub(super) fn bind(&self) -> Result<CallAnswer, Errno> {
        let Subject::Name(located) = self.socket_name()? else { return Ok(CallAnswer::Continue) };
        if located.inode.is_some() {
            return Err(Errno::ADDRINUSE);
        }
        let session: &Arc<Session> = session(&located.view)?;
        self.make_way(&located)?;
        let mode = 0o777 & !self.caller().status()?.umask;
        let made = session.mknod(&located.dir, &located.name, FileKind::Socket, mode, 0);
        made.map_err(|error| match error.kind() {
            Kind::Exists => Errno::ADDRINUSE,
            _ => errno(&error),
        })?;
        let skeleton = self.supervisor.skeleton();
        skeleton.removed(&located.dir, &located.name, false);
        let made =
            skeleton.make_writable_directory(&located.dir, self.caller().status()?.identity.uid);
        made.map_err(|error| errno_of(&error))?;
        Ok(CallAnswer::Continue)
    }

    /// connect: to a socket that has a name.
    pub(super) fn connect(&self) -> Result<CallAnswer, Errno> {
        let Subject::Name(located) = self.socket_name()? else { return Ok(CallAnswer::Continue) };
        let inode = located.inode()?;
        let identity = located.view.namespace().identity();
        let checked = identity.check(esker_fs::stack::identity::WRITE, inode, &located.name);
        checked.map_err(|error| errno(&error))?;
        if inode.kind() != Some(FileKind::Socket) {
            return Err(Errno::CONNREFUSED);
        }
        self.make_way(&located)?;
        Ok(CallAnswer::Continue)
    }

    /// The name in the address that the second argument points to.
    fn socket_name(&self) -> Result<Subject, Errno> {
        let length = (self.argument(2) as usize).min(FAMILY_BYTES + SOCKET_PATH_BYTES);
        if length <= FAMILY_BYTES {
            return Ok(Subject::Outside);
        }
        let address = self.caller().byte_vec(self.argument(1), length)?;
        let (family, path) = address.split_at(FAMILY_BYTES);
        // Other families have no paths, and a path that begins with zero is a name of its own kind.
        if family != (libc::AF_UNIX as u16).to_ne_bytes() || path[0] == 0 {
            return Ok(Subject::Outside);
        }
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        self.subject_of(libc::AT_FDCWD, path, true)
    }
}
