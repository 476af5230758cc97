// SPDX-License-Identifier: Apache-2.0
//! The Redis backend on a server of its own.

use esker_base::Kind;
use esker_base::clock::SystemClock;
use esker_workbench::backend::{Backend, RedisBackend, conformance};
use esker_workbench::options::RunOptions;
use esker_workbench::pattern::{DatasetId, ObjectId, WorkingSetSize};
use esker_workbench::progress::RunProgress;
use esker_workbench::run::run_threads;
use redis::{Client, FromRedisValue};

use super::redis_server::RedisServer;

const OBJECT: ObjectId = DatasetId { rank: 0, number: 0 }.object(0);
const DATASET_KEY: &str = "esker-workbench:rank-0/set-0";

fn backend(server: &RedisServer) -> RedisBackend {
    RedisBackend::new(&server.url(), None).expect("a target")
}

/// Runs a command as another program.
fn ask<T: FromRedisValue>(server: &RedisServer, words: &[&str]) -> T {
    let client = Client::open(server.url()).expect("a client");
    let mut connection = client.get_connection().expect("a connection");
    let (name, arguments) = words.split_first().expect("a command");
    redis::cmd(name).arg(arguments).query(&mut connection).expect("an answer")
}

#[test]
fn redis_conforms() {
    let Some(server) = RedisServer::start(&[]) else { return };
    conformance::all(&backend(&server));
    assert_eq!(ask::<u64>(&server, &["DBSIZE"]), 0, "everything is removed");
}

#[test]
fn runs_measure_and_reuse_a_working_set() {
    let Some(server) = RedisServer::start(&["--appendonly", "yes"]) else { return };
    let backend = backend(&server);
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
        assert_eq!(result.backend, "redis");
        let service = &result.environment.service;
        assert!(service.starts_with("Redis ") && service.contains(" appendonly=yes"), "{service}");
        assert!(service.contains(" appendfsync=everysec"), "{service}");
        assert_eq!(backend.read_marker().expect("an answer").is_some(), keep);
    }
}

#[test]
fn other_keys_are_never_touched() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let backend = backend(&server);
    ask::<()>(&server, &["SET", "thesis", "1"]);
    for key in ["esker-workbench:thesis", DATASET_KEY] {
        ask::<()>(&server, &["SET", key, "1"]);
        assert_eq!(backend.write_marker(b"{}").expect_err("not empty").kind(), Kind::NotEmpty);
        assert_eq!(backend.clear().expect_err("no working set").kind(), Kind::NotFound);
        ask::<()>(&server, &["DEL", key]);
    }
    backend.write_marker(b"{}").expect("a marker");
    assert_eq!(backend.create_marker(b"{}").expect_err("taken").kind(), Kind::Conflict);
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    connection.create(OBJECT, b"bytes").expect("created");
    let others: [&[&str]; 3] = [
        &["SET", "esker-workbench:rank-0/set-1", "a string"],
        &["HSET", "esker-workbench:rank-0/set-2", "object-01", "another field"],
        &["SET", "esker-workbench:rank-0/set-0.bak", "another key"],
    ];
    for command in others {
        ask::<()>(&server, command);
        for _ in 0..2 {
            let refused = backend.clear().expect_err("other keys");
            assert_eq!(refused.kind(), Kind::NotEmpty, "{refused}");
            assert!(refused.to_string().contains(command[1]), "{refused}");
            assert!(backend.read_marker().expect("an answer").is_some());
            assert!(ask::<bool>(&server, &["EXISTS", command[1]]));
        }
        ask::<()>(&server, &["DEL", command[1]]);
    }
    connection.create(OBJECT, b"bytes").expect("the refused cleanups removed it");
    drop(connection);
    assert_eq!(backend.clear().expect("cleared"), 1);
    assert_eq!(ask::<String>(&server, &["GET", "thesis"]), "1");
}

/// Keys that other programs made under names of the workbench are errors, not panics.
#[test]
fn foreign_values_are_refused() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let backend = backend(&server);
    let large = " ".repeat(65_537);
    ask::<()>(&server, &["SET", "esker-workbench:marker", &large]);
    assert_eq!(backend.read_marker().expect_err("no marker").kind(), Kind::TooLarge);
    ask::<()>(&server, &["DEL", "esker-workbench:marker"]);
    ask::<()>(&server, &["HSET", "esker-workbench:marker", "a", "b"]);
    assert_eq!(backend.read_marker().expect_err("no marker").kind(), Kind::Corrupt);
    ask::<()>(&server, &["DEL", "esker-workbench:marker"]);
    ask::<()>(&server, &["SET", DATASET_KEY, "a string"]);
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    let refused = connection.stat(OBJECT).expect_err("no hash");
    assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
    assert!(refused.to_string().contains("/rank-0/set-0/object-0"), "{refused}");
    assert_eq!(connection.create(OBJECT, b"").expect_err("no hash").kind(), Kind::Corrupt);
    assert_eq!(connection.list(OBJECT.dataset, true).expect_err("no hash").kind(), Kind::Corrupt);
}

#[test]
fn passwords_and_full_servers_have_kinds() {
    let settings = ["--requirepass", "right", "--maxmemory", "8mb"];
    let Some(server) = RedisServer::start(&settings) else { return };
    for password in [None, Some("wrong")] {
        let backend = RedisBackend::new(&server.url(), password).expect("a target");
        let refused = backend.read_marker().expect_err("a wrong password");
        assert_eq!(refused.kind(), Kind::Denied, "{refused}");
        assert!(!refused.to_string().contains("wrong"), "{refused}");
    }
    let backend = RedisBackend::new(&server.url(), Some("right")).expect("a target");
    backend.write_marker(b"{}").expect("a marker");
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    let content = vec![7; 1 << 20];
    let full =
        (0..32).find_map(|number| connection.create(OBJECT.dataset.object(number), &content).err());
    assert_eq!(full.expect("no room").kind(), Kind::NoSpace);
    drop(connection);
    assert!(backend.clear().expect("a full server is emptied") > 0);
}

/// A server that ends, or comes back, makes calls fail or succeed; nothing panics.
#[test]
fn a_server_that_ends_makes_calls_fail() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let backend = backend(&server);
    backend.write_marker(b"{}").expect("a marker");
    let mut connection = backend.connect(0, &conformance::SIZE).expect("a connection");
    connection.create(OBJECT, b"bytes").expect("created");
    let _: u64 = ask(&server, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let lost = connection.stat(OBJECT).expect_err("the connection was closed");
    assert_eq!(lost.kind(), Kind::Unavailable, "{lost}");
    assert_eq!(connection.stat(OBJECT).expect("a new connection"), 5);
    drop(server);
    for _ in 0..2 {
        let lost = connection.stat(OBJECT).expect_err("no server");
        assert_eq!(lost.kind(), Kind::Unavailable, "{lost}");
    }
    assert_eq!(backend.read_marker().expect_err("no server").kind(), Kind::Unavailable);
}
