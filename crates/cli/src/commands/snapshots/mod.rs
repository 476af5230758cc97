// SPDX-License-Identifier: Apache-2.0
//! Snapshots: commands on sessions, change sets and published names.

pub mod delete;
pub mod log;
pub mod names;
pub mod publish;
pub mod session;
pub mod show;
pub mod squash;
