// SPDX-License-Identifier: Apache-2.0
//! Store: commands that make, collect and check stores.

pub mod gc;
pub mod init;
pub mod verify;
