// SPDX-License-Identifier: Apache-2.0
//! Repeated makes: a client that lost its server sends an exclusive create again, and gets the file
//! that it made itself or an error, never a file of another client.

use std::io::Write;
use std::os::unix::net::UnixStream;

use esker_base::wire::{WireInput, put_bytes, put_varint};
use esker_base::{Kind, Result};
use esker_fs::inode::{FileKind, NameKind};
use esker_fs::ops::NewFile;
use esker_fs::stack::identity::Identity;
use esker_live::client::{LiveDir, LiveFile, Request};
use esker_live::wire::{
    FrameHeader, LiveAttributes, MAKE_OPENS, Verb, take_attributes, take_status,
};
use esker_live::{LiveServer, LiveTree};

use crate::raw_client::{frame, greeted, receive};
use crate::served::LiveStore;

/// The number of the client whose answers are lost.
const CLIENT: u64 = 77;

/// A request to make a file of `kind` at the name `lock`, and to open it if it is a regular one.
fn make_payload(kind: FileKind) -> Vec<u8> {
    let mut payload = vec![0; 16];
    let opens = if kind == FileKind::File { MAKE_OPENS } else { 0 };
    payload.push(u8::try_from(NameKind::Is(kind).number()).expect("kinds are few") | opens);
    for field in [0o600, 0, 0, 0] {
        put_varint(&mut payload, field);
    }
    put_bytes(&mut payload, if kind == FileKind::Symlink { b"target" } else { b"" });
    put_bytes(&mut payload, b"lock");
    payload
}

/// Sends the make as request 1, and returns its outcome.
fn make(
    stream: &mut UnixStream,
    kind: FileKind,
    (is_repeated, is_durable): (bool, bool),
) -> std::result::Result<LiveAttributes, Kind> {
    let mut header = FrameHeader::new(Verb::MakeNode, 1);
    (header.flags.is_repeated, header.flags.is_durable) = (is_repeated, is_durable);
    stream.write_all(&frame(&header, &make_payload(kind))).expect("sent");
    let (_, payload) = receive(stream).expect("an answer");
    let mut input = WireInput::new(&payload);
    let made = take_status(&mut input).expect("an outcome").map_err(|error| error.kind());
    made.map(|()| take_attributes(&mut input).expect("attributes"))
}

/// Makes the file durably, at a server that dies before the client has the answer. Returns the
/// file, and the next server.
fn made_before_a_takeover(live: &LiveStore, kind: FileKind) -> (LiveAttributes, LiveServer) {
    let server = live.serve();
    let made = make(&mut greeted(live, &server, CLIENT), kind, (false, true)).expect("made");
    drop(server);
    (made, live.serve())
}

fn repeat(
    live: &LiveStore,
    server: &LiveServer,
    kind: FileKind,
) -> std::result::Result<LiveAttributes, Kind> {
    make(&mut greeted(live, server, CLIENT), kind, (true, false))
}

const KINDS: [FileKind; 4] =
    [FileKind::File, FileKind::Fifo, FileKind::Symlink, FileKind::Directory];

#[test]
fn the_client_that_made_a_file_gets_it() {
    for kind in KINDS {
        let live = LiveStore::new();
        let (made, server) = made_before_a_takeover(&live, kind);
        let mut stream = greeted(&live, &server, CLIENT);
        let again = make(&mut stream, kind, (true, false)).expect("it made the file");
        assert_eq!((again.id, again.kind), (made.id, kind));
        // A new request finds the name taken.
        let mut header = FrameHeader::new(Verb::MakeNode, 2);
        header.window = 2;
        stream.write_all(&frame(&header, &make_payload(kind))).expect("sent");
        let (_, payload) = receive(&mut stream).expect("an answer");
        let outcome = take_status(&mut WireInput::new(&payload)).expect("an outcome");
        assert_eq!(outcome.expect_err("it is there").kind(), Kind::Exists);
    }
}

/// Symptom: two programs held one lock file. A client whose exclusive create was carried out, and
/// whose answer was lost with the server, was given the file that another client had put in place of
/// its own, and had it open. Cause: the repetition took whichever file was at the name for its own.
/// Fix: the identity of a file depends on the request that makes it, and the repetition compares it.
#[test]
fn a_repeated_make_never_takes_the_file_of_another_client() -> Result<()> {
    for kind in [FileKind::File, FileKind::Fifo, FileKind::Symlink] {
        let live = LiveStore::new();
        let (made, server) = made_before_a_takeover(&live, kind);
        let root = LiveDir::root();
        let mut other = live.connect();
        other.change(Request::unlink(&root, &[b"lock"]))?;
        other.create(&root, b"lock", 0o644)?;
        other.write(&root, b"lock", 0, b"of the other")?;
        let id = other.lookup(&root, b"lock")?.id;
        assert_ne!(id, made.id);
        let mut stream = greeted(&live, &server, CLIENT);
        assert_eq!(make(&mut stream, kind, (true, false)).expect_err("not its file"), Kind::Exists);
        // Nor does the client have it open.
        other.change(Request::unlink(&root, &[b"lock"]))?;
        let file = LiveFile { dir: &root, name: b"lock", id };
        let asked = other.connection().call(Request::attributes(&file))?;
        assert_eq!(asked.only(take_attributes).expect_err("it is gone").kind(), Kind::Conflict);
        server.end()?;
    }
    Ok(())
}

/// A directory that was made anew at the name is as good as the client's own, which another client
/// has removed; a file there is not.
#[test]
fn a_repeated_mkdir_finds_directories_only() -> Result<()> {
    let live = LiveStore::new();
    let (_, server) = made_before_a_takeover(&live, FileKind::Directory);
    let root = LiveDir::root();
    let mut other = live.connect();
    other.change(Request::remove_directory(&root, &[b"lock"]))?;
    other.create(&root, b"lock", 0o644)?;
    let repeated = repeat(&live, &server, FileKind::Directory);
    assert_eq!(repeated.expect_err("a file is there"), Kind::Exists);
    server.end()
}

/// A name that another client makes after the first attempt was lost with its server is that
/// client's.
#[test]
fn a_make_that_was_lost_fails_once_another_client_has_the_name() -> Result<()> {
    let is_lost = |tree: &mut LiveTree| {
        tree.lookup(&LiveDir::root(), b"lock").is_err_and(|error| error.kind() == Kind::NotFound)
    };
    // The server may have synced the first attempt by itself, so try until it was lost.
    for _ in 0..50 {
        let live = LiveStore::new();
        let server = live.serve();
        let mut stream = greeted(&live, &server, CLIENT);
        make(&mut stream, FileKind::File, (false, false)).expect("made");
        drop(server);
        let server = live.serve();
        let mut other = live.connect();
        if !is_lost(&mut other) {
            continue;
        }
        other.create(&LiveDir::root(), b"lock", 0o644)?;
        let repeated = repeat(&live, &server, FileKind::File);
        assert_eq!(repeated.expect_err("another client has it"), Kind::Exists);
        return server.end();
    }
    panic!("no make is ever lost");
}

/// The repetition makes the file if the first attempt was lost, and then another client cannot.
#[test]
fn a_make_that_was_lost_is_made_by_its_repetition() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    make(&mut greeted(&live, &server, CLIENT), FileKind::File, (false, false)).expect("made");
    drop(server);
    let server = live.serve();
    let again = repeat(&live, &server, FileKind::File).expect("made, or made before");
    let mut other = live.connect();
    assert_eq!(other.lookup(&LiveDir::root(), b"lock")?.id, again.id);
    let refused = other.create(&LiveDir::root(), b"lock", 0o644);
    assert_eq!(refused.expect_err("it is there").kind(), Kind::Exists);
    server.end()
}

/// Clients make the same names, durably, while servers come and go: each name has one winner, whose
/// file is there.
#[test]
fn each_name_has_one_winner_while_servers_come_and_go() -> Result<()> {
    const CLIENTS: usize = 3;
    const NAMES: usize = 400;
    let live = LiveStore::new();
    let mut server = live.serve();
    let own = Identity::of_process();
    let new = NewFile {
        kind: FileKind::File,
        mode: 0o600,
        uid: own.uid,
        gid: own.gid,
        rdev: 0,
        target: b"",
    };
    let name = |number: usize| format!("n{number}").into_bytes();
    let root = LiveDir::root();
    // The identity of each file that the client made.
    let made_by_client = || -> Result<Vec<Option<u128>>> {
        let mut tree = live.connect();
        let mut made = Vec::new();
        for number in 0..NAMES {
            let make = Request::make_node(&root, &name(number), (&new, true)).durable();
            made.push(match tree.connection().call(make)?.only(take_attributes) {
                Ok(attributes) => Some(attributes.id),
                Err(error) if error.kind() == Kind::Exists => None,
                Err(error) => return Err(error),
            });
        }
        tree.close().map(|()| made)
    };
    let (made, servers) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(made_by_client)).collect();
        let mut servers = 0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(std::mem::replace(&mut server, live.serve()));
            servers += 1;
        }
        let made = workers.into_iter().map(|worker| worker.join().expect("a worker"));
        (made.collect::<Result<Vec<_>>>(), servers)
    });
    let (made, mut tree) = (made?, live.connect());
    for number in 0..NAMES {
        let winners: Vec<u128> = made.iter().filter_map(|client| client[number]).collect();
        assert_eq!(winners, [tree.lookup(&root, &name(number))?.id], "name {number}");
    }
    assert!(servers > 1, "{servers} servers");
    tree.close()?;
    server.end()
}
