// SPDX-License-Identifier: Apache-2.0
//! `esker run --at`: a program that sees a namespace, and what becomes of its changes.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::esker::Esker;
use crate::full_stores::{SmallDisk, can_mount_small_disks};
use crate::suites::{beside, suite, summary_of};
use crate::user::{User, is_root};

/// True if namespaces can be shown here; prints a message if not.
pub fn can_show() -> bool {
    let available = esker_trap::is_available();
    if let Err(error) = &available {
        println!("skipped: {error}");
    }
    available.is_ok()
}

/// Arguments that run `script` with `options` before.
fn shell<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&["run"], options, &["--", "sh", "-ec", script]].concat()
}

/// The sessions that are left.
fn sessions(esker: &Esker) -> usize {
    esker.json(["session", "list"]).len()
}

#[test]
fn what_a_program_changes_is_published_if_it_succeeds() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    esker.publish("base", &[("dir/file", "one"), ("other", "two")]);
    let at = esker.path("at");
    let options = ["--at", at.to_str().expect("UTF-8"), "--base", "base", "--write", "new"];
    let script =
        format!("cd {}; cat dir/file; mv dir moved; echo three > moved/file", at.display());
    let said = esker.ok(shell(&options, &script));
    assert!(said.starts_with("onepublished new @"), "{said}");
    assert_eq!(esker.ok(["cat", "new:/moved/file"]), "three\n");
    assert_eq!(esker.ok(["find", "new:/", "--sorted"]), "/\n/moved\n/moved/file\n/other\n");
    assert_eq!(esker.ok(["cat", "base:/dir/file"]), "one");
    assert_eq!((sessions(&esker), fs::read_dir(&at).expect("list").count()), (0, 0));
    // A snapshot alone is read-only.
    let said = esker.fails(
        2,
        shell(&options[..4], &format!("cat {0}/other; echo x > {0}/other", at.display())),
    );
    assert!(said.contains("Read-only file system"), "{said}");
    esker.fails(4, shell(&options, "true"));
}

#[test]
fn the_place_is_not_inside_of_the_store() {
    let esker = Esker::new();
    esker.publish("base", &[("file", "one")]);
    for at in ["store/set/new", "store"] {
        let said = esker.fails(13, ["run", "--at", at, "--base", "base", "--", "true"]);
        assert!(said.contains("store"), "{said}");
    }
    assert!(!esker.path("store/set/new").exists());
}

#[test]
fn programs_load_a_library_after_those_of_the_user() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    esker.publish("base", &[("file", "one")]);
    let at = esker.path("at");
    for ranks in [&[][..], &["--ranks", "2"]] {
        let options =
            [&["--preload", "--at", at.to_str().expect("UTF-8"), "--base", "base"][..], ranks]
                .concat();
        let mut command = esker.command(shell(&options, "echo $LD_PRELOAD; test -e /etc/passwd"));
        let output = command.env("LD_PRELOAD", "libm.so.6").output().expect("run");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(said.lines().count(), ranks.len().max(1), "{said}");
        for line in said.lines() {
            let library =
                line.strip_prefix("libm.so.6:").expect("the library of the user is first");
            assert!(library.ends_with("/libesker_preload.so") && !Path::new(library).exists());
        }
    }
    assert_eq!(fs::read_dir(&at).expect("list").count(), 0);
    // A path with a space cannot be named.
    let spool = esker.path("a spool");
    fs::create_dir(&spool).expect("mkdir");
    let options = ["--preload", "--at", at.to_str().expect("UTF-8"), "--base", "base"];
    let options = [&options[..], &["--spool", spool.to_str().expect("UTF-8")]].concat();
    let mut command = esker.command(shell(&options, "true"));
    let output = command.env("TMPDIR", &spool).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(23), "{said}");
    assert!(said.contains("also work without --preload"), "{said}");
}

#[test]
fn the_session_of_a_program_that_fails_stays() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    let options = ["--at", &at, "--write", "new"];
    let said = esker.fails(42, shell(&options, &format!("echo x > {at}/file; exit 42")));
    assert!(said.contains("the program failed (exit code 42), so new was not published"), "{said}");
    let set = said.split("session drop @").nth(1).map(str::trim_end).expect("named");
    assert_eq!(esker.ok(["cat", &format!("@{set}:/file")]), "x\n");
    esker.ok(["publish", &format!("@{set}"), "new"]);
    assert_eq!(esker.ok(["cat", "new:/file"]), "x\n");
    assert_eq!(sessions(&esker), 0);
}

#[test]
fn a_command_that_cannot_begin_leaves_nothing() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    esker.fails(3, ["run", "--at", &at, "--write", "new", "--", "/no/such/program"]);
    fs::write(esker.path("at/mine"), "kept").expect("write");
    let said = esker.fails(7, shell(&["--at", &at, "--write", "new"], "true"));
    assert!(said.contains("name a new or an empty directory"), "{said}");
    assert_eq!(fs::read(esker.path("at/mine")).expect("read"), b"kept");
    assert_eq!(sessions(&esker), 0);
    esker.fails(2, shell(&["--at", &at], "true"));
    esker.fails(2, ["run", "--", "true"]);
}

#[test]
fn ranks_see_one_tree() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    let script = format!(
        "echo $ESKER_RANK > {at}/$ESKER_RANK; while [ $(ls {at} | wc -l) -lt 3 ]; do sleep 0.02; done"
    );
    esker.ok(shell(&["-n", "3", "--at", &at, "--write", "new"], &script));
    assert_eq!(esker.ok(["cat", "new:/0", "new:/1", "new:/2"]), "0\n1\n2\n");
}

#[test]
fn what_was_closed_survives_a_kill() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    let script = format!("seq 10000 > {at}/closed; sync {at}/closed; echo ready; exec sleep 60");
    let arguments = shell(&["--at", &at, "--write", "new"], &script);
    let mut child =
        esker.command(arguments).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut ready = [0; 6];
    let output = child.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(output, &mut ready).expect("the program runs");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let left = esker.json(["session", "list"]);
    let set = left[0]["set"].as_str().expect("a set");
    esker.ok(["publish", &format!("@{set}"), "new"]);
    assert_eq!(esker.ok(["cat", "new:/closed"]).lines().count(), 10_000);
    esker.ok(["verify"]);
}

/// Symptom: on a spool without inodes `esker run` never ended, and published empty files that no program had.
/// Cause: the file that ends it was made at the end, and names of files were made before room was found.
#[test]
fn a_spool_that_is_full_ends_and_makes_no_names() {
    let has_python = Path::new("/usr/bin/python3").exists();
    if !can_show() || !can_mount_small_disks() || !has_python {
        return;
    }
    let esker = Esker::new();
    let (at, spool) = (esker.path("at").display().to_string(), esker.path("spool"));
    fs::create_dir(&spool).expect("mkdir");
    let disk = SmallDisk::at(&spool);
    disk.resize("nr_inodes=20");
    let options = ["--at", &at, "--write", "new", "--spool", disk.path()];
    // All at once, so that none is idle.
    let script = format!(
        "cd {at}; python3 -c 'import os\nheld = []\ntry:\n  for i in range(40): held.append(open(str(i), \"w\"))\n\
         except OSError: print(len(held), sorted(map(int, os.listdir())) == list(range(len(held))))'"
    );
    let said = esker.ok(shell(&options, &script));
    let opened: usize =
        said.split(' ').next().and_then(|text| text.parse().ok()).expect("a number");
    assert!((10..20).contains(&opened) && said.contains("True\npublished new"), "{said}");
    assert_eq!(esker.ok(["find", "new:/"]).lines().count(), opened + 1);
    drop(disk);
}

#[test]
fn idle_files_leave_a_small_spool_to_others() {
    const FILES: usize = 6;
    if !can_show() || !can_mount_small_disks() {
        return;
    }
    let esker = Esker::new();
    let (at, spool) = (esker.path("at").display().to_string(), esker.path("spool"));
    fs::create_dir(&spool).expect("mkdir");
    let disk = SmallDisk::at(&spool);
    disk.resize("size=16m");
    let options = ["--at", &at, "--write", "new", "--spool", disk.path()];
    let script = format!(
        "cd {at}; for i in $(seq {FILES}); do head -c 5000000 /dev/zero | tr '\\0' $i > $i; sync $i; done; \
         for i in $(seq {FILES}); do tail -c1 $i; done"
    );
    assert!(esker.ok(shell(&options, &script)).starts_with("123456"));
    let options = ["--at", &at, "--base", "new", "--spool", disk.path()];
    assert_eq!(esker.ok(shell(&options, &format!("cat {at}/* | wc -c"))), "30000000\n");
    drop(disk);
}

/// Symptom: with `ulimit -n 256` a program could open 230 files, one after the other, and then none.
/// Cause: up to 512 files stayed open in the supervisor, whatever the limit.
#[test]
fn idle_files_leave_descriptors_to_others() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    let script = format!(
        "cd {at}; for i in $(seq 600); do echo $i > $i; done; for i in $(seq 600); do cat $i; done | wc -l"
    );
    let arguments = shell(&["--at", &at, "--write", "new"], &script);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_esker")]);
    limited.args(arguments).env("ESKER_STORE", esker.store());
    let output = limited.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("600\n"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(esker.ok(["find", "new:/"]).lines().count(), 601);
}

#[test]
fn an_ordinary_user_needs_nothing_of_root() {
    if !can_show() {
        return;
    }
    let user = User::ordinary("027");
    user.ok(["init"]);
    user.ok(shell(
        &["--at", "at", "--write", "new"],
        "mkdir at/d; echo x > at/d/f; cp -p at/d/f at/g",
    ));
    user.assert_owned("new:/d", "0750");
    user.assert_owned("new:/g", "0640");
}

/// pjdfstest's cases, of which these cannot pass: directories have one link, a program that runs can be
/// written, and nothing can be mounted below.
#[test]
fn pjdfstest_passes_without_a_mount() {
    const EXPECTED: [&str; 4] =
        ["open::etxtbsy", "rename::updates_link_parent", "rmdir::ebusy", "truncate::etxtbsy"];
    if !can_show() {
        return;
    }
    if !is_root() {
        println!("skipped: pjdfstest changes users, which only the superuser can");
        return;
    }
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(esker.path(""), mode).expect("chmod");
    let elsewhere = tempfile::tempdir_in("/dev/shm").expect("another file system");
    // The suite cannot build a path of maximum length below a few directory names.
    let mut name = String::from("suite");
    while (4_095 - at.len() - 1 - name.len() - 23) % 127 < 20 {
        name.push('x');
    }
    let script = format!(
        "mkdir {at}/{name}; cd {at}/{name}; {} -c {} -p {at}/{name} -s {}",
        suite("pjdfstest"),
        beside("pjdfstest.toml"),
        elsewhere.path().display()
    );
    let output = esker.run(shell(&["--at", &at, "--write", "new"], &script));
    let said = String::from_utf8_lossy(&output.stdout);
    let mut failed: Vec<&str> =
        said.lines().filter_map(|line| line.strip_suffix("FAILED").map(str::trim)).collect();
    failed.sort_unstable();
    assert_eq!(failed, EXPECTED, "{}", summary_of(&said));
    assert!(
        summary_of(&said).contains("4 failed, 14 skipped, 380 passed"),
        "{}",
        summary_of(&said)
    );
}

#[test]
fn fsx_and_fio_pass_without_a_mount() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    let fsx = format!("{} -P {} -f {}", suite("fsx"), at, beside("fsx.toml"));
    let fio = "fio --output=/dev/null --rw=randrw --bs=4k --size=4M --verify=crc32c --fsync=100";
    let script = format!(
        "{fsx} -N 5000 -S 5 {at}/one; {fsx} -N 5000 -S 6 {at}/two; \
         for engine in sync psync mmap libaio; do \
         {fio} --name=$engine --ioengine=$engine --filename={at}/$engine; done"
    );
    let said = esker.ok(shell(&["--at", &at, "--write", "new"], &script));
    assert!(said.contains("published new"), "{said}");
    esker.ok(["verify"]);
}

/// Symptom: files that programs had made through a link into DIR were missing in the snapshot, with
/// exit code 0, once too many files were open.
/// Cause: a path that the supervisor could not follow for lack of descriptors counted as one that
/// leads elsewhere, so the kernel made the files in the real directory.
/// Fix: the call fails with the supervisor's error.
#[test]
fn no_file_that_was_made_is_missing_when_descriptors_run_out() {
    let has_python = Path::new("/usr/bin/python3").exists();
    if !can_show() || !has_python {
        return;
    }
    let esker = Esker::new();
    let (at, link) = (esker.path("at"), esker.path("link"));
    std::os::unix::fs::symlink(&at, &link).expect("symlink");
    let at_text = at.display().to_string();
    let options = ["--at", &at_text, "--write", "new"];
    let program = format!(
        "import os, time\n\
         for process in range(4):\n\
         \x20 if os.fork() == 0:\n\
         \x20   made = []\n\
         \x20   for number in range(40):\n\
         \x20     try: made.append(open(\"{}/%d-%d\" % (process, number), \"w\"))\n\
         \x20     except OSError: pass\n\
         \x20   os.write(1, b\"%d\\n\" % len(made)); time.sleep(1); os._exit(0)\n\
         for process in range(4): os.wait()",
        link.display()
    );
    let script = format!("exec python3 -c '{program}'");
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_esker")]);
    limited.args(shell(&options, &script)).env("ESKER_STORE", esker.store());
    let output = limited.output().expect("sh runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let made: usize = said.lines().filter_map(|line| line.parse::<usize>().ok()).sum();
    assert!((10..160).contains(&made), "{said}");
    assert_eq!(esker.ok(["find", "new:/"]).lines().count(), made + 1, "{said}");
    assert_eq!(fs::read_dir(&at).map_or(0, Iterator::count), 0);
}
