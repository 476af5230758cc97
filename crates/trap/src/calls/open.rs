// SPDX-License-Identifier: Apache-2.0
//! Open: a program gets a real descriptor, of a file of the spool or of a directory of the
//! skeleton.

use std::fs::File;
use std::sync::Arc;

use esker_base::Kind;
use esker_fs::file::OpenFile;
use esker_fs::inode::{FileKind, Inode};
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::{EXECUTE, READ, WRITE};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Subject, TrappedCall, session};
use crate::caller::{Caller, PAGE_BYTES, errno_of};
use crate::listener::{CallAnswer, NewDescriptor};
use crate::resolve::{Located, errno};
use crate::spooled_file::{FileSource, SpooledFile};

/// `__O_TMPFILE` of `fcntl.h`.
const TEMPORARY: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// `O_LARGEFILE`, which the C library defines as 0 where all files are large.
const LARGE_FILE: i32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };
/// Flags that go with `O_PATH` in openat2(2).
const PATH_FLAGS: i32 = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
/// Flags that openat2(2) knows.
const OPEN_FLAGS: i32 = PATH_FLAGS
    | TEMPORARY
    | LARGE_FILE
    | libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_NOATIME;
/// Restrictions of openat2(2) of which a call may have only one.
const SCOPES: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;
/// Restrictions that openat2(2) knows.
const RESTRICTIONS: u64 = SCOPES
    | libc::RESOLVE_NO_XDEV
    | libc::RESOLVE_NO_MAGICLINKS
    | libc::RESOLVE_NO_SYMLINKS
    | libc::RESOLVE_CACHED;
/// Bytes of the first form of `struct open_how`.
const OPEN_HOW_BYTES: usize = 24;

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
        let subject = self.subject(descriptor, at, follows)?;
        if matches!(subject, Subject::Outside) {
            return Ok(CallAnswer::Continue);
        }
        if creates && flags & libc::O_DIRECTORY != 0 {
            return Err(Errno::INVAL);
        }
        let (file, then) = match subject {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::Name(located) => self.open(*located, flags, mode)?,
            Subject::File(view, file) => {
                let inode = file.stat().map_err(|error| errno(&error))?;
                check_access(&view, &inode, flags)?;
                self.open_spooled(&view, file, flags)?
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
        let how = match OpenHow::read(self.caller(), self.argument(2), self.argument(3)) {
            // A process whose memory cannot be read is left to the kernel.
            Err(Errno::PERM) => return Ok(CallAnswer::Continue),
            how => how?,
        };
        how.check()?;
        if how.restrictions == 0 {
            return self.open_at(self.int(0), 1, how.flags as i32, how.mode as u32);
        }
        // Programs that ask for restrictions fall back where the kernel does not have them.
        match self.restricted_subject(&how)? {
            Subject::Outside => Ok(CallAnswer::Continue),
            _ => Err(Errno::NOSYS),
        }
    }

    /// The subject to which the path of openat2 may lead. Checks no restriction; with
    /// `RESOLVE_IN_ROOT` absolute paths begin at the descriptor, too.
    fn restricted_subject(&self, how: &OpenHow) -> Result<Subject, Errno> {
        let has = |flag: i32| how.flags & flag as u64 != 0;
        let creates_anew = has(libc::O_CREAT) && has(libc::O_EXCL);
        let follows = !has(libc::O_NOFOLLOW) && !creates_anew;
        let subject = self.subject(self.int(0), 1, follows)?;
        let is_outside = matches!(subject, Subject::Outside);
        if !is_outside || how.restrictions & libc::RESOLVE_IN_ROOT == 0 {
            return Ok(subject);
        }
        // An absolute path begins at the descriptor, too.
        let Ok(path) = self.path(1) else { return Ok(subject) };
        self.subject_of(self.int(0), &[b"./", &path[..]].concat(), follows)
    }

    fn open(&self, mut located: Located, flags: i32, mode: u32) -> Result<OpenedFile, Errno> {
        if flags & TEMPORARY != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // The kernel does not pass on descriptors opened with `O_PATH`, so the caller gets one that
        // it can read from. A symbolic link cannot be opened that way; programs fall back if that
        // is not supported.
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
        let id = open.id();
        let created = CreatedName {
            view: located.view.clone(),
            dir: located.dir.clone(),
            name: located.name.clone(),
            id,
        };
        let spool = self.supervisor.spool();
        let file = match self.spool_created(&located.view, open) {
            Ok(file) => file,
            Err(error) => {
                spool.with_file(id, |file| created.remove(file));
                return Err(error);
            }
        };
        match spool.open(&file, flags & !libc::O_TRUNC) {
            Ok(opened) => {
                let then = move |is_open: bool| {
                    if !is_open {
                        created.remove(Some(&file));
                    }
                };
                Ok(Some((opened, Some(Box::new(then)))))
            }
            Err(error) => {
                created.remove(Some(&file));
                drop(file);
                drop(spool.discard_if_gone(id));
                Err(errno_of(&error))
            }
        }
    }

    /// Puts a file that was just created into the spool.
    fn spool_created(
        &self,
        view: &NamespaceView,
        open: Arc<OpenFile>,
    ) -> Result<Arc<SpooledFile>, Errno> {
        let superuser = session(self.supervisor.identities().superuser())?;
        let (id, mut open) = (open.id(), Some(open));
        let source = || {
            let open = open.take().expect("a source is opened once");
            Ok(FileSource::Session(superuser.clone(), open))
        };
        let file = self.supervisor.spool().put(view.namespace(), id, false, source);
        if let Some(open) = open {
            // Another call has put it there, or no call could.
            superuser.close_file(open).map_err(|error| errno(&error))?;
        }
        file.map_err(|error| errno(&error))
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
        // The content of a file that will be truncated need not be copied.
        let is_kept = flags & libc::O_TRUNC == 0;
        self.open_spooled(&located.view, self.spool(located, &inode, is_kept)?, flags)
    }

    /// Opens a file of the spool for a user who has permission. With `O_TRUNC`, it is truncated
    /// once the caller has the descriptor.
    fn open_spooled(
        &self,
        view: &NamespaceView,
        file: Arc<SpooledFile>,
        flags: i32,
    ) -> Result<OpenedFile, Errno> {
        let opened = self.supervisor.spool().open(&file, flags & !libc::O_TRUNC);
        let opened = opened.map_err(|error| errno_of(&error))?;
        if flags & libc::O_TRUNC == 0 {
            return Ok((opened, None));
        }
        let view = view.clone();
        let then = move |is_open: bool| {
            if is_open {
                // The spool has room for less.
                drop(file.set_size(view.namespace(), 0));
            }
        };
        Ok((opened, Some(Box::new(then))))
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
        let kept = OFlags::from_bits_retain((flags & libc::O_NONBLOCK).cast_unsigned());
        let opened = self.supervisor.skeleton().open_directory(dir, kept);
        opened.map_err(|error| errno_of(&error))
    }

    /// chdir: the kernel carries it out once a real directory is there.
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

/// A file for a caller, and a function that is called once the caller has it.
type OpenedFile = (File, Option<Box<dyn FnOnce(bool)>>);

/// A name that a call has made.
struct CreatedName {
    view: NamespaceView,
    dir: Dir,
    name: Vec<u8>,
    /// Identity of its file.
    id: u128,
}

impl CreatedName {
    /// Removes the name after the call has failed, unless it stands for another file by now, or
    /// others have written to `file` in the spool.
    fn remove(&self, file: Option<&SpooledFile>) {
        let size = file.and_then(|file| file.content().metadata().ok()).map(|known| known.len());
        let found = self.view.namespace().lookup(&self.dir, &self.name, true);
        let is_unused = size.is_none_or(|size| size == 0);
        if is_unused && found.is_ok_and(|inode| inode.id == self.id) {
            let removed = self.view.session().map(|session| session.unlink(&self.dir, &self.name));
            drop(removed);
        }
    }
}

/// `struct open_how` of openat2(2).
struct OpenHow {
    flags: u64,
    mode: u64,
    restrictions: u64,
}

impl OpenHow {
    /// Reads the structure of `bytes` bytes at `address`.
    ///
    /// # Errors
    /// `INVAL` for one that is too short; `TOOBIG` for one with fields that are not known here;
    /// `FAULT`; `PERM`.
    fn read(caller: Caller, address: u64, bytes: u64) -> Result<Self, Errno> {
        if bytes < OPEN_HOW_BYTES as u64 {
            return Err(Errno::INVAL);
        }
        if bytes > PAGE_BYTES {
            return Err(Errno::TOOBIG);
        }
        let how = caller.byte_vec(address, bytes as usize)?;
        let (known, unknown) = how.split_at(OPEN_HOW_BYTES);
        if unknown.iter().any(|&byte| byte != 0) {
            return Err(Errno::TOOBIG);
        }
        let part = |at: usize| {
            u64::from_ne_bytes(known[at..at + 8].try_into().expect("eight bytes of 24"))
        };
        Ok(Self { flags: part(0), mode: part(8), restrictions: part(16) })
    }

    /// Fails for flags and modes that openat2 refuses and openat ignores.
    fn check(&self) -> Result<(), Errno> {
        let has = |flags: i32| self.flags & flags as u64 != 0;
        let mode_max = if has(libc::O_CREAT | TEMPORARY) { 0o7777 } else { 0 };
        let is_path_of_more = has(libc::O_PATH) && has(!PATH_FLAGS);
        let is_of_two_kinds = self.restrictions & SCOPES == SCOPES;
        let is_known =
            self.flags & !(OPEN_FLAGS as u64) == 0 && self.restrictions & !RESTRICTIONS == 0;
        if !is_known || is_path_of_more || is_of_two_kinds || self.mode & !mode_max != 0 {
            return Err(Errno::INVAL);
        }
        Ok(())
    }
}

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

/// Refuses flags that promise that each write survives power loss: writes go to the spool.
fn check_synchronous(flags: i32) -> Result<(), Errno> {
    if flags & libc::O_DSYNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
        return Err(Errno::INVAL);
    }
    Ok(())
}
