//! Ranks of a job and the messages between them.
//!
//! - [`Transport`]: send, receive, barrier. [`threads`]: ranks that are threads of one process;
//!   [`tcp`]: ranks that are processes, which a [`job::Job`] tells who they are.
//! - [`Router`]: small records between all ranks, in batches, directly or over three hops, with
//!   bounded memory.
//! - [`collective`]: reductions and broadcasts along the tree of a log-ring.
//! - [`conformance`]: what every transport must do, as functions.
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
mod queues;
mod rank;
pub mod rates;
pub mod router;
pub mod tcp;
pub mod threads;
pub mod transport;

pub use barrier::Barrier;
pub use node_map::NodeMap;
pub use rank::{Channel, Rank};
pub use router::{Router, RouterOptions, Routing};
pub use transport::{Counters, Deadline, Message, Sent, Transport};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/ranks.md")]
struct Guide;
