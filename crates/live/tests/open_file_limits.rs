// SPDX-License-Identifier: Apache-2.0
//! Open file limits: no user takes all the memory of a server by opening files, however many clients
//! it has.

use std::sync::Arc;

use esker_base::{Kind, Result};
use esker_fs::inode::FileKind;
use esker_fs::ops::NewFile;
use esker_fs::stack::identity::Identity;
use esker_live::client::{LiveDir, LiveEntry, LiveFile, Request};
use esker_live::wire::AttributeRequest;
use esker_live::{LiveServerOptions, LiveTree};

use crate::raw_client::as_user;
use crate::served::{LiveStore, server_options};

/// Files that one client may have open.
const CLIENT_MAX: usize = 1 << 16;
/// Clients of one user that may have as many open.
const FULL_CLIENTS: usize = 2;

/// Opens `files` in `dir`; returns the kinds of the errors.
fn open_all(tree: &mut LiveTree, dir: &LiveDir, files: &[LiveEntry]) -> Result<Vec<Kind>> {
    let connection = tree.connection();
    let mut failures = Vec::new();
    for files in files.chunks(1024) {
        let mut under_way = Vec::new();
        for entry in files {
            let file = LiveFile { dir, name: &entry.name, id: entry.attributes.id };
            under_way.push(connection.submit(Request::open(&file))?);
        }
        for request in under_way {
            failures.extend(connection.wait(request)?.outcome().err().map(|error| error.kind()));
        }
    }
    Ok(failures)
}

/// Symptom: a user with many clients had the server keep millions of files open, until it ran out of
/// memory. Cause: only the files of each client were counted.
#[test]
fn a_user_has_a_bounded_number_of_files_open_over_all_its_clients() -> Result<()> {
    if !Identity::of_process().is_root() {
        println!("skipped: needs the superuser");
        return Ok(());
    }
    let live = LiveStore::new();
    let server = live.serve_with(LiveServerOptions { allow_other: true, ..server_options() })?;
    let mut owner = live.connect();
    let root = LiveDir::root();
    let anybody = AttributeRequest { mode: Some(0o1777), ..Default::default() };
    owner.set_attributes(&root, b"", &anybody)?;
    let dir = owner.make_directory(&root, b"d", 0o755)?;
    let names: Vec<Vec<u8>> = (0..=CLIENT_MAX).map(|n| format!("f{n}").into_bytes()).collect();
    for names in names.chunks(2048) {
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        for outcome in owner.connection().call(Request::create(&dir, 0o644, &names))?.outcomes()? {
            outcome?;
        }
    }
    let files = owner.list(&dir)?;
    let (live, dir, files) = (Arc::new(live), &dir, &files[..]);
    let connect = |uid| {
        let live = live.clone();
        as_user(uid, move || live.connect())
    };
    let mut clients: Vec<LiveTree> = (0..FULL_CLIENTS).map(|_| connect(1002)).collect();
    for client in &mut clients {
        assert_eq!(open_all(client, dir, &files[..CLIENT_MAX])?, []);
        // One more is more than a client may have.
        assert_eq!(open_all(client, dir, &files[CLIENT_MAX..])?, [Kind::TooManyOpenFiles]);
        // To open one again takes no more.
        assert_eq!(open_all(client, dir, &files[..1])?, []);
    }
    let mut more = connect(1002);
    let file = LiveFile { dir, name: &files[0].name, id: files[0].attributes.id };
    let refused = more.change(Request::open(&file)).expect_err("the user has too many");
    assert_eq!(refused.kind(), Kind::TooManyOpenFiles);
    assert!(refused.to_string().contains("user 1002") && refused.to_string().contains("close"));
    // A file that cannot be opened is not made.
    let new =
        NewFile { kind: FileKind::File, mode: 0o644, uid: 1002, gid: 1002, rdev: 0, target: b"" };
    let make = || Request::make_node(&root, b"new", (&new, true));
    assert_eq!(more.change(make()).expect_err("too many").kind(), Kind::TooManyOpenFiles);
    assert_eq!(more.lookup(&root, b"new").expect_err("not made").kind(), Kind::NotFound);
    // Other users, and the server's, open files as before.
    assert_eq!(open_all(&mut connect(1003), dir, &files[..10])?, []);
    assert_eq!(open_all(&mut owner, dir, &files[..10])?, []);
    // A client that closes a file, or leaves, makes room.
    clients[0].change(Request::close(&file))?;
    more.change(make())?;
    assert_eq!(more.change(Request::open(&file)).unwrap_err().kind(), Kind::TooManyOpenFiles);
    clients.pop().expect("one").close()?;
    assert_eq!(open_all(&mut more, dir, &files[..CLIENT_MAX - 1])?, []);
    server.end()
}
