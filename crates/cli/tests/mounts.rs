// SPDX-License-Identifier: Apache-2.0
//! Mounts begin, end, commit, crash and resume, without disturbing each other.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use crate::full_stores::SmallDisk;
use crate::mounted::{Mounted, can_mount, run, wait_for_end};

#[test]
fn what_is_written_is_published_at_the_end() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("first", &[]);
    fs::create_dir(mounted.path("d")).expect("mkdir");
    fs::write(mounted.path("d/file"), "text").expect("write");
    assert!(mounted.end().starts_with("published first @"));
    assert_eq!(mounted.esker.ok(["cat", "first:/d/file"]), "text");
    // The next one builds on it.
    mounted.write("second", &["first"]);
    fs::write(mounted.path("d/file"), "other").expect("write");
    fs::hard_link(mounted.path("d/file"), mounted.path("link")).expect("link");
    mounted.end();
    assert_eq!(mounted.esker.ok(["cat", "second:/link"]), "other");
    assert_eq!(mounted.esker.ok(["cat", "first:/d/file"]), "text");
    mounted.esker.ok(["verify"]);
    assert_eq!(mounted.log(), "");
}

#[test]
fn every_way_to_end_a_mount_publishes() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    for (name, end) in [("term", "-TERM"), ("int", "-INT"), ("helper", "-u")] {
        mounted.write(name, &[]);
        fs::write(mounted.path(name), name).expect("write");
        let pid = mounted.pid();
        match end {
            "-u" => run(mounted.root().parent().expect("a parent"), "fusermount3", &[end, "at"]),
            signal => run("/".as_ref(), "kill", &[signal, &pid.to_string()]),
        };
        // Published once the process is gone.
        wait_for_end(pid);
        assert_eq!(mounted.esker.ok(["cat", &format!("{name}:/{name}")]), name);
    }
    assert_eq!(mounted.log(), "");
}

/// Symptom: a mount that ended also unmounted the file system beneath it.
/// Cause: the FUSE library's session unmounts its directory again when it is dropped.
/// Fix: the session is kept until the process ends.
#[test]
fn ending_a_mount_leaves_what_is_mounted_beneath_it() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: mounting another file system takes the superuser");
        return;
    }
    let mounted = Mounted::new();
    let beneath = SmallDisk::at(mounted.root());
    beneath.resize("size=1m");
    fs::write(mounted.path("beneath"), "still here").expect("write");
    for way in ["command", "umount", "helper", "TERM", "INT"] {
        mounted.write(way, &[]);
        fs::metadata(mounted.path("beneath")).expect_err("it is covered");
        let pid = mounted.pid();
        match way {
            "command" => drop(mounted.end()),
            "umount" => drop(run("/".as_ref(), "umount", &[beneath.path()])),
            "helper" => drop(run("/".as_ref(), "fusermount3", &["-u", beneath.path()])),
            signal => drop(run("/".as_ref(), "kill", &["-s", signal, &pid.to_string()])),
        }
        wait_for_end(pid);
        let read = fs::read_to_string(mounted.path("beneath"));
        assert_eq!(read.expect("it is not covered any more"), "still here", "{way}");
    }
}

#[test]
fn a_mount_in_use_ends_only_by_a_signal() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    for (name, in_place) in [("used", "never"), ("passed", "always")] {
        mounted.mount(&["mount", "--write", name, "--in-place", in_place]);
        end_by_a_signal(&mounted, name, in_place == "always");
    }
    mounted.esker.ok(["verify"]);
}

fn end_by_a_signal(mounted: &Mounted, name: &str, may_be_passed: bool) {
    let mut open = fs::File::create(mounted.path("open")).expect("create");
    open.write_all(b"before").expect("write");
    let at = mounted.root().as_os_str().to_owned();
    let said = mounted.esker.fails(9, ["umount".as_ref(), at.as_os_str()]);
    assert!(said.contains("the mount is in use"), "{said}");
    open.write_all(b" after").expect("it goes on");
    let pid = mounted.pid();
    run("/".as_ref(), "kill", &["-TERM", &pid.to_string()]);
    wait_for_end(pid);
    // The kernel may continue to write in place, which changes nothing that was published.
    let is_written = open.write_all(b"too late").is_ok();
    assert!(may_be_passed || !is_written, "the mount is gone");
    open.sync_all().expect_err("the mount is gone");
    assert_eq!(mounted.esker.ok(["cat", &format!("{name}:/open")]), "before after");
}

#[test]
fn a_commit_is_a_snapshot_and_the_mount_goes_on() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("last", &[]);
    let open = fs::File::create(mounted.path("file")).expect("create");
    open.write_all_at(b"one", 0).expect("write");
    let at = mounted.root().to_str().expect("UTF-8").to_owned();
    assert!(mounted.esker.ok(["commit", &at, "between"]).starts_with("published between @"));
    open.write_all_at(b"two", 0).expect("an open file goes on");
    let said = mounted.esker.fails(4, ["commit", &at, "between"]);
    assert!(said.contains("between"), "{said}");
    drop(open);
    mounted.end();
    assert_eq!(mounted.esker.ok(["cat", "between:/file"]), "one");
    assert_eq!(mounted.esker.ok(["cat", "last:/file"]), "two");
    mounted.esker.ok(["verify"]);
}

#[test]
fn what_was_synced_survives_the_death_of_the_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("after", &[]);
    fs::create_dir(mounted.path("d")).expect("mkdir");
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let file = fs::File::create(mounted.path("d/large")).expect("create");
    file.write_all_at(&content, 0).expect("write");
    file.sync_all().expect("sync");
    let small = fs::File::create(mounted.path("d/small")).expect("create");
    small.write_all_at(b"kept", 0).expect("write");
    small.sync_all().expect("sync");
    file.write_all_at(&[7; 5_000], 10_000).expect("write");
    file.sync_data().expect("sync");
    mounted.crash();
    fs::metadata(mounted.path("d")).expect_err("nobody answers");
    drop((file, small));
    let at = mounted.root().to_str().expect("UTF-8").to_owned();
    let said = mounted.esker.fails(9, ["mount", "--write", "after", &at]);
    assert!(said.contains("--resume"), "{said}");
    mounted.resume("after");
    let mut expected = content;
    expected[10_000..15_000].fill(7);
    assert!(fs::read(mounted.path("d/large")).expect("read") == expected);
    assert_eq!(fs::read(mounted.path("d/small")).expect("read"), b"kept");
    mounted.end();
    mounted.esker.ok(["verify"]);
}

/// As `at_always_a_file_that_is_closed_survives_power_loss` in the tests of `esker-fuse`, with
/// processes: the mount is killed as soon as `close` returns.
#[test]
fn at_always_a_file_that_is_closed_survives_the_death_of_the_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount(&["mount", "--write", "closed", "--durability", "always"]);
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let names: Vec<String> = (0..20).map(|n| format!("small {n}")).collect();
    fs::write(mounted.path("large"), &large).expect("write");
    for name in &names {
        fs::write(mounted.path(name), name).expect("write");
    }
    mounted.crash();
    mounted.mount(&["mount", "--write", "closed", "--durability", "always", "--resume"]);
    assert!(fs::read(mounted.path("large")).expect("read") == large);
    for name in &names {
        assert_eq!(fs::read_to_string(mounted.path(name)).expect("read"), *name);
    }
    mounted.end();
    mounted.esker.ok(["verify"]);
}

/// Symptom: a file that a program kept open for a minute was empty once the mount had died.
/// Cause: only a close, an `fsync` or a commit wrote the record of a file.
/// Fix: mounts write the records of open files every five seconds.
#[test]
fn what_was_written_long_before_survives_the_death_of_the_mount() {
    if !can_mount() {
        return;
    }
    // The kernel keeps what is written for longer.
    if std::env::vars().any(|(_, value)| value.contains("--write-back")) {
        return;
    }
    let mounted = Mounted::new();
    let options = ["--durability", "async", "--in-place", "never"];
    mounted.mount(&[&["mount", "--write", "open"], &options[..]].concat());
    let [small, large] = [("small", 5_000), ("large", 3_000_000)].map(|(name, bytes)| {
        let file = fs::File::create(mounted.path(name)).expect("create");
        file.write_all_at(&vec![7; bytes], 0).expect("write");
        file
    });
    std::thread::sleep(Duration::from_secs(7));
    mounted.crash();
    drop((small, large));
    mounted.resume("open");
    for (name, bytes) in [("small", 5_000), ("large", 3_000_000)] {
        assert!(fs::read(mounted.path(name)).expect("read") == vec![7; bytes], "{name}");
    }
    mounted.end();
    mounted.esker.ok(["verify"]);
}

#[test]
fn two_mounts_of_a_snapshot_and_a_writer_on_it_do_not_disturb_each_other() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let text: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    mounted.esker.publish("base", &[("d/f", &text), ("g", "small")]);
    mounted.mount(&["mount", "base"]);
    let other = mounted.esker.path("other");
    let writer = mounted.esker.path("writer");
    for place in [&other, &writer] {
        fs::create_dir(place).expect("mkdir");
    }
    mounted.esker.ok(["mount".as_ref(), "base".as_ref(), other.as_os_str()]);
    mounted.esker.ok(["mount", "--write", "next", "--base", "base"]
        .map(AsRef::as_ref)
        .into_iter()
        .chain([writer.as_os_str()]));
    let reading = fs::File::open(mounted.path("d/f")).expect("open");
    let inode = reading.metadata().expect("stat").ino();
    for round in 0..5 {
        let file = fs::File::options().write(true).open(writer.join("d/f")).expect("open");
        file.write_all_at(format!("round {round}").as_bytes(), 5_000 * round).expect("write");
        fs::write(writer.join("g"), format!("{round}")).expect("write");
        for root in [mounted.root(), &other] {
            assert!(fs::read_to_string(root.join("d/f")).expect("read") == text);
            assert_eq!(fs::read_to_string(root.join("g")).expect("read"), "small");
        }
    }
    assert_eq!(fs::metadata(writer.join("d/f")).expect("stat").ino(), inode, "numbers are stable");
    let error = fs::write(mounted.path("g"), "no").expect_err("it can only be read");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fs::remove_file(writer.join("g")).expect("unlink");
    assert!(mounted.path("g").exists());
    drop(reading);
    for place in [&other, &writer] {
        mounted.esker.ok(["umount".as_ref(), place.as_os_str()]);
    }
    mounted.end();
    assert_eq!(mounted.esker.ok(["cat", "base:/g"]), "small");
    mounted.esker.ok(["verify"]);
}

#[test]
fn mistakes_are_explained_before_the_command_returns() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let at = mounted.root().to_str().expect("UTF-8").to_owned();
    assert!(mounted.esker.fails(3, ["mount", "nothing", &at]).contains("nothing"));
    mounted.esker.fails(3, ["mount", "--write", "x", "--resume", &at]);
    mounted.esker.fails(3, ["mount", "--write", "x", "--base", "nothing", &at]);
    mounted.esker.fails(3, ["mount", "--write", "x", "/nowhere/at/all"]);
    mounted.esker.fails(2, ["mount", &at]);
    mounted.esker.fails(13, ["umount", &at]);
    mounted.esker.fails(13, ["commit", &at, "x"]);
    mounted.esker.publish("taken", &[("f", "")]);
    mounted.esker.fails(4, ["mount", "--write", "taken", &at]);
    // None of them left anything behind.
    assert_eq!(mounted.esker.ok(["session", "list"]), "");
}

/// Symptom: a collection immediately freed what a mount showed, if its name had been deleted; at
/// `--grace 0` it also freed tables that a compaction had replaced.
/// Fix: a mount renews markers.
#[test]
fn what_is_mounted_is_not_collected() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let collect = |names: &[&str]| {
        for name in names {
            mounted.esker.ok(["compact", name]);
            mounted.esker.ok(["delete", name]);
        }
        mounted.esker.ok(["gc", "--grace", "0"]);
    };
    let tree: Vec<(String, String)> = (0..50)
        .map(|number| (format!("d{number}/file"), format!("{number}").repeat(9_000)))
        .collect();
    let files: Vec<(&str, &str)> = tree.iter().map(|(path, text)| (&**path, &**text)).collect();
    let check = || {
        for (path, text) in &tree {
            let read = fs::read_to_string(mounted.path(path));
            assert!(read.expect("read") == *text, "{path} is changed");
        }
    };
    mounted.esker.publish("base", &files);
    mounted.mount(&["mount", "base"]);
    fs::metadata(mounted.path("d1")).expect("mounted");
    collect(&["base"]);
    check();
    mounted.end();
    assert!(!mounted.esker.ok(["gc", "--grace", "0"]).contains(" 0 change sets"));
    fs::remove_dir_all(mounted.esker.path("tree-base")).expect("remove");
    mounted.esker.publish("base", &files);
    mounted.write("result", &["base"]);
    fs::write(mounted.path("new"), "text").expect("write");
    collect(&["base"]);
    check();
    mounted.end();
    mounted.esker.ok(["verify"]);
    assert_eq!(mounted.log(), "");
}

/// Symptom: a mount over the directory of its store hid the store from itself; `init` in a mount
/// created a store that needs the mount to be readable.
/// Fix: both are refused with an explanation.
#[test]
fn a_mount_and_a_store_are_not_made_in_each_other() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("work", &[]);
    let esker = &mounted.esker;
    esker.publish("base", &[("f", "")]);
    let said = esker.fails(13, ["mount", "base", "."]);
    assert!(said.contains("contains its own store"), "{said}");
    assert!(esker.fails(13, ["mount", "base", "store/set"]).contains("is inside the store"));
    let inside = mounted.root().join("new/store");
    let inside = inside.to_str().expect("UTF-8");
    let said = esker.fails(13, ["init", "--store", inside]);
    assert!(said.contains("inside the Esker mount"), "{said}");
    esker.fails(13, ["bench", "create", "--files", "1", "--store", inside]);
    assert!(!mounted.root().join("new").exists());
}

/// A mount of a squash shows what its sources showed, byte by byte, after these were deleted and
/// collected: files that were imported, and files that the kernel wrote in place.
#[test]
fn a_squash_is_mounted_without_its_sources() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let content = |seed: u32, bytes: u32| -> Vec<u8> {
        (0..bytes).map(|at| (at.wrapping_mul(seed) >> 7) as u8).collect()
    };
    let tree = mounted.esker.path("tree");
    fs::create_dir(&tree).expect("new");
    let mut expected = std::collections::BTreeMap::new();
    for (name, seed, bytes) in
        [("small", 3, 3_000), ("large", 7_919, 12 << 20), ("changed", 31, 9 << 20)]
    {
        expected.insert(name, content(seed, bytes));
        fs::write(tree.join(name), &expected[name]).expect("write");
    }
    mounted.esker.ok(["import", "tree", "base"]);
    mounted.write("above", &["base"]);
    expected.insert("in-place", content(104_729, 20 << 20));
    fs::write(mounted.path("in-place"), &expected["in-place"]).expect("write");
    let patch = content(13, 70_000);
    let file = fs::OpenOptions::new().write(true).open(mounted.path("changed")).expect("open");
    for at in [0_u64, 1 << 20, 5_000_000] {
        use std::os::unix::fs::FileExt;
        file.write_all_at(&patch, at).expect("write");
        let changed = expected.get_mut("changed").expect("there");
        changed[at as usize..at as usize + patch.len()].copy_from_slice(&patch);
    }
    drop(file);
    mounted.end();
    mounted.esker.ok(["squash", "above", "--as", "flat"]);
    mounted.esker.ok(["delete", "base", "above"]);
    let report = mounted.esker.json(["gc", "--grace", "0"]).remove(0);
    assert_eq!(report["data_only_sets"].as_array().map(Vec::len), Some(2), "{report}");
    mounted.mount(&["mount", "flat"]);
    for (name, bytes) in &expected {
        assert!(fs::read(mounted.path(name)).expect("read") == *bytes, "{name}");
    }
    mounted.end();
    mounted.esker.ok(["export", "flat:/", "out"]);
    for (name, bytes) in &expected {
        assert!(fs::read(mounted.esker.path("out").join(name)).expect("read") == *bytes, "{name}");
    }
    mounted.esker.ok(["verify"]);
}

/// Stores to a mapping of a file, and waits without writing it back.
const STORING: &str = "
import mmap, os, sys
opened = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(opened, 16 << 20)
mapped = mmap.mmap(opened, 0)
mapped[:] = b'A' * len(mapped)
print('stored', flush=True)
sys.stdin.readline()
";

/// Symptom: a commit, and a mount that was ended while programs used it, missed most of what had been
/// stored to mappings, or written with --write-back.
/// Cause: the kernel does not wait for the pages of such file systems when it syncs them.
/// Fix: the mount makes the kernel send the pages of each open file, and waits for them.
#[test]
fn what_is_stored_to_mappings_is_committed_and_kept_at_the_end() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("at-the-end", &[]);
    let mut program = std::process::Command::new("python3")
        .args(["-c", STORING])
        .arg(mounted.path("mapped"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut said = String::new();
    let output = program.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut said).expect("a line");
    assert_eq!(said, "stored\n");
    let at = mounted.root().to_str().expect("UTF-8").to_owned();
    mounted.esker.ok(["commit", &at, "committed"]);
    let pid = mounted.pid();
    // In use, so that it is cut off.
    run("/".as_ref(), "kill", &["-TERM", &pid.to_string()]);
    wait_for_end(pid);
    for name in ["committed", "at-the-end"] {
        let content = mounted.esker.ok(["cat", &format!("{name}:/mapped")]);
        let missing = content.bytes().filter(|byte| *byte != b'A').count();
        assert_eq!((content.len(), missing), (16 << 20, 0), "{name}");
    }
    program.kill().expect("it waits");
    program.wait().expect("it ends");
}
