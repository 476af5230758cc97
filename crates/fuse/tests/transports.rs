// SPDX-License-Identifier: Apache-2.0
//! Transports: rings and threads carry the same requests; what only rings can get wrong.
//!
//! Every other topic runs by the transport that `ESKER_TEST_TRANSPORT` names (`scripts/test.sh` runs
//! this binary with both); the tests here choose theirs. Where the kernel takes no rings they say so.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use esker_base::Kind;
use esker_fs::session::Session;
use esker_fuse::{MountedView, Transport, TransportChoice};
use esker_fuse_ring::{RingOptions, RingRefusal, Rings};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::mounted::{Mounted, can_mount, session};

/// How often, and how many times at most, to look whether files are forgotten.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS_MAX: u32 = 3_000;

/// Whether mounts can have rings here; says so if not.
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
    let view = MountedView::Session(session.clone());
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

/// A program on a processor without a thread of its own is answered by the thread of another.
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
    for round in 0..200 {
        let (mounted, _session) = mounted_by(Transport::Uring);
        fs::write(mounted.path("file"), "text").expect("write");
        assert_eq!(fs::read(mounted.path("file")).expect("read"), b"text", "round {round}");
        mounted.end().expect("end");
    }
}

/// Rings do not carry what the kernel forgets: who never reads `/dev/fuse` beside them keeps every file
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
    let mut looks = 0;
    while (mounted.known_files)() > 0 {
        looks += 1;
        assert!(looks < LOOKS_MAX, "{} files are not forgotten", (mounted.known_files)());
        std::thread::sleep(LOOK);
    }
    mounted.end().expect("end");
}

/// As many requests as there are slots, and more: those that helpers answer keep no slot for ever.
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

/// Programs that are killed while they wait leave requests to which nobody listens.
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
fn who_insists_on_rings_is_told_what_is_missing() {
    if !can_mount() || can_have_rings() {
        println!("skipped: there are rings here");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let view = MountedView::Session(session());
    let refused = Mounted::try_at(view, directory.path(), |options| {
        options.transport = Transport::Uring;
    });
    let error = refused.err().expect("no rings");
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("--transport auto"), "{error}");
}
