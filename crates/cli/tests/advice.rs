// SPDX-License-Identifier: Apache-2.0
//! Advice: a command that an error names in backticks works when it is pasted.
//!
//! Symptom: after a refused `publish --replace` of a session the advice was to publish it with `--base
//! THIS`, which is no name, and a session is no base; others named `NAME`, `OTHERNAME` or a command
//! without its arguments.
//! Cause: the layers below the command wrote the advice, and know neither what the user wrote nor whether
//! the source is an open session.
//! Fix: they say what is the case, and the command how to go on.

use std::process::{Command, Output};

use crate::esker::Esker;

/// The commands in backticks in what was `said`.
fn commands_in(said: &str) -> Vec<String> {
    let quoted = said.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.starts_with("esker ")).map(str::to_owned).collect()
}

/// Runs each advice in what was `said`, as of a shell in the test's directory, on a copy of the store as
/// it is now; there are `count`. Returns the store after each.
fn follow(esker: &Esker, said: &str, count: usize) -> Vec<std::path::PathBuf> {
    let commands = commands_in(said);
    assert_eq!(commands.len(), count, "{said}");
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_esker"));
    let path = std::env::var("PATH").expect("a path");
    let path = format!("{}:{path}", binary.parent().expect("a directory").display());
    let mut stores = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        let digest = said.len();
        let copy = esker.path(format!("copy-{digest}-{number}"));
        if esker.store().exists() {
            let copied = Command::new("cp").arg("-a").arg(esker.store()).arg(&copy).status();
            assert!(copied.expect("cp").success());
        }
        // An advice that names the store means the copy too.
        let store = esker.store().display().to_string();
        let pasted = command.replace(&store, &copy.display().to_string());
        let Output { status, stdout, stderr } = Command::new("bash")
            .args(["-c", &pasted])
            .current_dir(esker.path(""))
            .env("PATH", &path)
            .env("ESKER_STORE", &copy)
            .output()
            .expect("bash; every Debian has it");
        let printed = String::from_utf8_lossy(&stdout);
        let said = format!("{said}\n{command}: {printed}\n{}", String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{said}");
        stores.push(copy);
    }
    stores
}

/// What `esker cat` prints of the store at `store`.
fn cat(esker: &Esker, store: &std::path::Path, location: &str) -> String {
    esker.ok(["cat", location, "--store", store.to_str().expect("text")])
}

/// A snapshot `name`, of which a session began that was published as `other`, and another in its place.
fn moved() -> (Esker, String) {
    let esker = Esker::new();
    esker.publish("name", &[("f", "base")]);
    let begin = || esker.ok(["session", "begin", "--base", "name"]).trim().to_owned();
    let (first, second, open) = (begin(), begin(), begin());
    for (session, path) in [(&first, "first"), (&second, "ours"), (&open, "ours")] {
        esker.pipe(["put", "-", &format!("{session}:/{path}")], path.as_bytes());
    }
    esker.ok(["publish", "--replace", &first, "name"]);
    esker.ok(["publish", &second, "other"]);
    (esker, open)
}

/// Of each refusal the last advice lays both over each other.
#[test]
fn what_a_name_that_moved_hides_is_shown_after_the_advice() {
    let (esker, open) = moved();
    for refused in [
        &["publish", "--replace", "other", "name"][..],
        &["rename", "other", "name", "--replace"],
        &["publish", "--replace", "--base", "other", "name"],
    ] {
        let said = esker.fails(9, refused);
        let stores = follow(&esker, &said, 1);
        for path in ["first", "ours"] {
            assert_eq!(cat(&esker, &stores[0], &format!("name:/{path}")), path, "{said}");
        }
        std::fs::remove_dir_all(&stores[0]).expect("removed");
    }
    // A session gets a name first: the two commands are pasted one after the other.
    let said = esker.fails(9, ["publish", "--replace", &open, "name"]);
    for command in commands_in(&said) {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        esker.ok(words);
    }
    for path in ["first", "ours"] {
        assert_eq!(esker.ok(["cat".to_owned(), format!("name:/{path}")]), path, "{said}");
    }
}

/// Another publishes under the name while the command composes; the advice is followed then.
#[test]
fn a_composition_that_comes_too_late_is_laid_over() {
    let (esker, _) = moved();
    esker.ok(["rm", "name:/f", "--as", "next"]);
    let mut command = esker.command(["publish", "--replace", "--base", "next", "name"]);
    let meanwhile = format!("{} publish --replace --hide-newer other name", binary());
    command.env("ESKER_TEST_RUN", format!("/manifest/0000000000000002:{meanwhile}"));
    let output = command.output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{said}");
    let stores = follow(&esker, &said, 1);
    assert_eq!(cat(&esker, &stores[0], "name:/ours"), "ours");
}

fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_esker")
}

/// Symptom: `undelete` of a name that was taken meanwhile advised to delete that, after which `undelete`
/// gives the name back to the one that was deleted last.
#[test]
fn a_deleted_name_that_is_taken_is_given_back_otherwise() {
    let esker = Esker::new();
    esker.publish("old", &[("f", "deleted")]);
    esker.ok(["publish", "old", "name"]);
    esker.ok(["delete", "name", "old"]);
    esker.publish("name", &[("f", "meanwhile")]);
    let said = esker.fails(4, ["undelete", "name"]);
    let stores = follow(&esker, &said, 2);
    let other = commands_in(&said)[0].rsplit_once(' ').expect("words").1.to_owned();
    assert_eq!(cat(&esker, &stores[0], &format!("{other}:/f")), "deleted");
    assert_eq!(cat(&esker, &stores[0], "name:/f"), "meanwhile");
    assert_eq!(cat(&esker, &stores[1], "name:/f"), "deleted");
}

#[test]
fn pasted_advice_works() {
    let (esker, open) = moved();
    std::fs::create_dir(esker.path("a dir")).expect("new");
    std::fs::write(esker.path("a dir/x"), "x").expect("a file");
    std::fs::write(esker.path("file"), "x").expect("a file");
    std::fs::write(esker.path("dump"), [7; 16]).expect("a file");
    let at_open = format!("{open}:/more");
    let set = esker.json(["show", "other"])[0]["set"].as_str().expect("an id").to_owned();
    let set = format!("@{set}");
    esker.ok(["publish", "other", "gone"]);
    esker.ok(["delete", "gone"]);
    let job = esker.ok(["session", "job"]).trim().to_owned();
    let part = ["session", "begin", "--job", &job, "--rank", "0"];
    let part = esker.ok(part).trim().to_owned();
    for (code, refused, count) in [
        (13, &["rm", "name:/f"][..], 1),
        (4, &["publish", "other", "name"], 1),
        (4, &["publish", &open, "name"], 1),
        (4, &["rename", "other", "name"], 1),
        (4, &["import", "a dir", "name"], 1),
        (4, &["squash", "other", "--as", "name"], 0),
        (4, &["rm", "other:/f", "--as", "name"], 0),
        (13, &["publish", "--base", &open, "both"], 1),
        (13, &["session", "begin", "--base", &open], 1),
        (2, &["session", "drop", "name"], 1),
        (13, &["session", "drop", &set], 1),
        (2, &["delete", &open], 1),
        (2, &["delete", "other:/f"], 2),
        (2, &["delete", "o*"], 1),
        (6, &["put", "a dir", "other:/more", "--as", "new"], 1),
        (6, &["put", "a dir", &at_open], 1),
        (6, &["put", "a dir", "other:/more"], 1),
        (5, &["import", "file", "new"], 1),
        (3, &["cat", "nothing:/f"], 1),
        (3, &["cat", "@12345678:/f"], 2),
        (3, &["undelete", "nothing"], 1),
        (3, &["publish", "--job", "0123456789abcdef0123456789abcdef", "new"], 1),
        (13, &["publish", "--job", &job, "new"], 2),
        (2, &["publish", "name"], 1),
        (2, &["mount", "name"], 1),
        (13, &["imd", "write", "new:/p", "--transport", "tcp"], 1),
        (2, &["export", "name:/f", "-"], 1),
    ] {
        let output = esker.run(refused);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{refused:?}: {said}");
        for copy in follow(&esker, &said, count) {
            let _ = std::fs::remove_dir_all(copy);
        }
    }
    esker.ok(["session", "complete", &part]);
    let gone = Esker::without_store();
    let said = gone.fails(3, ["names"]);
    follow(&gone, &said, 1);
    std::fs::create_dir(gone.store()).expect("new");
    let said = gone.fails(3, ["names"]);
    follow(&gone, &said, 1);
}

/// What a collection, a dropped session and an interrupted export say.
#[test]
fn notices_advise_what_works() {
    let (esker, open) = moved();
    esker.ok(["delete", "other"]);
    let output = esker.run(["gc"]);
    let said = [output.stdout, output.stderr].concat();
    follow(&esker, &String::from_utf8_lossy(&said), 3);
    let dropped = esker.ok(["session", "drop", &open]);
    follow(&esker, &dropped, 1);
    for number in 1..40 {
        let mut command = esker.command(["export", "name:/", "an export"]);
        command.env("ESKER_TEST_SIGNAL", format!("15:{number}"));
        let said = command.output().expect("the binary runs").stderr;
        let said = String::from_utf8_lossy(&said);
        if said.contains("exported so far") {
            follow(&esker, &said, 1);
            assert_eq!(std::fs::read(esker.path("an export/first")).expect("a file"), b"first");
            return;
        }
        let _ = std::fs::remove_dir_all(esker.path("an export"));
    }
    panic!("no export was interrupted");
}
