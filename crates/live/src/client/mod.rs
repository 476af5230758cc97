// SPDX-License-Identifier: Apache-2.0
//! Client: the programs' side of a live namespace.
//!
//! [`LiveConnection`] sends requests of many items and receives their answers in order, with any
//! number of requests under way; [`SharedConnection`] does so for several threads. [`LiveTree`] shows
//! the namespace as a tree of paths on top, over the connections to all of its seats.

mod answer;
mod answered_changes;
mod bulk_insertion;
mod connection;
mod endpoint;
mod listing;
mod live_dir;
mod pending;
mod remove_tree;
mod seat_walk;
mod shared_connection;
mod tree;
mod waiting_socket;

pub use self::answer::Answer;
pub use self::answered_changes::SyncPoint;
pub use self::bulk_insertion::BulkInsertion;
pub(crate) use self::connection::PATIENCE_MAX;
pub use self::connection::{LiveClientOptions, LiveConnection, WaitNotice};
pub use self::listing::{LiveEntry, take_entries};
pub use self::live_dir::{LiveDir, LiveFile, SeatPlace};
pub use self::pending::Request;
pub use self::shared_connection::SharedConnection;
pub use self::tree::{FAR_ATTEMPTS, LivePlace, LiveTree, is_absent};
