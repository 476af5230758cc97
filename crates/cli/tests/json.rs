// SPDX-License-Identifier: Apache-2.0
//! JSON output of read commands.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::esker::Esker;

fn example() -> Esker {
    let esker = Esker::new();
    esker.publish("base", &[("d/one.txt", "1"), ("d/Two.TXT", "22"), ("three", "333")]);
    std::os::unix::fs::symlink("three", esker.path("tree-base/link")).expect("a link");
    esker.ok(["import", "tree-base", "base2"]);
    esker
}

#[test]
fn entries_have_every_attribute() {
    let esker = example();
    for arguments in [
        &["ls", "base2:/"][..],
        &["find", "base2:/", "--maxdepth", "1", "--mindepth", "1", "--sorted"],
    ] {
        let entries = esker.json(arguments);
        let paths: Vec<_> = entries.iter().map(|entry| entry["path"].as_str()).collect();
        assert_eq!(paths, [Some("/d"), Some("/link"), Some("/three")]);
        assert_eq!(entries[0]["kind"], "directory");
        assert_eq!(
            (&entries[1]["kind"], &entries[1]["target"]),
            (&"symlink".into(), &"three".into())
        );
        for key in ["mode", "uid", "gid", "nlink", "size", "mtime_ns", "ctime_ns", "atime_ns", "id"]
        {
            assert!(!entries[2][key].is_null(), "{key}");
        }
        assert_eq!(entries[2]["size"], 3);
    }
    let stat = &esker.json(["stat", "base:/three"])[0];
    assert!(stat["xattrs"].is_array() && stat["extent"].is_null(), "{stat}");
}

#[test]
fn names_that_are_not_utf_8_lose_nothing() {
    let esker = Esker::new();
    std::fs::create_dir(esker.path("tree")).expect("new");
    let name = OsStr::from_bytes(b"caf\xe9");
    std::fs::write(esker.path("tree").join(name), "x").expect("a file");
    esker.ok(["import", "tree", "odd"]);
    let entry = &esker.json(["ls", "odd:/"])[0];
    assert_eq!(entry["path"], "/caf\u{fffd}");
    assert_eq!(entry["path_hex"], "2f636166e9");
    // In a pipe names are unchanged, and a path accepts the same bytes.
    assert_eq!(esker.run(["ls", "odd:/"]).stdout, b"caf\xe9\n");
    let path = [b"odd:/".as_slice(), name.as_bytes()].concat();
    assert_eq!(esker.ok([OsStr::new("cat"), OsStr::from_bytes(&path)]), "x");
}

#[test]
fn searches_combine_conditions() {
    let esker = example();
    let find = |conditions: &[&str]| {
        let mut arguments = vec!["find", "base2:/", "--sorted"];
        arguments.extend(conditions);
        esker.ok(arguments)
    };
    assert_eq!(find(&["--name", "*.txt"]), "/d/one.txt\n");
    assert_eq!(find(&["-iname", "*.txt"]), "/d/Two.TXT\n/d/one.txt\n");
    assert_eq!(find(&["-path", "/d/*", "-size", "+1"]), "/d/Two.TXT\n");
    assert_eq!(find(&["-type", "l,d", "-mindepth", "1"]), "/d\n/link\n");
    assert_eq!(find(&["-size", "-3", "-type", "f"]), "/d/Two.TXT\n/d/one.txt\n");
    assert_eq!(find(&["-type", "f", "-newer", "1h", "-size", "3"]), "/three\n");
    assert_eq!(find(&["-type", "f", "-mtime", "-1", "-maxdepth", "1"]), "/three\n");
    assert_eq!(find(&["-older", "2001-01-01"]), "");
    assert_eq!(find(&["-name", "three", "-print0"]), "/three\0");
}

#[test]
fn sums_and_drawings_are_right() {
    let esker = example();
    let sums = esker.json(["du", "base2:/"]);
    assert_eq!((&sums[0]["path"], &sums[0]["bytes"]), (&"/d".into(), &3.into()));
    assert_eq!((&sums[1]["bytes"], &sums[1]["entries"]), (&6.into(), &6.into()));
    let drawing = "/\n├── d\n│   ├── Two.TXT\n│   └── one.txt\n├── link -> three\n└── three\n";
    assert!(esker.ok(["tree", "base2:/"]).starts_with(drawing));
    assert_eq!(esker.json(["tree", "-L", "1", "base2"]).len(), 5);
}

#[test]
fn every_read_command_prints_json() {
    let esker = example();
    for (arguments, key) in [
        (&["names"][..], "published_ns"),
        (&["log"], "bases"),
        (&["show", "base"], "tables"),
        (&["show", "base", "--columns"], "column_bytes"),
        (&["diff", "base", "base2"], "aspects"),
        (&["verify"], "sound"),
        (&["gc", "--dry-run"], "bytes"),
        (&["session", "begin"], "session"),
        (&["session", "list"], "state"),
        (&["export", "base:/", "out"], "problem_count"),
        (&["import", "out", "again"], "published"),
        (&["exit-codes"], "meaning"),
    ] {
        let printed = esker.json(arguments);
        assert!(!printed[0][key].is_null(), "{arguments:?} prints {printed:?}");
    }
}

/// The fields that the tables of docs/guide/command.md give in rows whose first cell names
/// `command`: the first word of each piece of code in the third cell.
pub fn documented_fields(command: &str) -> BTreeSet<String> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/command.md");
    let page = std::fs::read_to_string(page).expect("a page");
    let mut fields = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [commands, _, described, ..] = &cells[..] else { continue };
        if !commands.split('`').any(|word| word == command) {
            continue;
        }
        let code = described.split('`').skip(1).step_by(2);
        let word = |code: &str| code.split(':').next().unwrap_or_default().to_owned();
        let is_field = |word: &String| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        fields.extend(code.map(word).filter(is_field));
    }
    assert!(!fields.is_empty(), "{command}");
    fields
}

/// Symptom: `imd import` and `imd append` printed fields that no page described, and `squash` printed
/// what it published last, where other commands print it first.
#[test]
fn printed_fields_are_those_of_the_guide() {
    let esker = example();
    std::fs::write(esker.path("dump"), [7; 32]).expect("a file");
    let layout = ["--record-bytes", "16", "--key", "0:u64", "--rank-memory", "4M", "dump"];
    let imd = |words: &[&'static str]| [&["imd"], words, &layout].concat();
    // Row, words, and whether all fields of the row are printed always.
    for (command, words, is_exact) in [
        ("imd import", imd(&["import", "run:/p"]), true),
        ("imd append", imd(&["append", "run:/p"]), true),
        ("bench imd-write", vec!["bench", "imd-write", "write:/p", "--keys", "10"], true),
        ("imd show", vec!["imd", "show", "run:/p"], true),
        ("imd get", vec!["imd", "get", "run:/p", "506381209866536711"], true),
        ("squash", vec!["squash", "base", "--as", "flat"], true),
        ("du", vec!["du", "base:/"], true),
        ("diff", vec!["diff", "base", "base2"], false),
        ("diff --summarize", vec!["diff", "--summarize", "base", "base2"], true),
        ("names", vec!["names", "-l"], false),
        ("log", vec!["log"], false),
        ("verify", vec!["verify"], true),
        ("doctor", vec!["doctor"], true),
        ("exit-codes", vec!["exit-codes"], true),
        ("gc", vec!["gc"], true),
        ("rename", vec!["rename", "flat", "flat2"], true),
        ("export", vec!["export", "base:/", "out"], true),
    ] {
        let documented = documented_fields(command);
        let printed = esker.json(&words);
        let (publishes, rest): (Vec<_>, Vec<_>) = printed.iter().partition(|line| {
            command == "squash" && line.as_object().is_some_and(|object| object.len() == 2)
        });
        if command == "squash" {
            assert_eq!(printed[0]["published"], "flat", "first");
            assert_eq!(publishes.len(), 1);
        }
        for line in rest {
            let printed: BTreeSet<String> =
                line.as_object().expect("one").keys().cloned().collect();
            let unknown: Vec<_> = printed.difference(&documented).collect();
            assert!(unknown.is_empty(), "{command} prints {unknown:?}");
            let own = ["published", "set"].map(str::to_owned);
            let own = if command == "squash" { &own[..] } else { &[] };
            let missing: Vec<_> =
                documented.difference(&printed).filter(|f| !own.contains(f)).collect();
            assert!(!is_exact || missing.is_empty(), "{command} prints no {missing:?}");
        }
    }
}

#[test]
fn long_listings_look_like_those_of_ls() {
    let esker = example();
    let listed = esker.ok(["ls", "-ln", "base2:/"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("drwx") && lines[0].ends_with(" d"), "{listed}");
    assert!(lines[1].starts_with("lrwxrwxrwx") && lines[1].ends_with(" link -> three"), "{listed}");
    assert_eq!(esker.ok(["ls", "-S", "base2:/d"]), "Two.TXT\none.txt\n");
    assert_eq!(esker.ok(["ls", "-R", "base2:/d"]), "/d/Two.TXT\n/d/one.txt\n");
}
