// SPDX-License-Identifier: Apache-2.0
//! Tests of the table engine as a whole.

mod bounds;
mod clustering;
mod concurrency;
mod damage;
mod failures;
mod fencing;
mod golden;
mod heartbeat;
mod hostile;
mod model;
mod outgrown;
mod records;
mod recovery;
mod scans;
mod segments;
mod space;
