// SPDX-License-Identifier: Apache-2.0
//! Mount trial: mounts an empty file system for a moment, to find out whether this user may mount.
//!
//! Only a mount shows that: containers, security modules, limits of mounts and the helper's own
//! configuration all have a say.

use fuser::{Config, Filesystem, MountOption};

use esker_base::{Error, Result};
use esker_fuse_ring::{RingOptions, RingRefusal, Rings};

use crate::driver::REQUEST_BYTES_MAX;
use crate::mount::failed;

/// Source of the mount, as `mount` shows it; that of other mounts is [`crate::SOURCE`].
const TRIAL_SOURCE: &str = "esker-trial";

/// A file system that answers no request.
struct EmptyFileSystem;

impl Filesystem for EmptyFileSystem {}

/// Mounts an empty file system at a temporary directory, and unmounts it.
///
/// # Errors
/// As [`crate::Mount::new`]; those of the temporary directory.
pub fn try_mount() -> Result<()> {
    let directory = tempfile::Builder::new().prefix("esker-trial-").tempdir();
    let directory = directory.map_err(|error| Error::io(error, "make a temporary directory"))?;
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName(TRIAL_SOURCE.into()), MountOption::RO];
    let session = fuser::Session::new(EmptyFileSystem, directory.path(), &config)
        .map_err(|error| failed("mount at", directory.path(), &error))?;
    // Unmounts.
    drop(session);
    let path = directory.path().to_owned();
    directory.close().map_err(|error| {
        Error::io(error, format!("remove {}, where a trial was mounted", path.display()))
    })
}

/// Makes the rings of a mount, and ends them.
///
/// # Errors
/// The reason for which there are none, and what to do about it.
pub fn try_rings() -> std::result::Result<(), String> {
    let options = RingOptions { payload_bytes: REQUEST_BYTES_MAX as usize, helpers: 1 };
    Rings::prepare(options).map(drop).map_err(|RingRefusal(reason)| reason)
}
