// SPDX-License-Identifier: Apache-2.0
//! Changes in open sessions and on top of published names.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::esker::Esker;

/// Begins a session on `bases` and returns its id with the @.
fn begin(esker: &Esker, bases: &[&str]) -> String {
    let mut arguments = vec!["session", "begin"];
    arguments.extend(bases.iter().flat_map(|base| ["--base", base]));
    esker.ok(arguments).trim().to_owned()
}

#[test]
fn a_session_takes_changes_until_it_is_published() {
    let esker = Esker::new();
    esker.publish("base", &[("a/one", "1"), ("a/two", "2"), ("b", "3")]);
    let id = begin(&esker, &["base"]);
    let at = |path: &str| format!("{id}:{path}");
    esker.ok(["mkdir".into(), "-p".into(), at("/x/y/z")]);
    esker.pipe(["put".into(), "-".into(), at("/x/new")], b"from a pipe");
    esker.ok(["mv".into(), at("/a/one"), at("/b"), at("/x/y")]);
    esker.ok(["rm".into(), "-r".into(), at("/a")]);
    // Readers see it before it is published, and do not disturb it.
    assert_eq!(esker.ok(["cat".into(), at("/x/new")]), "from a pipe");
    assert_eq!(esker.ok(["ls".into(), at("/x/y")]), "b\none\nz\n");
    // A few digits are enough.
    assert_eq!(esker.ok(["ls".into(), format!("{}:/", &id[..9])]), "x\n");
    assert!(esker.ok(["session", "list"]).contains(&id));
    esker.ok(["publish", &id, "done"]);
    assert!(!esker.ok(["session", "list"]).contains(&id));
    assert_eq!(
        esker.ok(["find", "done:/", "--type", "f", "--sorted"]),
        "/x/new\n/x/y/b\n/x/y/one\n"
    );
    assert_eq!(esker.ok(["ls", "base:/"]), "a\nb\n");
    assert!(esker.ok(["verify"]).starts_with("sound"));
}

#[test]
fn changes_of_a_published_name_get_a_new_name() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1")]);
    let said = esker.fails(13, ["rm", "base:/a"]);
    assert!(said.contains("--as NEWNAME") && said.contains("session begin --base base"), "{said}");
    assert!(esker.ok(["rm", "base:/a", "--as", "without"]).starts_with("published without @"));
    assert_eq!(esker.ok(["ls", "without"]), "");
    assert_eq!(esker.ok(["ls", "base"]), "a\n");
    // A taken name is refused before anything is done.
    assert!(esker.fails(4, ["rm", "base:/a", "--as", "without"]).contains("is taken"));
}

#[test]
fn a_command_that_fails_leaves_no_session_behind() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1")]);
    esker.fails(3, ["rm", "base:/nothing", "--as", "new"]);
    assert_eq!(esker.ok(["session", "list"]), "");
    esker.fails(3, ["ls", "new"]);
    esker.ok(["gc", "--grace", "0s"]);
    assert_eq!(esker.json(["log"]).len(), 1);
}

#[test]
fn a_dropped_session_is_collected() {
    let esker = Esker::new();
    let id = begin(&esker, &[]);
    esker.pipe(["put", "-", &format!("{id}:/f")], b"x");
    esker.ok(["session", "drop", &id]);
    assert_eq!(esker.ok(["session", "list"]), "");
    esker.ok(["gc", "--grace", "0s"]);
    esker.fails(3, ["ls", &id]);
}

#[test]
fn put_replaces_and_goes_into_directories() {
    let esker = Esker::new();
    esker.publish("base", &[("d/f", "old")]);
    let id = begin(&esker, &["base"]);
    let at = |path: &str| format!("{id}:{path}");
    std::fs::write(esker.path("f"), "new").expect("a file");
    esker.ok(["put".into(), "f".into(), at("/d")]);
    assert_eq!(esker.ok(["cat".into(), at("/d/f")]), "new");
    esker.pipe(["put".into(), "-".into(), at("/d/f")], b"newer");
    assert_eq!(esker.ok(["cat".into(), at("/d/f")]), "newer");
    assert!(esker.fails(6, ["put".into(), "-".into(), at("/d")]).contains("name the file"));
}

#[test]
fn new_files_have_the_bits_that_the_umask_leaves() {
    let esker = Esker::new();
    let id = begin(&esker, &[]);
    std::fs::write(esker.path("program"), "#!").expect("a file");
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(esker.path("program"), all).expect("mode");
    let run = |words: &str| {
        let line = format!("umask 027; exec \"$0\" {words}");
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(line).arg(env!("CARGO_BIN_EXE_esker"));
        shell.env("ESKER_STORE", esker.store()).current_dir(esker.path("")).stdin(Stdio::null());
        assert!(shell.status().expect("a shell").success());
    };
    run(&format!("put - {id}:/plain"));
    run(&format!("put program {id}:/program"));
    run(&format!("mkdir {id}:/d"));
    run(&format!("mkdir -m 1777 {id}:/open"));
    for (path, mode) in [("plain", "0640"), ("program", "0750"), ("d", "0750"), ("open", "1777")] {
        let stat = esker.json(["stat", &format!("{id}:/{path}")]);
        assert_eq!(stat[0]["mode"], mode, "{path}");
    }
}

#[test]
fn renames_keep_to_the_flags() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1"), ("b", "2")]);
    esker.fails(4, ["mv", "-n", "base:/a", "base:/b", "--as", "x"]);
    esker.ok(["mv", "--exchange", "base:/a", "base:/b", "--as", "y"]);
    assert_eq!(esker.ok(["cat", "y:/a", "y:/b"]), "21");
    esker.fails(2, ["mv", "base:/a", "y:/b", "--as", "z"]);
    esker.fails(5, ["mv", "base:/a", "base:/b", "base:/c", "--as", "z"]);
}

#[test]
fn parts_of_a_job_become_one() {
    let esker = Esker::new();
    esker.publish("base", &[("d/old", "x")]);
    let job = esker.ok(["session", "job"]).trim().to_owned();
    esker.fails(3, ["publish", "--job", &job, "both"]);
    let part = |rank: &str| {
        let begin = ["session", "begin", "--base", "base", "--job", &job, "--rank", rank];
        esker.ok(begin).trim().to_owned()
    };
    let (a, b) = (part("0"), part("1"));
    for (id, name) in [(&a, "a"), (&b, "b")] {
        esker.pipe(["put", "-", &format!("{id}:/d/{name}")], name.as_bytes());
        esker.pipe(["put", "-", &format!("{id}:/d/shared")], name.as_bytes());
    }
    esker.ok(["session", "complete", &a, &b]);
    let output = esker.run(["publish", "--job", &job, "both"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("/d/shared: parts disagree"), "{said}");
    assert_eq!(esker.ok(["cat", "both:/d/a", "both:/d/b", "both:/d/shared"]), "aba");
}
