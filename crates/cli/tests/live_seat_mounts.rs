// SPDX-License-Identifier: Apache-2.0
//! Mounts of a live namespace of several servers: programs see one tree, whichever seats it is at.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::fs::XattrFlags;

use crate::live_mounts::LiveMounts;
use crate::mounted::{can_mount, run};

/// A directory with names at all seats is one directory.
#[test]
fn a_spread_directory_is_one_in_mounts() {
    if !can_mount() {
        return;
    }
    let mounts = LiveMounts::of_seats("3", &["--refresh", "0"]);
    let [here, there] = mounts.at.clone();
    mounts.esker.ok(["live", "mkdir", "--spread", "run:/wide"]);
    for number in 0..6_000 {
        fs::write(mounts.a(&format!("wide/f{number}")), number.to_string()).expect("a file");
    }
    for number in 0..50 {
        fs::create_dir(mounts.b(&format!("wide/d{number}"))).expect("mkdir");
        fs::write(mounts.b(&format!("wide/d{number}/inner")), "inner").expect("a file");
        assert_eq!(fs::read(mounts.a(&format!("wide/d{number}/inner"))).expect("a file"), b"inner");
    }
    let names = |dir: PathBuf| fs::read_dir(dir).expect("a listing").count();
    assert_eq!((names(mounts.a("wide")), names(mounts.b("wide"))), (6_050, 6_050));
    assert_eq!(run(&there, "find", &["wide", "-type", "f"]).lines().count(), 6_050);
    fs::set_permissions(mounts.a("wide"), fs::Permissions::from_mode(0o711)).expect("chmod");
    let mode = fs::metadata(mounts.b("wide")).expect("stat").permissions().mode();
    assert_eq!(mode & 0o777, 0o711);
    let set = |name: &str, flags| rustix::fs::setxattr(mounts.a("wide"), name, b"wide", flags);
    set("user.kind", XattrFlags::CREATE).expect("setxattr");
    set("user.kind", XattrFlags::REPLACE).expect("setxattr");
    set("user.gone", XattrFlags::CREATE).expect("setxattr");
    rustix::fs::removexattr(mounts.b("wide"), "user.gone").expect("removexattr");
    mounts.esker.ok(["commit", here.to_str().expect("UTF-8"), "wide"]);
    let shown = mounts.esker.ok(["stat", "wide:/wide"]);
    assert!(shown.contains("user.kind") && !shown.contains("user.gone"), "{shown}");
    let renamed = |number: u32| {
        let [from, to] = [format!("wide/f{number}"), format!("wide/moved{number}")];
        let renamed = fs::rename(mounts.a(&from), mounts.a(&to));
        renamed.map_err(|error| error.raw_os_error())
    };
    let renamed: Vec<_> = (0..40).map(renamed).collect();
    assert!(renamed.contains(&Ok(())), "{renamed:?}");
    let across = Some(rustix::io::Errno::XDEV.raw_os_error());
    assert!(
        renamed.iter().all(|renamed| renamed.is_ok() || *renamed == Err(across)),
        "{renamed:?}"
    );
    // `mv` copies where a rename is not possible.
    run(&here, "mv", &["wide/f5999", "wide/d0/taken"]);
    assert!(fs::remove_dir(mounts.b("wide")).is_err(), "it is in use");
    run(&there, "rm", &["-r", "wide"]);
    assert!(!mounts.a("wide").exists());
}

/// Directories are spread over three servers, all of which die once.
#[test]
fn programs_work_in_mounts_of_a_namespace_of_several_servers() {
    if !can_mount() {
        return;
    }
    let mut mounts = LiveMounts::of_seats("3", &["--refresh", "0"]);
    for number in 0..40 {
        let dir = mounts.a(&format!("d{}/e{number}", number % 8));
        fs::create_dir_all(&dir).expect("directories");
        fs::write(dir.join("file"), number.to_string()).expect("a file");
    }
    for number in 0..40 {
        let dir = mounts.b(&format!("d{}/e{number}", number % 8));
        assert_eq!(fs::read(dir.join("file")).expect("a file"), number.to_string().into_bytes());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o701)).expect("chmod");
        let shown = fs::metadata(mounts.a(&format!("d{}/e{number}", number % 8)));
        assert_eq!(shown.expect("stat").permissions().mode() & 0o777, 0o701);
    }
    // Files that are open outlive all servers.
    let kept: Vec<File> = (0..40)
        .map(|number| {
            let path = mounts.a(&format!("d{}/e{number}/kept", number % 8));
            let file = File::options().create_new(true).read(true).write(true).open(path);
            file.expect("a file")
        })
        .collect();
    kept.iter().for_each(|file| file.sync_all().expect("fsync"));
    mounts.replace_server(true);
    for (number, mut file) in kept.iter().enumerate() {
        write!(file, "{number}").expect("a write");
        file.sync_all().expect("fsync");
        let path = mounts.b(&format!("d{}/e{number}/kept", number % 8));
        assert_eq!(fs::read(path).expect("a file"), number.to_string().into_bytes());
    }
    drop(kept);
    // `mv` copies between seats, and `cp`, `find` and `rm` see one tree.
    let [here, there] = mounts.at.clone();
    run(&here, "mv", &["d1", "d0/moved"]);
    run(&there, "cp", &["-a", "d0", "copy"]);
    let found = run(&here, "find", &["copy", "-name", "kept"]);
    assert_eq!(found.lines().count(), 10, "{found}");
    mounts.esker.ok(["commit", here.to_str().expect("UTF-8"), "all"]);
    let found = mounts.esker.ok(["find", "all:/copy", "--name", "kept"]);
    assert_eq!(found.lines().count(), 10, "{found}");
    for name in ["copy", "d0", "d2"] {
        run(&there, "rm", &["-rf", name]);
        assert!(!mounts.a(name).exists());
    }
    let repository = mounts.a("repository");
    let git = |arguments: &[&str]| run(&repository, "git", arguments);
    fs::create_dir(&repository).expect("mkdir");
    git(&["init", "-q"]);
    for number in 0..20 {
        let dir = repository.join(format!("src/{number}"));
        fs::create_dir_all(&dir).expect("directories");
        fs::write(dir.join("file"), number.to_string()).expect("a file");
    }
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "all"]);
    git(&["gc", "-q"]);
    git(&["fsck", "--strict"]);
    run(&there, "git", &["clone", "-q", "repository", "clone"]);
    assert_eq!(fs::read(mounts.b("clone/src/7/file")).expect("a file"), b"7");
}
