// SPDX-License-Identifier: Apache-2.0
//! Mounts: Esker in the kernel's tree of files.
//!
//! `mount` mounts a snapshot or a session at a directory and unmounts it; `server` chooses the
//! transport of the kernel's requests; `driver` and `ring_driver` answer them with the operations
//! on `mount_state` that are in `lookup`, `make`, `remove`, `attributes`, `listing`, `file` and
//! `xattr`; `reclaim` bounds a session's garbage; `nodes` maps the kernel's inode numbers to files,
//! and `prune` bounds their number; `control` lets commands talk to a running mount.
//!
//! The kernel checks permissions (`default_permissions`), resolves paths, caches pages, names and
//! attributes, and serializes changes of one directory. Every change comes through this one kernel,
//! so its caches never get stale. The semantics of the file system are in `esker_fs`, not here.

mod attributes;
mod backing;
#[cfg(test)]
#[expect(dead_code, reason = "other fuzz targets use the rest")]
#[path = "../../../fuzz/src/choices.rs"]
mod choices;
mod control;
mod driver;
mod failed_change;
mod file;
mod fusermount;
mod indexed;
mod link_count;
mod listing;
mod live_mount;
mod lookup;
mod make;
mod mount;
mod mount_run;
mod mount_state;
mod mount_trial;
mod mounted_directory;
mod node_location;
mod node_table;
mod nodes;
mod prune;
mod reclaim;
mod remove;
mod replies;
mod ring_driver;
mod server;
mod statistics;
#[cfg(test)]
#[expect(dead_code, reason = "mounts need only the stores")]
#[path = "../../../fuzz/src/stores.rs"]
mod stores;
#[cfg(test)]
mod test_hostile_stores;
#[cfg(test)]
mod test_state;
mod xattr;

pub use control::{
    ControlRequest, LIVE, ListedMount, MountStatus, SOURCE, ask, dead_mount_advice, mountpoint_of,
    mountpoints, mounts, status_of,
};
pub use file::InPlacePolicy;
pub use fusermount::{HELPER_NAMES, unmount_by_helper};
pub use live_mount::{LiveMount, LiveMountOptions};
pub use mount::{Mount, MountOptions, is_supported};
pub use mount_run::MountEnding;
pub use mount_trial::{try_mount, try_rings};
pub use prune::KNOWN_FILES_MAX;
pub use server::{Transport, TransportChoice};
