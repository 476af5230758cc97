// SPDX-License-Identifier: Apache-2.0
//! `esker workbench` as users run it.

use std::path::Path;
use std::process::Stdio;

use crate::esker::Esker;
use crate::mounted::{Mounted, can_mount};

/// A small run.
const SMALL: [&str; 6] = ["-N", "2", "-P", "60", "-I", "30"];

fn run<'a>(target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["workbench", "run", target], &SMALL[..], more].concat()
}

#[test]
fn runs_are_measured_compared_and_reported() {
    let esker = Esker::without_store();
    for (target, label) in [("here", "a"), ("esker:bench", "b")] {
        let (output, csv) = (format!("{label}.json"), format!("{label}.csv"));
        let files = [
            "--output",
            &output,
            "--csv",
            &csv,
            "--parquet",
            "table.parquet",
            "--arrow",
            "table.arrow",
            "--label",
            label,
            "--repeat",
            "2",
        ];
        let text = esker.ok(run(target, &files));
        assert!(text.contains("benchmark #2") && text.contains("Q3 delete"), "{text}");
    }
    let parquet = std::fs::read(esker.path("table.parquet")).expect("a table");
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    let arrow = std::fs::read(esker.path("table.arrow")).expect("a table");
    assert!(arrow.starts_with(b"ARROW1") && arrow.ends_with(b"ARROW1"));
    assert!(!esker.path("here").exists(), "a run cleans up");
    let said = esker.ok(["workbench", "compare", "a.json", "b.json", "--report", "both.html"]);
    assert!(said.starts_with("b compared with a") && said.contains("create p99"), "{said}");
    let page = std::fs::read_to_string(esker.path("both.html")).expect("a page");
    assert!(page.contains("Density of create") && page.ends_with("</html>\n"), "{page}");
    esker.ok(["workbench", "report", "a.json", "--to", "a.html"]);
    let only_reads = ["--output", "c.json", "--label", "c", "--read-only"];
    esker.ok(run("here", &only_reads));
    let output = esker.run(["workbench", "compare", "a.json", "c.json", "--report", "ac.html"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("benchmark of a is not compared"), "{said}");
    assert!(!said.contains("precreate"), "{said}");
    let page = std::fs::read_to_string(esker.path("ac.html")).expect("a page");
    assert!(page.contains("read-only of c"), "{page}");
    let figures = esker.json(["workbench", "compare", "a.json", "b.json"]);
    assert!(figures.iter().all(|figure| figure["verdict"].is_string()), "{figures:?}");
    let result = esker.json(run("here", &["--rate", "2000", "--arrivals", "poisson"]));
    assert_eq!(result[0]["format"], "esker-workbench-result");
    assert!(result[0]["phases"][1]["operations"][0]["response"].is_object());
}

/// A process that is killed at any time leaves nothing that the cleanup does not remove.
#[test]
fn a_killed_run_is_cleaned_up() {
    let esker = Esker::without_store();
    let marker = esker.path("set/working-set.json");
    let arguments = ["workbench", "run", "set", "-N", "2", "-P", "1000000", "-I", "1000000"];
    let mut command = esker.command(arguments);
    let mut child = command.stdout(Stdio::null()).spawn().expect("the binary runs");
    while !marker.exists() {
        assert!(child.try_wait().expect("a child").is_none(), "the run ended");
        std::thread::yield_now();
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    let said = esker.fails(9, run("set", &[]));
    assert!(said.contains("`esker workbench cleanup set`"), "{said}");
    assert!(esker.ok(["workbench", "cleanup", "set"]).starts_with("removed "));
    assert!(!esker.path("set").exists());
    esker.fails(3, ["workbench", "cleanup", "set"]);
}

/// Symptom: Ctrl-C in a run with an `ESKER_STORE` that does not exist advised `esker gc`.
/// Cause: a store that is not there counted as one whose sessions could not be dropped.
/// Fix: without a store there are no sessions, and the advice is the command's own.
#[test]
fn an_interrupted_run_without_a_store_is_told_how_to_clean_up() {
    let esker = Esker::without_store();
    let marker = esker.path("set/working-set.json");
    let arguments = ["workbench", "run", "set", "-N", "2", "-P", "1000000", "-I", "1000000"];
    let mut command = esker.command(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    while !marker.exists() {
        assert!(child.try_wait().expect("a child").is_none(), "the run ended");
        std::thread::yield_now();
    }
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it is ours");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted: the working set stays"), "{said}");
    assert!(said.contains("esker workbench cleanup") && !said.contains("esker gc"), "{said}");
    esker.ok(["workbench", "cleanup", "set"]);
}

/// Symptom: rank 0 refused the directory, since another rank had made its own in it already.
/// Cause: only rank 0 writes the marker of a new working set, and no rank waited for that.
/// Fix: a barrier between the marker and the first directory.
#[test]
fn processes_are_ranks() {
    let esker = Esker::new();
    let binary = env!("CARGO_BIN_EXE_esker");
    let mut arguments = vec!["run", "-n", "3", "--", binary];
    arguments.extend(["workbench", "run", "set", "-P", "20", "-I", "10"]);
    let text = esker.ok(arguments);
    assert!(text.contains("N=3") && text.contains("cleanup"), "{text}");
    assert!(!esker.path("set").exists());
}

/// Symptom: with `esker run -n 2` a rank failed with "is already a store".
/// Cause: every rank tried to create the store; the run would have been refused afterwards in any
/// case, since the ranks of the library are threads.
/// Fix: the command refuses before it opens the store.
#[test]
fn the_library_is_refused_to_processes_before_there_is_a_store() {
    let esker = Esker::new();
    let binary = env!("CARGO_BIN_EXE_esker");
    for target in ["esker:bench", "indexed:bench", "shared:bench"] {
        let mut arguments = vec!["run", "-n", "2", "--", binary, "--store", "fresh"];
        arguments.extend(["workbench", "run", target, "-P", "20", "-I", "10"]);
        let said = esker.fails(23, arguments);
        let way_out = format!("`esker workbench run {target} -N 2` without a launcher");
        assert!(said.contains(&way_out) && !said.contains("already a store"), "{said}");
        assert!(!esker.path("fresh").exists());
    }
}

/// Indexed directories and shared files are written once and read; other runs are refused before
/// anything is written, and a killed run leaves nothing that a collection does not remove.
#[test]
fn objects_are_written_once_and_read() {
    let esker = Esker::new();
    for target in ["indexed:bench", "shared:bench"] {
        let read_only = ["--read-only", "--repeat", "2", "--output", "result.json"];
        let text = esker.ok(run(target, &read_only));
        assert!(text.contains("read-only #2") && !text.contains("cleanup"), "{text}");
        esker.ok(["workbench", "report", "result.json", "--to", "result.html"]);
        let page = std::fs::read_to_string(esker.path("result.html")).expect("a page");
        assert!(page.contains(r#"<td class="text">flush</td>"#), "{target}");
        let said = esker.fails(23, run(target, &[]));
        assert!(said.contains("use --read-only"), "{said}");

        let (ranks, many) = (["-N", "2"], ["-P", "1000000", "-I", "1000000", "--read-only"]);
        let arguments = [&["workbench", "run", target], &ranks[..], &many[..]].concat();
        let mut child =
            esker.command(arguments).stdout(Stdio::null()).spawn().expect("the binary runs");
        while esker.ok(["session", "list"]).is_empty() {
            assert!(child.try_wait().expect("a child").is_none(), "the run ended");
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        esker.ok(["gc", "--grace", "0s"]);
        assert_eq!(esker.ok(["session", "list"]), "", "{target}");
        esker.fails(3, ["workbench", "cleanup", target]);
    }
    assert_eq!(esker.ok(["names"]), "");
    // What one run keeps, another reads.
    let kept = run("indexed:bench", &["--read-only", "--keep"]);
    assert!(esker.ok(&kept[..]).contains("precreate"));
    assert!(!esker.ok(&kept[..]).contains("precreate"));
    assert!(esker.ok(["ls", "bench:/objects"]).lines().count() == 120);
    assert_eq!(esker.ok(["workbench", "cleanup", "indexed:bench"]), "removed 120 objects\n");
}

/// The shares are exact, the page has a plot of each operation, and bad mixes are usage errors.
#[test]
fn operations_are_mixed() {
    let esker = Esker::without_store();
    let mix = ["--mix", "stat=60,read=30,create=5,delete=5", "--rate", "20000", "--waiting", "0"];
    let result = esker.json(run("set", &[&mix[..], &["--report", "mix.html"]].concat()));
    let phases = result[0]["phases"].as_array().expect("phases");
    for phase in &phases[1..3] {
        let count =
            |of: &serde_json::Value| (of["operation"].clone(), of["service"]["count"].clone());
        let counts: Vec<_> =
            phase["operations"].as_array().expect("operations").iter().map(count).collect();
        let expected = [("create", 12), ("stat", 144), ("read", 72), ("delete", 12)];
        assert_eq!(counts, expected.map(|(name, calls)| (name.into(), calls.into())));
        assert_eq!(phase["plan"]["kind"], "mixed");
    }
    let page = std::fs::read_to_string(esker.path("mix.html")).expect("a page");
    assert!(page.contains("Timeline of stat") && page.contains("stat 60 %"), "{page}");
    for bad in ["stat", "chmod=1", "stat=1,create=2,delete=1", "create=1,delete=1"] {
        esker.fails(2, run("set", &["-I", "60", "--mix", bad]));
    }
    esker.fails(2, run("set", &["--mix", "stat=1", "--read-only"]));
    assert!(!esker.path("set").exists());
}

/// Neither a mistyped kind of target nor a cleanup makes anything, and no page replaces a result.
#[test]
fn typing_errors_destroy_and_make_nothing() {
    let esker = Esker::without_store();
    let said = esker.fails(13, run("eskr:bench", &[]));
    assert!(said.contains("no kind of target eskr:") && said.contains("./eskr:bench"), "{said}");
    assert!(!esker.path("eskr:bench").exists());
    for target in ["esker:bench", "indexed:bench", "shared:bench"] {
        esker.fails(3, ["workbench", "cleanup", target, "--store", "mistyped"]);
        assert!(!esker.path("mistyped").exists());
    }
    esker.ok(run("here", &["--output", "a.json"]));
    let said = esker.fails(13, ["workbench", "compare", "a.json", "a.json", "--report", "a.json"]);
    assert!(said.contains("a.json is a result"), "{said}");
    esker.fails(13, ["workbench", "report", "a.json", "--to", "./a.json"]);
    esker.ok(["workbench", "report", "a.json", "--to", "a.html"]);
    esker.fails(2, run("here", &["--stonewall", "0"]));
}

#[test]
fn mistakes_are_explained() {
    let esker = Esker::without_store();
    esker.fails(2, ["workbench", "run", "set", "-P", "10", "-I", "11"]);
    std::fs::create_dir(esker.path("mine")).expect("a directory");
    std::fs::write(esker.path("mine/file"), "text").expect("a file");
    let said = esker.fails(7, run("mine", &[]));
    assert!(said.contains("name a new or an empty directory"), "{said}");
    esker.fails(3, ["workbench", "cleanup", "mine"]);
    assert!(esker.path("mine/file").exists());
    // A result that could not be written is noticed before anything is measured.
    for output in ["--output", "--csv", "--parquet", "--arrow", "--report"] {
        esker.fails(3, run("unmeasured", &[output, "absent/result"]));
        assert!(!esker.path("unmeasured").exists(), "{output}");
    }
    esker.fails(3, ["workbench", "paper", "unmeasured", "--to", "absent/page.html"]);
    assert!(!esker.path("unmeasured").exists());
    std::fs::write(esker.path("bad.json"), "{}").expect("a file");
    let said = esker.fails(12, ["workbench", "report", "bad.json", "--to", "bad.html"]);
    assert!(said.contains("bad.json: not a result of the workbench"), "{said}");
}

/// The reader of a named pipe gets the whole result: the pipe is opened once.
#[test]
fn a_result_is_written_to_a_named_pipe() {
    let esker = Esker::without_store();
    let script = |words: &[&str]| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "mkfifo pipe; cat pipe >result.json & timeout 60 \"$@\" && wait", "sh"]);
        shell.args(words).current_dir(esker.path(".")).output().expect("run")
    };
    let program = esker.command([""; 0]).get_program().display().to_string();
    let output = script(&[&[program.as_str()][..], &run("here", &["--output", "pipe"])].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    esker.ok(["workbench", "report", "result.json", "--to", "result.html"]);
}

/// One command measures every backend and writes one page that needs no network.
#[test]
fn the_paper_is_regenerated() {
    let esker = Esker::without_store();
    let page = ["--to", "paper.html", "--output", "paper.json"];
    esker.ok([&["workbench", "paper", "set", "-N", "2", "--seconds", "1"], &page[..]].concat());
    assert!(!esker.path("set").exists(), "the runs clean up");
    let page = std::fs::read_to_string(esker.path("paper.html")).expect("a page");
    for title in ["Table 1", "Table 2", "Figure 4", "Figure 5a", "Figure 5d"] {
        assert!(page.contains(title), "{title} is absent");
    }
    for system in ["directory", "library", "store", "null"] {
        assert!(page.contains(&format!("Figure 4: creates on {system}")), "{system} is absent");
    }
    assert!(!page.contains("http") && !page.contains("<script"), "the page is self-contained");
    let results = std::fs::read(esker.path("paper.json")).expect("results");
    let results: Vec<serde_json::Value> = serde_json::from_slice(&results).expect("JSON");
    assert!(results.len() >= 8 && results.len().is_multiple_of(2), "two runs on each backend");
}

/// The preset prints its score and says that it is no submission.
#[test]
fn io500_phases_are_scored() {
    let esker = Esker::without_store();
    let preset = ["workbench", "run", "set", "--io500", "-N", "2", "-P", "20"];
    for target in ["set", "esker:io500", "store:memory:"] {
        let arguments = preset.map(|word| if word == "set" { target } else { word });
        let text = esker.ok(arguments);
        assert!(text.contains("score") && text.contains("not a valid IO500 submission"), "{text}");
        assert!(!text.contains("failed"), "{target}: {text}");
    }
    esker.fails(2, [&preset[..], &["--keep"]].concat());
    esker.fails(2, [&preset[..], &["-D", "2"]].concat());
}

/// A mount is a directory like any other; the result names it, and no call fails in it.
#[test]
fn a_mount_is_measured_as_a_directory() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("bench", &[]);
    let target = mounted.path("set");
    let target = target.to_str().expect("a path of ASCII");
    let result = mounted.esker.json(run(target, &["--names"]));
    let environment = &result[0]["environment"];
    assert!(
        environment["file_system"].as_str().expect("text").starts_with("fuse"),
        "{environment}"
    );
    let mount = environment["mount"].as_str().expect("text");
    assert!(mount.starts_with(mounted.root().to_str().expect("ASCII")), "{mount}");
    let phases = result[0]["phases"].as_array().expect("phases");
    let operations = phases.iter().flat_map(|p| p["operations"].as_array().expect("operations"));
    for operation in operations {
        assert_eq!(operation["failures"], serde_json::json!({}), "{operation}");
    }
    assert!(!mounted.path("set").exists(), "a run cleans up");
}

/// Ranks that are processes share the database; neither result nor messages have the password.
#[cfg(feature = "postgresql")]
#[test]
fn a_database_is_measured_and_cleaned_up() {
    let Some(server) = crate::postgres_server::PostgresServer::start() else { return };
    let esker = Esker::new();
    let url = server.url();
    let with_password = url.replace("esker@", "esker:secret@");
    let result = esker.json(run(&with_password, &["--keep", "--output", "database.json"]));
    assert_eq!(result[0]["backend"], "postgresql");
    let service = result[0]["environment"]["service"].as_str().expect("text");
    assert!(service.contains("synchronous_commit=on"), "{service}");
    let written = std::fs::read_to_string(esker.path("database.json")).expect("a result");
    assert!(!written.contains("secret"), "{written}");
    esker.ok(["workbench", "report", "database.json", "--to", "database.html"]);
    let page = std::fs::read_to_string(esker.path("database.html")).expect("a page");
    assert!(page.contains("synchronous_commit=on"), "{page}");
    assert!(esker.ok(["workbench", "cleanup", &url]).starts_with("removed 120 objects"));
    let said = esker.fails(3, ["workbench", "cleanup", &with_password]);
    assert!(said.contains("no working set") && !said.contains("secret"), "{said}");

    let binary = env!("CARGO_BIN_EXE_esker");
    let mut arguments = vec!["run", "-n", "3", "--", binary];
    arguments.extend(["workbench", "run", &url, "-P", "20", "-I", "10"]);
    let text = esker.ok(arguments);
    assert!(text.contains("N=3") && !text.contains("warning: benchmark"), "{text}");
    esker.fails(3, ["workbench", "cleanup", &url]);
}

/// A key-value store is measured, its working set is reused, and what a killed run leaves is removed.
#[test]
fn a_key_value_store_is_measured_and_cleaned_up() {
    let Some(driver) = crate::driver_library::DriverLibrary::leveldb() else { return };
    let esker = Esker::new();
    let database = esker.path("database");
    let target = driver.target(&database, "?options=tuned&durability=none");
    for first in ["precreate", "benchmark"] {
        let result = esker.json(run(&target, &["--keep", "--names", "--output", "kv.json"]));
        assert_eq!(result[0]["backend"], "key-value");
        assert_eq!(result[0]["target"], target.as_str());
        let service = result[0]["environment"]["service"].as_str().expect("text");
        assert!(
            service.starts_with("LevelDB ") && service.contains("durability=none"),
            "{service}"
        );
        assert_eq!(result[0]["phases"][0]["plan"]["kind"], first);
    }
    esker.ok(["workbench", "report", "kv.json", "--to", "kv.html"]);
    let page = std::fs::read_to_string(esker.path("kv.html")).expect("a page");
    assert!(page.contains("LevelDB ") && page.contains("options=tuned"), "{page}");
    assert!(esker.ok(["workbench", "cleanup", &target]).starts_with("removed 120 objects"));
    assert!(!database.exists());
    esker.fails(3, ["workbench", "cleanup", &target]);

    let logged = driver.target(&database, "");
    let arguments = ["workbench", "run", &logged, "-N", "2", "-P", "1000000", "-I", "1000000"];
    let mut command = esker.command(arguments);
    let mut child = command.stdout(Stdio::null()).spawn().expect("the binary runs");
    // A table is written from the first log, which has the marker and objects. The number of files
    // tells nothing: a database that is being created has as many for a moment, and no marker.
    let is_table = |path: &Path| path.extension().is_some_and(|extension| extension == "ldb");
    while !std::fs::read_dir(&database)
        .is_ok_and(|files| files.flatten().any(|file| is_table(&file.path())))
    {
        assert!(child.try_wait().expect("a child").is_none(), "the run ended");
        std::thread::yield_now();
    }
    let said = esker.fails(11, ["workbench", "cleanup", &logged]);
    assert!(said.contains("end the process that has it open"), "{said}");
    child.kill().expect("killed");
    child.wait().expect("ended");
    let said = esker.fails(9, run(&logged, &[]));
    assert!(said.contains("esker workbench cleanup"), "{said}");
    assert!(esker.ok(["workbench", "cleanup", &logged]).starts_with("removed "));
    assert!(!database.exists());

    let binary = env!("CARGO_BIN_EXE_esker");
    let mut arguments = vec!["run", "-n", "2", "--", binary];
    arguments.extend(["workbench", "run", &logged, "-P", "20", "-I", "10"]);
    let said = esker.fails(23, arguments);
    assert!(said.contains("-N 2` without a launcher") && !database.exists(), "{said}");
}

#[test]
fn drivers_that_cannot_be_loaded_are_explained() {
    let esker = Esker::without_store();
    let said = esker.fails(13, run("driver:libleveldb-driver.so:database", &[]));
    assert!(said.contains("such as ./libleveldb-driver.so"), "{said}");
    let said = esker.fails(3, run("driver:./absent.so:database", &[]));
    assert!(said.contains("make -C peers drivers"), "{said}");
    std::fs::write(esker.path("text.so"), "text").expect("a file");
    let said = esker.fails(13, run("driver:./text.so:database", &[]));
    assert!(said.contains("cannot be loaded"), "{said}");
    let said = esker.fails(13, run("driver:./text.so:database?durability=often", &[]));
    assert!(said.contains("durability=none, async or always"), "{said}");
    assert!(!esker.path("database").exists());
}

/// A MongoDB database is measured as a PostgreSQL one, with documents for rows.
#[cfg(feature = "mongodb")]
#[test]
fn documents_are_measured_and_cleaned_up() {
    let Some(server) = crate::mongo_server::MongoServer::start() else { return };
    let esker = Esker::new();
    let url = format!("{}?journal=true", server.url());
    let result = esker.json(run(&url, &["--keep", "--names", "--output", "documents.json"]));
    assert_eq!(result[0]["backend"], "mongodb");
    let service = result[0]["environment"]["service"].as_str().expect("text");
    assert!(service.starts_with("MongoDB ") && service.contains(" w=1 j=true"), "{service}");
    esker.ok(["workbench", "report", "documents.json", "--to", "documents.html"]);
    let page = std::fs::read_to_string(esker.path("documents.html")).expect("a page");
    assert!(page.contains(" w=1 j=true"), "{page}");
    assert!(esker.ok(["workbench", "cleanup", &url]).starts_with("removed 120 objects"));
    let said = esker.fails(3, ["workbench", "cleanup", &url]);
    assert!(said.contains("no working set"), "{said}");
    // The server has no users, so every password is wrong.
    let with_password = url.replace("mongodb://", "mongodb://user:secret@");
    let said = esker.fails(8, ["workbench", "cleanup", &with_password]);
    assert!(!said.contains("secret"), "{said}");
    let said = esker.fails(23, run(&url, &["-S", "16M"]));
    assert!(said.contains("use -S 16776960 or less"), "{said}");

    let binary = env!("CARGO_BIN_EXE_esker");
    let mut arguments = vec!["run", "-n", "3", "--", binary];
    arguments.extend(["workbench", "run", &url, "-P", "20", "-I", "10"]);
    let text = esker.ok(arguments);
    assert!(text.contains("N=3") && !text.contains("warning: benchmark"), "{text}");
    esker.fails(3, ["workbench", "cleanup", &url]);
}

/// A Redis server is measured as a PostgreSQL one, with hashes for datasets, and serves replays.
#[cfg(feature = "redis")]
#[test]
fn hashes_are_measured_replayed_and_cleaned_up() {
    let Some(server) = crate::redis_server::RedisServer::start(&[]) else { return };
    let esker = Esker::new();
    let url = server.url();
    let result = esker.json(run(&url, &["--keep", "--names"]));
    assert_eq!(result[0]["backend"], "redis");
    let service = result[0]["environment"]["service"].as_str().expect("text");
    assert!(service.starts_with("Redis ") && service.contains(" appendonly=no"), "{service}");
    assert!(esker.ok(["workbench", "cleanup", &url]).starts_with("removed 120 objects"));
    esker.fails(3, ["workbench", "cleanup", &url]);
    esker.ok(["advise", "synth", "hpio", "-p", "2", "-n", "10", "-r", "1K", "-o", "hpio.arrow"]);
    let replayed = esker.json(["advise", "replay", "hpio.arrow", &url]);
    assert_eq!((&replayed[0]["system"], &replayed[0]["requests"]), (&"redis".into(), &20.into()));
    esker.fails(3, ["workbench", "cleanup", &url]);
    let said = esker.fails(13, run("rediss://user:secret@host", &[]));
    assert!(said.contains("TLS") && !said.contains("secret"), "{said}");
}

/// Without the feature a URL is not taken for a directory.
#[cfg(not(feature = "mongodb"))]
#[test]
fn a_build_without_mongodb_names_the_feature() {
    let esker = Esker::without_store();
    for target in ["mongodb://user@host/data", "mongodb+srv://user@host/data"] {
        let said = esker.fails(13, run(target, &[]));
        assert!(said.contains("--features mongodb"), "{said}");
    }
}

/// The same for PostgreSQL.
#[cfg(not(feature = "postgresql"))]
#[test]
fn a_build_without_postgresql_names_the_feature() {
    let esker = Esker::without_store();
    let said = esker.fails(13, run("postgresql://user@host/data", &[]));
    assert!(said.contains("--features postgresql"), "{said}");
}

/// The same for Redis.
#[cfg(not(feature = "redis"))]
#[test]
fn a_build_without_redis_names_the_feature() {
    let esker = Esker::without_store();
    for target in ["redis://user@host/0", "redis+unix:///run/redis", "rediss://host"] {
        let said = esker.fails(13, run(target, &[]));
        assert!(said.contains("--features redis"), "{said}");
    }
}

/// Without the feature an MPI-IO target is not taken for a directory; it is one for cleanup, which
/// needs no MPI.
#[cfg(not(feature = "mpi"))]
#[test]
fn a_build_without_mpi_names_the_feature_and_cleans_up() {
    let esker = Esker::without_store();
    let refused: [&[&str]; 2] = [&[], &["--transport", "mpi"]];
    for more in refused {
        let said = esker.fails(13, run("mpiio:set", more));
        assert!(said.contains("--features mpi"), "{said}");
    }
    let said = esker.fails(13, run("set", &["--transport", "mpi"]));
    assert!(said.contains("--features mpi"), "{said}");
    let said = esker.fails(3, ["workbench", "cleanup", "mpiio:set"]);
    assert!(said.contains("set does not exist"), "{said}");
    assert!(!esker.path("set").exists() && !esker.path("mpiio:set").exists());
    esker.ok(run("set", &["--keep"]));
    assert!(esker.ok(["workbench", "cleanup", "mpiio:set"]).starts_with("removed 120 objects"));
    assert!(!esker.path("set").exists());
}

/// Symptom: under `mpirun` without a store the command said only that a store was missing, as if the
/// target were in one.
/// Cause: the ranks' meeting took the store of the command line.
/// Fix: the message names the meeting and the way without a store; ranks that were not started as
/// `--transport` says are refused, and nothing is made.
#[test]
fn ranks_are_refused_where_they_would_not_find_each_other() {
    let esker = Esker::without_store();
    for (code, more, of_job, words) in [
        (2, &[][..], true, "meet in a store that all of them see"),
        (2, &["--transport", "tcp"], true, "--transport mpi"),
        (13, &["--transport", "tcp"], false, "not a rank of a job"),
        (13, &["--transport", "threads"], true, "rank 1 of a job of 2 processes"),
    ] {
        let mut command = esker.command(run("set", more));
        command.env_remove("ESKER_STORE").env_remove("ESKER_MEET");
        if of_job {
            command.env("OMPI_COMM_WORLD_RANK", "1").env("OMPI_COMM_WORLD_SIZE", "2");
            command.env("PMIX_NAMESPACE", "job-1");
        }
        let output = command.output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        assert!(said.contains(words), "{more:?}: {said}");
        assert!(!esker.path("set").exists(), "{more:?}");
    }
    // One rank alone may be a thread.
    let mut command = esker.command(run("set", &["--transport", "threads"]));
    command.env("ESKER_RANK", "0").env("ESKER_RANKS", "1").env("ESKER_JOB", "alone");
    assert!(command.output().expect("the binary runs").status.success());
}
