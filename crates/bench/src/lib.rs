//! Workloads that measure Esker: what `esker bench` runs. The rivals' drivers in `peers/` do the
//! same work and report the same figures.

pub mod collective;
mod create;
pub mod curves;
pub mod messages;
pub mod particles;
pub mod permutation;
mod query;
pub mod report;
pub mod routing;
pub mod segment;
pub mod shape;
mod squash;
mod workers;

pub use create::{create, durability_name};
pub use query::{QueryOptions, WARM_CACHE_BYTES, list, remove, stat};
pub use squash::{SQUASH_NAME, squash};
