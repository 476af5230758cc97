// SPDX-License-Identifier: Apache-2.0
//! Two processes and one session: the second process learns who writes it, and takes it over on
//! request.
//!
//! Symptom: `esker compact @SESSION` of a mounted session, or any other command in it, silently
//! fenced the mount, which went on accepting writes that were then lost. Cause, fix: as in the
//! tests of `esker-fs` (`holds.rs`).

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use esker_base::Kind;
use serde_json::Value;

use crate::esker::Esker;
use crate::mounted::{Mounted, can_mount, wait_for_end};

const ESTALE: i32 = 116;

fn begin(esker: &Esker) -> String {
    esker.ok(["session", "begin"]).trim().to_owned()
}

/// Starts a command that writes session `id` and waits for its standard input.
fn waiting_writer(esker: &Esker, id: &str) -> Child {
    let mut command = esker.command(["put", "-", &format!("{id}:/late")]);
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let is_writing = || {
        let shown = &esker.json(["show", id])[0]["writer"];
        shown["pid"] == child.id() && shown["state"] == "alive"
    };
    while !is_writing() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_command_in_the_session_of_another_is_refused_until_that_ends() {
    let esker = Esker::new();
    let id = begin(&esker);
    let mut first = waiting_writer(&esker, &id);
    let commands = [
        vec!["mkdir".to_owned(), format!("{id}:/d")],
        vec!["compact".into(), id.clone()],
        vec!["publish".into(), id.clone(), "name".into()],
        vec!["session".into(), "complete".into(), id.clone()],
        vec!["session".into(), "drop".into(), id.clone()],
    ];
    for command in &commands {
        let said = esker.fails(9, command);
        let process = format!("process {}", first.id());
        assert!(said.contains("esker put -") && said.contains(&process), "{command:?}: {said}");
        assert!(said.contains("--take-over") && said.contains("last seen"), "{said}");
    }
    first.stdin.take().expect("piped").write_all(b"all of it").expect("it reads");
    assert!(first.wait().expect("it ends").success());
    esker.ok(&commands[0]);
    assert_eq!(esker.ok(["cat".into(), format!("{id}:/late")]), "all of it");
}

#[test]
fn a_session_is_taken_from_another_command_on_demand() {
    let esker = Esker::new();
    let id = begin(&esker);
    let mut first = waiting_writer(&esker, &id);
    esker.ok(["mkdir".into(), "--take-over".into(), format!("{id}:/d")]);
    // The writer may already have noticed the takeover and ended.
    drop(first.stdin.take().expect("piped").write_all(b"too late"));
    let output = first.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(said.contains("taken over by") && said.contains("mkdir --take-over"), "{said}");
    assert_eq!(esker.ok(["ls".into(), format!("{id}:/")]), "d\n");
}

/// Symptom: a command that still ran revived a dropped session.
#[test]
fn a_dropped_session_stays_dropped_whatever_its_writer_does() {
    let esker = Esker::new();
    let id = begin(&esker);
    let mut first = waiting_writer(&esker, &id);
    let said = esker.ok(["session", "drop", "--take-over", &id]);
    assert!(said.starts_with("dropped @"), "{said}");
    // The writer may already have noticed the takeover and ended.
    drop(first.stdin.take().expect("piped").write_all(b"too late"));
    assert_eq!(first.wait().expect("it ends").code(), Some(10));
    let said = esker.fails(3, ["mkdir".into(), format!("{id}:/d")]);
    assert!(said.contains("given up"), "{said}");
    assert_eq!(esker.ok(["session", "list"]), "");
    assert!(esker.fails(2, ["session", "drop", "base"]).contains("esker delete base"));
}

#[test]
fn a_command_that_was_killed_holds_nothing() {
    let esker = Esker::new();
    let id = begin(&esker);
    let mut first = waiting_writer(&esker, &id);
    first.kill().and_then(|()| first.wait()).expect("it is ours");
    esker.ok(["mkdir".into(), format!("{id}:/d")]);
}

/// Symptom: `session list` said of a process that had ended that it died, also if it had exited
/// normally without ending its session.
/// Cause: nothing records how a process ends; only that it is gone, and what it left, is known.
#[test]
fn a_session_whose_writer_is_gone_says_what_is_known() {
    let esker = Esker::new();
    let id = begin(&esker);
    let mut first = waiting_writer(&esker, &id);
    first.kill().and_then(|()| first.wait()).expect("it is ours");
    let listed = esker.ok(["session", "list"]);
    assert!(!listed.contains("died"), "{listed}");
    let known = format!("process {}, which ended without releasing it: ", first.id());
    assert!(listed.contains(&known), "{listed}");
    assert_eq!(esker.json(["session", "list"])[0]["writer"]["state"], "ended");
}

fn is_stale(done: std::io::Result<()>) {
    assert_eq!(done.expect_err("it was taken over").raw_os_error(), Some(ESTALE));
}

#[test]
fn a_mounted_session_is_compacted_by_its_mount_and_taken_from_it_only_on_demand() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("held", &[]);
    let esker = &mounted.esker;
    let id =
        format!("@{}", esker_fuse::status_of(mounted.root()).expect("it runs").set.expect("a set"));
    for name in ["a", "b", "c"] {
        fs::write(mounted.path(name), name).expect("write");
        esker.ok(["commit".as_ref(), mounted.root().as_os_str(), name.as_ref()]);
    }
    let runs = || esker.json(["show", &id])[0]["runs"].as_u64().expect("a number");
    assert!(runs() > 1);
    let said = esker.ok(["compact", &id]);
    assert!(said.contains("in the mount at"), "{said}");
    assert_eq!(runs(), 1);
    let said = esker.fails(9, ["mkdir".into(), format!("{id}:/d")]);
    let process = format!("process {}", mounted.pid());
    assert!(said.contains("mount --write held") && said.contains(&process), "{said}");
    let open = fs::File::create(mounted.path("open")).expect("it goes on");
    open.write_all_at(b"kept", 0).and_then(|()| open.sync_all()).expect("it goes on");
    assert_eq!(mounted.log(), "");

    esker.ok(["mkdir".into(), "--take-over".into(), format!("{id}:/d")]);
    // The command has asked the mount, which refuses all changes from then on.
    is_stale(open.write_all_at(b"lost", 0));
    is_stale(fs::write(mounted.path("new"), "lost"));
    // It reports that without any write.
    let says_so = (0..3_000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        mounted.log().contains("taken over by")
    });
    assert!(says_so, "{}", mounted.log());
    assert!(mounted.log().contains("mkdir --take-over"), "{}", mounted.log());
    is_stale(open.set_len(1));
    is_stale(fs::create_dir(mounted.path("dir")));
    is_stale(fs::remove_file(mounted.path("a")));
    is_stale(open.sync_all());
    assert_eq!(fs::read(mounted.path("b")).expect("it can be read"), b"b");
    drop(open);
    let said = esker.fails(10, ["umount".as_ref(), mounted.root().as_os_str()]);
    assert!(said.contains("taken over by"), "{said}");
    assert_eq!(esker.ok(["cat".into(), format!("{id}:/open")]), "kept");
    esker.ok(["publish", &id, "held"]);
    esker.ok(["verify"]);
}

#[test]
fn sessions_that_nobody_holds_are_listed_reported_and_dropped_by_age() {
    let esker = Esker::new();
    let (old, held) = (begin(&esker), begin(&esker));
    esker.pipe(["put", "-", &format!("{old}:/f")], &[7; 300_000]);
    let mut first = waiting_writer(&esker, &held);
    let list = esker.json(["session", "list"]);
    let of = |id: &str| -> &Value {
        list.iter().find(|session| id[1..] == session["set"]).expect("it is listed")
    };
    let left = &of(&old)["writer"];
    assert_eq!((&left["state"], &left["is_writing"]), (&"released".into(), &false.into()));
    assert!(left["command"].as_str().is_some_and(|command| command.contains("put -")), "{left}");
    assert!(!left["host"].as_str().expect("a host").is_empty());
    assert!(!left["user"].as_str().expect("a user").is_empty());
    assert!(of(&old)["data_bytes"].as_u64().is_some_and(|bytes| bytes >= 300_000));
    assert_eq!(of(&held)["writer"]["state"], "alive");
    let text = esker.ok(["session", "list"]);
    let line = text.lines().find(|line| line.starts_with(&old)).expect("a line");
    assert!(
        line.contains("of data") && line.contains("put -") && line.contains("record"),
        "{line}"
    );
    assert!(esker.ok(["session", "show", &old]).contains("put -"));
    // A session with a live writer is not garbage, however old it is.
    let said = esker.ok(["gc"]);
    assert!(said.contains("1 session") && said.contains("--sessions-older-than"), "{said}");
    esker.ok(["gc", "--sessions-older-than", "1h"]);
    assert_eq!(esker.json(["session", "list"]).len(), 2);
    let said = esker.ok(["gc", "--sessions-older-than", "0s", "--dry-run"]);
    assert!(said.contains(&format!("would drop {old}")), "{said}");
    assert_eq!(esker.json(["session", "list"]).len(), 2);
    let said = esker.ok(["gc", "--sessions-older-than", "0s", "--grace", "0s"]);
    assert!(said.contains(&format!("dropped {old}")) && said.contains("freed"), "{said}");
    assert_eq!(esker.json(["session", "list"]).len(), 1);
    esker.fails(3, ["ls", &old]);
    first.kill().and_then(|()| first.wait()).expect("it is ours");
}

/// The state after an import is killed between completing its set and naming it.
#[test]
fn a_session_that_is_complete_and_has_no_name_is_listed_as_such() {
    let esker = Esker::new();
    let id = begin(&esker);
    esker.ok(["session", "complete", &id]);
    let text = esker.ok(["session", "list"]);
    assert!(text.contains(&id) && text.contains("complete, without a name"), "{text}");
    esker.ok(["publish", &id, "name"]);
    assert_eq!(esker.ok(["session", "list"]), "");
    let other = begin(&esker);
    esker.ok(["session", "complete", &other]);
    esker.ok(["gc", "--sessions-older-than", "0s", "--grace", "0s"]);
    assert_eq!(esker.ok(["session", "list"]), "");
    assert_eq!(esker.ok(["ls", "name"]), "");
}

/// Symptom: `session list` reported "0 records" for a mount that had written thousands.
#[test]
fn what_a_session_has_not_flushed_is_listed_as_such() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("later", &[]);
    for number in 0..100 {
        fs::File::create(mounted.path(number.to_string())).expect("create");
    }
    fs::File::open(mounted.root()).and_then(|root| root.sync_all()).expect("sync");
    let list = mounted.esker.json(["session", "list"]);
    assert!(list[0]["log_bytes"].as_u64().is_some_and(|bytes| bytes > 100), "{list:?}");
    assert!(mounted.esker.ok(["session", "list"]).contains("not flushed"));
    let session = format!("@{}:/", list[0]["set"].as_str().expect("text"));
    let listed = mounted.esker.run(["ls", &session]);
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(listed.stdout.is_empty() && said.contains("bytes of its log are not shown"), "{said}");
    mounted.end();
}

/// Symptom: `session drop` of a published set reported success, and the set stayed.
#[test]
fn a_published_set_is_not_dropped_as_a_session() {
    let esker = Esker::new();
    let id = begin(&esker);
    esker.ok(["publish", &id, "kept"]);
    let said = esker.fails(13, ["session", "drop", &id]);
    assert!(said.contains("`esker delete kept`"), "{said}");
    esker.ok(["ls", "kept:/"]);
}

/// Symptom: a mount over a directory that showed another one covered it without notice, also one that
/// took over its session; the old one went on beneath.
/// Fix: such a mount is refused, or replaces the one that it takes over.
#[test]
fn a_mount_is_not_covered_by_another() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("held", &[]);
    let esker = &mounted.esker;
    let at = mounted.root().to_str().expect("UTF-8").to_owned();
    esker.publish("other", &[("f", "")]);
    let advice = format!("`esker umount {at}`");
    for arguments in [
        &["mount", "other", &at][..],
        &["mount", "--write", "next", &at],
        &["mount", "--write", "held", "--resume", &at],
    ] {
        let said = esker.fails(9, arguments);
        assert!(said.contains(&advice) && said.contains("shows held there"), "{said}");
    }
    fs::write(mounted.path("kept"), "kept").expect("write");
    fs::File::open(mounted.root()).and_then(|root| root.sync_all()).expect("sync");
    let old = mounted.pid();
    mounted.mount(&["mount", "--write", "held", "--resume", "--take-over"]);
    assert_ne!(mounted.pid(), old);
    assert_eq!(fs::read(mounted.path("kept")).expect("it was synced"), b"kept");
    wait_for_end(old);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a list");
    assert_eq!(mounts.lines().filter(|line| line.contains(&at)).count(), 1, "{mounts}");
    fs::write(mounted.path("new"), "new").expect("write");
    mounted.end();
    assert_eq!(esker.ok(["ls", "held:/"]), "kept\nnew\n");
}

/// Symptom: the advice for a mount that died lacked its directory, and how to go on with its session.
#[test]
fn advice_for_a_dead_mount_can_be_pasted() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("dead", &[]);
    let at = mounted.root().to_str().expect("UTF-8").to_owned();
    mounted.crash();
    let resume = format!("`esker mount --write dead --resume {at}`");
    for arguments in [&["umount", &at][..], &["commit", &at, "x"]] {
        let said = mounted.esker.fails(Kind::Closed.exit_code().into(), arguments);
        assert!(
            said.contains(&resume) && said.contains(&format!("`fusermount3 -u {at}`")),
            "{said}"
        );
    }
    assert!(mounted.esker.ok(["mounts"]).contains(&resume));
    assert!(mounted.esker.fails(9, ["mount", "--write", "dead", &at]).contains(&resume));
    mounted.resume("dead");
    mounted.end();
}
