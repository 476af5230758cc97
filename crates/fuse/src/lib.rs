//! Esker in the kernel's tree of files.
//!
//! `mount` puts a snapshot or a session at a directory and takes it away; `driver` answers the
//! kernel's requests by what `front` does in `lookup`, `make`, `remove`, `attributes`, `listing`,
//! `file` and `xattr`; `reclaim` bounds the garbage of a session; `nodes` knows what the kernel's inode
//! numbers stand for, and `prune` bounds how many there are; `control` is how commands talk to a
//! running mount.
//!
//! The kernel checks permissions (`default_permissions`), resolves paths, keeps pages, names and
//! attributes, and serializes changes of one directory. Since every change comes through this one
//! kernel, what it keeps never gets stale. Nothing here decides what a file system does: that is
//! `esker_fs`.

mod attributes;
mod control;
mod driver;
mod file;
mod front;
mod indexed;
mod link_count;
mod listing;
mod lookup;
mod make;
mod mount;
mod nodes;
mod place;
mod prune;
mod reclaim;
mod remove;
mod view;
mod xattr;

pub use control::{Request, SOURCE, Status, ask, mountpoint_of, mountpoints, status_of};
pub use file::InPlace;
pub use mount::{Ending, Mount, MountOptions, is_supported};
pub use prune::KNOWN_FILES_MAX;
pub use view::View;
