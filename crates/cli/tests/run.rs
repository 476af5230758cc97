// SPDX-License-Identifier: Apache-2.0
//! `esker run`: output, exit codes and signals of the ranks.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::esker::Esker;

#[test]
fn ranks_print_as_they_are() {
    let esker = Esker::new();
    let said =
        esker.ok(["run", "-n", "4", "--per-node", "2", "--", "sh", "-c", "echo $ESKER_RANK"]);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0", "1", "2", "3"]);
}

#[test]
fn the_first_failure_is_the_exit_code() {
    let esker = Esker::new();
    let script = "[ $ESKER_RANK = 2 ] && exit 42; sleep 60";
    let output = esker.run(["run", "-n", "3", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(42));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("rank 2 failed first, with exit code 42"), "{said}");
    let output = esker.run(["run", "-n", "2", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn a_signal_reaches_the_ranks() {
    let esker = Esker::new();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = esker.command(["run", "-n", "2", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for _ in 0..2 {
        assert_eq!(lines.next().expect("two ranks").expect("text"), "ready");
    }
    let id = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(id.expect("an id"), rustix::process::Signal::TERM)
        .expect("it runs");
    for _ in 0..2 {
        assert_eq!(lines.next().expect("two ranks").expect("text"), "told");
    }
    assert_eq!(child.wait().expect("it ends").code(), Some(143));
}

#[test]
fn without_a_store_ranks_meet_elsewhere() {
    let esker = Esker::without_store();
    let mut command = esker.command(["run", "-n", "1", "--", "sh", "-c", "echo $ESKER_MEET"]);
    let output = command.env_remove("ESKER_STORE").output().expect("the binary runs");
    assert!(output.status.success());
    let place = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!place.trim().is_empty() && !std::path::Path::new(place.trim()).exists(), "{place}");
}
