// SPDX-License-Identifier: Apache-2.0
//! Commands on a far store: the number of round trips of each (docs/guide/stores.md, "Far stores").

use std::fs;

use crate::esker::Esker;

/// Runs `arguments` as on a far store; returns the number of round trips and the output.
fn rounds(esker: &Esker, arguments: &[&str]) -> (u64, String) {
    let trace = esker.path("rounds");
    drop(fs::remove_file(&trace));
    let output = esker.command(arguments).env("ESKER_TEST_ROUNDS", &trace).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    let trace = fs::read_to_string(&trace).expect("the trace");
    let round = |line: &str| -> u64 {
        line.split(' ').next().and_then(|round| round.parse().ok()).expect("a number")
    };
    let rounds = trace.lines().map(round).max().unwrap_or(0);
    println!("{arguments:?}: {rounds} round trips\n{trace}");
    (rounds, String::from_utf8(output.stdout).expect("UTF-8"))
}

fn store_with_files() -> (Esker, String) {
    let esker = Esker::new();
    esker.publish("base", &[("a", "first"), ("b", "second")]);
    let file = esker.path("file");
    fs::write(&file, vec![7; 5_000]).expect("write");
    let file = file.to_str().expect("UTF-8").to_owned();
    (esker, file)
}

/// Symptom: a `gc` that found nothing took 30 round trips in a store of four snapshots, and a `put`
/// took 39. Cause and fix: see `far_store` of the file systems' tests; also, commands read sessions
/// twice and made independent requests one after the other.
#[test]
fn commands_take_few_round_trips() {
    let (esker, file) = store_with_files();
    let (put, _) = rounds(&esker, &["put", &file, "base:/c", "--as", "next"]);
    assert!(put <= 12, "put: {put} round trips");
    for name in 0..5 {
        esker.ok(["put", &file, "next:/d", "--as", &format!("name-{name}")]);
    }
    let session = esker.ok(["session", "begin", "--base", "next"]);
    let (gc, printed) = rounds(&esker, &["gc"]);
    assert!(printed.contains("0 objects"), "{printed}");
    assert!(gc <= 10, "gc: {gc} round trips");
    esker.ok(["session", "drop", session.trim()]);
}

/// Three commands on a session must look up more than one command that does everything.
#[test]
fn a_session_of_three_commands_takes_few_round_trips() {
    let (esker, file) = store_with_files();
    let (begin, session) = rounds(&esker, &["session", "begin", "--base", "base"]);
    let session = session.trim();
    let (put, _) = rounds(&esker, &["put", &file, &format!("{session}:/c")]);
    let (publish, _) = rounds(&esker, &["publish", session, "next"]);
    assert!(begin <= 12, "begin: {begin} round trips");
    assert!(put <= 25, "put: {put} round trips");
    assert!(publish <= 27, "publish: {publish} round trips");
    assert!(esker.ok(["ls", "next:/"]).contains('c'));
}
