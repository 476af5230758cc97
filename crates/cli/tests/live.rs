// SPDX-License-Identifier: Apache-2.0
//! Live namespaces by commands: a server process, clients of its user and of others, servers that
//! are killed, stopped and replaced.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::esker::Esker;
use crate::user::{User, is_root};

/// A server process, killed when it is dropped.
pub struct Server {
    process: Child,
}

impl Server {
    /// Runs `command` and waits until it serves.
    pub fn start(mut command: Command) -> Self {
        let mut server = Self::begin(&mut command);
        server.wait();
        server
    }

    fn begin(command: &mut Command) -> Self {
        let process = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        Self { process }
    }

    /// Waits until it serves; returns what it says.
    fn wait(&mut self) -> Value {
        let mut line = String::new();
        let output = self.process.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("readable");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("a server that serves: {line:?}"))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Ends it as Ctrl-C does; returns its exit code.
    pub fn end(mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        self.process.wait().expect("it ends").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn serve(esker: &Esker, more: &[&str]) -> Command {
    let mut arguments = vec!["live", "serve", "run", "--json"];
    arguments.extend_from_slice(more);
    esker.command(arguments)
}

#[test]
fn a_live_namespace_from_its_creation_to_its_removal() {
    let esker = Esker::new();
    esker.publish("base", &[("d/old", "old\n")]);
    esker.ok(["live", "create", "run", "--base", "base"]);
    esker.fails(4, ["live", "create", "run"]);
    assert!(esker.ok(["live", "list"]).contains("no server"));
    let server = Server::start(serve(&esker, &[]));
    esker.fails(9, ["live", "serve", "run"]);
    esker.ok(["live", "mkdir", "run:/results"]);
    esker.pipe(["live", "put", "-", "run:/results/new"], b"new\n");
    esker.pipe(["live", "put", "-", "run:/results/new"], b"newer\n");
    assert_eq!(esker.ok(["live", "cat", "run:/results/new"]), "newer\n");
    // What cannot be read replaces nothing.
    esker.fails(6, ["live", "put", "/", "run:/results/new"]);
    assert_eq!(esker.ok(["live", "cat", "run:/results/new"]), "newer\n");
    assert_eq!(esker.ok(["live", "cat", "run:/d/old"]), "old\n");
    assert_eq!(esker.ok(["live", "ls", "run:/"]), "d\nresults\n");
    esker.ok(["live", "mv", "run:/results/new", "run:/d/new"]);
    esker.ok(["live", "snapshot", "run", "run-1"]);
    esker.ok(["live", "rm", "run:/d/new", "run:/d/old", "run:/d"]);
    esker.fails(3, ["live", "cat", "run:/d/new"]);
    assert_eq!(esker.ok(["cat", "run-1:/d/new"]), "newer\n");
    let status = &esker.json(["live", "status", "run"])[0];
    assert!(status["counters"]["changes"].as_u64() > Some(5), "{status}");
    let listed = &esker.json(["live", "list"])[0];
    assert_eq!(listed["name"], "run");
    assert!(esker.ok(["session", "list"]).contains("live namespace run"));
    assert!(esker.ok(["log"]).contains("live namespace run"));
    // Only its removal gives it up.
    let set = format!("@{}", listed["set"].as_str().expect("a set"));
    assert_eq!(server.end(), Some(0));
    esker.fails(9, ["session", "drop", &set]);
    // A published set would take no more changes.
    esker.fails(9, ["publish", &set, "published"]);
    esker.ok(["gc", "--grace", "0s", "--sessions-older-than", "0s"]);
    let server = Server::start(serve(&esker, &[]));
    assert_eq!(esker.ok(["live", "ls", "run:/"]), "results\n");
    esker.fails(9, ["live", "remove", "run"]);
    assert_eq!(server.end(), Some(0));
    esker.ok(["live", "remove", "run"]);
    assert_eq!(esker.ok(["live", "list"]), "");
    esker.ok(["gc", "--grace", "0s"]);
    esker.ok(["verify"]);
    assert_eq!(esker.ok(["cat", "run-1:/d/new"]), "newer\n");
}

/// Two processes serve the seats of one namespace; one of them is killed.
#[test]
fn a_live_namespace_of_several_servers() {
    let esker = Esker::new();
    esker.fails(2, ["live", "create", "run", "--seats", "0"]);
    esker.fails(2, ["live", "create", "bad/name"]);
    let made = &esker.json(["live", "create", "run", "--seats", "3"])[0];
    assert_eq!(made["seats"].as_array().map(Vec::len), Some(3));
    esker.fails(3, ["live", "serve", "run", "--seats", "3"]);
    let first = Server::start(serve(&esker, &["--seats", "0"]));
    let second = Server::start(serve(&esker, &["--seats", "1-2"]));
    for number in 0..12 {
        let path = format!("run:/d{number}");
        esker.ok(["live", "mkdir", &path]);
        esker.pipe(["live", "put", "-", &format!("{path}/file")], path.as_bytes());
    }
    let listed = esker.ok(["live", "list"]);
    assert!(listed.contains("3 seats") && !listed.contains("no server"), "{listed}");
    let status = esker.ok(["live", "status", "run"]);
    assert!(status.contains("seat 2: "), "{status}");
    // A client waits only in directories whose server is gone; another one takes over.
    drop(second);
    assert!(esker.ok(["live", "ls", "run:/"]).contains("d11"));
    assert!(esker.ok(["live", "list"]).contains("seat 1: no server"));
    let top = ["live", "top", "run", "--interval", "0.1", "--count", "2"];
    let tables = esker.json(top);
    let seats = tables[1]["seats"].as_array().expect("all seats");
    assert_eq!((tables.len(), seats.len()), (2, 3));
    assert!(seats[0]["per_second"]["reads"].is_number(), "{}", tables[1]);
    assert!(seats[2].is_null(), "{}", tables[1]);
    assert!(esker.ok(top).contains("   2  no server answers"));
    // Symptom: it began to serve some seats, and then ended, without a word on what to do.
    let refused = esker.fails(9, ["live", "serve", "run"]);
    assert!(refused.contains("`esker live serve run --seats 1,2` serves the others"), "{refused}");
    let second = Server::start(serve(&esker, &["--seats", "1,2"]));
    for number in 0..12 {
        let path = format!("run:/d{number}");
        assert_eq!(esker.ok(["live", "cat", &format!("{path}/file")]), path);
    }
    esker.ok(["live", "mkdir", "--spread", "run:/wide"]);
    for number in 0..20 {
        esker.pipe(["live", "put", "-", &format!("run:/wide/{number}")], b"wide");
    }
    assert_eq!(esker.ok(["live", "ls", "run:/wide"]).lines().count(), 20);
    assert_eq!(esker.ok(["live", "cat", "run:/wide/7"]), "wide");
    esker.fails(7, ["live", "rm", "run:/wide"]);
    esker.ok(["live", "rm", "-r", "run:/wide"]);
    files_and_not_directories_move(&esker);
    esker.ok(["live", "snapshot", "run", "all"]);
    esker.fails(9, ["live", "remove", "run"]);
    assert_eq!((first.end(), second.end()), (Some(0), Some(0)));
    esker.ok(["gc", "--grace", "0s"]);
    esker.ok(["verify"]);
    assert_eq!(esker.ok(["cat", "all:/d7/file"]), "run:/d7");
    assert_eq!(esker.ok(["find", "all:/", "--type", "f"]).lines().count(), 12);
    esker.ok(["live", "remove", "run"]);
    esker.ok(["gc", "--grace", "0s"]);
    esker.ok(["verify"]);
    assert_eq!(esker.ok(["cat", "all:/d11/file"]), "run:/d11");
}

/// Moves files between the twelve directories of several seats, and attempts to move directories.
fn files_and_not_directories_move(esker: &Esker) {
    for number in 1..12 {
        let moved = format!("run:/d{number}/moved");
        esker.ok(["live", "mv", "run:/d0/file", &moved]);
        assert_eq!(esker.ok(["live", "cat", &moved]), "run:/d0");
        esker.ok(["live", "mv", &moved, "run:/d0/file"]);
    }
    let refused = (1..12).filter(|number| {
        let inner = format!("run:/d{number}/inner");
        esker.ok(["live", "mkdir", &inner]);
        let moved = esker.run(["live", "mv", &inner, "run:/inner"]);
        let code = moved.status.code();
        assert!([Some(0), Some(26)].contains(&code), "{moved:?}");
        esker.ok(["live", "rm", if code == Some(0) { "run:/inner" } else { &inner }]);
        code != Some(0)
    });
    assert!(refused.count() > 0, "one of twelve directories is at another seat");
}

/// A tree that is imported appears at once, with everything in it, and outlasts its server.
#[test]
fn a_tree_is_imported_as_a_new_directory() {
    let esker = Esker::new();
    let source = esker.path("source");
    for number in 0..300 {
        let dir = source.join(format!("d{}", number % 7));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join(number.to_string()), vec![b'x'; number * 100]).expect("a file");
    }
    std::fs::hard_link(source.join("d0/0"), source.join("linked")).expect("a link");
    std::os::unix::fs::symlink("d0/7", source.join("symlink")).expect("a symbolic link");
    let source = source.to_str().expect("text");
    esker.ok(["live", "create", "run"]);
    let server = Server::start(serve(&esker, &["--durability", "async"]));
    esker.fails(3, ["live", "import", source, "run:/results/missing"]);
    esker.ok(["live", "mkdir", "run:/results"]);
    esker.fails(3, ["live", "import", "missing", "run:/results/run7"]);
    assert_eq!(esker.ok(["live", "ls", "run:/results"]), "");
    let imported = &esker.json(["live", "import", source, "run:/results/run7"])[0];
    assert_eq!((imported["files"].as_u64(), imported["links"].as_u64()), (Some(300), Some(1)));
    let again = esker.fails(4, ["live", "import", source, "run:/results/run7"]);
    assert!(again.contains("exists"), "{again}");
    drop(server);
    let server = Server::start(serve(&esker, &[]));
    esker.pipe(["live", "put", "-", "run:/results/run7/new"], b"new\n");
    assert_eq!(esker.ok(["live", "cat", "run:/results/run7/symlink"]).len(), 700);
    esker.ok(["live", "rm", "run:/results/run7/new"]);
    // Symptom: the set of the directory had no description.
    let log = esker.ok(["log"]);
    assert!(log.contains("directory inserted into live namespace run"), "{log}");
    assert!(!log.contains("(no name)"), "{log}");
    esker.ok(["live", "snapshot", "run", "run-1"]);
    assert_eq!(server.end(), Some(0));
    esker.ok(["live", "remove", "run"]);
    esker.ok(["gc", "--grace", "0s"]);
    esker.ok(["verify"]);
    let exported = esker.path("exported");
    let exported = exported.to_str().expect("text");
    esker.ok(["export", "run-1:/results/run7", exported]);
    let compared = Command::new("diff").args(["-r", source, exported]).status();
    assert!(compared.expect("diff runs").success());
    esker.fails(5, ["live", "import", "/etc/hostname", "run:/results/file"]);
    esker.fails(2, ["live", "import", source, "run:/"]);
    // Commands that were refused left nothing.
    assert_eq!(esker.ok(["session", "list"]), "");
}

/// Symptom: a tree of a live namespace could not be removed by one command.
#[test]
fn a_whole_tree_is_removed() {
    let esker = Esker::new();
    esker.publish("base", &[("d/old", "old\n"), ("kept/file", "kept\n")]);
    esker.ok(["live", "create", "run", "--base", "base"]);
    let server = Server::start(serve(&esker, &[]));
    let source = esker.path("source");
    for number in 0..5_000 {
        let dir = source.join(format!("a{}/b{}/c", number % 3, number % 5));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join(number.to_string()), b"x").expect("a file");
    }
    std::fs::create_dir(source.join("empty")).expect("a directory");
    std::os::unix::fs::symlink("/", source.join("root")).expect("a symbolic link");
    esker.ok(["live", "import", source.to_str().expect("text"), "run:/d/new"]);
    let refused = esker.fails(7, ["live", "rm", "run:/d"]);
    assert!(refused.contains("-r"), "{refused}");
    esker.ok(["live", "rm", "-r", "run:/d"]);
    assert_eq!(esker.ok(["live", "ls", "run:/"]), "kept\n");
    esker.fails(3, ["live", "rm", "-r", "run:/d"]);
    esker.ok(["live", "rm", "-r", "run:/kept/file"]);
    assert_eq!(esker.ok(["live", "ls", "run:/kept"]), "");
    drop(server);
    let server = Server::start(serve(&esker, &[]));
    assert_eq!(esker.ok(["live", "ls", "run:/"]), "kept\n");
    assert_eq!(server.end(), Some(0));
}

/// Symptom: a command without a server said nothing for half a minute.
#[test]
fn a_command_that_waits_for_a_server_says_so() {
    let esker = Esker::new();
    esker.ok(["live", "create", "run"]);
    let mut list = esker.command(["live", "ls", "run:/"]);
    let mut list = list.stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut line = String::new();
    let output = list.stderr.as_mut().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("readable");
    assert!(line.contains("esker live serve run"), "{line}");
    let server = Server::start(serve(&esker, &[]));
    assert!(list.wait().expect("it ends").success());
    assert_eq!(server.end(), Some(0));
}

/// A standby serves once the server is killed, and clients find it.
#[test]
fn a_standby_takes_over_from_a_server_that_was_killed() {
    let esker = Esker::new();
    esker.ok(["live", "create", "run"]);
    let server = Server::start(serve(&esker, &[]));
    esker.pipe(["live", "put", "-", "run:/f"], b"durable");
    let mut standby = Server::begin(serve(&esker, &["--standby"]).stderr(Stdio::null()));
    server.signal(rustix::process::Signal::KILL);
    standby.wait();
    assert!(esker.ok(["live", "list"]).contains(&format!("process {}", standby.process.id())));
    assert_eq!(esker.ok(["live", "cat", "run:/f"]), "durable");
    esker.ok(["live", "rm", "run:/f"]);
    assert_eq!(standby.end(), Some(0));
}

/// A server that is stopped keeps its connections; its clients go on with the one that took over,
/// and it ends once it runs again.
#[test]
fn clients_of_a_stopped_server_go_on_with_the_next() {
    let esker = Esker::new();
    esker.ok(["live", "create", "run"]);
    let mut server = Server::start(serve(&esker, &[]));
    let mut listing = esker.command(["live", "put", "-", "run:/f"]);
    let mut client = listing.stdin(Stdio::piped()).spawn().expect("the binary runs");
    server.signal(rustix::process::Signal::STOP);
    let next = Server::start(serve(&esker, &["--take-over"]));
    drop(client.stdin.take());
    assert!(client.wait().expect("it ends").success());
    server.signal(rustix::process::Signal::CONT);
    let code = server.process.wait().expect("it ends").code();
    assert_eq!(code, Some(10), "fenced");
    assert_eq!(esker.ok(["live", "ls", "run:/"]), "f\n");
    assert_eq!(next.end(), Some(0));
}

/// Two users, of whom the first one, with the umask `umask`, shares a store with the second.
fn users_of_one_store(umask: &'static str) -> (User, User) {
    let ann = User::new(65_534, vec![65_500], umask);
    let bob = User::new(65_502, vec![65_500], "022");
    ann.does("mkdir store && chgrp 65500 store");
    ann.ok(["init", "--shared"]);
    let bob = bob.with_store(&ann.path("store"));
    (ann, bob)
}

/// A user other than the server's makes and removes a directory whose names are at all seats.
#[test]
fn another_user_removes_a_spread_directory() {
    if !is_root() {
        println!("skipped: only the superuser can be two users");
        return;
    }
    let (ann, bob) = users_of_one_store("022");
    ann.ok(["live", "create", "run", "--seats", "3"]);
    let mut command = ann.command("./esker");
    command.args(["live", "serve", "run", "--json", "--allow-other"]);
    let server = Server::start(command);
    let open = ann.command("sh").arg("-c").arg("umask 0; ./esker live mkdir run:/open").status();
    assert!(open.expect("it runs").success());
    bob.ok(["live", "mkdir", "--spread", "run:/open/wide"]);
    bob.ok(["live", "put", "/etc/passwd", "run:/open/wide/a"]);
    assert_eq!(bob.run(["live", "rm", "run:/open/wide"]).status.code(), Some(7));
    bob.ok(["live", "put", "/etc/passwd", "run:/open/wide/b"]);
    bob.ok(["live", "rm", "-r", "run:/open/wide"]);
    assert_eq!(server.end(), Some(0));
}

/// Users of a shared store connect over the Unix socket of one server, as the users they are.
#[test]
fn users_of_one_server_are_kept_apart_by_mode_bits() {
    if !is_root() {
        println!("skipped: only the superuser can be two users");
        return;
    }
    let (ann, bob) = users_of_one_store("077");
    ann.ok(["live", "create", "run"]);
    let start = |more: &str| {
        let mut command = ann.command("sh");
        let line = format!("umask 077; exec ./esker live serve run --json {more}");
        command.arg("-c").arg(line);
        Server::start(command)
    };
    let server = start("");
    // The namespace's root is Ann's alone.
    let refused = bob.run(["live", "ls", "run:/"]);
    assert_eq!(refused.status.code(), Some(8), "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(server.end(), Some(0));
    let server = start("--allow-other");
    let denied = bob.run(["live", "ls", "run:/"]);
    assert_eq!(denied.status.code(), Some(8), "{}", String::from_utf8_lossy(&denied.stderr));
    ann.ok(["live", "mkdir", "run:/private"]);
    assert_eq!(bob.run(["live", "mkdir", "run:/x"]).status.code(), Some(8));
    assert_eq!(bob.run(["live", "snapshot", "run", "theft"]).status.code(), Some(18));
    assert_eq!(server.end(), Some(0));
}

/// Symptoms: listings had neither attributes nor levels below, and modes as decimal numbers; no command
/// said at which seat a directory is; a file was not moved into a directory; a failure kept the command
/// from its other paths, without a word.
#[test]
fn files_are_listed_made_moved_and_removed_as_in_sessions() {
    let esker = Esker::new();
    let source = esker.path("source");
    std::fs::create_dir_all(source.join("odd")).expect("a directory");
    std::os::unix::fs::symlink("over there", source.join("symlink")).expect("a symbolic link");
    std::fs::write(source.join(".hidden"), b"x").expect("a file");
    std::fs::write(source.join("plain"), b"12345").expect("a file");
    std::fs::write(source.join("odd").join(OsStr::from_bytes(b"\xff")), b"").expect("a file");
    esker.ok(["live", "create", "run", "--seats", "3"]);
    let server = Server::start(serve(&esker, &[]));
    esker.ok(["live", "import", source.to_str().expect("text"), "run:/in"]);

    esker.ok(["live", "mkdir", "-p", "-m", "700", "run:/a/b/c"]);
    esker.ok(["live", "mkdir", "-p", "run:/a/b", "run:/"]);
    assert_eq!(esker.ok(["live", "ls", "-R", "run:/a"]), "/a/b\n/a/b/c\n");
    let other = esker.fails(4, ["live", "mkdir", "run:/a", "run:/other"]);
    assert!(other.contains("run:/a: "), "{other}");
    esker.ok(["live", "mkdir", "--spread", "run:/wide"]);

    let listed = esker.ok(["live", "ls", "-l", "run:/", "run:/in"]);
    assert!(listed.starts_with("run:/:\ndrwx") && listed.contains("\n\nrun:/in:\n"), "{listed}");
    assert!(listed.contains("symlink -> over there\n") && !listed.contains("hidden"), "{listed}");
    let inner = esker.ok(["live", "ls", "-ln", "run:/a/b"]);
    assert!(inner.starts_with("drwx------   1 ") && inner.ends_with(" c\n"), "{inner}");
    let by_size = esker.ok(["live", "ls", "-aS", "run:/in"]);
    assert_eq!(by_size, "symlink\nplain\n.hidden\nodd\n");
    let found = esker.json(["live", "ls", "-R", "run:/"]);
    let of = |path: &str| found.iter().find(|entry| entry["path"] == path).expect("listed");
    assert_eq!((&of("/a/b/c")["mode"], &of("/wide")["seats"]), (&json!("0700"), &json!([0, 1, 2])));
    assert_eq!(of("/in/symlink")["target"], "over there");
    assert_eq!(of("/in/odd/\u{fffd}")["path_hex"], "2f696e2f6f64642fff");
    let seat = of("/a")["seats"][0].to_string();
    let shown = esker.ok(["live", "stat", "run:/a", "run:/wide"]);
    assert!(
        shown.contains(&format!("seat  {seat}\n")) && shown.ends_with("seats  all 3\n"),
        "{shown}"
    );

    for name in ["x", "y"] {
        esker.pipe(["live", "put", "-", &format!("run:/{name}")], name.as_bytes());
    }
    esker.fails(5, ["live", "mv", "run:/x", "run:/y", "run:/missing"]);
    let moved = esker.fails(3, ["live", "mv", "run:/x", "run:/none", "run:/y", "run:/a"]);
    assert!(moved.contains("rename run:/none to run:/a/none"), "{moved}");
    assert_eq!(esker.ok(["live", "cat", "run:/a/x", "run:/a/y"]), "xy");
    let removed = esker.fails(3, ["live", "rm", "run:/none", "run:/a/x"]);
    assert!(removed.contains("run:/none: "), "{removed}");
    esker.ok(["live", "rm", "-f", "run:/none", "run:/a/y"]);
    assert_eq!(esker.ok(["live", "ls", "run:/a"]), "b\n");
    assert_eq!(server.end(), Some(0));
}

/// Symptom: a command that was interrupted while it wrote left a part of the content without a word.
#[test]
fn an_interrupted_write_says_what_it_leaves() {
    let esker = Esker::new();
    esker.ok(["live", "create", "run"]);
    let server = Server::start(serve(&esker, &[]));
    let mut command = esker.command(["live", "put", "-", "run:/f"]);
    let mut client = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    client.stdin.as_mut().expect("piped").write_all(b"a part").expect("it is read");
    while esker.run(["live", "cat", "run:/f"]).stdout != b"a part" {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&client);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let ended = client.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("interrupted: run:/f has a part of the content"), "{said}");
    assert_eq!(server.end(), Some(0));
}
