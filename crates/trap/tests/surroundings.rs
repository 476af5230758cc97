// SPDX-License-Identifier: Apache-2.0
//! The surroundings of the place: links from elsewhere, files that others plant in the skeleton,
//! mounts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::shown::{can_show, command, content, of, session, shell, show, show_in};

/// A directory with a file that must stay.
fn victim() -> tempfile::TempDir {
    let victim = tempfile::tempdir().expect("a directory");
    fs::write(victim.path().join("precious"), "precious").expect("write");
    victim
}

fn assert_untouched(victim: &Path) {
    assert_eq!(fs::read(victim.join("precious")).expect("read"), b"precious");
    assert_eq!(fs::read_dir(victim).expect("list").count(), 1);
}

#[test]
fn what_others_plant_in_the_skeleton_leads_nowhere() {
    if !can_show() {
        return;
    }
    let victim = victim();
    let session = session();
    let (planter, planted) = std::sync::mpsc::channel::<std::path::PathBuf>();
    let (done, waits) = std::sync::mpsc::channel::<()>();
    let target = victim.path().to_owned();
    // This thread is not under the supervisor.
    let other = std::thread::spawn(move || {
        let place = planted.recv().expect("a place");
        symlink(target, place.join("d/l")).expect("plant");
        done.send(()).expect("done");
    });
    let scratch = tempfile::tempdir().expect("a directory");
    let shown = show_in(scratch.path(), of(&session), move |place| {
        // So that there is a real directory.
        shell(place, "mkdir d; cd d; pwd");
        planter.send(place.to_owned()).expect("send");
        waits.recv().expect("planted");
        fs::create_dir(place.join("d/l")).expect("mkdir");
        fs::write(place.join("d/l/precious"), "own").expect("write");
        // A directory is needed where the link is, which the supervisor must not remove.
        fs::create_dir(place.join("d/l/sub")).expect("mkdir");
        let entered = command("sh").args(["-c", "cd d/l/sub"]).current_dir(place).output();
        assert!(!entered.expect("a shell").status.success());
        fs::rename(place.join("d/l/precious"), place.join("d/l/moved")).expect("rename");
        fs::remove_dir(place.join("d/l/sub")).expect("rmdir");
    });
    shown.expect("show");
    other.join().expect("planted");
    assert_untouched(victim.path());
    assert_eq!(content(&session, "/d/l/moved"), b"own");
}

/// Symptom: files outside were removed and made by a program that worked in the namespace alone.
/// Cause: a thread that followed a link made it in the skeleton after another had replaced it by a
/// directory, and the supervisor then went through it.
#[test]
fn links_that_others_replace_lead_nowhere() {
    if !can_show() {
        return;
    }
    let (victim, is_done) = (victim(), AtomicBool::new(false));
    show(of(&session()), |place| {
        let link = place.join("l");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        let _ = fs::metadata(link.join("precious"));
                    }
                });
            }
            for _ in 0..400 {
                symlink(victim.path(), &link).expect("symlink");
                let _ = fs::metadata(link.join("precious"));
                fs::remove_file(&link).expect("unlink");
                fs::create_dir(&link).expect("mkdir");
                fs::create_dir(link.join("sub")).expect("mkdir");
                // Opening it makes a real directory.
                let _ = fs::File::open(link.join("sub"));
                let _ = fs::write(link.join("precious"), "own");
                let _ = fs::remove_file(link.join("precious"));
                fs::remove_dir(link.join("sub")).expect("rmdir");
                fs::remove_dir(&link).expect("rmdir");
            }
            is_done.store(true, Ordering::Relaxed);
        });
    });
    assert_untouched(victim.path());
}

#[test]
fn a_place_in_use_is_refused() {
    if !can_show() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let place = scratch.path().join("place");
    fs::create_dir(&place).expect("mkdir");
    let held = fs::File::open(&place).expect("open");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    let error = show_in(scratch.path(), of(&session()), |_| ()).expect_err("in use");
    assert_eq!(error.kind(), esker_base::Kind::Conflict, "{error}");
    drop(held);
    show_in(scratch.path(), of(&session()), |_| ()).expect("free again");
}

#[test]
fn links_outside_lead_to_what_is_in_the_namespace_alone() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    let session = session();
    show(of(&session), |place| {
        shell(place, "mkdir -p d/e; echo in >d/file");
        let link = |target: &str, name: &str| {
            symlink(place.join(target), outside.path().join(name)).expect("symlink");
        };
        link("d/file", "file");
        link("d/new", "new");
        link("d/e", "e");
        link("d/chain", "chain");
        symlink(outside.path().join("file"), place.join("d/chain")).expect("symlink");
        let seen = shell(
            outside.path(),
            "cat file chain; echo data >new; cat new; echo more >>file; ls -d e/.; mkdir e/f; \
             (cd e/f; echo deep >g); cat e/f/g",
        );
        assert_eq!(seen, "in\nin\ndata\ne/.\ndeep\n");
    });
    assert_eq!(content(&session, "/d/new"), b"data\n");
    assert_eq!(content(&session, "/d/file"), b"in\nmore\n");
    assert_eq!(content(&session, "/d/e/f/g"), b"deep\n");
}

#[test]
fn a_slash_at_the_end_of_a_link_outside_is_not_lost() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    show(of(&session()), |place| {
        shell(place, "mkdir d; echo x >file");
        symlink(place.join("file"), outside.path().join("lf")).expect("symlink");
        symlink(place.join("d"), outside.path().join("ld")).expect("symlink");
        symlink(place, outside.path().join("lin")).expect("symlink");
        symlink(outside.path().join("lin/file"), place.join("back")).expect("symlink");
        symlink(outside.path().join("lin/d"), place.join("back-d")).expect("symlink");
        let path = |name: &str| outside.path().join(name);
        assert!(fs::remove_file(path("lf/")).is_err());
        assert!(fs::remove_dir(path("ld/")).is_err());
        assert!(fs::rename(path("ld/"), place.join("e")).is_err());
        assert!(fs::File::open(path("lf/")).is_err());
        assert!(fs::remove_file(place.join("back/")).is_err());
        assert!(fs::remove_dir(place.join("back-d/")).is_err());
        assert!(fs::rename(place.join("back-d/"), place.join("e")).is_err());
        assert!(fs::File::open(place.join("back/")).is_err());
        assert_eq!(fs::read(place.join("file")).expect("read"), b"x\n");
        assert!(place.join("d").is_dir());
    });
}

#[test]
fn parents_of_links_are_those_of_their_targets() {
    if !can_show() {
        return;
    }
    let outside = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(outside.path().join("x/y")).expect("mkdir");
    fs::write(outside.path().join("x/file"), "outside").expect("write");
    symlink(outside.path().join("x/y"), outside.path().join("l")).expect("symlink");
    show(of(&session()), |place| {
        fs::write(place.join("file"), "inside").expect("write");
        let up = |path: &str| fs::read(outside.path().join(path)).expect("read");
        assert_eq!(up("l/../file"), b"outside");
        let name = place.file_name().expect("a name").to_string_lossy();
        let parent = place.parent().expect("a parent");
        // A name that is missing has no parent.
        assert!(fs::read(parent.join("missing/..").join(&*name).join("file")).is_err());
        assert_eq!(fs::read(place.join("../").join(&*name).join("file")).expect("read"), b"inside");
    });
}

#[test]
fn paths_of_proc_lead_to_the_namespace() {
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        let script = format!(
            "mkdir d; cd d; exec 5<.; echo a >/proc/self/fd/5/a; echo b >/dev/fd/5/b; \
             echo c >/proc/self/cwd/c; echo d >/proc//self/root{}/d/d; echo e >/proc/$$/cwd/e; \
             cat /proc/self/cwd/a /proc/$$/cwd/b",
            place.display()
        );
        assert_eq!(shell(place, &script), "a\nb\n");
    });
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(content(&session, &format!("/d/{name}")), format!("{name}\n").into_bytes());
    }
}

#[test]
fn directories_above_the_place_stay_where_they_are() {
    if !can_show() {
        return;
    }
    show(of(&session()), |place| {
        let parent = place.parent().expect("a parent");
        let error = fs::rename(parent, parent.with_extension("moved")).expect_err("busy");
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        // Other names move.
        fs::create_dir(parent.join("x")).expect("mkdir");
        fs::rename(parent.join("x"), parent.join("y")).expect("rename");
        fs::remove_dir(parent.join("y")).expect("rmdir");
    });
}

#[test]
fn a_directory_with_too_long_a_path_is_refused_and_not_passed_by() {
    if !can_show() {
        return;
    }
    let session = session();
    show(of(&session), |place| {
        let name = "n".repeat(250);
        fs::create_dir(place.join("top")).expect("mkdir");
        let mut at = fs::File::open(place.join("top")).expect("open");
        for _ in 0..10 {
            rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::RWXU).expect("mkdir");
            let flags = rustix::fs::OFlags::DIRECTORY;
            let below = rustix::fs::openat(&at, &name, flags, rustix::fs::Mode::empty());
            at = below.expect("open").into();
        }
        // The paths of all of them get longer.
        let mut above = place.join("above");
        fs::create_dir(&above).expect("mkdir");
        for _ in 0..7 {
            above.push(&name);
            fs::create_dir(&above).expect("mkdir");
        }
        fs::rename(place.join("top"), above.join("top")).expect("rename");
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let made = rustix::fs::openat(&at, "lost", flags, rustix::fs::Mode::RUSR);
        assert_eq!(made.expect_err("too long"), rustix::io::Errno::NAMETOOLONG);
    });
}

#[test]
fn what_is_mounted_on_a_directory_is_left_alone() {
    if !can_show() || !rustix::process::geteuid().is_root() {
        return;
    }
    let victim = victim();
    fs::create_dir(victim.path().join("empty")).expect("mkdir");
    let scratch = tempfile::tempdir().expect("a directory");
    let shown = show_in(scratch.path(), of(&session()), |place| {
        shell(place, "mkdir m; cd m; pwd");
        let mut mount = Command::new("mount");
        let mounted = mount.arg("--bind").arg(victim.path()).arg(place.join("m")).status();
        mounted.expect("mount").success()
    });
    if shown.expect("show") {
        assert!(victim.path().join("empty").is_dir());
        let unmounted = Command::new("umount").arg(scratch.path().join("place/m")).status();
        assert!(unmounted.expect("umount").success());
    }
}
