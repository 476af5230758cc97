// SPDX-License-Identifier: Apache-2.0
//! Mounts of a live namespace of several servers: programs see one tree, whichever seats it is at.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
    for number in 0..40 {
        let [from, to] = [format!("wide/f{number}"), format!("wide/moved{number}")];
        fs::rename(mounts.a(&from), mounts.a(&to)).expect("a rename");
        let content = fs::read(mounts.b(&to)).expect("a file");
        assert_eq!(content, number.to_string().into_bytes());
        assert!(!mounts.b(&from).exists(), "{from}");
    }
    run(&here, "mv", &["wide/f5999", "wide/d0/taken"]);
    assert!(fs::remove_dir(mounts.b("wide")).is_err(), "it is in use");
    run(&there, "rm", &["-r", "wide"]);
    assert!(!mounts.a("wide").exists());
}

/// Renames and links a file between directories by both mounts, while it is open.
fn move_between(mounts: &LiveMounts, number: usize) {
    let dir = |number: usize| format!("d{}", number % 12);
    let (from, to) = (dir(number), dir(number * 5 + 1));
    let path = mounts.a(&format!("{from}/f{number}"));
    let mut file = File::create_new(&path).expect("a file");
    file.write_all(b"before ").expect("a write");
    let inode = file.metadata().expect("stat").ino();
    let moved = mounts.a(&format!("{to}/moved"));
    let replaced = fs::metadata(&moved).is_ok();
    fs::rename(&path, &moved).expect("a rename");
    assert!(!path.exists() && !mounts.b(&format!("{from}/f{number}")).exists());
    file.write_all(b"after").expect("a write");
    drop(file);
    assert_eq!(fs::metadata(&moved).expect("stat").ino(), inode);
    let shown = mounts.b(&format!("{to}/moved"));
    assert_eq!(fs::read(&shown).expect("a file"), b"before after", "{number} {replaced}");
    fs::write(&shown, b"again").expect("a write");
    assert_eq!(fs::read(&moved).expect("a file"), b"again");
    fs::set_permissions(&shown, fs::Permissions::from_mode(0o604)).expect("chmod");
    assert_eq!(fs::metadata(&moved).expect("stat").permissions().mode() & 0o777, 0o604);
    let link = mounts.b(&format!("{}/link{number}", dir(number + 3)));
    fs::hard_link(&shown, &link).expect("a link");
    assert_eq!(fs::metadata(&link).expect("stat").nlink(), 2);
    assert!(fs::hard_link(&shown, &link).is_err(), "it exists");
    fs::remove_file(mounts.a(&format!("{to}/moved"))).expect("a removal");
    assert_eq!(fs::read(&link).expect("a file"), b"again");
    fs::rename(&link, mounts.b(&format!("{to}/moved"))).expect("a rename");
}

/// Files are renamed and linked between directories at different seats, while they are open.
#[test]
fn files_are_renamed_and_linked_between_seats_in_mounts() {
    if !can_mount() {
        return;
    }
    let mounts = LiveMounts::of_seats("3", &["--refresh", "0"]);
    let [here, there] = mounts.at.clone();
    (0..12).for_each(|number| fs::create_dir(mounts.a(&format!("d{number}"))).expect("mkdir"));
    (0..60).for_each(|number| move_between(&mounts, number));
    let refused = rustix::fs::renameat_with(
        rustix::fs::CWD,
        mounts.a("d1/moved"),
        rustix::fs::CWD,
        mounts.a("d6/moved"),
        rustix::fs::RenameFlags::NOREPLACE,
    );
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    // A file that is removed while it is open stays usable.
    let mut open = File::options().read(true).write(true).open(mounts.a("d1/moved")).expect("open");
    fs::remove_file(mounts.a("d1/moved")).expect("a removal");
    open.write_all(b"unnamed").expect("a write");
    drop(open);
    // Programs that write beside a file and rename over it.
    run(
        &here,
        "sh",
        &["-c", "for d in d*; do echo one > $d/text; sed -i s/one/two/ $d/text; done"],
    );
    let all = run(&there, "sh", &["-c", "cat d*/text | sort | uniq -c"]);
    assert_eq!(all.split_whitespace().collect::<Vec<_>>(), ["12", "two"]);
    mounts.esker.ok(["live", "mv", "run:/d2/text", "run:/d3/text"]);
    mounts.esker.ok(["live", "mv", "run:/d3/text", "run:/d4/other"]);
    assert_eq!(mounts.esker.ok(["live", "cat", "run:/d4/other"]), "two\n");
    mounts.esker.ok([
        "live",
        "put",
        here.join("d4/text").to_str().expect("UTF-8"),
        "run:/d4/other",
    ]);
    let names = run(&here, "find", &[".", "-type", "f", "-printf", "%p %s %n\n"]);
    mounts.esker.ok(["commit", here.to_str().expect("UTF-8"), "moved"]);
    for (number, line) in names.lines().enumerate() {
        let mut fields = line.split_whitespace();
        let (path, size) = (fields.next().expect("a path"), fields.next().expect("a size"));
        let shown = mounts.esker.ok(["cat", &format!("moved:/{path}")]);
        assert_eq!(shown.len().to_string(), size, "{number} {path}");
    }
    mounts.esker.ok(["verify"]);
    run(&there, "sh", &["-c", "rm -r d*"]);
    assert_eq!(fs::read_dir(&here).expect("a listing").count(), 0);
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
    // `mv` copies directories between seats, and `cp`, `find` and `rm` see one tree.
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
