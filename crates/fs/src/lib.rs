// SPDX-License-Identifier: Apache-2.0
//! File systems as stacks of change sets.
//!
//! `inode` and `data` define what is stored; `layers → namespace` presents a stack of change sets
//! as a file system; `session` and `ops` change it; `repository` begins, publishes and collects.
//! Nothing here depends on the kernel's file system interface or on a network.

mod condemn;
pub mod conflicts;
pub mod data;
pub mod delete;
pub mod dependency;
pub mod diff;
pub mod dir;
mod dir_times;
mod dir_tree;
mod durability;
pub mod export;
pub mod file;
pub mod gc;
pub mod glob;
pub mod graph;
pub mod hold;
pub mod identity;
pub mod import;
pub mod indexed;
pub mod inode;
pub mod job;
pub mod layers;
mod lineage;
pub mod list;
pub mod live_namespace;
pub mod marker;
mod name_table;
pub mod names;
pub mod namespace;
pub mod open_sessions;
pub mod ops;
pub mod path;
pub mod predicate;
mod provisional_markers;
mod publication;
pub mod read_lease;
pub mod repository;
pub mod request_record;
pub mod session;
mod session_marker;
mod set_ids;
pub mod squash;
pub mod tally;
pub mod timestamp;
pub mod unsealed;
pub mod usage;
pub mod verify;
pub mod view;
pub mod walk;
pub mod xattr;
