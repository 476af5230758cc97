//! Tests of shared files as a whole.

#[path = "../../fs/tests/campaign.rs"]
mod campaign;
mod collective;
mod crash;
mod lost;
mod model;
mod publish;
mod service;
mod support;
