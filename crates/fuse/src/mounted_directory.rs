// SPDX-License-Identifier: Apache-2.0
//! Mounted directory: the place of a mount, and the ways to end it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use esker_base::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;

use crate::fusermount::unmount_by_helper;

/// The directory of a mount that this process serves.
pub(crate) struct MountedDirectory {
    pub(crate) mountpoint: PathBuf,
    /// The device, through which the kernel also says whether the mount is connected.
    pub(crate) device: OwnedFd,
}

impl MountedDirectory {
    /// The directory `mountpoint`, whose mount `device` serves.
    ///
    /// # Errors
    /// Those of opening the device again.
    pub(crate) fn new(mountpoint: PathBuf, device: BorrowedFd) -> Result<Self> {
        let device = device.try_clone_to_owned();
        let device = device.map_err(|error| Error::io(error, "open the mount's device again"))?;
        Ok(Self { mountpoint, device })
    }

    /// Ends a mount whose requests are no longer answered: pending and later requests fail. Without
    /// the superuser's rights pending requests fail only once this process has ended.
    pub(crate) fn abort(&self) {
        let mut device = [PollFd::new(&self.device, PollFlags::IN)];
        let polled = poll(&mut device, Some(&Timespec::default()));
        if polled.is_ok() && device[0].revents().contains(PollFlags::ERR) {
            // It is gone. Another unmount would take away the file system beneath.
            return;
        }
        let _ = self.unmount(UnmountFlags::FORCE | UnmountFlags::DETACH);
    }

    /// Makes the kernel write back its dirty pages.
    pub(crate) fn write_pages(&self) {
        if let Ok(root) = std::fs::File::open(&self.mountpoint) {
            let _ = rustix::fs::syncfs(root.as_fd());
        }
    }

    /// Unmounts the directory.
    ///
    /// # Errors
    /// `Conflict` while programs use it, and other errors of the kernel and of FUSE's helper.
    pub(crate) fn unmount(&self, flags: UnmountFlags) -> Result<()> {
        match rustix::mount::unmount(&self.mountpoint, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => Err(in_use()),
            // Only the superuser may; FUSE's helper does it for the mount's owner.
            Err(rustix::io::Errno::PERM) => self.unmount_by_helper(flags),
            Err(errno) => Err(Error::io(errno.into(), "unmount")),
        }
    }

    fn unmount_by_helper(&self, flags: UnmountFlags) -> Result<()> {
        let is_lazy = flags.contains(UnmountFlags::DETACH);
        let output = unmount_by_helper(&self.mountpoint, is_lazy)
            .map_err(|error| Error::io(error, "run fusermount3"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // The helper has one exit code for all causes, and its messages are not translated.
        let busy = io::Error::from(rustix::io::Errno::BUSY).to_string();
        if busy.starts_with(said.rsplit(": ").next().unwrap_or_default()) {
            return Err(in_use());
        }
        Err(Error::new(Kind::Conflict, said))
    }
}

fn in_use() -> Error {
    Error::new(Kind::Conflict, "the mount is in use: leave it and close its files first")
}
