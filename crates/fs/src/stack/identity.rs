// SPDX-License-Identifier: Apache-2.0
//! Identity: the acting user, and what mode bits allow them to do.

use esker_base::{Error, Kind, Result};

use crate::inode::Inode;

/// Permission to read.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXECUTE: u32 = 1;

/// A user and their groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Effective user; 0 may do everything.
    pub uid: u32,
    /// Effective group, which new files get.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// The superuser.
    #[must_use]
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new() }
    }

    /// The user running this process.
    #[must_use]
    pub fn of_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }

    /// True for the superuser.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// True if `gid` is one of the groups.
    #[must_use]
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// True if mode bits grant all of `wanted` (a sum of [`READ`], [`WRITE`], [`EXECUTE`]).
    #[inline]
    #[must_use]
    pub fn may(&self, wanted: u32, mode: u32, uid: u32, gid: u32, is_directory: bool) -> bool {
        if self.is_root() {
            // The superuser may execute only files that have an execute bit.
            return wanted & EXECUTE == 0 || is_directory || mode & 0o111 != 0;
        }
        let granted = if self.uid == uid {
            mode >> 6
        } else if self.is_member(gid) {
            mode >> 3
        } else {
            mode
        };
        granted & wanted == wanted
    }

    /// Fails unless `inode` grants `wanted`; `what` names it in the error.
    ///
    /// # Errors
    /// `Denied`.
    pub fn check(&self, wanted: u32, inode: &Inode, what: &[u8]) -> Result<()> {
        if self.may(wanted, inode.mode, inode.uid, inode.gid, inode.is_directory()) {
            return Ok(());
        }
        Err(denied(what))
    }

    /// Fails unless this is the owner of `inode` or the superuser.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_owner(&self, inode: &Inode, what: &[u8]) -> Result<()> {
        if self.is_root() || self.uid == inode.uid { Ok(()) } else { Err(not_permitted(what)) }
    }
}

/// Returns the error for an operation reserved to the owner or the superuser.
pub(crate) fn not_permitted(what: &[u8]) -> Error {
    let what = String::from_utf8_lossy(what);
    Error::new(Kind::NotPermitted, format!("{what}: operation not permitted"))
}

/// Returns the error for a missing permission.
pub(crate) fn denied(what: &[u8]) -> Error {
    Error::new(Kind::Denied, format!("{}: permission denied", String::from_utf8_lossy(what)))
}
