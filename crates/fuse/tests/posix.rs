// SPDX-License-Identifier: Apache-2.0
//! Behaviour that programs know from other file systems: set-id bits, blocks, holes, times, and the
//! errors for missing features.

use esker_fs::session::view::NamespaceView;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, XattrFlags};

use crate::mounted::{Mounted, can_mount};

/// Runs `script` with Python in `mounted`, which must succeed.
fn run_python(mounted: &Mounted, script: &str) {
    let mut python = std::process::Command::new("python3");
    let done = python.args(["-c", script]).current_dir(mounted.root()).status();
    assert!(done.expect("python3 is installed").success(), "{script}");
}

/// Runs `script` with Python in `mounted` as the user nobody; returns false if that is impossible
/// here.
fn run_as_nobody(mounted: &Mounted, script: &str) -> bool {
    let done = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c", script])
        // Another Python may be in a directory that only its owner may enter.
        .env("PATH", "/usr/bin:/bin")
        .current_dir(mounted.root())
        .status();
    let Ok(done) = done else { return false };
    assert!(done.success(), "{script}");
    true
}

/// Symptom: after `posix_fallocate` and `copy_file_range` by another user a program kept its set-id
/// bits; after an `O_DIRECT` write by its owner `stat` showed them until caches were dropped.
/// Cause: the kernel leaves their removal to the mount, which did it only for writes and
/// truncations; and the kernel caches the mode.
/// Fix: all four remove the bits, and the mount invalidates the kernel's cached mode.
#[test]
fn set_id_bits_go_however_others_change_the_content() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: this changes users, which only the superuser can");
        return;
    }
    let (mounted, _session) = Mounted::session();
    let path = mounted.path("program");
    fs::write(mounted.path("source"), [7; 8192]).expect("write");
    fs::set_permissions(mounted.path("source"), fs::Permissions::from_mode(0o644)).expect("chmod");
    let changes = [
        "os.posix_fallocate(f, 0, 20000)",
        "os.copy_file_range(os.open('source', os.O_RDONLY), f, 8192)",
        "d = os.open('program', os.O_WRONLY | os.O_DIRECT); os.pwrite(d, memoryview(mmap.mmap(-1, 4096)), 0)",
    ];
    for owner in [0, 65_534] {
        for change in changes {
            fs::write(&path, [1; 8192]).expect("write");
            std::os::unix::fs::chown(&path, Some(owner), Some(owner)).expect("chown");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
            assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o6777);
            let script = format!("import os, mmap; f = os.open('program', os.O_RDWR); {change}");
            if !run_as_nobody(&mounted, &script) {
                println!("skipped: neither setpriv nor python3 is here");
                return;
            }
            let mode = fs::metadata(&path).expect("stat").mode() & 0o7777;
            assert_eq!(mode, 0o777, "owner {owner}: {change}");
        }
    }
    mounted.end().expect("closed");
}

/// Symptom: a file of 1 TiB with 3 bytes showed 2^31 blocks.
/// Cause: blocks were computed from the size.
/// Fix: they are computed from the stored bytes.
#[test]
fn blocks_count_what_is_stored() {
    if !can_mount() {
        return;
    }
    let (mounted, session) = Mounted::session();
    let path = mounted.path("sparse");
    let file = File::create_new(&path).expect("create");
    file.write_all_at(b"end", 1 << 40).expect("write");
    let blocks = |path: &std::path::Path| fs::metadata(path).expect("stat").blocks();
    assert!(blocks(&path) <= 8, "{}", blocks(&path));
    file.write_all_at(&[1; 3 << 20], 5 << 20).expect("write");
    assert!((3 << 11..(3 << 11) + 16).contains(&blocks(&path)), "{}", blocks(&path));
    drop(file);
    fs::write(mounted.path("full"), vec![1; 2 << 20]).expect("write");
    let long = File::create_new(mounted.path("long")).expect("create");
    long.set_len(1 << 30).expect("truncate");
    let listed = |name: &str| {
        let mut entries = fs::read_dir(mounted.root()).expect("list");
        let entry =
            entries.find(|entry| entry.as_ref().is_ok_and(|entry| *entry.file_name() == *name));
        entry.expect("it is there").expect("entry").metadata().expect("stat").blocks()
    };
    assert_eq!((listed("full"), blocks(&mounted.path("long"))), (4096, 0));
    session.flush().expect("flush");
    let inode = session
        .namespace()
        .stat("/sparse", esker_fs::stack::namespace::FollowLinks::No)
        .expect("stat");
    assert_eq!(session.namespace().stored_bytes(&inode).expect("stored"), 3 + (3 << 20));
    drop(long);
    mounted.end().expect("closed");
}

/// Holes have a granularity of 4 KiB, which programs expect from other file systems.
#[test]
fn holes_have_the_size_of_blocks() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let file = File::create_new(mounted.path("sparse")).expect("create");
    file.set_len(1 << 30).expect("truncate");
    // More than stays in memory.
    file.write_all_at(&[1; 2 << 20], 64 << 20).expect("write");
    file.write_all_at(b"bytes", (32 << 20) + 5000).expect("write");
    let seek = |to| rustix::fs::seek(&file, to);
    let (first, second) = (32 << 20, 64 << 20);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(first + 4096));
    assert_eq!(seek(SeekFrom::Data(first + 4097)), Ok(first + 4097));
    assert_eq!(seek(SeekFrom::Data(first + 6000)), Ok(first + 6000));
    assert_eq!(seek(SeekFrom::Hole(first + 4200)), Ok(first + 8192));
    assert_eq!(seek(SeekFrom::Hole(first + 6000)), Ok(first + 8192));
    assert_eq!(seek(SeekFrom::Hole(first)), Ok(first));
    assert_eq!(seek(SeekFrom::Data(first + 8192)), Ok(second));
    assert_eq!(seek(SeekFrom::Hole(second)), Ok(second + (2 << 20)));
    assert_eq!(seek(SeekFrom::Data(second + (2 << 20))), Err(rustix::io::Errno::NXIO));
    drop(file);
    mounted.end().expect("closed");
}

/// Symptom: with `--write-back` the times of a file moved when the kernel sent its pages.
/// Cause: the change time that the kernel sends was replaced by the current time. If a program had
/// written in the clock tick in which the file was made, the kernel saw no new time, sent none, and
/// the time at which the pages arrived stayed.
/// Fix: the kernel's change time is kept, and collected pages change no times.
#[test]
fn times_of_collected_writes_stay() {
    if !can_mount() {
        return;
    }
    let session = crate::mounted::session();
    let mounted = Mounted::writing_back(NamespaceView::Session(session.clone()));
    let tick = std::time::Duration::from_millis(20);
    for waits_before_write in [false, true] {
        let name = format!("f{waits_before_write}");
        let path = mounted.path(&name);
        let file = File::create(&path).expect("create");
        if waits_before_write {
            std::thread::sleep(tick);
        }
        file.write_all_at(b"text", 0).expect("write");
        let before = file.metadata().expect("stat");
        // Let time pass before the pages are written, which the last close waits for.
        std::thread::sleep(tick);
        drop(file);
        File::open(&path).expect("open").sync_all().expect("sync");
        let found = session
            .namespace()
            .stat(format!("/{name}"), esker_fs::stack::namespace::FollowLinks::No);
        let inode = found.expect("stat");
        let ns = esker_fs::inode::timestamp::of_parts;
        assert_eq!(inode.mtime_ns, ns(before.mtime(), before.mtime_nsec()), "{name}");
        assert_eq!(inode.ctime_ns, ns(before.ctime(), before.ctime_nsec()), "{name}");
    }
    mounted.end().expect("closed");
}

/// Symptom: times before 1970 became 1970.
/// Cause: timestamps were unsigned.
/// Fix: they are signed; a time outside their range is stored as the nearest time in it.
#[test]
fn times_before_1970_are_kept() {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    if !can_mount() {
        return;
    }
    let (mounted, session) = Mounted::session();
    let path = mounted.path("f");
    fs::write(&path, "text").expect("write");
    let nearest = |ns: i64| (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let cases = [
        ((-2, 300), (-2, 300)),
        ((-1, 999_999_999), (-1, 999_999_999)),
        ((-1 << 31, 0), (-1 << 31, 0)),
        ((1 << 32, 5), (1 << 32, 5)),
        ((-1 << 40, 7), nearest(i64::MIN)),
        ((1 << 40, 7), nearest(i64::MAX)),
    ];
    for ((tv_sec, tv_nsec), kept) in cases {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimensat");
        let inode = session
            .namespace()
            .stat("/f", esker_fs::stack::namespace::FollowLinks::No)
            .expect("stat");
        assert_eq!(nearest(inode.mtime_ns), kept);
        let stat = fs::metadata(&path).expect("stat");
        assert_eq!((stat.mtime(), stat.mtime_nsec()), kept);
        assert_eq!((stat.atime(), stat.atime_nsec()), kept);
    }
    mounted.end().expect("closed");
}

/// Symptom: a file handle opened its file until the kernel had forgotten the file, then never
/// again.
/// Cause: a mount finds files by the numbers that the kernel remembers.
/// Fix: it gives out no handles, and programs that need them fail at once.
#[test]
fn file_handles_are_refused() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    fs::write(mounted.path("f"), "text").expect("write");
    run_python(
        &mounted,
        "import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
handle = ctypes.create_string_buffer(bytes([128, 0, 0, 0]), 136)
number = ctypes.c_int()
got = libc.name_to_handle_at(-100, b'f', handle, ctypes.byref(number), 0)
assert got == -1 and ctypes.get_errno() == errno.EOPNOTSUPP, (got, ctypes.get_errno())",
    );
    mounted.end().expect("closed");
}

/// Locks of either kind hold between processes.
#[test]
fn locks_hold_between_processes() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    fs::write(mounted.path("f"), [0; 100]).expect("write");
    for lock in ["flock(f, fcntl.LOCK_EX", "lockf(f, fcntl.LOCK_EX"] {
        let more = if lock.starts_with("lockf") { ", 10, 0" } else { "" };
        let script = format!(
            "import fcntl, subprocess, sys
f = open('f', 'r+b')
fcntl.{lock}{more})
child = '''import fcntl
f = open('f', 'r+b')
try:
    fcntl.{lock} | fcntl.LOCK_NB{more})
    raise SystemExit('the lock is not held')
except BlockingIOError:
    pass
'''
subprocess.run([sys.executable, '-c', child], check=True)"
        );
        run_python(&mounted, &script);
    }
    mounted.end().expect("closed");
}

/// Missing features are refused as other file systems without them do; the guide has the table.
#[test]
fn what_is_not_supported_says_so() {
    use rustix::io::Errno;
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, [1; 16_384]).expect("write");
    fs::write(&b, [2; 16_384]).expect("write");
    let (from, to) = (
        File::open(&a).expect("open"),
        File::options().read(true).write(true).open(&b).expect("open"),
    );
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(rustix::fs::fallocate(&to, mode, 0, 4096), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(rustix::fs::ioctl_ficlone(&to, &from), Err(Errno::OPNOTSUPP));
    let unnamed = OFlags::TMPFILE | OFlags::RDWR;
    let opened = rustix::fs::open(mounted.root(), unnamed, rustix::fs::Mode::RWXU);
    assert_eq!(opened.map(drop), Err(Errno::OPNOTSUPP));
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        let set = rustix::fs::setxattr(mounted.root(), name, &[2, 0, 0, 0], XattrFlags::empty());
        assert_eq!(set, Err(Errno::OPNOTSUPP), "{name}");
        let got = rustix::fs::getxattr(mounted.root(), name, &mut [0; 64][..]);
        assert_eq!(got, Err(Errno::OPNOTSUPP), "{name}");
    }
    // Locks are the kernel's, and shared by all programs that have the file open in this mount.
    use rustix::fs::{FlockOperation, flock};
    flock(&from, FlockOperation::LockExclusive).expect("lock");
    let again = File::open(&a).expect("open");
    assert_eq!(flock(&again, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    drop((from, to, again));
    if rustix::process::geteuid().is_root() {
        let trusted = rustix::fs::setxattr(&a, "trusted.t", b"1", XattrFlags::empty());
        trusted.expect("set");
        rustix::fs::setxattr(&a, "user.u", b"1", XattrFlags::empty()).expect("set");
        let script = "import os; assert os.listxattr('a') == ['user.u'], os.listxattr('a')";
        fs::set_permissions(&a, fs::Permissions::from_mode(0o644)).expect("chmod");
        run_as_nobody(&mounted, script);
        let mut list = [0; 100];
        let count = rustix::fs::listxattr(&a, &mut list).expect("list");
        assert!(list[..count].windows(10).any(|name| name == b"trusted.t\0"));
    }
    mounted.end().expect("closed");
}
