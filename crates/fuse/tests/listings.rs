// SPDX-License-Identifier: Apache-2.0
//! Listings of large directories while they change.

use esker_fs::session::view::NamespaceView;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Dir, RawDir, SeekFrom};

use crate::mounted::{Mounted, can_mount, session};

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
        // With attributes, like `ls -l`.
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
            // Even numbers are removed, whether they were listed or not.
            let _ = fs::remove_file(at.join(format!("file.{}", (step * 7) % 5_000 / 2 * 2)));
        }
        seen.push(name);
    }
    let distinct: BTreeSet<&OsString> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "nothing twice");
    for number in (1..5_000).step_by(2) {
        assert!(distinct.contains(&OsString::from(format!("file.{number}"))), "{number}");
    }
    // Every listed entry exists.
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
    // Begin a listing, which reads ahead, and continue it after everything is removed.
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

/// Lists the directory `at` from `cookie` on with a new handle: cookie and name of each entry.
fn listed_from(at: &Path, cookie: u64) -> Vec<(u64, Vec<u8>)> {
    listed_with(at, cookie, 16 << 10, &mut |_| {})
}

/// As [`listed_from`], with a buffer of `buffer_bytes`; calls `between` after each entry with the
/// number of entries so far.
fn listed_with(
    at: &Path,
    cookie: u64,
    buffer_bytes: usize,
    between: &mut dyn FnMut(usize),
) -> Vec<(u64, Vec<u8>)> {
    let dir = File::open(at).expect("open");
    rustix::fs::seek(&dir, SeekFrom::Start(cookie)).expect("seek");
    let mut entries = Vec::new();
    let mut buffer = Vec::with_capacity(buffer_bytes);
    let mut raw = RawDir::new(dir.as_fd(), buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry.expect("entry");
        entries.push((entry.next_entry_cookie(), entry.file_name().to_bytes().to_vec()));
        between(entries.len());
    }
    entries
}

/// Entries of the first batch that a mount reads of a directory, of each later one, and the maximum
/// that it counts for links (`listing.rs`, `link_count.rs`).
const BATCH_FIRST: usize = 512;
const BATCH_NEXT: usize = 64 << 10;
const ENTRIES_MAX: usize = 1 << 16;

/// Mounts a session with a directory that was filled before; the last `directories` of its entries
/// are directories.
fn mounted_with(name: &str, entries: usize, directories: usize) -> Mounted {
    let session = session();
    let dir = session.mkdir(session.root(), name.as_bytes(), 0o755).expect("mkdir");
    for number in 0..entries {
        let name = format!("file.{number}").into_bytes();
        match number < entries - directories {
            true => drop(session.create(&dir, &name, 0o644).expect("create")),
            false => drop(session.mkdir(&dir, &name, 0o755).expect("mkdir")),
        }
    }
    Mounted::new(NamespaceView::Session(session))
}

#[test]
fn directories_have_links_for_those_in_them_up_to_as_many_entries_as_are_counted() {
    if !can_mount() {
        return;
    }
    let mounted = mounted_with("d", ENTRIES_MAX, 3);
    let links = |mounted: &Mounted| fs::metadata(mounted.path("d")).expect("stat").nlink();
    assert_eq!(links(&mounted), 5);
    // Once known, the count is maintained for any number of entries.
    fs::create_dir(mounted.path("d/another")).expect("mkdir");
    assert_eq!(links(&mounted), 6);
    mounted.end().expect("closed");
    let mounted = mounted_with("d", ENTRIES_MAX + 1, 3);
    assert_eq!(links(&mounted), 1, "not known");
    fs::remove_dir(mounted.path(format!("d/file.{ENTRIES_MAX}"))).expect("rmdir");
    assert_eq!(links(&mounted), 1, "nor counted later");
    mounted.end().expect("closed");
}

#[test]
fn listings_go_over_the_ends_of_batches_while_entries_come_and_go() {
    if !can_mount() {
        return;
    }
    const ENTRIES: usize = BATCH_FIRST + BATCH_NEXT + 700;
    let mounted = mounted_with("d", ENTRIES, 0);
    let at = mounted.path("d");
    let all = listed_with(&at, 0, 1 << 20, &mut |_| {});
    assert_eq!(all.len(), ENTRIES + 2, "with the two dots");
    assert!(all.iter().is_sorted_by_key(|(cookie, _)| *cookie), "cookies ascend, so none is twice");
    for buffer_bytes in [512, 4 << 10, 64 << 10] {
        let listed = listed_with(&at, 0, buffer_bytes, &mut |_| {});
        assert!(listed == all, "{buffer_bytes} bytes at a time");
    }
    // Shortly before each end of a batch, remove the entries around it: the last ones of the batch,
    // after which the next continues, and the first ones of the next, which may have been read
    // ahead.
    let mut gone = BTreeSet::new();
    let mut made = 0;
    let ends = [2 + BATCH_FIRST, 2 + BATCH_FIRST + BATCH_NEXT];
    let mut change = |count: usize| {
        for end in ends.iter().filter(|end| count + 400 == **end) {
            for (_, name) in &all[end - 150..end + 150] {
                fs::remove_file(at.join(OsStr::from_bytes(name))).expect("unlink");
                gone.insert(name.clone());
            }
        }
        if count.is_multiple_of(1_000) {
            File::create(at.join(format!("new.{count}"))).expect("create");
            made += 1;
        }
    };
    let listed = listed_with(&at, 0, 512, &mut change);
    assert_eq!(gone.len(), 600, "at both ends");
    assert!(made >= ENTRIES / 1_000, "{made}");
    assert!(listed.iter().is_sorted_by_key(|(cookie, _)| *cookie), "cookies ascend");
    let distinct: BTreeSet<&[u8]> = listed.iter().map(|(_, name)| &name[..]).collect();
    assert_eq!(distinct.len(), listed.len(), "nothing twice");
    for (_, name) in all.iter().filter(|(_, name)| !gone.contains(name)) {
        assert!(distinct.contains(&name[..]), "{}", String::from_utf8_lossy(name));
    }
    // No removed entry comes back, and every created one is listed.
    let after = listed_with(&at, 0, 1 << 20, &mut |_| {});
    assert_eq!(after.len(), all.len() - gone.len() + made);
    assert!(after.iter().all(|(_, name)| !gone.contains(name)));
    mounted.end().expect("closed");
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
    // Another handle continues at any cookie, even at the next mount, since cookies derive from
    // names.
    let check = |at: &Path| {
        for entry in [0, 1, 2, 511, 512, 1_777, 3_000] {
            assert!(listed_from(at, all[entry].0) == all[entry + 1..], "after entry {entry}");
        }
    };
    check(&at);
    mounted.end().expect("closed");
    let mounted = Mounted::new(NamespaceView::Session(session));
    let at = mounted.path("d");
    check(&at);
    // An open directory that was removed is empty.
    let dir = File::open(&at).expect("open");
    let mut open = Dir::read_from(&dir).expect("open");
    fs::remove_dir_all(&at).expect("remove");
    open.rewind();
    assert_eq!(open.count(), 0);
    drop(dir);
    mounted.end().expect("closed");
}
