//! Tests of the table engine as a whole.

mod concurrency;
mod failures;
mod fencing;
mod hostile;
mod model;
mod records;
