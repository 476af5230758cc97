// SPDX-License-Identifier: Apache-2.0
//! Tests of live namespaces: real servers and clients in one process, over Unix sockets and TCP.

mod abuse;
mod bulk_insertion;
#[path = "../../fs/tests/campaign.rs"]
mod campaign;
mod crowd;
mod file_move_crashes;
mod file_move_races;
mod file_moves;
mod full_stores;
#[path = "../../fuse/tests/gated_store.rs"]
mod gated_store;
mod histories;
mod hostile;
mod linearizability;
mod metrics;
mod open_file_limits;
mod open_files;
mod raw_client;
mod repeated_creates;
mod repeated_makes;
mod requests;
mod seat_crashes;
mod seated_store;
mod seats;
mod served;
mod spread;
mod takeover;
mod users;
