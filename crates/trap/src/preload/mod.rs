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

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esker_base::{Error, Kind, Result};
use esker_preload::PreloadLibrary;

use self::settings::{MARK, Settings};

/// The library, with blank settings; empty on other machines.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libesker_preload.so"));

/// The copy of the library for the programs of one supervisor.
#[derive(Debug)]
pub(crate) struct SupervisorLibrary {
    pub(crate) library: PreloadLibrary,
    /// Sixth argument of system calls that the kernel carries out without the supervisor.
    pub(crate) pass: u64,
}

impl SupervisorLibrary {
    /// Writes a library for programs that see a namespace at `place`, into a new directory of one
    /// of `parents`: the first from which programs may load it. All paths are absolute and without
    /// symbolic links.
    ///
    /// # Errors
    /// `Unsupported` if programs may load it from none of them.
    pub(crate) fn write(place: &Path, parents: &[&Path]) -> Result<Self> {
        let pass = draw_pass().map_err(|error| Error::io(error, "draw a random number"))?;
        let place = place.as_os_str().as_bytes();
        let settings = Settings { pass_complement: !pass, place }.encode();
        let settings = settings.ok_or_else(|| unsupported("the path is too long"))?;
        let library = (LIBRARY, "libesker_preload.so");
        let written = PreloadLibrary::write(library, (&MARK, &settings), parents);
        Ok(Self { library: written.map_err(unsupported)?, pass })
    }
}

fn unsupported(why: impl std::fmt::Display) -> Error {
    let what = format!(
        "programs cannot load the library that makes calls outside of the namespace fast ({why}); they also \
         work without --preload"
    );
    Error::new(Kind::Unsupported, what)
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
