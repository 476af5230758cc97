// SPDX-License-Identifier: Apache-2.0
//! Preload: a library that programs load before their own (`LD_PRELOAD`), so that opens and stats of
//! files outside of the namespace do not wait for the supervisor.
//!
//! The supervisor answers each trapped call, so a program without the library, or a call that the
//! library does not know, is only slower. `main.rs` and what it names are compiled to the
//! library by `build.rs`; this module contains it, and writes a copy for each supervisor.

#[cfg(test)]
#[expect(dead_code, reason = "programs call them, not tests")]
mod hooks;
#[cfg(test)]
mod path_text;
#[cfg(test)]
mod raw_call;
mod settings;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result};
use tempfile::TempDir;

use self::settings::{MARK, Settings};

/// The library, with blank settings; empty on other machines.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libesker_preload.so"));

/// The copy of the library for the programs of one supervisor.
#[derive(Debug)]
pub(crate) struct PreloadLibrary {
    path: PathBuf,
    /// Sixth argument of system calls that the kernel carries out without the supervisor.
    pub(crate) pass: u64,
    _directory: TempDir,
}

impl PreloadLibrary {
    /// Writes a library for programs that see a namespace at `place`, into a new directory of one
    /// of `parents`: the first from which programs may load it. All paths are absolute and without
    /// symbolic links.
    ///
    /// # Errors
    /// `Unsupported` if programs may load it from none of them.
    pub(crate) fn write(place: &Path, parents: &[&Path]) -> Result<Self> {
        let pass = draw_pass().map_err(|error| Error::io(error, "draw a random number"))?;
        let place = place.as_os_str().as_bytes();
        let bytes = library(Settings { pass_complement: !pass, place });
        let bytes = bytes.ok_or_else(|| unsupported("not made for this machine, or this path"))?;
        let mut why = "no directory was tried".to_owned();
        for parent in parents {
            match Self::write_to(parent, &bytes, pass) {
                Ok(library) => return Ok(library),
                Err(error) => why = format!("{}: {error}", parent.display()),
            }
        }
        Err(unsupported(why))
    }

    fn write_to(parent: &Path, bytes: &[u8], pass: u64) -> io::Result<Self> {
        // Programs of other users load it, too.
        let readable = std::fs::Permissions::from_mode(0o755);
        let directory = tempfile::Builder::new().prefix("esker-preload-").tempdir_in(parent)?;
        std::fs::set_permissions(directory.path(), readable.clone())?;
        let path = directory.path().join("libesker_preload.so");
        if path.as_os_str().as_bytes().iter().any(|byte| b" \t\n:".contains(byte)) {
            let what = "its path has a space or a colon, which separate libraries";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut file = File::create_new(&path)?;
        file.write_all(bytes)?;
        file.set_permissions(readable)?;
        check_executable(&File::open(&path)?, bytes.len())?;
        Ok(Self { path, pass, _directory: directory })
    }

    /// The path of the library, for `LD_PRELOAD`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn unsupported(why: impl std::fmt::Display) -> Error {
    let what = format!(
        "programs cannot load the library that makes calls outside of the namespace fast ({why}); they also \
         work without --preload"
    );
    Error::new(Kind::Unsupported, what)
}

/// The library with `settings`, if it has room for them.
fn library(settings: Settings) -> Option<Vec<u8>> {
    let at = LIBRARY.windows(MARK.len()).position(|bytes| bytes == MARK)?;
    let mut library = LIBRARY.to_vec();
    let encoded = settings.encode()?;
    library.get_mut(at..at + encoded.len())?.copy_from_slice(&encoded);
    Some(library)
}

/// A number that no program passes by chance.
fn draw_pass() -> io::Result<u64> {
    let mut bytes = [0; 8];
    loop {
        let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let pass = u64::from_le_bytes(bytes);
        // Sixth arguments that calls leave in the register are addresses or small.
        if drawn == bytes.len() && pass >> 48 != 0 && pass >> 48 != 0xffff {
            return Ok(pass);
        }
    }
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
