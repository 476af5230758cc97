// SPDX-License-Identifier: Apache-2.0
//! Tests of shared files as a whole.

mod balance;
#[path = "../../fs/tests/campaign.rs"]
mod campaign;
mod collective;
mod crash;
mod lost;
mod model;
mod publish;
mod service;
mod stalled;
mod support;
