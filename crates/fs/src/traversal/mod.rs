// SPDX-License-Identifier: Apache-2.0
//! Traversal: operations that visit every entry of a tree, through the calls that programs also use.
//!
//! `walk` visits the entries in order; `predicate` and `glob` choose among them. `diff` and
//! `conflicts` compare trees, `import` and `export` copy them from and to other file systems.

pub mod conflicts;
pub mod diff;
pub mod export;
pub mod glob;
pub mod import;
pub mod predicate;
pub mod tally;
pub mod usage;
pub mod walk;
