// SPDX-License-Identifier: Apache-2.0
//! Tests of segments in trees, beside rows.

mod bounds;
mod clustering;
mod golden;
#[path = "../../table/tests/golden_document.rs"]
mod golden_document;
#[path = "../../table/tests/records.rs"]
mod records;
mod recovery;
mod segments;
mod space;

/// The family that the trees of these tests host.
const FAMILY: &dyn esker_table::family::Family = &esker_extent::ExtentFamily;
