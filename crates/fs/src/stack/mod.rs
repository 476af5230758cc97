// SPDX-License-Identifier: Apache-2.0
//! Stack: change sets on top of each other, shown as one file system that does not change.
//!
//! Path of a read: `namespace` and `list` find names in directories (`dir`) → `layers` asks each
//! change set, the topmost first → tables. `lineage` knows which layers are branches, `dir_tree` all
//! directories of a stack at once; `path_search` follows paths; `unsealed` stacks a set that another process still writes.
//! Invariant: nothing here changes a change set. A session (`session`) adds a tree on top, which
//! takes all changes.

pub mod dir;
pub(crate) mod dir_tree;
pub mod identity;
pub mod layers;
pub(crate) mod lineage;
pub mod list;
pub mod namespace;
pub mod path;
pub mod path_search;
mod unsealed;
