//! Large files of snapshots, which the kernel reads from the store itself where it can.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use esker_base::store::{CountedStore, PosixStore};
use esker_fs::identity::Identity;
use esker_fs::namespace::Follow;
use esker_fuse::View;

use crate::mounted::{Mounted, can_mount, options, repository};

const BYTES: usize = 9 << 20;

fn content(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + seed + at / 4_096) as u8).collect()
}

/// Whether the kernel has passthrough (Linux 6.9), and lets this process use it.
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
    let mounted = Mounted::new(View::Session(session.clone()));
    std::fs::write(mounted.path("in order"), content(2)).expect("write");
    let mixed = File::create(mounted.path("mixed")).expect("create");
    mixed.write_all_at(&content(3)[BYTES / 2..], BYTES as u64 / 2).expect("write");
    mixed.write_all_at(&content(3)[..BYTES / 2], 0).expect("write");
    drop(mixed);
    std::fs::write(mounted.path("shorter"), content(4)).expect("write");
    let shorter = File::options().write(true).open(mounted.path("shorter")).expect("open");
    shorter.set_len(BYTES as u64 - 5_000).expect("truncate");
    drop(shorter);
    // A program that does nothing, and ends in bytes that nobody looks at.
    let mut program = std::fs::read("/bin/true").expect("every machine has it");
    program.resize(BYTES, 0);
    std::fs::write(mounted.path("program"), &program).expect("write");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(mounted.path("program"), executable).expect("chmod");
    mounted.end().expect("end");
    session.publish("large").expect("publish");
    drop(session);

    let counted = Arc::new(CountedStore::new(store));
    let snapshot = repository(counted.clone()).open(&[set], Identity::root()).expect("open");
    for name in ["/put", "/in order", "/program"] {
        let inode = snapshot.stat(name, Follow::No).expect("stat");
        assert!(snapshot.backing_file(&inode).expect("a store that answers").is_some(), "{name}");
    }
    for name in ["/mixed", "/shorter"] {
        let inode = snapshot.stat(name, Follow::No).expect("stat");
        assert!(snapshot.backing_file(&inode).expect("a store that answers").is_none(), "{name}");
    }
    let mounted = Mounted::new(View::Snapshot(Arc::new(snapshot)));
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
