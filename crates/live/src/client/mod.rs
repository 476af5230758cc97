// SPDX-License-Identifier: Apache-2.0
//! Client: the programs' side of a live namespace.
//!
//! [`LiveConnection`] sends requests of many items and receives their answers in order, with any
//! number of requests under way. [`LiveTree`] shows the namespace as a tree of paths on top.

mod connection;
mod endpoint;
mod pending;
mod tree;

pub use self::connection::{Answer, LiveClientOptions, LiveConnection};
pub use self::pending::{LiveDir, Request};
pub use self::tree::{LiveEntry, LivePlace, LiveTree};
