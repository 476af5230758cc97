// SPDX-License-Identifier: Apache-2.0
//! Memory that a mount uses because the kernel remembers files.

use esker_fs::session::view::NamespaceView;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::mounted::{Mounted, can_mount, session};

const FILES: usize = 5_000;
const KNOWN_FILES_MAX: usize = 1_000;

/// True if the kernel forgets files on request.
fn can_prune() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a Linux");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 18) {
        println!("skipped: this Linux is older than 6.18: {release}");
    }
    version >= (6, 18)
}

/// Symptom: a mount took 250 bytes of memory for every file created or looked up in it, until the
/// whole machine ran short of memory.
/// Cause: it remembers every file that the kernel remembers, and the kernel forgets none while
/// memory suffices.
/// Fix: it asks the kernel to forget some.
#[test]
fn the_files_that_a_mount_remembers_are_bounded() {
    if !can_mount() || !can_prune() {
        return;
    }
    let session = session();
    let view = NamespaceView::Session(session);
    let mounted = Mounted::with_options(view, |options| options.known_files_max = KNOWN_FILES_MAX);
    fs::create_dir(mounted.path("d")).expect("mkdir");
    let open = File::create_new(mounted.path("d/open")).expect("create");
    open.write_all_at(b"open", 0).expect("write");
    for number in 0..FILES {
        fs::write(mounted.path(format!("d/{number}")), number.to_string()).expect("write");
    }
    let mut looks = 0;
    while (mounted.known_files)() > KNOWN_FILES_MAX {
        looks += 1;
        assert!(looks < 1_000, "{} files are known", (mounted.known_files)());
        std::thread::sleep(Duration::from_millis(100));
    }
    for number in 0..FILES {
        let read = fs::read_to_string(mounted.path(format!("d/{number}"))).expect("read");
        assert_eq!(read, number.to_string());
    }
    open.write_all_at(b"OPEN", 0).expect("it is open");
    assert_eq!(fs::read(mounted.path("d/open")).expect("read"), b"OPEN");
    drop(open);
    mounted.end().expect("closed");
}
