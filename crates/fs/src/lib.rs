// SPDX-License-Identifier: Apache-2.0
//! File systems as stacks of change sets.
//!
//! `inode` and `data` define what is stored; `stack` presents a stack of change sets as a file
//! system; `session`, `ops` and `file` change it; `repository` begins sessions, `names` publishes
//! their results, and `retention` collects what nothing needs any more; `job` joins the results of
//! several writers. `traversal` and `maintenance` work on whole trees and whole change sets.
//! Nothing here depends on the kernel's file system interface or on a network.

pub mod data;
pub mod file;
pub mod inode;
pub mod job;
pub mod maintenance;
pub mod names;
pub mod ops;
pub mod repository;
pub mod retention;
pub mod session;
pub mod stack;
pub mod traversal;
