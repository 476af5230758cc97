// SPDX-License-Identifier: Apache-2.0
//! Progress: on a terminal, commands that may take long draw a line that shows how far they are; in a
//! pipe they draw nothing.

use std::process::{Command, Stdio};

use crate::esker::Esker;

/// What `command` draws on a terminal. It pauses before its first request for an object whose name
/// contains `text`, so that the line is drawn.
fn drawn(esker: &Esker, command: &str, text: &str) -> String {
    let command = format!("{} {command}", env!("CARGO_BIN_EXE_esker"));
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .current_dir(esker.path(""))
        .env("ESKER_STORE", esker.store())
        .env("ESKER_TEST_RUN", format!("{text}:sleep 1"))
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("script; every Debian has it");
    let drawn = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{drawn}");
    drawn
}

/// Symptom: squashes, compactions, collections, comparisons and deletions were silent until their end.
#[test]
fn commands_that_may_take_long_show_how_far_they_are() {
    let esker = Esker::new();
    esker.publish("a", &[("f", "a")]);
    esker.publish("b", &[("f", "b")]);
    let id = esker.ok(["session", "begin", "--base", "a"]).trim().to_owned();
    for name in ["x", "y"] {
        esker.pipe(["put", "-", &format!("{id}:/{name}")], b"text");
    }
    for (command, text, line) in [
        ("squash a b --as ab", "/table/", "squash: "),
        (&*format!("compact {id}"), "/table/", "compact: "),
        ("diff --summarize a b", "/table/", "diff: "),
        ("verify", "/table/", "verify: "),
        ("delete ab", "name/", "delete: "),
        ("gc", "/manifest/", "gc: "),
    ] {
        let drawn = drawn(&esker, command, text);
        assert!(drawn.contains(line), "{command}: {drawn:?}");
    }
    let silent = esker.run(["squash", "a", "b", "--as", "ab"]);
    assert!(silent.stderr.is_empty(), "{}", String::from_utf8_lossy(&silent.stderr));
}
