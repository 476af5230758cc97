// SPDX-License-Identifier: Apache-2.0
//! Opening, reading and writing files.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;

use esker_base::store::MemoryStore;
use esker_fs::identity::Identity;
use esker_fs::view::NamespaceView;

use crate::shown::{can_show, content, of, options, repository, session, shell, show};

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
    const FILES: usize = 1500;
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
