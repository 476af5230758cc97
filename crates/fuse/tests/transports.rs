// SPDX-License-Identifier: Apache-2.0
//! Transports: rings and threads carry the same requests; failures that only rings have.
//!
//! Every other topic runs with the transport that `ESKER_TEST_TRANSPORT` names (`scripts/test.sh`
//! runs this binary with both); the tests here choose theirs, and print a message where there are
//! no rings.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use esker_base::Kind;
use esker_base::store::MemoryStore;
use esker_fs::session::Session;
use esker_fs::session::view::NamespaceView;
use esker_fuse::{Transport, TransportChoice};
use esker_fuse_ring::{RingOptions, RingRefusal, Rings};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::UnmountFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::gated_store::{GatedCalls, GatedStore};
use crate::mounted::{Mounted, can_mount, options, repository, session};

/// Appends that wait; those of write-ahead logs are smaller.
const LARGE_APPENDS: GatedCalls = GatedCalls { append_bytes_min: 512 << 10, syncs: false };

/// Interval and maximum number of checks for a condition that another thread brings about.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS_MAX: u32 = 3_000;

/// Set in the process that a test starts to run its body there.
const CHILD: &str = "ESKER_TEST_CHILD";

/// True if mounts can have rings here; prints a message if not.
fn can_have_rings() -> bool {
    if !can_mount() {
        return false;
    }
    let refusal = Rings::prepare(RingOptions { payload_bytes: 1 << 20, helpers: 1 }).err();
    if let Some(RingRefusal(reason)) = &refusal {
        println!("skipped: no rings here: {reason}");
    }
    refusal.is_none()
}

fn mounted_by(transport: Transport) -> (Mounted, Arc<Session>) {
    let session = session();
    let view = NamespaceView::Session(session.clone());
    (Mounted::with_options(view, |options| options.transport = transport), session)
}

/// Processors on which this thread may run.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("affinity");
    (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect()
}

/// Lets this thread run on `processors` only.
fn run_on(processors: &[usize]) {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    sched_setaffinity(None, &set).expect("affinity");
}

/// Waits until `is_so`.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..LOOKS_MAX {
        if is_so() {
            return;
        }
        std::thread::sleep(LOOK);
    }
    panic!("{what}");
}

/// Makes the kernel ask the mount for the attributes of `path`, on `processor`; returns the number
/// of the asking thread, and then the outcome.
fn ask_on(processor: usize, path: std::path::PathBuf) -> (i32, Receiver<rustix::io::Result<()>>) {
    let ((begins, begun), (ends, ended)) = (channel(), channel());
    drop(std::thread::spawn(move || {
        run_on(&[processor]);
        begins.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("the test waits");
        let (flags, all) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        let asked = rustix::fs::statx(rustix::fs::CWD, &path, flags, all);
        let _ = ends.send(asked.map(drop));
    }));
    (begun.recv().expect("a thread"), ended)
}

/// True if the thread of this process sleeps.
fn is_asleep(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S") || rest.starts_with(" D"))
}

/// Makes, reads, lists and removes a few files in `directory`.
fn use_directory(directory: &Path, files: usize) {
    fs::create_dir(directory).expect("mkdir");
    for number in 0..files {
        let path = directory.join(number.to_string());
        fs::write(&path, format!("text {number}")).expect("write");
        assert_eq!(fs::read_to_string(&path).expect("read"), format!("text {number}"));
    }
    assert_eq!(fs::read_dir(directory).expect("list").count(), files);
    fs::remove_dir_all(directory).expect("remove");
}

#[test]
fn auto_takes_rings_where_they_can_be_had_and_says_why_not() {
    if !can_mount() {
        return;
    }
    let (mounted, _session) = mounted_by(Transport::Auto);
    match (can_have_rings(), &mounted.transport) {
        (true, TransportChoice::Uring(threads)) => assert_eq!(*threads, processors().len()),
        (false, TransportChoice::Threads(Some(reason))) => assert!(!reason.is_empty()),
        (rings, choice) => panic!("rings {rings}: {choice:?}"),
    }
    use_directory(&mounted.path("d"), 10);
    mounted.end().expect("end");
    let (mounted, _session) = mounted_by(Transport::Threads);
    assert_eq!(mounted.transport, TransportChoice::Threads(None));
    use_directory(&mounted.path("d"), 10);
    mounted.end().expect("end");
}

/// Programs on a processor without a thread are answered by the thread of another processor.
#[test]
fn programs_are_answered_on_every_processor() {
    if !can_have_rings() {
        return;
    }
    let all = processors();
    // As in a container with fewer processors than the machine has.
    run_on(&all[..1]);
    let (mounted, _session) = mounted_by(Transport::Uring);
    assert_eq!(mounted.transport, TransportChoice::Uring(1));
    for processor in &all {
        let (processor, directory) = (*processor, mounted.path(processor.to_string()));
        let user = std::thread::spawn(move || {
            run_on(&[processor]);
            use_directory(&directory, 50);
        });
        user.join().expect("no panic");
    }
    run_on(&all);
    mounted.end().expect("end");
}

#[test]
fn mounts_by_rings_begin_and_end_many_times() {
    if !can_have_rings() {
        return;
    }
    mount_many_times(Transport::Uring, 200);
}

#[test]
#[ignore = "a campaign: scripts/soak.sh runs it"]
fn mounts_begin_and_end_a_thousand_times() {
    if !can_mount() {
        return;
    }
    mount_many_times(Transport::Threads, 1_000);
    if can_have_rings() {
        mount_many_times(Transport::Uring, 1_000);
    }
}

/// Mounts, writes and reads a file, and unmounts, `rounds` times.
fn mount_many_times(transport: Transport, rounds: u32) {
    for round in 0..rounds {
        let (mounted, _session) = mounted_by(transport);
        fs::write(mounted.path("file"), "text").expect("write");
        assert_eq!(fs::read(mounted.path("file")).expect("read"), b"text", "round {round}");
        mounted.end().expect("end");
    }
}

/// Rings do not carry FORGET: a mount that never reads `/dev/fuse` beside them keeps every file
/// that was ever looked up.
#[test]
fn files_that_the_kernel_forgets_are_forgotten() {
    if !can_have_rings() {
        return;
    }
    let (mounted, _session) = mounted_by(Transport::Uring);
    for round in 0..20 {
        for number in 0..1_000 {
            fs::write(mounted.path(format!("{round}.{number}")), "").expect("create");
        }
        for number in 0..1_000 {
            fs::remove_file(mounted.path(format!("{round}.{number}"))).expect("unlink");
        }
    }
    wait_until("files are not forgotten", || (mounted.known_files)() == 0);
    mounted.end().expect("end");
}

/// More requests than there are slots: helpers return their slots.
#[test]
fn many_programs_are_answered_at_a_time() {
    if !can_have_rings() {
        return;
    }
    let (mounted, _session) = mounted_by(Transport::Uring);
    let data: Arc<Vec<u8>> = Arc::new((0..1 << 20).map(|byte: u32| (byte % 251) as u8).collect());
    let users: Vec<_> = (0..48)
        .map(|user| {
            let (path, data) = (mounted.path(format!("file.{user}")), data.clone());
            std::thread::spawn(move || {
                for _ in 0..4 {
                    let mut file = fs::File::create(&path).expect("create");
                    file.write_all(&data).expect("write");
                    file.sync_all().expect("sync");
                    let mut read = Vec::new();
                    fs::File::open(&path).expect("open").read_to_end(&mut read).expect("read");
                    assert!(read == *data);
                }
            })
        })
        .collect();
    users.into_iter().for_each(|user| user.join().expect("no panic"));
    mounted.end().expect("end");
}

/// Symptom: while one program wrote much to a file on a slow store, all programs of a processor
/// waited if one of them asked for that file's attributes. Cause: the thread of the ring took the
/// file's lock, which a helper held. Helpers now answer requests for files whose locks are held.
#[test]
fn a_file_that_is_being_written_holds_up_nobody_else() {
    if !can_have_rings() {
        return;
    }
    let memory = Arc::new(MemoryStore::new());
    let (store, gate) = GatedStore::over(memory, LARGE_APPENDS);
    let session = Arc::new(repository(store).begin(&[], options()).expect("begin"));
    let view = NamespaceView::Session(session);
    let mounted = Mounted::with_options(view, |options| options.transport = Transport::Uring);
    let (written, other) = (mounted.path("written"), mounted.path("other"));
    fs::write(&other, "text").expect("write");
    let file = fs::File::create(&written).expect("create");
    let data = vec![7; 4 << 20];
    file.write_all_at(&data, 0).expect("write");
    gate.close();
    let writer = std::thread::spawn(move || file.write_all_at(&data, 4 << 20));
    wait_until("the helper does not write", || gate.waiting() > 0);
    let processor = processors()[0];
    let (thread, of_written) = ask_on(processor, written);
    wait_until("the request is not sent", || is_asleep(thread));
    let (_, of_other) = ask_on(processor, other);
    let answered = of_other.recv_timeout(Duration::from_secs(60));
    gate.open();
    answered.expect("it is answered while the other file is locked").expect("statx");
    of_written.recv().expect("an outcome").expect("statx");
    writer.join().expect("no panic").expect("write");
    mounted.end().expect("end");
}

/// The kernel takes its rings back while requests are in flight, as it does when an administrator
/// aborts the connection: programs get errors, and the mount ends.
#[test]
fn an_aborted_connection_ends_the_mount_and_all_requests() {
    if !can_have_rings() {
        return;
    }
    let memory = Arc::new(MemoryStore::new());
    let (store, gate) = GatedStore::over(memory, LARGE_APPENDS);
    let session = Arc::new(repository(store).begin(&[], options()).expect("begin"));
    let view = NamespaceView::Session(session);
    let mounted = Mounted::with_options(view, |options| options.transport = Transport::Uring);
    let file = fs::File::create(mounted.path("file")).expect("create");
    let data = vec![7; 4 << 20];
    file.write_all_at(&data, 0).expect("write");
    gate.close();
    let writer = std::thread::spawn(move || {
        let written = file.write_all_at(&data, 4 << 20);
        written.and_then(|()| file.sync_all())
    });
    wait_until("the helper does not write", || gate.waiting() > 0);
    // It is in use, so it is not unmounted.
    let aborted = rustix::mount::unmount(mounted.root(), UnmountFlags::FORCE);
    assert_eq!(aborted, Err(rustix::io::Errno::BUSY));
    writer.join().expect("no panic").expect_err("the connection is gone");
    fs::write(mounted.path("other"), "text").expect_err("the connection is gone");
    // The helper now puts its answer into a slot of a ring that is closed.
    gate.open();
    mounted.wait().expect("it ends as by an unmount");
}

/// Replaces all rings of this process by `/dev/null`, so that the next call to each fails.
fn break_rings() {
    let null = fs::File::open("/dev/null").expect("it is everywhere");
    for entry in
        fs::read_dir("/proc/self/fd").expect("descriptors").map(|entry| entry.expect("one"))
    {
        if fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == "anon_inode:[io_uring]")
        {
            let number: RawFd =
                entry.file_name().to_str().and_then(|name| name.parse().ok()).expect("a number");
            assert_ne!(number, null.as_raw_fd());
            // SAFETY: the number stays with the ring's owner, which this value leaves open.
            let mut ring = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
            rustix::io::dup2(&null, &mut ring).expect("dup2");
        }
    }
}

/// Symptom: programs of a processor waited for ever once the thread of its ring had ended for any
/// reason. Cause: the mount went on. Now the first thread that fails aborts the connection.
#[test]
fn a_ring_that_fails_ends_the_mount_and_all_requests() {
    if !can_have_rings() {
        return;
    }
    if std::env::var_os(CHILD).is_none() {
        // Other tests of this process have rings of their own.
        let mut child = Command::new("timeout");
        child.arg("60").arg(std::env::current_exe().expect("this binary"));
        child.args(["--exact", "transports::a_ring_that_fails_ends_the_mount_and_all_requests"]);
        let output = child.env(CHILD, "1").output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let (mounted, _session) = mounted_by(Transport::Uring);
    fs::write(mounted.path("file"), "text").expect("write");
    break_rings();
    fs::write(mounted.path("other"), "text").expect_err("nobody answers");
    let error = mounted.wait().expect_err("a ring failed");
    assert!(error.to_string().starts_with("answer the kernel"), "{error}");
}

/// Programs that are killed while they wait leave requests whose answers are never read.
#[test]
fn programs_may_be_killed_while_they_wait() {
    if !can_have_rings() {
        return;
    }
    let (mounted, _session) = mounted_by(Transport::Uring);
    let busy = "while :; do : > a.$$; cat a.$$; mv a.$$ b.$$; ls > /dev/null; sync b.$$; done";
    let begin = || -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", busy]).current_dir(mounted.root()).stdout(Stdio::null());
        // One that is killed between two commands says so.
        shell.stderr(Stdio::null()).spawn().expect("a shell")
    };
    for _ in 0..20 {
        let mut children: Vec<Child> = (0..4).map(|_| begin()).collect();
        // So that they are at work.
        use_directory(&mounted.path("d"), 5);
        for child in &mut children {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
    }
    use_directory(&mounted.path("d"), 100);
    mounted.end().expect("end");
}

#[test]
fn a_mount_that_must_have_rings_says_what_is_missing() {
    if !can_mount() || can_have_rings() {
        println!("skipped: there are rings here");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let view = NamespaceView::Session(session());
    let refused = Mounted::try_at(view, directory.path(), |options| {
        options.transport = Transport::Uring;
    });
    let error = refused.err().expect("no rings");
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("--transport auto"), "{error}");
}
