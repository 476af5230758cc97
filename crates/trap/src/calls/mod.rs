// SPDX-License-Identifier: Apache-2.0
//! Calls: the system calls that name files, and the effect of each in the namespace.

mod access;
mod change;
mod directories;
mod execute;
mod names;
mod open;
mod sockets;
mod stat;
mod sync;
mod xattr;

use std::sync::Arc;

use esker_base::{Error, Kind};
use esker_fs::inode::{FileKind, Inode};
use esker_fs::session::Session;
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::dir::Dir;
use libc::AT_FDCWD;
use rustix::io::Errno;

use crate::caller::{Caller, errno_of};
use crate::listener::{CallAnswer, Listener, SuspendedCall};
use crate::outside::start_of;
use crate::resolve::{Located, Resolved, errno};
use crate::spooled_file::{FileSource, SpooledFile};
use crate::supervisor::Supervisor;

/// Numbers of the calls that are handed to the supervisor.
pub(crate) const TRAPPED: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_chdir,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_renameat,
    #[cfg(target_arch = "aarch64")]
    38, // renameat, which libc leaves out
    libc::SYS_renameat2,
    libc::SYS_truncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_name_to_handle_at,
    libc::SYS_inotify_add_watch,
    libc::SYS_bind,
    libc::SYS_connect,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getdents,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// fchmodat2, of Linux 6.6.
const FCHMODAT2: i64 = 452;

/// A system call that the supervisor answers.
pub(crate) struct TrappedCall<'a> {
    supervisor: &'a Supervisor,
    listener: &'a Listener,
    call: &'a SuspendedCall,
}

/// The object on which a call acts.
enum Subject {
    /// Something outside of the namespace, which the kernel finds.
    Outside,
    /// A name.
    Name(Box<Located>),
    /// An open file.
    File(NamespaceView, Arc<SpooledFile>),
    /// An open directory.
    Directory(NamespaceView, Dir),
}

impl<'a> TrappedCall<'a> {
    pub(crate) fn new(
        supervisor: &'a Supervisor,
        listener: &'a Listener,
        call: &'a SuspendedCall,
    ) -> Self {
        Self { supervisor, listener, call }
    }

    fn caller(&self) -> Caller {
        self.call.caller
    }

    fn argument(&self, at: usize) -> u64 {
        self.call.arguments[at]
    }

    /// An argument that is an `int`.
    fn int(&self, at: usize) -> i32 {
        self.argument(at) as i32
    }

    /// An argument that is an unsigned number of 32 bits.
    fn number(&self, at: usize) -> u32 {
        self.argument(at) as u32
    }

    /// The path that argument `at` points to.
    fn path(&self, at: usize) -> Result<Vec<u8>, Errno> {
        self.caller().path(self.argument(at))
    }

    /// Answers the call `number`.
    pub(crate) fn answer(&self, number: i64) -> Result<CallAnswer, Errno> {
        match number {
            libc::SYS_openat => self.open_at(self.int(0), 1, self.int(2), self.number(3)),
            libc::SYS_openat2 => self.open_how(),
            libc::SYS_newfstatat => self.stat_at(self.int(0), 1, 2, self.int(3)),
            libc::SYS_fstat => self.stat_descriptor(),
            libc::SYS_statx => self.statx(),
            libc::SYS_statfs => self.statfs(self.subject(AT_FDCWD, 0, true)?),
            libc::SYS_fstatfs => self.statfs(self.open_subject(self.int(0))?),
            libc::SYS_faccessat => self.access(self.int(0), 1, self.int(2), 0),
            libc::SYS_faccessat2 => self.access(self.int(0), 1, self.int(2), self.int(3)),
            libc::SYS_readlinkat => self.read_link(self.int(0), 1),
            libc::SYS_getdents64 => self.list(),
            libc::SYS_chdir => self.change_directory(),
            libc::SYS_execve => self.execute(AT_FDCWD, 0, 0),
            libc::SYS_execveat => self.execute(self.int(0), 1, self.int(4)),
            libc::SYS_mkdirat => self.make_directory(self.int(0), 1),
            libc::SYS_mknodat => self.make_node(self.int(0), 1),
            libc::SYS_symlinkat => self.make_symlink(0, self.int(1), 2),
            libc::SYS_linkat => self.link((self.int(0), 1), (self.int(2), 3), self.int(4)),
            libc::SYS_unlinkat => {
                self.remove(self.int(0), 1, self.int(2) & libc::AT_REMOVEDIR != 0)
            }
            libc::SYS_renameat2 => self.rename((self.int(0), 1), (self.int(2), 3), self.number(4)),
            libc::SYS_truncate => self.truncate(),
            libc::SYS_fchmod => self.change_mode(self.open_subject(self.int(0))?, 1),
            libc::SYS_fchmodat => self.change_mode(self.subject(self.int(0), 1, true)?, 2),
            FCHMODAT2 => self.change_mode(self.subject_at(self.int(0), 1, self.int(3))?, 2),
            libc::SYS_fchown => self.change_owner(self.open_subject(self.int(0))?, 1),
            libc::SYS_fchownat => {
                self.change_owner(self.subject_at(self.int(0), 1, self.int(4))?, 2)
            }
            libc::SYS_utimensat => self.change_times(),
            libc::SYS_setxattr => self.set_xattr(self.subject(AT_FDCWD, 0, true)?),
            libc::SYS_lsetxattr => self.set_xattr(self.subject(AT_FDCWD, 0, false)?),
            libc::SYS_fsetxattr => self.set_xattr(self.open_subject(self.int(0))?),
            libc::SYS_getxattr => self.xattr(self.subject(AT_FDCWD, 0, true)?),
            libc::SYS_lgetxattr => self.xattr(self.subject(AT_FDCWD, 0, false)?),
            libc::SYS_fgetxattr => self.xattr(self.open_subject(self.int(0))?),
            libc::SYS_listxattr => self.list_xattrs(self.subject(AT_FDCWD, 0, true)?),
            libc::SYS_llistxattr => self.list_xattrs(self.subject(AT_FDCWD, 0, false)?),
            libc::SYS_flistxattr => self.list_xattrs(self.open_subject(self.int(0))?),
            libc::SYS_removexattr => self.remove_xattr(self.subject(AT_FDCWD, 0, true)?),
            libc::SYS_lremovexattr => self.remove_xattr(self.subject(AT_FDCWD, 0, false)?),
            libc::SYS_fremovexattr => self.remove_xattr(self.open_subject(self.int(0))?),
            libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_syncfs => {
                self.sync_descriptor(number)
            }
            libc::SYS_sync => self.sync_all(),
            libc::SYS_bind => self.bind(),
            libc::SYS_connect => self.connect(),
            libc::SYS_name_to_handle_at => {
                self.refuse(self.subject_at(self.int(0), 1, self.int(4))?)
            }
            libc::SYS_inotify_add_watch => self.refuse(self.subject(AT_FDCWD, 1, true)?),
            other => self.answer_older(other),
        }
    }

    /// Answers a call that newer calls have replaced.
    #[cfg(target_arch = "x86_64")]
    fn answer_older(&self, number: i64) -> Result<CallAnswer, Errno> {
        const CREATE: i32 = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        match number {
            libc::SYS_open => self.open_at(AT_FDCWD, 0, self.int(1), self.number(2)),
            libc::SYS_creat => self.open_at(AT_FDCWD, 0, CREATE, self.number(1)),
            libc::SYS_stat => self.stat_at(AT_FDCWD, 0, 1, 0),
            libc::SYS_lstat => self.stat_at(AT_FDCWD, 0, 1, libc::AT_SYMLINK_NOFOLLOW),
            libc::SYS_access => self.access(AT_FDCWD, 0, self.int(1), 0),
            libc::SYS_readlink => self.read_link(AT_FDCWD, 0),
            libc::SYS_getdents => self.refuse_listing(),
            libc::SYS_mkdir => self.make_directory(AT_FDCWD, 0),
            libc::SYS_mknod => self.make_node(AT_FDCWD, 0),
            libc::SYS_symlink => self.make_symlink(0, AT_FDCWD, 1),
            libc::SYS_link => self.link((AT_FDCWD, 0), (AT_FDCWD, 1), 0),
            libc::SYS_unlink => self.remove(AT_FDCWD, 0, false),
            libc::SYS_rmdir => self.remove(AT_FDCWD, 0, true),
            libc::SYS_rename => self.rename((AT_FDCWD, 0), (AT_FDCWD, 1), 0),
            libc::SYS_renameat => self.rename((self.int(0), 1), (self.int(2), 3), 0),
            libc::SYS_chmod => self.change_mode(self.subject(AT_FDCWD, 0, true)?, 1),
            libc::SYS_chown => self.change_owner(self.subject(AT_FDCWD, 0, true)?, 1),
            libc::SYS_lchown => self.change_owner(self.subject(AT_FDCWD, 0, false)?, 1),
            libc::SYS_utime => self.change_times_in_seconds(),
            libc::SYS_utimes => self.change_times_in_microseconds(AT_FDCWD, 0),
            libc::SYS_futimesat => self.change_times_in_microseconds(self.int(0), 1),
            _ => Ok(CallAnswer::Continue),
        }
    }

    /// Answers a call that newer calls have replaced.
    #[cfg(not(target_arch = "x86_64"))]
    fn answer_older(&self, number: i64) -> Result<CallAnswer, Errno> {
        match number {
            38 if cfg!(target_arch = "aarch64") => {
                self.rename((self.int(0), 1), (self.int(2), 3), 0)
            }
            _ => Ok(CallAnswer::Continue),
        }
    }

    /// The subject to which the path in argument `at` leads.
    fn subject(&self, descriptor: i32, at: usize, follows: bool) -> Result<Subject, Errno> {
        let path = match self.path(at) {
            // A process whose memory cannot be read is left to the kernel.
            Err(Errno::PERM) => return Ok(Subject::Outside),
            path => path?,
        };
        // The thread may be gone, and its number another thread's by now.
        if !self.listener.is_waiting(self.call) {
            return Err(Errno::SRCH);
        }
        if follows && let Some((owner, number)) = descriptor_of(&path, self.caller()) {
            self.check_owner(owner)?;
            return self.open_subject_of(owner, number);
        }
        self.subject_of(descriptor, &path, follows)
    }

    /// The subject to which `path` leads; if that is outside, the kernel can follow the path from
    /// here on.
    fn subject_of(&self, descriptor: i32, path: &[u8], follows: bool) -> Result<Subject, Errno> {
        match self.supervisor.resolve(self.caller(), descriptor, path, follows)? {
            Resolved::Outside(way) => {
                let everything = self.supervisor.identities().superuser().namespace();
                let made = self.supervisor.skeleton().make_way(everything, &way);
                made.map(|()| Subject::Outside).map_err(|error| errno_of(&error))
            }
            Resolved::Inside(located) => Ok(Subject::Name(located)),
        }
    }

    /// Makes the directories and links that the kernel needs to follow the path to a name itself,
    /// up to the directory of the name.
    fn make_way(&self, located: &Located) -> Result<(), Errno> {
        let skeleton = self.supervisor.skeleton();
        let everything = self.supervisor.identities().superuser().namespace();
        let made = skeleton.make_way(everything, &located.way);
        made.and_then(|()| skeleton.make_directory(&located.dir)).map_err(|error| errno_of(&error))
    }

    /// Puts the file `inode`, which was found at a name, into the spool unless it is there; copies
    /// its content if `has_content`.
    ///
    /// # Errors
    /// `NOENT` if another file has the name by now.
    fn spool(
        &self,
        located: &Located,
        inode: &Inode,
        has_content: bool,
    ) -> Result<Arc<SpooledFile>, Errno> {
        // Copied as a superuser: the caller may be allowed to write a file that it cannot read.
        let everything = self.supervisor.identities().superuser();
        let source = || match everything.session() {
            Some(session) => {
                let open = session.open_file(&located.dir, &located.name)?;
                if open.id() != inode.id {
                    session.close_file(open)?;
                    return Err(Error::new(Kind::NotFound, "another file has its name"));
                }
                Ok(FileSource::Session(session.clone(), open))
            }
            None => Ok(FileSource::Snapshot(Box::new(inode.clone()))),
        };
        let spool = self.supervisor.spool();
        let file = spool.put(everything.namespace(), inode.id, has_content, source);
        file.map_err(|error| errno(&error))
    }

    /// The subject to which the path in argument `at` leads, by `flags` of the calls that end in
    /// `at`. With `AT_EMPTY_PATH`, an empty path stands for the descriptor itself.
    fn subject_at(&self, descriptor: i32, at: usize, flags: i32) -> Result<Subject, Errno> {
        if flags & libc::AT_EMPTY_PATH != 0 && (self.argument(at) == 0 || self.path(at)?.is_empty())
        {
            return self.open_subject(descriptor);
        }
        let follows = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        self.subject(descriptor, at, follows)
    }

    /// The file or directory that is open as `descriptor`.
    fn open_subject(&self, descriptor: i32) -> Result<Subject, Errno> {
        self.open_subject_of(self.caller(), descriptor)
    }

    /// Fails unless the caller may look at what `owner` has open.
    fn check_owner(&self, owner: Caller) -> Result<(), Errno> {
        let uid = |caller: Caller| Ok(caller.status()?.identity.uid);
        let own = if owner == self.caller() { 0 } else { uid(self.caller())? };
        match own {
            0 => Ok(()),
            own if uid(owner).is_ok_and(|other| other != own) => Err(Errno::ACCESS),
            _ => Ok(()),
        }
    }

    /// The file or directory that `owner` has open as `descriptor`.
    fn open_subject_of(&self, owner: Caller, descriptor: i32) -> Result<Subject, Errno> {
        let path = match descriptor {
            AT_FDCWD => owner.working_directory()?,
            _ => match owner.descriptor_path(descriptor) {
                Ok(path) => path,
                Err(Errno::NAMETOOLONG) => return Err(Errno::NAMETOOLONG),
                // The kernel returns the right error.
                Err(_) => return Ok(Subject::Outside),
            },
        };
        let view = || self.supervisor.identities().of(self.caller());
        if let Some(file) = self.supervisor.spool().file_at(&path) {
            return Ok(Subject::File(view()?, file));
        }
        let Some(below) = self.supervisor.shown_at().within(&path) else {
            return Ok(Subject::Outside);
        };
        match self.supervisor.dir_below(owner, &start_of(descriptor, b""), below)? {
            Some(dir) => Ok(Subject::Directory(view()?, dir)),
            None => Ok(Subject::Outside),
        }
    }

    /// The attributes of the file at a name, including those that only the spool knows.
    fn inode(&self, located: &Located) -> Result<Inode, Errno> {
        let inode = located.inode()?;
        if inode.kind() != Some(FileKind::File) {
            return Ok(inode.clone());
        }
        match self.supervisor.spool().file(inode.id) {
            Some(file) => file.stat().map_err(|error| errno(&error)),
            None => Ok(inode.clone()),
        }
    }

    /// Writes `bytes` to the memory that argument `at` points to, and answers with 0.
    fn write(&self, at: usize, bytes: &[u8]) -> Result<CallAnswer, Errno> {
        self.caller().write(self.argument(at), bytes)?;
        Ok(CallAnswer::Value(0))
    }

    /// Writes `bytes`, cut to `bytes_max`, to the memory that argument `at` points to, and answers
    /// with their number.
    fn write_cut(&self, at: usize, bytes: &[u8], bytes_max: usize) -> Result<CallAnswer, Errno> {
        let cut = &bytes[..bytes.len().min(bytes_max)];
        self.caller().write(self.argument(at), cut)?;
        Ok(CallAnswer::Value(cut.len() as i64))
    }

    /// Answers a call that does not work in the namespace.
    fn refuse(&self, subject: Subject) -> Result<CallAnswer, Errno> {
        match subject {
            Subject::Outside => Ok(CallAnswer::Continue),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// The thread, and its descriptor, for which a `path` in `/proc` or `/dev` stands.
fn descriptor_of(path: &[u8], caller: Caller) -> Option<(Caller, i32)> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u32>().ok();
    let standard: [&[u8]; 3] = [b"/dev/stdin", b"/dev/stdout", b"/dev/stderr"];
    if let Some(at) = standard.iter().position(|name| *name == path) {
        return Some((caller, at as i32));
    }
    let rest = match path.strip_prefix(b"/dev/fd/") {
        Some(rest) => [b"self/fd/", rest].concat(),
        None => path.strip_prefix(b"/proc/")?.to_vec(),
    };
    let words: Vec<&[u8]> = rest.split(|&byte| byte == b'/').collect();
    let (process, words) = words.split_first()?;
    let owner = match *process {
        b"self" | b"thread-self" => caller,
        process => Caller::new(number(process)?),
    };
    let (owner, descriptor) = match words {
        [b"fd", descriptor] => (owner, descriptor),
        [b"task", thread, b"fd", descriptor] => (Caller::new(number(thread)?), descriptor),
        _ => return None,
    };
    Some((owner, i32::try_from(number(descriptor)?).ok()?))
}

/// The session of a view.
///
/// # Errors
/// `ROFS` if it is a snapshot.
fn session(view: &NamespaceView) -> Result<&Arc<Session>, Errno> {
    view.session().ok_or(Errno::ROFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stand_for_descriptors() {
        let own = Caller::new(7);
        let cases = [
            (&b"/dev/fd/12"[..], Some((own, 12))),
            (b"/proc/self/fd/3", Some((own, 3))),
            (b"/proc/9/fd/0", Some((Caller::new(9), 0))),
            (b"/proc/self/task/8/fd/1", Some((Caller::new(8), 1))),
            (b"/dev/stderr", Some((own, 2))),
            (b"/proc/self/fd/3/x", None),
            (b"/proc/9/fd", None),
            (b"/dev/fd/99999999999", None),
            (b"/tmp/fd/1", None),
        ];
        for (path, wanted) in cases {
            assert_eq!(descriptor_of(path, own), wanted, "{}", String::from_utf8_lossy(path));
        }
    }

    #[test]
    fn no_call_is_trapped_twice() {
        let mut numbers = TRAPPED.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), TRAPPED.len());
    }
}
