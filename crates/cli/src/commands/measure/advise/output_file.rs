// SPDX-License-Identifier: Apache-2.0
//! Output file: a file that a command writes, which appears whole or not at all.

use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Result};
use tempfile::{Builder, NamedTempFile};

/// A file that is being written: a new one beside its path, which replaces what is there when it is finished, or
/// the pipe or the device at the path.
pub(super) struct OutputFile {
    path: PathBuf,
    file: File,
    unfinished: Option<NamedTempFile>,
}

impl OutputFile {
    /// Begins the file at `path`; nothing changes there.
    ///
    /// # Errors
    /// As the file system answers, for everything that would keep the file from being finished.
    pub fn begin(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(error, format!("make {}", path.display()));
        let existing = match File::options().write(true).open(path) {
            Ok(existing) => Some(existing),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if let Some(existing) = existing
            && !existing.metadata().map_err(failed)?.is_file()
        {
            return Ok(Self { path: path.to_owned(), file: existing, unfinished: None });
        }
        // What a symbolic link leads to is replaced, and not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let unfinished = Builder::new()
            .prefix(".esker-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory.unwrap_or(Path::new(".")))
            .map_err(failed)?;
        let file = unfinished.as_file().try_clone().map_err(failed)?;
        Ok(Self { path, file, unfinished: Some(unfinished) })
    }

    /// Writes the file by `write`, and finishes it; without success nothing is left of it.
    pub fn write<T>(
        self,
        write: impl FnOnce(BufWriter<File>) -> Result<(BufWriter<File>, T)>,
    ) -> Result<T> {
        let Self { path, file, unfinished } = self;
        let (mut written, done) = write(BufWriter::with_capacity(1 << 20, file))?;
        let failed = |error| Error::io(error, format!("write {}", path.display()));
        written.flush().map_err(failed)?;
        if let Some(unfinished) = unfinished {
            unfinished.persist(&path).map_err(|error| failed(error.error))?;
        }
        Ok(done)
    }
}
