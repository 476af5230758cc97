// SPDX-License-Identifier: Apache-2.0
//! FUSE's helper, which is set-user-id of root, and unmounts for the owner of a mount.

use std::io;
use std::path::Path;
use std::process::{Command, Output};

/// Names of FUSE's helper, that of the newer version first.
pub const HELPER_NAMES: [&str; 2] = ["fusermount3", "fusermount"];

/// Unmounts `mountpoint` by the helper; with `is_lazy` also if it is in use.
///
/// # Errors
/// `NotFound` if no helper is on PATH, and other errors of starting it. It may run and fail.
pub fn unmount_by_helper(mountpoint: &Path, is_lazy: bool) -> io::Result<Output> {
    let mut result = Err(io::ErrorKind::NotFound.into());
    for name in HELPER_NAMES {
        let mut helper = Command::new(name);
        helper.arg("-u");
        if is_lazy {
            helper.arg("-z");
        }
        result = helper.arg("--").arg(mountpoint).output();
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    result
}
