// SPDX-License-Identifier: Apache-2.0
//! Benchmarks of Esker, which `esker bench` runs. The drivers of the peers in `peers/` do the same
//! work and report the same figures.

pub mod collective;
mod create;
pub mod curves;
mod imd;
pub mod live;
pub mod live_insert;
pub mod live_seats;
pub mod messages;
pub mod particles;
pub mod permutation;
pub mod plot;
mod query;
mod rates;
pub mod replay;
pub mod report;
pub mod routing;
pub mod segment;
mod speedup;
mod squash;
mod throttled;
mod workers;
pub mod workload_size;

pub use create::{create, durability_name};
pub use imd::{ImdGet, ImdWrite, imd_get, imd_write, imd_write_as_first, write_rank};
pub use query::{QueryOptions, list, remove, stat};
pub use speedup::{SpeedupReport, imd_speedup};
pub use squash::{SQUASH_NAME, squash};
pub use throttled::{ThrottledReport, imd_throttled};
