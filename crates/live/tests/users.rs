// SPDX-License-Identifier: Apache-2.0
//! Users: the permissions that the server grants to each. The tests set the identities of handles;
//! the tests of the command have processes of two users.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::stack::identity::Identity;
use esker_live::client::{BulkInsertion, LiveClientOptions, LiveDir, Request};
use esker_live::proof::UserSecret;
use esker_live::wire::{
    AttributeRequest, ClientHello, FRAME_HEADER_BYTES, FrameHeader, HelloMethod, Verb,
};
use esker_live::{LiveTree, client};

use crate::raw_client::{as_user, frame, open};
use crate::served::{LiveStore, NAME, session_options, tcp_options};

/// A user without groups of its own.
fn user(uid: u32) -> Identity {
    Identity { uid, gid: uid, groups: vec![] }
}

/// Symptom: a user who may not connect kept all clients of other machines out. Cause: connections
/// that this user opened over the Unix socket, and left idle, took the handshakes of TCP clients.
/// Fix: the two are counted apart.
#[test]
fn local_users_who_may_not_connect_keep_no_machine_out() -> Result<()> {
    const IDLE: usize = 300;
    if !Identity::of_process().is_root() {
        println!("skipped: needs the superuser");
        return Ok(());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let secret = UserSecret::read_or_make(&folder.path().join("secret"))?;
    let live = LiveStore::new();
    let server = Arc::new(live.serve_with(tcp_options(&secret))?);
    let of_other = server.clone();
    let idle = as_user(1002, move || (0..IDLE).map(|_| open(&of_other)).collect::<Vec<_>>());
    while server.counters().refused == 0 {
        std::thread::yield_now();
    }
    let tcp = server.address().tcp.as_ref().expect("a TCP port");
    let mut stream = TcpStream::connect(tcp).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    // A process of another machine, which is asked to prove that it knows the secret.
    let set = LiveNamespace::load(&*live.store, NAME)?.seats[0];
    let hello = ClientHello { method: HelloMethod::Secret, client: 1, set, nonce: [0; 16] };
    let hello = frame(&FrameHeader::new(Verb::Hello, 0), &hello.encode());
    stream.write_all(&hello).expect("sent");
    let mut head = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut head).expect("a challenge");
    assert_eq!(head[4], Verb::Challenge as u8);
    drop(idle);
    Ok(())
}

/// Only a server of the superuser acts for several users over TCP.
#[test]
fn permissions_are_those_of_each_user() -> Result<()> {
    if !Identity::of_process().is_root() {
        println!("skipped: needs the superuser");
        return Ok(());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let secret = UserSecret::read_or_make(&folder.path().join("secret"))?;
    let live = LiveStore::new();
    let server = live.serve_with(tcp_options(&secret))?;
    let mut address = server.address().clone();
    (address.unix, address.instance) = (None, "0".repeat(16));
    live.store.delete(&format!("live/{NAME}/server/{}", server.address().instance))?;
    address.put(&*live.store, (NAME, 0))?;
    let connect = |identity: Identity| {
        let secret = Some(secret.clone());
        let options = LiveClientOptions { identity, secret, ..crate::served::client_options() };
        LiveTree::connect(&live.store, NAME, options)
    };
    let (mut root, mut alice, mut bob) =
        (connect(Identity::root())?, connect(user(1000))?, connect(user(1001))?);
    let top = client::LiveDir::root();
    assert_eq!(alice.create(&top, b"f", 0o644).unwrap_err().kind(), Kind::Denied);
    let open = AttributeRequest { mode: Some(0o1777), ..Default::default() };
    root.set_attributes(&top, b"", &open)?;
    let private = alice.make_directory(&top, b"private", 0o700)?;
    let inner = alice.make_directory(&private, b"inner", 0o777)?;
    alice.create(&inner, b"f", 0o666)?;
    assert_eq!(alice.lookup(&private, b"inner")?.uid, 1000);
    // Also below directories in which this user makes nothing.
    root.set_attributes(&top, b"", &AttributeRequest { mode: Some(0o755), ..Default::default() })?;
    alice.make_directories(b"/private/inner/a//b/", 0o755)?;
    let denied = bob.make_directories(b"/bobs/a", 0o755).unwrap_err().kind();
    assert_eq!(denied, Kind::Denied);
    root.set_attributes(&top, b"", &open)?;
    // The identity of a directory does not help a user who may not follow its path.
    let guessed = LiveDir::below_root(inner.id, &inner.path);
    assert_eq!(bob.create(&guessed, b"g", 0o644).unwrap_err().kind(), Kind::Fenced);
    assert_eq!(bob.dir(b"/private/inner").unwrap_err().kind(), Kind::Denied);
    assert_eq!(
        bob.change(Request::remove_directory(&top, &[b"private"])).unwrap_err().kind(),
        Kind::NotPermitted
    );
    let own = AttributeRequest { mode: Some(0o777), ..Default::default() };
    let denied = bob.set_attributes(&top, b"private", &own).unwrap_err().kind();
    assert_eq!(denied, Kind::NotPermitted);
    assert_eq!(bob.snapshot("mine").unwrap_err().kind(), Kind::NotPermitted);
    // Only the server's user inserts directories, and names what was adopted.
    assert_eq!(bob.check_may_insert().unwrap_err().kind(), Kind::NotPermitted);
    root.check_may_insert()?;
    let filled = BulkInsertion::begin(&live.repository, 0o700, session_options())?;
    assert_eq!(filled.insert(&mut bob, &top, b"bobs").unwrap_err().kind(), Kind::NotPermitted);
    let set = filled.session().complete()?;
    let adopted = root.connection().call(Request::adopt_set(0, set, b"content"))?;
    let adopted = adopted.only(|input| Ok(DirId(input.u128()?)))?;
    let stolen = bob.change(Request::insert_adopted(&top, b"bobs", adopted));
    assert_eq!(stolen.unwrap_err().kind(), Kind::NotPermitted);
    filled.insert(&mut root, &top, b"roots")?;
    Ok(())
}
