// SPDX-License-Identifier: Apache-2.0
//! Client: the programs' side of a live namespace.
//!
//! [`LiveConnection`] sends requests of many items and receives their answers in order, with any
//! number of requests under way. [`LiveTree`] shows the namespace as a tree of paths on top.

mod connection;
mod endpoint;
mod pending;
mod shared_connection;
mod tree;

pub use self::connection::{Answer, LiveClientOptions, LiveConnection};
pub use self::pending::{LiveDir, LiveFile, Request};
pub use self::shared_connection::SharedConnection;
pub use self::tree::{LiveEntry, LivePlace, LiveTree, take_entries};
