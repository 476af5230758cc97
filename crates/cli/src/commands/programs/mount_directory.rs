// SPDX-License-Identifier: Apache-2.0
//! Mount directory: makes a directory usable for a mount.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esker_base::{Error, Kind, Result, shell_word};

/// Unmounts the unusable remains of a dead mount at `mountpoint`.
pub(super) fn make_usable(mountpoint: &Path) -> Result<()> {
    // Not `stat`: the kernel may have cached attributes of the root though nobody serves it any
    // more.
    match rustix::fs::statvfs(mountpoint) {
        // Aborted, or canceled if it had rings: the mount died just now.
        Err(
            rustix::io::Errno::NOTCONN
            | rustix::io::Errno::CONNABORTED
            | rustix::io::Errno::CANCELED,
        ) => detach(mountpoint),
        Err(errno) => Err(Error::io(errno.into(), format!("mount at {}", mountpoint.display()))),
        Ok(_) if !mountpoint.is_dir() => {
            let context = format!("{}: not a directory", mountpoint.display());
            Err(Error::new(Kind::NotADirectory, context))
        }
        Ok(_) => Ok(()),
    }
}

/// Removes the mount at `mountpoint` from the tree; programs that have files open in it keep those.
pub(super) fn detach(mountpoint: &Path) -> Result<()> {
    if rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH).is_ok() {
        return Ok(());
    }
    match esker_fuse::unmount_by_helper(mountpoint, true) {
        Ok(output) if output.status.success() => Ok(()),
        _ => {
            let word = shell_word(mountpoint.as_os_str().as_bytes());
            let what = format!(
                "{}: an old mount is in the way; its user or root removes it by `fusermount3 -u -z \
                 {word}`",
                mountpoint.display()
            );
            Err(Error::new(Kind::Denied, what))
        }
    }
}
