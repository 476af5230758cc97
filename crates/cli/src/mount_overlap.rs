// SPDX-License-Identifier: Apache-2.0
//! Mount overlap: keeps a store and a mount point, or a store and an export, from containing each
//! other.
//!
//! An export that replaces its own store, or a directory that contains the store, would delete it.
//! A mount over its own store hides the store from the mount and from every other command. A store
//! inside a mount needs the mount to read and write itself, and disappears when the mount ends.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use esker_fuse::mountpoints;

/// The directory of the store `url`, existing or not; `None` for other kinds of stores.
pub fn directory_of(url: &str) -> Option<&Path> {
    let path = url.strip_prefix("file://").unwrap_or(url);
    let is_other = path.contains("://") || path.starts_with("memory:");
    (!is_other).then_some(Path::new(path))
}

/// Fails if `mountpoint`, existing or not, is inside the store at `url`, or the store inside it.
pub fn check_mountpoint(url: &str, mountpoint: &Path) -> Result<()> {
    let store = directory_of(url).and_then(|path| path.canonicalize().ok());
    let (Some(store), Some(existing)) = (store, nearest_existing(mountpoint)) else {
        return Ok(());
    };
    let what = if mountpoint.canonicalize().is_ok_and(|at| is_within(&store, &at)) {
        "contains its own store, which would be hidden: name another directory"
    } else if is_within(&existing, &store) {
        "is inside the store: name another directory"
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Invalid, format!("{} {what}", mountpoint.display())))
}

/// Fails if an export to `target` would write into the store at `url`, or replace it.
pub fn check_export_target(url: &str, target: &Path) -> Result<()> {
    let store = directory_of(url).and_then(|path| path.canonicalize().ok());
    let (Some(store), Ok(absolute)) = (store, std::path::absolute(target)) else { return Ok(()) };
    let replaced = absolute.canonicalize().is_ok_and(|target| is_within(&store, &target));
    let is_inside = nearest_existing(target).is_some_and(|existing| is_within(&existing, &store));
    if !replaced && !is_inside {
        return Ok(());
    }
    let what = if replaced {
        "is the store itself or contains it, and would be replaced: export to another directory"
    } else {
        "is inside the store: export to another directory"
    };
    Err(Error::new(Kind::Invalid, format!("{} {what}", target.display())))
}

/// Fails if a store at `url` would be inside an Esker mount.
pub fn check_new_store(url: &str) -> Result<()> {
    let Some(path) = directory_of(url) else { return Ok(()) };
    let Some(existing) = nearest_existing(path) else { return Ok(()) };
    let Ok(device) = existing.metadata().map(|metadata| metadata.dev()) else { return Ok(()) };
    // If the kernel's list is unreadable there is nothing to check.
    for mountpoint in mountpoints().unwrap_or_default() {
        let is_in_it = existing.starts_with(&mountpoint)
            && mountpoint.metadata().is_ok_and(|metadata| metadata.dev() == device);
        if is_in_it {
            let what = format!(
                "{} is inside the Esker mount at {}: create the store in another file system",
                path.display(),
                mountpoint.display()
            );
            return Err(Error::new(Kind::Invalid, what));
        }
    }
    Ok(())
}

/// True if `path` is `directory` or in it, also by another name of `directory`, as by a bind mount.
fn is_within(path: &Path, directory: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|known| (known.dev(), known.ino())).ok();
    let of_directory = identity(directory);
    path.starts_with(directory)
        || of_directory.is_some() && path.ancestors().any(|above| identity(above) == of_directory)
}

/// The longest existing prefix of `path`, without symbolic links.
fn nearest_existing(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|ancestor| ancestor.canonicalize().ok())
}
