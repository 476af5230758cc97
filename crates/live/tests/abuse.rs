// SPDX-License-Identifier: Apache-2.0
//! Abuse: requests at and over every limit, servers and clients that misbehave, and users who
//! exploit guesses about others.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use esker_base::Kind;
use esker_base::store::{FaultEffect, FaultStore, MemoryStore, SharedStore};
use esker_base::wire::{WireInput, put_bytes, put_varint};
use esker_fs::ops::RenameFlags;
use esker_live::LiveTree;
use esker_live::client::{LiveDir, Request};
use esker_live::wire::{AttributeRequest, FrameHeader, Verb, take_status};

use crate::raw_client::{as_user, frame, greeted, hello, open, receive};
use crate::served::{LiveStore, NAME, client_options, server_options};

fn ask(
    stream: &mut UnixStream,
    verb: Verb,
    number: u64,
    payload: &[u8],
) -> Option<std::result::Result<(), Kind>> {
    stream.write_all(&frame(&FrameHeader::new(verb, number), payload)).ok()?;
    let (_, payload) = receive(stream)?;
    Some(take_status(&mut WireInput::new(&payload)).expect("no failure").map_err(|e| e.kind()))
}

fn rename_payload(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut p = vec![0; 16];
    p.push(0);
    put_bytes(&mut p, from);
    p.extend_from_slice(&[0; 16]);
    put_bytes(&mut p, to);
    p
}

fn create_payload(name: &[u8]) -> Vec<u8> {
    let mut p = vec![0; 16];
    put_varint(&mut p, 0o644);
    put_bytes(&mut p, name);
    p
}

/// Runs `f` in a thread; returns `None` if it has not ended after half a minute.
fn within<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(f()));
    receiver.recv_timeout(Duration::from_secs(30)).ok()
}

/// A name over the limit is refused by the client, and the connection goes on.
#[test]
fn a_long_name_is_an_error() {
    let live = LiveStore::new();
    let _server = live.serve();
    let mut tree = live.connect();
    let done =
        within(move || tree.create(&LiveDir::root(), &[b'n'; 256], 0o644).map_err(|e| e.kind()));
    assert_eq!(done, Some(Err(Kind::TooLarge)));
}

#[test]
fn a_long_path_is_an_error() {
    let live = LiveStore::new();
    let _server = live.serve();
    let mut tree = live.connect();
    let done = within(move || tree.dir(&[b'n'; 5000]).map(drop).map_err(|e| e.kind()));
    assert_eq!(done, Some(Err(Kind::TooLarge)));
}

/// A directory whose path is too long cannot be opened again, and the error says so.
#[test]
fn a_deep_directory_after_a_takeover() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let mut dir = LiveDir::root();
    for _ in 0..17 {
        dir = tree.make_directory(&dir, &[b'd'; 255], 0o755).expect("no failure");
    }
    tree.create(&dir, b"f", 0o644).expect("no failure");
    server.end().expect("no failure");
    let _server = live.serve();
    let done = within(move || tree.create(&dir, b"g", 0o644).expect_err("the server lacks it"));
    let error = done.expect("hangs");
    assert_eq!(error.kind(), Kind::Fenced);
    assert!(error.to_string().contains("too long"), "{error}");
}

/// Symptom: a tree that was deeper than the longest path could not be removed, since some directory in
/// it was "not empty". Cause: the server did not open directories by paths of that length, which
/// counted as removed by another client. Fix: it opens them by their names in their parents.
#[test]
fn a_tree_that_is_deeper_than_any_path_is_removed() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let mut dir = LiveDir::root();
    for _ in 0..50 {
        dir = tree.make_directory(&dir, &[b'd'; 255], 0o755).expect("no failure");
        tree.create(&dir, b"f", 0o644).expect("no failure");
        tree.make_directory(&dir, b"empty", 0o755).expect("no failure");
    }
    // Another connection, for which the server has none of them open.
    let mut other = live.connect();
    other.remove_tree(&LiveDir::root(), &[b'd'; 255]).expect("no failure");
    assert!(other.list(&LiveDir::root()).expect("no failure").is_empty());
    server.end().expect("no failure");
    let report = live.repository.verify(&Default::default()).expect("no failure");
    assert!(report.is_sound(), "{:#?}", report.findings);
}

/// Symptom: an idle client with a batch of 2,000 creates hung after a takeover. Cause: the server
/// counted the items as failures when it lacked the directory, and then again. Fix: a request's own
/// failures do not count against it.
#[test]
fn creates_by_the_thousand_in_a_directory_that_is_not_open() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let dir = tree.make_directory(&LiveDir::root(), b"d", 0o755).expect("no failure");
    server.end().expect("no failure");
    let _server = live.serve();
    // Another request makes the client reconnect, so that only the directory is missing.
    tree.create(&LiveDir::root(), b"x", 0o644).expect("no failure");
    let done = within(move || {
        let names: Vec<Vec<u8>> = (0..2000).map(|n| format!("f{n}").into_bytes()).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        tree.connection().call(Request::create(&dir, 0o644, &names)).map(drop)
    });
    assert!(done.is_some(), "hangs");
}

/// Symptom: a rename overtook the create before it. Cause: only the create was repeated once its
/// directory was open. Fix: later changes of the client wait for it.
#[test]
fn the_order_of_one_client_is_kept() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let dir = tree.make_directory(&LiveDir::root(), b"d", 0o755).expect("no failure");
    server.end().expect("no failure");
    let _server = live.serve();
    tree.create(&LiveDir::root(), b"x", 0o644).expect("no failure");
    let root = LiveDir::root();
    let one = tree.connection().submit(Request::create(&dir, 0o644, &[b"f"])).expect("no failure");
    let two = tree
        .connection()
        .submit(Request::rename((&root, b"d"), (&root, b"e"), RenameFlags::Replace))
        .expect("no failure");
    let two =
        tree.connection().wait(two).expect("no failure").only(|_| Ok(())).map_err(|e| e.kind());
    let one = tree.connection().wait(one).and_then(|a| a.only(|_| Ok(()))).map_err(|e| e.kind());
    assert_eq!((one, two), (Ok(()), Ok(())));
}

/// Answers over the size of a frame are refused, and the server goes on.
#[test]
fn two_reads_over_the_size_of_an_answer() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    tree.create(&LiveDir::root(), b"f", 0o644).expect("no failure");
    tree.write(&LiveDir::root(), b"f", 0, &vec![1; 1 << 20]).expect("no failure");
    let mut stream = greeted(&live, &server, 77);
    let mut payload = vec![0; 16];
    for bytes in [500_000, 1 << 20] {
        payload.extend_from_slice(&[0; 16]);
        put_bytes(&mut payload, b"f");
        put_varint(&mut payload, 0);
        put_varint(&mut payload, bytes);
    }
    let mut header = FrameHeader::new(Verb::Read, 1);
    header.items = 2;
    stream.write_all(&frame(&header, &payload)).expect("no failure");
    let (refusal, _) = receive(&mut stream).expect("an answer");
    assert_eq!((refusal.verb, refusal.number), (Verb::Goodbye, 1));
    tree.lookup(&LiveDir::root(), b"f").expect("others are served");
}

#[test]
fn thousands_of_failures_with_long_names() {
    let live = LiveStore::new();
    let _server = live.serve();
    let mut tree = live.connect();
    let done = within(move || {
        let names: Vec<Vec<u8>> = (0..2048u32)
            .map(|n| {
                let mut name = vec![0xff; 255];
                name[..4].copy_from_slice(&(n | 0x8080_8080).to_le_bytes());
                name
            })
            .collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        tree.connection().call(Request::unlink(&LiveDir::root(), &names)).map(drop)
    });
    assert!(done.is_some(), "hangs");
}

#[test]
fn thousands_of_lookups_that_fail() {
    let live = LiveStore::new();
    let _server = live.serve();
    let mut tree = live.connect();
    let done = within(move || {
        let names: Vec<Vec<u8>> = (0..2048u32).map(|n| format!("{n:0>255}").into_bytes()).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        tree.connection().call(Request::lookup(&LiveDir::root(), &names)).map(drop)
    });
    assert!(done.is_some(), "hangs");
}

/// Symptom: no client could find a living server. Cause: one that had been fenced while it started
/// removed its address. Fix: addresses have epochs, and only lower ones are removed.
#[test]
fn a_server_that_was_fenced_before_it_put_its_address() {
    let live = LiveStore::new();
    let first = live.serve();
    let second = live.serve();
    // The last step of LiveServer::start, for a process that was stopped before it.
    first.address().put(&*live.store, (NAME, 0)).expect("no failure");
    drop(first);
    assert!(second.failure().is_none());
    let options = esker_live::client::LiveClientOptions {
        patience: Duration::from_secs(2),
        ..client_options()
    };
    LiveTree::connect(&live.store, NAME, options).expect("the second server is alive");
}

/// The client number is that of a base, and the request's number leads to a file of that base.
#[test]
fn a_user_cannot_take_the_identity_of_a_file() {
    if !esker_fs::stack::identity::Identity::of_process().is_root() {
        return;
    }
    use crate::served::session_options;
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = esker_fs::repository::Repository::new(store.clone());
    let session = repository.begin(&[], session_options()).expect("no failure");
    session.create(session.root(), b"owned", 0o600).expect("no failure");
    let root = session.root().clone();
    session.link(&root, b"owned", &root, b"owned2").expect("no failure");
    session
        .setattr_root(&esker_fs::ops::AttributeChanges { mode: Some(0o1777), ..Default::default() })
        .expect("no failure");
    let base = session.publish("base").expect("no failure");
    repository.create_live(NAME, &[base], 1, session_options()).expect("no failure");
    let live = Arc::new(LiveStore::in_store(store));
    let server = Arc::new(
        live.serve_with(esker_live::LiveServerOptions { allow_other: true, ..server_options() })
            .expect("no failure"),
    );
    let (l, s) = (live.clone(), server.clone());
    as_user(1002, move || {
        let mut eve = l.connect();
        let id = eve.lookup(&LiveDir::root(), b"owned").expect("no failure").id;
        let mut raw = greeted(&l, &s, (id >> 64) as u64);
        // Numbers over 2^48 are cut.
        let low = id as u64;
        let mut header = FrameHeader::new(Verb::Create, 1 << 48 | low >> 16);
        let item = (low & 0xffff) as u16;
        header.items = item + 1;
        let mut payload = vec![0; 16];
        for n in 0..=item {
            put_varint(&mut payload, 0o644);
            put_bytes(&mut payload, format!("e{n}").as_bytes());
        }
        raw.write_all(&frame(&header, &payload)).expect("no failure");
        receive(&mut raw).expect("no failure");
        let mut link = vec![0; 16];
        put_bytes(&mut link, format!("e{item}").as_bytes());
        link.extend_from_slice(&[0; 16]);
        put_bytes(&mut link, b"ee");
    });
    let mut tree = live.connect();
    let found = tree.lookup(&LiveDir::root(), b"owned").expect("no failure");
    assert_eq!(found.uid, 0, "{found:?}");
}

#[test]
fn another_user_cannot_continue_a_client_after_a_takeover() {
    if !esker_fs::stack::identity::Identity::of_process().is_root() {
        return;
    }
    let live = Arc::new(LiveStore::new());
    let options = || esker_live::LiveServerOptions { allow_other: true, ..server_options() };
    let server = Arc::new(live.serve_with(options()).expect("no failure"));
    let mut root = live.connect();
    root.create(&LiveDir::root(), b"a", 0o644).expect("no failure");
    let mut raw = greeted(&live, &server, 99);
    assert_eq!(ask(&mut raw, Verb::Rename, 1, &rename_payload(b"a", b"b")), Some(Ok(())));
    root.sync().expect("no failure");
    drop((raw, server));
    let server = Arc::new(live.serve_with(options()).expect("no failure"));
    let (l, s) = (live.clone(), server.clone());
    as_user(1002, move || {
        let (mut eve, hello) = (open(&s), hello(&l, 99));
        eve.write_all(&hello).expect("no failure");
        let (header, payload) = receive(&mut eve).expect("a refusal");
        assert_eq!(header.verb, Verb::Goodbye);
        let why = take_status(&mut WireInput::new(&payload)).expect("no failure").unwrap_err();
        assert_eq!(why.kind(), Kind::Denied);
    });
    let mut raw = greeted(&live, &server, 99);
    assert_eq!(ask(&mut raw, Verb::Rename, 1, &rename_payload(b"a", b"b")), Some(Ok(())));
}

/// Symptom: a full store ended the server. Cause: the failed sync counted as the end of the
/// session. Fix: durable answers wait for free space.
#[test]
fn a_full_store_does_not_end_the_server() {
    let fault = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
    let live = LiveStore::in_store(fault.clone());
    let server = live.serve();
    let mut tree = live.connect();
    tree.create(&LiveDir::root(), b"f", 0o644).expect("no failure");
    fault.fill_at(fault.operations() + 1, FaultEffect::None);
    let _ = tree.create(&LiveDir::root(), b"g", 0o644);
    std::thread::sleep(Duration::from_millis(1000));
    let failure = server.failure().map(|e| e.to_string());
    fault.make_room();
    assert_eq!(failure, None);
}

/// Symptom this guards against: a change of the root that has no record is repeated, and undoes
/// changes that others made meanwhile.
#[test]
fn attributes_of_the_root_are_changed_once() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut raw = greeted(&live, &server, 99);
    let payload = |mode| {
        let mut p = vec![0; 16 + 16];
        put_bytes(&mut p, b"");
        AttributeRequest { mode: Some(mode), ..Default::default() }.put(&mut p);
        p
    };
    assert_eq!(ask(&mut raw, Verb::SetAttributes, 1, &payload(0o777)), Some(Ok(())));
    let mut tree = live.connect();
    let shut = AttributeRequest { mode: Some(0o700), ..Default::default() };
    tree.set_attributes(&LiveDir::root(), b"", &shut).expect("no failure");
    tree.sync().expect("no failure");
    drop((raw, server));
    let server = live.serve();
    let mut raw = greeted(&live, &server, 99);
    assert_eq!(ask(&mut raw, Verb::SetAttributes, 1, &payload(0o777)), Some(Ok(())));
    let mode = tree
        .resolve(b"/", esker_fs::stack::namespace::FollowLinks::Yes)
        .expect("no failure")
        .attributes
        .mode;
    assert_eq!(mode, 0o700);
}

/// A server keeps some 16,000 directories open for a connection. The others of a chain, whose paths are
/// too long, are opened from its top again.
#[test]
fn a_chain_of_more_directories_than_a_server_keeps_open_is_removed() {
    const DEPTH: usize = 20_000;
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let mut dir = LiveDir::root();
    for _ in 0..DEPTH {
        let inner = tree.make_directory(&dir, b"d", 0o755).expect("no failure");
        // Paths that are too long already need not grow.
        dir = match dir.path.len() > 5000 {
            true => LiveDir { id: inner.id, ..dir },
            false => inner,
        };
    }
    let mut other = live.connect();
    other.remove_tree(&LiveDir::root(), b"d").expect("no failure");
    assert!(other.list(&LiveDir::root()).expect("no failure").is_empty());
    drop((tree, other));
    server.end().expect("no failure");
}

/// Symptom: a user could read and replace the content of others' files. Cause: clients chose the
/// identities of their files. Fix: identities are hashes, of the user among others.
#[test]
fn a_user_cannot_reach_the_content_of_another() {
    if !esker_fs::stack::identity::Identity::of_process().is_root() {
        return;
    }
    let live = Arc::new(LiveStore::new());
    let server = Arc::new(
        live.serve_with(esker_live::LiveServerOptions { allow_other: true, ..server_options() })
            .expect("no failure"),
    );
    let mut root = live.connect();
    let open = AttributeRequest { mode: Some(0o1777), ..Default::default() };
    root.set_attributes(&LiveDir::root(), b"", &open).expect("no failure");
    const SIZE: usize = 4 << 20;
    let scribble = |tree: &mut LiveTree, name: &[u8], byte: u8, shift: u64| {
        let dir = LiveDir::root();
        for n in 0..24u64 {
            tree.write(&dir, name, n * 170_000 + shift, &[byte; 5000]).expect("no failure");
        }
    };
    let l = live.clone();
    as_user(1001, move || {
        let mut bob = l.connect();
        bob.create(&LiveDir::root(), b"secret", 0o600).expect("no failure");
        bob.write(&LiveDir::root(), b"secret", 0, &vec![0xB0; SIZE]).expect("no failure");
        scribble(&mut bob, b"secret", 0xB1, 0);
        bob.close().expect("no failure");
    });
    let (l, s) = (live.clone(), server.clone());
    as_user(1002, move || {
        let mut eve = l.connect();
        let id = eve.lookup(&LiveDir::root(), b"secret").expect("no failure").id;
        let mut raw = greeted(&l, &s, (id >> 64) as u64);
        let number = id as u64 >> 16;
        assert_eq!(ask(&mut raw, Verb::Create, number, &create_payload(b"e")), Some(Ok(())));
        eve.write(&LiveDir::root(), b"e", 0, &vec![0xE0; SIZE / 2]).expect("no failure");
        let size = AttributeRequest { size: Some(SIZE as u64), ..Default::default() };
        eve.set_attributes(&LiveDir::root(), b"e", &size).expect("no failure");
        scribble(&mut eve, b"e", 0xE1, 60_000);
        let content = eve.read(&LiveDir::root(), b"e").expect("no failure");
        assert!(!content.iter().any(|byte| *byte == 0xB0 || *byte == 0xB1));
    });
    let content = root.read(&LiveDir::root(), b"secret").expect("whole");
    assert!(content.iter().all(|byte| *byte == 0xB0 || *byte == 0xB1));
}

fn unlink_payload(names: impl Iterator<Item = String>) -> Vec<u8> {
    let mut p = vec![0; 16];
    names.for_each(|name| put_bytes(&mut p, name.as_bytes()));
    p
}

#[test]
fn a_recorded_request_with_many_failures_is_repeated() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    tree.create(&LiveDir::root(), b"there", 0o644).expect("no failure");
    let mut raw = greeted(&live, &server, 99);
    let mut header = FrameHeader::new(Verb::Unlink, 1);
    header.items = 1501;
    let names = (0..1500).map(|n| format!("n{n}")).chain(["there".to_owned()]);
    let bytes = frame(&header, &unlink_payload(names));
    raw.write_all(&bytes).expect("no failure");
    assert!(receive(&mut raw).is_some());
    tree.sync().expect("no failure");
    drop((raw, server));
    let server = live.serve();
    for _ in 0..3 {
        let mut raw = greeted(&live, &server, 99);
        raw.write_all(&bytes).expect("no failure");
        let answer = receive(&mut raw);
        assert!(answer.is_some(), "closed without an answer");
    }
}

/// Symptom: a create was carried out twice. Cause: the record of a batch was not written if a later
/// frame of it was refused. Fix: it is.
#[test]
fn creates_before_a_refused_frame_have_a_record() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut raw = greeted(&live, &server, 99);
    let mut bytes = frame(&FrameHeader::new(Verb::Create, 1), &create_payload(b"f"));
    for number in [2, 3] {
        let mut header = FrameHeader::new(Verb::Unlink, number);
        (header.items, header.window) = (1400, number as u32);
        bytes.extend(frame(&header, &unlink_payload((0..1400).map(|n| format!("n{n}")))));
    }
    raw.write_all(&bytes).expect("no failure");
    let mut tree = live.connect();
    tree.change(Request::unlink(&LiveDir::root(), &[b"f"]).durable()).expect("no failure");
    drop((raw, server));
    let server = live.serve();
    let mut raw = greeted(&live, &server, 99);
    ask(&mut raw, Verb::Create, 1, &create_payload(b"f"));
    assert!(tree.lookup(&LiveDir::root(), b"f").is_err(), "created twice");
}

/// Symptom: a create was carried out twice. Cause: the record of a batch was not written if bytes
/// that are no frame followed. Fix: it is.
#[test]
fn creates_before_a_corrupt_frame_have_a_record() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut raw = greeted(&live, &server, 99);
    let mut bytes = frame(&FrameHeader::new(Verb::Create, 1), &create_payload(b"f"));
    let mut corrupt = frame(&FrameHeader::new(Verb::Create, 2), &create_payload(b"g"));
    *corrupt.last_mut().expect("not empty") ^= 1;
    bytes.extend(corrupt);
    raw.write_all(&bytes).expect("no failure");
    let (created, _) = receive(&mut raw).expect("an answer");
    assert_eq!(created.number, 1);
    assert!(receive(&mut raw).is_none(), "the connection goes on");
    let mut tree = live.connect();
    tree.change(Request::unlink(&LiveDir::root(), &[b"f"]).durable()).expect("no failure");
    drop((raw, server));
    let server = live.serve();
    let mut raw = greeted(&live, &server, 99);
    ask(&mut raw, Verb::Create, 1, &create_payload(b"f"));
    assert!(tree.lookup(&LiveDir::root(), b"f").is_err(), "created twice");
}

/// An answer that repeats itself does not stop a client.
#[test]
fn a_hostile_server_does_not_stop_a_client() {
    use esker_live::server_address::ServerAddress;
    let live = LiveStore::new();
    let name = format!("esker-hostile-{}", std::process::id());
    let listener = std::os::unix::net::UnixListener::bind_addr(
        &SocketAddr::from_abstract_name(&name).expect("no failure"),
    )
    .expect("no failure");
    let process = esker_base::process::ProcessIdentity::current();
    let address = ServerAddress {
        epoch: 9,
        instance: "0".repeat(16),
        host: "h".into(),
        boot: process.boot,
        pid: 1,
        uid: 0,
        began_ns: 1,
        tcp: None,
        unix: Some(name),
    };
    address.put(&*live.store, (NAME, 0)).expect("no failure");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("no failure");
        receive(&mut stream);
        stream
            .write_all(&frame(&FrameHeader::new(Verb::Welcome, 0), &[0; 17]))
            .expect("no failure");
        let (mut header, _) = receive(&mut stream).expect("no failure");
        header.flags.lacks_directory = true;
        stream.write_all(&frame(&header, b"").repeat(5)).expect("no failure");
        std::thread::sleep(Duration::from_secs(3));
    });
    let mut tree = live.connect();
    let done = std::thread::spawn(move || {
        let dir = LiveDir::below_root(esker_fs::inode::DirId(7), b"x");
        tree.create(&dir, b"f", 0o644).map_err(|e| e.kind())
    })
    .join();
    assert_eq!(done.ok(), Some(Err(Kind::Fenced)));
}

/// Symptom: a client that connected again under a number of its own made a file with the identity of
/// an earlier one, and reached what others had written to that. Fix: identities depend on a random
/// number of the registration.
#[test]
fn a_client_number_that_is_used_again_makes_other_identities() {
    let live = LiveStore::new();
    let server = live.serve();
    let made = |name: &[u8]| {
        let mut raw = greeted(&live, &server, 7);
        assert_eq!(ask(&mut raw, Verb::Create, 5, &create_payload(name)), Some(Ok(())));
        assert_eq!(ask(&mut raw, Verb::Goodbye, 6, &[]), Some(Ok(())));
        live.connect().lookup(&LiveDir::root(), name).expect("it is there").id
    };
    assert_ne!(made(b"x"), made(b"y"));
}
