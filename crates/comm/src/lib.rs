// SPDX-License-Identifier: Apache-2.0
//! Ranks of a job and the messages between them.
//!
//! - [`Transport`]: send, receive, barrier. In [`threads`] the ranks are threads of one process; in
//!   [`tcp`] they are processes, which learn their rank from a [`job::RankContext`].
//! - [`Router`]: small records between all ranks, in batches, directly or over three hops, with
//!   bounded memory.
//! - [`collective`]: reductions and broadcasts along the tree of a log-ring.
//! - [`conformance`]: one suite that every transport must pass, as functions.
//!
//! Nothing here knows of tables, files or directories.

mod barrier;
pub mod collective;
pub mod conformance;
pub mod job;
pub mod launch;
#[cfg(feature = "mpi")]
pub mod mpi;
mod node_map;
pub mod polled;
mod queues;
mod rank;
pub mod rates;
pub mod router;
pub mod tcp;
pub mod threads;
pub mod transport;

pub use barrier::BarrierState;
pub use node_map::NodeMap;
pub use rank::{Channel, Rank};
pub use router::{Router, RouterOptions, Routing};
pub use transport::{Deadline, ReceivedMessage, SendOutcome, Transport, TransportCounters};
