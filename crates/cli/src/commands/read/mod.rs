// SPDX-License-Identifier: Apache-2.0
//! Read: commands that show trees.

pub mod cat;
pub mod diff;
pub mod du;
pub mod find;
pub mod listing_format;
pub mod ls;
pub mod stat;
pub mod tree;
