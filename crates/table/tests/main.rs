// SPDX-License-Identifier: Apache-2.0
//! Tests of the table engine as a whole.

mod bounds;
mod concurrency;
mod damage;
mod damaged_tables;
mod failures;
mod family;
mod fencing;
mod golden;
mod golden_document;
mod heartbeat;
mod hostile;
mod log_companion;
mod model;
mod outgrown;
mod paid_merges;
mod records;
mod recovery;
mod scans;

/// The family that the trees of these tests host.
const FAMILY: &dyn esker_table::family::Family = &esker_table::family::NoFamily;
