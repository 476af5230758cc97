// SPDX-License-Identifier: Apache-2.0
//! Times, set-id bits and permissions of files that have just been written.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;

use crate::shown::{can_show, inode, of, session, show};

/// A user other than the superuser.
const NOBODY: u32 = 65_534;

/// True if the tests run as the superuser.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes this thread access files as a user other than the superuser, in `place` as well.
fn become_ordinary(place: &Path) {
    if is_root() {
        fs::set_permissions(place, Permissions::from_mode(0o777)).expect("chmod");
        // SAFETY: the call takes a number.
        unsafe { libc::setfsuid(NOBODY) };
    }
}

/// Symptom: some files that were written, closed and given a time, as `tar` and `rsync` do, had the
/// time of the write. Cause: the write-back read the time first, and set it once it had copied the
/// content. Fix: a change of attributes waits for a write-back, which reads them last.
#[test]
fn times_that_are_set_after_closing_stay() {
    const FILES: u64 = 300;
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        for file in 0..FILES {
            let path = place.join(file.to_string());
            fs::write(&path, vec![7; 300_000]).expect("write");
            let time = rustix::fs::Timespec { tv_sec: 1_000 + file as i64, tv_nsec: 0 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            let flags = rustix::fs::AtFlags::empty();
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, flags).expect("utimensat");
        }
    });
    for file in 0..FILES {
        let seconds = inode(&session, &format!("/{file}")).mtime_ns / 1_000_000_000;
        assert_eq!(seconds, 1_000 + file as i64, "of file {file}");
    }
}

/// Symptom: set-id bits were lost if they were set after a file was closed, or if the file was
/// opened and not written. Cause: the write-back cleared them on any file that a user had opened,
/// from a mode it had read before. Fix: the kernel shows whether a user has written since they were
/// set.
#[test]
fn set_id_bits_go_only_with_later_writes() {
    const FILES: usize = 200;
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        become_ordinary(place);
        let set = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o6755));
        for file in 0..FILES {
            let path = place.join(file.to_string());
            fs::write(&path, vec![7; 100_000]).expect("write");
            set(&path).expect("chmod");
        }
        let path = place.join("opened");
        fs::write(&path, "old").expect("write");
        set(&path).expect("chmod");
        drop(OpenOptions::new().read(true).write(true).open(&path).expect("open"));
        let path = place.join("written");
        fs::write(&path, "old").expect("write");
        set(&path).expect("chmod");
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        assert_eq!(file.metadata().expect("fstat").mode() & 0o7777, 0o6755);
        file.write_all_at(b"new", 0).expect("write");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o755);
    });
    for file in 0..FILES {
        assert_eq!(inode(&session, &format!("/{file}")).mode, 0o6755, "of file {file}");
    }
    assert_eq!(inode(&session, "/opened").mode, 0o6755);
    assert_eq!(inode(&session, "/written").mode, 0o755);
}

#[test]
fn access_is_that_of_the_real_user_unless_asked_otherwise() {
    if !can_show() {
        return;
    }
    if !is_root() {
        println!("skipped: only the superuser is another user as well");
        return;
    }
    show(of(&session()), |place| {
        let path = place.join("file");
        fs::write(&path, "text").expect("write");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("chmod");
        // SAFETY: the call takes numbers. Only this thread gets another real user.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, -1, -1) };
        assert_eq!(changed, 0);
        let access = |flags: rustix::fs::AtFlags| {
            rustix::fs::accessat(rustix::fs::CWD, &path, rustix::fs::Access::READ_OK, flags)
        };
        assert_eq!(access(rustix::fs::AtFlags::empty()), Err(Errno::ACCESS));
        let path = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no zero");
        // SAFETY: `path` ends with a zero byte.
        let effective = unsafe {
            let (path, flags) = (path.as_ptr(), libc::AT_EACCESS);
            libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, path, libc::R_OK, flags)
        };
        assert_eq!(effective, 0);
    });
}
