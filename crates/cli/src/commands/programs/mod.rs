// SPDX-License-Identifier: Apache-2.0
//! Programs: commands by which other programs reach namespaces, in a mount or without one.

pub mod doctor;
pub mod mount;
mod mount_directory;
mod mount_log;
pub mod mounts;
pub mod run;
pub mod run_foreground;
mod run_shown;
pub mod umount;
