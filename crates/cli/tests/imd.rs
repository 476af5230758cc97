// SPDX-License-Identifier: Apache-2.0
//! Indexed directories as users create and read them, and as parts of change sets.

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::esker::Esker;

/// Key 0 of those that `esker imd write` writes (peers/README.md).
const FIRST_KEY: &str = "e220a8397b1dcdaf";

/// The only object that a command printed.
fn one(mut printed: Vec<Value>) -> Value {
    assert_eq!(printed.len(), 1, "{printed:?}");
    printed.remove(0)
}

fn write(esker: &Esker, name: &str, more: &[&str]) -> Value {
    let target = format!("{name}:/particles");
    let words = ["imd", "write", &target, "--rank-memory", "4M", "--epochs", "3"];
    one(esker.json(words.iter().chain(more).copied()))
}

#[test]
fn every_format_is_written_and_read() {
    let esker = Esker::new();
    for format in ["base", "pointer", "lossy", "static", "ordered"] {
        let more = ["--keys", "3000", "--ranks", "3", "--per-node", "2", "--routing", "3hop"];
        let written = write(&esker, format, &[&more[..], &["--format", format]].concat());
        assert_eq!(written["operations"], 9000, "{format}");
        assert!(written["index_bits_per_key"].as_f64().is_some_and(|bits| bits > 4.0));
        let target = format!("{format}:/particles");
        let info = one(esker.json(["imd", "info", &target, "--queries", "50"]));
        assert_eq!((&info["format"], &info["epochs"]), (&format.into(), &3.into()));
        assert_eq!((&info["records"], &info["partitions"]), (&9000.into(), &3.into()));
        let got = one(esker.json(["imd", "get", &target, FIRST_KEY, "--epochs", "1..3"]));
        let epochs: Vec<&Value> =
            got["values"].as_array().expect("values").iter().map(|v| &v["epoch"]).collect();
        assert_eq!(epochs, [1, 2], "{format}");
        let gets = ["bench", "imd-get", &target, "--cold", "--operations", "500"];
        let gets = one(esker.json(gets));
        assert!(gets["table_reads_per_operation"].as_f64().is_some_and(|reads| reads < 1.2));
    }
    let sound = one(esker.json(["verify"]));
    assert_eq!(sound["sound"], true, "{sound}");
}

#[test]
fn a_directory_is_read_by_path() {
    let esker = Esker::new();
    write(&esker, "run", &["--keys", "100", "--ranks", "2"]);
    let path = format!("run:/particles/{FIRST_KEY}");
    let bytes = esker.run(["cat", &path]).stdout;
    assert_eq!(bytes.len(), 3 * 40);
    let part = esker.run(["cat", &path, "--offset", "40", "--length", "8"]).stdout;
    assert_eq!(part, bytes[40..48]);
    let listed = esker.ok(["ls", "run:/particles"]);
    assert_eq!(listed.lines().count(), 100);
    assert!(listed.lines().any(|line| line == FIRST_KEY));
    let long = esker.ok(["ls", "-l", "run:/"]);
    assert!(long.starts_with("irwxr-xr-x"), "{long}");
    esker.fails(3, ["cat", "run:/particles/0000000000000000"]);
    esker.fails(13, ["cat", "run:/particles/short"]);
    esker.fails(5, ["imd", "get", "run:/", "x"]);
    esker.fails(3, ["imd", "get", "run:/absent", "x"]);
    esker.fails(13, ["imd", "range", "run:/particles", FIRST_KEY, FIRST_KEY]);
}

#[test]
fn values_leave_as_csv_and_numpy() {
    let esker = Esker::new();
    write(&esker, "run", &["--keys", "10", "--format", "ordered"]);
    let csv = esker.ok(["imd", "get", "run:/particles", FIRST_KEY]);
    assert_eq!(csv.lines().next(), Some("key,epoch,step,value"));
    assert_eq!(csv.lines().count(), 4);
    let range = ["imd", "range", "run:/particles", "0000000000000000", "ffffffffffffffff"];
    let all = esker.ok(range);
    assert_eq!(all.lines().count(), 31);
    let first = ["--epochs", "2", "--limit", "4"];
    let some = esker.ok(range.iter().chain(&first));
    assert_eq!(some.lines().count(), 5);
    esker.ok(["imd", "get", "run:/particles", FIRST_KEY, "--output", "npy", "--to", "out.npy"]);
    let npy = std::fs::read(esker.path("out.npy")).expect("written");
    assert!(npy.starts_with(b"\x93NUMPY\x01\x00"));
    let head = usize::from(u16::from_le_bytes([npy[8], npy[9]])) + 10;
    assert_eq!((head % 64, npy.len() - head), (0, 3 * (8 + 4 + 8 + 40)));
    let described = String::from_utf8_lossy(&npy[10..head]).into_owned();
    assert!(described.contains("('value', '|V40')") && described.contains("'shape': (3,)"));
}

#[test]
fn tables_per_query_are_drawn() {
    let esker = Esker::new();
    write(&esker, "run", &["--keys", "1000"]);
    esker.ok(["bench", "imd-queries", "run:/particles", "--plot", "tables.svg"]);
    let svg = std::fs::read_to_string(esker.path("tables.svg")).expect("drawn");
    assert!(svg.contains("Tables examined for a key in 3 epochs"), "{svg}");
}

#[test]
fn a_directory_goes_where_its_change_set_goes() {
    let esker = Esker::new();
    write(&esker, "one", &["--keys", "50", "--ranks", "2"]);
    let target = "one:/other";
    esker.ok(["imd", "write", target, "--as", "two", "--keys", "20", "--rank-memory", "4M"]);
    esker.ok(["squash", "two", "--as", "flat"]);
    esker.ok(["delete", "one"]);
    esker.ok(["delete", "two"]);
    esker.ok(["gc", "--grace", "0s"]);
    for (path, epochs) in [("particles", 3), ("other", 1)] {
        let bytes = esker.run(["cat", &format!("flat:/{path}/{FIRST_KEY}")]).stdout;
        assert_eq!(bytes.len(), epochs * 40);
    }
    assert_eq!(one(esker.json(["verify"]))["sound"], true);
    // One of the two is removed together with its logs.
    esker.ok(["rm", "flat:/other", "--as", "less"]);
    esker.ok(["squash", "less", "--as", "least"]);
    esker.ok(["delete", "flat"]);
    esker.ok(["delete", "less"]);
    esker.ok(["gc", "--grace", "0s"]);
    let indexed = walk(&esker.store()).into_iter().filter(|path| path.contains("/imd/"));
    assert_eq!(indexed.filter(|path| path.ends_with("-data")).count(), 2);
}

#[test]
fn verification_names_the_partition() {
    let esker = Esker::new();
    write(&esker, "run", &["--keys", "500", "--ranks", "2"]);
    let data = walk(&esker.store()).into_iter().find(|path| path.ends_with("00000001-data"));
    let data = data.expect("a log");
    let mut bytes = std::fs::read(&data).expect("readable");
    bytes[100] ^= 1;
    std::fs::write(&data, bytes).expect("writable");
    let output = esker.run(["verify"]);
    assert_eq!(output.status.code(), Some(12));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("partition 1"), "{text}");
    esker.ok(["verify", "--no-data"]);
}

/// All files below `top`.
fn walk(top: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![top.to_path_buf()];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("readable");
            waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else {
            found.push(path.to_string_lossy().into_owned());
        }
    }
    found
}

#[test]
fn sixteen_processes_write_one_directory() {
    let esker = Esker::new();
    let esker_path = env!("CARGO_BIN_EXE_esker");
    let job = ["run", "-n", "16", "--per-node", "4", "--", esker_path, "imd", "write"];
    let work = ["run:/p", "--transport", "tcp", "--routing", "3hop", "--keys", "4000"];
    let more = ["--epochs", "2", "--rank-memory", "4M"];
    esker.ok(job.iter().chain(&work).chain(&more));
    let info = one(esker.json(["imd", "info", "run:/p", "--queries", "20"]));
    assert_eq!((&info["partitions"], &info["records"]), (&16.into(), &8000.into()));
    esker.ok(["bench", "imd-get", "run:/p", "--operations", "1000"]);
    esker.fails(13, ["imd", "write", "other:/p", "--transport", "tcp"]);
}

/// Starts the command as Open MPI's `mpirun` would, as `rank` of two.
fn started_by_mpirun(esker: &Esker, rank: u32, arguments: &[&str]) -> Child {
    let mut command = esker.command(arguments);
    command.env("OMPI_COMM_WORLD_RANK", rank.to_string()).env("OMPI_COMM_WORLD_SIZE", "2");
    command.env("PMIX_NAMESPACE", "job-1").env("ESKER_ADDRESS", "127.0.0.1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Symptom: with `mpirun esker imd write` and no --transport, every process wrote the whole
/// directory and published it under one name; all but one failed.
/// Cause: the default transport was threads.
/// Fix: a process that was started as a rank writes over TCP, and refuses `--transport threads`.
#[test]
fn processes_of_mpirun_write_one_directory() {
    let esker = Esker::without_store();
    let words = ["imd", "write", "run:/p", "--keys", "400", "--rank-memory", "4M"];
    let ranks = [0, 1].map(|rank| started_by_mpirun(&esker, rank, &words));
    for rank in ranks {
        let output = rank.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let info = one(esker.json(["imd", "info", "run:/p", "--queries", "20"]));
    assert_eq!((&info["partitions"], &info["records"]), (&2.into(), &400.into()));
    let words = ["imd", "write", "other:/p", "--transport", "threads"];
    let output = started_by_mpirun(&esker, 1, &words).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(13), "{said}");
    assert!(said.contains("rank 1 of a job of 2 processes"), "{said}");
}
