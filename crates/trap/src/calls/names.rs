// SPDX-License-Identifier: Apache-2.0
//! Names: calls that make, link, remove and rename files.

use esker_base::{Kind, Result as EskerResult};
use esker_fs::inode::FileKind;
use esker_fs::ops::RenameFlags;
use rustix::io::Errno;

use super::{Subject, TrappedCall, session};
use crate::listener::CallAnswer;
use crate::resolve::{Located, errno};

/// A path of a call: the descriptor to which it is relative, and the argument that points to it.
type PathArgument = (i32, usize);

impl TrappedCall<'_> {
    /// The name that a call changes; `None` if it is outside of the namespace.
    fn name(&self, (descriptor, at): PathArgument) -> Result<Option<Box<Located>>, Errno> {
        match self.subject(descriptor, at, false)? {
            Subject::Outside => Ok(None),
            // A path that ends in a symbolic link and a slash names the target of the link, which
            // has another name.
            Subject::Name(located) if located.wants_directory && located.is_followed => {
                Err(Errno::NOTDIR)
            }
            Subject::Name(located) => Ok(Some(located)),
            Subject::File(..) | Subject::Directory(..) => Err(Errno::XDEV),
        }
    }

    /// mkdir, mkdirat.
    pub(super) fn make_directory(&self, descriptor: i32, at: usize) -> Result<CallAnswer, Errno> {
        let Some(located) = self.name((descriptor, at))? else { return Ok(CallAnswer::Continue) };
        located.check_vacant(true)?;
        let mode = self.number(at + 1) & !self.caller().status()?.umask & 0o1777;
        done(session(&located.view)?.mkdir(&located.dir, &located.name, mode))
    }

    /// mknod, mknodat.
    pub(super) fn make_node(&self, descriptor: i32, at: usize) -> Result<CallAnswer, Errno> {
        let Some(located) = self.name((descriptor, at))? else { return Ok(CallAnswer::Continue) };
        located.check_vacant(false)?;
        let mode = self.number(at + 1);
        let kind = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => FileKind::File,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            libc::S_IFDIR => return Err(Errno::PERM),
            _ => return Err(Errno::INVAL),
        };
        let mode = mode & !self.caller().status()?.umask & 0o7777;
        let device = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => device_of(self.number(at + 2)),
            _ => 0,
        };
        done(session(&located.view)?.mknod(&located.dir, &located.name, kind, mode, device))
    }

    /// symlink, symlinkat: with the target in argument `target`.
    pub(super) fn make_symlink(
        &self,
        target: usize,
        descriptor: i32,
        at: usize,
    ) -> Result<CallAnswer, Errno> {
        let Some(located) = self.name((descriptor, at))? else { return Ok(CallAnswer::Continue) };
        let target = self.path(target)?;
        located.check_vacant(false)?;
        done(session(&located.view)?.symlink(&located.dir, &located.name, &target))
    }

    /// link, linkat.
    pub(super) fn link(
        &self,
        old: PathArgument,
        new: PathArgument,
        flags: i32,
    ) -> Result<CallAnswer, Errno> {
        let follows = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let old = match self.subject(old.0, old.1, follows)? {
            Subject::Outside => None,
            Subject::Name(located) => Some(located),
            _ => return Err(Errno::XDEV),
        };
        match (old, self.name(new)?) {
            (None, None) => Ok(CallAnswer::Continue),
            (Some(old), Some(new)) => {
                let inode = old.inode()?;
                new.check_vacant(false)?;
                if inode.kind().is_some_and(FileKind::is_shown_as_directory) {
                    return Err(Errno::PERM);
                }
                self.write_back(&old)?;
                done(session(&new.view)?.link(&old.dir, &old.name, &new.dir, &new.name))
            }
            _ => Err(Errno::XDEV),
        }
    }

    /// unlink, rmdir, unlinkat.
    pub(super) fn remove(
        &self,
        descriptor: i32,
        at: usize,
        is_directory: bool,
    ) -> Result<CallAnswer, Errno> {
        let path = self.path(at)?;
        let Some(located) = self.name((descriptor, at))? else { return Ok(CallAnswer::Continue) };
        let kind = located.inode()?.kind();
        match last_component(&path) {
            b"." if is_directory => return Err(Errno::INVAL),
            b".." if is_directory => return Err(Errno::NOTEMPTY),
            b"." | b".." => return Err(Errno::ISDIR),
            _ => {}
        }
        if located.name.is_empty() {
            return Err(Errno::BUSY);
        }
        let session = session(&located.view)?;
        let _shape = self.supervisor.skeleton().structure.write();
        let removed = match (is_directory, kind) {
            (true, Some(FileKind::Indexed)) => session.unlink(&located.dir, &located.name),
            (true, _) => session.rmdir(&located.dir, &located.name),
            (false, Some(kind)) if kind.is_shown_as_directory() => return Err(Errno::ISDIR),
            (false, _) => session.unlink(&located.dir, &located.name),
        };
        let removed = removed.map_err(|error| errno(&error))?;
        if removed.nlink == 0 && !is_directory {
            // The next close tries again.
            drop(self.supervisor.spool().discard_if_gone(removed.id));
        }
        self.supervisor.skeleton().removed(&located.dir, &located.name, is_directory);
        Ok(CallAnswer::Value(0))
    }

    /// Writes the content of a file back to the session, or of all files that were closed, if
    /// `located` is a directory: those below it are not known.
    fn write_back(&self, located: &Located) -> Result<(), Errno> {
        let spool = self.supervisor.spool();
        let inode = located.inode()?;
        let written = match spool.file(inode.id) {
            Some(file) => file.write_back(),
            None if inode.kind().is_some_and(FileKind::is_shown_as_directory) => {
                spool.write_back_unopened()
            }
            None => Ok(()),
        };
        written.map_err(|error| errno(&error))
    }

    /// rename, renameat, renameat2.
    pub(super) fn rename(
        &self,
        old: PathArgument,
        new: PathArgument,
        flags: u32,
    ) -> Result<CallAnswer, Errno> {
        let paths = [self.path(old.1)?, self.path(new.1)?];
        let sources = [(old.0, &paths[0]), (new.0, &paths[1])];
        let (old, new) = match (self.name(old)?, self.name(new)?) {
            (None, None) => {
                for (descriptor, path) in sources {
                    if self.supervisor.is_above_place(self.caller(), descriptor, path)? {
                        return Err(Errno::BUSY);
                    }
                }
                return Ok(CallAnswer::Continue);
            }
            (Some(old), Some(new)) => (old, new),
            _ => return Err(Errno::XDEV),
        };
        let flags = match flags {
            0 => RenameFlags::Replace,
            libc::RENAME_NOREPLACE => RenameFlags::NoReplace,
            libc::RENAME_EXCHANGE => RenameFlags::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let moves_directory = old.inode()?.kind().is_some_and(FileKind::is_shown_as_directory);
        let is_reserved = |path: &Vec<u8>| matches!(last_component(path), b"." | b"..");
        if paths.iter().any(is_reserved) || old.name.is_empty() || new.name.is_empty() {
            return Err(Errno::BUSY);
        }
        if new.wants_directory && new.inode.is_none() && !moves_directory {
            return Err(Errno::NOTDIR);
        }
        let session = session(&new.view)?;
        // A file that gets another name has everything that was written to it.
        self.write_back(&old)?;
        if flags == RenameFlags::Exchange {
            self.write_back(&new)?;
        }
        let skeleton = self.supervisor.skeleton();
        let _shape = skeleton.structure.write();
        let renamed = session.rename((&old.dir, &old.name), (&new.dir, &new.name), flags);
        // A rename between two names of one file does nothing.
        if renamed.map_err(|error| errno(&error))?.is_some() {
            let is_exchange = flags == RenameFlags::Exchange;
            let moved = skeleton.moved((&old.dir, &old.name), (&new.dir, &new.name), is_exchange);
            moved.map_err(|error| crate::caller::errno_of(&error))?;
        }
        Ok(CallAnswer::Value(0))
    }
}

fn done<T>(result: EskerResult<T>) -> Result<CallAnswer, Errno> {
    match result {
        Ok(_) => Ok(CallAnswer::Value(0)),
        Err(error) if error.kind() == Kind::Exists => Err(Errno::EXIST),
        Err(error) => Err(errno(&error)),
    }
}

fn last_component(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'/').rfind(|name| !name.is_empty()).unwrap_or(b"")
}

/// The device number of mknod(2); the kernel takes 32 bits of it.
fn device_of(number: u32) -> u64 {
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    rustix::fs::makedev(major, minor)
}
