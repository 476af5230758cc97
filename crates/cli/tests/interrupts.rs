// SPDX-License-Identifier: Apache-2.0
//! Signals end commands at each of their requests to the store in turn.
//!
//! Symptom: Ctrl-C in an import, a squash or a replay left sets and sessions that nothing listed or
//! collected, and printed nothing.
//! Cause: no command handled signals, and a set that a command had begun for itself looked like a
//! session that a user means to resume.
//! Fix: a signal abandons what the command began (`interrupt.rs`); the manifest marks a set that
//! was begun for one command, so that a collection abandons it after a kill.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use crate::esker::Esker;

const KILL: i32 = 9;
const INT: i32 = 2;
const TERM: i32 = 15;
const HUP: i32 = 1;

/// Runs the command once for each of its requests, at which `signal` ends it, then runs `check`; at
/// last the command succeeds. With many requests it is enough to try every `step`th.
fn at_every_request<A: AsRef<OsStr>>(
    esker: &Esker,
    signal: i32,
    step: usize,
    arguments: &[A],
    mut check: impl FnMut(&str),
) {
    for request in (1..).step_by(step) {
        let mut command = esker.command(arguments);
        command.env("ESKER_TEST_SIGNAL", format!("{signal}:{request}"));
        let Output { status, stderr, .. } = command.output().expect("the binary runs");
        let said = String::from_utf8_lossy(&stderr).into_owned();
        if status.signal() == Some(signal) {
            assert_eq!(said.contains("interrupted: "), signal != KILL, "{request}: {said}");
            check(&said);
            continue;
        }
        assert!(status.success() && request > 1, "{request}: {status:?} {said}");
        return;
    }
}

/// Names of the store, after a collection that must leave no session.
fn names_left(esker: &Esker) -> Vec<String> {
    esker.ok(["gc", "--grace", "0s"]);
    assert_eq!(esker.ok(["session", "list"]), "");
    let names = esker.json(["names"]);
    names.iter().map(|name| name["name"].as_str().expect("a name").to_owned()).collect()
}

/// The command either publishes `new`, with `shown` as the output of `ls`, or leaves nothing.
fn publishes_or_leaves_nothing(esker: &Esker, new: &str, shown: &str, arguments: &[&str]) {
    let before = names_left(esker);
    let sets = esker.json(["log"]).len();
    for (signal, step) in [(INT, 1), (KILL, 1), (TERM, 7)] {
        at_every_request(esker, signal, step, arguments, |_| {
            let names = names_left(esker);
            if names.iter().any(|name| name == new) {
                assert_eq!(esker.ok(["ls", new]), shown);
                esker.ok(["delete", new]);
                esker.ok(["gc", "--grace", "0s"]);
            }
            assert_eq!(names_left(esker), before);
            assert_eq!(esker.json(["log"]).len(), sets);
        });
        esker.ok(["delete", new]);
        assert_eq!(names_left(esker), before);
    }
    assert!(esker.ok(["verify"]).starts_with("sound"));
}

#[test]
fn an_import_publishes_or_leaves_nothing() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1"), ("d/b", "2")]);
    let import = ["import", "tree-base", "new", "--base", "base"];
    publishes_or_leaves_nothing(&esker, "new", "a\nd\n", &import);
}

/// Symptom: `timeout 5 esker import …` left a session, and the command said nothing.
/// Cause: `timeout` sends its signal to the command and to the group that the command is in, and a
/// second signal ends a command at once.
/// Fix: signals that come that close together are one.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1"), ("d/b", "2")]);
    for request in (1..).step_by(3) {
        let mut command = esker.command(["import", "tree-base", "new"]);
        command.env("ESKER_TEST_SIGNAL", format!("{TERM}:{request}:2"));
        let Output { status, stderr, .. } = command.output().expect("the binary runs");
        if status.success() {
            assert!(request > 6);
            return;
        }
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.signal() == Some(TERM) && said.contains("interrupted: "), "{said}");
        assert_eq!(esker.ok(["session", "list"]), "", "without a collection");
        if esker.run(["ls", "new"]).status.success() {
            esker.ok(["delete", "new"]);
        }
    }
}

#[test]
fn a_change_of_a_name_publishes_or_leaves_nothing() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1"), ("d/b", "2")]);
    let remove = ["rm", "base:/a", "--as", "new"];
    publishes_or_leaves_nothing(&esker, "new", "d\n", &remove);
}

#[test]
fn a_squash_publishes_or_leaves_nothing() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1"), ("d/b", "2")]);
    esker.ok(["mkdir", "base:/e", "--as", "top"]);
    let squash = ["squash", "top", "--as", "new", "--threads", "1"];
    publishes_or_leaves_nothing(&esker, "new", "a\nd\ne\n", &squash);
}

#[test]
fn an_import_of_records_publishes_or_leaves_nothing() {
    let esker = Esker::new();
    std::fs::write(esker.path("records"), [7; 64]).expect("a file");
    let import = ["imd", "import", "new:/p", "--record-bytes", "16", "--key", "0:u64", "records"];
    publishes_or_leaves_nothing(&esker, "new", "p\n", &import);
}

/// Work that an import into a session has done is kept, and repeating the command does the rest.
/// Each attempt has a separate session: in one session the number of requests would grow with its
/// contents.
#[test]
fn an_import_into_a_session_goes_on_where_it_was_interrupted() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1"), ("d/b", "2")]);
    for (signal, step) in [(INT, 1), (KILL, 4)] {
        for request in (1..).step_by(step) {
            let id = esker.ok(["session", "begin"]).trim().to_owned();
            let import = ["import", "tree-base", &format!("{id}:/in")];
            let mut command = esker.command(import);
            command.env("ESKER_TEST_SIGNAL", format!("{signal}:{request}"));
            let Output { status, stderr, .. } = command.output().expect("the binary runs");
            let said = String::from_utf8_lossy(&stderr).into_owned();
            assert!(status.success() || status.signal() == Some(signal), "{status:?} {said}");
            if signal == INT && !status.success() {
                assert!(said.contains("the same command again"), "{said}");
            }
            esker.ok(["gc", "--grace", "0s"]);
            assert!(esker.ok(["session", "list"]).contains(&id));
            esker.ok(import);
            let files = [format!("{id}:/in/a"), format!("{id}:/in/d/b")];
            assert_eq!(esker.ok(["cat", &files[0], &files[1]]), "12");
            esker.ok(["session", "drop", &id]);
            if status.success() {
                break;
            }
        }
    }
    assert!(esker.ok(["verify"]).starts_with("sound"));
}

#[test]
fn what_keeps_a_store_in_order_can_be_interrupted_anywhere() {
    let esker = Esker::new();
    esker.publish("base", &[("a", "1"), ("d/b", "2")]);
    let sound = || {
        assert_eq!(esker.ok(["cat", "base:/a"]), "1");
        assert!(esker.ok(["verify"]).starts_with("sound"));
    };
    at_every_request(&esker, INT, 1, &["verify"], |said| {
        assert!(said.contains("nothing was changed"), "{said}");
    });
    esker.publish("gone", &[("c", "3")]);
    esker.ok(["delete", "gone"]);
    at_every_request(&esker, INT, 1, &["gc", "--grace", "0s"], |said| {
        assert!(said.contains("frees the rest"), "{said}");
        sound();
    });
    let id = esker.ok(["session", "begin", "--base", "base"]).trim().to_owned();
    for name in ["x", "y"] {
        esker.ok(["mkdir".into(), format!("{id}:/{name}")]);
    }
    esker.ok(["publish", &id, "runs"]);
    at_every_request(&esker, INT, 1, &["compact", "runs"], |said| {
        assert!(said.contains("unchanged"), "{said}");
        assert_eq!(esker.ok(["ls", "runs"]), "a\nd\nx\ny\n");
        sound();
    });
}

/// Symptom: Ctrl-C in a replay or a benchmark, a killed rank and an ordinary failure left sessions;
/// the command reported a takeover, with exit code 10, and a second message.
/// Cause: only some sessions recorded that a command had begun them, failures abandoned none,
/// `esker run` sent another signal after the one that it passed on, and the command reported that
/// its sessions were abandoned.
/// Fix: every session of these commands is abandoned at a signal, at a failure, and by `esker run`,
/// and after a signal the command prints nothing more.
#[test]
fn ranks_and_benchmarks_leave_no_session() {
    let replay = ["segment", "replay", "new:/x", "--ranks", "2", "--block", "64K"];
    let squash = ["bench", "squash", "--files", "9", "--sets", "2"];
    let commands: [&[&str]; 3] = [&replay, &squash, &["bench", "remove"]];
    for (signal, step) in [(INT, 7), (HUP, 23)] {
        for command in commands {
            at_requests_of_new_stores(step, |request| {
                let esker = Esker::new();
                esker.ok(["bench", "create", "--files", "40", "--directories", "2"]);
                let mut command = esker.command(command);
                command.env("ESKER_TEST_SIGNAL", format!("{signal}:{request}"));
                let Output { status, stderr, .. } = command.output().expect("the binary runs");
                let said = String::from_utf8_lossy(&stderr);
                assert_eq!(esker.ok(["session", "list"]), "", "{request}: {said}");
                assert!(status.success() || status.signal() == Some(signal), "{status:?} {said}");
                assert_eq!(said.lines().count(), usize::from(!status.success()), "{said}");
                assert!(esker.ok(["verify"]).starts_with("sound"));
                status.success()
            });
        }
    }
}

/// Runs `work` for every `step`th request until it reports that it finished before that request.
/// Each run has a separate store: in one store the number of requests would grow with its contents.
fn at_requests_of_new_stores(step: usize, mut work: impl FnMut(usize) -> bool) {
    let done = (3..).step_by(step).position(&mut work);
    assert!(done.is_some_and(|runs| runs > 0));
}

#[test]
fn failed_replays_and_benchmarks_leave_no_session() {
    let esker = Esker::new();
    let replay = ["segment", "replay", "new:/no/x", "--ranks", "2", "--block", "64K"];
    esker.fails(3, replay);
    assert_eq!(esker.ok(["session", "list"]), "");
    let create = ["bench", "create", "--files", "40", "--directories", "2"];
    esker.ok(create);
    esker.fails(4, create);
    assert_eq!(esker.ok(["session", "list"]), "");
}

#[test]
fn ranks_of_a_job_that_ends_early_leave_no_session() {
    let run = |esker: &Esker, signal: &str, target: &str| {
        let ranks = ["run", "-n", "2", "--", "env", signal, env!("CARGO_BIN_EXE_esker")];
        esker.run([&ranks[..], &["segment", "replay", target, "--block", "64K"]].concat())
    };
    let esker = Esker::new();
    let failed = run(&esker, "NO_SIGNAL=", "new:/no/x");
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    assert_eq!(esker.ok(["session", "list"]), "");
    for signal in [INT, KILL] {
        at_requests_of_new_stores(17, |request| {
            let esker = Esker::new();
            let signal = format!("ESKER_TEST_SIGNAL={signal}:{request}");
            let Output { status, stderr, .. } = run(&esker, &signal, "new:/x");
            let said = String::from_utf8_lossy(&stderr);
            assert_eq!(esker.ok(["session", "list"]), "", "{request}: {said}");
            let is_published = esker.run(["ls", "new"]).status.success();
            assert!(is_published || !status.success(), "{said}");
            status.success()
        });
    }
}

/// Partial exports that are left beside the store.
fn partial_exports(esker: &Esker) -> Vec<String> {
    let entries = std::fs::read_dir(esker.path("")).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("out"))
        .collect()
}

/// Symptom: an interrupted export left part of a tree, and a truncated file, under the requested
/// name; it could not resume, and was refused until somebody removed the remains.
/// Cause: it wrote directly to its destination.
/// Fix: it writes to a directory beside it, and renames that when it is complete; --resume
/// continues.
#[test]
fn an_export_is_complete_or_absent_and_goes_on() {
    let esker = Esker::new();
    let large = "x".repeat(300_000);
    esker.publish("base", &[("a", "1"), ("d/b", &large), ("d/c", &large)]);
    let mut were_partial = 0;
    for signal in [INT, KILL, HUP] {
        let export = ["export", "base", "out", "--threads", "1"];
        at_every_request(&esker, signal, 1, &export, |said| {
            let left = partial_exports(&esker);
            assert!(left.iter().all(|name| name.starts_with("out.esker-partial-")), "{left:?}");
            if let [name] = &left[..] {
                were_partial += 1;
                let advice = [name, "out is unchanged", "--resume", "rm -r"];
                let is_told = advice.iter().all(|words| said.contains(words));
                assert_eq!(is_told, signal != KILL, "{said}");
                assert!(esker.fails(4, export).contains("--resume"));
            }
            esker.ok([&export[..], &["--resume"]].concat());
            assert_eq!(partial_exports(&esker), ["out"]);
            for (path, content) in [("a", "1"), ("d/b", &large), ("d/c", &large)] {
                let read = std::fs::read_to_string(esker.path("out").join(path));
                assert_eq!(read.expect("exported"), content);
            }
            std::fs::remove_dir_all(esker.path("out")).expect("removed");
        });
        assert_eq!(partial_exports(&esker), ["out"]);
        std::fs::remove_dir_all(esker.path("out")).expect("removed");
    }
    assert!(were_partial >= 3, "only {were_partial} times");
}

/// Writes two dumps of one record each, with steps 5 and 6: a header with the step, then key and
/// value.
fn dumps(esker: &Esker) {
    for step in [5_u64, 6] {
        let record = [step.to_le_bytes(), 7_u64.to_le_bytes(), [step as u8; 8]].concat();
        std::fs::write(esker.path(format!("dump{step}")), record).expect("a file");
    }
}

const IMPORT: [&str; 11] = [
    "imd",
    "import",
    "run:/p",
    "--header-bytes",
    "8",
    "--step",
    "0:u64",
    "--record-bytes",
    "16",
    "--key",
    "0:u64",
];

/// Symptom: no command could read the epochs that a dead import had flushed.
/// Cause: the directory gets its entry only when it is finished, and commands find it by that
/// entry.
/// Fix: the set records the path for which it is written, and commands look there for unfinished
/// directories.
#[test]
fn epochs_that_a_dead_import_had_flushed_can_be_read() {
    let esker = Esker::new();
    dumps(&esker);
    let import = [&IMPORT[..], &["dump5", "dump6"]].concat();
    let mut epochs_read = Vec::new();
    at_every_request(&esker, KILL, 1, &import, |_| {
        for session in esker.json(["session", "list"]) {
            let set = session["set"].as_str().expect("an id");
            let get = ["imd", "get", &format!("@{set}:/p"), "0000000000000007"];
            let Output { status, stdout, stderr } = esker.run(get);
            let said = String::from_utf8_lossy(&stderr);
            if status.success() && said.contains("incomplete") {
                let lines = String::from_utf8_lossy(&stdout).lines().count();
                assert!(said.contains(&format!("{} epoch", lines - 1)), "{said}");
                epochs_read.push(lines - 1);
            }
            esker.fails(3, ["imd", "get", &format!("@{set}:/other"), "0000000000000007"]);
        }
        if names_left(&esker) == ["run"] {
            // Killed after it had published the name.
            esker.ok(["delete", "run"]);
        }
    });
    assert!(epochs_read.contains(&1) && epochs_read.contains(&2), "{epochs_read:?}");
    assert_eq!(esker.ok(["imd", "get", "run:/p", "0000000000000007"]).lines().count(), 3);
}

/// Symptom: a get of a key whose log was lost reported "not found", with exit code 3, as for a path
/// that does not exist.
/// Cause: the store's answer was passed on.
/// Fix: an object that the directory's index refers to and that is missing is damage.
#[test]
fn a_lost_log_is_damage() {
    for log in ["00000000-index", "00000000-data"] {
        let esker = Esker::new();
        dumps(&esker);
        esker.ok([&IMPORT[..], &["dump5", "dump6"]].concat());
        let info = &esker.json(["imd", "info", "run:/p"])[0];
        let objects = info["objects"][0].as_str().expect("a prefix");
        std::fs::remove_file(esker.store().join(objects).join(log)).expect("it is there");
        let said = esker.fails(12, ["imd", "get", "run:/p", "0000000000000007"]);
        assert!(said.contains(log) && said.contains("missing"), "{said}");
    }
}

/// Symptom: a signal before the first request said that a session kept changes, or that either nothing
/// or everything was done, whatever the command.
/// Fix: the text says what is the case at each point.
#[test]
fn a_signal_that_comes_early_is_told_as_such() {
    let esker = Esker::new();
    esker.publish("base", &[("f", "text")]);
    std::fs::write(esker.path("file"), "x").expect("write");
    let nothing = "nothing was changed; the same command again does all of it";
    let either = "nothing was begun, or everything was published, which `esker names` shows";
    for (arguments, said) in [
        (&["put", "file", "base:/x", "--as", "new"][..], nothing),
        (&["import", ".", "new"], nothing),
        (&["squash", "base", "--as", "new"], either),
        (&["segment", "replay", "new:/x"], either),
    ] {
        let mut command = esker.command(arguments);
        let output = command.env("ESKER_TEST_SIGNAL", "2:1").output().expect("the binary runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(said), "{arguments:?}: {error}");
        assert_eq!(output.status.signal(), Some(2), "{arguments:?}: {error}");
    }
    assert_eq!(esker.json(["names"]).len(), 1);
}
