// SPDX-License-Identifier: Apache-2.0
//! Stacks of snapshots: composing, comparing, drawing, squashing, collecting.

use std::io::Read;
use std::process::Stdio;

use crate::esker::Esker;

/// Two snapshots that share a path, and a composition of both.
fn composed() -> Esker {
    let esker = Esker::new();
    esker.publish("a", &[("shared", "from a"), ("d/a", "x")]);
    esker.publish("b", &[("shared", "from b"), ("d/b", "y")]);
    esker.ok(["publish", "--base", "a", "--base", "b", "ab"]);
    esker
}

#[test]
fn earlier_bases_win_and_directories_merge() {
    let esker = composed();
    esker.ok(["publish", "--base", "b", "--base", "a", "ba"]);
    assert_eq!(esker.ok(["cat", "ab:/shared"]), "from a");
    assert_eq!(esker.ok(["cat", "ba:/shared"]), "from b");
    assert_eq!(esker.ok(["ls", "ab:/d"]), "a\nb\n");
}

/// Symptom: of two bases that had both changed a file, the first silently hid the other.
#[test]
fn conflicts_of_bases_are_reported_refused_or_decided() {
    let esker = Esker::new();
    esker.publish("common", &[("file", "common"), ("kept", "common")]);
    for (name, text) in [("old", "from old"), ("new", "from new")] {
        let session = esker.ok(["session", "begin", "--base", "common"]).trim().to_owned();
        esker.pipe(["put", "-", &format!("{session}:/file")], text.as_bytes());
        esker.ok(["publish", &session, name]);
    }
    let compose = ["publish", "--base", "old", "--base", "new"];
    let with = |arguments: &[&'static str]| [&compose[..], arguments].concat();
    let said = esker.ok(with(&["reported"]));
    assert!(said.contains("/file: shows old, and not new\n"), "{said}");
    assert_eq!(esker.ok(["cat", "reported:/file"]), "from old");
    let said = esker.run(with(&["--conflicts", "refuse", "refused"]));
    assert_eq!(said.status.code(), Some(9));
    assert!(String::from_utf8_lossy(&said.stdout).contains("/file: would show old, and not new"));
    assert!(String::from_utf8_lossy(&said.stderr).contains("the bases conflict at 1 path"));
    esker.fails(3, ["cat", "refused:/file"]);
    assert_eq!(esker.json(["session", "list"]).len(), 0);
    esker.ok(with(&["--conflicts", "newest", "newest"]));
    assert_eq!(esker.ok(["cat", "newest:/file"]), "from new");
    assert_eq!(esker.ok(["cat", "newest:/kept"]), "common");
    assert!(!esker.ok(with(&["--conflicts", "first", "first"])).contains("/file"));
    assert_eq!(esker.ok(["cat", "first:/file"]), "from old");
    esker.ok(with(&["--conflicts", "newest", "--replace", "--hide-newer", "first"]));
    assert_eq!(esker.ok(["cat", "first:/file"]), "from new");
    let lines = esker.json(with(&["json"]));
    assert_eq!((&lines[0]["conflict"], &lines[1]["published"]), (&"/file".into(), &"json".into()));
    // A set does not conflict with its own base.
    esker.ok(["publish", "--base", "new", "--base", "common", "--conflicts", "refuse", "over"]);
}

/// Symptom: bases that had moved one directory to two places, or two into each other, were composed
/// without a word.
#[test]
fn directories_that_bases_moved_to_different_places_are_conflicts() {
    let esker = Esker::new();
    esker.publish("common", &[("a/file", "1"), ("b/file", "2"), ("c/file", "3")]);
    for (name, from, to) in [("first", "a", "b/a"), ("apart", "a", "c/a"), ("around", "b", "a/b")] {
        let session = esker.ok(["session", "begin", "--base", "common"]).trim().to_owned();
        esker.ok(["mv", &format!("{session}:/{from}"), &format!("{session}:/{to}")]);
        esker.ok(["publish", &session, name]);
    }
    let said = esker.ok(["publish", "--base", "first", "--base", "apart", "both"]);
    let line = "/b/a: one directory at /b/a and /c/a; first and apart moved directories to different places\n";
    assert!(said.contains(line), "{said}");
    let looped = ["publish", "--base", "first", "--base", "around", "--conflicts"];
    let said = esker.run([&looped[..], &["refuse", "refused"]].concat());
    assert_eq!(said.status.code(), Some(9));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = "/b: this directory is within itself; ";
    assert!(said.contains(line), "{said}");
    let said = esker.run([&looped[..], &["newest", "newest"]].concat());
    assert_eq!(said.status.code(), Some(9));
    let lines = esker.json([&looped[..], &["report", "looped"]].concat());
    let looped: Vec<_> = lines.iter().filter(|line| line["in_itself"] == true).collect();
    assert_eq!(looped.len(), 2, "{lines:?}");
    assert!(looped.iter().all(|line| line["paths"][0]["path"] == line["conflict"]), "{lines:?}");
    // Walks end, and say that they left something out.
    for walk in [
        &["find", "looped:/"][..],
        &["tree", "looped:/"],
        &["du", "looped:/"],
        &["diff", "common", "looped"],
    ] {
        assert_ne!(esker.run(walk.to_vec()).status.code(), Some(0), "{walk:?}");
    }
    let target = esker.path("exported");
    let target = target.to_str().expect("text");
    assert_ne!(esker.run(["export", "looped", target]).status.code(), Some(0));
}

#[test]
fn a_snapshot_takes_further_names() {
    let esker = composed();
    esker.ok(["publish", "ab", "latest"]);
    esker.ok(["delete", "ab", "a", "b"]);
    assert_eq!(esker.ok(["cat", "latest:/d/b"]), "y");
    esker.ok(["gc", "--grace", "0s"]);
    assert_eq!(esker.ok(["cat", "latest:/d/a"]), "x");
    let names: Vec<_> = esker.json(["names"]);
    assert_eq!(names.len(), 1);
    assert_eq!(names[0]["name"], "latest");
}

#[test]
fn differences_are_listed_in_order() {
    let esker = composed();
    assert_eq!(
        esker.ok(["diff", "a", "b", "--ignore-times"]),
        "D /d/a\nA /d/b\nM /shared (content, time)\n"
    );
    let counts = esker.json(["diff", "--summarize", "a", "ab"]);
    assert_eq!((&counts[0]["added"], &counts[0]["deleted"]), (&1.into(), &0.into()));
    assert_eq!(esker.run(["diff", "--exit-code", "a", "b"]).status.code(), Some(1));
    assert_eq!(esker.run(["diff", "--exit-code", "a", "a"]).status.code(), Some(0));
    assert_eq!(esker.run(["diff", "a", "b"]).status.code(), Some(0));
}

#[test]
fn the_graph_shows_what_builds_on_what() {
    let esker = composed();
    let graph = esker.ok(["log"]);
    let names: Vec<&str> = graph.lines().filter_map(|line| line.split("  ").last()).collect();
    let place = |name: &str| names.iter().position(|found| *found == name).expect("drawn");
    assert!(place("ab") < place("a").min(place("b")), "{graph}");
    assert!(graph.contains("├─╮"), "{graph}");
    let ascii = esker.ok(["log", "--ascii"]);
    assert!(ascii.is_ascii() && ascii.contains("|-."), "{ascii}");
    assert_eq!(esker.json(["log", "b"]).len(), 1);
}

#[test]
fn a_squashed_stack_shows_the_same_and_needs_nothing() {
    let esker = composed();
    esker.ok(["rm", "-r", "ab:/d", "--as", "less"]);
    esker.ok(["squash", "less", "--as", "flat"]);
    assert_eq!(esker.ok(["diff", "less", "flat"]), "");
    esker.ok(["delete", "a", "b", "ab", "less"]);
    esker.ok(["gc", "--grace", "0s"]);
    assert_eq!(esker.ok(["cat", "flat:/shared"]), "from a");
    assert_eq!(esker.json(["log"]).len(), 1);
    let report = &esker.json(["verify"])[0];
    assert_eq!(report["sound"], true, "{report}");
}

#[test]
fn a_squash_refers_to_file_data_unless_told_to_copy_it() {
    let esker = Esker::new();
    let text = "x".repeat(5_000);
    esker.publish("a", &[("file", &text), ("other", &text)]);
    assert!(esker.ok(["squash", "a", "--as", "flat"]).contains("refers to data of 1 change set"));
    assert!(esker.ok(["show", "flat"]).contains("refers to  9.8 KiB in data logs of 1 change set"));
    assert_eq!(esker.json(["show", "flat"])[0]["referenced_bytes"], 10_000);
    assert!(esker.json(["names", "-l"])[1]["bytes"].as_u64() > Some(10_000));
    esker.ok(["delete", "a"]);
    assert!(
        esker.ok(["gc", "-n", "--grace", "0"]).contains("would keep only the data of 1 change set")
    );
    assert_eq!(
        esker.json(["gc", "--grace", "0"])[0]["data_only_sets"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(esker.ok(["cat", "flat:/file"]), text);
    assert!(esker.ok(["log"]).contains("deleted; squashes keep data"));
    esker.ok(["verify"]);
    let copied = esker.ok(["squash", "flat", "--as", "own", "--copy-data"]);
    assert!(copied.contains("copied 9.8 KiB of data"), "{copied}");
    esker.ok(["delete", "flat"]);
    esker.ok(["gc", "--grace", "0"]);
    assert_eq!(esker.ok(["cat", "own:/other"]), text);
    assert_eq!(esker.json(["log"]).len(), 1);
}

#[test]
fn compaction_keeps_what_is_shown() {
    let esker = Esker::new();
    let id = esker.ok(["session", "begin"]).trim().to_owned();
    for number in 0..5 {
        esker.pipe(["put", "-", &format!("{id}:/f{number}")], b"x");
    }
    esker.ok(["publish", &id, "many"]);
    let runs = |name: &str| esker.json(["show", name])[0]["runs"].as_u64();
    assert!(runs("many") > Some(1));
    esker.ok(["compact", "many"]);
    assert_eq!(runs("many"), Some(1));
    assert_eq!(esker.ok(["ls", "many"]), "f0\nf1\nf2\nf3\nf4\n");
}

/// Symptom: `gc` freed a snapshot whose name had been deleted a second before, and no command could
/// restore the name.
#[test]
fn a_deleted_name_is_given_back_until_the_grace_is_over() {
    let esker = Esker::new();
    esker.publish("a", &[("file", "text")]);
    esker.ok(["delete", "a"]);
    let said = String::from_utf8(esker.run(["gc"]).stderr).expect("UTF-8");
    assert!(said.contains("kept for the grace period: 1 change set of deleted names"), "{said}");
    assert_eq!(esker.json(["names", "--deleted"])[0]["name"], "a");
    assert!(esker.ok(["names", "--deleted"]).starts_with("a  deleted 20"));
    assert!(esker.ok(["undelete", "a"]).starts_with("published a @"));
    assert_eq!(esker.ok(["cat", "a:/file"]), "text");
    esker.ok(["delete", "a"]);
    esker.ok(["gc", "--grace", "0"]);
    assert!(esker.fails(3, ["undelete", "a"]).contains("names --deleted"));
    assert_eq!(esker.ok(["names", "--deleted"]), "");
}

#[test]
fn names_move_in_one_step() {
    let esker = composed();
    assert!(esker.fails(4, ["rename", "a", "b"]).contains("is taken"));
    assert!(esker.ok(["rename", "a", "c"]).starts_with("a is c now @"));
    esker.fails(3, ["cat", "a:/shared"]);
    assert_eq!(esker.ok(["cat", "c:/shared"]), "from a");
    esker.ok(["rename", "c", "b", "--replace"]);
    assert_eq!(esker.ok(["cat", "b:/shared"]), "from a");
    esker.publish("next", &[("shared", "from next")]);
    assert!(esker.fails(4, ["publish", "next", "b"]).contains("--replace"));
    esker.ok(["publish", "--replace", "next", "b"]);
    assert_eq!(esker.ok(["cat", "b:/shared"]), "from next");
    let session = esker.ok(["session", "begin", "--base", "b"]).trim().to_owned();
    esker.pipe(["put", "-", &format!("{session}:/shared")], b"changed");
    esker.ok(["publish", "--replace", &session, "b"]);
    assert_eq!(esker.ok(["cat", "b:/shared"]), "changed");
    esker.ok(["publish", "--replace", "--base", "ab", "--base", "b", "b"]);
    assert_eq!(esker.ok(["cat", "b:/shared"]), "from a");
    assert_eq!(esker.json(["names"]).len(), 3);
    esker.ok(["verify"]);
}

/// Symptom: `delete a b c` that failed at `b` did not report that `a` was gone; for `delete @SET`
/// and patterns the error was "no name" without a next step.
#[test]
fn a_deletion_that_fails_says_what_was_deleted() {
    let esker = composed();
    let said = esker.fails(3, ["delete", "a", "missing", "b"]);
    assert!(
        said.contains("\"missing\"") && said.contains("deleted before that: a; left: b"),
        "{said}"
    );
    assert!(esker.fails(2, ["delete", "b", "@1234"]).contains("esker session drop @1234"));
    assert!(esker.fails(2, ["delete", "b", "w*"]).contains("`esker names` lists"));
    assert!(esker.fails(2, ["delete", "b:/x"]).contains("esker rm"));
    assert_eq!(esker.json(["names"]).len(), 2, "nothing was deleted where an argument is wrong");
}

/// Symptom: `cat n:/1 n:/2` during a `publish --replace` showed the first file of one snapshot and
/// the second of the next.
/// Cause: each location looked up its name when its turn came.
/// Fix: a command first looks up all names, each once.
#[test]
fn all_locations_of_a_command_are_in_one_snapshot() {
    let esker = Esker::new();
    // More than a pipe holds: the command waits for its reader before it comes to the next
    // location.
    let large = "x".repeat(1 << 20);
    esker.publish("n", &[("1", &large), ("2", "old")]);
    esker.publish("next", &[("1", "new"), ("2", "new")]);
    let mut command = esker.command(["cat", "n:/1", "n:/2"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut output = child.stdout.take().expect("piped");
    let mut shown = vec![0];
    output.read_exact(&mut shown).expect("a byte");
    esker.ok(["publish", "--replace", "next", "n"]);
    output.read_to_end(&mut shown).expect("the rest");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(String::from_utf8(shown).expect("UTF-8"), large + "old");
}

/// Symptom: of two sessions that began from one snapshot and were published by `--replace` under
/// its name, the second silently hid the changes of the first.
/// Cause: a name was replaced whatever it stood for by then.
/// Fix: the new snapshot must build on the one that the name stands for, or share nothing with it;
/// otherwise it is refused unless `--hide-newer` is given.
#[test]
fn a_name_that_moved_meanwhile_is_not_replaced_silently() {
    let esker = Esker::new();
    esker.publish("name", &[("f", "base")]);
    let begin = || esker.ok(["session", "begin", "--base", "name"]).trim().to_owned();
    let put = |session: &str, path: &str| {
        esker.pipe(["put", "-", &format!("{session}:{path}")], b"changed");
    };
    let (first, second) = (begin(), begin());
    put(&first, "/first");
    put(&second, "/second");
    esker.ok(["publish", "--replace", &first, "name"]);
    let said = esker.fails(9, ["publish", "--replace", &second, "name"]);
    assert!(said.contains("name has moved") && said.contains("--hide-newer"), "{said}");
    // The session stays open, and may be published otherwise.
    put(&second, "/more");
    esker.ok(["publish", &second, "other"]);
    for replacing in [
        &["publish", "--replace", "other", "name"][..],
        &["rename", "other", "name", "--replace"],
        &["publish", "--replace", "--base", "other", "name"],
    ] {
        esker.fails(9, replacing);
    }
    assert_eq!(esker.ok(["session", "list"]), "");
    assert_eq!(esker.ok(["ls", "name"]), "f\nfirst\n");
    esker.ok(["publish", "--replace", "--base", "other", "--base", "name", "name"]);
    assert_eq!(esker.ok(["ls", "name"]), "f\nfirst\nmore\nsecond\n");
    // Back to the snapshot that both began from, which hides all of that.
    esker.fails(2, ["publish", "--hide-newer", "other", "name"]);
    esker.fails(9, ["publish", "--replace", "other", "name"]);
    esker.ok(["publish", "--replace", "--hide-newer", "other", "name"]);
    assert_eq!(esker.ok(["ls", "name"]), "f\nmore\nsecond\n");
    // A snapshot that shares nothing with it still replaces it.
    esker.publish("unrelated", &[("g", "")]);
    esker.ok(["publish", "--replace", "unrelated", "name"]);
    assert_eq!(esker.ok(["ls", "name"]), "g\n");
    esker.ok(["verify"]);
}

/// Symptom: `gc --dry-run` left out sessions that `gc` drops before it collects, their contents,
/// unfinished uploads and leftovers of compactions.
/// Cause: a dry run stopped where a step depends on what an earlier step wrote.
/// Fix: a dry run keeps its would-be writes in memory.
#[test]
fn a_dry_run_says_what_a_collection_then_does() {
    let esker = composed();
    let session = esker.ok(["session", "begin", "--base", "b"]).trim().to_owned();
    esker.pipe(["put", "-", &format!("{session}:/large")], &[7; 20_000]);
    let other = esker.ok(["session", "begin"]).trim().to_owned();
    for name in ["x", "y"] {
        esker.ok(["mkdir".into(), format!("{other}:/{name}")]);
    }
    esker.ok(["publish", &other, "runs"]);
    esker.ok(["compact", "runs"]);
    for name in ["ab", "b"] {
        esker.ok(["delete", name]);
    }
    // A killed import, and one object of a killed upload.
    let mut import = esker.command(["import", "tree-a", "killed"]);
    import.env("ESKER_TEST_SIGNAL", "9:12");
    assert!(!import.output().expect("the binary runs").status.success());
    let gc = ["gc", "--grace", "0s", "--scan-data", "--sessions-older-than", "0"];
    let mut planned = esker.json([&gc[..], &["--dry-run"]].concat()).remove(0);
    let said = |arguments: &[&str]| {
        let output = esker.run(arguments);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        let printed = String::from_utf8(output.stdout).expect("UTF-8");
        (printed.replace("would free", "freed").replace("would drop", "dropped"), said)
    };
    let dry = said(&[&gc[..], &["--dry-run"]].concat());
    assert_eq!(esker.json(["names"]).len(), 2);
    // As text only once, since it cannot be repeated: its ages are in whole seconds.
    let without_ages = |(printed, said): (String, String)| {
        let is_total = |line: &&str| line.starts_with("freed") || line.starts_with("kept");
        (printed.lines().filter(is_total).collect::<Vec<_>>().join("\n"), said)
    };
    let copy = esker.path("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(esker.store()).arg(&copy).status();
    assert!(copied.expect("cp").success());
    let freed = said(&gc);
    assert_eq!(without_ages(dry), without_ages(freed));
    let copy = copy.to_str().expect("UTF-8");
    let mut done = esker.json([&gc[..], &["--store", copy]].concat()).remove(0);
    for report in [&mut planned, &mut done] {
        report["dry_run"] = false.into();
        let sessions = report["dropped_sessions"].as_array().expect("sessions").len();
        assert_eq!(sessions, 2, "{report}");
        report["dropped_sessions"] = sessions.into();
        let mut sets: Vec<String> = report["sets"]
            .as_array()
            .expect("sets")
            .iter()
            .map(|set| set.as_str().expect("an id").to_owned())
            .collect();
        sets.sort();
        report["sets"] = sets.into();
    }
    assert_eq!(planned, done);
    assert!(planned["objects"].as_u64() > Some(5), "{planned}");
}
