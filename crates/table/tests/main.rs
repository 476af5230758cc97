//! Tests of the table engine as a whole.

mod model;
