// SPDX-License-Identifier: Apache-2.0
//! Traversal: operations on whole trees, as programs see them.
//!
//! `walk` visits the entries in order; `predicate` and `glob` choose among them. `diff` compares
//! trees, `import` and `export` copy them from and to other file systems. `conflicts` finds what
//! bases changed independently; it reads their records instead of every entry.

pub mod conflicts;
pub mod diff;
pub mod export;
pub mod glob;
pub mod import;
pub mod predicate;
pub mod tally;
pub mod usage;
pub mod walk;
