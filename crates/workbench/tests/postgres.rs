// SPDX-License-Identifier: Apache-2.0
//! The PostgreSQL backend on a real server.

use esker_base::Kind;
use esker_base::clock::SystemClock;
use esker_workbench::backend::{Backend, PostgresBackend, conformance};
use esker_workbench::options::RunOptions;
use esker_workbench::pattern::{DatasetId, WorkingSetSize};
use esker_workbench::progress::RunProgress;
use esker_workbench::run::run_threads;

use super::postgres_server::PostgresServer;

const OBJECT: esker_workbench::pattern::ObjectId = DatasetId { rank: 0, number: 0 }.object(0);

#[test]
fn postgresql_conforms() {
    let Some(server) = PostgresServer::start() else { return };
    let backend = PostgresBackend::new(&server.url(), None).expect("a target");
    conformance::all(&backend);
    // The schema is gone, so a second working set can be made.
    conformance::all(&backend);
}

/// All phases succeed, and the result states the server's version and durability.
#[test]
fn runs_measure_and_reuse_a_working_set() {
    let Some(server) = PostgresServer::start() else { return };
    let backend = PostgresBackend::new(&server.url(), None).expect("a target");
    let size = WorkingSetSize {
        ranks: 2,
        datasets: 2,
        objects: 20,
        iterations: 10,
        object_bytes: 3_901,
        rank_offset: 1,
    };
    for keep in [true, false] {
        let options = RunOptions { keep, names: true, ..RunOptions::new(size) };
        let progress = RunProgress::new(size.ranks);
        let result = run_threads(&backend, &options, &SystemClock, &progress).expect("a run");
        let failed: u64 = result.phases.iter().map(|phase| phase.failed()).sum();
        assert_eq!(failed, 0, "{:?}", result.warnings);
        assert_eq!(result.backend, "postgresql");
        let service = &result.environment.service;
        assert!(service.starts_with("PostgreSQL "), "{service}");
        assert!(service.contains(" fsync=on") && service.contains(" synchronous_commit=on"));
        assert_eq!(backend.read_marker().expect("an answer").is_some(), keep);
    }
    let relaxed = format!("{}?options=-csynchronous_commit%3Doff", server.url());
    let relaxed = PostgresBackend::new(&relaxed, None).expect("a target");
    let service = relaxed.service().expect("an answer");
    assert!(service.contains(" synchronous_commit=off"), "{service}");
}

#[test]
fn other_tables_are_never_touched() {
    let Some(server) = PostgresServer::start() else { return };
    let backend = PostgresBackend::new(&server.url(), None).expect("a target");
    let mut client = postgres::Client::connect(&server.url(), postgres::NoTls).expect("a client");
    let mut execute = |sql: &str| client.batch_execute(sql).expect("executed");
    execute("CREATE SCHEMA esker_workbench; CREATE TABLE esker_workbench.thesis (text text)");
    assert_eq!(backend.write_marker(b"{}").expect_err("not empty").kind(), Kind::NotEmpty);
    assert_eq!(backend.clear().expect_err("no working set").kind(), Kind::NotFound);
    execute("DROP SCHEMA esker_workbench CASCADE");
    backend.write_marker(b"{}").expect("a marker");
    backend
        .connect(0, &conformance::SIZE)
        .expect("a connection")
        .create(OBJECT, b"bytes")
        .expect("created");
    let others = [
        ("CREATE TABLE esker_workbench.thesis (text text)", "DROP TABLE esker_workbench.thesis"),
        ("CREATE VIEW mine AS SELECT rank FROM esker_workbench.object", "DROP VIEW mine"),
    ];
    for (create, drop) in others {
        execute(create);
        for _ in 0..2 {
            let refused = backend.clear().expect_err("other tables");
            assert_eq!(refused.kind(), Kind::NotEmpty, "{refused}");
            assert!(backend.read_marker().expect("an answer").is_some());
        }
        execute(drop);
    }
    assert_eq!(backend.clear().expect("cleared"), 1);
}

/// A server that ends makes calls fail with a kind; nothing waits or panics.
#[test]
fn a_server_that_ends_makes_calls_fail() {
    let Some(server) = PostgresServer::start() else { return };
    let url = server.url();
    let absent =
        PostgresBackend::new(&url.replace("/postgres", "/absent"), None).expect("a target");
    assert_eq!(absent.read_marker().expect_err("no database").kind(), Kind::NotFound);
    let backend = PostgresBackend::new(&url, None).expect("a target");
    backend.write_marker(b"{}").expect("a marker");
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    connection.create(OBJECT, b"bytes").expect("created");
    drop(server);
    for _ in 0..2 {
        let lost = connection.stat(OBJECT).expect_err("no server");
        assert_eq!(lost.kind(), Kind::Unavailable, "{lost}");
    }
    let error = backend.read_marker().expect_err("no server");
    assert_eq!(error.kind(), Kind::Unavailable);
    // The system's reason, not only that there was no connection.
    assert!(error.to_string().contains("(os error "), "{error}");
}
