// SPDX-License-Identifier: Apache-2.0
//! Files that all ranks of a job write, and the index of their segments.
//!
//! - [`SegmentService`]: the service. Slices of files are distributed among servers (`slices`);
//!   ranks send them requests (`message`) through one message loop (`exchange`, `server`).
//! - [`SharedJob`], [`SharedFile`]: the data path, from the start of a job (`job`) over writes and
//!   reads (`file`) to publication. `balance` moves slices to other servers when load is uneven,
//!   and `migrate` moves their segments.
//!
//! Nothing here knows of the command or a kernel.

mod balance;
mod exchange;
mod fetch_batches;
mod file;
mod gather;
mod held_index;
mod job;
pub mod message;
mod migrate;
mod server;
mod service;
mod slices;
mod snapshot;

pub use file::{AgreedAttributes, SharedFile};
pub use job::{INDEX_RANK, RemoteReads, SharedJob, SharedOptions};
pub use service::{PendingLookup, PutTicket, SegmentService};
pub use slices::{SLICE_BYTES, SLOTS, SliceMap};
pub use snapshot::SegmentSnapshot;
