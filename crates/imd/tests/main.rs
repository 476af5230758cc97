//! Tests of indexed directories as a whole.

mod auxiliary;
mod golden;
mod model;
mod vpic;
