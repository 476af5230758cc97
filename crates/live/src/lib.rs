// SPDX-License-Identifier: Apache-2.0
//! Live namespaces: one tree that many clients change at once, through one or more servers.
//!
//! A live namespace has one or more seats: open change sets, among which its directories are shared.
//! The server that writes one is an ordinary writer of the set: another process that resumes the set
//! fences that server and continues where it stopped. Only changes that are not in a log yet exist in
//! a server's memory alone, and their clients know that.
//!
//! ```text
//! client/   requests under way, repeated to another server if theirs is lost
//!    │      wire/: frames of many requests each
//! server/   connection → execution on the session → group commit → answers
//!    │
//! esker-fs  the session; records of requests beside the changes they made
//! ```
//! Source: GIGA+ over TableFS (CMU-PDL-13-107) §2; IndexFS, thesis ch. 2.

pub mod client;
pub mod proof;
#[cfg(feature = "server")]
pub mod server;
pub mod server_address;
pub mod wire;

pub use self::client::{LiveConnection, LiveTree};
#[cfg(feature = "server")]
pub use self::server::{LiveServer, LiveServerOptions};

/// The guide, whose example is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/live.md")]
struct Guide;
