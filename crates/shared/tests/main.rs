//! Tests of shared files as a whole.

mod collective;
mod lost;
mod model;
mod publish;
mod service;
mod support;
