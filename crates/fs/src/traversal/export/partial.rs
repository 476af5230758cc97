// SPDX-License-Identifier: Apache-2.0
//! Partial: the name beside its destination under which an export is written until it is complete.
//!
//! The name identifies its destination, and has a digest of the snapshot, the path and the form of
//! indexed directories. A resumed export therefore finds only files of the same export, and two of
//! those are equal if their sizes and times are. One rename makes a complete export the
//! destination. A replaced destination gets a third name before it is removed, so a process that is
//! killed at any moment leaves a whole destination, and self-explanatory names:
//! `NAME.esker-partial-DIGEST` is to be resumed or removed, `NAME.esker-replaced-DIGEST` to be
//! removed. All three names are in one directory, which is reached by its handle.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::mounts::MountedFileSystem;
use esker_base::{Error, Kind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::destination::{ExportDir, type_of};
use super::earlier;

/// Maximum bytes of a file's name.
const NAME_BYTES_MAX: usize = 255;
const PARTIAL: &str = "partial";
const REPLACED: &str = "replaced";

/// The kind of file that currently exists at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DestinationKind {
    /// Nothing.
    Nothing,
    /// An empty directory, which a directory replaces.
    EmptyDirectory,
    /// A file of a kind that the export can replace: a directory if the export is one, otherwise
    /// anything else.
    Replaceable,
}

/// The place where an export is written, and its final place.
pub(super) struct PartialExport {
    /// The directory of all names.
    pub(super) top: ExportDir,
    target: PathBuf,
    name: Vec<u8>,
    partial_name: Vec<u8>,
    replaced_name: Vec<u8>,
    present: DestinationKind,
    is_directory: bool,
}

/// Returns the path at which an export to `target` is written until it is complete.
pub(super) fn path(target: &Path, digest: u32) -> PathBuf {
    let name = target.file_name().unwrap_or_default();
    target.with_file_name(OsStr::from_bytes(&side_name(name.as_bytes(), PARTIAL, digest)))
}

/// Returns `name`, truncated if necessary, with a suffix that identifies its purpose. If it is
/// truncated, the digest also covers the whole name.
fn side_name(name: &[u8], what: &str, digest: u32) -> Vec<u8> {
    let suffix = |digest: u32| format!(".esker-{what}-{digest:08x}");
    let kept_max = NAME_BYTES_MAX - suffix(digest).len();
    match name.get(..kept_max).filter(|kept| kept.len() < name.len()) {
        None => [name, suffix(digest).as_bytes()].concat(),
        Some(kept) => {
            let digest = xxh3_64_with_seed(name, digest.into()) as u32;
            [kept, suffix(digest).as_bytes()].concat()
        }
    }
}

impl PartialExport {
    /// Prepares the names of an export to `target`, whose parent exists.
    ///
    /// # Errors
    /// `Exists`, `NotEmpty` if the target is not free and `overwrites` is not set, or an earlier
    /// partial export exists and `resumes` is not set; `Exists` if a directory would replace
    /// something else, or vice versa; `Invalid` for a target that has no name or is a mount point.
    pub(super) fn new(
        target: &Path,
        digest: u32,
        is_directory: bool,
        overwrites: bool,
        resumes: bool,
    ) -> Result<Self> {
        let Some(name) = target.file_name() else {
            let what = format!(
                "{}: an export is written beside its destination and then renamed; give a new name \
                 in this directory, as in ./NAME",
                target.display()
            );
            return Err(Error::new(Kind::Invalid, what));
        };
        let name = name.as_bytes();
        let parent = target.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|error| Error::io(error.into(), format!("open {}", parent.display())))?;
        let mut partial = Self {
            top: Arc::new(top),
            target: target.to_owned(),
            name: name.to_vec(),
            partial_name: side_name(name, PARTIAL, digest),
            replaced_name: side_name(name, REPLACED, digest),
            present: DestinationKind::Nothing,
            is_directory,
        };
        partial.present = partial.inspect_target(overwrites)?;
        if !resumes && partial.type_at(&partial.partial_name)?.is_some() {
            let path = path(target, digest);
            let shown = path.display();
            let what = format!(
                "{shown} is left from an interrupted export: continue it with --resume, or remove it with \
                 `rm -r {shown}`"
            );
            return Err(Error::new(Kind::Exists, what));
        }
        Ok(partial)
    }

    /// The name under which the export is written.
    pub(super) fn partial_name(&self) -> &[u8] {
        &self.partial_name
    }

    fn type_at(&self, name: &[u8]) -> Result<Option<FileType>> {
        match rustix::fs::statat(&self.top, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io(error.into(), self.target.display().to_string())),
            Ok(stat) => Ok(Some(type_of(&stat))),
        }
    }

    fn inspect_target(&self, overwrites: bool) -> Result<DestinationKind> {
        let shown = self.target.display();
        let Some(kind) = self.type_at(&self.name)? else { return Ok(DestinationKind::Nothing) };
        if (kind == FileType::Directory) != self.is_directory {
            let what = match self.is_directory {
                true => "exists and is not a directory, so a directory cannot replace it",
                false => "is a directory, which only a directory can replace",
            };
            return Err(Error::new(Kind::Exists, format!("{shown} {what}; give a new name")));
        }
        if kind == FileType::Directory {
            self.check_is_no_mount_point()?;
            if self.is_empty()? {
                return Ok(DestinationKind::EmptyDirectory);
            }
        }
        match (overwrites, self.is_directory) {
            (true, _) => Ok(DestinationKind::Replaceable),
            (false, true) => {
                let what = format!(
                    "{shown} is not empty; export to a new name, or replace it with --overwrite"
                );
                Err(Error::new(Kind::NotEmpty, what))
            }
            (false, false) => {
                let what =
                    format!("{shown} exists; give a new name, or replace it with --overwrite");
                Err(Error::new(Kind::Exists, what))
            }
        }
    }

    fn check_is_no_mount_point(&self) -> Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statx(&self.top, &*self.name, flags, StatxFlags::TYPE);
        // Before Linux 5.8 this is unknown; the rename then fails.
        let is_mount = found.is_ok_and(|found| {
            let attributes = StatxAttributes::MOUNT_ROOT;
            found.stx_attributes_mask.contains(attributes)
                && found.stx_attributes.contains(attributes)
        });
        if !is_mount {
            let below = check_no_mounts(&self.target);
            return below.map_err(|error| Error::io(error, self.target.display().to_string()));
        }
        let shown = self.target.display();
        let what = format!(
            "{shown} is a mount point, which cannot be replaced; export to a new name in it"
        );
        Err(Error::new(Kind::Invalid, what))
    }

    fn is_empty(&self) -> Result<bool> {
        let shown = self.target.display();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(&self.top, &*self.name, flags, Mode::empty())
            .and_then(|handle| has_entries(&handle));
        listed
            .map(|has_entries| !has_entries)
            .map_err(|error| Error::io(error.into(), format!("list {shown}")))
    }

    /// Makes the file or directory of `written` the destination. A replaced destination is removed;
    /// if that fails it stays under its third name, and the error is returned.
    ///
    /// # Errors
    /// `Conflict` if another file has the partial name; `Exists` or `NotEmpty` if the destination
    /// was made meanwhile; errors of the file system.
    pub(super) fn install(&self, written: &OwnedFd) -> Result<Result<()>> {
        if !earlier::has_name(written, &self.top, &self.partial_name)? {
            let partial = self.target.with_file_name(OsStr::from_bytes(&self.partial_name));
            let what = format!(
                "{} is not what this export wrote: another user renamed, replaced or removed it; {} is \
                 unchanged; export again, to a directory that only you can write to",
                partial.display(),
                self.target.display()
            );
            return Err(Error::new(Kind::Conflict, what));
        }
        let (from, to) = (&*self.partial_name, &*self.name);
        if !self.is_directory && self.present == DestinationKind::Nothing {
            return self.move_to_free_name().map(Ok);
        }
        if self.is_directory && self.present == DestinationKind::Replaceable {
            self.replace_directory()?;
            return Ok(self.remove_replaced());
        }
        rustix::fs::renameat(&self.top, from, &self.top, to)
            .map_err(|error| self.rename_failure(error))?;
        Ok(Ok(()))
    }

    fn rename_failure(&self, error: Errno) -> Error {
        let shown = self.target.display();
        Error::io(error.into(), format!("rename the complete export to {shown}"))
    }

    /// Renames without replacing a file made at the destination meanwhile.
    fn move_to_free_name(&self) -> Result<()> {
        let (top, from, to) = (&self.top, &*self.partial_name, &*self.name);
        match rustix::fs::renameat_with(top, from, top, to, RenameFlags::NOREPLACE) {
            // Some file systems cannot do that in one call.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(top, from, top, to, AtFlags::empty())
                    .and_then(|()| rustix::fs::unlinkat(top, from, AtFlags::empty()))
            }
            renamed => renamed,
        }
        .map_err(|error| self.rename_failure(error))
    }

    /// Exchanges the directories, in one step if the file system supports it.
    fn replace_directory(&self) -> Result<()> {
        // Left over from an earlier export that was killed here.
        self.remove_replaced()?;
        let (top, to) = (&self.top, &*self.name);
        let (new, old) = (&*self.partial_name, &*self.replaced_name);
        let rename = |from: &[u8], to: &[u8]| rustix::fs::renameat(top, from, top, to);
        // A partial name never has the replaced directory: a resumed export would add to it.
        rename(new, old).map_err(|error| self.rename_failure(error))?;
        let exchanged = rustix::fs::renameat_with(top, old, top, to, RenameFlags::EXCHANGE);
        let Err(error) = exchanged else { return Ok(()) };
        rename(old, new).map_err(|error| self.rename_failure(error))?;
        match error {
            Errno::INVAL | Errno::NOSYS => rename(to, old).and_then(|()| {
                rename(new, to).inspect_err(|_| {
                    let _ = rename(old, to);
                })
            }),
            Errno::NOENT => rename(new, to),
            error => Err(error),
        }
        .map_err(|error| self.rename_failure(error))
    }

    fn remove_replaced(&self) -> Result<()> {
        let name = OsStr::from_bytes(&self.replaced_name);
        // Reaches the directory by its handle; below it the standard library follows no symbolic
        // link.
        let shown = self.target.with_file_name(name);
        let failed = |error: std::io::Error| {
            Error::io(error, format!("remove {}, which was replaced", shown.display()))
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.top.as_raw_fd())).join(name);
        check_no_mounts(&path).map_err(&failed)?;
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }
}

/// Fails with `BUSY` if something is mounted below `directory`: its files are not the export's to
/// remove.
fn check_no_mounts(directory: &Path) -> std::io::Result<()> {
    let directory = match directory.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let points = MountedFileSystem::all()?.into_iter().map(|mount| mount.mountpoint);
    for point in points {
        if point != directory && point.starts_with(&directory) {
            let what = format!("{} is mounted below it: unmount that first", point.display());
            return Err(std::io::Error::new(std::io::ErrorKind::ResourceBusy, what));
        }
    }
    Ok(())
}

fn has_entries(handle: &OwnedFd) -> rustix::io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(handle)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_names_fit_into_a_name() {
        assert_eq!(side_name(b"out", PARTIAL, 0xabc), b"out.esker-partial-00000abc");
        assert_eq!(side_name(&[b'n'; 255], REPLACED, 1).len(), NAME_BYTES_MAX);
    }

    /// Symptom: exports of one snapshot to two long names shared a partial name: the second one was
    /// refused, or resumed the first.
    /// Cause: the names differed only in bytes that were cut off.
    /// Fix: the digest covers what is cut off.
    #[test]
    fn long_names_that_differ_at_their_ends_have_different_side_names() {
        let longest = NAME_BYTES_MAX - ".esker-partial-00000001".len();
        for bytes in longest..=NAME_BYTES_MAX {
            let names = [b'x', b'y'].map(|last| [&vec![b'n'; bytes - 1][..], &[last]].concat());
            let [first, second] = names.map(|name| side_name(&name, PARTIAL, 1));
            assert_ne!(first, second, "{bytes} bytes");
            assert_eq!(first.len(), NAME_BYTES_MAX);
        }
    }
}
