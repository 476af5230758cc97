// SPDX-License-Identifier: Apache-2.0
//! Execute: the kernel executes programs of the namespace, from a copy in the skeleton.

use esker_fs::inode::FileKind;
use esker_fs::stack::identity::{EXECUTE, Identity};
use rustix::io::Errno;

use super::{Subject, TrappedCall};
use crate::caller::errno_of;
use crate::listener::CallAnswer;
use crate::resolve::{Located, errno};

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
            // The real file of the spool cannot be executed.
            Subject::Directory(..) | Subject::File(..) => return Err(Errno::ACCESS),
            Subject::Outside => {}
        }
        Ok(CallAnswer::Continue)
    }

    /// Puts a program, and its interpreter, where the kernel finds them.
    fn make_program(&self, located: &Located, interpreters_max: usize) -> Result<(), Errno> {
        let inode = self.inode(located)?;
        if inode.kind() != Some(FileKind::File) {
            return Err(Errno::ACCESS);
        }
        let identity: &Identity = located.view.namespace().identity();
        identity.check(EXECUTE, &inode, &located.name).map_err(|error| errno(&error))?;
        let file = self.spool(located, &inode, true)?;
        self.make_way(located)?;
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
        match self.subject_of(libc::AT_FDCWD, interpreter, true)? {
            Subject::Name(located) if interpreters_max > 0 => {
                self.make_program(&located, interpreters_max - 1)
            }
            Subject::Name(_) => Err(Errno::LOOP),
            _ => Ok(()),
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
