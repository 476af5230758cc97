// SPDX-License-Identifier: Apache-2.0
//! Names, paths, links, and working directories.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::shown::{can_show, of, session, shell, show, try_show};

#[test]
fn working_directories_follow_renames_and_paths_lead_out() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let said = shell(
            place,
            "mkdir -p a/b/c; ln -s a/b/c link; cd -P link; /bin/pwd; mv ../../../a ../../../d; /bin/pwd; \
             echo x > file; cd -P ..; ls; cd -P ../../..; test -d place; ls place; \
             cd -P place/d/../d/b/c; cat file",
        );
        let place = place.canonicalize().expect("a path");
        let place = place.display();
        assert_eq!(said, format!("{place}/a/b/c\n{place}/d/b/c\nc\nd\nlink\nx\n"));
    });
}

#[test]
fn symbolic_links_lead_in_and_out() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    fs::write(outside.path().join("file"), "outside").expect("write");
    show(of(&session()), |place| {
        fs::create_dir(place.join("a")).expect("mkdir");
        fs::write(place.join("a/file"), "inside").expect("write");
        symlink(place.join("a"), place.join("absolute")).expect("symlink");
        symlink("absolute/../a/./file", place.join("relative")).expect("symlink");
        symlink(outside.path(), place.join("out")).expect("symlink");
        symlink("loop", place.join("loop")).expect("symlink");
        assert_eq!(fs::read(place.join("relative")).expect("read"), b"inside");
        assert_eq!(fs::read(place.join("out/file")).expect("read"), b"outside");
        assert_eq!(fs::metadata(place.join("out/file")).expect("stat").len(), 7);
        fs::write(place.join("out/new"), "made").expect("write");
        assert_eq!(
            fs::read_link(place.join("relative")).expect("readlink").to_str(),
            Some("absolute/../a/./file")
        );
        let looped = fs::read(place.join("loop")).expect_err("a loop");
        assert_eq!(looped.raw_os_error(), Some(libc::ELOOP));
        let crossed =
            fs::rename(place.join("a/file"), place.join("out/file")).expect_err("two file systems");
        assert_eq!(crossed.kind(), ErrorKind::CrossesDevices);
        assert_eq!(
            fs::canonicalize(place.join("relative")).expect("realpath"),
            place.canonicalize().expect("realpath").join("a/file")
        );
    });
    assert_eq!(fs::read(outside.path().join("new")).expect("read"), b"made");
}

/// Symptom: a path that leads out of the place and back in did not find files, and content written
/// there was lost.
#[test]
fn paths_lead_out_and_back() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let name = place.file_name().expect("a name").to_string_lossy().into_owned();
        let said = shell(
            place,
            &format!(
                "echo a > ../{name}/a; cat a; ln -s ../{name} l; cat l/a; echo b > l/b; mkdir d; cd d; \
                 cat ../../{name}/b; mv ../l/b ../../{name}/d/c; ls; test -d ../../{name}/../{name}/d"
            ),
        );
        assert_eq!(said, "a\na\nb\nc\n");
    });
}

#[test]
fn named_pipes_outside_keep_nobody_waiting() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    let pipe = outside.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("mkfifo");
    show(of(&session()), |place| {
        symlink(&pipe, place.join("link")).expect("symlink");
        symlink("/dev/null", place.join("null")).expect("symlink");
        // More readers than threads of the supervisor; some open it while there is a writer.
        let said = shell(
            place,
            "for i in 1 2 3 4 5; do cat link > out$i & done; echo x > null; wc -c < null; \
             exec 3> link; sleep 1; echo data >&3; exec 3>&-; wait; cat out*",
        );
        assert_eq!(said, "0\ndata\n");
    });
}

/// Calls that the supervisor leaves to the kernel work through real links.
#[test]
fn everything_works_through_links_that_lead_out() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    fs::create_dir(outside.path().join("dir")).expect("mkdir");
    fs::write(outside.path().join("dir/file"), "text").expect("write");
    show(of(&session()), |place| {
        symlink(outside.path().join("dir"), place.join("out")).expect("symlink");
        fs::create_dir_all(place.join("a/b")).expect("mkdir");
        let said = shell(
            place,
            "chmod 604 out/file; touch -d @978307200 out/file; stat -L -c '%a %Y' a/b/../../out/file; \
             mv out/file out/moved; ln out/moved out/linked; rm out/moved; mkdir out/made; rmdir out/made; \
             truncate -s 2 out/linked; cat out/linked; stat -f out >/dev/null; cd -P out; /bin/pwd; ls",
        );
        let dir = outside.path().canonicalize().expect("a path").join("dir");
        assert_eq!(said, format!("604 978307200\nte{}\nlinked\n", dir.display()));
        let crossed =
            fs::rename(place.join("out/linked"), place.join("x")).expect_err("two file systems");
        assert_eq!(crossed.kind(), ErrorKind::CrossesDevices);
    });
}

#[test]
fn a_slash_behind_a_link_does_not_change_what_it_stands_for() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        fs::create_dir(place.join("dir")).expect("mkdir");
        symlink("dir", place.join("link")).expect("symlink");
        let results = [
            fs::rename(place.join("link/"), place.join("moved")),
            fs::remove_dir(place.join("link/")),
        ];
        for result in results {
            assert_eq!(result.expect_err("refused").kind(), ErrorKind::NotADirectory);
        }
        assert!(fs::symlink_metadata(place.join("link/")).expect("stat").is_dir());
    });
}

/// Symptom: files that a program made through a symbolic link to the place, as in a shell whose
/// `$PWD` has one, succeeded and were lost. Cause: only the text of a path was compared with the
/// place.
#[test]
fn links_from_outside_lead_in() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    let session = session();
    show(of(&session), |place| {
        symlink(place, outside.path().join("link")).expect("symlink");
        symlink(place.parent().expect("a parent"), outside.path().join("up")).expect("symlink");
        fs::create_dir(outside.path().join("link/dir")).expect("mkdir");
        fs::write(outside.path().join("link/dir/a"), "a").expect("write");
        fs::write(outside.path().join("up/place/dir/b"), "b").expect("write");
        assert_eq!(fs::read(place.join("dir/b")).expect("read"), b"b");
        let said = shell(
            outside.path(),
            "cat link/dir/a; echo c > ./link/dir/c; cd link; echo d > $PWD/d; ls; mv $PWD/d dir; \
             cd ..; ls up/place/dir; rm link/dir/a; cat /proc/self/cwd/link/dir/c; test -L link",
        );
        assert_eq!(said, "ad\ndir\na\nb\nc\nd\nc\n");
        // Like the link of a shell whose working directory has a link in its name.
        symlink(outside.path().join("link/dir/b"), place.join("back")).expect("symlink");
        symlink(outside.path().join("link/loop"), place.join("loop")).expect("symlink");
        symlink(outside.path().join("link/dir"), place.join("down")).expect("symlink");
        assert_eq!(fs::read(place.join("back")).expect("read"), b"b");
        assert_eq!(shell(place, "cd -P down; ls; echo e > ../down/e; cat e; rm e"), "b\nc\nd\ne\n");
        let looped = fs::read(place.join("loop")).expect_err("a loop");
        assert_eq!(looped.raw_os_error(), Some(libc::ELOOP));
    });
    assert_eq!(
        session
            .namespace()
            .read_dir(&session.namespace().dir("/dir").expect("dir"), &Default::default(), 9)
            .expect("list")
            .len(),
        3
    );
    fs::remove_file(outside.path().join("link")).expect("unlink");
}

#[test]
fn links_to_programs_outside_are_executed() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let said = shell(
            place,
            "mkdir bin; ln -s /bin/echo bin/say; ln -s say bin/tell; bin/say 1; bin/tell 2; \
             ln -s /usr up; cd -P up/bin; /bin/pwd; cd -; printf '#!%s/bin/say\n' $PWD > s; chmod +x s; ./s",
        );
        assert!(said.starts_with("1\n2\n/usr/bin\n") && said.ends_with("./s\n"), "{said}");
    });
}

#[test]
fn files_that_others_make_at_the_place_stay() {
    if !can_show() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let place = scratch.path().join("place");
    let (reported, reports) = std::sync::mpsc::channel();
    let reported = std::sync::Mutex::new(reported);
    let options = esker_trap::TrapOptions {
        view: of(&session()),
        place: place.clone(),
        spool: scratch.path().to_owned(),
        threads: 1,
        preload: false,
        report: Box::new(move |error| {
            reported.lock().expect("sound").send(error.kind()).expect("waits");
        }),
    };
    let (go, wait) = std::sync::mpsc::channel();
    let (done, finished) = std::sync::mpsc::channel();
    let other = place.clone();
    // A thread that was there before does not see the namespace.
    let outsider = std::thread::spawn(move || {
        wait.recv().expect("shown");
        fs::create_dir_all(other.join("dir")).expect("mkdir");
        fs::write(other.join("dir/foreign"), "mine").expect("write");
        done.send(()).expect("waits");
    });
    let shown = place.clone();
    esker_trap::run(options, move |_| {
        shell(&shown, "cp /bin/true .; ./true; mkdir dir; cd dir");
        go.send(()).expect("waits");
        finished.recv().expect("made");
    })
    .expect("show");
    outsider.join().expect("no panic");
    assert_eq!(reports.try_recv(), Ok(esker_base::Kind::NotEmpty));
    assert_eq!(fs::read(place.join("dir/foreign")).expect("read"), b"mine");
    assert!(!place.join("true").exists());
}

#[test]
fn errors_are_those_of_other_file_systems() {
    if !can_show() {
        return;
    }
    let check = |place: &std::path::Path| {
        fs::create_dir(place.join("dir")).expect("mkdir");
        fs::write(place.join("dir/file"), "x").expect("write");
        fs::write(place.join("file"), "x").expect("write");
        let path = |name: &str| place.join(name);
        let long = "x".repeat(256);
        let results: Vec<std::io::Result<()>> = vec![
            fs::read(path("absent")).map(drop),
            fs::read(path("dir")).map(drop),
            fs::read(path("file/below")).map(drop),
            fs::read(path("file/")).map(drop),
            fs::metadata(path("absent/below")).map(drop),
            fs::metadata(path(&long)).map(drop),
            fs::create_dir(path("dir")),
            fs::create_dir(path("absent/dir")),
            fs::remove_dir(path("dir")),
            fs::remove_dir(path("file")),
            fs::remove_dir(path("dir/.")),
            fs::remove_file(path("dir")),
            fs::remove_file(path("absent")),
            fs::rename(path("dir"), path("dir/below")),
            fs::rename(path("file"), path("dir")),
            fs::rename(path("dir"), path("file")),
            fs::rename(path("absent"), path("new")),
            fs::hard_link(path("dir"), path("link")),
            fs::hard_link(path("file"), path("dir")),
            fs::hard_link(path("absent"), path("link")),
            symlink("target", path("file")),
            symlink("target", path("absent/link")),
            fs::read_link(path("file")).map(drop),
            fs::read_link(path("absent")).map(drop),
            fs::write(path("new/"), "x"),
            fs::write(path("dir"), "x"),
            fs::OpenOptions::new().write(true).create_new(true).open(path("file")).map(drop),
            std::env::set_current_dir(path("file")),
            std::env::set_current_dir(path("absent")),
            fs::read_dir(path("file")).map(drop),
        ];
        let errors =
            results.into_iter().map(|result| result.err().and_then(|error| error.raw_os_error()));
        errors.collect::<Vec<_>>()
    };
    let real = tempfile::tempdir().expect("a directory");
    let wanted = check(real.path());
    let found = show(of(&session()), check);
    assert_eq!(found, wanted);
}

#[test]
fn hard_links_and_exchanges_keep_identities() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let number = |name: &str| fs::metadata(place.join(name)).expect("stat").ino();
        fs::write(place.join("a"), "a").expect("write");
        fs::hard_link(place.join("a"), place.join("b")).expect("link");
        assert_eq!(number("a"), number("b"));
        assert_eq!(fs::metadata(place.join("a")).expect("stat").nlink(), 2);
        shell(place, "mkdir d; cd d; touch f");
        let (a, d) = (number("a"), number("d"));
        let cwd = rustix::fs::CWD;
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(cwd, place.join("a"), cwd, place.join("d"), flags)
            .expect("exchange");
        assert_eq!((number("a"), number("d")), (d, a));
        assert_eq!(shell(place, "ls a; cat d b"), "f\naa");
    });
}

#[test]
fn sockets_have_names() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let path = place.join("dir/socket");
        fs::create_dir(place.join("dir")).expect("mkdir");
        let listener = UnixListener::bind(&path).expect("bind");
        assert!(fs::symlink_metadata(&path).expect("stat").mode() & libc::S_IFMT == libc::S_IFSOCK);
        UnixListener::bind(&path).expect_err("taken");
        std::thread::scope(|scope| {
            scope.spawn(|| listener.accept().expect("accept"));
            UnixStream::connect(&path).expect("connect");
        });
        fs::remove_file(&path).expect("unlink");
        assert_eq!(UnixStream::connect(&path).expect_err("gone").kind(), ErrorKind::NotFound);
        UnixListener::bind(&path).expect("the name is free again");
    });
}

#[test]
fn a_place_with_entries_is_refused_and_kept() {
    if !can_show() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("file"), "mine").expect("write");
    let options = esker_trap::TrapOptions {
        view: of(&session()),
        place: place.path().to_owned(),
        spool: std::env::temp_dir(),
        threads: 1,
        preload: false,
        report: Box::new(|_| {}),
    };
    let refused = esker_trap::run(options, |_| ()).expect_err("it would hide a file");
    assert_eq!(refused.kind(), esker_base::Kind::NotEmpty);
    assert_eq!(fs::read(place.path().join("file")).expect("read"), b"mine");
}

#[test]
fn one_namespace_cannot_be_shown_inside_of_another() {
    if !can_show() {
        return;
    }
    let inner = show(of(&session()), |_| try_show(of(&session()), |_| ()).err());
    assert_eq!(inner.expect("refused").kind(), esker_base::Kind::Conflict);
}

/// Symptom: a call relative to a directory that had been removed acted on another one, whose name
/// was the removed one's and ` (deleted)`.
/// Cause: the path that the kernel shows for a removed directory ends so, and was looked up.
/// Fix: the link count of the real directory says whether it was removed.
#[test]
fn calls_in_a_removed_directory_reach_no_other_one() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        for name in ["x", "x (deleted)"] {
            fs::create_dir(place.join(name)).expect("mkdir");
        }
        fs::write(place.join("x (deleted)/victim"), "precious").expect("write");
        let removed = fs::File::open(place.join("x")).expect("open");
        let named_so = fs::File::open(place.join("x (deleted)")).expect("open");
        fs::remove_dir(place.join("x")).expect("rmdir");
        let unlink =
            |dir: &fs::File| rustix::fs::unlinkat(dir, "victim", rustix::fs::AtFlags::empty());
        assert_eq!(unlink(&removed), Err(rustix::io::Errno::NOENT));
        assert_eq!(fs::read(place.join("x (deleted)/victim")).expect("read"), b"precious");
        unlink(&named_so).expect("a directory of such a name");
    });
}
