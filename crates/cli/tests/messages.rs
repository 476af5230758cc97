// SPDX-License-Identifier: Apache-2.0
//! Messages of commands: errors name the verb, the path and the next step; reports say what was
//! done.

use crate::esker::Esker;
use crate::mounted::{Mounted, can_mount, wait_for_end};

fn example() -> Esker {
    let esker = Esker::new();
    esker.publish("base", &[("d/e/f", "content"), ("d/g", "more"), ("h", "")]);
    esker
}

/// Symptom: "nope (No such file or directory)", which names neither the failed operation nor the
/// cause.
/// Cause: an errno with only the path for its context.
/// Fix: the context has the verb.
#[test]
fn an_errno_has_a_verb_and_a_path() {
    let esker = example();
    for (arguments, words) in [
        (&["import", "nope", "new"][..], "open nope"),
        (&["put", "nope", "base:/x", "--as", "new"], "open nope"),
        (&["mount", "base", "nope"], "mount at nope"),
        (&["segment", "replay", "new:/x", "--trace", "nope"], "read nope"),
        (
            &["imd", "import", "new:/x", "--record-bytes", "8", "--key", "0:u64", "nope"],
            "open nope",
        ),
    ] {
        let said = esker.fails(3, arguments);
        assert!(said.starts_with(&format!("esker: {words}")), "{said}");
    }
    assert!(!esker.fails(13, ["umount", "."]).contains("os error"));
}

/// Symptom: for `""`, `.x` and `w*` the error only listed the characters allowed in names.
#[test]
fn an_impossible_name_is_told_why() {
    let esker = example();
    for (name, why) in
        [("", "it is empty"), (".x", "it begins with '.'"), ("w*", "it contains '*'")]
    {
        let said = esker.fails(2, ["publish", "--base", "base", name]);
        assert!(said.contains(why) && said.contains("letters, digits"), "{said}");
        esker.fails(2, ["publish", "--replace", "--base", "base", name]);
        assert!(esker.fails(2, ["mkdir", "base:/x", "--as", name]).contains(why));
    }
}

#[test]
fn all_exit_codes_are_listed() {
    let esker = Esker::without_store();
    let listed = esker.ok(["exit-codes"]);
    let codes = listed.lines().map(|line| line.split_whitespace().next().expect("a code"));
    assert!(codes.eq((0..=26).map(|code| code.to_string())), "{listed}");
    assert_eq!(esker.json(["exit-codes"])[1]["code"], 1);
}

/// Symptom: `compact` of a session printed nothing, even with --json.
#[test]
fn a_compacted_session_is_reported() {
    let esker = example();
    let id = esker.ok(["session", "begin", "--base", "base"]).trim().to_owned();
    for name in ["a", "b"] {
        esker.ok(["touch", &format!("{id}:/{name}")]);
    }
    let report = esker.json(["compact", &id]);
    assert_eq!((&report[0]["operation"], &report[0]["sets"]), (&"compacted".into(), &1.into()));
    assert_eq!(report[0]["tables"], 1, "{report:?}");
    assert!(report[0]["records_read"].as_u64() >= Some(2), "{report:?}");
    assert!(esker.ok(["compact", &id]).starts_with("compacted 1 change set"));
}

/// Symptom: `ls -l` showed directories with one link and no size.
#[test]
fn directories_have_links_and_sizes() {
    let esker = example();
    let columns = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[1].to_owned(), words[4].to_owned())
    };
    let listed = esker.ok(["ls", "-l", "base:/"]);
    let lines: Vec<_> = listed.lines().map(columns).collect();
    assert_eq!(lines, [("3".into(), "2".into()), ("1".into(), "0".into())], "{listed}");
    assert_eq!(columns(&esker.ok(["ls", "-ld", "base:/"])), ("3".into(), "2".into()));
}

#[test]
fn ls_and_touch_take_what_their_models_take() {
    let esker = example();
    assert_eq!(esker.ok(["ls", "-1", "base:/"]), "d\nh\n");
    let listed = esker.ok(["ls", "-i", "base:/d"]);
    let id = esker.json(["stat", "base:/d/g"])[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(listed.lines().last(), Some(&*format!("{id} g")));
    esker.ok(["touch", "-d", "@7", "base:/h", "--as", "old"]);
    esker.ok(["touch", "-r", "old:/h", "base:/new", "--as", "new"]);
    assert_eq!(esker.json(["stat", "new:/new"])[0]["mtime_ns"], 7_000_000_000_u64);
    esker.ok(["chmod", "640", "base:/h", "--as", "closed"]);
    esker.ok(["chmod", "g=u", "closed:/h", "--as", "open"]);
    assert_eq!(esker.json(["stat", "open:/h"])[0]["mode"], "0660");
}

/// Symptom: `imd get` of an absent key printed a table header and exited with 0.
#[test]
fn an_absent_key_is_an_error() {
    let esker = Esker::new();
    esker.ok(["imd", "write", "run:/p", "--keys", "10", "--rank-memory", "4M"]);
    let key = esker.ok(["ls", "run:/p"]).lines().next().expect("keys").to_owned();
    let absent = "0000000000000000";
    let said = esker.fails(3, ["imd", "get", "run:/p", absent]);
    assert!(said.contains("run:/p: no value has the key 0000000000000000"), "{said}");
    let some = esker.run(["imd", "get", "run:/p", &key, absent]);
    assert_eq!(some.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&some.stdout).lines().count(), 2);
    esker.fails(3, ["imd", "get", "run:/p", &key, "--epochs", "7"]);
    esker.fails(3, ["imd", "get", "--json", "run:/p", absent]);
}

/// Symptom: a mount whose name had been taken meanwhile suggested publishing under that name.
#[test]
fn a_taken_name_is_not_suggested() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("wanted", &[]);
    let at = mounted.root().to_str().expect("UTF-8").to_owned();
    let session = mounted.esker.ok(["session", "begin"]).trim().to_owned();
    mounted.esker.ok(["publish", &session, "wanted"]);
    let said = mounted.esker.fails(4, ["umount", &at]);
    assert!(said.contains(" wanted-") && !said.contains(" wanted`: "), "{said}");
}

/// Symptom: a background mount reported no errors unless --log was given.
#[test]
fn a_mount_logs_to_a_file_that_is_named() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let at = mounted.root().canonicalize().expect("there");
    let listed = || {
        let all = mounted.esker.json(["mounts"]);
        all.into_iter().find(|mount| mount["mountpoint"].as_str() == at.to_str())
    };
    mounted.esker.ok(["mount", "--write", "work", at.to_str().expect("UTF-8")]);
    let mount = listed().expect("it is mounted");
    assert_eq!((&mount["name"], &mount["pid"]), (&"work".into(), &mounted.pid().into()));
    let log = std::path::PathBuf::from(mount["log"].as_str().expect("a log"));
    assert!(log.is_file() && log.starts_with(mounted.esker.path("state")), "{mount}");
    let line = format!("{}  work @", at.display());
    assert!(mounted.esker.ok(["mounts"]).lines().any(|shown| shown.starts_with(&line)));
    let pid = mounted.pid();
    mounted.end();
    wait_for_end(pid);
    assert!(listed().is_none() && !log.exists(), "nothing was written to it");
    mounted.mount(&["mount", "--write", "more"]);
    let mount = listed().expect("it is mounted");
    assert_eq!(mount["log"].as_str(), mounted.esker.path("log").to_str());
}

#[test]
fn names_have_details_if_asked() {
    let esker = example();
    esker.ok(["put", "tree-base/d/g", "base:/big", "--as", "more"]);
    let long = esker.json(["names", "-l"]);
    let records = |at: usize| long[at]["records"].as_u64().expect("a number");
    assert_eq!((&long[0]["name"], &long[1]["name"]), (&"base".into(), &"more".into()));
    assert!(records(1) > records(0) && records(0) >= 5, "{long:?}");
    assert_eq!(long[0]["uid"], rustix::process::geteuid().as_raw());
    let listed = esker.ok(["names", "-l"]);
    assert_eq!(listed.lines().filter(|line| line.contains(" records ")).count(), 2, "{listed}");
}

/// Symptom: `log` did not show who made a snapshot, with which command, and how long that took.
#[test]
fn the_log_names_authors() {
    let esker = example();
    let node = &esker.json(["log", "base"])[0];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(node["author"]["host"], host.trim(), "{node}");
    assert!(node["author"]["command"].as_str().is_some_and(|command| command.contains("import")));
    // A small import can begin and end within one tick of the clock.
    let ns = |name: &str| node[name].as_u64().expect("a time");
    let seconds = (ns("written_ns") - ns("created_ns")) as f64 / 1e9;
    let said = node["seconds"].as_f64().expect("a number");
    assert!((said - seconds).abs() < 1e-3, "{node}");
    let drawn = esker.ok(["log"]);
    let author = format!("@{}: ", host.trim());
    assert!(drawn.contains(&author) && drawn.contains(" s, by "), "{drawn}");
}

#[test]
fn what_is_published_keeps_a_message() {
    let esker = example();
    let id = esker.ok(["session", "begin", "--base", "base"]).trim().to_owned();
    esker.ok(["publish", &id, "next", "-m", "with\nclouds"]);
    esker.ok(["publish", "--base", "next", "composed", "--message", "as one"]);
    esker.ok(["import", "tree-base", "again", "-m", "twice"]);
    for (name, message) in [("next", "with\\nclouds"), ("composed", "as one"), ("again", "twice")] {
        let drawn = esker.ok(["log", name]);
        assert!(drawn.lines().next().expect("a title").contains(message), "{drawn}");
    }
    assert_eq!(esker.json(["log", "next"])[0]["properties"]["message"], "with\nclouds");
    esker.fails(13, ["publish", "next", "more", "-m", "too late"]);
    assert!(esker.ok(["verify"]).starts_with("sound"));
}

/// Symptom: `rm -r base:/` reported that `""` cannot be a file's name.
#[test]
fn the_root_is_called_the_root() {
    let esker = example();
    for arguments in
        [&["rm", "-r", "base:/", "--as", "new"][..], &["mv", "base:/", "base:/x", "--as", "new"]]
    {
        let said = esker.run(arguments).stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("root directory") && !said.contains("\"\""), "{said}");
    }
}

/// Symptom: an import under a taken name suggested `publish --replace`, which does not exist for
/// imports, and an open session as a base was to be resumed or abandoned, for which there is no
/// command.
#[test]
fn next_steps_fit_the_command() {
    let esker = example();
    let said = esker.fails(4, ["import", "tree-base", "base"]);
    assert!(!said.contains("--replace") && said.contains("esker delete base"), "{said}");
    assert!(esker.fails(4, ["publish", "--base", "base", "base"]).contains("--replace"));
    let id = esker.ok(["session", "begin"]).trim().to_owned();
    let said = esker.fails(13, ["session", "begin", "--base", &id]);
    assert!(said.contains(&format!("esker publish {id} session-")), "{said}");
}

/// Symptom: only `publish` and `import` took a message.
/// Fix: all commands that publish something new do.
#[test]
fn all_commands_that_publish_take_a_message() {
    let esker = example();
    std::fs::write(esker.path("dump"), [7; 16]).expect("a file");
    let mut expected = 0;
    for (name, words) in [
        ("put", &["put", "dump", "base:/x", "--as", "put"][..]),
        ("rm", &["rm", "base:/h", "--as", "rm"]),
        ("mv", &["mv", "base:/h", "base:/i", "--as", "mv"]),
        ("cp", &["cp", "base:/h", "base:/i", "--as", "cp"]),
        ("ln", &["ln", "base:/h", "base:/i", "--as", "ln"]),
        ("chmod", &["chmod", "600", "base:/h", "--as", "chmod"]),
        ("squash", &["squash", "put", "--as", "squash"]),
        ("import", &["import", "tree-base", "import"]),
        ("publish", &["publish", "--base", "rm", "--base", "mv", "publish"]),
        ("run", &["imd", "import", "run:/p", "--record-bytes", "16", "--key", "0:u64", "dump"]),
        ("run", &["imd", "append", "run:/p", "--record-bytes", "16", "--key", "0:u64", "dump"]),
        ("write", &["imd", "write", "write:/p", "--keys", "10"]),
        ("mkdir", &["mkdir", "base:/k", "--as", "mkdir"]),
        ("touch", &["touch", "base:/k", "--as", "touch"]),
    ] {
        expected += 1;
        let message = format!("{expected}: why");
        // In mkdir(1) and touch(1) -m is another option.
        let option = if ["mkdir", "touch"].contains(&name) { "--message" } else { "-m" };
        esker.ok([words, &[option, &message]].concat());
        assert_eq!(esker.json(["log", name])[0]["properties"]["message"], message, "{name}");
    }
    let id = esker.ok(["session", "begin"]).trim().to_owned();
    let said = esker.fails(2, ["put", "dump", &format!("{id}:/x"), "-m", "too early"]);
    assert!(said.contains("when it is published"), "{said}");
    let job = esker.ok(["session", "job"]).trim().to_owned();
    let part = esker.ok(["session", "begin", "--job", &job, "--rank", "0"]).trim().to_owned();
    esker.ok(["session", "complete", &part]);
    esker.ok(["publish", "--job", &job, "job", "-m", "of a job"]);
    assert_eq!(esker.json(["log", "job"])[0]["properties"]["message"], "of a job");
    if can_mount() {
        let at = esker.path("at");
        std::fs::create_dir(&at).expect("new");
        let at = at.to_str().expect("text");
        esker.ok(["mount", "--write", "mounted", at, "-m", "of a mount"]);
        esker.ok(["umount", at]);
        assert_eq!(esker.json(["log", "mounted"])[0]["properties"]["message"], "of a mount");
    }
}

/// Symptom: an export of a file to `NAME/` made a file, one to `-` a directory of that name; where an
/// indexed directory was to become a file whose name the tree has already, the error named the
/// directory.
#[test]
fn targets_of_exports_are_what_they_look_like() {
    let esker = example();
    std::fs::write(esker.path("dump"), [7; 16]).expect("a file");
    esker.ok(["imd", "import", "run:/p", "--record-bytes", "16", "--key", "0:u64", "dump"]);
    let said = esker.fails(5, ["export", "base:/h", "new/"]);
    assert!(said.contains("new/ is to be a directory, and base:/h becomes a file"), "{said}");
    esker.fails(5, ["export", "run:/p", "new/", "--indexed", "csv"]);
    assert!(!esker.path("new").exists());
    esker.ok(["export", "run:/p", "keys/"]);
    esker.ok(["export", "base:/", "all/"]);
    assert!(esker.path("all/d/g").exists());
    assert!(esker.fails(2, ["export", "base:/", "-"]).contains("./-"));
    esker.ok(["export", "base:/h", "./-"]);
    esker.ok(["put", "dump", "run:/p.csv", "--as", "both"]);
    let said = esker.fails(4, ["export", "both:/", "taken", "--indexed", "csv"]);
    assert!(said.contains("taken/p") && said.contains("p.csv"), "{said}");
}

/// Symptom: commands with `--as` advised to delete the snapshot whose name they could not use.
/// Cause: the layer that found the name taken wrote the advice, and does not know the command's options.
/// Fix: the command says how to give another name.
#[test]
fn a_taken_name_is_answered_with_the_option_for_another() {
    let esker = example();
    std::fs::write(esker.path("f"), "f").expect("write");
    for (arguments, advice) in [
        (&["put", "f", "base:/x", "--as", "base"][..], "give another one with --as"),
        (&["mkdir", "base:/x", "--as", "base"], "give another one with --as"),
        (&["squash", "base", "--as", "base"], "give another one with --as"),
        (&["segment", "replay", "base:/o", "--as", "base"], "give another one with --as"),
        (&["segment", "replay", "base:/o"], "on top of it by --as NEWNAME"),
        (&["imd", "write", "base:/p", "--keys", "9"], "on top of it by --as NEWNAME"),
    ] {
        let said = esker.fails(4, arguments);
        assert!(said.contains("the name \"base\" is taken; ") && said.contains(advice), "{said}");
        assert!(!said.contains("delete"), "{said}");
    }
}

/// Symptom: `segment replay` wrote, read and compared everything before it found the name taken.
/// Cause: only the publication looked.
#[test]
fn a_replay_begins_nothing_under_a_taken_name() {
    let esker = example();
    let said = esker.fails(4, ["segment", "replay", "base:/o", "--ranks", "2"]);
    assert!(!said.contains("rank"), "{said}");
    // The parts of a job that was given up stay until they are collected.
    assert_eq!(esker.json(["log"]).len(), 1);
}

/// Symptom: `no such file` with a path that was cut at the missing directory, and without the name.
/// Cause: the layer below knows neither the name nor what was asked for.
/// Fix: commands say the location that they were given.
#[test]
fn errors_name_the_location_that_was_given() {
    let esker = example();
    std::fs::write(esker.path("f"), "f").expect("write");
    for (code, arguments, start) in [
        (3, &["cat", "base:/no/f"][..], "base:/no/f: "),
        (5, &["cat", "base:/h/g"], "base:/h/g: "),
        (3, &["stat", "base:/no/f"], "base:/no/f: "),
        (3, &["tree", "base:/no/f"], "base:/no/f: "),
        (3, &["ls", "base:/no/f"], "base:/no/f: "),
        (3, &["du", "base:/no/f"], "base:/no/f: "),
        (3, &["find", "base:/no/f"], "base:/no/f: "),
        (3, &["diff", "base", "base:/no/f"], "base:/no/f: "),
        (3, &["put", "f", "base:/no/such/f", "--as", "x"], "base:/no/such/f: "),
        (3, &["mv", "base:/h", "base:/no/f", "--as", "x"], "base:/no/f: "),
        (3, &["mv", "base:/no/f", "base:/x", "--as", "x"], "base:/no/f: "),
        (3, &["rm", "base:/no/f", "--as", "x"], "base:/no/f: "),
        (3, &["ln", "base:/no/f", "base:/x", "--as", "x"], "base:/no/f: "),
        (3, &["ln", "base:/h", "base:/no/f", "--as", "x"], "base:/no/f: "),
        (3, &["chmod", "600", "base:/no/f", "--as", "x"], "base:/no/f: "),
        (3, &["touch", "base:/no/f", "--as", "x"], "base:/no/f: "),
        (3, &["mkdir", "base:/no/f", "--as", "x"], "base:/no/f: "),
        (4, &["mkdir", "base:/h", "--as", "x"], "base:/h: "),
    ] {
        let said = esker.fails(code, arguments);
        assert!(said.starts_with(&format!("esker: {start}")), "{arguments:?}: {said}");
    }
}

/// Symptom: `init` advised `export ESKER_STORE=/a b/store`, which a shell cuts at the blank.
#[test]
fn the_advice_of_init_works_for_any_path() {
    let esker = Esker::without_store();
    let url = "it's a $tore";
    let said = esker.ok(["init", "--store", url]);
    let next = said.lines().find_map(|line| line.strip_prefix("next: ")).expect("advice");
    let export = next.split(';').next().expect("a command");
    let printed = std::process::Command::new("bash")
        .args(["-c", &format!("{export}; cd /; printf %s \"$ESKER_STORE\"")])
        .output()
        .expect("bash; every Debian has it");
    assert_eq!(printed.stdout, esker.path(url).to_str().expect("UTF-8").as_bytes());
    let said = esker.fails(3, ["names", "--store", "no store"]);
    assert!(said.contains("`esker init --store 'no store'`"), "{said}");
}

/// Symptom: `esker init --store s3:/bucket` made a directory named `s3:`.
#[test]
fn a_url_with_one_slash_is_refused() {
    let esker = Esker::without_store();
    for (url, expected) in [
        ("s3:/bucket", "s3://bucket/prefix"),
        ("S3://bucket", "s3://bucket/prefix"),
        ("file:/tmp/x", "file:///path"),
    ] {
        for command in ["init", "names"] {
            let said = esker.fails(13, [command, "--store", url]);
            assert!(said.contains(expected) && said.contains(&format!("./{url}")), "{said}");
        }
    }
    assert_eq!(std::fs::read_dir(esker.path("")).expect("a directory").count(), 0);
    esker.ok(["init", "--store", "./s3:/bucket"]);
}

/// Symptom: `session begin` gave a job a second part of the same rank, and the two conflicted when they
/// were published.
#[test]
fn a_job_has_one_part_of_each_rank() {
    let esker = example();
    let job = esker.ok(["session", "job"]).trim().to_owned();
    let begin = ["session", "begin", "--job", &job, "--rank", "0"];
    let first = esker.ok(begin).trim().to_owned();
    let said = esker.fails(4, begin);
    assert!(said.contains(&first) && said.contains("esker session drop"), "{said}");
    esker.ok(["session", "begin", "--job", &job, "--rank", "1"]);
    esker.ok(["session", "complete", &first]);
    assert!(esker.fails(4, begin).contains("which is complete"));
    esker.ok(["session", "drop", &first]);
    esker.ok(begin);
}

/// Symptom: after `esker bench segment`, `esker verify` reported a thousand lost data logs.
/// Cause: the benchmark left a change set whose segments refer to data that was never written.
/// Fix: it deletes the set; and what was given up is not verified.
#[test]
fn a_benchmark_of_segments_leaves_nothing() {
    let esker = example();
    esker.ok(["bench", "segment", "--segments", "1000", "--clients", "10"]);
    assert_eq!(esker.json(["log"]).len(), 1);
    assert_eq!(esker.json(["verify"])[0]["sound"], true);
}

/// Symptom: `esker mount NAME:/path` answered that it expected NAME:/path.
#[test]
fn a_mount_of_a_path_is_told_what_to_do() {
    let esker = example();
    std::fs::create_dir(esker.path("at here")).expect("mkdir");
    let said = esker.fails(2, ["mount", "base:/d", "at here"]);
    assert!(said.contains("`esker mount base 'at here'`, then look at at here/d"), "{said}");
}
