//! Tests of the crate from outside: every store runs the same conformance suite.

mod stores;
