// SPDX-License-Identifier: Apache-2.0
//! Tests of the workbench: measurement against known truths, all backends, whole runs, reports.

mod arrow;
mod backends;
mod browser;
mod driver_library;
mod interrupted;
mod key_value;
mod mixed;
#[cfg(feature = "mongodb")]
mod mongo_server;
#[cfg(feature = "mongodb")]
mod mongodb;
mod originals;
mod overhead;
mod pacing;
mod page_layout;
#[cfg(feature = "postgresql")]
mod postgres;
#[cfg(feature = "postgresql")]
mod postgres_server;
mod quantiles;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_server;
mod reports;
mod runs;
mod simulated;
mod simulated_service;
mod write_once;
