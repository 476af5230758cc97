//! Listings of large directories while they change.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use esker_fuse::View;
use rustix::fs::{Dir, RawDir, SeekFrom};

use crate::mounted::{Mounted, can_mount};

fn make(at: &Path, range: std::ops::Range<usize>) {
    for number in range {
        File::create(at.join(format!("file.{number}"))).expect("create");
    }
}

fn names(at: &Path) -> Vec<OsString> {
    fs::read_dir(at).expect("a directory").map(|entry| entry.expect("entry").file_name()).collect()
}

#[test]
fn every_entry_is_listed_once() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    for count in [0, 1, 3, 600, 20_000] {
        let at = mounted.path(format!("d{count}"));
        fs::create_dir(&at).expect("mkdir");
        make(&at, 0..count);
        let listed = names(&at);
        let distinct: BTreeSet<&OsString> = listed.iter().collect();
        assert_eq!((listed.len(), distinct.len()), (count, count));
        // With attributes: what `ls -l` does.
        for entry in fs::read_dir(&at).expect("a directory") {
            assert!(entry.expect("entry").metadata().expect("stat").is_file());
        }
    }
    mounted.end().expect("closed");
}

#[test]
fn what_stays_is_listed_once_while_others_come_and_go() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let at = mounted.path("d");
    fs::create_dir(&at).expect("mkdir");
    make(&at, 0..5_000);
    let mut seen = Vec::new();
    for (step, entry) in fs::read_dir(&at).expect("a directory").enumerate() {
        let name = entry.expect("entry").file_name();
        if step % 10 == 0 {
            File::create(at.join(format!("new.{step}"))).expect("create");
            // Even numbers go, whether they were listed or not.
            let _ = fs::remove_file(at.join(format!("file.{}", (step * 7) % 5_000 / 2 * 2)));
        }
        seen.push(name);
    }
    let distinct: BTreeSet<&OsString> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "nothing twice");
    for number in (1..5_000).step_by(2) {
        assert!(distinct.contains(&OsString::from(format!("file.{number}"))), "{number}");
    }
    // What a listing says is there, is there.
    for entry in fs::read_dir(&at).expect("a directory") {
        entry.expect("entry").metadata().expect("stat");
    }
    mounted.end().expect("closed");
}

#[test]
fn a_removed_file_does_not_come_back_by_a_listing() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let at = mounted.path("d");
    fs::create_dir(&at).expect("mkdir");
    make(&at, 0..2_000);
    // Begins a listing, which reads ahead, and goes on with it after all is gone.
    let mut listing = fs::read_dir(&at).expect("a directory");
    let first = listing.next().expect("one").expect("entry").file_name();
    for number in 0..2_000 {
        fs::remove_file(at.join(format!("file.{number}"))).expect("unlink");
    }
    let rest: Vec<OsString> = listing.map(|entry| entry.expect("entry").file_name()).collect();
    for name in rest.iter().chain([&first]) {
        fs::symlink_metadata(at.join(name)).expect_err("it was removed");
    }
    fs::remove_dir(&at).expect("it is empty");
    mounted.end().expect("closed");
}

/// What a handle of the directory `at` that has seen nothing of it lists from `cookie` on: each
/// entry's cookie and name.
fn listed_from(at: &Path, cookie: u64) -> Vec<(u64, Vec<u8>)> {
    let dir = File::open(at).expect("open");
    rustix::fs::seek(&dir, SeekFrom::Start(cookie)).expect("seek");
    let mut entries = Vec::new();
    let mut buffer = Vec::with_capacity(16 << 10);
    let mut raw = RawDir::new(dir.as_fd(), buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry.expect("entry");
        entries.push((entry.next_entry_cookie(), entry.file_name().to_bytes().to_vec()));
    }
    entries
}

#[test]
fn a_listing_goes_on_where_it_is_told_to() {
    if !can_mount() {
        return;
    }
    let (mounted, session) = Mounted::session();
    let at = mounted.path("d");
    fs::create_dir(&at).expect("mkdir");
    make(&at, 0..3_000);
    let all = listed_from(&at, 0);
    assert_eq!(all.len(), 3_002, "with the two dots");
    assert!(all.iter().is_sorted_by_key(|(cookie, _)| *cookie), "cookies ascend");
    // Another handle goes on at any cookie; so it does at the next mount, as cookies are of names.
    let check = |at: &Path| {
        for entry in [0, 1, 2, 511, 512, 1_777, 3_000] {
            assert!(listed_from(at, all[entry].0) == all[entry + 1..], "after entry {entry}");
        }
    };
    check(&at);
    mounted.end().expect("closed");
    let mounted = Mounted::new(View::Session(session));
    let at = mounted.path("d");
    check(&at);
    // A removed directory that is open has nothing any more.
    let dir = File::open(&at).expect("open");
    let mut open = Dir::read_from(&dir).expect("open");
    fs::remove_dir_all(&at).expect("remove");
    open.rewind();
    assert_eq!(open.count(), 0);
    drop(dir);
    mounted.end().expect("closed");
}
