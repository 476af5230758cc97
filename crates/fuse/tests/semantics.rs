// SPDX-License-Identifier: Apache-2.0
//! Guarantees to programs beyond those that the suites of `crates/cli/tests` check.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;

use esker_base::store::{MemoryStore, Store};
use esker_fs::session::view::NamespaceView;
use esker_fs::stack::namespace::FollowLinks;
use rustix::fs::{FallocateFlags, RenameFlags, SeekFrom, XattrFlags};

use crate::mounted::{Mounted, can_mount, options, repository};

#[test]
fn open_files_outlive_their_names() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let path = mounted.path("file");
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
    let file = file.expect("create");
    file.write_all_at(b"one", 0).expect("write");
    fs::remove_file(&path).expect("unlink");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
    file.write_all_at(&[7; 2 << 20], 3).expect("write");
    file.set_permissions(fs::Permissions::from_mode(0o400)).expect("chmod");
    assert_eq!(file.metadata().expect("stat").mode() & 0o777, 0o400);
    file.set_len(5).expect("truncate");
    let mut bytes = [0; 10];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 5);
    assert_eq!(&bytes[..5], b"one\x07\x07");
    // Another file with that name is another file; a replaced file stays usable too.
    fs::write(&path, "second").expect("write");
    fs::write(mounted.path("third"), "third").expect("write");
    let replaced = File::open(&path).expect("open");
    fs::rename(mounted.path("third"), &path).expect("rename");
    let mut text = String::new();
    (&replaced).read_to_string(&mut text).expect("read");
    assert_eq!((text.as_str(), replaced.metadata().expect("stat").nlink()), ("second", 0));
    assert_eq!(fs::read_to_string(&path).expect("read"), "third");
    drop((file, replaced));
    mounted.end().expect("closed");
}

#[test]
fn exchange_and_noreplace_rename() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let root = File::open(mounted.root()).expect("open");
    fs::create_dir(mounted.path("d")).expect("mkdir");
    fs::write(mounted.path("d/in"), "in").expect("write");
    fs::write(mounted.path("f"), "f").expect("write");
    let with = |flags| rustix::fs::renameat_with(&root, "d", &root, "f", flags);
    assert_eq!(with(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    let open = File::open(mounted.path("f")).expect("open");
    with(RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!(fs::read_to_string(mounted.path("f/in")).expect("read"), "in");
    assert_eq!(fs::read_to_string(mounted.path("d")).expect("read"), "f");
    let inode = open.metadata().expect("stat").ino();
    assert_eq!(fs::metadata(mounted.path("d")).expect("stat").ino(), inode);
    // Moved files are reachable at their new location, by names and by handles.
    fs::write(mounted.path("f/new"), "x").expect("write");
    fs::set_permissions(mounted.path("d"), fs::Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(open.metadata().expect("stat").mode() & 0o777, 0o600);
    drop((open, root));
    mounted.end().expect("closed");
}

#[test]
fn a_file_is_one_under_all_its_names() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let (one, two, three) = (mounted.path("one"), mounted.path("two"), mounted.path("three"));
    fs::write(&one, "text").expect("write");
    let open = File::options().read(true).write(true).open(&one).expect("open");
    fs::hard_link(&one, &two).expect("link");
    fs::hard_link(&two, &three).expect("link");
    fs::remove_file(&one).expect("unlink");
    open.write_all_at(b"T", 0).expect("write");
    assert_eq!(fs::read_to_string(&three).expect("read"), "Text");
    fs::set_permissions(&two, fs::Permissions::from_mode(0o640)).expect("chmod");
    let (found, other) = (fs::metadata(&three).expect("stat"), open.metadata().expect("stat"));
    assert_eq!((found.ino(), found.mode(), found.nlink()), (other.ino(), other.mode(), 2));
    fs::remove_file(&two).expect("unlink");
    fs::rename(&three, &one).expect("rename");
    assert_eq!(open.metadata().expect("stat").nlink(), 1);
    drop(open);
    assert_eq!(fs::read_to_string(&one).expect("read"), "Text");
    mounted.end().expect("closed");
}

#[test]
fn holes_are_found_and_made() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let file = File::create_new(mounted.path("sparse")).expect("create");
    let tebibyte = 1_u64 << 40;
    file.write_all_at(b"end", 3 * tebibyte).expect("write");
    file.write_all_at(&[1; 65_536], tebibyte).expect("write");
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(tebibyte));
    assert_eq!(seek(SeekFrom::Hole(tebibyte)), Ok(tebibyte + 65_536));
    assert_eq!(seek(SeekFrom::Data(tebibyte + 65_536)), Ok(3 * tebibyte));
    assert_eq!(seek(SeekFrom::Hole(3 * tebibyte)), Ok(3 * tebibyte + 3));
    assert_eq!(seek(SeekFrom::Data(3 * tebibyte + 3)), Err(rustix::io::Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, tebibyte, 32_768).expect("punch");
    assert_eq!(seek(SeekFrom::Data(0)), Ok(tebibyte + 32_768));
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, tebibyte + 32_768, 16_384)
        .expect("zero");
    let read = File::open(mounted.path("sparse")).expect("open");
    let mut bytes = [9; 65_536];
    read.read_exact_at(&mut bytes, tebibyte).expect("read");
    assert!(bytes[..49_152].iter().all(|byte| *byte == 0));
    assert!(bytes[49_152..].iter().all(|byte| *byte == 1));
    let collapse = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4_096);
    assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 4 * tebibyte, 1).expect("allocate");
    assert_eq!(file.metadata().expect("stat").len(), 4 * tebibyte + 1);
    drop((file, read));
    mounted.end().expect("closed");
}

#[test]
fn copies_share_and_do_not_follow_each_other() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let content: Vec<u8> = (0..4_000_000_u32).map(|n| (n / 7) as u8).collect();
    fs::write(mounted.path("from"), &content).expect("write");
    let from = File::open(mounted.path("from")).expect("open");
    let to = File::create_new(mounted.path("to")).expect("create");
    let mut copied = 0;
    while copied < content.len() {
        copied += rustix::fs::copy_file_range(&from, None, &to, None, content.len()).expect("copy");
    }
    to.write_all_at(b"changed", 1_000_000).expect("write");
    assert!(fs::read(mounted.path("from")).expect("read") == content);
    let mut expected = content;
    expected[1_000_000..1_000_007].copy_from_slice(b"changed");
    assert!(fs::read(mounted.path("to")).expect("read") == expected);
    let clone = rustix::fs::ioctl_ficlone(&to, &from);
    assert_eq!(clone, Err(rustix::io::Errno::OPNOTSUPP), "the kernel keeps it from us");
    drop((from, to));
    mounted.end().expect("closed");
}

#[test]
fn nameless_files_are_refused_clearly() {
    use rustix::fs::{Mode, OFlags};
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let opened = rustix::fs::open(mounted.root(), flags, Mode::RUSR | Mode::WUSR);
    assert_eq!(opened.map(drop), Err(rustix::io::Errno::OPNOTSUPP));
    mounted.end().expect("closed");
}

#[test]
fn extended_attributes_have_their_namespaces() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    fs::write(mounted.path("f"), "x").expect("write");
    for path in [mounted.path("f"), mounted.root()] {
        let get = |name: &str| {
            let mut value = [0; 100];
            let count = rustix::fs::getxattr(&path, name, &mut value[..]);
            count.map(|count| value[..count].to_vec())
        };
        let set = |name: &str, flags| rustix::fs::setxattr(&path, name, b"value", flags);
        assert_eq!(get("user.a"), Err(rustix::io::Errno::NODATA));
        set("user.a", XattrFlags::CREATE).expect("set");
        assert_eq!(set("user.a", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
        assert_eq!(set("user.b", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
        assert_eq!(get("user.a").expect("get"), b"value");
        if rustix::process::geteuid().is_root() {
            set("trusted.t", XattrFlags::empty()).expect("set");
            assert_eq!(get("trusted.t").expect("get"), b"value");
        }
        let acl = set("system.posix_acl_access", XattrFlags::empty());
        assert!(matches!(acl, Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL)));
        let mut list = [0; 200];
        let count = rustix::fs::listxattr(&path, &mut list).expect("list");
        assert!(list[..count].windows(7).any(|name| name == b"user.a\0"));
        assert!(!list[..count].windows(5).any(|name| name == b"esker"), "it is not listed");
        rustix::fs::removexattr(&path, "user.a").expect("remove");
        assert_eq!(get("user.a"), Err(rustix::io::Errno::NODATA));
        let missing = rustix::fs::removexattr(&path, "user.a");
        assert_eq!(missing, Err(rustix::io::Errno::NODATA));
    }
    mounted.end().expect("closed");
}

#[test]
fn extended_attributes_of_open_files_outlive_their_names() {
    use rustix::fs::{fgetxattr, flistxattr, fremovexattr, fsetxattr};
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let path = mounted.path("f");
    fs::write(&path, "x").expect("write");
    for how in [File::options().read(true), File::options().read(true).write(true)] {
        fs::write(&path, "x").expect("write");
        rustix::fs::setxattr(&path, "user.a", b"before", XattrFlags::empty()).expect("set");
        let file = how.open(&path).expect("open");
        fs::remove_file(&path).expect("unlink");
        let get = |name: &str| {
            let mut value = [0; 100];
            fgetxattr(&file, name, &mut value[..]).map(|count| value[..count].to_vec())
        };
        assert_eq!(get("user.a").expect("get"), b"before");
        fsetxattr(&file, "user.a", b"after", XattrFlags::REPLACE).expect("set");
        fsetxattr(&file, "user.b", b"new", XattrFlags::CREATE).expect("set");
        assert_eq!(get("user.a").expect("get"), b"after");
        let mut list = [0; 100];
        let count = flistxattr(&file, &mut list[..]).expect("list");
        assert_eq!(&list[..count], b"user.a\0user.b\0");
        fremovexattr(&file, "user.a").expect("remove");
        assert_eq!(get("user.a"), Err(rustix::io::Errno::NODATA));
    }
    mounted.end().expect("closed");
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
    if !can_mount() {
        return;
    }
    let (mounted, _session) = Mounted::session();
    let path = mounted.path("f");
    fs::write(&path, "x").expect("write");
    symlink("f", mounted.path("s")).expect("symlink");
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = |last_access, last_modification| Timestamps { last_access, last_modification };
    let set = |times: &Timestamps| rustix::fs::utimensat(CWD, &path, times, AtFlags::empty());
    set(&times(at(1, 999_999_999), at(1_700_000_000, 123_456_789))).expect("set");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.atime(), stat.atime_nsec()), (1, 999_999_999));
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_700_000_000, 123_456_789));
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    set(&times(omit, at(5, 6))).expect("set");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.atime(), stat.mtime(), stat.mtime_nsec()), (1, 5, 6));
    mounted.end().expect("closed");
}

#[test]
fn set_id_bits_go_when_others_write() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: this changes users, which only the superuser can");
        return;
    }
    let (mounted, _session) = Mounted::session();
    let path = mounted.path("program");
    for change in ["echo x >> program", "truncate -s 1 program", ": > program"] {
        fs::write(&path, "code").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
        let done = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", change])
            .current_dir(mounted.root())
            .status()
            .expect("setpriv runs");
        assert!(done.success(), "{change}");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777, "{change}");
    }
    // Writes by the superuser leave them.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("chmod");
    fs::write(&path, "new").expect("write");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o4755);
    mounted.end().expect("closed");
}

#[test]
fn numbers_of_directories() {
    if !can_mount() {
        return;
    }
    let (mounted, session) = Mounted::session();
    fs::create_dir_all(mounted.path("a/b")).expect("mkdir");
    let stat = |name: &str| fs::metadata(mounted.path(name)).expect("stat");
    assert_eq!(stat("").ino(), 1);
    assert_eq!(stat("a/b/..").ino(), stat("a").ino());
    let before = stat("a/b").ino();
    fs::rename(mounted.path("a/b"), mounted.path("c")).expect("rename");
    assert_eq!(stat("c").ino(), before);
    assert_eq!(stat("c/..").ino(), 1);
    assert!(session.namespace().stat("/c", esker_fs::stack::namespace::FollowLinks::No).is_ok());
    let space = rustix::fs::statvfs(mounted.root()).expect("statvfs");
    assert!(space.f_bavail > 0 && space.f_namemax == 255);
    let open = File::open(mounted.path("c")).expect("open");
    fs::remove_dir(mounted.path("c")).expect("rmdir");
    assert_eq!(open.metadata().expect("stat of a removed directory").nlink(), 0);
    let inside = rustix::fs::mkdirat(open.as_fd(), "x", rustix::fs::Mode::RWXU);
    assert_eq!(inside, Err(rustix::io::Errno::NOENT));
    drop(open);
    mounted.end().expect("closed");
}

fn links(path: &std::path::Path) -> u64 {
    fs::metadata(path).expect("stat").nlink()
}

#[test]
fn directories_have_a_link_for_each_directory_in_them() {
    if !can_mount() {
        return;
    }
    let (mounted, session) = Mounted::session();
    // Some exist before the kernel asks.
    session.mkdir(session.root(), b"before", 0o755).expect("mkdir");
    let before = session.namespace().stat("/before", FollowLinks::No).expect("stat");
    let before = session.namespace().open_dir(session.root(), b"before", &before).expect("open");
    for name in ["one", "two"] {
        session.mkdir(&before, name.as_bytes(), 0o755).expect("mkdir");
    }
    session.create(&before, b"file", 0o644).expect("create");
    assert_eq!((links(&mounted.root()), links(&mounted.path("before"))), (3, 4));
    for name in ["a", "b", "a/in", "a/in/deep", "b/other"] {
        fs::create_dir(mounted.path(name)).expect("mkdir");
    }
    fs::write(mounted.path("a/file"), "").expect("write");
    let of = |names: [&str; 4]| names.map(|name| links(&mounted.path(name)));
    assert_eq!(links(&mounted.root()), 5);
    assert_eq!(of(["a", "b", "a/in", "a/in/deep"]), [3, 3, 3, 2]);
    // Into another directory, over an empty one, and within one.
    fs::rename(mounted.path("a/in"), mounted.path("b/in")).expect("rename");
    assert_eq!(of(["a", "b", "b/in", "b/in/deep"]), [2, 4, 3, 2]);
    fs::rename(mounted.path("b/in"), mounted.path("b/other")).expect("rename");
    assert_eq!(of(["a", "b", "b/other", "b/other/deep"]), [2, 3, 3, 2]);
    let root = File::open(mounted.root()).expect("open");
    let exchange = RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(&root, "a/file", &root, "b/other", exchange).expect("exchange");
    assert_eq!(of(["a", "b", "a/file", "a/file/deep"]), [3, 2, 3, 2]);
    let open = File::open(mounted.path("a/file/deep")).expect("open");
    fs::remove_dir(mounted.path("a/file/deep")).expect("rmdir");
    assert_eq!(open.metadata().expect("stat").nlink(), 0);
    assert_eq!(links(&mounted.path("a/file")), 2);
    drop((open, root));
    mounted.end().expect("closed");
    // A second mount, which has to count.
    let mounted = Mounted::new(NamespaceView::Session(session));
    let of = |names: [&str; 4]| names.map(|name| links(&mounted.path(name)));
    assert_eq!(of(["", "a", "b", "before"]), [5, 3, 2, 4]);
    mounted.end().expect("closed");
}

/// Symptom: indexed directories could not be removed: `rmdir` did not recognize a directory, and
/// the kernel does not pass on `unlink` of a directory.
#[test]
fn indexed_directories_are_shown_as_directories_and_removed_whole() {
    if !can_mount() {
        return;
    }
    let store = Arc::new(MemoryStore::new());
    let session = Arc::new(repository(store.clone()).begin(&[], options()).expect("begin"));
    for (number, name) in [(7, "rm"), (8, "rmdir")] {
        let prefix = esker_fs::inode::indexed::prefix(session.set(), number);
        store.put_if_absent(&format!("{prefix}root"), b"of no importance here").expect("put");
        let root = session.root();
        session.create_indexed(root, name.as_bytes(), 0o755, number, 9).expect("create");
    }
    let mounted = Mounted::new(NamespaceView::Session(session));
    assert!(fs::metadata(mounted.path("rm")).expect("stat").is_dir());
    assert_eq!(links(&mounted.root()), 4);
    let errno = |error: std::io::Error| error.raw_os_error();
    let listed = fs::read_dir(mounted.path("rm")).map(drop).map_err(errno);
    assert_eq!(listed, Err(Some(rustix::io::Errno::IO.raw_os_error())), "it has no records");
    let key = File::open(mounted.path("rm/0x00")).map(drop).map_err(errno);
    assert_eq!(key, Err(Some(rustix::io::Errno::IO.raw_os_error())));
    let run = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        let output = command.current_dir(mounted.root()).args(arguments).output();
        output.expect("it runs").status.success()
    };
    // Programs do not mistake it for an empty directory.
    run("find", &[".", "-type", "d", "-empty", "-delete"]);
    assert!(mounted.path("rm").exists());
    assert!(run("rm", &["-r", "rm"]));
    fs::remove_dir(mounted.path("rmdir")).expect("rmdir");
    assert_eq!((mounted.path("rm").exists(), mounted.path("rmdir").exists()), (false, false));
    assert_eq!(links(&mounted.root()), 2);
    mounted.end().expect("closed");
}

#[test]
fn directories_of_several_bases_have_the_links_of_all() {
    if !can_mount() {
        return;
    }
    let repository = repository(Arc::new(MemoryStore::new()));
    let bases = [("one", "x"), ("two", "y")].map(|(name, inside)| {
        let session = repository.begin(&[], options()).expect("begin");
        for directory in ["shared", "both", inside] {
            let parent = match directory {
                "shared" => session.root().clone(),
                _ => {
                    let shared =
                        session.namespace().stat("/shared", FollowLinks::No).expect("stat");
                    session.namespace().open_dir(session.root(), b"shared", &shared).expect("open")
                }
            };
            session.mkdir(&parent, directory.as_bytes(), 0o755).expect("mkdir");
        }
        session.publish(name).expect("publish")
    });
    let session = repository.begin(&bases, options()).expect("begin");
    let mounted = Mounted::new(NamespaceView::Session(Arc::new(session)));
    assert_eq!(links(&mounted.path("shared")), 5, "both, x and y");
    fs::remove_dir(mounted.path("shared/both")).expect("rmdir");
    assert_eq!(links(&mounted.path("shared")), 4);
    mounted.end().expect("closed");
}
