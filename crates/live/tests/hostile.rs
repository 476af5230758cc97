// SPDX-License-Identifier: Apache-2.0
//! Hostile clients: bytes that are not frames, frames that are not requests, and requests that no
//! client sends. The server refuses them and serves others.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use esker_base::wire::{WireInput, put_bytes, put_varint};
use esker_base::{Kind, Random, Result};
use esker_fs::inode::{FileKind, NameKind};
use esker_live::LiveServer;
use esker_live::client::{LiveDir, LiveFile, Request};
use esker_live::wire::{
    ClientHello, FRAME_BYTES_MAX, FrameHeader, HelloMethod, Verb, finish_frame, split_frame,
    start_frame, take_status,
};
use esker_table::manifest::SetId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::raw_client::receive;
use crate::served::{LiveStore, NAME};

fn connect(server: &LiveServer) -> UnixStream {
    let name = server.address().unix.clone().expect("a socket");
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).expect("a name"));
    let stream = stream.expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

fn frame(header: &FrameHeader, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    start_frame(&mut out);
    out.extend_from_slice(payload);
    finish_frame(&mut out, 0, header);
    out
}

fn hello(set: SetId, client: u64) -> Vec<u8> {
    let hello = ClientHello { method: HelloMethod::PeerCredentials, client, set, nonce: [0; 16] };
    frame(&FrameHeader::new(Verb::Hello, 0), &hello.encode())
}

/// A connection after its handshake.
fn greeted(live: &LiveStore, server: &LiveServer, client: u64) -> UnixStream {
    let set = esker_fs::names::live_namespace::LiveNamespace::load(&*live.store, NAME)
        .expect("a layout")
        .seats[0];
    let mut stream = connect(server);
    stream.write_all(&hello(set, client)).expect("sent");
    let mut welcome = [0; 24 + 17];
    stream.read_exact(&mut welcome).expect("a welcome");
    stream
}

/// Sends `bytes`, and returns the bytes that the server sends before it closes the connection or
/// waits for more.
fn send(mut stream: UnixStream, bytes: &[u8]) -> Vec<u8> {
    // The server may close the connection before all is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn noise_and_damaged_requests_end_one_connection_only() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let mut random = Random::from_seed(5);
    let verbs = Verb::ALL;
    for client in 1..400u64 {
        let mut payload = vec![0; random.below(80) as usize];
        random.fill(&mut payload);
        if random.one_in(2) && payload.len() >= 16 {
            // The root, so that more of the item is read.
            payload[..16].fill(0);
        }
        let header = FrameHeader {
            verb: verbs[random.below(verbs.len() as u64) as usize],
            flags: Default::default(),
            items: random.below(4) as u16 * random.below(40) as u16,
            number: random.below(5),
            window: random.below(5) as u32,
        };
        if header.verb == Verb::Snapshot {
            continue;
        }
        let mut bytes = frame(&header, &payload);
        if random.one_in(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        let stream =
            if random.one_in(4) { connect(&server) } else { greeted(&live, &server, client) };
        send(stream, &bytes);
    }
    tree.create(&LiveDir::root(), b"still", 0o644)?;
    tree.lookup(&LiveDir::root(), b"still")?;
    assert!(server.counters().refused > 0);
    tree.close()?;
    server.end()
}

/// Symptom this guards against: a length on the wire is allocated before its bytes arrive.
#[test]
fn lengths_are_bounded_before_and_after_the_handshake() {
    let live = LiveStore::new();
    let server = live.serve();
    let mut header = [0; 24];
    header[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
    header[4] = Verb::Hello as u8;
    let refused = send(connect(&server), &header);
    assert_eq!(refused.get(4), Some(&(Verb::Goodbye as u8)));
    header[4] = Verb::Create as u8;
    assert_eq!(send(greeted(&live, &server, 1), &header), b"");
}

#[test]
fn a_client_of_another_namespace_is_refused() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let answer = send(connect(&server), &hello(SetId(1), 1));
    let (header, payload) = split_frame(&answer, FRAME_BYTES_MAX, "x")?.expect("a frame");
    assert_eq!(header.verb, Verb::Goodbye);
    let why = take_status(&mut WireInput::new(&answer[payload])).expect("an outcome").unwrap_err();
    assert_eq!(why.kind(), Kind::Conflict);
    assert_eq!(server.counters().connections, 0);
    Ok(())
}

/// Symptom: a client that repeated thousands of makes, none of which it had made, ended its connection
/// with a panic of the server. Cause: each error had room for a text of any length, and the answer
/// was longer than a frame. Fix: the items of an answer share its bytes, also those of a repetition.
#[test]
fn thousands_of_repeated_makes_that_fail_have_one_answer() -> Result<()> {
    const ITEMS: u16 = 2048;
    let live = LiveStore::new();
    let server = live.serve();
    let mut stream = greeted(&live, &server, 1);
    let mut payload = vec![0; 16];
    put_varint(&mut payload, 0o644);
    put_bytes(&mut payload, b"f");
    let mut header = FrameHeader::new(Verb::Create, 2);
    header.window = 2;
    stream.write_all(&frame(&header, &payload)).expect("sent");
    receive(&mut stream).expect("an answer");
    // The server takes request 1 for one that was carried out before, since request 2 was.
    let mut payload = vec![0; 16];
    for _ in 0..ITEMS {
        payload.push(u8::try_from(NameKind::Is(FileKind::File).number()).expect("kinds are few"));
        [0o600, 0, 0, 0].iter().for_each(|field| put_varint(&mut payload, *field));
        put_bytes(&mut payload, b"");
        put_bytes(&mut payload, &[0xff; 255]);
    }
    let mut header = FrameHeader::new(Verb::MakeNode, 1);
    header.items = ITEMS;
    stream.write_all(&frame(&header, &payload)).expect("sent");
    let (answer, payload) = receive(&mut stream).expect("an answer");
    assert_eq!((answer.verb, answer.number, answer.items), (Verb::MakeNode, 1, ITEMS));
    let mut input = WireInput::new(&payload);
    for _ in 0..ITEMS {
        let outcome = take_status(&mut input).expect("an outcome");
        assert_eq!(outcome.expect_err("it was not made").kind(), Kind::NotFound);
    }
    server.end()
}

/// The server stops serving a client that sends without ever reading, so the answers do not fill
/// its memory.
#[test]
fn a_client_that_reads_nothing_is_not_served_further() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut stream = greeted(&live, &server, 1);
    stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let status = frame(&FrameHeader::new(Verb::Status, 1), b"").repeat(100);
    let mut sent = 0;
    while sent < 64 << 20 {
        match stream.write(&status) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    assert!(sent < 16 << 20, "{sent} bytes were taken");
    let mut tree = live.connect();
    tree.create(&LiveDir::root(), b"f", 0o644)?;
    let mut piece = vec![0; 4096];
    let count = stream.read(&mut piece).expect("an answer");
    assert!(split_frame(&piece[..count], FRAME_BYTES_MAX, "x")?.is_some());
    tree.close()
}

/// Waits until the other end of `stream` has closed it, without reading anything.
fn is_closed(stream: &UnixStream) -> bool {
    // The end of the peer is reported without being asked for.
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    poll(&mut polled, Some(&patience)).expect("a poll");
    polled[0].revents().contains(PollFlags::HUP)
}

/// Symptom: a client that asked for long durable answers, read none and shut its side down kept a
/// descriptor of the server, which no limit of connections counted.
/// Cause: the task that sends answers outlived its connection.
/// Fix: answers that are not sent when a connection ends are given up.
#[test]
fn a_client_that_leaves_answers_unread_keeps_no_descriptor() -> Result<()> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    tree.create(&LiveDir::root(), b"large", 0o644)?;
    let write = Request::write(&LiveFile::at(&LiveDir::root(), b"large"), 0, &vec![7; 1 << 19]);
    tree.connection().call(write.durable())?.only(|_| Ok(()))?;
    let mut payload = vec![0; 16 + 16];
    put_bytes(&mut payload, b"large");
    put_varint(&mut payload, 0);
    put_varint(&mut payload, 1 << 19);
    let mut stream = greeted(&live, &server, 100);
    let mut header = FrameHeader::new(Verb::Read, 1);
    header.flags.is_durable = true;
    (header.items, header.window) = (1, 1);
    stream.write_all(&frame(&header, &payload)).expect("sent");
    // The answer is on its way, and the socket takes only a part of it.
    stream.read_exact(&mut [0; 8]).expect("the beginning of an answer");
    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    assert!(is_closed(&stream), "the server keeps its end");
    tree.close()?;
    server.end()
}
