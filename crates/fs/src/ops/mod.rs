// SPDX-License-Identifier: Apache-2.0
//! Operations of a session with POSIX semantics, one per file.

mod adopt;
mod bulk_insert;
mod create;
mod create_identified;
mod indexed;
mod insert;
mod link;
mod make;
mod remove;
mod rename;
mod seat_file;
mod seat_root;
pub(crate) mod setattr;
pub(crate) mod write;

pub(crate) use adopt::FillBuffer;
pub(crate) use bulk_insert::below_the_root;
pub(crate) use insert::NewInode;
pub use make::NewFile;
pub use rename::{RenameFlags, RenameOutcome};
pub use seat_file::SeatNaming;
pub use setattr::{AttributeChanges, XattrSet};
