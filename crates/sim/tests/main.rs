// SPDX-License-Identifier: Apache-2.0
//! Tests of a whole job: writers, publishers and collectors above a store that fails.

#[path = "../../fs/tests/campaign.rs"]
mod campaign;
mod checks;
mod history;
mod in_place;
mod job;
mod keeper;
mod machine;
mod open_file;
#[path = "../../fs/tests/operation.rs"]
#[expect(dead_code, reason = "fs uses more of it")]
mod operation;
#[path = "../../fs/tests/random_operation.rs"]
mod random_operation;
#[path = "../../fs/tests/reference/mod.rs"]
#[expect(dead_code, reason = "fs uses more of it")]
mod reference;
mod runs;
mod second_thread;
mod shrink;
#[path = "../../fs/tests/subject.rs"]
#[expect(dead_code, reason = "fs uses more of it")]
mod subject;
mod truth;
mod writer;
