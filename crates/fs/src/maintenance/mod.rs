// SPDX-License-Identifier: Apache-2.0
//! Maintenance: operations on whole change sets, through their manifests and tables.
//!
//! `verify` reads everything that a set consists of, `squash` merges a stack into one set, `graph`
//! shows which sets build on which. The collection of garbage is part of `retention`.

pub mod graph;
pub mod squash;
pub mod verify;
