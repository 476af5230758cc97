// SPDX-License-Identifier: Apache-2.0
//! Each class of error has its exit code and suggests a next step.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::esker::Esker;

fn example() -> Esker {
    let esker = Esker::new();
    esker.publish("base", &[("d/f", "content"), ("g", &"x".repeat(5_000))]);
    esker
}

#[test]
fn each_kind_of_error_has_its_exit_code() {
    let esker = example();
    let long = format!("base:/{}", "n".repeat(256));
    for (code, arguments) in [
        (3, &["ls", "nothing"][..]),
        (3, &["cat", "base:/nothing"]),
        (3, &["ls", "@0123456789abcdef"]),
        (3, &["import", "nowhere", "new"]),
        (4, &["mkdir", "base:/d", "--as", "new"]),
        (4, &["import", "tree-base", "base"]),
        (4, &["init"]),
        (5, &["ls", "base:/g/below"]),
        (5, &["import", "tree-base/g", "new"]),
        (6, &["cat", "base:/d"]),
        (6, &["rm", "base:/d", "--as", "new"]),
        (7, &["export", "base:/", "tree-base"]),
        (13, &["rm", "base:/g"]),
        (13, &["names", "--store", "gopher://x"]),
        (2, &["publish", "base", "../x"]),
        (2, &["publish", "a/b", "x"]),
        (2, &["publish", "x"]),
        (2, &["mount", "a/b", "tree-base"]),
        (2, &["mount", "base"]),
        (2, &["find", "base", "--size", "much"]),
        (2, &["find", "base", "--mtime", "x"]),
        (2, &["touch", "base:/x", "-d", "never", "--as", "new"]),
        (2, &["rename", "base", ".x"]),
        (2, &["import", "tree-base", "a b"]),
        (14, &["stat", &long]),
    ] {
        let said = esker.fails(code, arguments);
        assert!(said.starts_with("esker: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// Objects of the store whose names contain `part`.
fn objects(esker: &Esker, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![esker.store()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(path).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.to_string_lossy().contains(part) {
                found.push(path);
            }
        }
    }
    found
}

fn flip(path: &PathBuf, at: usize) {
    let mut bytes = fs::read(path).expect("readable");
    bytes[at] ^= 1;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("mode");
    fs::write(path, bytes).expect("writable");
}

#[test]
fn damage_is_named_with_its_place() {
    let esker = example();
    let data = objects(&esker, "/data/");
    flip(&data[0], 100);
    let said = esker.fails(12, ["cat", "base:/g"]);
    assert!(said.contains("/data/") && said.contains("checksum"), "{said}");
    let printed = esker.run(["verify", "--json"]);
    assert_eq!(printed.status.code(), Some(12));
    assert!(String::from_utf8_lossy(&printed.stdout).contains("/data/"));
    // Everything else is exported; the damaged file is reported, not exported.
    let said = esker.fails(12, ["export", "base:/", "out"]);
    assert!(said.contains("out/g"), "{said}");
    assert!(esker.path("out/d/f").exists() && !esker.path("out/g").exists());
    flip(&objects(&esker, "/table/")[0], 10);
    assert!(esker.fails(12, ["ls", "base:/"]).contains("/table/"));
}

#[test]
fn a_store_of_a_newer_format_is_refused() {
    let esker = example();
    let mark = esker.store().join("esker.json");
    fs::set_permissions(&mark, fs::Permissions::from_mode(0o600)).expect("mode");
    fs::write(&mark, r#"{"format":99,"id":"x"}"#).expect("writable");
    assert!(esker.fails(13, ["names"]).contains("newer release"));
}

#[test]
fn a_published_session_takes_no_more_changes() {
    let esker = example();
    let id = esker.ok(["session", "begin"]).trim().to_owned();
    esker.ok(["publish", &id, "done"]);
    let said = esker.fails(13, ["put", "tree-base/g", &format!("{id}:/g")]);
    assert!(said.contains("is complete"), "{said}");
}

#[test]
fn mode_bits_deny() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let esker = example();
    fs::create_dir_all(esker.path("private/locked")).expect("new");
    fs::write(esker.path("private/locked/f"), "x").expect("a file");
    fs::set_permissions(esker.path("private/locked"), fs::Permissions::from_mode(0o700))
        .expect("mode");
    esker.ok(["import", "private", "private"]);
    // Another user may read the store, but not locked files in it.
    let share =
        std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(esker.path("")).status();
    assert!(share.expect("chmod runs").success());
    let run_as = |arguments: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = esker.command(arguments);
        command.uid(65_534).gid(65_534).current_dir("/");
        command.output()
    };
    // If other users cannot reach the binary itself, there is nothing to test.
    let Ok(listed) = run_as(&["ls", "private:/"]) else { return };
    if listed.status.code() == Some(8) && listed.stdout.is_empty() {
        assert!(String::from_utf8_lossy(&listed.stderr).contains("denied"));
        return;
    }
    assert_eq!(listed.stdout, b"locked\n");
    let denied = run_as(&["cat", "private:/locked/f"]).expect("it ran before");
    assert_eq!(denied.status.code(), Some(8));
    let found = run_as(&["find", "private:/"]).expect("it ran before");
    assert_eq!(found.status.code(), Some(8));
    assert_eq!(found.stdout, b"/\n/locked\n");
}

/// Symptom: one damaged manifest hid all of `names -l`; a session with one was not listed at all; a
/// damaged part of the name table hid all names.
/// Cause: the first error ended the list, or the damaged item was skipped.
/// Fix: the list continues, damaged items are marked, and the exit code reports damage.
#[test]
fn what_is_damaged_does_not_hide_the_rest_of_a_list() {
    let esker = example();
    esker.publish("second", &[("x", "y")]);
    let sessions: Vec<String> =
        (0..2).map(|_| esker.ok(["session", "begin"]).trim().to_owned()).collect();
    let set_of = |name: &str| {
        let names = esker.json(["names"]);
        let named = names.iter().find(|named| named["name"] == name).expect("published");
        named["set"].as_str().expect("an id").to_owned()
    };
    for set in [set_of("base"), sessions[0].trim_start_matches('@').to_owned()] {
        for manifest in objects(&esker, &format!("{set}/manifest/")) {
            flip(&manifest, 20);
        }
    }
    for list in [&["names", "-l"][..], &["session", "list"]] {
        let output = esker.run(list);
        let (printed, said) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(12), "{said}");
        assert!(said.contains("/manifest/"), "{said}");
        assert_eq!(printed.lines().count(), 2, "{printed}");
        assert_eq!(printed.lines().filter(|line| line.contains("damaged")).count(), 1, "{printed}");
        let output = esker.run([list, &["--json"]].concat());
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(printed.matches("\"error\":\"").count(), 1, "{printed}");
    }
    // The age of the damaged one is unknown: only an explicit command gives it up.
    esker.ok(["gc", "--sessions-older-than", "1d"]);
    esker.ok(["session", "drop", &sessions[0]]);
    assert_eq!(esker.ok(["session", "list"]).lines().count(), 1);
    let parts = objects(&esker, "/name/");
    flip(&parts[0], 9);
    let output = esker.run(["names"]);
    assert_eq!(output.status.code(), Some(12), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1, "{output:?}");
}

/// Symptom: `export --overwrite` to the directory of the store, or to one above it, deleted the
/// store.
/// Cause: the export checked only whether its destination may be replaced.
/// Fix: a destination inside the store, or with the store inside, is refused.
#[test]
fn an_export_does_not_replace_its_store() {
    let esker = Esker::new();
    esker.publish("name", &[("file", "text")]);
    let store = esker.path("store");
    let inside = store.join("new/deep");
    for target in [&store, &inside, &esker.path(".")] {
        let target = target.to_str().expect("UTF-8");
        for options in
            [&["export", "--overwrite", "name:/", target][..], &["export", "name:/", target]]
        {
            let said = esker.fails(13, options);
            assert!(said.contains("export to another directory"), "{options:?}: {said}");
        }
    }
    assert_eq!(esker.ok(["cat", "name:/file"]), "text");
}
