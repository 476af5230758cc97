// SPDX-License-Identifier: Apache-2.0
//! Outside: follows paths that begin outside of the shown place, to find those that lead into it
//! after all.
//!
//! Most paths have no symbolic link, which one call to the kernel shows. Others are followed name
//! by name, as the kernel does for the caller: from the caller's root, its working directory or a
//! descriptor, and through its own links in `/proc`, which stand for its open files.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use esker_fs::stack::path::SYMLINKS_MAX;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::caller::Caller;
use crate::resolve::{has_parent, reversed, wants_directory};
use crate::supervisor::Supervisor;

/// `f_type` of `/proc`.
const PROC_MAGIC: u64 = 0x9fa0;
/// Flags of descriptors that stand for a path alone.
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A path that leads into the namespace.
#[derive(Debug)]
pub(crate) struct WayBack {
    /// The part of the path behind the place.
    pub(crate) rest: Vec<u8>,
    /// True if the last component of the path was a symbolic link.
    pub(crate) is_followed: bool,
}

/// A walk along a path, and the rest of the path.
struct OutsideWalk {
    at: OwnedFd,
    /// The caller's root.
    root: OwnedFd,
    /// The next component last.
    ahead: Vec<Vec<u8>>,
    wants_directory: bool,
    is_followed: bool,
}

impl Supervisor {
    /// Returns where `path`, whose text leads elsewhere, enters the namespace; `None` if it does
    /// not. `from` is where the caller starts, in its folder of `/proc`: `root`, `cwd` or a
    /// descriptor.
    ///
    /// # Errors
    /// `LOOP`; those of [`is_of_supervisor`].
    pub(crate) fn way_back(
        &self,
        caller: Caller,
        from: &str,
        path: &[u8],
        follows: bool,
    ) -> Result<Option<WayBack>, Errno> {
        let search = || self.search_way_back(caller, from, path, follows);
        self.spool().with_room(search, |error| matches!(*error, Errno::MFILE | Errno::NFILE))
    }

    fn search_way_back(
        &self,
        caller: Caller,
        from: &str,
        path: &[u8],
        follows: bool,
    ) -> Result<Option<WayBack>, Errno> {
        let Some(start) = open_own(caller, from)? else { return Ok(None) };
        let (ahead, wants_directory) = (reversed(path), wants_directory(path));
        if !has_parent(path) {
            let joined = ahead.iter().rev().map(Vec::as_slice).collect::<Vec<_>>().join(&b'/');
            let joined = if joined.is_empty() { b".".to_vec() } else { joined };
            let flags = if follows || wants_directory { PATH } else { PATH | OFlags::NOFOLLOW };
            let without_links = ResolveFlags::NO_SYMLINKS;
            match rustix::fs::openat2(&start, &joined[..], flags, Mode::empty(), without_links) {
                // The path has a link.
                Err(Errno::LOOP) => {}
                // The path is too long for one call, or the kernel asks to try again.
                Err(Errno::NAMETOOLONG | Errno::AGAIN | Errno::NOSYS) => {}
                Err(error) if is_of_supervisor(error) => return Err(error),
                // The kernel finds the same, or has the right error.
                _ => return Ok(None),
            }
        }
        let Some(root) = open_own(caller, "root")? else { return Ok(None) };
        let mut walk = OutsideWalk { at: start, root, ahead, wants_directory, is_followed: false };
        for _ in 0..=SYMLINKS_MAX {
            match self.next_link(caller, &mut walk, follows)? {
                Step::Link => {}
                Step::End => return Ok(None),
                Step::Inside(below) => return Ok(Some(walk.into_way_back(below))),
            }
        }
        Err(Errno::LOOP)
    }

    /// Goes on until the next symbolic link, and follows that.
    fn next_link(
        &self,
        caller: Caller,
        walk: &mut OutsideWalk,
        follows: bool,
    ) -> Result<Step, Errno> {
        loop {
            if self.is_place(&walk.at) {
                return Ok(Step::Inside(Vec::new()));
            }
            let Some(name) = walk.ahead.pop() else { return Ok(Step::End) };
            if name == b".." {
                if !is_same(&walk.at, &walk.root)
                    && let Some(above) = open_at(&walk.at, b"..", PATH)?
                {
                    walk.at = above;
                }
                continue;
            }
            let own = PATH | OFlags::NOFOLLOW;
            // The kernel makes a missing file, or has the right error.
            let Some(found) = open_at(&walk.at, &name, own)? else { return Ok(Step::End) };
            let is_last = walk.ahead.is_empty();
            if kind_of(&found) != Some(FileType::Symlink) {
                walk.at = found;
                continue;
            }
            if is_last && !follows && !walk.wants_directory {
                return Ok(Step::End);
            }
            walk.is_followed |= is_last;
            let is_of_proc =
                rustix::fs::fstatfs(&walk.at).is_ok_and(|found| found.f_type as u64 == PROC_MAGIC);
            return match is_of_proc {
                true => self.follow_proc(caller, walk, &name),
                false => self.follow(walk, &found),
            };
        }
    }

    /// Follows the symbolic link `link`, which is in the directory of the walk.
    fn follow(&self, walk: &mut OutsideWalk, link: &OwnedFd) -> Result<Step, Errno> {
        let target = rustix::fs::readlinkat(link, "", Vec::new())?.into_bytes();
        if walk.ahead.is_empty() {
            walk.wants_directory |= wants_directory(&target);
        }
        if target.starts_with(b"/") {
            if let Some(below) = self.shown_at().within(&target) {
                return Ok(Step::Inside(below.to_vec()));
            }
            walk.at = walk.root.try_clone().map_err(|_| Errno::MFILE)?;
        }
        walk.ahead.extend(reversed(&target));
        Ok(Step::Link)
    }

    /// Follows `name` in a directory of `/proc`: `self`, which stands for the caller, or a link to
    /// an open file of a process, which leads there without a path.
    fn follow_proc(
        &self,
        caller: Caller,
        walk: &mut OutsideWalk,
        name: &[u8],
    ) -> Result<Step, Errno> {
        if matches!(name, b"self" | b"thread-self") {
            walk.ahead.push(caller.thread().to_string().into_bytes());
            return Ok(Step::Link);
        }
        let Some(opened) = open_at(&walk.at, name, PATH)? else { return Ok(Step::End) };
        let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let path = match rustix::fs::readlink(link, Vec::new()) {
            Err(error) if is_of_supervisor(error) => return Err(error),
            Err(_) => return Ok(Step::End),
            Ok(path) => path,
        };
        walk.at = opened;
        Ok(match self.shown_at().within(path.as_bytes()) {
            Some(below) => Step::Inside(below.to_vec()),
            None => Step::Link,
        })
    }

    fn is_place(&self, directory: &OwnedFd) -> bool {
        is_same(directory, self.skeleton().top())
    }

    /// True if `path` names a directory above the place, which cannot be moved while the place is
    /// in use.
    ///
    /// # Errors
    /// Those of [`is_of_supervisor`].
    pub(crate) fn is_above_place(
        &self,
        caller: Caller,
        descriptor: i32,
        path: &[u8],
    ) -> Result<bool, Errno> {
        let Some(start) = open_own(caller, &start_of(descriptor, path))? else { return Ok(false) };
        let path = match path.iter().position(|&byte| byte != b'/') {
            Some(first) => &path[first..],
            None => b".",
        };
        let own = PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let Some(found) = open_at(&start, path, own)? else { return Ok(false) };
        Ok(self.skeleton().root().ancestors().skip(1).any(|above| {
            let above = rustix::fs::stat(above).ok();
            above.zip(stat(&found)).is_some_and(|(above, found)| same(&above, &found))
        }))
    }
}

/// The next step of a walk.
enum Step {
    /// Behind a symbolic link.
    Link,
    /// Outside of the namespace.
    End,
    /// In the namespace, at this path.
    Inside(Vec<u8>),
}

impl OutsideWalk {
    fn into_way_back(self, mut rest: Vec<u8>) -> WayBack {
        for name in self.ahead.iter().rev() {
            rest.push(b'/');
            rest.extend_from_slice(name);
        }
        if self.wants_directory {
            rest.push(b'/');
        }
        WayBack { rest, is_followed: self.is_followed }
    }
}

/// The starting point, in the caller's folder of `/proc`, of a path that the caller names relative
/// to `descriptor`.
pub(crate) fn start_of(descriptor: i32, path: &[u8]) -> String {
    match descriptor {
        _ if path.starts_with(b"/") => "root".to_owned(),
        libc::AT_FDCWD => "cwd".to_owned(),
        descriptor => format!("fd/{descriptor}"),
    }
}

/// Opens `name` in the caller's folder of `/proc`; `None` if it cannot be opened.
fn open_own(caller: Caller, name: &str) -> Result<Option<OwnedFd>, Errno> {
    let path = format!("/proc/{}/{name}", caller.thread());
    open_at(rustix::fs::CWD, path.as_bytes(), PATH)
}

/// Opens `name` in `directory`; `None` if the path does not lead to it.
fn open_at(directory: impl AsFd, name: &[u8], flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
    let open = || rustix::fs::openat(&directory, name, flags, Mode::empty());
    match rustix::io::retry_on_intr(open) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if is_of_supervisor(error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// True if `error` is about this process or the machine, not about a path. Where the path leads is
/// unknown then, and the caller's call fails.
fn is_of_supervisor(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::INTR)
}

fn stat(found: &OwnedFd) -> Option<Stat> {
    rustix::fs::statat(found, "", AtFlags::EMPTY_PATH).ok()
}

fn kind_of(found: &OwnedFd) -> Option<FileType> {
    stat(found).map(|found| FileType::from_raw_mode(found.st_mode))
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> bool {
    stat(one).zip(stat(other)).is_some_and(|(one, other)| same(&one, &other))
}

fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}
