// SPDX-License-Identifier: Apache-2.0
//! Mounts of a live namespace: two of them show one tree while programs change it in both, and
//! while servers come and go.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use esker_base::Clock;
use esker_base::clock::SystemClock;

use crate::esker::Esker;
use crate::live::{Server, serve};
use crate::mounted::{can_mount, run, try_run};
use crate::suites::{beside, suite, summary_of};

/// Time after which each mount shows the changes of names and attributes in the other.
const REFRESH: Duration = Duration::from_millis(1_050);

/// A served live namespace, and two mounts of it.
pub struct LiveMounts {
    pub esker: Esker,
    server: Option<Server>,
    pub at: [PathBuf; 2],
}

impl LiveMounts {
    fn new(options: &[&str]) -> Self {
        Self::of_seats("1", options)
    }

    pub fn of_seats(seats: &str, options: &[&str]) -> Self {
        let esker = Esker::new();
        esker.ok(["live", "create", "run", "--seats", seats]);
        let server = Some(Server::start(serve(&esker, &[])));
        let at = ["a", "b"].map(|name| esker.path(name));
        for at in &at {
            fs::create_dir(at).expect("mkdir");
            let at = at.to_str().expect("UTF-8");
            esker.ok([&["mount", "live:run", at], options].concat());
        }
        Self { esker, server, at }
    }

    pub fn a(&self, name: &str) -> PathBuf {
        self.at[0].join(name)
    }

    pub fn b(&self, name: &str) -> PathBuf {
        self.at[1].join(name)
    }

    /// Another server continues; the old one is killed, or ends in order.
    pub fn replace_server(&mut self, is_killed: bool) {
        let old = self.server.take().expect("one runs");
        if is_killed {
            drop(old)
        } else {
            assert_eq!(old.end(), Some(0))
        }
        self.server = Some(Server::start(serve(&self.esker, &[])));
    }

    /// Ends both mounts and the server, and verifies the store.
    fn end(mut self) {
        for at in &self.at {
            self.esker.ok(["umount".as_ref(), at.as_os_str()]);
        }
        assert_eq!(self.server.take().expect("one runs").end(), Some(0));
        self.esker.ok(["verify"]);
    }
}

impl Drop for LiveMounts {
    fn drop(&mut self) {
        for at in &self.at {
            let _ = Command::new("umount").arg("-l").arg(at).output();
        }
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

#[test]
fn each_mount_shows_what_programs_do_in_the_other() {
    if !can_mount() {
        return;
    }
    let live = LiveMounts::new(&[]);
    // New names and bytes show at once: absent names are not cached, and an open reads anew.
    assert!(!live.b("f").exists());
    write(&live.a("f"), "first\n");
    assert_eq!(text(&live.b("f")), "first\n");
    write(&live.b("f"), "second, longer\n");
    assert_eq!(text(&live.a("f")), "second, longer\n");
    // A replaced file is another file at the name.
    write(&live.a("new"), "third\n");
    fs::rename(live.a("new"), live.a("f")).expect("rename");
    assert_eq!(text(&live.b("f")), "third\n");
    let mut append = OpenOptions::new().append(true).open(live.b("f")).expect("open");
    append.write_all(b"more\n").expect("write");
    assert_eq!(text(&live.a("f")), "third\nmore\n");
    fs::create_dir(live.a("d")).expect("mkdir");
    fs::hard_link(live.a("f"), live.a("d/g")).expect("link");
    fs::remove_file(live.a("f")).expect("unlink");
    write(&live.b("d/g"), "by its other name\n");
    assert_eq!(text(&live.a("d/g")), "by its other name\n");
    std::os::unix::fs::symlink("g", live.b("d/s")).expect("symlink");
    assert_eq!(text(&live.a("d/s")), "by its other name\n");
    run(&live.at[0], "setfattr", &["-n", "user.a", "-v", "1", "d/g"]);
    let shown = run(&live.at[1], "getfattr", &["--only-values", "-n", "user.a", "d/g"]);
    assert_eq!(shown, "1");
    run(&live.at[0], "mkfifo", &["d/p"]);
    std::thread::sleep(REFRESH);
    assert_eq!(fs::read_dir(live.b("d")).expect("list").count(), 3);
    fs::set_permissions(live.b("d/g"), PermissionsExt::from_mode(0o600)).expect("chmod");
    std::thread::sleep(REFRESH);
    assert_eq!(fs::metadata(live.a("d/g")).expect("stat").mode() & 0o7777, 0o600);
    // A directory that the other mount has moved is found where it is now.
    fs::rename(live.a("d"), live.a("e")).expect("rename");
    std::thread::sleep(REFRESH);
    assert_eq!(text(&live.b("e/g")), "by its other name\n");
    write(&live.b("e/h"), "in the moved directory\n");
    assert_eq!(text(&live.a("e/h")), "in the moved directory\n");
    live.esker.ok(["commit".as_ref(), live.at[0].as_os_str(), "snapshot".as_ref()]);
    assert_eq!(live.esker.ok(["cat", "snapshot:/e/h"]), "in the moved directory\n");
    drop(append);
    live.end();
}

#[test]
fn open_files_outlive_their_names_in_either_mount() {
    if !can_mount() {
        return;
    }
    let live = LiveMounts::new(&[]);
    write(&live.a("f"), "text");
    let mut open = OpenOptions::new().read(true).write(true).open(live.b("f")).expect("open");
    fs::remove_file(live.a("f")).expect("unlink");
    write(&live.a("f"), "another file");
    open.write_all_at(b"TEXT and more", 0).expect("write");
    let mut content = String::new();
    open.seek(SeekFrom::Start(0)).expect("seek");
    open.read_to_string(&mut content).expect("read");
    assert_eq!(content, "TEXT and more");
    assert_eq!(open.metadata().expect("stat").nlink(), 0);
    open.set_len(3).expect("truncate");
    assert_eq!(open.metadata().expect("stat").len(), 3);
    assert_eq!(text(&live.b("f")), "another file");
    // A program opens its own file again, by the descriptor that is left of it.
    let removed = File::create(live.a("removed")).expect("create");
    fs::remove_file(live.a("removed")).expect("unlink");
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&removed));
    write(again.as_ref(), "text");
    assert_eq!(removed.metadata().expect("stat").len(), 4);
    drop(removed);
    // A program may write what it made, whatever the permission bits say.
    let mut read_only = File::options();
    std::os::unix::fs::OpenOptionsExt::mode(&mut read_only, 0o400);
    let mut new = read_only.write(true).create_new(true).open(live.a("r")).expect("create");
    new.write_all(b"once").expect("write");
    new.set_len(2).expect("truncate");
    drop((open, new));
    assert_eq!(text(&live.b("r")), "on");
    live.end();
}

/// Two processes in two mounts create the same names: each name has one winner.
#[test]
fn an_exclusive_create_succeeds_once() {
    if !can_mount() {
        return;
    }
    let live = LiveMounts::new(&[]);
    let won = |at: &Path| -> Vec<usize> {
        let create = |number: &usize| {
            File::options().write(true).create_new(true).open(at.join(format!("n{number}"))).is_ok()
        };
        (0..300).filter(create).collect()
    };
    let winners = std::thread::scope(|scope| {
        let other = scope.spawn(|| won(&live.at[1]));
        (won(&live.at[0]), other.join().expect("no panic"))
    });
    let mut all = [&winners.0[..], &winners.1[..]].concat();
    all.sort_unstable();
    assert_eq!(all, (0..300).collect::<Vec<_>>());
    live.end();
}

/// Synced changes survive servers that are killed, and programs go on with their open files.
#[test]
fn programs_go_on_while_servers_are_killed() {
    if !can_mount() {
        return;
    }
    let mut live = LiveMounts::new(&[]);
    let mut log = File::create(live.a("log")).expect("create");
    let mut reader = File::open(live.b("log")).expect("open");
    fs::create_dir(live.a("d")).expect("mkdir");
    let mut expected = String::new();
    for round in 0..4 {
        for line in 0..20 {
            let line = format!("round {round} line {line}\n");
            log.write_all(line.as_bytes()).expect("write");
            expected += &line;
        }
        log.sync_all().expect("sync");
        fs::rename(live.a("d"), live.a("e")).expect("rename");
        fs::rename(live.a("e"), live.a("d")).expect("rename");
        File::open(live.a("d")).expect("open").sync_all().expect("sync");
        live.replace_server(round % 2 == 0);
        write(&live.a(&format!("d/after-{round}")), "new\n");
        // Until the mounts have opened their files at the new server.
        std::thread::sleep(Duration::from_millis(1_000));
        if round == 3 {
            fs::remove_file(live.b("log")).expect("unlink");
        }
    }
    log.write_all(b"after the removal\n").expect("write");
    expected += "after the removal\n";
    let mut shown = String::new();
    reader.read_to_string(&mut shown).expect("read");
    assert_eq!(shown, expected);
    drop((log, reader));
    live.end();
}

/// A mount whose server is gone fails in bounded time, and serves again once there is one.
#[test]
fn a_mount_without_a_server_fails_and_recovers() {
    if !can_mount() {
        return;
    }
    let mut live = LiveMounts::new(&[]);
    write(&live.a("f"), "text");
    live.server.take().expect("one runs").end();
    let began_ns = SystemClock.monotonic_ns();
    let failed = fs::read_to_string(live.a("other")).expect_err("nobody serves");
    assert_eq!(failed.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    // Later requests do not wait as long again.
    fs::read_to_string(live.a("another")).expect_err("nobody serves");
    let lasted = Duration::from_nanos(SystemClock.monotonic_ns() - began_ns);
    assert!(lasted < Duration::from_secs(45), "{lasted:?}");
    // Commands find the mount.
    let mounts = live.esker.ok(["mounts"]);
    assert!(mounts.contains("live:run") && mounts.contains("process "), "{mounts}");
    live.server = Some(Server::start(serve(&live.esker, &[])));
    assert_eq!(text(&live.a("f")), "text");
    live.end();
}

#[test]
fn pjdfstest_passes_in_a_live_mount() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: pjdfstest changes users, which only the superuser can");
        return;
    }
    let live = LiveMounts::new(&[]);
    let elsewhere = tempfile::tempdir_in("/dev/shm").expect("another file system");
    let place = live.a("suite");
    fs::create_dir(&place).expect("mkdir");
    for open in [live.at[0].parent().expect("a parent"), &live.at[0], &place] {
        fs::set_permissions(open, PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    // Directories show one link, as in Btrfs.
    let config = text(beside("pjdfstest.toml").as_ref());
    let failing = "[settings]\nexpected_failures = [\"rename::updates_link_parent\"]";
    let path = live.esker.path("pjdfstest.toml");
    write(&path, &config.replace("[settings]", failing));
    let [config, place, elsewhere] =
        [&path, &place, elsewhere.path()].map(|path| path.to_str().expect("UTF-8"));
    let arguments = ["-c", config, "-p", place, "-s", elsewhere];
    let summary = summary_of(&run("/".as_ref(), &suite("pjdfstest"), &arguments));
    assert!(summary.starts_with("Summary: 0 failed"), "{summary}");
    assert!(summary.contains(" 383 passed, 1 expected failure"), "{summary}");
    live.end();
}

/// fsx in a mount whose changes are durable, while its servers are killed.
#[test]
fn fsx_finds_nothing_while_servers_are_killed() {
    if !can_mount() {
        return;
    }
    let mut live = LiveMounts::new(&["--durability", "always"]);
    let [config, file, artifacts] =
        [PathBuf::from(beside("fsx.toml")), live.a("file"), live.esker.path("")]
            .map(|path| path.to_str().expect("UTF-8").to_owned());
    let fsx = move || {
        let arguments =
            ["-f", &config, "-N", "2500", "-S", "3", "-P", &artifacts, &file].map(str::to_owned);
        run("/".as_ref(), &suite("fsx"), &arguments);
    };
    let fsx = std::thread::spawn(fsx);
    let mut servers = 0;
    while !fsx.is_finished() {
        std::thread::sleep(Duration::from_millis(300));
        live.replace_server(true);
        servers += 1;
    }
    fsx.join().expect("fsx finds nothing");
    assert!(servers > 1, "{servers} servers");
    assert!(fs::read(live.b("file")).expect("read") == fs::read(live.a("file")).expect("read"));
    live.end();
}

/// git in one mount and the other in turn, and builds in both at once.
#[test]
fn git_and_make_work_in_both_mounts() {
    if !can_mount() {
        return;
    }
    let live = LiveMounts::new(&[]);
    let [a, b] = [live.a("repo"), live.b("repo")];
    fs::create_dir(&a).expect("mkdir");
    run(&a, "git", &["init", "-q", "-b", "main"]);
    for (round, at) in [&a, &b, &a, &b].into_iter().enumerate() {
        for file in 0..20 {
            write(&at.join(format!("f{file}")), &format!("{round} {file}\n"));
        }
        run(at, "git", &["add", "."]);
        run(at, "git", &["commit", "-q", "-m", &round.to_string()]);
    }
    assert_eq!(run(&a, "git", &["rev-list", "--count", "main"]), "4\n");
    for at in [&a, &b] {
        run(at, "git", &["fsck", "--strict"]);
        assert_eq!(run(at, "git", &["status", "--porcelain"]), "");
    }
    let project = live.a("project");
    fs::create_dir(&project).expect("mkdir");
    for file in 0..30 {
        write(&project.join(format!("f{file}.c")), &format!("int f{file}(void) {{ return 0; }}\n"));
    }
    let rules = "OBJECTS = $(patsubst %.c,$(O)/%.o,$(wildcard f*.c))\n\
                 $(O)/lib.a: $(OBJECTS)\n\tar rcs $@ $^\n\
                 $(O)/%.o: %.c\n\t@mkdir -p $(O)\n\tcc -c -o $@ $<\n";
    write(&project.join("Makefile"), rules);
    std::thread::sleep(REFRESH);
    std::thread::scope(|scope| {
        for (at, output) in [(&live.at[0], "O=one"), (&live.at[1], "O=two")] {
            scope.spawn(move || run(&at.join("project"), "make", &["-s", "-j2", output]));
        }
    });
    for (at, library) in [(&live.at[1], "one/lib.a"), (&live.at[0], "two/lib.a")] {
        let members = run(&at.join("project"), "ar", &["t", library]);
        assert_eq!(members.lines().count(), 30);
    }
    live.end();
}

/// A directory of several pages is listed whole, also by a program that goes back.
#[test]
fn large_directories_are_listed_whole() {
    if !can_mount() {
        return;
    }
    let live = LiveMounts::new(&[]);
    fs::create_dir(live.a("d")).expect("mkdir");
    let names: Vec<String> = (0..10_000).map(|number| format!("file-{number}")).collect();
    for name in &names {
        File::create(live.a("d").join(name)).expect("create");
    }
    let mut shown: Vec<_> = fs::read_dir(live.b("d"))
        .expect("list")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    shown.sort_unstable();
    let mut expected = names.clone();
    expected.sort_unstable();
    assert_eq!(shown, expected);
    let script = "import os,sys\n\
                  d = sorted(os.listdir('.')); e = sorted(x.name for x in os.scandir('.'))\n\
                  assert d == e and len(d) == 10000\n\
                  assert all(os.stat(x).st_size == 0 for x in d[::97])\n";
    run(&live.b("d"), "python3", &["-c", script]);
    // Removal beside the listing.
    run(&live.at[0], "rm", &["-r", "d"]);
    std::thread::sleep(REFRESH);
    assert_eq!(try_run(&live.at[1], "ls", &["d"]).status.code(), Some(2));
    live.end();
}

#[test]
fn options_that_do_not_apply_are_refused() {
    let esker = Esker::new();
    let at = esker.path("at");
    fs::create_dir(&at).expect("mkdir");
    let at = at.to_str().expect("UTF-8");
    if can_mount() {
        // No such namespace.
        esker.fails(3, ["mount", "live:run", at]);
    }
    esker.ok(["live", "create", "run"]);
    assert!(esker.fails(3, ["mount", "run", at]).contains("live:run"));
    assert!(esker.fails(3, ["ls", "run:/"]).contains("live ls run:/"));
    esker.fails(2, ["mount", "live:run", at, "--write-back"]);
    esker.fails(2, ["mount", "live:run", at, "--take-over"]);
    esker.fails(2, ["mount", "live:run", at, "--refresh", "-1"]);
    esker.fails(2, ["mount", "live:run", at, "--base", "b"]);
}

/// Symptom: a file that had grown read as if it had its old size, and `cp` and `tar` copied that.
/// Cause: an open read the attributes from the server, but the kernel kept those that an earlier
/// `stat` had brought.
#[test]
fn an_open_shows_the_size_that_another_mount_gave_a_file() {
    if !can_mount() {
        return;
    }
    let live = LiveMounts::new(&[]);
    for round in 0..10 {
        let name = format!("f{round}");
        let old = "old".repeat(round);
        write(&live.a(&name), &old);
        assert_eq!(fs::metadata(live.b(&name)).expect("stat").len(), old.len() as u64);
        let new = format!("a much longer line than before {round}");
        write(&live.a(&name), &new);
        assert_eq!(text(&live.b(&name)), new);
        let mut open = File::open(live.b(&name)).expect("open");
        write(&live.a(&name), "short");
        drop(open);
        open = File::open(live.b(&name)).expect("open");
        assert_eq!(open.metadata().expect("stat").len(), 5);
        drop(open);
        // A directory that the other mount has replaced.
        let dir = format!("d{round}");
        fs::create_dir(live.a(&dir)).expect("mkdir");
        assert_eq!(fs::read_dir(live.b(&dir)).expect("list").count(), 0);
        fs::remove_dir(live.a(&dir)).expect("rmdir");
        fs::create_dir(live.a(&dir)).expect("mkdir");
        File::create(live.a(&dir).join("new")).expect("create");
        assert_eq!(fs::read_dir(live.b(&dir)).expect("list").count(), 1);
    }
    live.end();
}

/// Symptom: appends in two mounts overwrote each other, even in turn. Cause: each kernel wrote where
/// it thought that the file ended.
#[test]
fn appends_in_both_mounts_are_all_there() {
    if !can_mount() {
        return;
    }
    const LINES: usize = 400;
    let live = LiveMounts::new(&[]);
    write(&live.a("log"), "");
    let append = |at: &Path, who: &str| {
        let mut log = OpenOptions::new().append(true).open(at.join("log")).expect("open");
        for line in 0..LINES {
            log.write_all(format!("{who} {line}\n").as_bytes()).expect("append");
            if line % 100 == 0 {
                // Shells open anew for each line.
                log = OpenOptions::new().append(true).open(at.join("log")).expect("open");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| append(&live.at[0], "a"));
        append(&live.at[1], "b");
    });
    let log = text(&live.a("log"));
    for who in ["a", "b"] {
        let prefix = format!("{who} ");
        let lines: Vec<_> = log.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let expected: Vec<_> = (0..LINES).map(|line| line.to_string()).collect();
        assert_eq!(lines, expected, "{who}");
    }
    live.end();
}

/// A program that syncs learns once, for each file, that a server which died may have lost changes.
/// After that, and after a server that ended in order, syncs succeed.
#[test]
fn a_sync_fails_after_a_server_died_with_changes() {
    if !can_mount() {
        return;
    }
    let mut live = LiveMounts::new(&[]);
    let log = File::create(live.a("log")).expect("create");
    log.sync_all().expect("sync");
    live.replace_server(false);
    log.write_all_at(b"kept by a server that ends in order", 0).expect("write");
    live.replace_server(false);
    log.sync_all().expect("nothing is lost");
    // The server may have synced the write by itself, so try until it was lost.
    for _ in 0..20 {
        log.write_all_at(&[7; 100_000], 0).expect("write");
        live.replace_server(true);
        if let Err(error) = log.sync_all() {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
            log.sync_all().expect("it was reported");
            live.esker.ok(["commit".as_ref(), live.at[0].as_os_str(), "after".as_ref()]);
            drop(log);
            return live.end();
        }
    }
    panic!("no change is ever lost");
}
