// SPDX-License-Identifier: Apache-2.0
//! About: commands on the program itself.

pub mod completions;
pub mod exit_codes;
pub mod manual;
