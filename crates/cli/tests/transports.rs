// SPDX-License-Identifier: Apache-2.0
//! `esker mount --transport` and `--statistics`: rings where possible, threads elsewhere, the
//! messages to users, and the numbers of requests.

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Stdio};

use crate::forbidden_calls::forbid_calls;
use crate::mounted::{Mounted, can_mount, run};

/// `ESKER` mounts by rings, unless something forbids them; says what.
fn can_have_rings(mounted: &Mounted) -> bool {
    let arguments = ["mount", "--write", "rings", "--transport", "uring"];
    let all = arguments.iter().map(OsStr::new).chain([mounted.root().as_os_str()]);
    let output = mounted.esker.run(all);
    if output.status.success() {
        mounted.end();
        return true;
    }
    println!("skipped: no rings here: {}", String::from_utf8_lossy(&output.stderr));
    false
}

/// Lets nobody who runs `command` make rings.
fn forbid_rings(command: &mut Command) {
    forbid_calls(command, &[libc::SYS_io_uring_setup]);
}

#[test]
fn auto_takes_threads_where_rings_are_forbidden_and_says_so() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: a user's process that forbids itself calls may not run fusermount3");
        return;
    }
    let mounted = Mounted::new();
    let log = mounted.esker.path("log");
    let arguments = |transport: &'static str| {
        let mut all = ["mount", "--write", "name", "--transport", transport, "--log"]
            .map(OsStr::new)
            .to_vec();
        all.extend([log.as_os_str(), mounted.root().as_os_str()]);
        all
    };
    let mut forbidden = mounted.esker.command(arguments("uring"));
    forbid_rings(&mut forbidden);
    let output = forbidden.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--transport auto"), "{said}");
    let mut auto = mounted.esker.command(arguments("auto"));
    forbid_rings(&mut auto);
    let status = auto.stdout(Stdio::null()).status().expect("it runs");
    assert!(status.success());
    fs::write(mounted.path("file"), "text").expect("write");
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.starts_with("esker: requests come by threads, not by rings: "), "{said}");
    mounted.end();
    assert_eq!(mounted.esker.ok(["cat", "name:/file"]), "text");
}

#[test]
fn a_log_that_says_only_which_transport_there_is_goes_with_the_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let arguments = ["mount", "--write", "name", "--transport", "auto"];
    mounted.esker.ok(arguments.iter().map(OsStr::new).chain([mounted.root().as_os_str()]));
    let logs = mounted.esker.path("state/esker");
    let first = fs::read_dir(&logs).expect("logs").next().expect("a log").expect("a log");
    let said = fs::read_to_string(first.path()).expect("a log");
    assert!(said.starts_with("esker: requests come by "), "{said}");
    let pid = mounted.pid();
    mounted.end();
    crate::mounted::wait_for_end(pid);
    assert_eq!(fs::read_dir(&logs).expect("logs").count(), 0);
}

/// The mount dies while programs wait for its answers: they get errors, and what they have written
/// to closed files before is there when the session goes on.
#[test]
fn a_mount_by_rings_may_be_killed_while_programs_wait() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    if !can_have_rings(&mounted) {
        return;
    }
    let mount = |more: &[&str]| {
        let words = ["mount", "--write", "killed", "--transport", "uring"];
        mounted.mount(&[&words[..], more].concat());
    };
    mount(&[]);
    fs::write(mounted.path("synced"), "text").expect("write");
    run(mounted.root(), "sync", &["synced"]);
    for round in 0..5 {
        // Each makes files until the mount answers no more.
        let busy = "i=0; while : > $0.$$.$i; do i=$((i+1)); done 2> /dev/null";
        let mut users: Vec<_> = (0..8)
            .map(|user| {
                let mut shell = Command::new("sh");
                shell.args(["-c", busy, &format!("{round}.{user}")]).current_dir(mounted.root());
                shell.spawn().expect("a shell")
            })
            .collect();
        while fs::read_dir(mounted.root()).expect("list").count() < 20 * (round + 1) {}
        mounted.crash();
        for user in &mut users {
            user.wait().expect("it ends");
        }
        mount(&["--resume"]);
        assert_eq!(fs::read_to_string(mounted.path("synced")).expect("read"), "text");
    }
    mounted.end();
    mounted.esker.ok(["verify"]);
}

#[test]
fn a_mount_counts_requests_if_it_is_told_to() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount(&["mount", "--write", "counted", "--statistics"]);
    for number in 0..10 {
        fs::write(mounted.path(number.to_string()), "text").expect("write");
    }
    let at = mounted.root().to_str().expect("UTF-8");
    let all = mounted.esker.ok(["mounts", "--statistics"]);
    let line = all.lines().find(|line| line.starts_with(at)).expect("it is listed");
    assert!(line.contains("  requests: ") && line.contains("create 10"), "{line}");
    let told = mounted.end();
    assert!(told.starts_with("requests: ") && told.contains("create 10"), "{told}");
    assert!(told.contains("published counted"), "{told}");
    assert!(mounted.log().contains("create 10"), "{}", mounted.log());
    mounted.mount(&["mount", "--write", "not-counted"]);
    let all = mounted.esker.ok(["mounts", "--statistics"]);
    let line = all.lines().find(|line| line.starts_with(at)).expect("it is listed");
    assert!(!line.contains("requests"), "{line}");
    assert!(!mounted.end().contains("requests"));
}
