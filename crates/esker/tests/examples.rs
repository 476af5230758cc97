// SPDX-License-Identifier: Apache-2.0
//! Every example runs; each checks its own results.

#[path = "../examples/directory_of_ranks.rs"]
mod directory_of_ranks;
#[path = "../examples/engine.rs"]
mod engine;
#[path = "../examples/indexed_directory.rs"]
mod indexed_directory;
#[path = "../examples/job_of_ranks.rs"]
mod job_of_ranks;
#[path = "../examples/live_job.rs"]
mod live_job;
#[path = "../examples/own_store.rs"]
mod own_store;
#[path = "../examples/shared_file.rs"]
mod shared_file;
#[path = "../examples/snapshot_and_session.rs"]
mod snapshot_and_session;
#[path = "../examples/stack_and_squash.rs"]
mod stack_and_squash;

#[test]
fn a_directory_of_ranks() {
    directory_of_ranks::main().expect("it runs");
}

#[test]
fn the_engine_alone() {
    engine::main().expect("it runs");
}

#[test]
fn an_indexed_directory() {
    indexed_directory::main().expect("it runs");
}

#[test]
fn a_job_of_ranks() {
    job_of_ranks::main().expect("it runs");
}

#[test]
fn a_live_job() {
    live_job::main().expect("it runs");
}

#[test]
fn an_own_store() {
    own_store::main().expect("it runs");
}

#[test]
fn a_shared_file() {
    shared_file::main().expect("it runs");
}

#[test]
fn a_snapshot_and_a_session() {
    snapshot_and_session::main().expect("it runs");
}

#[test]
fn a_stack_and_its_squash() {
    stack_and_squash::main().expect("it runs");
}

#[test]
fn no_example_is_left_out() {
    let here = include_str!("examples.rs");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    for entry in std::fs::read_dir(folder).expect("the examples") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        assert!(here.contains(&format!("\"../examples/{name}\"")), "{name} is not run");
    }
}
