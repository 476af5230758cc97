// SPDX-License-Identifier: Apache-2.0
//! Indexed directories in mounts and exports.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::io::Errno;

use crate::esker::Esker;
use crate::imd_import::dump;
use crate::mounted::{Mounted, can_mount, try_run};

/// A store with `run:/p`: 40 keys in the epoch with step 100 and 10 of them in the one with step
/// 200.
fn imported() -> Esker {
    let esker = Esker::new();
    let files = [dump(&esker, "first", 100, 0..40), dump(&esker, "second", 200, 30..40)];
    let layout = ["--header-bytes", "8", "--record-bytes", "7", "--key", "id=0:u16be"];
    let more = ["--field", "a=2:u8", "--step", "4:u32", "--rank-memory", "4M"];
    let words = ["imd", "import", "run:/p"];
    esker.ok([&words[..], &layout, &more, &[&files[0], &files[1]]].concat());
    esker
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).expect("from the system")
}

/// Symptom: for an indexed directory in a mount `ls` reported an unsupported operation, `cat`
/// reported that it is not a directory, and search permission was missing.
/// Cause: the mount knew that the directory exists, but not its contents.
/// Fix: it shows keys as files.
#[test]
fn keys_are_files_of_a_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::of(imported());
    for arguments in [&["mount", "run"][..], &["mount", "--write", "next", "--base", "run"]] {
        mounted.mount(arguments);
        let directory = fs::metadata(mounted.path("p")).expect("stat");
        assert!(directory.is_dir());
        let mode = directory.permissions().mode();
        assert_eq!((mode & 0o111) << 2, mode & 0o444, "{mode:o}");

        let mut names: Vec<u16> = fs::read_dir(mounted.path("p"))
            .expect("it can be listed")
            .map(|entry| entry.expect("an entry").file_name().to_str().expect("text").to_owned())
            .map(|name| name.parse().expect("a number"))
            .collect();
        names.sort_unstable();
        assert_eq!(names, (0..40).collect::<Vec<u16>>());
        let long = try_run(mounted.root(), "ls", &["-l", "p"]);
        assert!(long.status.success(), "{long:?}");
        let long = String::from_utf8(long.stdout).expect("text");
        assert_eq!(long.lines().filter(|line| line.starts_with("-r--")).count(), 40, "{long}");

        assert_eq!(fs::read(mounted.path("p/5")).expect("read"), b"\0\x05value");
        assert_eq!(fs::read(mounted.path("p/35")).expect("read"), b"\0#value\0#value");
        assert_eq!(fs::metadata(mounted.path("p/35")).expect("stat").len(), 14);
        let inode = |name: &str| fs::metadata(mounted.path(name)).expect("stat").ino();
        assert_eq!((inode("p/5"), inode("p/5") == inode("p/6")), (inode("p/5"), false));
        assert_eq!(fs::read(mounted.path("p/40")).map_err(errno), Err(Errno::NOENT));
        assert_eq!(fs::read(mounted.path("p/name")).map_err(errno), Err(Errno::NOENT));

        // Nobody can change a key; for ordinary users the mode makes the kernel refuse before it
        // asks the mount.
        let is_refused = |done: std::io::Result<()>| {
            matches!(done.map_err(errno), Err(Errno::ROFS | Errno::ACCESS))
        };
        assert!(is_refused(fs::write(mounted.path("p/5"), "x")));
        assert!(is_refused(fs::write(mounted.path("p/new"), "x")));
        assert!(is_refused(fs::remove_file(mounted.path("p/5"))));
        if arguments.contains(&"--write") {
            fs::copy(mounted.path("p/35"), mounted.path("copy")).expect("copy");
            assert_eq!(fs::read(mounted.path("copy")).expect("read").len(), 14);
            fs::rename(mounted.path("p"), mounted.path("q")).expect("rename");
            assert_eq!(fs::read(mounted.path("q/5")).expect("read"), b"\0\x05value");
            assert!(!try_run(mounted.root(), "rm", &["-r", "q"]).status.success());
            assert_eq!(fs::read_dir(mounted.path("q")).expect("all is there").count(), 40);
            fs::remove_dir(mounted.path("q")).expect("with all its keys");
        }
        mounted.end();
    }
    assert_eq!(mounted.log(), "");
}

/// Symptom: a key was a file for `esker cat` alone; `stat`, `ls` and `cp` of it reported that a part of
/// its path is not a directory.
/// Cause: only `cat` looked for keys.
/// Fix: the commands that read one file share that look-up; the others say why they cannot.
#[test]
fn commands_read_keys_as_files() {
    let esker = imported();
    let stat = &esker.json(["stat", "run:/p/35"])[0];
    assert_eq!(
        (&stat["kind"], &stat["size"], &stat["mode"]),
        (&"file".into(), &14.into(), &"0444".into())
    );
    assert!(esker.ok(["stat", "run:/p/35"]).contains("content  the values of a key"));
    assert_eq!(esker.ok(["ls", "run:/p/35"]), "/p/35\n");
    assert!(esker.ok(["ls", "-l", "run:/p/35"]).starts_with("-r--r--r--"));
    esker.ok(["cp", "run:/p/35", "run:/copy", "--as", "copied"]);
    assert_eq!(esker.run(["cat", "copied:/copy"]).stdout, b"\0#value\0#value");
    esker.ok(["cp", "-p", "copied:/p/5", "copied:/other", "--as", "again"]);
    assert_eq!(esker.run(["cat", "again:/other"]).stdout, b"\0\x05value");
    for (code, words) in [
        (3, &["stat", "run:/p/77"][..]),
        (3, &["ls", "run:/p/77"]),
        (13, &["stat", "run:/p/name"]),
        (3, &["cp", "run:/p/77", "run:/copy", "--as", "absent"]),
    ] {
        assert!(esker.fails(code, words).contains("key"), "{words:?}");
    }
    for words in [
        &["rm", "run:/p/5", "--as", "new"][..],
        &["chmod", "600", "run:/p/5", "--as", "new"],
        &["mkdir", "run:/p/new", "--as", "new"],
        &["find", "run:/p/5"],
        &["du", "run:/p/5"],
        &["export", "run:/p/5", "out"],
    ] {
        let said = esker.fails(5, words);
        assert!(said.contains("an indexed directory: `cat`, `stat`, `ls` and `cp`"), "{said}");
    }
}

/// Programs of every system read keys in a mount as files, one by one and all of them.
#[test]
fn programs_read_keys_of_a_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::of(imported());
    mounted.mount(&["mount", "run"]);
    let said = |script: &str| {
        let output = try_run(mounted.root(), "sh", &["-c", script]);
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    for (script, expected) in [
        ("stat -c '%F %s %a' p/35", "regular file 14 444"),
        ("wc -c < p/35", "14"),
        ("tail -c 5 p/5 && echo && head -c 7 p/5 | tail -c 5", "value\nvalue"),
        ("test -e p/5 && test -f p/5 && test -r p/5 && ! test -e p/77 && echo yes", "yes"),
        ("find p -type f | wc -l", "40"),
        ("find . -name 35", "./p/35"),
        ("grep -rl value p | wc -l", "40"),
        ("grep -c . p/5", "1"),
        ("du -s --apparent-size -B1 p/5 | cut -f1", "7"),
        (
            "cp -r p ../copied && ls ../copied | wc -l && diff -r p ../copied && echo same",
            "40\nsame",
        ),
        ("tar cf - p | tar tf - | wc -l", "41"),
        ("cmp p/5 ../copied/5 && echo same", "same"),
        ("ls p | sort -n | head -1", "0"),
    ] {
        assert_eq!(said(script), expected, "{script}");
    }
    mounted.end();
    assert_eq!(mounted.log(), "");
}

#[test]
fn a_directory_of_many_keys_says_why_it_is_not_listed() {
    if !can_mount() {
        return;
    }
    let esker = Esker::new();
    let words = ["imd", "write", "run:/many", "--keys", "16385", "--rank-memory", "4M"];
    esker.ok(words.iter().chain(&["--epochs", "2", "--ranks", "2"]));
    esker.ok([
        "imd",
        "write",
        "run:/most",
        "--as",
        "both",
        "--keys",
        "16384",
        "--rank-memory",
        "4M",
    ]);
    let mounted = Mounted::of(esker);
    mounted.mount(&["mount", "both"]);
    assert_eq!(fs::read_dir(mounted.path("most")).expect("list").count(), 16_384);
    assert_eq!(fs::read_dir(mounted.path("many")).map(drop).map_err(errno), Err(Errno::FBIG));
    // Each key is readable.
    let first = fs::read(mounted.path("many/e220a8397b1dcdaf")).expect("read");
    assert_eq!(first.len(), 2 * 40);
    mounted.end();
    let log = mounted.log();
    assert!(log.contains("many has more than 16384 keys") && log.contains("`esker ls`"), "{log}");
}

/// Symptom: an export omitted indexed directories.
/// Cause: they had no form as files.
/// Fix: they have three.
#[test]
fn indexed_directories_are_exported() {
    let esker = imported();
    esker.ok(["export", "run:/", "files"]);
    assert_eq!(fs::read_dir(esker.path("files/p")).expect("a directory").count(), 40);
    assert_eq!(fs::read(esker.path("files/p/35")).expect("a key"), b"\0#value\0#value");
    let mode = fs::metadata(esker.path("files/p/35")).expect("stat").permissions().mode();
    assert_eq!(mode & 0o111, 0, "{mode:o}");

    esker.ok(["export", "run:/p", "alone"]);
    assert_eq!(fs::read_dir(esker.path("alone")).expect("a directory").count(), 40);

    esker.ok(["export", "run:/", "table", "--indexed", "csv"]);
    let csv = fs::read_to_string(esker.path("table/p.csv")).expect("a table");
    assert_eq!(csv.lines().next(), Some("id,epoch,step,a"));
    assert_eq!(csv.lines().count(), 1 + 40 + 10);
    assert!(csv.lines().any(|line| line == "35,1,200,118"), "{csv}");

    esker.ok(["export", "run:/p", "array", "--indexed", "npy"]);
    let npy = fs::read(esker.path("array")).expect("an array");
    let head = usize::from(u16::from_le_bytes([npy[8], npy[9]])) + 10;
    let text = String::from_utf8_lossy(&npy[..head]).into_owned();
    assert!(text.contains("('a', '|u1')") && text.contains("'shape': (50,)"), "{text}");
    assert_eq!(npy.len() - head, 50 * (8 + 4 + 8 + 7));
}
