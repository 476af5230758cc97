//! Ranks of a job and the messages between them.
//!
//! - [`Transport`]: send, receive, barrier. [`threads`]: ranks that are threads of one process.
//! - [`Router`]: small records between all ranks, in batches, directly or over three hops, with
//!   bounded memory.
//! - [`conformance`]: what every transport must do, as functions.
//!
//! Nothing here knows of tables, files or directories.

mod barrier;
pub mod conformance;
mod node_map;
mod rank;
pub mod router;
pub mod threads;
pub mod transport;

pub use node_map::NodeMap;
pub use rank::{Channel, Rank};
pub use router::{Router, RouterOptions, Routing};
pub use transport::{Counters, Message, Sent, Transport};
