// SPDX-License-Identifier: Apache-2.0
//! Sharing: modes and owners of files and directories in a store that several users write.
//!
//! A store is shared if its directory has the set-group-id bit. Linux then gives everything in it
//! the directory's group, and this store gives it the directory's permission bits, regardless of
//! the writer's umask. In any other store the writer's umask decides, as for any file. What the
//! superuser makes belongs to the owner of the store's directory (`owner.rs`).
//! Invariant: a directory has its mode and owner before others can find it. A log gets them right
//! after it is created.
//! Source: Git's `core.sharedRepository`.

use std::fs::Permissions;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Uid};
use rustix::fs::{fchmod, fstat, fsync, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use super::owner::StoreOwner;
use crate::store::name::UNFINISHED;
use crate::{Error, Kind, Random, Result};

/// The users who may use a shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSharing {
    /// Members of the directory's group read and write.
    Group,
    /// Members of the group read and write, and everybody else reads.
    World,
}

impl StoreSharing {
    /// Returns the mode of the store's directory.
    const fn mode(self) -> u32 {
        match self {
            Self::Group => 0o2770,
            Self::World => 0o2775,
        }
    }

    /// Gives the store's directory at `path`, which is still empty, its mode.
    pub(in crate::store) fn give_to(self, path: &Path) -> Result<()> {
        let failure = |error| Error::io(error, format!("share the directory {}", path.display()));
        std::fs::set_permissions(path, Permissions::from_mode(self.mode())).map_err(failure)?;
        let mode = std::fs::metadata(path).map_err(failure)?.permissions().mode();
        if mode & 0o7777 != self.mode() {
            let what = "you are not in its group: change the group with `chgrp`";
            return Err(Error::new(Kind::Denied, format!("share {}: {what}", path.display())));
        }
        Ok(())
    }
}

/// Modes and owner of everything that this process makes in a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryAccess {
    /// Permission bits of directories and of files, if the store is shared.
    modes: Option<(Mode, Mode)>,
    /// The owner, if it is not this process's user.
    owner: Option<StoreOwner>,
}

impl EntryAccess {
    /// Returns the access to what is made in the store in the directory `root`.
    pub(super) fn of_store(root: BorrowedFd) -> Result<Self, Errno> {
        let mode = Mode::from_raw_mode(fstat(root)?.st_mode & 0o7777);
        let file = mode & Mode::from_raw_mode(0o666);
        let modes = mode.contains(Mode::SGID).then_some((mode, file));
        Ok(Self { modes, owner: StoreOwner::of_store(root)? })
    }

    /// The user to whom new files belong.
    pub(super) fn uid(self) -> Uid {
        self.owner.map_or_else(geteuid, StoreOwner::uid)
    }

    /// Gives a new file its mode and owner.
    pub(super) fn give_to_file(self, file: impl AsFd) -> Result<(), Errno> {
        self.owner.map_or(Ok(()), |owner| owner.give_file(&file))?;
        self.modes.map_or(Ok(()), |(_, mode)| retry_on_intr(|| fchmod(&file, mode)))
    }

    /// Makes the directory `leaf` in `above`, in the store at `root`. If it is to have another mode
    /// or owner than the system gives it, it is made aside and then moved, except for the directory
    /// of aside files.
    pub(super) fn make_directory(
        self,
        root: BorrowedFd,
        above: BorrowedFd,
        leaf: &str,
    ) -> Result<(), Errno> {
        let mode = if self.modes.is_some() { Mode::RWXU } else { Mode::from_raw_mode(0o777) };
        if self.modes.is_none() && self.owner.is_none() {
            return retry_on_intr(|| mkdirat(above, leaf, mode));
        }
        if leaf == UNFINISHED {
            mkdirat(above, leaf, mode)?;
            return self.give_to_directory(above, leaf);
        }
        if statat(above, leaf, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(Errno::EXIST);
        }
        let aside = format!("{UNFINISHED}/{:032x}", Random::from_system().u128());
        match mkdirat(root, &*aside, mode) {
            // The first aside entry: until now the store only had directories made.
            Err(Errno::NOENT) => match self.make_directory(root, root, UNFINISHED) {
                Ok(()) | Err(Errno::EXIST) => mkdirat(root, &*aside, mode),
                failed => failed,
            },
            made => made,
        }?;
        let moved = self.give_to_directory(root, &aside).and_then(|()| {
            // Replaces an empty directory that another process made meanwhile; a process that has
            // it open detects that and opens this one.
            retry_on_intr(|| renameat(root, &*aside, above, leaf))
        });
        moved.map_err(|errno| {
            // A directory that stays behind is swept later.
            let _ = unlinkat(root, &*aside, AtFlags::REMOVEDIR);
            if errno == Errno::NOTEMPTY { Errno::EXIST } else { errno }
        })
    }

    fn give_to_directory(self, above: BorrowedFd, name: &str) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = retry_on_intr(|| openat(above, name, flags, Mode::empty()))?;
        self.owner.map_or(Ok(()), |owner| owner.give_directory(&made))?;
        self.modes.map_or(Ok(()), |(mode, _)| retry_on_intr(|| fchmod(&made, mode)))?;
        retry_on_intr(|| fsync(&made))
    }
}
