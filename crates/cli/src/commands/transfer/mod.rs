// SPDX-License-Identifier: Apache-2.0
//! Transfer: commands that copy trees into a store and out of it.

pub mod export;
pub mod import;
pub mod report;
