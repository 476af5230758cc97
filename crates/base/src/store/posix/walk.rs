// SPDX-License-Identifier: Apache-2.0
//! Walk: lists the objects below a directory, while other processes add and remove some.
//!
//! An entry that vanishes after its directory was read is left out. Entries that are not objects
//! (symbolic links, special files, names that no object may have, the store's own folder of
//! unfinished objects) are skipped, and directories without objects are not listed.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, OFlags, Stat, statat};
use rustix::io::Errno;

use super::beneath;
use super::directories::DirectoryCache;
use super::failure::failed;
use crate::Result;
use crate::store::name::{self, UNFINISHED};
use crate::store::{ObjectInfo, modified_ns};

/// Returns all objects whose names start with `prefix`, sorted.
pub(super) fn objects(directories: &DirectoryCache, prefix: &str) -> Result<Vec<ObjectInfo>> {
    let mut found = Vec::new();
    let mut pending = vec![prefix.to_owned()];
    while let Some(prefix) = pending.pop() {
        each(directories, &prefix, |entry| {
            match entry {
                WalkedEntry::Object(name, stat) => found.push(ObjectInfo {
                    name,
                    bytes: u64::try_from(stat.st_size).unwrap_or(0),
                    modified_ns: modified_ns(&stat),
                }),
                WalkedEntry::Directory(name) => pending.push(name + "/"),
            }
            true
        })?;
    }
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Returns the names directly below `prefix`, sorted.
pub(super) fn names(directories: &DirectoryCache, prefix: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut candidates = Vec::new();
    each(directories, prefix, |entry| {
        match entry {
            WalkedEntry::Object(name, _) => found.push(name),
            WalkedEntry::Directory(name) => candidates.push(name),
        }
        true
    })?;
    for directory in candidates {
        if holds_objects(directories, &directory)? {
            found.push(directory);
        }
    }
    let mut found: Vec<String> =
        found.into_iter().map(|name| name[prefix.len()..].to_owned()).collect();
    found.sort_unstable();
    Ok(found)
}

enum WalkedEntry {
    Object(String, Stat),
    Directory(String),
}

fn holds_objects(directories: &DirectoryCache, directory: &str) -> Result<bool> {
    let mut found = false;
    let mut pending = vec![format!("{directory}/")];
    while let Some(prefix) = pending.pop() {
        each(directories, &prefix, |entry| {
            match entry {
                WalkedEntry::Object(..) => found = true,
                WalkedEntry::Directory(name) => pending.push(name + "/"),
            }
            !found
        })?;
        if found {
            break;
        }
    }
    Ok(found)
}

/// Calls `visit` with the entries of the directory that `prefix` names, until it returns false.
fn each(
    directories: &DirectoryCache,
    prefix: &str,
    mut visit: impl FnMut(WalkedEntry) -> bool,
) -> Result<()> {
    let failure = |errno| failed("list", &directories.path_of(prefix), errno);
    let path = prefix.strip_suffix('/').unwrap_or(prefix);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = match beneath::open(directories.root(), path, flags) {
        Ok(directory) => directory,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(failure(errno)),
    };
    for entry in Dir::read_from(&directory).map_err(failure)? {
        let entry = match entry {
            Ok(entry) => entry,
            // The directory itself was removed meanwhile.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failure(errno)),
        };
        if let Some(entry) = read_entry(&directory, prefix, &entry).map_err(failure)?
            && !visit(entry)
        {
            return Ok(());
        }
    }
    Ok(())
}

fn read_entry(
    directory: &OwnedFd,
    prefix: &str,
    entry: &DirEntry,
) -> Result<Option<WalkedEntry>, Errno> {
    let Ok(leaf) = entry.file_name().to_str() else { return Ok(None) };
    let name = format!("{prefix}{leaf}");
    if name::check(&name).is_err() || name == UNFINISHED {
        return Ok(None);
    }
    if entry.file_type() == FileType::Directory {
        return Ok(Some(WalkedEntry::Directory(name)));
    }
    if !matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
        return Ok(None);
    }
    let stat = match statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(WalkedEntry::Object(name, stat)),
        FileType::Directory => Some(WalkedEntry::Directory(name)),
        _ => None,
    })
}
