// SPDX-License-Identifier: Apache-2.0
//! Output file: a file that a command writes, which appears whole or not at all.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use esker_base::{Error, Result};
use tempfile::{Builder, NamedTempFile};

use crate::output::notice;
use crate::usage;

/// Symbolic links that are followed, as in Linux.
const LINKS_MAX: usize = 40;

/// A file that will be written: a new one beside its path, which replaces what is there once it is whole, or the
/// pipe or the device at the path.
pub struct OutputFile {
    path: PathBuf,
    kind: OutputKind,
}

enum OutputKind {
    /// Nothing is at the path.
    New,
    /// A file with this mode that has no other name.
    Replaced(Permissions),
    /// A file with other names, which all get the content, or one that a process has open.
    Overwritten(File),
    /// A pipe or a device.
    Stream(File),
}

impl OutputFile {
    /// Prepares to write at `path`; nothing changes there.
    ///
    /// # Errors
    /// As the file system answers, if the file cannot be written.
    pub fn prepare(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(error, format!("make {}", path.display()));
        let resolved = resolve(path).map_err(failed)?;
        let is_path = resolved.is_some();
        let path = resolved.unwrap_or_else(|| path.to_owned());
        let kind = match File::options().write(true).open(&path) {
            Ok(file) => {
                let found = file.metadata().map_err(failed)?;
                match (found.is_file(), found.nlink()) {
                    (true, 1) if is_path => OutputKind::Replaced(found.permissions()),
                    (true, _) => OutputKind::Overwritten(file),
                    (false, _) => OutputKind::Stream(file),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It is removed at once: a program that runs meanwhile must not see it.
                drop(beside(&path).map_err(failed)?);
                OutputKind::New
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { path, kind })
    }

    /// True for a file that can be read again.
    pub fn is_file(&self) -> bool {
        !matches!(self.kind, OutputKind::Stream(_))
    }

    /// The path, without symbolic links but those of /proc to open files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file by `write`. Without success nothing changes at the path, unless what is there can only be
    /// overwritten, which may then have a part. After a power failure a new file at the path is whole, too.
    ///
    /// # Errors
    /// Those of `write`; as the file system answers. A file that is whole but cannot get its name stays where the
    /// error says.
    pub fn write<T>(
        self,
        write: impl FnOnce(BufWriter<File>) -> Result<(BufWriter<File>, T)>,
    ) -> Result<T> {
        let Self { path, kind } = self;
        let failed = |error| Error::io(error, format!("write {}", path.display()));
        if let OutputKind::Stream(file) = kind {
            return fill(file, write, failed);
        }
        // The directory may not be the user's, may be gone, or may be one of /proc.
        let unfinished = beside(&path).or_else(|_| Builder::new().prefix("esker-").tempfile());
        let mut unfinished = unfinished.map_err(failed)?;
        let done = fill(unfinished.as_file().try_clone().map_err(failed)?, write, failed)?;
        unfinished.as_file().sync_all().map_err(failed)?;
        let named = match kind {
            OutputKind::Replaced(permissions) => {
                unfinished.as_file().set_permissions(permissions).map_err(failed)?;
                rename_or_copy(unfinished, &path)
            }
            OutputKind::Overwritten(mut file) => {
                copy(&mut unfinished, &mut file).map_err(|error| (error, unfinished))
            }
            _ => rename_or_copy(unfinished, &path),
        };
        let Err((error, unfinished)) = named else { return Ok(done) };
        if let Ok((_, kept)) = unfinished.keep() {
            notice(format!(
                "{} is whole, but has another name: {}",
                path.display(),
                kept.display()
            ));
        }
        Err(failed(error))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_bytes(self, bytes: &[u8]) -> Result<()> {
        let shown = format!("write {}", self.path.display());
        self.write(|mut output| {
            output.write_all(bytes).map_err(|error| Error::io(error, shown))?;
            Ok((output, ()))
        })
    }
}

/// Writes `bytes` as the file at `path`.
///
/// # Errors
/// As [`OutputFile::prepare`] and [`OutputFile::write`].
pub fn write_output(path: &Path, bytes: &[u8]) -> Result<()> {
    OutputFile::prepare(path)?.write_bytes(bytes)
}

/// Ends the command if `output` would replace one of the files that it reads.
pub fn check_is_not_read<'a>(output: &Path, inputs: impl IntoIterator<Item = &'a Path>) {
    let identity = |path: &Path| {
        let found = path.metadata().ok().filter(|found| found.is_file())?;
        Some((found.dev(), found.ino()))
    };
    let written = identity(output);
    // The files may not be there yet.
    let is_it = |input: &&Path| *input == output || written.is_some() && identity(input) == written;
    if let Some(input) = inputs.into_iter().find(is_it) {
        let (output, input) = (output.display(), input.display());
        usage::exit(format!("{output} would replace {input}, which is read: name another file"));
    }
}

/// The directory of `path`.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent.unwrap_or(Path::new("/")),
    }
}

/// A new file beside `path`.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let mode = Permissions::from_mode(0o666);
    Builder::new().prefix(".esker-").permissions(mode).tempfile_in(directory_of(path))
}

fn fill<T>(
    file: File,
    write: impl FnOnce(BufWriter<File>) -> Result<(BufWriter<File>, T)>,
    failed: impl Fn(io::Error) -> Error,
) -> Result<T> {
    let (mut written, done) = write(BufWriter::with_capacity(1 << 20, file))?;
    written.flush().map_err(failed)?;
    Ok(done)
}

/// Gives a whole file its name, or copies it there: in a directory with the sticky bit, a file of another user
/// can be written, but not replaced.
fn rename_or_copy(
    unfinished: NamedTempFile,
    path: &Path,
) -> std::result::Result<(), (io::Error, NamedTempFile)> {
    let Err(failed) = unfinished.persist(path) else { return Ok(()) };
    let mut unfinished = failed.file;
    let file = File::options().write(true).open(path);
    let copied = file.and_then(|mut file| copy(&mut unfinished, &mut file));
    copied.map_err(|_| (failed.error, unfinished))
}

fn copy(from: &mut NamedTempFile, to: &mut File) -> io::Result<()> {
    let mut from = from.reopen()?;
    to.set_len(0)?;
    io::copy(&mut from, to).map(drop)
}

/// The path of what will be written at `path`, where symbolic links may lead to nothing yet; `None` for a link of
/// /proc to what a process has open, which may have no path.
fn resolve(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let target = std::fs::read_link(&path);
        let Some(name) = path.file_name() else { return Ok(Some(path)) };
        let directory = directory_of(&path).canonicalize()?;
        let Ok(target) = target else { return Ok(Some(directory.join(name))) };
        if directory.starts_with("/proc") && directory.ends_with("fd") {
            return Ok(None);
        }
        path = directory.join(target);
    }
    Err(io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()))
}
