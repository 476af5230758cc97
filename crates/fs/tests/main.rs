// SPDX-License-Identifier: Apache-2.0
//! Tests of file systems as a whole.

mod bulk_insert;
mod campaign;
#[expect(dead_code, reason = "other fuzz targets use the rest")]
#[path = "../../../fuzz/src/choices.rs"]
mod choices;
mod compose;
mod concurrency;
mod conflicts;
mod crash;
mod data_logs;
mod directory_conflicts;
mod emptying;
mod export;
mod failed_begins;
mod far_store;
#[cfg(feature = "s3")]
#[expect(dead_code, reason = "the tests of the stores use the rest")]
#[path = "../../base/tests/faulty_proxy.rs"]
mod faulty_proxy;
mod files;
mod garbage;
mod gc;
mod gc_dry_run;
mod holds;
mod hooked;
mod hostile;
mod in_place;
mod input;
mod interleave;
mod interrupted_store;
mod job;
mod join_program;
mod joins;
mod keeping;
mod lineages;
mod lost_answers;
mod many_parts;
mod model;
mod open_names;
mod operation;
mod part_claims;
mod parts;
mod posix;
mod publish;
mod publish_beside_writers;
mod publish_far;
mod random_operation;
mod real;
mod reclaim;
#[expect(dead_code, reason = "the simulator of jobs uses the rest")]
mod reference;
mod regressions;
mod removed_trees;
mod reopened_parts;
mod requests;
#[cfg(feature = "s3")]
mod s3_faults;
#[cfg(feature = "s3")]
#[expect(dead_code, reason = "the tests of the stores use the rest")]
#[path = "../../base/tests/s3_server.rs"]
mod s3_server;
mod same_file;
mod session_markers;
mod smoke;
mod space;
mod squash;
mod squash_data;
mod stack;
#[path = "../../../fuzz/src/stores.rs"]
mod stores;
mod subject;
mod transfer;
mod trees;
mod used_parts;
mod verify;
