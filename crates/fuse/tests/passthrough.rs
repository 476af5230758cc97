// SPDX-License-Identifier: Apache-2.0
//! Passthrough: where possible, the kernel directly reads large files of snapshots from the store,
//! and writes new large files of sessions.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esker_base::store::{CountedStore, PosixStore};
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::session::Session;
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_fuse::InPlacePolicy;
use tempfile::TempDir;

use crate::mounted::{Mounted, can_mount, options, repository};

const BYTES: usize = 9 << 20;

fn content(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + seed + at / 4_096) as u8).collect()
}

/// True if the kernel supports passthrough (Linux 6.9), and allows it to this process.
fn is_offered() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut parts = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    version >= (6, 9) && rustix::process::geteuid().is_root()
}

fn read_whole(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("read");
    bytes
}

#[test]
fn the_kernel_reads_files_of_snapshots_from_the_store() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let store = Arc::new(PosixStore::new(directory.path()).expect("a store"));
    let session = Arc::new(repository(store.clone()).begin(&[], options()).expect("begin"));
    let set = session.set();
    let put = content(1);
    let mut rest = put.as_slice();
    let mut fill = |buffer: &mut [u8]| Ok(rest.read(buffer).expect("bytes in memory"));
    session.create_with(session.root(), b"put", 0o644, &mut fill).expect("create");
    let mounted = Mounted::with(NamespaceView::Session(session.clone()), InPlacePolicy::Never);
    std::fs::write(mounted.path("in order"), content(2)).expect("write");
    let mixed = File::create(mounted.path("mixed")).expect("create");
    mixed.write_all_at(&content(3)[BYTES / 2..], BYTES as u64 / 2).expect("write");
    mixed.write_all_at(&content(3)[..BYTES / 2], 0).expect("write");
    drop(mixed);
    std::fs::write(mounted.path("shorter"), content(4)).expect("write");
    let shorter = File::options().write(true).open(mounted.path("shorter")).expect("open");
    shorter.set_len(BYTES as u64 - 5_000).expect("truncate");
    drop(shorter);
    // A program that does nothing, padded with unused bytes.
    let mut program = std::fs::read("/bin/true").expect("every machine has it");
    program.resize(BYTES, 0);
    std::fs::write(mounted.path("program"), &program).expect("write");
    let executable = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(mounted.path("program"), executable).expect("chmod");
    mounted.end().expect("end");
    session.publish("large").expect("publish");
    drop(session);

    let counted = Arc::new(CountedStore::new(store));
    let snapshot = repository(counted.clone()).open(&[set], Identity::root()).expect("open");
    for name in ["/put", "/in order", "/program"] {
        let inode = snapshot.stat(name, FollowLinks::No).expect("stat");
        assert!(snapshot.backing_file(&inode).expect("a store that answers").is_some(), "{name}");
    }
    for name in ["/mixed", "/shorter"] {
        let inode = snapshot.stat(name, FollowLinks::No).expect("stat");
        assert!(snapshot.backing_file(&inode).expect("a store that answers").is_none(), "{name}");
    }
    let mounted = Mounted::new(NamespaceView::Snapshot(Arc::new(snapshot)));
    for (name, seed) in [("put", 1), ("in order", 2)] {
        let before = counted.counts().read_bytes;
        let mut first = File::open(mounted.path(name)).expect("open");
        let mut second = File::open(mounted.path(name)).expect("open twice");
        assert!(read_whole(&mut first) == content(seed), "{name}");
        drop(first);
        assert!(read_whole(&mut second) == content(seed), "{name}, of who opened it later");
        let read = counted.counts().read_bytes - before;
        if is_offered() {
            assert!(read < 1 << 20, "{name}: {read} bytes came by the mount");
        } else {
            println!("skipped: passthrough takes Linux 6.9 and the superuser");
        }
    }
    let mixed = std::fs::read(mounted.path("mixed")).expect("read");
    assert!(mixed == content(3));
    let shorter = std::fs::read(mounted.path("shorter")).expect("read");
    assert!(shorter == content(4)[..BYTES - 5_000]);
    let run = std::process::Command::new(mounted.path("program")).status().expect("run");
    assert!(run.success(), "a program is mapped");
    mounted.end().expect("end");
}

/// A mounted session with a counter of the bytes that the mount writes to the store.
struct Writing {
    store: Arc<CountedStore>,
    session: Arc<Session>,
    mounted: Mounted,
    _directory: TempDir,
}

impl Writing {
    fn new(in_place: InPlacePolicy) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let inner = Arc::new(PosixStore::new(directory.path()).expect("a store"));
        let store = Arc::new(CountedStore::new(inner));
        let session = Arc::new(repository(store.clone()).begin(&[], options()).expect("begin"));
        let mounted = Mounted::with(NamespaceView::Session(session.clone()), in_place);
        Self { store, session, mounted, _directory: directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    /// Writes a new file of `length` bytes; returns how many of them passed through the mount.
    fn write(&self, name: &str, length: usize) -> u64 {
        let before = self.store.counts().log_bytes;
        let mut file = File::create(self.path(name)).expect("create");
        file.write_all(&content(1)[..length]).expect("write");
        // Bytes that the mount writes after the close do not count.
        let came = self.store.counts().log_bytes - before;
        drop(file);
        came
    }

    /// Ends the mount and publishes; checks that every name has these bytes and all checksums are
    /// right.
    fn check(self, wanted: &[(&str, Vec<u8>)]) {
        let Self { store, session, mounted, .. } = self;
        for (name, bytes) in wanted {
            assert!(std::fs::read(mounted.path(name)).expect("read") == *bytes, "{name}");
        }
        mounted.end().expect("end");
        let set = session.publish("written").expect("publish");
        let repository = repository(store);
        let shown = repository.open(&[set], Identity::root()).expect("open");
        for (name, bytes) in wanted {
            let inode = shown.stat(format!("/{name}"), FollowLinks::No).expect("stat");
            let read = shown.read(&inode, 0, 2 * BYTES).expect("read");
            assert!(read == bytes[..], "{name} is published");
        }
        let report = repository.verify(&VerifyOptions::default()).expect("verify");
        assert!(report.is_sound(), "{:?}", report.findings);
    }
}

/// True if this machine supports writes in place; prints a message if not.
fn can_pass_writes() -> bool {
    if can_mount() && !is_offered() {
        println!("skipped: passthrough takes Linux 6.9 and the superuser");
    }
    can_mount() && is_offered()
}

#[test]
fn where_files_get_large_the_kernel_writes_them_in_the_store() {
    if !can_pass_writes() {
        return;
    }
    let writing = Writing::new(InPlacePolicy::Auto);
    std::fs::create_dir(writing.path("other")).expect("mkdir");
    let all = BYTES as u64;
    let is_passed = |name: &str, length: usize| {
        let came = writing.write(name, length);
        // Wait for the release, so that the next file is created after it.
        std::thread::sleep(Duration::from_millis(100));
        came < 1 << 20
    };
    assert!(writing.write("first", BYTES) >= all, "nothing is known of the directory");
    std::thread::sleep(Duration::from_millis(100));
    assert!(is_passed("second", BYTES), "the last one got large");
    assert!(writing.write("other/first", BYTES) >= all, "another directory");
    // This one is written in the store, and turns out small.
    assert!(is_passed("small", 9_000));
    assert!(writing.write("third", BYTES) >= all, "the last one was small");
    let whole = content(1);
    writing.check(&[
        ("first", whole.clone()),
        ("second", whole.clone()),
        ("small", whole[..9_000].to_vec()),
        ("third", whole),
    ]);
}

/// A file that was extended and then read has zeros in the kernel's pages, which become stale when
/// the kernel writes the store's file.
#[test]
fn what_was_read_before_the_kernel_writes_it_is_read_anew() {
    if !can_pass_writes() {
        return;
    }
    let writing = Writing::new(InPlacePolicy::Auto);
    let file = File::create(writing.path("reserved")).expect("create");
    file.set_len(BYTES as u64).expect("reserve");
    drop(file);
    std::thread::sleep(Duration::from_millis(100));
    let read = || std::fs::read(writing.path("reserved")).expect("read");
    assert!(read() == vec![0; BYTES]);
    let before = writing.store.counts().log_bytes;
    let file = File::options().write(true).open(writing.path("reserved")).expect("open");
    file.write_all_at(&content(1)[..BYTES - 9], 0).expect("write");
    assert!(writing.store.counts().log_bytes - before < 1 << 20, "the kernel writes it");
    let wanted = [&content(1)[..BYTES - 9], &[0; 9]].concat();
    assert!(read() == wanted, "while it is written");
    drop(file);
    assert!(read() == wanted, "afterwards");
    writing.check(&[("reserved", wanted)]);
}

#[test]
fn files_that_the_kernel_writes_are_files_like_others() {
    if !can_pass_writes() {
        return;
    }
    let writing = Writing::new(InPlacePolicy::Always);
    assert!(writing.write("written", BYTES) < 1 << 20, "nothing comes by the mount");
    let mut wanted = content(2);
    let file = File::create_new(writing.path("file")).expect("create");
    file.write_all_at(&wanted, 0).expect("write");
    // Visible to `stat`, and to another open.
    assert_eq!(std::fs::metadata(writing.path("file")).expect("stat").len(), BYTES as u64);
    let mut second = File::options().append(true).open(writing.path("file")).expect("open");
    second.write_all(b"appended").expect("append");
    wanted.extend_from_slice(b"appended");
    file.sync_all().expect("sync");
    assert!(std::fs::read(writing.path("file")).expect("read") == wanted);
    file.set_len(8 << 20).expect("cut");
    wanted.truncate(8 << 20);
    std::fs::rename(writing.path("file"), writing.path("renamed")).expect("rename");
    drop(second);
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).expect("seek");
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 1 << 20, 2 << 20).expect("punch");
    wanted[1 << 20..3 << 20].fill(0);
    // Copies into it and out of it.
    let copy = File::create_new(writing.path("copy")).expect("create");
    let (mut from, mut to) = (4 << 20, 100);
    let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 1 << 20);
    let copied = copied.expect("copy");
    assert!(copied > 0);
    let copy_wanted = [&[0; 100][..], &wanted[4 << 20..(4 << 20) + copied]].concat();
    // A snapshot shows the current state.
    let set = writing.session.snapshot("between").expect("snapshot");
    file.write_all_at(b"later", 7).expect("write");
    let at_snapshot = wanted.clone();
    wanted[7..12].copy_from_slice(b"later");
    drop((file, copy));
    let gone = File::create_new(writing.path("gone")).expect("create");
    gone.write_all_at(&content(3), 0).expect("write");
    std::fs::remove_file(writing.path("gone")).expect("remove");
    gone.write_all_at(b"it goes on working", 5).expect("write");
    let mut found = [0; 9];
    gone.read_exact_at(&mut found, 8).expect("read");
    assert_eq!(&found, b"goes on w");
    drop(gone);
    let shown = repository(writing.store.clone()).open(&[set], Identity::root()).expect("open");
    let inode = shown.stat("/renamed", FollowLinks::No).expect("stat");
    assert!(shown.read(&inode, 0, 2 * BYTES).expect("read") == at_snapshot[..], "as it was");
    writing.check(&[("written", content(1)), ("renamed", wanted), ("copy", copy_wanted)]);
}

#[test]
fn set_id_bits_are_no_way_around_who_writes() {
    if !can_pass_writes() {
        return;
    }
    let writing = Writing::new(InPlacePolicy::Always);
    for (name, writes_after, wanted) in [("kept", false, 0o4755), ("lost", true, 0o755)] {
        // `create_new` of `File` opens it for reading, too.
        let file = File::options().write(true).create_new(true).open(writing.path(name));
        let file = file.expect("create");
        file.write_all_at(&content(1), 0).expect("write");
        file.set_permissions(PermissionsExt::from_mode(0o4755)).expect("chmod");
        if writes_after {
            file.write_all_at(b"other code", 0).expect("write");
        }
        let mode = || std::fs::metadata(writing.path(name)).expect("stat").mode() & 0o7777;
        assert_eq!(mode(), 0o755, "{name}: while it is written");
        drop(file);
        // The kernel sends the release at its own time.
        let is_there = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            wanted == 0o4755 && mode() == wanted
        });
        assert_eq!((is_there, mode()), (wanted == 0o4755, wanted), "{name}");
    }
}

/// A program that maps a file for writing and closes it, then stores to the mapping twice.
const MAPPING: &str = "
import mmap, os, sys
opened = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(opened, int(sys.argv[2]))
mapped = mmap.mmap(opened, 0)
os.close(opened)
for letter in b'AB':
    mapped[:] = bytes([letter]) * len(mapped)
    mapped.flush()
    print(chr(letter), flush=True)
    sys.stdin.readline()
";

/// Symptom: stores through a mapping changed a published snapshot after the file was closed, and a crash
/// of the mount lost all files closed since.
/// Cause: the kernel lets a mapping keep the store's file, and the file was taken for complete.
/// Fix: a file that can be mapped for writing is not written in place.
#[test]
fn a_mapping_that_outlives_its_file_changes_no_snapshot() {
    if !can_pass_writes() {
        return;
    }
    let writing = Writing::new(InPlacePolicy::Always);
    let mut program = std::process::Command::new("python3")
        .args(["-c", MAPPING])
        .arg(writing.path("mapped"))
        .arg(BYTES.to_string())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut input = program.stdin.take().expect("a pipe");
    let mut output = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    let mut wait = |letter: &str| assert_eq!(output.next().expect("a line").expect("text"), letter);
    wait("A");
    let set = writing.session.snapshot("before").expect("snapshot");
    input.write_all(b"\n").expect("it waits");
    wait("B");
    let repository = repository(writing.store.clone());
    let shown = repository.open(&[set], Identity::root()).expect("open");
    let inode = shown.stat("/mapped", FollowLinks::No).expect("stat");
    assert!(shown.read(&inode, 0, 2 * BYTES).expect("read") == vec![b'A'; BYTES][..]);
    input.write_all(b"\n").expect("it waits");
    assert!(program.wait().expect("an end").success());
    writing.check(&[("mapped", vec![b'B'; BYTES])]);
}
