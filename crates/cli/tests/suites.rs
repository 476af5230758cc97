// SPDX-License-Identifier: Apache-2.0
//! External suites and real programs, run in a mount: bounded here, long in `make soak`.
//!
//! `scripts/setup.sh test` installs them; a missing one fails the test rather than skipping it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::mounted::{Mounted, can_mount, run, try_run};

/// Operations of fsx in the quick run.
const FSX_OPERATIONS: u32 = 10_000;
/// Operations of one fsx process. It never unmaps what it maps for reading, one operation in six,
/// and a process may have 65,530 mappings.
const FSX_OPERATIONS_MAX: u32 = 50_000;

/// A suite that cargo installs beside the tests.
pub fn suite(name: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_esker"));
    let target = binary.parent().and_then(Path::parent).expect("target/debug/esker");
    let path = target.join("suites/bin").join(name);
    if path.exists() { path.to_str().expect("UTF-8").to_owned() } else { name.to_owned() }
}

pub fn beside(name: &str) -> String {
    format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Ends the mount and verifies what it published.
fn end(mounted: &Mounted) {
    mounted.end();
    mounted.esker.ok(["verify"]);
    assert_eq!(mounted.log(), "");
}

#[test]
fn pjdfstest_passes() {
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: pjdfstest changes users, which only the superuser can");
        return;
    }
    let mounted = Mounted::writing("posix", &[]);
    let elsewhere = tempfile::tempdir_in("/dev/shm").expect("another file system");
    // The suite cannot build a path of maximum length below a few directory names.
    let mut name = String::from("suite");
    while (4_095 - mounted.path(&name).as_os_str().len() - 23) % 127 < 20 {
        name.push('x');
    }
    for open in [mounted.root().parent().expect("a parent"), mounted.root(), &mounted.path(&name)] {
        let _ = fs::create_dir(open);
        fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("chmod");
    }
    let place = mounted.path(&name);
    let (place, elsewhere) = (place.to_str().expect("UTF-8"), elsewhere.path().to_str());
    let config = beside("pjdfstest.toml");
    let arguments = ["-c", &config, "-p", place, "-s", elsewhere.expect("UTF-8")];
    let summary = summary_of(&run("/".as_ref(), &suite("pjdfstest"), &arguments));
    assert!(summary.starts_with("Summary: 0 failed"), "{summary}");
    // All there are, except `link::link_count_max`, since the C library knows no limit for FUSE,
    // and those that remount the file system read-only, which come next.
    assert!(summary.contains(" 384 passed") && summary.contains(" 14 skipped"), "{summary}");
    let summary = pjdfstest_remounting(&mounted, &arguments);
    assert!(summary.starts_with("Summary: 0 failed, 0 skipped, 13 passed"), "{summary}");
    end(&mounted);
}

pub fn summary_of(told: &str) -> String {
    told.lines().rfind(|line| line.starts_with("Summary")).unwrap_or_default().to_owned()
}

/// pjdfstest's cases of read-only file systems, for which it remounts this one.
fn pjdfstest_remounting(mounted: &Mounted, arguments: &[&str; 6]) -> String {
    let config = fs::read_to_string(arguments[1]).expect("a configuration");
    let config = config.replace("allow_remount = false", "allow_remount = true");
    let place = mounted.esker.path("remount.toml");
    fs::write(&place, config).expect("write");
    // For file systems of type `fuse`, `mount` takes the source for a program.
    let bin = mounted.esker.path("bin");
    fs::create_dir(&bin).expect("mkdir");
    let path = std::env::var("PATH").expect("a path of programs");
    let script = format!("#!/bin/sh\nexport PATH='{path}'\nexec mount -i \"$@\"\n");
    fs::write(bin.join("mount"), script).expect("write");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bin.join("mount"), mode).expect("chmod");
    let path = format!("PATH={}:{path}", bin.display());
    let mut all = vec![path, suite("pjdfstest")];
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    all[3] = place.to_str().expect("UTF-8").to_owned();
    all.push("erofs".to_owned());
    summary_of(&run("/".as_ref(), "env", &all))
}

/// Runs fsx on `file`, which it first truncates; several times if that is too much for one process.
fn fsx(mounted: &Mounted, file: &str, operations: u32, seed: u64) {
    let mut left = operations;
    for part in 0.. {
        let now = left.min(FSX_OPERATIONS_MAX);
        fsx_once(mounted, file, now, seed + part * 1_000);
        left -= now;
        if left == 0 {
            return;
        }
    }
}

fn fsx_once(mounted: &Mounted, file: &str, operations: u32, seed: u64) {
    let (operations, seed) = (operations.to_string(), seed.to_string());
    let config = beside("fsx.toml");
    let place = mounted.path(file);
    let artifacts = mounted.esker.path("");
    let arguments = [
        "-f",
        &config,
        "-N",
        &operations,
        "-S",
        &seed,
        "-P",
        artifacts.to_str().expect("UTF-8"),
        place.to_str().expect("UTF-8"),
    ];
    run("/".as_ref(), &suite("fsx"), &arguments);
}

/// fsx on a new file, then, in another session, on a file that a base has. `inherited.rs` tests
/// files of a base that are not truncated first.
fn fsx_fresh_and_inherited(operations: u32, seed: u64, mode: &[&str]) {
    let mounted = Mounted::new();
    let mount = |name: &str, more: &[&str]| {
        mounted.mount(&[&["mount", "--write", name], more, mode].concat());
    };
    mount("fresh", &[]);
    fsx(&mounted, "file", operations, seed);
    end(&mounted);
    mount("inherited", &["--base", "fresh"]);
    // fsx starts with an empty file: truncate the file and let it grow over the old one.
    fs::copy(mounted.path("file"), mounted.path("copy")).expect("copy");
    let before = fs::read(mounted.path("file")).expect("read");
    fsx(&mounted, "file", operations, seed + 1);
    assert!(fs::read(mounted.path("copy")).expect("read") == before, "a copy shares and stays");
    end(&mounted);
    let exported = mounted.esker.path("exported");
    mounted.esker.ok(["export".as_ref(), "fresh:/file".as_ref(), exported.as_os_str()]);
    assert!(fs::read(exported).expect("read") == before, "the base stays as it was");
}

#[test]
fn fsx_finds_nothing() {
    if can_mount() {
        fsx_fresh_and_inherited(FSX_OPERATIONS, 1, &[]);
    }
}

#[test]
fn fsx_finds_nothing_when_the_kernel_collects_writes() {
    if can_mount() {
        fsx_fresh_and_inherited(FSX_OPERATIONS, 7, &["--write-back"]);
    }
}

#[test]
fn fsx_finds_nothing_when_the_kernel_writes_by_itself() {
    if can_mount() {
        fsx_fresh_and_inherited(FSX_OPERATIONS, 13, &["--in-place", "always"]);
    }
}

/// Half of them on a new file, half on one that a base has.
#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_fsx_a_million_operations() {
    if can_mount() {
        fsx_fresh_and_inherited(500_000, 11, &[]);
    }
}

/// fsx in a session without a base, then in one on top of it; the mount dies after each round, and
/// synced data must survive.
fn fsx_with_crashes_between(rounds: u64, operations: u32) {
    let mounted = Mounted::new();
    for (name, bases, seed) in [("fresh", &[][..], 100), ("inherited", &["fresh"][..], 200)] {
        mounted.write(name, bases);
        for round in 0..rounds {
            fsx(&mounted, &format!("file-{round}"), operations, seed + round);
            let sum = "cat file-* | sha256sum";
            let before = run(mounted.root(), "sh", &["-c", &format!("sync file-* && {sum}")]);
            // This also keeps the store from growing by everything ever written.
            match round % 2 {
                0 => mounted.crash(),
                _ => mounted.crash_and_compact(),
            }
            mounted.resume(name);
            assert_eq!(run(mounted.root(), "sh", &["-c", sum]), before, "{name}, round {round}");
        }
        end(&mounted);
    }
}

#[test]
fn fsx_finds_nothing_with_a_few_crashes_between() {
    if can_mount() {
        fsx_with_crashes_between(2, 2_000);
    }
}

/// A million operations in total, half of them on files that a base has.
#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_fsx_finds_nothing_with_crashes_between() {
    if can_mount() {
        fsx_with_crashes_between(10, 50_000);
    }
}

fn fio(mounted: &Mounted, name: &str, pattern: &str, megabytes: u32) {
    let size = format!("--size={megabytes}m");
    let arguments = [
        "--ioengine=psync",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--randseed=5",
        "--fsync=64",
        "--bsrange=512-64k",
        "--bs_unaligned",
        "--output-format=terse",
        &size,
        &format!("--name={name}"),
        &format!("--rw={pattern}"),
    ];
    run(mounted.root(), "fio", &arguments);
}

#[test]
fn fio_reads_what_it_wrote() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("io", &[]);
    for pattern in ["write", "rw", "randwrite", "randrw"] {
        fio(&mounted, pattern, pattern, 8);
    }
    end(&mounted);
}

/// fio; the mount dies after each round, and synced data must survive.
fn fio_with_crashes_between(rounds: u32, megabytes: u32) {
    let mounted = Mounted::writing("io", &[]);
    for round in 0..rounds {
        for pattern in ["write", "rw", "randwrite", "randrw"] {
            fio(&mounted, &format!("{pattern}-{round}"), pattern, megabytes);
        }
        let before = run(mounted.root(), "sh", &["-c", "cat *.0 | sha256sum && sync *.0"]);
        mounted.crash();
        mounted.resume("io");
        assert_eq!(run(mounted.root(), "sh", &["-c", "cat *.0 | sha256sum"]), before);
    }
    end(&mounted);
}

#[test]
fn fio_reads_what_it_wrote_with_a_crash_between() {
    if can_mount() {
        fio_with_crashes_between(1, 8);
    }
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_fio_reads_what_it_wrote_with_crashes_between() {
    if can_mount() {
        fio_with_crashes_between(8, 128);
    }
}

/// A buffered read beside a direct write may load a page that the write replaces in the store.
/// After asynchronous writes the kernel keeps such pages, so a mount makes no direct write
/// asynchronous.
#[test]
fn buffered_reads_find_what_asynchronous_direct_writes_wrote() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writing("direct", &[]);
    let write =
        ["--name=write", "--stonewall", "--rw=randwrite", "--direct=1", "--ioengine=libaio"];
    let read = ["--name=read", "--rw=randread", "--ioengine=psync", "--invalidate=0", "--loops=8"];
    let common = ["--output-format=terse", "--filename=file", "--size=8m", "--bs=4k"];
    let first = ["--name=first", "--rw=write", "--end_fsync=1"];
    let more = ["--iodepth=16", "--loops=8"];
    let all = [&common[..], &first[..], &write[..], &more[..], &read[..]].concat();
    run(mounted.root(), "fio", &all);
    let sum = |flag: &str| {
        let command = format!("dd if=file bs=1M iflag={flag} status=none | sha256sum");
        run(mounted.root(), "sh", &["-c", &command])
    };
    // The kernel's pages, and then the store's contents.
    assert_eq!(sum("fullblock"), sum("direct"));
    end(&mounted);
}

/// A repository of `commits` commits, each of which changes a few files.
fn repository(at: &Path, commits: u32) {
    let mut stream = String::new();
    for commit in 1..=commits {
        let message = format!("commit {commit}");
        stream += &format!(
            "commit refs/heads/main\ncommitter a <a@a> {} +0000\ndata {}\n{message}\n",
            1_700_000_000 + commit,
            message.len()
        );
        for file in 0..3 {
            let content = format!("{commit} {file}\n").repeat(1 + (commit % 40) as usize);
            let path = format!("d{}/f{}", (commit * 7 + file) % 61, (commit * 13 + file) % 17);
            stream += &format!("M 100644 inline {path}\ndata {}\n{content}\n", content.len());
        }
    }
    fs::create_dir(at).expect("mkdir");
    run(at, "git", &["init", "-q", "-b", "main"]);
    fs::write(at.join(".git/stream"), stream).expect("write");
    run(at, "sh", &["-c", "git fast-import --quiet < .git/stream && rm .git/stream"]);
}

#[test]
fn git_clones_checks_and_finds_nothing_changed_after_a_remount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let origin = mounted.esker.path("origin");
    repository(&origin, 3_000);
    mounted.write("clone", &[]);
    let origin = origin.to_str().expect("UTF-8").to_owned();
    run(mounted.root(), "git", &["clone", "-q", "--no-local", &origin, "clone"]);
    let clone = mounted.path("clone");
    run(&clone, "git", &["fsck", "--strict"]);
    assert_eq!(run(&clone, "git", &["rev-list", "--count", "HEAD"]).trim(), "3000");
    assert_eq!(run(&clone, "git", &["status", "--porcelain"]), "");
    end(&mounted);
    mounted.write("again", &["clone"]);
    // By the times and inode numbers in its index: a file that git had to read again would be one
    // that it no longer recognizes.
    assert_eq!(run(&clone, "git", &["diff-files"]), "");
    assert_eq!(run(&clone, "git", &["status", "--porcelain"]), "");
    run(&clone, "git", &["gc", "-q", "--prune=now"]);
    run(&clone, "git", &["fsck", "--strict"]);
    end(&mounted);
}

#[test]
fn cargo_builds_in_a_mount() {
    if !can_mount() {
        return;
    }
    if std::fs::metadata(env!("CARGO")).is_err() {
        println!("skipped: cargo is installed where this user may not go");
        return;
    }
    let mounted = Mounted::writing("build", &[]);
    let package = mounted.path("package");
    fs::create_dir_all(package.join("src")).expect("mkdir");
    fs::write(
        package.join("Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n",
    )
    .expect("write");
    fs::write(package.join("src/lib.rs"), "pub fn answer() -> u32 { 42 }\n").expect("write");
    fs::write(package.join("src/main.rs"), "fn main() { println!(\"{}\", small::answer()); }\n")
        .expect("write");
    let target = package.join("target");
    let home = std::env::var("HOME").unwrap_or_default();
    let build = format!(
        "HOME='{home}' CARGO_TARGET_DIR='{}' {} run -q --offline",
        target.display(),
        env!("CARGO")
    );
    assert_eq!(run(&package, "sh", &["-c", &build]).trim(), "42");
    // And from the remains of the first run.
    assert_eq!(run(&package, "sh", &["-c", &build]).trim(), "42");
    end(&mounted);
}

fn same_trees(one: &Path, other: &Path) {
    let arguments =
        ["-r".as_ref(), "--no-dereference".as_ref(), one.as_os_str(), other.as_os_str()];
    run("/".as_ref(), "diff", &arguments);
}

#[test]
fn tar_and_rsync_bring_trees_in_and_out_unchanged() {
    if !can_mount() {
        return;
    }
    let source = Path::new("/usr/include");
    let mounted = Mounted::writing("trees", &[]);
    run(mounted.root(), "sh", &["-c", "tar -C /usr -cf - include | tar -xf -"]);
    same_trees(source, &mounted.path("include"));
    // Extended attributes and hard links are copied too, and a second run finds no difference.
    let extra = mounted.esker.path("extra");
    fs::create_dir_all(extra.join("d")).expect("mkdir");
    fs::write(extra.join("d/one"), "content").expect("write");
    fs::hard_link(extra.join("d/one"), extra.join("two")).expect("link");
    std::os::unix::fs::symlink("two", extra.join("soft")).expect("symlink");
    run(&extra, "sh", &["-c", "setfattr -n user.kind -v test d/one; mkfifo pipe"]);
    for tree in [source, &extra] {
        let from = format!("{}/", tree.display());
        let to = format!("{}/", mounted.path("synced").display());
        run("/".as_ref(), "rsync", &["-aHX", &from, &to]);
        let differences = ["-aHXnc", "--delete", "--itemize-changes", &from, &to];
        assert_eq!(run("/".as_ref(), "rsync", &differences), "");
        fs::remove_dir_all(mounted.path("synced")).expect("remove");
    }
    // Copied out again, after a remount, from a read-only snapshot.
    end(&mounted);
    mounted.mount(&["mount", "trees"]);
    let out = mounted.esker.path("out");
    fs::create_dir(&out).expect("mkdir");
    let pipe = format!("tar -cf - include | tar -C '{}' -xf -", out.display());
    run(mounted.root(), "sh", &["-c", &pipe]);
    same_trees(source, &out.join("include"));
    mounted.end();
}

/// Runs SQLite's program.
fn sqlite(database: &Path, sql: &str) -> String {
    run("/".as_ref(), "sqlite3", &["-batch", database.to_str().expect("UTF-8"), sql])
}

fn sqlite_survives(mode: &str) {
    let mounted = Mounted::writing("database", &[]);
    let database: PathBuf = mounted.path("data.db");
    sqlite(&database, &format!("PRAGMA journal_mode={mode}; CREATE TABLE t(n INTEGER, x TEXT);"));
    let mut durable = 0;
    for round in 0..3 {
        // With `FULL` the removal of a rollback journal, and so the transaction, need not survive.
        let insert = "PRAGMA synchronous=EXTRA; BEGIN; WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 \
             FROM c WHERE n < 2000) INSERT INTO t SELECT n, hex(randomblob(40)) FROM c; COMMIT; \
             SELECT count(*) FROM t;";
        let told = sqlite(&database, insert);
        durable += 2_000;
        assert!(told.lines().any(|line| line == durable.to_string()), "{told}");
        // Another writer is in the middle of its work when the mount dies.
        let script = format!(
            "for i in 1 2 3 4 5 6 7 8 9; do sqlite3 -batch '{}' \"UPDATE t SET x='{round}' WHERE \
             n % 7 = $i\"; done",
            database.display()
        );
        let mut busy = std::process::Command::new("sh")
            .args(["-c", &script])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("sh");
        std::thread::sleep(std::time::Duration::from_millis(60 * (round + 1)));
        mounted.crash();
        busy.wait().expect("it ends");
        mounted.resume("database");
        assert_eq!(sqlite(&database, "PRAGMA integrity_check;").trim(), "ok");
        assert_eq!(sqlite(&database, "SELECT count(*) FROM t;").trim(), durable.to_string());
    }
    mounted.end();
    mounted.esker.ok(["verify"]);
}

#[test]
fn sqlite_with_a_rollback_journal_survives_crashes_of_the_mount() {
    if can_mount() {
        sqlite_survives("DELETE");
    }
}

#[test]
fn sqlite_with_a_write_ahead_log_survives_crashes_of_the_mount() {
    if can_mount() {
        sqlite_survives("WAL");
    }
}

#[test]
fn a_snapshot_refuses_every_change() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    mounted.esker.publish("fixed", &[("d/f", "content")]);
    mounted.mount(&["mount", "fixed"]);
    for change in [
        "echo x > d/f",
        "echo x >> d/f",
        "echo x > new",
        "truncate -s 1 d/f",
        "mkdir e",
        "mkfifo p",
        "ln d/f l",
        "ln -s d s",
        "rm d/f",
        "rmdir d",
        "mv d e",
        "chmod 600 d/f",
        "chown 1 d/f",
        "touch d/f",
        "setfattr -n user.x -v 1 d/f",
    ] {
        let output = try_run(mounted.root(), "sh", &["-c", change]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("Read-only"), "{change}: {said}");
    }
    assert_eq!(run(mounted.root(), "cat", &["d/f"]), "content");
    mounted.end();
}
