// SPDX-License-Identifier: Apache-2.0
//! Opening, reading and writing files.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_base::store::MemoryStore;
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::identity::Identity;
use rustix::io::Errno;

use crate::shown::{
    can_show, content, of, options, repository, session, shell, show, spool_beside,
};

#[test]
fn what_is_written_is_read_back_by_others_and_by_the_session() {
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        let path = place.join("file");
        let mut file = File::create(&path).expect("create");
        file.write_all(b"first ").expect("write");
        // Before it is closed.
        assert_eq!(fs::read(&path).expect("read"), b"first ");
        assert_eq!(fs::metadata(&path).expect("stat").len(), 6);
        assert_eq!(shell(place, "cat file; wc -c < file"), "first 6\n");
        file.write_all(b"second").expect("write");
        drop(file);
        let mut file = OpenOptions::new().append(true).open(&path).expect("open");
        file.write_all(b" third").expect("append");
        assert_eq!(shell(place, "printf ' fourth' >> file; cat file"), "first second third fourth");
    });
    assert_eq!(content(&session, "/file"), b"first second third fourth");
}

#[test]
fn attributes_of_a_descriptor_are_those_of_its_name() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let path = place.join("file");
        let file = File::create(&path).expect("create");
        for size in [0, 1, 5000] {
            file.write_all_at(b"x", size).expect("write");
            let (open, named) =
                (file.metadata().expect("fstat"), fs::metadata(&path).expect("stat"));
            let of = |stat: &fs::Metadata| {
                (
                    stat.dev(),
                    stat.ino(),
                    stat.mode(),
                    stat.len(),
                    stat.mtime_nsec(),
                    stat.ctime_nsec(),
                )
            };
            assert_eq!(of(&open), of(&named));
        }
        file.set_permissions(fs::Permissions::from_mode(0o604)).expect("fchmod");
        assert_eq!(fs::metadata(&path).expect("stat").mode(), 0o100_604);
        // A time that was set stays also when the file is written back.
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        file.set_modified(time).expect("utimensat");
        let changed = fs::metadata(&path).expect("stat").ctime();
        drop(file);
        for _ in 0..3 {
            let stat = fs::metadata(&path).expect("stat");
            assert_eq!((stat.modified().expect("a time"), stat.ctime()), (time, changed));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
}

#[test]
fn a_file_without_names_stays_while_it_is_open() {
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        let path = place.join("file");
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.as_mut().expect("create");
        file.write_all(b"kept").expect("write");
        fs::remove_file(&path).expect("unlink");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        fs::write(&path, "another").expect("write");
        file.seek(SeekFrom::Start(0)).expect("seek");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "kept");
    });
    assert_eq!(content(&session, "/file"), b"another");
}

#[test]
fn holes_sizes_and_truncations_are_written_back() {
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        let path = place.join("sparse");
        let file = File::create(&path).expect("create");
        file.write_all_at(b"end", 3 << 20).expect("write");
        drop(file);
        let path = place.join("cut");
        fs::write(&path, vec![7; 3_000_000]).expect("write");
        // Written back before, or not.
        for size in [2_000_001, 2_000_000] {
            OpenOptions::new()
                .write(true)
                .open(&path)
                .expect("open")
                .set_len(size)
                .expect("truncate");
            assert_eq!(fs::metadata(&path).expect("stat").len(), size);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!(
            shell(place, "truncate -s 5 cut; stat -c %s cut; truncate -s 8 cut; od -An -tu1 cut"),
            "5\n   7   7   7   7   7   0   0   0\n"
        );
    });
    let sparse = content(&session, "/sparse");
    assert_eq!((sparse.len(), &sparse[3 << 20..]), ((3 << 20) + 3, &b"end"[..]));
    assert!(sparse[..3 << 20].iter().all(|&byte| byte == 0));
    assert_eq!(content(&session, "/cut"), [7, 7, 7, 7, 7, 0, 0, 0]);
}

#[test]
fn a_snapshot_is_read_only() {
    if !can_show() {
        return;
    }
    let repository = repository(Arc::new(MemoryStore::new()));
    let session = Arc::new(repository.begin(&[], options()).expect("begin"));
    show(of(&session), |place| {
        shell(
            place,
            "mkdir a; seq 100000 > a/large; ln -s a/large link; echo x > a/x; chmod 755 a/x",
        );
    });
    session.publish("snapshot").expect("publish");
    let (namespace, _markers) =
        repository.open_held(&[session.set()], Identity::of_process()).expect("open");
    show(NamespaceView::Snapshot(namespace), |place| {
        assert_eq!(
            shell(place, "tail -n1 link; find . | sort"),
            "100000\n.\n./a\n./a/large\n./a/x\n./link\n"
        );
        let errors = [
            fs::write(place.join("a/x"), "y").expect_err("a write"),
            fs::write(place.join("new"), "y").expect_err("a creation"),
            fs::remove_file(place.join("a/x")).expect_err("a removal"),
            fs::create_dir(place.join("dir")).expect_err("mkdir"),
            fs::rename(place.join("link"), place.join("other")).expect_err("a rename"),
            fs::set_permissions(place.join("a"), fs::Permissions::from_mode(0o700))
                .expect_err("chmod"),
            rustix::fs::access(place.join("a/x"), rustix::fs::Access::WRITE_OK)
                .expect_err("access")
                .into(),
        ];
        assert!(
            errors.iter().all(|error| error.kind() == ErrorKind::ReadOnlyFilesystem),
            "{errors:?}"
        );
    });
}

#[test]
fn synchronous_writes_are_refused_rather_than_lost() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).custom_flags(libc::O_DSYNC);
        let refused = options.open(place.join("file")).expect_err("cannot be promised");
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        assert!(!place.join("file").exists());
    });
}

#[test]
fn more_files_than_are_kept_are_all_written_back() {
    if !can_show() {
        return;
    }
    const FILES: usize = 2400;
    let session = session();
    show(of(&session), |place| {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    for file in (0..FILES).filter(|file| file % 3 == thread) {
                        fs::write(place.join(format!("{file}")), file.to_string()).expect("write");
                    }
                });
            }
        });
        for file in 0..FILES {
            assert_eq!(
                fs::read(place.join(format!("{file}"))).expect("read"),
                file.to_string().as_bytes()
            );
        }
    });
    for file in 0..FILES {
        assert_eq!(content(&session, &format!("/{file}")), file.to_string().as_bytes());
    }
}

/// Symptom: a write to a descriptor that was opened again by a path of `/proc` was not written
/// back, and was possible in snapshots and in files that the user may not write. Cause: the kernel
/// itself opened the spool's file.
#[test]
fn descriptors_are_opened_again_by_their_paths() {
    if !can_show() {
        return;
    }
    let repository = repository(Arc::new(MemoryStore::new()));
    let session = Arc::new(repository.begin(&[], options()).expect("begin"));
    show(of(&session), |place| {
        let said = shell(
            place,
            "echo first > f; exec 3<f; echo second >> /proc/self/fd/3; stat -c %s f; cat /dev/fd/3; \
             exec 4<f; chmod 640 /proc/self/fd/4; stat -c %a f; mkdir d; exec 5<d; chmod 710 /dev/fd/5; \
             stat -c %a d; truncate -s 3 /proc/$$/fd/3; cat f; cat /dev/stdin < f; cd /proc/self/fd/5; /bin/pwd",
        );
        let place = place.canonicalize().expect("a path");
        let wanted = format!("13\nfirst\nsecond\n640\n710\nfirfir{}/d\n", place.display());
        assert_eq!(said, wanted);
        let file = File::open(place.join("f")).expect("open");
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let writer = OpenOptions::new().write(true).open(&again).expect("open");
        writer.write_all_at(b"again", 0).expect("write");
        writer.sync_all().expect("fsync");
        assert_eq!(content(&session, "/f"), b"again");
    });
    session.publish("snapshot").expect("publish");
    let (namespace, _markers) =
        repository.open_held(&[session.set()], Identity::of_process()).expect("open");
    show(NamespaceView::Snapshot(namespace), |place| {
        let file = File::open(place.join("f")).expect("open");
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let refused = OpenOptions::new().write(true).open(&again).expect_err("a snapshot");
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    });
}

/// Symptom: an open that failed because its process had no descriptor left truncated the file, or
/// created one. Cause: the supervisor acted before it handed the descriptor out.
#[test]
fn an_open_for_which_there_is_no_descriptor_changes_nothing() {
    if !can_show() || !Path::new("/usr/bin/python3").exists() {
        return;
    }
    show(of(&session()), |place| {
        fs::write(place.join("kept"), "content").expect("write");
        let script = "import os, resource\n\
            resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n\
            held = []\n\
            try:\n    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n\
            except OSError: pass\n\
            for flags in (os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_EXCL):\n    \
            try: os.open('kept' if flags & os.O_TRUNC else 'new', flags)\n    \
            except OSError as error: print(error.errno)\n";
        fs::write(place.join("p.py"), script).expect("write");
        assert_eq!(shell(place, "python3 p.py; cat kept; ls"), "24\n24\ncontentkept\np.py\n");
    });
}

#[test]
fn what_is_only_read_is_not_written() {
    if !can_show() {
        return;
    }
    let repository = repository(Arc::new(MemoryStore::new()));
    let base = repository.begin(&[], options()).expect("begin");
    let base = Arc::new(base);
    show(of(&base), |place| {
        (0..600).for_each(|file| fs::write(place.join(format!("{file}")), "x").expect("write"));
    });
    base.publish("base").expect("publish");
    let session = Arc::new(repository.begin(&[base.set()], options()).expect("begin"));
    let before = session.statistics().log_bytes;
    show(of(&session), |place| {
        assert_eq!(shell(place, "cat * | wc -c"), "600\n");
    });
    session.flush().expect("flush");
    assert_eq!((session.statistics().table_rows, session.statistics().log_bytes), (0, before));
}

#[test]
fn files_that_were_removed_leave_the_spool() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let spool = spool_beside(place);
        assert_eq!(fs::metadata(&spool).expect("stat").mode() & 0o777, 0o700);
        for _ in 0..20 {
            fs::write(place.join("file"), vec![1; 1 << 20]).expect("write");
            fs::remove_file(place.join("file")).expect("unlink");
        }
        let mut left = usize::MAX;
        for _ in 0..1500 {
            left = fs::read_dir(&spool).expect("list").count();
            if left == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(left, 2, "the folder in which files are filled, and the file that ends all");
    });
}

#[test]
fn writers_of_one_file_see_each_other() {
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        let path = place.join("file");
        File::create(&path).expect("create");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let path = &path;
                scope.spawn(move || {
                    for round in 0..100_u64 {
                        let file =
                            OpenOptions::new().read(true).write(true).open(path).expect("open");
                        file.write_all_at(&[thread as u8 + 1], round * 4 + thread).expect("write");
                        let mut read = [0];
                        file.read_exact_at(&mut read, round * 4 + thread).expect("read");
                        assert_eq!(read[0], thread as u8 + 1);
                    }
                });
            }
        });
    });
    let wanted: Vec<u8> = (0..400).map(|at| (at % 4) as u8 + 1).collect();
    assert_eq!(content(&session, "/file"), wanted);
}

/// `struct open_how` of openat2(2), with a part that no kernel knows yet.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct OpenHow {
    flags: u64,
    mode: u64,
    restrictions: u64,
    later: u64,
}

fn open_how(directory: i32, path: &Path, how: OpenHow, bytes: usize) -> Result<OwnedFd, Errno> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no zero");
    // SAFETY: `path` ends with a zero byte, and `how` has at least `bytes` bytes.
    let opened = unsafe {
        libc::syscall(libc::SYS_openat2, directory, path.as_ptr(), &raw const how, bytes)
    };
    if opened < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).expect("of the kernel"));
    }
    // SAFETY: the kernel has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(opened as i32) })
}

/// Symptom: openat2 with restrictions acted on the real files at the place, to which a link or a
/// root led. Cause: the supervisor did not follow the last link, nor begin absolute paths at the
/// descriptor.
#[test]
fn openat2_restricts_and_checks_its_arguments() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    show(of(&session()), |place| {
        fs::write(place.join("file"), "text").expect("write");
        let link = outside.path().join("link");
        std::os::unix::fs::symlink(place, &link).expect("symlink");
        let creates = (libc::O_CREAT | libc::O_WRONLY) as u64;
        let make = |flags: i32, mode, restrictions, later| OpenHow {
            flags: creates | flags as u64,
            mode,
            restrictions,
            later,
        };
        let above = File::open(place.parent().expect("a parent")).expect("open");
        let rooted = PathBuf::from("/").join(place.file_name().expect("a name"));
        let (cwd, above) = (libc::AT_FDCWD, above.as_raw_fd());
        let (new, file) = (place.join("new"), place.join("file"));
        let read = OpenHow::default();
        let cases = [
            (cwd, &link, make(0, 0o600, libc::RESOLVE_NO_MAGICLINKS, 0), 24, Errno::NOSYS),
            (
                above,
                &rooted.join("new"),
                make(0, 0o600, libc::RESOLVE_IN_ROOT, 0),
                24,
                Errno::NOSYS,
            ),
            (cwd, &new, make(libc::O_DIRECTORY, 0o600, 0, 0), 24, Errno::INVAL),
            (cwd, &new, make(0, 0o100_600, 0, 0), 24, Errno::INVAL),
            (cwd, &new, make(0, 0o600, 0, 1), 32, Errno::TOOBIG),
            (cwd, &new, make(0, 0o600, 0, 0), 16, Errno::INVAL),
            (cwd, &new, make(0, 0o600, 1 << 40, 0), 24, Errno::INVAL),
            (cwd, &file, OpenHow { mode: 0o600, ..read }, 24, Errno::INVAL),
            (cwd, &file, OpenHow { flags: 1 << 40, ..read }, 24, Errno::INVAL),
        ];
        for (at, (directory, path, how, bytes, wanted)) in cases.into_iter().enumerate() {
            let opened = open_how(directory, path, how, bytes).map(drop);
            assert_eq!(opened, Err(wanted), "case {at}");
        }
        open_how(cwd, &file, read, 32).expect("nothing is said in the later part");
        let refused = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(&new);
        assert_eq!(
            refused.map(drop).map_err(|error| error.raw_os_error()),
            Err(Some(libc::EINVAL))
        );
        assert!(!new.exists());
    });
}

/// Calls since Linux 6.13 would act on the real files at the place.
#[test]
fn calls_that_are_newer_than_this_are_refused() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let place = std::ffi::CString::new(place.as_os_str().as_bytes()).expect("no zero");
        for number in 463..470 {
            // SAFETY: `place` ends with a zero byte, and the call gets no other address.
            let done = unsafe { libc::syscall(number, libc::AT_FDCWD, place.as_ptr(), 0, 0, 0, 0) };
            let error = std::io::Error::last_os_error();
            assert_eq!((done, error.raw_os_error()), (-1, Some(libc::ENOSYS)), "call {number}");
        }
    });
}
