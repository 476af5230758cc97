// SPDX-License-Identifier: Apache-2.0
//! A tree with everything that breaks copies survives a round trip.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::esker::Esker;
use crate::full_stores::can_mount_small_disks;

/// The attributes of a file that a copy must keep.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    nlink: u64,
    mtime: (i64, i64),
    content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Everything below `top`, by path.
fn survey(top: &Path) -> BTreeMap<OsString, Kept> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![top.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        let kind = metadata.file_type();
        let content = if kind.is_file() {
            fs::read(&path).expect("readable")
        } else if kind.is_symlink() {
            fs::read_link(&path).expect("a link").as_os_str().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        if kind.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory");
            waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
        let kept = Kept {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            size: if kind.is_dir() { 0 } else { metadata.size() },
            nlink: if kind.is_dir() { 0 } else { metadata.nlink() },
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            content,
            xattrs: xattrs(&path),
        };
        let below = path.strip_prefix(top).expect("below the top").as_os_str().to_owned();
        all.insert(below, kept);
    }
    all
}

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 4096];
    let Ok(count) = rustix::fs::llistxattr(path, &mut names[..]) else { return Vec::new() };
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut all: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 4096];
            let count = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("listed");
            (name.to_vec(), value[..count].to_vec())
        })
        .collect();
    all.sort();
    all
}

fn set_times(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}

/// Creates a tree of odd files; returns true if the file system supports extended attributes.
fn make_odd_tree(top: &Path) -> bool {
    fs::create_dir(top).expect("new");
    let write = |name: &OsStr, bytes: &[u8]| {
        fs::write(top.join(name), bytes).expect("a file");
        top.join(name)
    };
    write(OsStr::new("empty"), b"");
    write(OsStr::new("inline"), &[7; 200]);
    write(OsStr::new("packed"), &[8; 70_000]);
    write(OsStr::from_bytes(b"not \xff\xfe UTF-8"), b"x");
    write(OsStr::new("new\nline \\ \"quotes\" \t"), b"y");
    write(OsStr::new(&"n".repeat(255)), b"z");
    let large: Vec<u8> = (0..9 << 20).map(|index: u32| (index / 977) as u8).collect();
    write(OsStr::new("large"), &large);
    let sparse = File::create(top.join("sparse")).expect("a file");
    sparse.write_all_at(b"in the middle", 5 << 20).expect("written");
    sparse.set_len(12 << 20).expect("longer");
    File::create(top.join("hole")).expect("a file").set_len(3 << 20).expect("longer");
    fs::create_dir_all(top.join("a/b/empty directory")).expect("directories");
    fs::hard_link(top.join("packed"), top.join("a/packed too")).expect("a link");
    fs::hard_link(top.join("packed"), top.join("a/b/packed three")).expect("a link");
    symlink("nowhere/at all", top.join("dangling")).expect("a link");
    symlink("../large", top.join("a/link")).expect("a link");
    symlink("packed", top.join("twice linked")).expect("a link");
    rustix::fs::mknodat(CWD, top.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0)
        .expect("a pipe");
    let program = write(OsStr::new("set-id"), b"#!/bin/sh\n");
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).expect("mode");
    fs::set_permissions(write(OsStr::new("locked"), b"secret"), Permissions::from_mode(0o400))
        .expect("mode");
    fs::set_permissions(top.join("a/b"), Permissions::from_mode(0o1777)).expect("mode");
    let kept =
        rustix::fs::setxattr(top.join("packed"), "user.note", b"a\0b", XattrFlags::empty()).is_ok();
    set_times(&top.join("packed"), 981_173_106, 789_012_345);
    set_times(&top.join("dangling"), 1, 1);
    set_times(&top.join("a/b/empty directory"), 4_000_000_000, 999_999_999);
    fs::set_permissions(top.join("a/b/empty directory"), Permissions::from_mode(0o555))
        .expect("mode");
    set_times(&top.join("a"), 1_000_000_000, 5);
    kept
}

#[test]
fn an_odd_tree_comes_back_as_it_was() {
    let esker = Esker::new();
    make_odd_tree(&esker.path("odd"));
    let before = survey(&esker.path("odd"));
    esker.ok(["import", "odd", "odd"]);
    esker.ok(["export", "odd:/", "back"]);
    let after = survey(&esker.path("back"));
    for (path, kept) in &before {
        let copy = after.get(path).unwrap_or_else(|| panic!("{path:?} is missing"));
        assert!(kept.content == copy.content, "{path:?}: content differs");
        assert_eq!((kept.mode, kept.size), (copy.mode, copy.size), "{path:?}");
        assert_eq!(kept, copy, "{path:?}");
    }
    assert_eq!(before.len(), after.len());
    let inode = |name: &str| fs::metadata(esker.path("back").join(name)).expect("there").ino();
    assert_eq!(inode("packed"), inode("a/b/packed three"));
    let holes = fs::metadata(esker.path("back/hole")).expect("there");
    assert!(holes.blocks() * 512 < holes.size(), "a hole became bytes");
    assert!(esker.ok(["diff", "odd", "odd"]).is_empty());
}

#[test]
fn pipes_are_imported_not_read() {
    let esker = Esker::new();
    fs::create_dir(esker.path("tree")).expect("new");
    rustix::fs::mknodat(CWD, esker.path("tree/p"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .expect("a pipe");
    esker.ok(["import", "tree", "tree"]);
    esker.ok(["export", "tree:/p", "p"]);
    assert!(fs::symlink_metadata(esker.path("p")).expect("there").file_type().is_fifo());
}

#[test]
fn a_single_file_is_exported_to_the_path_itself() {
    let esker = Esker::new();
    esker.publish("a", &[("d/f", "content")]);
    esker.ok(["export", "a:/d/f", "copy"]);
    assert_eq!(fs::read(esker.path("copy")).expect("there"), b"content");
    assert!(esker.fails(4, ["export", "a:/d/f", "copy"]).contains("exists"));
}

#[test]
fn the_store_itself_is_left_out_of_an_import() {
    let esker = Esker::new();
    fs::write(esker.path("beside"), "x").expect("a file");
    let output = esker.run(["import", ".", "all"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is the store itself"));
    assert_eq!(esker.ok(["ls", "all:/"]), "beside\n");
}

#[test]
fn an_import_over_a_base_merges_directories_and_replaces_files() {
    let esker = Esker::new();
    esker.publish("old", &[("d/kept", "old"), ("d/replaced", "old"), ("gone", "old")]);
    fs::create_dir_all(esker.path("tree/d")).expect("new");
    fs::write(esker.path("tree/d/replaced"), "new").expect("a file");
    fs::write(esker.path("tree/d/added"), "new").expect("a file");
    esker.ok(["import", "tree", "new:/", "--base", "old"]);
    assert_eq!(esker.ok(["cat", "new:/d/kept", "new:/d/replaced", "new:/d/added"]), "oldnewnew");
    assert_eq!(esker.ok(["cat", "old:/d/replaced"]), "old");
    esker.ok(["import", "tree", "deep:/x/y"]);
    assert_eq!(esker.ok(["cat", "deep:/x/y/d/added"]), "new");
}

#[test]
fn what_cannot_be_imported_is_named_and_the_rest_is_published() {
    let esker = Esker::new();
    esker.publish("old", &[("name/below", "x")]);
    fs::create_dir_all(esker.path("tree")).expect("new");
    fs::write(esker.path("tree/name"), "a file now").expect("a file");
    fs::write(esker.path("tree/other"), "y").expect("a file");
    let said = esker.fails(6, ["import", "tree", "new", "--base", "old"]);
    assert!(said.contains("tree/name") && said.contains("rm -r"), "{said}");
    assert_eq!(esker.ok(["cat", "new:/other", "new:/name/below"]), "yx");
}

#[test]
fn ranges_of_a_file_are_read_alone() {
    let esker = Esker::new();
    let mut file = File::create(esker.path("f")).expect("a file");
    file.seek(SeekFrom::Start(1 << 20)).expect("a hole");
    file.write_all(b"0123456789").expect("written");
    esker.publish("base", &[]);
    esker.ok(["put", "f", "base:/f", "--as", "with-f"]);
    let cat = ["cat", "with-f:/f", "--offset", "1048578", "--length", "5"];
    assert_eq!(esker.ok(cat), "23456");
}

/// Symptom: an export with `--overwrite` deleted its own store if the destination was named by a
/// bind mount of the directory in which the store is.
/// Cause: the check compared paths.
/// Fix: it compares directories.
#[test]
fn an_export_replaces_its_own_store_by_no_name() {
    if !can_mount_small_disks() {
        return;
    }
    let esker = Esker::new();
    let [source, alias] = ["source", "alias"].map(|name| esker.path(name));
    for directory in [&source, &alias] {
        fs::create_dir(directory).expect("mkdir");
    }
    fs::write(source.join("file"), "content").expect("write");
    esker.ok(["import", "source", "snap"]);
    let around = esker.path("");
    rustix::mount::mount_bind(&around, &alias).expect("a bind mount");
    for target in ["alias", "alias/store", "alias/store/set"] {
        let said = esker.fails(13, ["export", "snap:/", target, "--overwrite"]);
        assert!(said.contains("store"), "{said}");
        esker.fails(13, ["mount", "snap", target]);
    }
    rustix::mount::unmount(&alias, rustix::mount::UnmountFlags::empty()).expect("umount");
    esker.ok(["verify", "snap"]);
}
