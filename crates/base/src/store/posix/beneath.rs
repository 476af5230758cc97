// SPDX-License-Identifier: Apache-2.0
//! Opens files below the store's directory: never through a symbolic link, never blocking.
//!
//! A user who can write to one directory of a store must not be able to make its readers hang on a
//! FIFO or read elsewhere. `openat2` guarantees that in one system call; if the kernel or a sandbox
//! lacks it, the path is walked component by component.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, retry_on_intr};

/// Set once `openat2` has proved to be unavailable.
static WITHOUT_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Opens `path` (empty: `root` itself) below `root` with `flags`; creates nothing.
pub(super) fn open(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !flags.contains(OFlags::PATH) {
        // With O_PATH, which never blocks, `openat2` accepts no such flag.
        flags |= OFlags::NONBLOCK;
    }
    let path = if path.is_empty() { "." } else { path };
    if !WITHOUT_OPENAT2.load(Ordering::Relaxed) {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match retry_on_intr(|| openat2(root, path, flags, Mode::empty(), resolve)) {
            // Sandboxes answer EPERM to system calls that they do not know.
            Err(Errno::NOSYS | Errno::PERM) => WITHOUT_OPENAT2.store(true, Ordering::Relaxed),
            outcome => return outcome,
        }
    }
    open_by_component(root, path, flags)
}

fn open_by_component(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut reached: Option<OwnedFd> = None;
    let mut components = path.split('/').peekable();
    while let Some(component) = components.next() {
        let from = reached.as_ref().map_or(root, AsFd::as_fd);
        let flags = match components.peek() {
            Some(_) => OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            None => flags,
        };
        reached = Some(retry_on_intr(|| openat(from, component, flags, Mode::empty()))?);
    }
    reached.ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn both_ways_refuse_links_and_do_not_wait() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path();
        std::fs::create_dir_all(path.join("a/b")).expect("mkdir");
        std::fs::write(path.join("a/b/c"), b"x").expect("write");
        symlink(path.join("a"), path.join("link")).expect("symlink");
        symlink("c", path.join("a/b/link")).expect("symlink");
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("fifo"), Mode::RUSR | Mode::WUSR)
            .expect("mkfifo");
        let root = std::fs::File::open(path).expect("open");
        for open in [open, open_by_component] {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            open(root.as_fd(), "a/b/c", flags).expect("a plain file");
            open(root.as_fd(), "fifo", flags).expect("opens at once");
            open(root.as_fd(), "fifo", OFlags::PATH | OFlags::NOFOLLOW).expect("opens at once");
            for path in ["link/b/c", "a/b/link"] {
                let errno = open(root.as_fd(), path, flags).expect_err(path);
                assert!(matches!(errno, Errno::LOOP | Errno::NOTDIR), "{path}: {errno}");
            }
            assert_eq!(open(root.as_fd(), "a/x", flags).expect_err("absent"), Errno::NOENT);
        }
    }
}
