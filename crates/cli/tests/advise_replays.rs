// SPDX-License-Identifier: Apache-2.0
//! `esker advise load`, `replay` and `cleanup`, as users run them: what they keep, remove and refuse.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use crate::esker::Esker;

#[test]
fn traces_are_replayed() {
    let esker = Esker::without_store();
    esker.ok([
        "advise",
        "synth",
        "ior-strided",
        "-p",
        "2",
        "-n",
        "20",
        "-r",
        "8K",
        "-o",
        "ior.arrow",
    ]);
    let replay = |target, more: &[&str]| {
        esker.json([&["advise", "replay", "ior.arrow", target], more].concat())[0].clone()
    };
    let big = replay("there", &[]);
    assert_eq!((&big["system"], &big["requests"]), (&"posix-shared-file".into(), &40.into()));
    assert_eq!(
        (&big["metadata_operations"], &big["timing"]),
        (&4.into(), &serde_json::Value::Null)
    );
    assert!(!esker.path("there").exists(), "the data is removed");
    let small = replay("there", &["--small-files"]);
    assert_eq!((&small["system"], &small["bytes"]), (&"posix-small-files".into(), &327_680.into()));
    let memory = replay("store:memory:", &["--timing", "traced"]);
    assert_eq!((&memory["system"], &memory["skipped"]), (&"store".into(), &4.into()));
    assert!(memory["timing"]["late_p50_ns"].is_u64() && memory["timing"]["span_error"].is_f64());
    esker.ok(["advise", "load", "ior.arrow", "there"]);
    let said = esker.fails(4, ["advise", "load", "ior.arrow", "there"]);
    assert!(said.contains("loaded before"), "{said}");
    assert_eq!(replay("there", &["--keep"])["bytes"], 327_680);
    let file = esker.path("there/file-0");
    let mut bytes = std::fs::read(&file).expect("a file");
    bytes[9_000] ^= 1;
    std::fs::write(&file, bytes).expect("written");
    let said = esker.fails(12, ["advise", "replay", "ior.arrow", "there"]);
    assert!(said.contains("/data at byte 9000: expected "), "{said}");
    assert!(said.contains("the data stays, and `esker advise cleanup there` removes it"), "{said}");
    assert!(file.exists());
    esker.ok(["advise", "cleanup", "there"]);
    assert!(!file.exists());
}

/// Symptom: a replay that failed removed what a load before had made, and big files were in the way of
/// small ones without a word on how to remove them.
#[test]
fn data_that_a_replay_did_not_make_stays() {
    let esker = Esker::without_store();
    esker.ok(["advise", "synth", "hpio", "-n", "8", "-r", "1K", "-o", "a.arrow"]);
    esker.ok(["advise", "load", "a.arrow", "ld"]);
    let said = esker.fails(4, ["advise", "replay", "a.arrow", "small:ld"]);
    let expected =
        "ld has the data of another kind of replay; `esker advise cleanup ld` removes it";
    assert!(said.contains(expected), "{said}");
    std::fs::remove_file(esker.path("ld/file-0")).expect("removed");
    let said = esker.fails(3, ["advise", "replay", "a.arrow", "ld"]);
    assert!(said.contains("the data stays, and `esker advise cleanup ld` removes it"), "{said}");
    assert!(esker.path("ld/esker-replay").exists());
    let removed = esker.json(["advise", "cleanup", "ld"]);
    assert_eq!(removed[0]["removed"], "ld");
    let loaded = esker.json(["advise", "load", "a.arrow", "ld", "--small-files"]);
    assert_eq!(loaded[0]["requests"], 32);
    let said = esker.fails(4, ["advise", "replay", "a.arrow", "ld"]);
    assert!(said.contains(expected), "{said}");
    let measure = ["advise", "measure", "m.csv", "--system", "f=small:ld", "--pattern", "hpio"];
    let said = esker.fails(4, [&measure[..], &["-R", "4K", "-r", "1K", "--repeat", "1"]].concat());
    assert!(said.contains("ld has the data of a replay"), "{said}");
    esker.ok(["advise", "cleanup", "small:ld"]);
    assert!(!esker.path("ld").exists());
    let measured = esker.ok([&measure[..], &["-R", "4K", "-r", "1K", "--repeat", "1"]].concat());
    assert!(measured.contains("1 of 1: f, hpio read p=2 n=4 r=1024 g=0 A=0 d="), "{measured}");
    let rows = std::fs::read_to_string(esker.path("m.csv")).expect("rows");
    let target = format!("read,small:{}", esker.path("ld").display());
    assert!(rows.contains(&target), "{rows}");
}

/// Symptom: arguments that a pattern or a target cannot follow were passed over.
#[test]
fn arguments_that_mean_nothing_are_refused() {
    let esker = Esker::without_store();
    for (pattern, argument, expected) in [
        ("hpio", ["--written", "9"], "--written 9: a rank has 8 requests"),
        ("workbench-mix", ["--written", "2"], "half of the requests of workbench-mix write"),
        ("tile", ["-g", "4K"], "tile has no gaps"),
        ("btio-like", ["-p", "7"], "a square number of ranks, such as 4 or 9; 7 is none"),
    ] {
        let synth = ["advise", "synth", pattern, "-n", "8", "-o", "a.arrow"];
        let said = esker.fails(2, [&synth[..], &argument].concat());
        assert!(said.contains(expected), "{said}");
        assert!(!esker.path("a.arrow").exists());
    }
    esker.ok(["advise", "synth", "hpio", "-n", "8", "-o", "a.arrow"]);
    for action in [&["load"][..], &["replay", "--keep"]] {
        let said = esker.fails(2, [&["advise"], action, &["a.arrow", "store:memory:"]].concat());
        assert!(said.contains("store:memory: ends with the command"), "{said}");
    }
    let said = esker.fails(3, ["advise", "cleanup", "store:memory:"]);
    assert!(said.contains("store:memory: has no data of a replay"), "{said}");
}

#[test]
fn traces_are_replayed_on_shared_files() {
    let esker = Esker::new();
    let synth =
        ["advise", "synth", "ior-strided", "-p", "3", "-n", "8", "-r", "8K", "--written", "4"];
    esker.ok([&synth[..], &["-o", "ior.arrow"]].concat());
    let replay = |more: &[&str]| {
        esker.json([&["advise", "replay", "ior.arrow", "shared:replay"], more].concat())[0].clone()
    };
    let found = replay(&[]);
    assert_eq!((&found["system"], &found["requests"]), (&"esker-shared-file".into(), &24.into()));
    // Opens are left out; each rank closes what it has written.
    assert_eq!((&found["metadata_operations"], &found["skipped"]), (&3.into(), &3.into()));
    assert_eq!(esker.ok(["names"]), "", "the data is removed");
    let paced = replay(&["--timing", "traced", "--keep"]);
    assert!(paced["timing"]["span_error"].is_f64(), "{paced}");
    assert!(esker.ok(["ls", "replay:/"]).contains("file-0"));
    assert_eq!(replay(&["--keep"])["bytes"], 196_608);
    let sessions = esker.ok(["session", "list"]);
    assert_eq!(sessions, "", "no part of a job stays");
    esker.ok(["advise", "cleanup", "shared:replay"]);
    assert_eq!(esker.ok(["names"]), "");
    let said = esker.fails(3, ["advise", "cleanup", "shared:replay"]);
    assert!(said.contains("shared:replay: there is no data of a replay"), "{said}");
}

/// Symptom: refused replays left sessions in the store, the command that they named lacked the store,
/// and a mistyped kind of target was measured as a directory.
#[test]
fn refused_replays_leave_nothing_and_name_the_next_command() {
    let esker = Esker::new();
    for (pattern, trace) in [("hpio", "a.arrow"), ("lanl-app2-like", "b.arrow")] {
        esker.ok(["advise", "synth", pattern, "-p", "2", "-n", "4", "-r", "1K", "-o", trace]);
    }
    for target in ["shared:kept", "esker:kept"] {
        esker.ok(["advise", "load", "a.arrow", target]);
        let said = esker.fails(4, ["advise", "replay", "b.arrow", target]);
        assert!(said.contains(&format!("`esker advise cleanup {target} --store ")), "{said}");
        esker.ok(["advise", "cleanup", target]);
        esker.fails(3, ["advise", "cleanup", target]);
    }
    // Its requests have two sizes.
    esker.fails(23, ["advise", "replay", "b.arrow", "indexed:kept"]);
    assert_eq!(esker.ok(["session", "list"]), "", "no session is left");
    let said = esker.fails(13, ["advise", "replay", "a.arrow", "shard:kept"]);
    assert!(said.contains("there is no kind of target shard:"), "{said}");
    let twice = ["--system", "a=m", "--system", "a=n", "--pattern", "hpio"];
    let said = esker.fails(2, [&["advise", "measure", "rows.csv"], &twice[..]].concat());
    assert!(said.contains("two systems have this name"), "{said}");
}

/// Symptom: a replay or a load that a signal ended left its data, and named no command that removes it.
/// Fix: the message names it, and `advise cleanup` removes what either player made.
#[test]
fn an_interrupted_replay_says_how_to_remove_its_data() {
    let esker = Esker::without_store();
    // The second request of the rank begins after ten minutes.
    let slow = ["advise", "synth", "request-size", "-p", "1", "-n", "2", "--interval", "600000000"];
    esker.ok([&slow[..], &["-o", "slow.arrow"]].concat());
    for (more, marker) in
        [(&[][..], "a dir/esker-replay"), (&["--small-files"], "a dir/working-set.json")]
    {
        let replay = ["advise", "replay", "slow.arrow", "a dir", "--timing", "traced"];
        let mut command = esker.command([&replay[..], more].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary runs");
        let marker = esker.path(marker);
        let is_loaded = || {
            let marker = std::fs::read_to_string(&marker).unwrap_or_default();
            marker.contains("\"is_complete\":true")
        };
        while !is_loaded() {
            assert!(child.try_wait().expect("known").is_none(), "it replays for ten minutes");
            std::thread::sleep(Duration::from_millis(10));
        }
        // A shell may have had SIGINT ignored, which the command then does as well.
        let kill = ["-TERM".to_owned(), child.id().to_string()];
        let kill = std::process::Command::new("kill").args(kill).status();
        assert!(kill.expect("kill").success());
        assert_eq!(child.wait().expect("it ends").signal(), Some(15));
        let mut said = String::new();
        let mut stderr = child.stderr.take().expect("piped");
        stderr.read_to_string(&mut said).expect("text");
        assert!(said.contains("`esker advise cleanup 'a dir'` removes it"), "{said}");
        assert!(marker.exists(), "the data stays until then");
        esker.ok(["advise", "cleanup", "a dir"]);
        assert!(!esker.path("a dir").exists());
    }
    let said = esker.fails(3, ["advise", "cleanup", "a dir"]);
    assert!(said.contains("no data of a replay"), "{said}");
}

/// Symptom: a part of the data counted as all of it, and the data of one trace as that of another.
#[test]
fn a_replay_refuses_data_that_is_not_its_own() {
    let esker = Esker::without_store();
    for (name, requests) in [("hpio", "3"), ("tile", "4")] {
        let output = format!("{name}.arrow");
        let pattern = ["advise", "synth", name, "-p", "2", "-n", requests, "-r", "4K"];
        esker.ok([&pattern[..], &["-o", &output]].concat());
    }
    esker.ok(["advise", "load", "hpio.arrow", "there"]);
    let said = esker.fails(4, ["advise", "replay", "tile.arrow", "there"]);
    assert!(said.contains("data of another replay; `esker advise cleanup there`"), "{said}");
    esker.ok(["advise", "replay", "hpio.arrow", "there", "--keep"]);
    let marker = esker.path("there/esker-replay");
    let text = std::fs::read_to_string(&marker).expect("a marker");
    std::fs::write(&marker, text.replace("true", "false")).expect("written");
    for action in ["replay", "load"] {
        let said = esker.fails(9, ["advise", action, "hpio.arrow", "there"]);
        assert!(said.contains("a part of the data"), "{said}");
    }
    esker.ok(["advise", "cleanup", "there"]);
    esker.ok(["advise", "replay", "hpio.arrow", "there"]);
    assert!(!esker.path("there").exists());
}
