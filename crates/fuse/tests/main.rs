// SPDX-License-Identifier: Apache-2.0
//! Mounts in the test's own process, over stores that fail on request, and guarantees to programs
//! that hold for every mount.

mod faults;
mod garbage;
mod gated_store;
mod listings;
mod mounted;
mod passthrough;
mod posix;
mod prune;
mod requests;
mod semantics;
mod transports;
mod trial;
