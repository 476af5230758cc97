//! Tests of indexed directories as a whole.

mod model;
