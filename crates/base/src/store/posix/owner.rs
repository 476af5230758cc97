// SPDX-License-Identifier: Apache-2.0
//! Store owner: the user to whom everything belongs that the superuser makes in another user's
//! store.
//!
//! Files of the superuser would be in the owner's way: nobody else collects garbage in a directory
//! that belongs to the superuser, or makes objects in it. Like a daemon that acts for a user, the
//! superuser therefore gives each new file and directory to the owner of the store's directory.
//! Invariant: only what this process has just made is given away, by its descriptor, so the owner
//! of the store cannot obtain other files by moving them or by symbolic links.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Dir, Gid, Uid, fchown, fstat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

/// The owner of a store in which the superuser writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreOwner {
    uid: Uid,
    gid: Gid,
}

impl StoreOwner {
    /// Returns the owner of the store in the directory `root`; `None` if this process is not the
    /// superuser's, or the store is.
    pub(super) fn of_store(root: BorrowedFd) -> Result<Option<Self>, Errno> {
        let stat = fstat(root)?;
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        Ok((geteuid().is_root() && !uid.is_root()).then_some(Self { uid, gid }))
    }

    pub(super) fn uid(self) -> Uid {
        self.uid
    }

    /// Gives the owner a file that this process has just created. The file remains the superuser's
    /// if the system cannot change owners: in a container that lacks this user, or on NFS.
    pub(super) fn give_file(self, file: impl AsFd) -> Result<(), Errno> {
        match retry_on_intr(|| fchown(&file, Some(self.uid), Some(self.gid))) {
            Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
            given => given,
        }
    }

    /// Gives the owner the directory `made`, which this process has opened by the name under which
    /// it has just made one. Between the two, the owner of the directory above may have put another
    /// one there, so it must be an empty directory of the superuser's.
    ///
    /// # Errors
    /// `PERM` if it is not.
    pub(super) fn give_directory(self, made: impl AsFd) -> Result<(), Errno> {
        let is_empty = Dir::read_from(&made)?.all(|entry| {
            entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))
        });
        if fstat(&made)?.st_uid != geteuid().as_raw() || !is_empty {
            return Err(Errno::PERM);
        }
        self.give_file(made)
    }
}
