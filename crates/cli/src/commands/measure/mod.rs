// SPDX-License-Identifier: Apache-2.0
//! Measure: commands that measure storage and predict its rates.

pub mod advise;
pub mod bench;
pub mod workbench;
