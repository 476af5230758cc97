//! JSON output of read commands.

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
