// SPDX-License-Identifier: Apache-2.0
//! Opening: a program gets a real descriptor, of a file of the spool or of a directory of the skeleton.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use esker_base::Kind;
use esker_fs::dir::Dir;
use esker_fs::identity::{EXECUTE, READ, WRITE};
use esker_fs::inode::{FileKind, Inode};
use esker_fs::view::NamespaceView;
use rustix::io::Errno;

use super::{Subject, TrappedCall, session};
use crate::caller::errno_of;
use crate::listener::{CallAnswer, NewDescriptor};
use crate::resolve::{Located, errno};
use crate::spooled_file::{FileSource, SpooledFile};

/// Bytes of a file that are copied even if it is about to be truncated.
const KEPT_BYTES_MAX: u64 = 1 << 20;

/// Attempts to create a file that others create and remove meanwhile.
const ATTEMPTS_MAX: usize = 100;

impl TrappedCall<'_> {
    /// open, openat, creat: of the path in argument `at`.
    pub(super) fn open_at(
        &self,
        descriptor: i32,
        at: usize,
        flags: i32,
        mode: u32,
    ) -> Result<CallAnswer, Errno> {
        let creates = flags & libc::O_CREAT != 0;
        let follows = flags & libc::O_NOFOLLOW == 0 && !(creates && flags & libc::O_EXCL != 0);
        let (file, then) = match self.subject(descriptor, at, follows)? {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::Name(located) => self.open(*located, flags, mode)?,
            Subject::File(view, file) => {
                let inode = file.stat().map_err(|error| errno(&error))?;
                check_access(&view, &inode, flags)?;
                open_spooled(&view, file, flags)?
            }
            Subject::Directory(view, dir) => {
                let inode = view.namespace().stat_dir(&dir).map_err(|error| errno(&error))?;
                (self.open_directory(&view, &dir, &inode, flags)?, None)
            }
        };
        let closes_on_exec = flags & libc::O_CLOEXEC != 0;
        Ok(CallAnswer::Descriptor(NewDescriptor { file, closes_on_exec, then }))
    }

    /// openat2: as openat, unless it restricts what a path may lead to.
    pub(super) fn open_how(&self) -> Result<CallAnswer, Errno> {
        let how: [u8; 24] = self.caller().bytes(self.argument(2))?;
        let part =
            |at: usize| u64::from_ne_bytes(how[at..at + 8].try_into().expect("eight bytes of 24"));
        let (flags, mode, restrictions) = (part(0), part(8), part(16));
        if restrictions != 0 {
            // Programs that ask for it do without where it is not to be had.
            return match self.subject(self.int(0), 1, false)? {
                Subject::Outside => Ok(CallAnswer::Continue),
                _ => Err(Errno::NOSYS),
            };
        }
        self.open_at(self.int(0), 1, flags as i32, mode as u32)
    }

    fn open(&self, mut located: Located, flags: i32, mode: u32) -> Result<OpenedFile, Errno> {
        const TEMPORARY: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
        if flags & TEMPORARY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // The kernel hands on no descriptors that are good for paths only: the caller gets one to read from. Of
        // a symbolic link there is none; programs do without if it is not supported.
        let is_link = |inode: &Inode| inode.kind() == Some(FileKind::Symlink);
        if flags & libc::O_PATH != 0 && located.inode.as_ref().is_some_and(is_link) {
            return Err(Errno::OPNOTSUPP);
        }
        let flags = match flags & libc::O_PATH {
            0 => flags,
            _ => flags & (libc::O_CLOEXEC | libc::O_DIRECTORY | libc::O_NOFOLLOW),
        };
        let creates = flags & libc::O_CREAT != 0;
        for _ in 0..ATTEMPTS_MAX {
            let Some(inode) = located.inode.take() else {
                if !creates {
                    return Err(Errno::NOENT);
                }
                match self.create(&located, flags, mode)? {
                    Some(file) => return Ok(file),
                    None => self.lookup_again(&mut located)?,
                }
                continue;
            };
            if creates && flags & libc::O_EXCL != 0 {
                return Err(Errno::EXIST);
            }
            match self.open_existing(&located, inode, flags) {
                // Somebody has removed or replaced it.
                Err(Errno::NOENT) => self.lookup_again(&mut located)?,
                opened => return opened,
            }
        }
        Err(Errno::NOENT)
    }

    fn lookup_again(&self, located: &mut Located) -> Result<(), Errno> {
        located.inode = match located.view.namespace().lookup(&located.dir, &located.name, true) {
            Ok(inode) => Some(inode),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(errno(&error)),
        };
        Ok(())
    }

    /// Creates a file and opens it; `None` if there is one by now.
    fn create(
        &self,
        located: &Located,
        flags: i32,
        mode: u32,
    ) -> Result<Option<OpenedFile>, Errno> {
        if located.wants_directory {
            return Err(Errno::ISDIR);
        }
        check_synchronous(flags)?;
        let session = session(&located.view)?;
        let mode = mode & !self.caller().status()?.umask & 0o7777;
        let open = match session.create_file(&located.dir, &located.name, mode) {
            Ok(open) => open,
            Err(error) if error.kind() == Kind::Exists && flags & libc::O_EXCL == 0 => {
                return Ok(None);
            }
            Err(error) => return Err(errno(&error)),
        };
        let superuser = self::session(self.supervisor.identities().superuser())?;
        let id = open.id();
        let source = || Ok(FileSource::Session(superuser.clone(), open));
        let namespace = located.view.namespace();
        let file = self.supervisor.spool().put(namespace, id, false, source);
        let file = file.map_err(|error| errno(&error))?;
        let opened = file.open(flags & !libc::O_TRUNC, namespace.identity().is_root());
        let opened = opened.map_err(|error| errno_of(&error))?;
        let (session, dir, name) = (session.clone(), located.dir.clone(), located.name.clone());
        let then = move |is_open: bool| {
            if !is_open {
                // The call fails, so it made no file.
                drop(session.unlink(&dir, &name));
            }
        };
        Ok(Some((opened, Some(Box::new(then)))))
    }

    fn open_existing(
        &self,
        located: &Located,
        inode: Inode,
        flags: i32,
    ) -> Result<OpenedFile, Errno> {
        match inode.kind() {
            Some(FileKind::Directory) => {
                let dir = located.opened_as(&inode)?;
                return self
                    .open_directory(&located.view, &dir, &inode, flags)
                    .map(|file| (file, None));
            }
            _ if flags & libc::O_DIRECTORY != 0 => return Err(Errno::NOTDIR),
            Some(FileKind::File) => {}
            Some(FileKind::Symlink) => return Err(Errno::LOOP),
            // Their keys can be read by `esker imd get`.
            Some(FileKind::Indexed) => return Err(Errno::OPNOTSUPP),
            _ => return Err(Errno::NXIO),
        }
        check_access(&located.view, &inode, flags)?;
        // A large file that is truncated need not be copied; if the open fails after all, its content is gone.
        let is_kept = flags & libc::O_TRUNC == 0 || inode.size <= KEPT_BYTES_MAX;
        open_spooled(&located.view, self.spool(located, &inode, is_kept)?, flags)
    }

    fn open_directory(
        &self,
        view: &NamespaceView,
        dir: &Dir,
        inode: &Inode,
        flags: i32,
    ) -> Result<File, Errno> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if writes || flags & (libc::O_CREAT | libc::O_TRUNC) != 0 {
            return Err(Errno::ISDIR);
        }
        let checked = view.namespace().identity().check(READ, inode, b"directory");
        checked.map_err(|error| errno(&error))?;
        let path = self.supervisor.skeleton().make_directory(dir);
        let path = path.map_err(|error| errno_of(&error))?;
        let kept = flags & libc::O_NONBLOCK;
        let opened =
            OpenOptions::new().read(true).custom_flags(kept | libc::O_DIRECTORY).open(path);
        opened.map_err(|error| errno_of(&error))
    }

    /// chdir: the kernel does it, once there is a real directory to go to.
    pub(super) fn change_directory(&self) -> Result<CallAnswer, Errno> {
        let located = match self.subject(libc::AT_FDCWD, 0, true)? {
            Subject::Name(located) => located,
            _ => return Ok(CallAnswer::Continue),
        };
        let inode = located.inode()?;
        if inode.kind() != Some(FileKind::Directory) {
            return Err(Errno::NOTDIR);
        }
        let checked = located.view.namespace().identity().check(EXECUTE, inode, &located.name);
        checked.map_err(|error| errno(&error))?;
        let dir = located.opened()?;
        self.make_way(&located)?;
        self.supervisor.skeleton().make_directory(&dir).map_err(|error| errno_of(&error))?;
        Ok(CallAnswer::Continue)
    }
}

/// A file for a caller, and what is to be done once the caller has it.
type OpenedFile = (File, Option<Box<dyn FnOnce(bool)>>);

/// Fails unless the user may open the file `inode` with `flags`.
fn check_access(view: &NamespaceView, inode: &Inode, flags: i32) -> Result<(), Errno> {
    let truncates = flags & libc::O_TRUNC != 0;
    let wanted = match flags & libc::O_ACCMODE {
        libc::O_RDONLY if truncates => READ | WRITE,
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    };
    let checked = view.namespace().identity().check(wanted, inode, b"file");
    checked.map_err(|error| errno(&error))?;
    if wanted & WRITE != 0 {
        session(view)?;
        check_synchronous(flags)?;
    }
    Ok(())
}

/// Opens a file of the spool for a user who may. It is truncated once the caller has it.
fn open_spooled(
    view: &NamespaceView,
    file: Arc<SpooledFile>,
    flags: i32,
) -> Result<OpenedFile, Errno> {
    let is_superuser = view.namespace().identity().is_root();
    let opened = file.open(flags & !libc::O_TRUNC, is_superuser);
    let opened = opened.map_err(|error| errno_of(&error))?;
    if flags & libc::O_TRUNC == 0 {
        return Ok((opened, None));
    }
    let then = move |is_open: bool| {
        if is_open {
            // The spool has room for less.
            drop(file.set_size(0, is_superuser));
        }
    };
    Ok((opened, Some(Box::new(then))))
}

/// Refuses what would promise that each write survives power loss: writes are to the spool.
fn check_synchronous(flags: i32) -> Result<(), Errno> {
    if flags & libc::O_DSYNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
        return Err(Errno::INVAL);
    }
    Ok(())
}
