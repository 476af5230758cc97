// SPDX-License-Identifier: Apache-2.0
//! The command on an S3 server behind a proxy.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::esker::Esker;
use crate::faulty_proxy::{Fault, FaultyProxy};
use crate::mounted::can_mount;
use crate::s3_server::S3Server;

/// A machine whose commands reach a store on `server` through `proxy`.
struct Machine {
    esker: Esker,
    server: S3Server,
    proxy: FaultyProxy,
}

impl Machine {
    fn new(server: S3Server) -> Self {
        let proxy = FaultyProxy::start(server.address());
        Self { esker: Esker::without_store(), server, proxy }
    }

    /// Runs the command on the store at `url`, whatever its outcome.
    fn run(&self, url: &str, arguments: &[&str]) -> Output {
        let mut command = self.esker.command(arguments);
        command.envs(self.server.variables(self.proxy.address())).env("AWS_TIMEOUT", "3s");
        command.env("ESKER_STORE", url).output().expect("the binary runs")
    }

    fn ok(&self, arguments: &[&str]) {
        let output = self.run("s3://bucket/p", arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Symptom: reads from a mount blocked for minutes if the server hung.
#[test]
fn a_mount_on_a_server_that_hangs_answers_errors_and_goes_on_once_it_answers() {
    if !can_mount() {
        return;
    }
    let Some(server) = S3Server::start() else { return };
    let machine = Machine::new(server);
    let (source, at) = (machine.esker.path("source"), machine.esker.path("at"));
    fs::create_dir(&source).expect("mkdir");
    fs::create_dir(&at).expect("mkdir");
    let content: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(source.join("file"), &content).expect("write");
    machine.ok(&["init"]);
    machine.ok(&["import", text(&source), "base"]);
    machine.ok(&["mount", "base", text(&at)]);
    machine.proxy.hang();
    let error = fs::read(at.join("file")).expect_err("nobody answers");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    machine.proxy.reset();
    assert!(fs::read(at.join("file")).expect("read") == content);
    machine.ok(&["umount", text(&at)]);
}

/// Symptom: 100 small files of one directory took 103 requests through a mount.
/// Cause and fix: see `data::read_ahead`.
#[test]
fn small_files_of_one_directory_come_together_through_a_mount() {
    if !can_mount() {
        return;
    }
    let Some(server) = S3Server::start() else { return };
    let machine = Machine::new(server);
    let (source, at) = (machine.esker.path("source"), machine.esker.path("at"));
    fs::create_dir(&source).expect("mkdir");
    fs::create_dir(&at).expect("mkdir");
    let content = |file: usize| vec![file as u8; 8_000];
    for file in 0..100 {
        fs::write(source.join(file.to_string()), content(file)).expect("write");
    }
    machine.ok(&["init"]);
    machine.ok(&["import", text(&source), "base"]);
    machine.ok(&["mount", "base", text(&at)]);
    machine.proxy.reset();
    for entry in fs::read_dir(&at).expect("list") {
        let entry = entry.expect("list");
        let file = entry.file_name().to_str().expect("UTF-8").parse().expect("a number");
        assert!(fs::read(entry.path()).expect("read") == content(file));
    }
    let requests = machine.proxy.requests();
    machine.ok(&["umount", text(&at)]);
    assert!(requests <= 10, "{requests} requests");
}

/// Symptom: an address without an S3 server and a missing bucket were both reported as a missing
/// store.
#[test]
fn what_keeps_from_a_store_does_not_pass_for_no_store() {
    let Some(server) = S3Server::start() else { return };
    let machine = Machine::new(server);
    let said = |url: &str| {
        let output = machine.run(url, &["names"]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, what) = said("s3://absent-bucket/p");
    assert_eq!(code, Some(11), "{what}");
    assert!(what.contains("does the bucket absent-bucket exist?"), "{what}");
    assert!(!what.contains("is not an Esker store"), "{what}");
    machine.proxy.hang();
    let (code, what) = said("s3://bucket/p");
    assert_eq!(code, Some(11), "{what}");
    assert!(what.contains("no answer within"), "{what}");
    machine.proxy.reset();
    let (code, what) = said("s3://bucket/p");
    assert_eq!(code, Some(3), "{what}");
    assert!(what.contains("is not an Esker store"), "{what}");
}

/// Symptom: `put --as` exited with 11 after the name was published, and with 4 when it was repeated.
/// Cause and fix: see `fs::names` and `table::manifest`: a process recognizes its own manifest, marker
/// and name.
#[test]
fn a_put_whose_answers_are_lost_publishes_its_name_and_says_so() {
    let Some(server) = S3Server::start() else { return };
    let machine = Machine::new(server);
    machine.ok(&["init"]);
    let (source, file) = (machine.esker.path("source"), machine.esker.path("file"));
    fs::create_dir(&source).expect("mkdir");
    machine.ok(&["import", text(&source), "base"]);
    fs::write(&file, vec![7; 100_000]).expect("write");
    for fault in [Fault::DropAnswer, Fault::Fail, Fault::CutAnswer] {
        for number in 1.. {
            let name = format!("{fault:?}-{number}");
            machine.proxy.harm(number, fault);
            let put = ["put", text(&file), "base:/file", "--as", &name];
            let output = machine.run("s3://bucket/p", &put);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{name}: {said}");
            let is_last = !machine.proxy.has_harmed();
            machine.proxy.reset();
            let shown = machine.run("s3://bucket/p", &["cat", &format!("{name}:/file")]);
            assert!(shown.stdout == [7; 100_000], "{name}");
            if is_last {
                assert!(number > 8, "{number} requests of a put");
                break;
            }
        }
    }
}
