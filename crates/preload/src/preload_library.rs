// SPDX-License-Identifier: Apache-2.0
//! Preload library: a copy of a library with the settings of one run, in a directory of its own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use tempfile::TempDir;

/// The variable by which programs load libraries.
const VARIABLE: &str = "LD_PRELOAD";

/// A library that programs preload; dropping it removes the file.
#[derive(Debug)]
pub struct PreloadLibrary {
    path: PathBuf,
    _directory: TempDir,
}

impl PreloadLibrary {
    /// Writes `library` as the file `name` into a new directory of one of `parents`, the first from which
    /// programs may load it. All paths are absolute and without symbolic links. `settings` replace as
    /// many bytes of the library, from the first place on where it has `mark`, with which they begin.
    ///
    /// # Errors
    /// `Unsupported` if programs may load it from none of them, or the library is not made for this machine.
    pub fn write(
        (library, name): (&[u8], &str),
        (mark, settings): (&[u8], &[u8]),
        parents: &[&Path],
    ) -> Result<Self> {
        let bytes = with_settings(library, mark, settings)
            .ok_or_else(|| Error::new(Kind::Unsupported, "not made for this machine"))?;
        let mut why = "no directory was tried".to_owned();
        for parent in parents {
            match Self::write_to(parent, &bytes, name) {
                Ok(library) => return Ok(library),
                Err(error) => why = format!("{}: {error}", parent.display()),
            }
        }
        Err(Error::new(Kind::Unsupported, why))
    }

    fn write_to(parent: &Path, bytes: &[u8], name: &str) -> io::Result<Self> {
        // Programs of other users load it, too.
        let readable = std::fs::Permissions::from_mode(0o755);
        let directory = tempfile::Builder::new().prefix("esker-preload-").tempdir_in(parent)?;
        std::fs::set_permissions(directory.path(), readable.clone())?;
        let path = directory.path().join(name);
        if path.as_os_str().as_bytes().iter().any(|byte| b" \t\n:".contains(byte)) {
            let what = "its path has a space or a colon, which separate libraries";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut file = File::create_new(&path)?;
        file.write_all(bytes)?;
        file.set_permissions(readable)?;
        check_executable(&File::open(&path)?, bytes.len())?;
        Ok(Self { path, _directory: directory })
    }

    /// The path of the library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The variable of the environment by which programs load `library`, after those that the user lets them load.
#[must_use]
pub fn preload_variable(library: &Path) -> (OsString, OsString) {
    let mut libraries = std::env::var_os(VARIABLE).unwrap_or_default();
    if !libraries.is_empty() {
        libraries.push(":");
    }
    libraries.push(library);
    (VARIABLE.into(), libraries)
}

/// The library with `settings` in the place of its own, if it has room for them.
fn with_settings(library: &[u8], mark: &[u8], settings: &[u8]) -> Option<Vec<u8>> {
    let at = library.windows(mark.len()).position(|bytes| bytes == mark)?;
    let mut library = library.to_vec();
    library.get_mut(at..at + settings.len())?.copy_from_slice(settings);
    Some(library)
}

/// Fails if the file system of `file` lets no code of it run.
fn check_executable(file: &File, bytes: usize) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the kernel chooses the address of the map, which is removed at once.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nothing refers to the map.
    unsafe { libc::munmap(map, bytes) };
    Ok(())
}
