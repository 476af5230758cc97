//! Tests of the table engine as a whole.

mod concurrency;
mod failures;
mod fencing;
mod model;
mod records;
