// SPDX-License-Identifier: Apache-2.0
//! Executing programs of the namespace: the kernel does it, from a copy in the skeleton.

use esker_fs::identity::{EXECUTE, Identity};
use esker_fs::inode::FileKind;
use rustix::io::Errno;

use super::{Subject, TrappedCall};
use crate::caller::errno_of;
use crate::listener::CallAnswer;
use crate::resolve::{Located, Resolved, errno};
use crate::spooled_file::FileSource;

/// Bytes of a script in which the kernel looks for its interpreter.
const SCRIPT_BYTES: usize = 256;
/// Interpreters of interpreters that the kernel follows.
const INTERPRETERS_MAX: usize = 5;

impl TrappedCall<'_> {
    /// execve, execveat: of the path in argument `at`.
    pub(super) fn execute(
        &self,
        descriptor: i32,
        at: usize,
        flags: i32,
    ) -> Result<CallAnswer, Errno> {
        match self.subject_at(descriptor, at, flags)? {
            Subject::Name(located) => self.make_program(&located, INTERPRETERS_MAX)?,
            // The kernel follows the links by itself, where they are real ones.
            Subject::Elsewhere(outside) => self.make_links(&outside.links)?,
            Subject::Directory(..) => return Err(Errno::ACCESS),
            // The real file of the spool cannot be executed.
            Subject::File(..) => return Err(Errno::ACCESS),
            Subject::Outside => {}
        }
        Ok(CallAnswer::Continue)
    }

    /// Puts a program where the kernel finds it, and what interprets it.
    fn make_program(&self, located: &Located, interpreters_max: usize) -> Result<(), Errno> {
        let inode = self.inode(located)?;
        if inode.kind() != Some(FileKind::File) {
            return Err(Errno::ACCESS);
        }
        let identity: &Identity = located.view.namespace().identity();
        identity.check(EXECUTE, &inode, &located.name).map_err(|error| errno(&error))?;
        let superuser = self.supervisor.identities().superuser();
        let (id, snapshot) = (inode.id, inode.clone());
        let source = || match superuser.session() {
            Some(session) => {
                let open = session.open_file(&located.dir, &located.name)?;
                Ok(FileSource::Session(session.clone(), open))
            }
            None => Ok(FileSource::Snapshot(Box::new(snapshot))),
        };
        let file = self.supervisor.spool().put(superuser.namespace(), id, true, source);
        let file = file.map_err(|error| errno(&error))?;
        self.make_links(&located.links)?;
        let placed = self.supervisor.skeleton().make_program(
            &located.dir,
            &located.name,
            &inode,
            file.content(),
        );
        placed.map_err(|error| errno_of(&error))?;
        let mut first = [0; SCRIPT_BYTES];
        let read = std::os::unix::fs::FileExt::read_at(file.content(), &mut first, 0);
        let read = read.map_err(|error| errno_of(&error))?;
        let Some(interpreter) = interpreter_of(&first[..read]) else { return Ok(()) };
        let resolved = self.supervisor.resolve(self.caller(), libc::AT_FDCWD, interpreter, true)?;
        match resolved {
            Resolved::Inside(located) if interpreters_max > 0 => {
                self.make_program(&located, interpreters_max - 1)
            }
            Resolved::Inside(_) => Err(Errno::LOOP),
            Resolved::Elsewhere(outside) => self.make_links(&outside.links),
            Resolved::Outside => Ok(()),
        }
    }
}

/// The interpreter that the first line of a script names.
fn interpreter_of(script: &[u8]) -> Option<&[u8]> {
    let line = script.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(interpreter_of(b"#! /usr/bin/env python3\n"), Some(&b"/usr/bin/env"[..]));
        assert_eq!(interpreter_of(b"#!/bin/sh"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter_of(b"#!\n/bin/sh"), None);
        assert_eq!(interpreter_of(b"\x7fELF"), None);
    }
}
