// SPDX-License-Identifier: Apache-2.0
//! Raw client: frames of a client as bytes, for tests of what `LiveConnection` never sends.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use esker_live::LiveServer;
use esker_live::wire::{
    ClientHello, FRAME_BYTES_MAX, FrameHeader, HelloMethod, Verb, finish_frame, split_frame,
    start_frame,
};

use crate::served::{LiveStore, NAME};

/// A frame of `payload`.
pub fn frame(header: &FrameHeader, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    start_frame(&mut out);
    out.extend_from_slice(payload);
    finish_frame(&mut out, 0, header);
    out
}

/// A connection to `server` before its handshake.
pub fn open(server: &LiveServer) -> UnixStream {
    let name = server.address().unix.clone().expect("no failure");
    let stream =
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).expect("no failure"))
            .expect("no failure");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("no failure");
    stream
}

/// The first frame of `client`.
pub fn hello(live: &LiveStore, client: u64) -> Vec<u8> {
    let set = esker_fs::names::live_namespace::LiveNamespace::load(&*live.store, NAME)
        .expect("no failure")
        .seats[0];
    let hello = ClientHello { method: HelloMethod::PeerCredentials, client, set, nonce: [0; 16] };
    frame(&FrameHeader::new(Verb::Hello, 0), &hello.encode())
}

/// A connection of `client` after its handshake.
pub fn greeted(live: &LiveStore, server: &LiveServer, client: u64) -> UnixStream {
    let mut stream = open(server);
    stream.write_all(&hello(live, client)).expect("no failure");
    let (header, _) = receive(&mut stream).expect("a welcome");
    assert_eq!(header.verb, Verb::Welcome);
    stream
}

/// The next frame from the server; `None` if it closes the connection.
pub fn receive(stream: &mut UnixStream) -> Option<(FrameHeader, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some((header, range)) =
            split_frame(&bytes, FRAME_BYTES_MAX, "x").expect("no failure")
        {
            return Some((header, bytes[range].to_vec()));
        }
        let mut one = [0; 1];
        match stream.read(&mut one) {
            Ok(1) => bytes.push(one[0]),
            _ => return None,
        }
    }
}

/// Runs `f` in a thread of the user `uid`.
pub fn as_user<T: Send + 'static>(uid: u32, f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || {
        // SAFETY: these calls change only the identity of this thread, which ends with `f`.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, uid, uid, uid), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
        }
        f()
    })
    .join()
    .expect("no failure")
}
